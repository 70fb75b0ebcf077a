"""The outcome of a batch (Kafka's ProduceRequestResult), and the queue of delivery callbacks.

It is created when a batch is opened and completed once. Futures of single records and of tables
refer to it with an index, so the end of a batch costs nothing per record. A batch that was split
delegates to the results of its parts.

A batch may end on any thread, such as a caller's that aborts a transaction. Its callbacks are
passed to `call_later`, which is `CallbackQueue.add` in a producer.
"""

from __future__ import annotations

import logging
import os
import threading
from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from spark_kafka_sink.errors import DeliveryError
from spark_kafka_sink.model import UNKNOWN_OFFSET, TopicPartition
from spark_kafka_sink.producer.batch.interrupts import is_interrupt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from spark_kafka_sink.producer.batch.buffer_pool import Turn

logger = logging.getLogger(__name__)
NO_LOG_APPEND_TIME = -1


class RefusedRecord(NamedTuple):
    """A broker's error message for one record of a batch (KIP-467)."""

    message: str
    #: The number of its input row, if it has one that is still stored.
    row: int | None = None


#: By index in the batch.
RefusedRecords: TypeAlias = "Mapping[int, RefusedRecord]"


#: Calls callbacks, now or later.
CallLater: TypeAlias = "Callable[[Callable[[], object]], object]"


def call_now(job: Callable[[], object]) -> None:
    """Call the job where the batch ends, for results that belong to no producer."""
    job()


#: Guards the moment between "not done yet" and waiting; held for a few instructions only.
_moment = threading.Lock()


def _renew_moment() -> None:
    # A thread that does not exist in the child may have held it when the process was forked.
    global _moment  # noqa: PLW0603  one for all results, since each of them would cost memory
    _moment = threading.Lock()


os.register_at_fork(after_in_child=_renew_moment)


