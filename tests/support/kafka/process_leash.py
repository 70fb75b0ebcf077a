"""Ends child processes when the test run dies, however it dies.

A broker is ended by its own handle in the ordinary case. When the test run itself is killed no
clean-up code runs, so one small helper process holds the reading end of a pipe: the kernel closes
the pipe with the test run, and the helper then kills the process groups it was told of and removes
their directories. A parent-death signal (PR_SET_PDEATHSIG) would be shorter but follows the
*thread* that started the child, and tests restart brokers from threads of their own.

This file is also the helper's program; it uses nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class ProcessLeash:
    """The test run's side of the pipe."""

    def __init__(self) -> None:
        """Start the helper, in a session of its own so that Ctrl-C does not reach it."""
        self._lock = threading.Lock()
        self._helper = subprocess.Popen(  # noqa: S603  # our own command
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )

    def hold(self, process_group: int, directory: Path) -> None:
        """Have a process group killed, and a directory removed, when the test run dies."""
        self._tell(f"hold {process_group} {directory}")

    def release(self, process_group: int) -> None:
        """Forget a process group that has ended; its directory stays held."""
        self._tell(f"release {process_group}")

    def close(self) -> None:
        """End the helper, and with it all that it still holds."""
        self._helper.communicate()

    def _tell(self, line: str) -> None:
        with self._lock:
            assert self._helper.stdin is not None
            self._helper.stdin.write(line + "\n")
            self._helper.stdin.flush()


def watch(lines: Iterable[str]) -> None:
    """Follow the instructions until they end, then kill and remove what is still held."""
    process_groups: set[int] = set()
    directories: set[str] = set()
    for line in lines:
        action, process_group, *directory = line.rstrip("\n").split(" ", 2)
        if action == "hold":
            process_groups.add(int(process_group))
            directories.update(directory)
        else:
            process_groups.discard(int(process_group))
    for process_group in process_groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process_group, signal.SIGKILL)
    for path in directories:
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    watch(sys.stdin)
