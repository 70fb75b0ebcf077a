"""The core of a consumer whose network side is a thread of its own; callers block while they wait.

`KafkaConsumer` is the public class. Its methods run on the user's thread, one at a time
(`CallGuard`).
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from spark_kafka_sink.consumer.consumer_context import Answer, ConsumerContext, Waiting, finish
from spark_kafka_sink.consumer.consumer_core import ConsumerCore, closed_error
from spark_kafka_sink.errors import IllegalStateError
from spark_kafka_sink.network.exponential_backoff import NEVER
from spark_kafka_sink.network.network_thread import NetworkThread, stop_if_forgotten

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from weakref import finalize

    from spark_kafka_sink.config.consumer_config import KafkaConsumerConfig
    from spark_kafka_sink.consumer.assignors.partition_assignor import ConsumerPartitionAssignor

T = TypeVar("T")

_BUSY: Final = "although nothing should keep it busy for so long; is this machine overloaded?"
#: Held by a nested call.
_NESTED: Final = nullcontext()


class CallGuard:
    """The call that is running; those of the listener's are nested in another one.

    It protects a consumer from two threads at once, from a forked process, and from calls after
    `close`. The lock is all its state, and one of the C library, so that no Ctrl-C leaves a call
    behind that has ended. Then not even `close` could run.
    """

    def __init__(self, settle: Callable[[], None]) -> None:
        """Start without a call, in the current process; `settle` begins each that is not nested."""
        self._settle = settle
        self._process_id = os.getpid()
        self.is_closed = False
        self._lock = threading.Lock()
        #: The thread of the last call, which may have ended.
        self._thread: int | None = None

    @property
    def is_forked(self) -> bool:
        """Whether this is another process than that of the consumer."""
        return os.getpid() != self._process_id

    @property
    def is_calling(self) -> bool:
        """Whether a call of this thread is running."""
        return self._lock.locked() and self._thread == threading.get_ident()

    def call(self, *, closes: bool = False) -> AbstractContextManager[Any]:
        """Return what to hold during a call.

        Raises IllegalStateError beside another thread's call, after a fork, and unless it `closes`
        the consumer, after that.
        """
        if self.is_forked:
            raise IllegalStateError(
                "the consumer was created in another process: create one in each process"
            )
        is_nested = self.is_calling
        if self._lock.locked() and not is_nested:
            raise IllegalStateError(
                "the consumer is used by two threads at once: give each thread a consumer "
                "of its own, or a lock; only wakeup() may be called by any thread"
            )
        if self.is_closed and not closes:
            raise closed_error()
        if is_nested:
            return _NESTED
        self._settle()
        self._thread = threading.get_ident()
        return self._lock


class ThreadedContext(ConsumerContext):
    """A context between two threads."""

    def __init__(self, *given: Any, **parts: Any) -> None:
        """Start without connections; see `ConsumerContext`."""
        super().__init__(*given, **parts)
        #: Locked until there is something that the user's thread may wait for. It is of the C
        #: library, as `lock`.
        self._bell = threading.Lock()
        self._bell.acquire()

    def wake(self) -> None:
        """Make the network thread start what is due; any thread may call it."""
        self._loop.call_soon_threadsafe(self._on_change)

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine on the network thread; any thread may call it."""
        self._loop.call_soon_threadsafe(self._start, work)

    def cancel(self, answer: Answer[Any]) -> None:
        """Cancel the coroutine of an answer."""
        with suppress(RuntimeError):
            # Otherwise the thread has ended, and has cancelled it.
            self._loop.call_soon_threadsafe(answer.cancel)

    def wait(self, seconds: float) -> Waiting[None]:
        """Block the user's thread until there may be news."""
        self._bell.acquire(timeout=min(max(seconds, 0), threading.TIMEOUT_MAX))
        yield from ()

    def ring(self) -> None:
        """Wake the user's thread, if it waits."""
        # A signal handler may have rung meanwhile.
        with suppress(RuntimeError):
            self._bell.release()

    def give_turn(self, *, is_idle: bool = False) -> Waiting[None]:  # noqa: ARG002
        """Do nothing: the network has a thread of its own."""
        yield from ()

    def block(self, work: Callable[[], T]) -> Waiting[T]:
        """Return what `work` returns, on the user's thread."""
        yield from ()
        return work()

    def await_user(self, result: object) -> Waiting[None]:  # noqa: ARG002
        """Do nothing: coroutine functions are refused."""
        yield from ()


class ThreadedCore(ConsumerCore):
    """A `ConsumerCore` and its network thread."""

    def __init__(
        self,
        config: KafkaConsumerConfig,
        assignors: Sequence[ConsumerPartitionAssignor],
        undo: ExitStack,
    ) -> None:
        """Put the parts together; `start` starts the thread. See `ConsumerCore`."""
        super().__init__(config, assignors, undo, context_type=ThreadedContext)
        self._owner_end: finalize[..., Any]
        self._thread = NetworkThread(
            self._serve,
            name=f"kafka-consumer-network-thread | {config.client_id}",
            closed=closed_error,
            busy=_BUSY,
        )
        self._changed: asyncio.Event

    def start(self, undo: ExitStack) -> None:
        """Start the network thread; `undo` stops it."""
        self._thread.start(undo)

    def stop_with(self, owner: object, close_plug_ins: Callable[[], None], undo: ExitStack) -> None:
        """Stop when `owner` is garbage-collected without `stop`, and call `close_plug_ins` then.

        `undo` makes it forget the owner again.
        """
        self._owner_end = stop_if_forgotten(
            owner,
            partial(self._stop_forgotten, close_plug_ins),
            client_id=self.config.client_id,
            effect=" Its group waits for it until its session times out",
        )
        undo.callback(self._owner_end.detach)

    def _stop_forgotten(self, close_plug_ins: Callable[[], None]) -> None:
        with ExitStack() as closing:
            closing.callback(close_plug_ins)
            closing.callback(lambda: finish(self.stop()))

    def stop(self) -> Waiting[None]:
        """Close all connections, end the network thread, and close the metrics reporters."""
        yield from ()
        try:
            self._thread.stop()
        finally:
            self.metrics.close()
        # Not before: after Ctrl-C the garbage collector would still do this.
        self._owner_end.detach()

    async def _serve(self) -> None:
        self._changed = asyncio.Event()
        client = self._connect(self._changed.set)
        self._thread.started()
        try:
            await self._look_what_is_due()
        finally:
            await client.close()

    async def _look_what_is_due(self) -> None:
        while True:
            self._changed.clear()
            with self.context.lock:
                now = self.clock()
                until = self._advance(now)
            try:
                async with asyncio.timeout_at(None if until == NEVER else until):
                    await self._changed.wait()
            except TimeoutError:
                continue
