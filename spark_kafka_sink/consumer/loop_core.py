"""The core of a consumer that runs on its caller's event loop; callers await what others block for.

`AIOKafkaConsumer` is the public class; this is its implementation. Both sides of the context run on
the thread of the loop, so that the lock is always free. The network side consists of callbacks, and
of short tasks for requests: a program that cancels all its tasks, as `asyncio.run` does at its end,
does not keep a consumer from leaving its group.

Threads of their own have only the names of hosts, Kerberos, schema registries, the assignors of the
group's leader, and the watch over a loop that is blocked (`LoopWatch`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import traceback
from contextlib import ExitStack, nullcontext, suppress
from contextvars import ContextVar, copy_context
from functools import partial
from inspect import isawaitable
from types import coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

from spark_kafka_sink.consumer.consumer_context import Answer, ConsumerContext, Waiting
from spark_kafka_sink.consumer.consumer_core import ConsumerCore, closed_error
from spark_kafka_sink.errors import IllegalStateError
from spark_kafka_sink.network.daemon_thread import in_daemon_thread
from spark_kafka_sink.network.exponential_backoff import NEVER
from spark_kafka_sink.network.network_thread import stop_if_forgotten
from spark_kafka_sink.network.timeout_check import ROUNDS_UNTIL_GIVING_UP

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from contextlib import AbstractContextManager
    from weakref import finalize

    from spark_kafka_sink.config.consumer_config import KafkaConsumerConfig
    from spark_kafka_sink.consumer.assignors.partition_assignor import ConsumerPartitionAssignor
    from spark_kafka_sink.network.network_client import NetworkClient

T = TypeVar("T")

logger = logging.getLogger(__name__)

#: Seconds for which the user's side may keep the loop before it lets others run.
_MOST_SECONDS: Final = 0.01
#: Seconds of a wait after which the user's side looks again in any case.
_LONGEST_WAIT: Final = 86_400.0
#: How many times in a session the loop is looked at.
_LOOKS: Final = 16
#: Held by a nested call.
_NESTED: Final = nullcontext()
#: Seconds after which the thread of a forgotten consumer looks whether its loop was closed.
_LOOP_CHECK_SECONDS: Final = 0.1


@coroutine
def awaited(call: Waiting[T]) -> Waiting[T]:
    """Return what a call returns, whose waits suspend the task."""
    return (yield from call)


class _Call:
    """A call, and the one of another consumer around it in the same context, if any."""

    def __init__(self, lock: threading.Lock, outer: _Call | None) -> None:
        self.lock = lock
        while outer is not None and not outer.lock.locked():
            outer = outer.outer
        self.outer: _Call | None = outer
        task = asyncio.current_task()
        #: Not the task, which may be all that refers to the consumer.
        self.user = "another one" if task is None else repr(task.get_name())


#: The innermost call of this task, or of the task that has created it; it may have ended.
_current_call: ContextVar[_Call | None] = ContextVar("kafka_consumer_call", default=None)


#: How often this process was forked from one that had imported this module.
_forks = 0


def _count_fork() -> None:
    global _forks  # noqa: PLW0603  of the process
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class TaskGuard:
    """The call that is running; those of the listener's, and of its tasks, are nested in it.

    It protects a consumer from two tasks at once, from other loops and threads, from a forked
    process, and from calls after `close`. The lock is all its state, as that of `CallGuard`.
    """

    def __init__(
        self, settle: Callable[[], None], loop: asyncio.AbstractEventLoop, client_id: str | None
    ) -> None:
        """Start without a call, on a loop; `settle` begins each that is not nested."""
        self.loop = loop
        self._settle = settle
        self._client_id = client_id
        self._forks = _forks
        self._thread = threading.get_ident()
        self._thread_name = threading.current_thread().name
        self._lock = threading.Lock()
        #: The last call, which may have ended.
        self._call: _Call | None = None
        self.is_closed = False

    @property
    def is_calling(self) -> bool:
        """Whether the caller is within the call that is running."""
        call = _current_call.get() if self._lock.locked() else None
        while call is not None and call is not self._call:
            call = call.outer
        return call is not None

    def call(self, *, closes: bool = False) -> AbstractContextManager[Any]:
        """Return what to hold during a call.

        Raises IllegalStateError on another loop, beside another task's call, after a fork, and
        unless it `closes` the consumer, after that.
        """
        if not self._lock.locked():
            self.begin(closes=closes)
            self._call = _Call(self._lock, _current_call.get())
            _current_call.set(self._call)
            return self._lock
        self._check_loop()
        if not self.is_calling:
            user = "another one" if self._call is None else self._call.user
            raise IllegalStateError(
                f"the consumer {self._client_id!r} is used by two tasks at once: {user} waits in a "
                "call. Give each task a consumer of its own, or cancel that task first"
            )
        if self.is_closed and not closes:
            raise closed_error()
        return _NESTED

    def begin(self, *, closes: bool = False) -> None:
        """Begin a call that does not wait; see `call`."""
        if self._lock.locked():
            self.call(closes=closes)
            return
        # As `_check_loop`, but without a system call, which would cost a record half of its time.
        if (
            threading.get_ident() != self._thread
            or not self.loop.is_running()
            or self._forks != _forks
        ):
            self._check_loop()
        if self.is_closed and not closes:
            raise closed_error()
        self._settle()

    def _check_loop(self) -> None:
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if self._forks != _forks:
            raise IllegalStateError(
                "the consumer was created in another process: create one in each process"
            )
        if running is self.loop:
            return
        here = "without a running event loop" if running is None else f"on {running!r}"
        raise IllegalStateError(
            f"the consumer {self._client_id!r} belongs to {self.loop!r} of thread "
            f"{self._thread_name!r}, and was called on thread "
            f"{threading.current_thread().name!r} {here}: create a consumer for each event loop, "
            "or pass calls to its own with asyncio.run_coroutine_threadsafe"
        )


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the running loop, for a new consumer; raise IllegalStateError without one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise IllegalStateError(
            "no event loop is running: create an AIOKafkaConsumer in a coroutine, on the loop that "
            "it is to be used on"
        ) from None


class LoopContext(ConsumerContext):
    """A context whose two sides share one loop."""

    def __init__(self, *given: Any, stopwatch: Callable[[], float], **parts: Any) -> None:
        """Start without connections; see `ConsumerContext` and `ConsumerCore`."""
        super().__init__(*given, **parts)
        self._stopwatch = stopwatch
        self._waiters: set[asyncio.Future[None]] = set()
        #: Whether it has rung since the user's side has looked.
        self._has_rung = False
        #: When the loop last had a turn.
        self._turn_at = stopwatch()
        self._blocked: asyncio.Future[Any] | None = None
        #: The context variables of whoever has created the consumer, for the network side.
        self.variables = copy_context()

    def wake(self) -> None:
        """Make the network side start what is due."""
        self._on_change()

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine of the network side soon."""
        # Not at once, as the loop's task factory may: the caller has the lock.
        self._loop.call_soon(self._start, work, context=self.variables)

    def cancel(self, answer: Answer[Any]) -> None:
        """Cancel the coroutine of an answer."""
        answer.cancel()

    def wait(self, seconds: float) -> Waiting[None]:
        """Suspend the user's task until there may be news."""
        if self._has_rung:
            self._has_rung = False
            yield from self.give_turn(is_idle=True)
            return
        waiter = self._loop.create_future()
        self._waiters.add(waiter)
        left = min(max(seconds, 0), _LONGEST_WAIT)
        timer = self._loop.call_later(left, _release, waiter)
        try:
            yield from waiter
            # After a pause of the process the news may have arrived in time.
            for _ in range(ROUNDS_UNTIL_GIVING_UP):
                if waiter not in self._waiters or self._has_rung:
                    break
                yield
        finally:
            timer.cancel()
            self._waiters.discard(waiter)
            self._turn_at = self._stopwatch()

    def ring(self) -> None:
        """Wake the user's task, if it waits."""
        if not self._waiters:
            self._has_rung = True
        while self._waiters:
            _release(self._waiters.pop())

    def give_turn(self, *, is_idle: bool = False) -> Waiting[None]:
        """Suspend the user's task for a round of the loop."""
        if is_idle or self._stopwatch() - self._turn_at > _MOST_SECONDS:
            yield
            self._turn_at = self._stopwatch()

    def block(self, work: Callable[[], T]) -> Waiting[T]:
        """Return what `work` returns, on a thread of its own."""
        while self._blocked is not None and not self._blocked.done():
            # That of a call that was cancelled.
            yield from asyncio.wait({self._blocked}).__await__()
        self._blocked = in_daemon_thread("kafka-consumer-formats", work)
        yield from asyncio.wait({self._blocked}).__await__()
        result: T = self._blocked.result().get()
        return result

    def await_user(self, result: object) -> Waiting[None]:
        """Wait for what a function of the user's has returned, if that can be awaited."""
        if isawaitable(result):
            yield from result.__await__()

    async def end_tasks(self) -> None:
        """Cancel the requests of the network side, and wait for their end."""
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class LoopCore(ConsumerCore):
    """A `ConsumerCore` on the running loop."""

    context: LoopContext

    def __init__(
        self,
        config: KafkaConsumerConfig,
        assignors: Sequence[ConsumerPartitionAssignor],
        undo: ExitStack,
    ) -> None:
        """Put the parts together; `start` opens the connections. See `ConsumerCore`."""
        #: The loop that all calls must be made on.
        self.loop = asyncio.get_running_loop()
        super().__init__(
            config, assignors, undo, context_type=self._create_context, clock=self.loop.time
        )
        self._client: NetworkClient
        self._owner_end: finalize[..., Any]
        self._watch: LoopWatch | None = None
        #: Whether what is due is looked for in the next round, and the timer for a later one.
        self._is_scheduled = self._has_ended = False
        self._timer: asyncio.TimerHandle | None = None

    def _create_context(self, *given: Any, **parts: Any) -> LoopContext:
        return LoopContext(*given, stopwatch=self.stopwatch, **parts)

    def start(self, undo: ExitStack) -> None:
        """Begin; `undo` ends it."""
        self._client = self._connect(self._schedule)
        undo.callback(self.drop)

    def stop_with(self, owner: object, close_plug_ins: Callable[[], None], undo: ExitStack) -> None:
        """Stop when `owner` is garbage-collected without `stop`; see `ThreadedCore`."""
        self._owner_end = stop_if_forgotten(
            owner,
            partial(self._stop_forgotten, close_plug_ins),
            client_id=self.config.client_id,
            remedy="await close(), or use it in an `async with` block.",
            effect=" Its group waits for it until its session times out",
        )
        undo.callback(self._owner_end.detach)

    def _stop_forgotten(self, close_plug_ins: Callable[[], None]) -> None:
        """Stop from a thread that is not the loop's, unless the loop is closed."""
        has_stopped = threading.Event()

        async def stop() -> None:
            try:
                await self._end()
            finally:
                has_stopped.set()

        def begin() -> None:
            task = self.loop.create_task(stop())
            _ending.add(task)
            task.add_done_callback(_ending.discard)

        with ExitStack() as closing:
            closing.callback(close_plug_ins)
            closing.callback(self.metrics.close)
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(begin)
            while not has_stopped.wait(_LOOP_CHECK_SECONDS):
                if self.loop.is_closed():
                    self.drop()
                    return

    def stop(self) -> Waiting[None]:
        """Close all connections, end what is under way, and close the metrics reporters."""
        try:
            yield from self._end().__await__()
        finally:
            self.metrics.close()
        self._owner_end.detach()

    async def _end(self) -> None:
        try:
            self._end_timers()
            # What was started before becomes a task, and is cancelled with the others.
            await asyncio.sleep(0)
            await self.context.end_tasks()
            await self._client.close()
        finally:
            self._client.drop()

    def drop(self) -> None:
        """Close the sockets at once, such as of a loop that was closed."""
        self._end_timers()
        self._client.drop()

    def _end_timers(self) -> None:
        self._has_ended = True
        if self._timer is not None:
            self._timer.cancel()
        if self._watch is not None:
            self._watch.end()

    # --- the network side

    def _schedule(self) -> None:
        """Look what is due in the next round of the loop."""
        if not self._is_scheduled and not self._has_ended:
            self._is_scheduled = True
            self.loop.call_soon(self._look_what_is_due, context=self.context.variables)

    def _look_what_is_due(self) -> None:
        self._is_scheduled = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._has_ended:
            return
        with self.context.lock:
            until = self._advance(self.clock())
        if until != NEVER:
            self._timer = self.loop.call_at(until, self._schedule, context=self.context.variables)

    # --- the user's side

    def watch(self) -> None:
        """Report when the loop is blocked for so long that the group may remove the member."""
        if self._watch is None:
            self._watch = LoopWatch(
                self.loop, self.config, stopwatch=self.stopwatch, thread=threading.get_ident()
            )