class ProduceResult:
    """The outcome of one batch: acknowledged, failed, or split."""

    __slots__ = (
        "_call_later",
        "_callbacks",
        "_first_indexes",
        "_waiters",
        "base_offset",
        "error",
        "has_ended",
        "is_settled",
        "log_append_time_ms",
        "parts",
        "refused",
        "topic_partition",
    )

    def __init__(self, topic_partition: TopicPartition, call_later: CallLater = call_now) -> None:
        self.topic_partition = topic_partition
        self._call_later = call_later
        self.base_offset = UNKNOWN_OFFSET
        self.log_append_time_ms = NO_LOG_APPEND_TIME
        self.error: Exception | None = None
        self.refused: RefusedRecords = {}
        #: Whether the batch was acknowledged or has failed; never true for one that was split.
        self.has_ended = False
        #: Whether its callbacks have been called, too.
        self.is_settled = False
        #: The results of the parts of a batch that was split.
        self.parts: Sequence[ProduceResult] = ()
        self._first_indexes: Sequence[int] = ()
        #: A lock for each waiting thread, released to wake it: much cheaper than an Event.
        self._waiters: tuple[Turn, ...] = ()
        self._callbacks: list[tuple[int, Callable[[], object]]] = []

    # --- called by the threads that wait

    def final(self, index: int) -> tuple[ProduceResult, int]:
        """Return the result of the part that contains a record, and the record's index in it."""
        if not self.parts:
            return self, index
        part = bisect_right(self._first_indexes, index) - 1
        return self.parts[part].final(index - self._first_indexes[part])

    def batches(self, first_index: int, record_count: int) -> list[tuple[ProduceResult, range]]:
        """Return every batch that contains some of these records, with their indexes in it.

        There are several only if the batch was split.
        """
        if not self.parts:
            return [(self, range(first_index, first_index + record_count))]
        last_index = first_index + record_count - 1
        batches: list[tuple[ProduceResult, range]] = []
        for number, start in enumerate(self._first_indexes):
            following = self._first_indexes[number + 1 :]
            end = following[0] - 1 if following else last_index
            first, last = max(first_index, start), min(last_index, end)
            if first <= last:
                batches += self.parts[number].batches(first - start, last - first + 1)
        return batches

    def is_done(self, index: int) -> bool:
        """Return whether a record's batch has ended."""
        return self.final(index)[0].has_ended

    def wait(self, index: int, timeout: float | None) -> bool:
        """Wait until a record's batch is settled; return False after `timeout` seconds.

        A batch that is split meanwhile counts as ended: call this again.
        """
        return self.final(index)[0]._wait(timeout)  # noqa: SLF001  of the same class

    def _wait(self, timeout: float | None) -> bool:
        with _moment:
            if self.is_settled or self.parts:
                return True
            waiter = threading.Lock()
            waiter.acquire()
            self._waiters += (waiter,)
        if waiter.acquire(timeout=-1 if timeout is None else max(timeout, 0)):
            return True
        # A caller that polls with short timeouts must not leave a lock behind each time.
        self.remove_waiter(waiter)
        return False

    def add_waiter(self, waiter: Turn) -> bool:
        """Release `waiter` when the batch is settled or split; return False if it already is."""
        with _moment:
            if self.is_settled or self.parts:
                return False
            self._waiters += (waiter,)
        return True

    def remove_waiter(self, waiter: Turn) -> None:
        """Forget a waiter, if it still waits."""
        with _moment:
            self._waiters = tuple(other for other in self._waiters if other is not waiter)

    def wait_for_all(self, deadline: float | None, clock: Callable[[], float]) -> bool:
        """Wait until the whole batch is settled; return False if it is not by `deadline`."""
        while not self.is_settled:
            if self.parts:
                return all(part.wait_for_all(deadline, clock) for part in self.parts)
            left = None if deadline is None else deadline - clock()
            if left is not None and left <= 0:
                return False
            self._wait(left)
        return True

    def call_when_done(self, index: int, callback: Callable[[], object]) -> None:
        """Call `callback` when a record's batch has ended, after those registered before it.

        It is called at once if all of those have been called.
        """
        if self.parts:
            result, own_index = self.final(index)
            result.call_when_done(own_index, callback)
            return
        with _moment:
            if not self.is_settled and not self.parts:
                self._callbacks.append((index, callback))
                return
        if self.parts:
            self.call_when_done(index, callback)
        else:
            call_back(callback)

    def offset(self, index: int) -> int:
        """Return a record's offset, once its batch is acknowledged."""
        return UNKNOWN_OFFSET if self.base_offset == UNKNOWN_OFFSET else self.base_offset + index

    def error_of(self, index: int) -> Exception | None:
        """Return why a record was not delivered; None if it was.

        If the broker refused single records (KIP-467), each of these gets its own message; the
        error of the others says that the broker refused other records of the batch.
        """
        return self._error(range(index, index + 1), all_of_them="this record was")

    def error_of_rows(self, indexes: range) -> Exception | None:
        """Return why rows of a table were not delivered: the first one refused, or all."""
        return self._error(indexes, all_of_them="rows were")

    def _error(self, indexes: range, *, all_of_them: str) -> Exception | None:
        if self.error is None or not self.refused:
            return self.error
        blamed = next((self.refused[index] for index in self.refused if index in indexes), None)
        if blamed is None:
            sentence = (
                f"{self.topic_partition}: {all_of_them} not written because the broker rejected "
                "other records of the batch. Records that it did not reject may be sent again"
            )
        else:
            record = "this record" if len(indexes) == 1 else "a row"
            if blamed.row is not None:
                record = f"row {blamed.row}"
            reason = blamed.message or "no reason given"
            sentence = (
                f"{self.topic_partition}: the broker rejected {record}: {reason}. "
                "Correct it before you send it again"
            )
        error = DeliveryError(sentence)
        error.topic, error.partition = self.topic_partition
        error.__cause__ = self.error
        return error

    # --- called by the thread that ends the batch

    def complete(self, base_offset: int, log_append_time_ms: int = NO_LOG_APPEND_TIME) -> None:
        """Complete as acknowledged."""
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        self._finish()

    def fail(self, error: Exception, refused: RefusedRecords | None = None) -> None:
        """Complete as failed; `refused` are the records that the broker refused.

        If the batch was split, the parts that have not ended fail.
        """
        if self.parts:
            for part in self.parts:
                if not part.has_ended:
                    part.fail(error)
            return
        self.error = error
        self.refused = refused or {}
        self._finish()

    def divide(self, record_counts: Sequence[int]) -> list[ProduceResult]:
        """Delegate to one result per part, and return these in order."""
        parts = [ProduceResult(self.topic_partition, self._call_later) for _ in record_counts]
        first_indexes = [sum(record_counts[:number]) for number in range(len(record_counts))]
        with _moment:
            self._first_indexes = first_indexes
            self.parts = parts
            callbacks, self._callbacks = self._callbacks, []
        for index, callback in callbacks:
            self.call_when_done(index, callback)
        self._wake_waiters()
        return parts

    def _finish(self) -> None:
        if self._callbacks:
            # Queued before the result ends: an interrupt between the two would lose the callbacks.
            self._call_later(self._settle)
            self.has_ended = True
            return
        with _moment:
            self.has_ended = True
            # Settled at once: a callback that is added from now on runs on the thread that adds it,
            # not on this one, which may hold a lock. A callback added just before is queued.
            self.is_settled = is_settled = not self._callbacks
        if is_settled:
            self._wake_waiters()
        else:
            self._call_later(self._settle)

    def _settle(self) -> None:
        # The outcome is known when this is queued; it may run before `_finish` returns.
        self.has_ended = True
        interrupt: BaseException | None = None
        while callbacks := self._take_callbacks():
            for _, callback in callbacks:
                try:
                    call_back(callback)
                except BaseException as error:  # noqa: BLE001 - raised when all have been called
                    interrupt = error
        self._wake_waiters()
        if interrupt is not None:
            raise interrupt

    def _wake_waiters(self) -> None:
        # Once the result is settled or divided, no thread starts to wait.
        if not self._waiters:
            return
        with _moment:  # an interrupted enqueue and a response may end a result at the same time
            waiters, self._waiters = self._waiters, ()
        for waiter in waiters:
            waiter.release()

    def _take_callbacks(self) -> list[tuple[int, Callable[[], object]]]:
        """Return the callbacks that have not been called; if there are none, mark as settled."""
        with _moment:
            callbacks, self._callbacks = self._callbacks, []
            self.is_settled = not callbacks
        return callbacks


