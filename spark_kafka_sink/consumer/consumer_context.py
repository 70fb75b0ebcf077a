"""The parts of a consumer that all others share: lock, subscriptions and connections.

Two sides meet here: the user's, within the consumer's methods, and the network's. Each has a thread
(`threaded_core`), or both share the user's event loop (`loop_core`). What they share is changed
only under `lock`, which neither holds while it waits, decodes records or calls the user. The
network side runs coroutines; an error that none of them expects is raised by the user's next call,
unless there was no answer in time: that never reaches the user, but delays the step.

The user's side may not be coroutines, since Ctrl-C could prevent one from being awaited. What waits
there is a generator (`Waiting`): a thread runs it in one go and blocks in `wait`; a task awaits it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from spark_kafka_sink.errors import (
    IllegalStateError,
    KafkaTimeoutError,
    LogTruncationError,
    NetworkError,
    NoOffsetForPartitionError,
)
from spark_kafka_sink.network.daemon_thread import in_daemon_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from spark_kafka_sink.config.consumer_config import KafkaConsumerConfig
    from spark_kafka_sink.consumer.consumer_metrics import ConsumerMetrics
    from spark_kafka_sink.consumer.offsets.offset_calls import BrokerRequests, OffsetCalls
    from spark_kafka_sink.consumer.subscription.subscription_state import SubscriptionState
    from spark_kafka_sink.model import OffsetAndMetadata, TopicPartition
    from spark_kafka_sink.network.network_client import NetworkClient

T = TypeVar("T")

#: A call of the user's side that may wait, and returns T: run it with `yield from`.
Waiting: TypeAlias = Generator[Any, Any, T]

logger = logging.getLogger(__name__)


def finish(call: Waiting[T]) -> T:
    """Return what a call returns that blocks while it waits, or does not wait."""
    try:
        next(call)
    except StopIteration as end:
        result: T = end.value
        return result
    raise IllegalStateError("a call waits for an event loop, on a thread without one")


class Answer(Generic[T]):
    """The result of a coroutine of the network side, for the user's side."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        """Prepare to run `work`, which returns the coroutine."""
        self._work = work
        self._result: T
        self._error: BaseException | None = None
        self._task: asyncio.Task[Any] | None = None
        self._is_cancelled = False
        self.is_done = False

    async def run(self) -> None:
        """Run the coroutine, unless its caller has stopped waiting."""
        if self._is_cancelled:
            return
        self._task = asyncio.current_task()
        try:
            self._result = await self._work()
        except BaseException as error:  # noqa: BLE001  `get` raises it
            self._error = error
        self.is_done = True

    def cancel(self) -> None:
        """Cancel the coroutine, which may not have begun, on its loop."""
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()

    def get(self) -> T:
        """Return the result, or raise the error."""
        if self._error is not None:
            raise self._error
        return self._result