class LoopWatch:
    """A thread that reports a loop which is blocked for longer than half of a member's session."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: KafkaConsumerConfig,
        *,
        stopwatch: Callable[[], float],
        thread: int,
    ) -> None:
        """Begin to watch a loop, which runs on a `thread`."""
        self._loop = loop
        self._config = config
        self._stopwatch = stopwatch
        self._thread = thread
        session = config.session_timeout_ms / 1000
        self._period = session / _LOOKS
        self._silence = Silence(session / 2, self._period, stopwatch())
        self._has_ended = threading.Event()
        self._timer = loop.call_later(self._period, self._tick)
        threading.Thread(
            target=self._watch, name=f"kafka-consumer-watch | {config.client_id}", daemon=True
        ).start()

    def end(self) -> None:
        """End the thread."""
        self._timer.cancel()
        self._has_ended.set()

    def _tick(self) -> None:
        self._silence.heard_at = self._stopwatch()
        self._timer = self._loop.call_later(self._period, self._tick)

    def _watch(self) -> None:
        while not self._has_ended.wait(self._period):
            seconds = self._silence.to_report(self._stopwatch())
            if seconds is not None and self._loop.is_running():
                self._report(seconds)

    def _report(self, seconds: float) -> None:
        frame = sys._current_frames().get(self._thread)  # noqa: SLF001
        logger.warning(
            "the event loop of the consumer %r has been blocked for %.1f s: it has sent no "
            "heartbeat meanwhile, and group %r removes it when its session times out "
            "(session.timeout.ms, %d). Await what takes long, or run it in a thread "
            "(asyncio.to_thread). The stack of the loop's thread:\n%s",
            self._config.client_id,
            seconds,
            self._config.group_id,
            self._config.session_timeout_ms,
            "" if frame is None else "".join(traceback.format_stack(frame)),
        )


class Silence:
    """The time since a loop was last heard of, and whether it is to be reported. No clock in it."""

    def __init__(self, limit: float, period: float, now: float) -> None:
        """Report more than `limit` seconds, once; the loop is heard of in every `period`."""
        self._limit = limit
        self._period = period
        self.heard_at = self._looked_at = now
        self._is_reported = False

    def to_report(self, now: float) -> float | None:
        """Return the seconds of a silence that is to be reported now; otherwise None.

        A look that is late itself reports nothing: the whole process was paused.
        """
        is_late = now - self._looked_at > 2 * self._period
        self._looked_at = now
        # The loop may have been free until the end of the last period.
        seconds = now - self.heard_at - self._period
        if seconds <= self._limit:
            self._is_reported = False
        elif not is_late and not self._is_reported:
            self._is_reported = True
            return seconds
        return None


#: The tasks that end forgotten consumers.
_ending: set[asyncio.Task[None]] = set()
