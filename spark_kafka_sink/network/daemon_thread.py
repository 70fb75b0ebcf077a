"""Blocking calls on daemon threads.

The event loop's own executor joins its threads when the loop shuts down, so a name service or a
token endpoint that hangs would delay the producer's `close` for as long. The threads here are
daemons and are never joined.

Once the process ends, Python 3.12 and later start no thread. What is left to do, such as sending
the last records, then runs on the threads that exist: at worst they hang until the process is gone.
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

#: The lifetime, in seconds, of a result that arrived after the last wait for it had timed out.
KEPT_SECONDS: Final = 60.0


def is_exiting() -> bool:
    """Return whether the main thread has ended, so that the process only finishes its work."""
    return not threading.main_thread().is_alive()


class Outcome(NamedTuple):
    """The result of a call, or the error that it raised."""

    result: Any
    error: Exception | None

    def get(self) -> Any:
        """Return the result, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.result


def in_daemon_thread(
    name: str, function: Callable[..., Any], *arguments: object
) -> asyncio.Future[Outcome]:
    """Call a function on a new thread; the future yields an outcome and never raises."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Outcome] = loop.create_future()

    def done(what: Outcome) -> None:
        # The future may have been cancelled in the meantime.
        if not outcome.done():
            outcome.set_result(what)

    def run() -> None:
        result, error = None, None
        try:
            result = function(*arguments)
        except Exception as failure:  # noqa: BLE001 - passed on to the waiter
            error = failure
        except BaseException as failure:  # noqa: BLE001 - a function that exits ends its thread only
            error = RuntimeError(f"the call ended its thread: {type(failure).__name__}")
            error.__cause__ = failure
        # If the loop was closed in the meantime, there is no waiter left.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(done, Outcome(result, error))

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except (RuntimeError, MemoryError) as error:
        if is_exiting():
            run()
            return outcome
        # The system cannot start another thread now; later it may.
        reason = str(error) or type(error).__name__
        problem = NetworkError(f"the thread {name!r} cannot be started: {reason}")
        problem.__cause__ = error
        done(Outcome(None, problem))
    return outcome


class SharedCall:
    """A function that is called on a daemon thread, at most one call at a time.

    Python cannot end a thread. A call that outlasts a wait continues, and the next wait joins it or
    finds its result. So a function that hangs costs one thread, however often it is needed, and the
    result of one that takes longer than a wait is still used.
    """

    def __init__(self, name: str, function: Callable[[], Any]) -> None:
        """Set the function, and the name of its threads. Belongs to one event loop."""
        self._name = name
        self._function = function
        self._call: asyncio.Future[Outcome] | None = None
        self._is_claimed = False
        self._ended_at: float | None = None

    async def outcome_within(self, seconds: float) -> Outcome | None:
        """Return what the function returned or raised; None if it takes longer than `seconds`."""
        clock = asyncio.get_running_loop().time
        call = self._call
        if call is None or self._is_claimed or self._is_out_of_date(clock()):
            call = self._call = in_daemon_thread(self._name, self._function)
            self._is_claimed = False
            self._ended_at = None
            call.add_done_callback(lambda _: self._note_end(clock()))
        # The call continues if the wait is cancelled.
        if not await done_by(call, clock() + seconds):
            return None
        if call is self._call:
            self._is_claimed = True
        return call.result()

    def _is_out_of_date(self, now: float) -> bool:
        return self._ended_at is not None and now - self._ended_at > KEPT_SECONDS

    def _note_end(self, now: float) -> None:
        self._ended_at = now