class ConsumerContext(ABC):
    """The lock, the subscriptions and, once the network side has started, the connections."""

    def __init__(
        self,
        config: KafkaConsumerConfig,
        subscriptions: SubscriptionState,
        *,
        clock: Callable[[], float],
        measures: ConsumerMetrics,
    ) -> None:
        """Start without connections; `clock` returns seconds and is that of the loop."""
        self.config = config
        self.subscriptions = subscriptions
        self.clock = clock
        self.measures = measures
        #: Of the C library: Ctrl-C may strike the user's thread at the start of each Python
        #: function, and an interrupted method of a Condition would leave it locked.
        self.lock = threading.RLock()
        #: Whether positions may be looked up: the user has called `poll` since partitions were
        #: assigned, and since a look-up has failed.
        self.may_look_up = False
        #: An unexpected or permanent error; the user's next call raises it.
        self.failure: BaseException | None = None
        #: Counts what may concern the user's side, which looks again if it has changed.
        self.changes = 0
        #: Commits offsets automatically from the network side: which, and when to give up.
        self.commit_positions: Callable[
            [Mapping[TopicPartition, OffsetAndMetadata], float], Coroutine[Any, Any, None]
        ]
        self.client: NetworkClient
        self.requests: BrokerRequests
        self.calls: OffsetCalls
        self._loop: asyncio.AbstractEventLoop
        self._on_change: Callable[[], None]
        self._tasks: set[asyncio.Task[None]] = set()
        self._waits: list[asyncio.Future[None]] = []

    def begin(
        self,
        client: NetworkClient,
        requests: BrokerRequests,
        calls: OffsetCalls,
        on_change: Callable[[], None],
    ) -> None:
        """Use the connections of the loop that runs now; `on_change` makes it start what is due."""
        self.client, self.requests, self.calls = client, requests, calls
        self._loop = asyncio.get_running_loop()
        self._on_change = on_change

    @abstractmethod
    def wake(self) -> None:
        """Make the network side start what is due; the user's side may call it."""

    @abstractmethod
    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine of the network side soon; the user's side may call it."""

    @abstractmethod
    def cancel(self, answer: Answer[Any]) -> None:
        """Cancel the coroutine of an answer; the user's side no longer waits for it."""

    @abstractmethod
    def wait(self, seconds: float) -> Waiting[None]:
        """Wait on the user's side until there may be news; it has to look again then.

        Call it without the lock.
        """

    @abstractmethod
    def ring(self) -> None:
        """Wake the user's side, if it waits; call it under the lock."""

    @abstractmethod
    def give_turn(self, *, is_idle: bool = False) -> Waiting[None]:
        """Wait a moment if the network side has not run for long, or if the user's side `is_idle`.

        Call it without the lock.
        """

    @abstractmethod
    def block(self, work: Callable[[], T]) -> Waiting[T]:
        """Return what `work` returns, which may block the user's side; call it without the lock."""

    @abstractmethod
    def await_user(self, result: object) -> Waiting[None]:
        """Wait for what a function of the user's has returned, if it was a coroutine function."""

    async def wait_for_change(self, deadline: float) -> bool:
        """Wait until something has changed; return False if the deadline passes first.

        Call it on the network side, without the lock.
        """
        wait = self._loop.create_future()
        self._waits.append(wait)
        left = deadline - self.clock()
        done, _ = await asyncio.wait({wait}, timeout=max(left, 0))
        return bool(done)

    async def run_aside(self, work: Callable[[], T]) -> T:
        """Run what takes long in a thread of its own, and return its result.

        `close` does not wait for that thread.
        """
        done = await in_daemon_thread("kafka-consumer-aside", work)
        result: T = done.get()
        return result

    async def sleep(self, seconds: float) -> None:
        """Wait on the network side."""
        await asyncio.sleep(seconds)

    def finish_waits(self) -> None:
        """End the waits for a change; called on the network side whenever there is one."""
        waits, self._waits = self._waits, []
        for wait in waits:
            if not wait.done():
                wait.set_result(None)

    def note_change(self) -> None:
        """Wake the user's side for what may concern it; call it under the lock."""
        self.changes += 1
        self.ring()

    def tell_user(self) -> None:
        """Wake the user's side, if it waits, and the network side; call it under the lock."""
        self.note_change()
        self.wake()

    def start_for_user(self, answer: Answer[Any]) -> None:
        """Run the coroutine of an answer, and wake the user's side when it is there."""
        self.start(partial(self._run_for_user, answer))

    async def _run_for_user(self, answer: Answer[Any]) -> None:
        await answer.run()
        with self.lock:
            self.ring()

    def _start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = self._loop.create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            with self.lock:
                self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Raise an error from the user's next call; call it under the lock.

        That there was no answer in time is only logged: the question is repeated anyway.
        """
        if isinstance(error, KafkaTimeoutError | NetworkError):
            logger.info("it is tried again: %s", error)
        else:
            self.failure = self.failure or error
        self.note_change()

    def forget_positions(self) -> None:
        """Drop an error about positions, because there are others now; call it under the lock."""
        if isinstance(self.failure, NoOffsetForPartitionError | LogTruncationError):
            self.failure = None

    def raise_failure(self) -> None:
        """Raise the error of `fail`, once; call it under the lock."""
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
