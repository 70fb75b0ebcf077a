"""A function in a forked process, which ends there, whatever the function does."""

from __future__ import annotations

import os
import select
import signal
import traceback
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_SECONDS = 120


def call_in_fork(function: Callable[[], str]) -> str:
    """Return what a function returns in a forked process.

    Raises ChildProcessError, with the error's traceback, if the function raises one there, and also
    if it does not end.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 and later warn of a fork beside threads.
        warnings.simplefilter("ignore")
        child = os.fork()
    if not child:
        # Neither pytest nor the fixtures of a test may end in this process.
        code = 1
        try:
            os.write(writing, function().encode())
            code = 0
        except BaseException:  # noqa: BLE001  nothing may leave this process
            os.write(writing, traceback.format_exc().encode())
        finally:
            os._exit(code)
    os.close(writing)
    if not select.select([reading], [], [], _SECONDS)[0]:
        os.kill(child, signal.SIGKILL)
    with os.fdopen(reading, encoding="utf-8") as answer:
        told = answer.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        raise ChildProcessError(f"the forked process ended with {code}: {told}")
    return told
