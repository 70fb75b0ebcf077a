"""Blocking calls on threads of our own.

The event loop's own executor joins its threads when the loop is shut down: a name service or a
token endpoint that hangs would hold up the producer's `close` for as long. The threads here are
daemons that nobody waits for.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


class Outcome(NamedTuple):
    """What a call gave, or what it raised."""

    result: Any
    error: Exception | None

    def get(self) -> Any:
        """Give the result, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.result


def in_daemon_thread(
    name: str, function: Callable[..., Any], *arguments: object
) -> asyncio.Future[Outcome]:
    """Call a function on a thread of this name; the future gives an outcome, and never raises."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Outcome] = loop.create_future()

    def done(what: Outcome) -> None:
        # Who has been waiting for it may have been cancelled.
        if not outcome.done():
            outcome.set_result(what)

    def run() -> None:
        result, error = None, None
        try:
            result = function(*arguments)
        except Exception as failure:  # noqa: BLE001 - handed over to who waits for it
            error = failure
        except BaseException as failure:  # noqa: BLE001 - a function that exits ends its thread only
            error = RuntimeError(f"the call ended its thread: {type(failure).__name__}")
            error.__cause__ = failure
        # A loop that was closed meanwhile has nobody left who waits.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(done, Outcome(result, error))

    threading.Thread(target=run, name=name, daemon=True).start()
    return outcome
