"""The daemon thread that owns the event loop and all sockets of one producer."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from concurrent.futures import CancelledError, wait
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from spark_kafka_sink.errors import KafkaTimeoutError, ProducerClosedError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextlib import ExitStack

T = TypeVar("T")

#: How many seconds a close waits for the thread's end beyond what was agreed.
JOIN_TIMEOUT = 10.0
#: How many seconds a coroutine's own time-out may take to arrive.
ANSWER_TIMEOUT = 1.0


class NetworkThread:
    """Runs one coroutine, and what other threads hand in meanwhile."""

    def __init__(self, main: Callable[[], Coroutine[Any, Any, None]], *, client_id: str) -> None:
        """Prepare to run `main()`; it has to call `started` when it can be talked to."""
        self._main = main
        self._loop: asyncio.AbstractEventLoop
        self._started = threading.Event()
        #: Held by whoever has come to the loop first: the thread, to run on it, or `stop`.
        self._claim = threading.Lock()
        self._thread = threading.Thread(
            target=self._run, name=f"kafka-producer-network-thread | {client_id}", daemon=True
        )

    def start(self, undo: ExitStack) -> None:
        """Start, and wait until `main` has called `started` or has ended.

        `undo` stops the thread, wherever an interrupt of the caller's strikes.
        """
        self._loop = asyncio.new_event_loop()
        undo.callback(self.stop)
        self._thread.start()
        self._started.wait()

    def stop(self) -> None:
        """Cancel `main`, and wait for its end; the thread does nothing if it has yet to begin."""
        if self._claim.acquire(blocking=False):
            self._loop.close()
        else:
            self.call_soon(self._cancel_main)
            self._thread.join(JOIN_TIMEOUT)

    def _cancel_main(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()

    def started(self) -> None:
        """Let `start` return."""
        self._started.set()

    def _run(self) -> None:
        if not self._claim.acquire(blocking=False):
            return
        try:
            with (
                asyncio.Runner(loop_factory=lambda: self._loop) as runner,
                suppress(asyncio.CancelledError),
            ):
                runner.run(self._main())
        finally:
            self._started.set()

    @property
    def is_current(self) -> bool:
        """Whether the caller is this thread itself."""
        return threading.current_thread() is self._thread

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self._thread.is_alive()

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run `callback` on this thread; nothing happens where it has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float) -> T:
        """Run on this thread what ends by itself within `timeout` seconds, and wait for it.

        Raises ProducerClosedError where the thread ends first, KafkaTimeoutError where it is too
        busy to answer; the coroutine is cancelled then.
        """
        try:
            answer = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:
            coroutine.close()
        else:
            # A loop that ends at this moment may never begin it, and so never answer.
            done, _ = wait([answer], timeout)
            if not done:
                # Counted from here: a pause of the process must not use up the loop's time, too.
                done, _ = wait([answer], ANSWER_TIMEOUT)
            with suppress(CancelledError):
                if done or not answer.cancel():
                    return answer.result()
            if not done and self.is_alive:
                raise KafkaTimeoutError(
                    f"the network thread did not answer within {timeout:.1f} s: it was kept busy "
                    "by a callback. Keep callbacks short, and call no method of the producer while "
                    "you hold a lock that a callback waits for"
                )
        raise ProducerClosedError("the producer was closed by another thread")

    def join(self, timeout: float) -> bool:
        """Wait until it has ended, `timeout` seconds at most; return whether it has."""
        self._thread.join(timeout)
        return not self.is_alive

    def stack(self) -> str:
        """Return where its code is now, in the form of a traceback; empty where it has ended."""
        frame = sys._current_frames().get(self._thread.ident or 0)  # noqa: SLF001
        return "" if frame is None else "".join(traceback.format_stack(frame))
