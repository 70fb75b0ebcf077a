"""Blocking calls on threads of our own.

The event loop's own executor joins its threads when the loop is shut down: a name service or a
token endpoint that hangs would hold up the producer's `close` for as long. The threads here are
daemons that nobody waits for.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spark_kafka_sink.errors import NetworkError
from spark_kafka_sink.network.timeout_check import done_by

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

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except (RuntimeError, MemoryError) as error:
        # The system has no room for another thread; later it may have.
        reason = str(error) or type(error).__name__
        problem = NetworkError(f"the thread {name!r} cannot be started: {reason}")
        problem.__cause__ = error
        done(Outcome(None, problem))
    return outcome


#: How long a result counts that came after the last wait for it had given up.
KEPT_SECONDS: Final = 60.0


class SharedCall:
    """A function that is called on a daemon thread, and never while a call of it is under way.

    Python cannot end a thread. A call that outlasts a wait for it goes on, and the next wait joins
    it, or finds its result: a function that hangs costs one thread, however often it is needed, and
    one that takes longer than a wait is of use all the same.
    """

    def __init__(self, name: str, function: Callable[[], Any]) -> None:
        """Call nothing yet; `name` is the thread's. Belongs to one event loop."""
        self._name = name
        self._function = function
        self._call: asyncio.Future[Outcome] | None = None
        self._is_claimed = False
        self._ended_at: float | None = None

    async def outcome_within(self, seconds: float) -> Outcome | None:
        """Return what the function returned or raised; None where it takes longer."""
        clock = asyncio.get_running_loop().time
        call = self._call
        if call is None or self._is_claimed or self._is_out_of_date(clock()):
            call = self._call = in_daemon_thread(self._name, self._function)
            self._is_claimed = False
            self._ended_at = None
            call.add_done_callback(lambda _: self._note_end(clock()))
        # The call goes on when the wait is cancelled.
        if not await done_by(call, clock() + seconds):
            return None
        if call is self._call:
            self._is_claimed = True
        return call.result()

    def _is_out_of_date(self, now: float) -> bool:
        return self._ended_at is not None and now - self._ended_at > KEPT_SECONDS

    def _note_end(self, now: float) -> None:
        self._ended_at = now