def call_back(callback: Callable[..., object], *arguments: object) -> None:
    """Call a user's function; log what it raises, unless that is an interrupt."""
    try:
        callback(*arguments)
    except BaseException as error:
        logger.exception("a delivery callback raised an exception")
        if is_interrupt(error):
            raise


class CallbackQueue:
    """The queue of delivery callbacks, which the network thread calls one at a time.

    A record may end on any thread and under any lock: when its batch is acknowledged, when a caller
    of `send` finds no memory for it, when another thread aborts its transaction. Its callback is
    never called there. A callback may acquire a lock that another thread holds while it sends, so
    it must not run inside `send`, nor while a thread holds the batches.

    One queue serves the whole producer, so callbacks are called in the order in which records
    ended. After the network thread has ended, no thread serves the queue: a thread that adds a job
    then calls `run_rest` as soon as it holds no lock.
    """

    def __init__(self, schedule: Callable[[Callable[[], None]], None]) -> None:
        """Create an empty queue; `schedule(run)` makes the network thread call `run` soon."""
        self._schedule = schedule
        self._jobs: deque[Callable[[], object]] = deque()
        self._is_scheduled = False
        self._has_ended = False
        self._running = threading.Lock()

    def add(self, job: Callable[[], object]) -> None:
        """Add a job to the queue; it must not raise."""
        try:
            self._jobs.append(job)
            self._schedule_turn()
        except BaseException:
            # The caller was interrupted: the queued job must not wait for another one.
            self._schedule_turn()
            raise

    def _schedule_turn(self) -> None:
        if not self._is_scheduled:
            try:
                self._is_scheduled = True
                self._schedule(self.run)
            except BaseException:
                # With the flag set, no turn would ever be scheduled again.
                self._is_scheduled = False
                raise

    @property
    def is_running(self) -> bool:
        """Whether a job is running now."""
        return self._running.locked()

    def run(self) -> None:
        """Run the jobs queued by now; jobs that these add wait for the next turn."""
        # Reset before reading the queue: any job added from now on schedules the next turn.
        self._is_scheduled = False
        with self._running:
            for _ in range(len(self._jobs)):
                self._jobs.popleft()()

    def end(self) -> None:
        """Run all jobs, as the network thread's last step."""
        self._has_ended = True
        self.run_rest()

    def run_rest(self) -> None:
        """Run the jobs that the ended network thread left or missed; do nothing while it lives."""
        # Callbacks must not run concurrently: the thread that runs one takes the other's jobs, too.
        while self._has_ended and self._jobs and self._running.acquire(blocking=False):
            try:
                self._jobs.popleft()()
            finally:
                self._running.release()

    def wait(self, timeout: float | None) -> bool:
        """Wait until all jobs queued by now have run; return False after `timeout` seconds."""
        if not self._jobs and not self._running.locked():
            return True
        done = threading.Event()
        self.add(done.set)
        self.run_rest()
        return done.wait(timeout)
