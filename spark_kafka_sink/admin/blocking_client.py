"""What the blocking clients have in common: a thread that runs their calls, one at a time."""

from __future__ import annotations

import asyncio
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self, TypeVar

from spark_kafka_sink.admin.cluster_calls import ClusterCalls
from spark_kafka_sink.errors import IllegalStateError, KafkaTimeoutError
from spark_kafka_sink.network.network_thread import stop_if_forgotten

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from spark_kafka_sink.config.client_config import ClientConfig

T = TypeVar("T")


class _Call:
    """A call that any thread may cancel, whether or not it has begun."""

    def __init__(self) -> None:
        self.is_cancelled = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None

    def begin(self) -> None:
        """Make the current task the one to cancel; raises CancelledError if that has happened."""
        self._task = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        # Checked last: a thread that cancels from here on finds the loop.
        if self.is_cancelled:
            raise asyncio.CancelledError

    def cancel(self) -> None:
        """Cancel the task, or do not let it begin; a task that has ended remains as it is."""
        self.is_cancelled = True
        if self._loop is not None and self._task is not None:
            with suppress(RuntimeError):
                # The loop may be closed.
                self._loop.call_soon_threadsafe(self._task.cancel)


class LoopThread:
    """A thread with an event loop of its own, which runs coroutines one at a time; `close` it.

    It makes blocking calls over shared connections. A notebook already runs a loop on the caller's
    thread. The loop here runs only during a call: nothing runs between calls, and the next call
    detects a connection that has ended in the meantime.

    The connections belong to the loop's thread, which opens and closes them. Other threads only
    start a call, wait for it and cancel it, so that Ctrl-C and `close` end a call at once.
    """

    def __init__(self, name: str, open_shared: Callable[[], ClusterCalls]) -> None:
        """Start the thread.

        `open_shared` is called on the loop, at the first call, for what all calls share.
        """
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        # An executor that is interrupted while it starts a thread forgets that thread and starts
        # another one with the next call. So the thread starts before there is a call to interrupt.
        self._thread.submit(_do_nothing).result()
        self._runner = asyncio.Runner()
        self._open_shared = open_shared
        self._process_id = os.getpid()
        #: Only the loop's thread uses this.
        self._shared: ClusterCalls | None = None
        #: The calls that have begun and not ended, or wait for their turn.
        self._calls: set[_Call] = set()
        self._closed = False

    def check_open(self) -> None:
        """Raise IllegalStateError after `close`, and in a forked process."""
        if self._is_forked:
            raise IllegalStateError(
                "the admin client was created in another process: create one in each process"
            )
        if self._closed:
            raise _closed_error()

    @property
    def _is_forked(self) -> bool:
        """Whether this is another process, which has neither the thread nor its connections."""
        return os.getpid() != self._process_id

    def run(
        self,
        function: Callable[[ClusterCalls], Coroutine[Any, Any, T]],
        timeout: float | None = None,
    ) -> T:
        """Call `function` on the loop's thread, and run its coroutine to the end.

        It has to begin within `timeout` seconds; once begun, it ends by itself. If the caller is
        interrupted, the coroutine is cancelled, and the caller does not wait for its end. Raises
        KafkaTimeoutError if the calls of other threads take longer, IllegalStateError after
        `close`, in a forked process, and if `close` cancels the coroutine.
        """
        self.check_open()
        call = _Call()
        try:
            self._calls.add(call)
            answer: Future[T] = self._submit(self._run, call, function)
            _await_turn(answer, timeout)
            return answer.result()
        except BaseException:
            call.cancel()
            raise
        finally:
            self._calls.discard(call)

    def _submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        try:
            return self._thread.submit(function, *arguments)
        except RuntimeError:
            # Another thread has closed this one in the meantime.
            self.check_open()
            raise

    def _run(self, call: _Call, function: Callable[[ClusterCalls], Coroutine[Any, Any, T]]) -> T:
        async def run() -> T:
            call.begin()
            self.check_open()
            if self._shared is None:
                self._shared = self._open_shared()
            return await function(self._shared)

        try:
            return self._runner.run(run())
        except asyncio.CancelledError:
            if not call.is_cancelled:
                raise
            # After Ctrl-C, the caller has gone; otherwise it was `close`.
            raise _closed_error() from None

    def close(self) -> None:
        """Cancel all calls, close what they share, and end the thread.

        May be called more than once, and from several threads: each waits for the end. In a forked
        process there is nothing to close.
        """
        self._closed = True
        if self._is_forked:
            return
        for call in list(self._calls):
            call.cancel()
        end = None
        with suppress(IllegalStateError):
            end = self._submit(self._end)
        # From here on the thread ends by itself, even if this one is interrupted.
        self._thread.shutdown(wait=False)
        if end is not None:
            end.result()
        self._thread.shutdown()

    def _end(self) -> None:
        shared, self._shared = self._shared, None
        try:
            if shared is not None:
                self._runner.run(shared.close())
        finally:
            self._runner.close()


class BlockingClient:
    """A client whose calls run one at a time, on a thread of its own; `close` it."""

    def __init__(self, config: ClientConfig) -> None:
        self._thread = LoopThread("kafka-admin", lambda: ClusterCalls(config))
        self._owner_end = stop_if_forgotten(self, self._thread.close, client_id=config.client_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; may be called more than once.

        A call that another thread is making ends with IllegalStateError.
        """
        self._owner_end.detach()
        self._thread.close()

    def _run(
        self, function: Callable[[ClusterCalls, float], Coroutine[Any, Any, T]], timeout: float
    ) -> T:
        """Call `function` on the client's thread, with the deadline in `timeout` seconds.

        The time until the calls of other threads have ended counts.
        """
        # The loop has the same clock.
        deadline = time.monotonic() + timeout
        return self._thread.run(lambda calls: function(calls, deadline), timeout)


def _do_nothing() -> None:
    """Start an executor's thread."""


def _await_turn(answer: Future[Any], timeout: float | None) -> None:
    """Wait for a call, but if it has not begun by then, raise KafkaTimeoutError."""
    # One that has begun cannot be cancelled.
    if not wait({answer}, timeout).done and answer.cancel():
        raise KafkaTimeoutError(
            f"the calls of other threads have taken all of the {timeout or 0:g} s: give each "
            "thread an admin client of its own, or more time"
        )


def _closed_error() -> IllegalStateError:
    return IllegalStateError("the admin client is closed: create another one")
