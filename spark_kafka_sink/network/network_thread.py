"""The daemon thread that owns the event loop and all sockets of one client, and its end.

A client that is garbage-collected without having been closed is stopped as well. The collector runs
on any thread, whatever lock that thread holds. So nothing is done there but to warn, and to start a
thread without any of Python's own locks; that thread stops the client. At the end of the process
nothing is stopped: the clients' daemon threads end with it, after `producer.kafka_producer` has
waited for the records of producers.
"""

from __future__ import annotations

import _thread
import asyncio
import logging
import os
import sys
import threading
import traceback
import warnings
from concurrent.futures import CancelledError, Future, InvalidStateError, wait
from contextlib import ExitStack, suppress
from functools import partial
from inspect import CORO_CREATED, getcoroutinestate
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import finalize

from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds that `close` waits for the thread's end in addition to its own timeout.
JOIN_TIMEOUT = 10.0
#: Seconds by which the result of a coroutine that timed out may be late.
ANSWER_TIMEOUT = 1.0


class NetworkThread:
    """A thread that runs one coroutine, and callbacks and coroutines from other threads."""

    def __init__(
        self,
        main: Callable[[], Coroutine[Any, Any, None]],
        *,
        name: str,
        closed: Callable[[], KafkaError],
        busy: str,
    ) -> None:
        """Prepare to run `main()`, which must call `started` when it is ready for other threads.

        `closed` returns the error for calls after the thread's end, and `busy` is the end of the
        error for a thread that does not respond: why, and what to do.
        """
        self._main = main
        self._closed = closed
        self._busy = busy
        self._loop: asyncio.AbstractEventLoop
        self._started = threading.Event()
        #: What was submitted and has no result yet.
        self._unanswered: dict[Future[Any], Coroutine[Any, Any, Any]] = {}
        self._has_ended = False
        #: Held by the first to claim the loop: the thread, to run it, or `stop`, to close it.
        self._claim = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self, undo: ExitStack) -> None:
        """Start the thread, and wait until `main` has called `started` or has ended.

        `undo` stops the thread again, wherever the caller may be interrupted.
        """
        self._loop = asyncio.new_event_loop()
        undo.callback(self.stop)
        self._thread.start()
        self._started.wait()

    def stop(self) -> None:
        """Cancel `main` and wait for its end; a thread that has not begun yet does nothing.

        On this thread itself, where the garbage collector may close a client, it does not wait.
        """
        if self._claim.acquire(blocking=False):
            self._loop.close()
        else:
            self.call_soon(self._cancel_main)
            if not self.is_current:
                self._thread.join(JOIN_TIMEOUT)

    def _cancel_main(self) -> None:
        if self._has_ended:
            # What is left is the end of the loop itself.
            return
        for task in asyncio.all_tasks(self._loop):
            task.cancel()

    def started(self) -> None:
        """Make `start` return."""
        self._started.set()

    def _run(self) -> None:
        if not self._claim.acquire(blocking=False):
            return
        try:
            with (
                asyncio.Runner(loop_factory=lambda: self._loop) as runner,
                suppress(asyncio.CancelledError),
            ):
                runner.run(self._run_main())
        finally:
            self._started.set()
            self._fail_unanswered()

    async def _run_main(self) -> None:
        try:
            await self._main()
        finally:
            self._has_ended = True
            # What was submitted before becomes a task, and is cancelled with the others.
            await asyncio.sleep(0)

    def _fail_unanswered(self) -> None:
        """Fail what a loop that was ending accepted, but never started."""
        for future, coroutine in list(self._unanswered.items()):
            with suppress(InvalidStateError):
                future.set_exception(self._closed())
            if getcoroutinestate(coroutine) == CORO_CREATED:
                coroutine.close()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this thread."""
        return threading.current_thread() is self._thread

    @property
    def is_alive(self) -> bool:
        """Whether the thread is still running."""
        return self._thread.is_alive()

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call `callback` on this thread soon; do nothing if the thread has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float) -> T:
        """Run on this thread a coroutine that ends within `timeout` seconds, and return its result.

        Raises the error of `closed` if the thread ends first, KafkaTimeoutError if it is too busy
        to answer; the coroutine is cancelled then.
        """
        answer = self.submit(coroutine)
        done, _ = wait([answer], timeout)
        if not done:
            # The extra time starts here: a pause of the process must not use up the loop's time,
            # too.
            done, _ = wait([answer], ANSWER_TIMEOUT)
        with suppress(CancelledError):
            if done or not answer.cancel():
                return answer.result()
        if not done and self.is_alive:
            raise KafkaTimeoutError(
                f"the network thread did not respond within {timeout:.1f} s {self._busy}"
            )
        raise self._closed()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on this thread; its future can be waited for, or cancelled.

        The future is cancelled, or has the error of `closed`, if the thread ends first. Raises this
        error if it has ended.
        """
        if self._has_ended:
            coroutine.close()
            raise self._closed()
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:
            coroutine.close()
            raise self._closed() from None
        self._unanswered[future] = coroutine
        future.add_done_callback(lambda done: self._unanswered.pop(done, None))
        if self._loop.is_closed():
            self._fail_unanswered()
        return future

    def clock(self) -> float:
        """Return the time by the loop's clock, in seconds; any thread may call it."""
        return self._loop.time()

    def join(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for the thread's end; return whether it has ended."""
        self._thread.join(timeout)
        return not self.is_alive

    def stack(self) -> str:
        """Return the thread's current stack as a traceback; empty if it has ended."""
        frame = sys._current_frames().get(self._thread.ident or 0)  # noqa: SLF001
        return "" if frame is None else "".join(traceback.format_stack(frame))


def stop_if_forgotten(
    owner: object,
    stop: Callable[[], None],
    *,
    client_id: str | None,
    remedy: str = "call close(), or use it in a `with` block.",
    effect: str = "",
) -> finalize[..., Any]:
    """Call `stop` on a thread of its own if `owner` is garbage-collected, with a ResourceWarning.

    `stop` must not refer to `owner`; `effect` is a sentence about what that means, and `remedy`
    says what to do. Returns an object whose `detach` makes it forget the owner, for a client that
    is closed.
    """
    name = type(owner).__name__
    end = finalize(
        owner,
        _abandon,
        stop,
        process_id=os.getpid(),
        name=name,
        of=client_id,
        advice=f"{remedy}{effect}",
    )
    end.atexit = False
    return end


def _abandon(
    stop: Callable[[], None], *, process_id: int, name: str, of: str | None, advice: str
) -> None:
    if os.getpid() != process_id:
        # The client is that of the process that was forked.
        return
    # `Thread.start` takes a lock that the interrupted thread may hold.
    _thread.start_new_thread(_start, (partial(_stop, stop, name), f"{name} that was not closed"))
    called = "" if of is None else f" (client.id {of!r})"
    warnings.warn(
        f"{name} was not closed{called}: {advice}",
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
