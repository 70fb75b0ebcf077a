"""The end of clients that are garbage-collected without having been closed.

The garbage collector runs on any thread, whatever lock that thread holds. So nothing is done there
but to warn, and to start a thread without any of Python's own locks; that thread stops the client.
At the end of the process nothing is stopped: the clients' daemon threads end with it, after
`producer.kafka_producer` has waited for the records of producers.
"""

from __future__ import annotations

import _thread
import logging
import os
import threading
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import finalize

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)


def stop_if_forgotten(
    owner: object, stop: Callable[[], None], *, client_id: str | None, effect: str = ""
) -> finalize[..., Any]:
    """Call `stop` on a thread of its own if `owner` is garbage-collected, with a ResourceWarning.

    `stop` must not refer to `owner`; `effect` is a sentence about what that means. Returns an
    object whose `detach` makes it forget the owner, for a client that is closed.
    """
    name = type(owner).__name__
    end = finalize(
        owner, _abandon, stop, process_id=os.getpid(), name=name, of=client_id, effect=effect
    )
    end.atexit = False
    return end


def _abandon(
    stop: Callable[[], None], *, process_id: int, name: str, of: str | None, effect: str
) -> None:
    if os.getpid() != process_id:
        # The client is that of the process that was forked.
        return
    # `Thread.start` takes a lock that the interrupted thread may hold.
    _thread.start_new_thread(_start, (partial(_stop, stop, name), f"{name} that was not closed"))
    called = "" if of is None else f" (client.id {of!r})"
    warnings.warn(
        f"a {name} was not closed{called}: call close(), or use it in a `with` block.{effect}",
        ResourceWarning,
        stacklevel=3,
    )


def _start(stop: Callable[[], None], name: str) -> None:
    try:
        threading.Thread(target=stop, name=name, daemon=True).start()
    except RuntimeError:
        # Such as at the end of the process. This thread has no name, but can do the same.
        stop()


def _stop(stop: Callable[[], None], name: str) -> None:
    try:
        stop()
    except Exception as error:  # noqa: BLE001  no caller is left
        logger.warning("a %s that was not closed ended with an error: %s", name, error)
