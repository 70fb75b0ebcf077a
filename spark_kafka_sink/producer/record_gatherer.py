"""Where records wait until there are enough of them: staged ones, and open batches.

One lock, the *append lock*, goes with the open batches. A caller holds it while it writes columns,
and may then wait for memory. The network thread takes it only if it is free, and never waits: if
somebody writes just now, that one wakes it when it is done.

The network thread says when it will look again by itself. It is woken where that would be too late
for what has come since, and left alone otherwise: a chunk that is written takes less time than the
two threads would take to change places.

Single records are staged without the lock, and written in chunks: by the sender that makes a chunk
full, by whoever waits for one of them or flushes, or by the network thread after linger.ms.

A record that gets into no batch ends while the lock is held, and its callback is called then. What
that one sends is written when the callback has returned.
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from spark_kafka_sink.errors import (
    BufferExhaustedError,
    KafkaError,
    KafkaTimeoutError,
    RecordError,
)
from spark_kafka_sink.producer.delivery_errors import broken_off
from spark_kafka_sink.producer.record_accumulator import NEVER
from spark_kafka_sink.producer.record_futures import TablePart
from spark_kafka_sink.producer.staged_records import StagedRecords, Stretch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from spark_kafka_sink.model import TopicPartition
    from spark_kafka_sink.producer.batch_builder import BatchBuilder
    from spark_kafka_sink.producer.open_batches import OpenBatches
    from spark_kafka_sink.producer.staged_records import StagedChunk
    from spark_kafka_sink.record.columns import RecordColumns

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: So many staged records are written at once: enough that a chunk's own cost (some 100 us) is
#: little for each, and few enough that they lie in the processor's cache still.
CHUNK_RECORDS = 2_048
#: When there was no memory for what is staged, look again after this many seconds.
EXHAUSTED_PAUSE = 0.05


class _AppendLock:
    """A lock that tells whether the caller itself has it, and when somebody has let go of it."""

    def __init__(self, on_release: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._holder: int | None = None
        self._on_release = on_release

    def acquire(self, timeout: float = -1) -> bool:
        """Wait for it, `timeout` seconds at most, where that is not negative."""
        taken = self._lock.acquire(timeout=timeout)
        if taken:
            self._holder = threading.get_ident()
        return taken

    def release(self, *, quietly: bool = False) -> None:
        self._holder = None
        self._lock.release()
        if not quietly:
            self._on_release()

    @property
    def is_held_here(self) -> bool:
        return self._holder == threading.get_ident()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RecordGatherer:
    """Guards the open batches of one producer."""

    def __init__(
        self,
        *,
        builder: BatchBuilder,
        open_batches: OpenBatches,
        count_partitions: Callable[[str], int],
        wakeup: Callable[[], None],
        on_broken_off: Callable[[Exception], None],
        wall_clock_ms: Callable[[], int],
        clock: Callable[[], float],
        linger: float | None,
        max_block: float,
        on_refused: Callable[[Exception, int], None] = lambda error, records: None,  # noqa: ARG005
        fail_if_not_ready: Callable[[], None] = lambda: None,
    ) -> None:
        """`linger` in seconds, None where only callers close batches; `max_block` likewise.

        `count_partitions` knows every topic of a staged record; `wakeup` has the network thread
        call `gather` soon; `on_broken_off` hears of an error that may have lost rows on their way
        to a batch, `on_refused` of one that kept so many staged records from getting into one.
        `fail_if_not_ready` raises where no transaction takes records: it is asked with the lock, so
        that none gets from one transaction into another.
        """
        self._builder = builder
        self._open = open_batches
        self._count_partitions = count_partitions
        self._on_broken_off = on_broken_off
        self._wall_clock_ms = wall_clock_ms
        self._clock = clock
        self._linger = linger
        self._max_block = max_block
        self._on_refused = on_refused
        self._fail_if_not_ready = fail_if_not_ready
        self._wakeup = wakeup
        self._lock = _AppendLock(self._on_release)
        #: When the network thread will look by itself; `NEVER` while it is about to find that out.
        self._looks_at = NEVER
        #: Whether it came while somebody else had the lock.
        self._was_locked_out = False
        self._failed_by: Exception | None = None
        self.staged = StagedRecords()
        #: When the oldest staged record came, in seconds; None while nobody has noted one.
        self.staged_since: float | None = None

    # --- from the callers' threads

    def note_staged(self) -> None:
        """Note that a record was staged: its time counts from the first since the last writing."""
        if self.staged_since is None:
            self.staged_since = since = self._clock()
            self._wake_if_too_late_for(since)
        if self._failed_by is not None:
            # It came while all others were being failed.
            self.fail_all(self._failed_by)

    def _wake_if_too_late_for(self, since: float) -> None:
        if self._linger is not None and since + self._linger < self._looks_at:
            self._wakeup()

    def _on_release(self) -> None:
        since = self.staged_since
        if self._was_locked_out:
            self._wakeup()
        else:
            # A record is staged still where there was no memory for it.
            first = self._builder.first_opened_at
            self._wake_if_too_late_for(first if since is None else min(first, since))

    @property
    def is_writing(self) -> bool:
        """Whether the caller runs in a callback that is called while records are written."""
        return self._lock.is_held_here

    def write_columns(
        self, columns: RecordColumns, partition_counts: Sequence[int], first_row: int
    ) -> None:
        """Write rows that nobody holds a future of; errors as of `BatchBuilder.append`."""
        with self._filling_batches(self._fail_if_not_ready):
            self._write_staged(may_wait=True)
            self._builder.append(
                columns,
                partition_counts=partition_counts,
                first_row=first_row,
                now_ms=self._wall_clock_ms(),
            )

    def write_table(
        self, columns: RecordColumns, partition_counts: Sequence[int], first_row: int
    ) -> list[TablePart]:
        """Write rows whose end somebody waits for; errors likewise."""
        watcher = _TableWatcher(columns.num_rows, self._open)
        with self._filling_batches(self._fail_if_not_ready):
            self._write_staged(may_wait=True)
            self._builder.append(
                columns,
                partition_counts=partition_counts,
                first_row=first_row,
                now_ms=self._wall_clock_ms(),
                watcher=watcher,
            )
        return watcher.parts

    def write_staged(self, give_up_at: float | None = None) -> None:
        """Write all that is staged into batches; each record that cannot be fails by itself.

        Where `give_up_at` comes before max.block.ms is over, what could not be written by then
        stays staged. So does all when another thread does not let go of the batches in time, which
        raises KafkaTimeoutError.
        """
        if self.is_writing:
            return
        latest = self._clock() + self._max_block + 1
        self._acquire(latest if give_up_at is None else min(give_up_at, latest))
        try:
            with self._telling_what_breaks_off():
                self._write_staged(may_wait=True, give_up_at=give_up_at)
        finally:
            self._lock.release()

    def _acquire(self, give_up_at: float | None) -> None:
        left = -1 if give_up_at is None else max(give_up_at - self._clock(), 0)
        if not self._lock.acquire(timeout=left):
            raise KafkaTimeoutError(
                f"another thread has been waiting for memory for {left:g} s (max.block.ms, if not "
                "less time was given): check that the brokers keep up"
            )

    def close_batches(self, give_up_at: float | None = None) -> None:
        """Write what is staged and close every open batch: nothing lingers any longer.

        Raises KafkaTimeoutError where that could not be done by `give_up_at`.
        """
        with self._filling_batches(give_up_at=give_up_at):
            is_written = self._write_staged(may_wait=True, give_up_at=give_up_at)
            self._builder.close_all()
            if not is_written:
                raise KafkaTimeoutError(
                    "no memory came free in time for what was sent last: check that the brokers "
                    "keep up"
                )

    def abort(self, error: Exception) -> None:
        """Fail all that is in no closed batch yet; later records are welcome."""
        # Who has the lock may wait for memory that the network thread frees by this very abort.
        self._wakeup()
        with self._lock:
            self._fail_staged(error)
            self._builder.abort_open(error)

    def end_transaction(self, begin: Callable[[], T]) -> T:
        """Close every open batch, and `begin` to commit before anybody can open another one."""
        with self._lock:
            with self._telling_what_breaks_off():
                self._write_staged(may_wait=True)
                self._builder.close_all()
            return begin()

    def begin_transaction(self, begin: Callable[[], None], error: Exception) -> None:
        """`begin` a transaction; what was staged before it fails with `error`."""
        with self._lock:
            late = len(self.staged)
            begin()
            chunk = self.staged.take(self._wall_clock_ms(), late)
            if chunk is not None:
                chunk.fail(range(late), error)

    @contextmanager
    def _filling_batches(
        self, check: Callable[[], None] = lambda: None, *, give_up_at: float | None = None
    ) -> Iterator[None]:
        """Have the open batches to oneself; end the producer if they may have lost rows.

        What `check` raises comes before anything has been done.
        """
        self._acquire(give_up_at)
        try:
            check()
            with self._telling_what_breaks_off():
                yield
        finally:
            self._lock.release()

    @contextmanager
    def _telling_what_breaks_off(self) -> Iterator[None]:
        try:
            yield
        except (RecordError, KafkaTimeoutError):
            # Raised before the row was touched: those before it are where they should be.
            raise
        except BaseException as error:
            # An interrupt, say, may strike between a batch's closing and its queue, or while one
            # moves to a larger block. Going on would acknowledge everything but that batch.
            broken = broken_off(error)
            self._on_broken_off(broken)
            self._failed_by = broken
            self._fail_gathered(broken)
            raise

    # --- with the lock

    def _write_staged(self, *, may_wait: bool, give_up_at: float | None = None) -> bool:
        """Write all that is staged; False when memory did not suffice and the rest was put back."""
        began_at, self.staged_since = self.staged_since, None
        chunk: StagedChunk | None = None
        try:
            while (chunk := self.staged.take(self._wall_clock_ms(), CHUNK_RECORDS)) is not None:
                if not self._write_chunk(
                    chunk, may_wait=may_wait, give_up_at=give_up_at, began_at=began_at
                ):
                    self.staged_since = self._clock()
                    return False
                # In one piece: once futures serve others, an interrupt must not fail them.
                written, chunk = chunk, None
                self.staged.reuse(written)
        except BaseException as error:
            if chunk is not None:
                chunk.fail_rest(broken_off(error))
            raise
        return True

    def _write_chunk(
        self,
        chunk: StagedChunk,
        *,
        may_wait: bool,
        give_up_at: float | None,
        began_at: float | None,
    ) -> bool:
        """Write a chunk; False when memory did not suffice and the rest was put back."""
        refusal = self._refusal()
        if refusal is not None:
            chunk.fail(range(len(chunk.futures)), refusal)
            return True
        if give_up_at is not None and give_up_at >= self._clock() + self._max_block:
            give_up_at = None
        puts_back = not may_wait or give_up_at is not None
        watcher = _ChunkWatcher(chunk, self._open, self._on_refused, puts_back=puts_back)
        rest = len(chunk.futures)
        try:
            self._builder.append(
                chunk.columns,
                partition_counts=[self._count_partitions(t) for t in chunk.columns.topics],
                first_row=None,
                now_ms=chunk.now_ms,
                watcher=watcher,
                may_wait=may_wait,
                give_up_at=give_up_at,
                began_at=began_at,
            )
        except BufferExhaustedError:
            rest = watcher.next_row
            self.staged.put_back(chunk, rest)
        except BaseException as error:
            broken = broken_off(error)
            self._on_refused(broken, rest - watcher.next_row)
            chunk.fail(range(watcher.next_row, rest), broken)
            rest = watcher.next_row
            if not isinstance(error, Exception):
                raise
        finally:
            chunk.tell_places(watcher.stretches, watcher.row_slots, watcher.row_indexes)
        return rest == len(chunk.futures) or not puts_back

    def _refusal(self) -> Exception | None:
        if self._failed_by is None:
            try:
                self._fail_if_not_ready()
            except KafkaError as error:
                return error
        return self._failed_by

    def _fail_gathered(self, error: Exception) -> bool:
        """Fail what is staged and in open batches; tell whether there was any of the latter."""
        # Before the records are failed: one that is staged later has to be noted again.
        self.staged_since = None
        had_open_batches = self._builder.abort_open(error)
        self._fail_staged(error)
        return had_open_batches

    def _fail_staged(self, error: Exception) -> None:
        while (chunk := self.staged.take(self._wall_clock_ms(), CHUNK_RECORDS)) is not None:
            chunk.fail(range(len(chunk.futures)), error)

    # --- from the network thread

    def gather(self, now: float, is_drainable: Callable[[TopicPartition], bool]) -> float:
        """Close the batches that are due; give the time when the next one will be.

        `is_drainable` tells whether a batch of a partition, were it closed, could be sent at once.
        """
        if self._linger is None or self._failed_by is not None:
            return NEVER
        # Noted before looking: what comes from now on may be overlooked, and wakes us again.
        self._looks_at = NEVER
        self._was_locked_out = True
        if not self._lock.acquire(timeout=0):
            return NEVER
        self._was_locked_out = False
        try:
            next_at = NEVER
            if self.staged_since is not None:
                if self.staged_since + self._linger <= now:
                    if not self._write_staged(may_wait=False):
                        # Memory may come free without a sound, when batches expire.
                        next_at = now + max(self._linger, EXHAUSTED_PAUSE)
                else:
                    next_at = self.staged_since + self._linger
            next_at = min(next_at, self._builder.close_due(now, is_drainable))
            self._looks_at = next_at
            return next_at
        finally:
            self._lock.release(quietly=True)

    def fail_all(self, error: Exception) -> None:
        """Fail all that is in no closed batch, now and later: the producer has ended."""
        self._failed_by = error
        if self.is_writing:
            return
        # Whoever holds the lock is not waiting for memory any more: the pool is closed by now.
        with self._lock:
            if self._fail_gathered(error):
                self._on_broken_off(error)


class _ChunkWatcher:
    """Notes for each record of a chunk which batch it is in."""

    def __init__(
        self,
        chunk: StagedChunk,
        open_batches: OpenBatches,
        on_refused: Callable[[Exception, int], None],
        *,
        puts_back: bool,
    ) -> None:
        self._chunk = chunk
        self._open = open_batches
        self._on_refused = on_refused
        self._puts_back = puts_back
        count = len(chunk.futures)
        self.row_indexes: NDArray[np.int32] = np.zeros(count, np.int32)
        self.row_slots: NDArray[np.int32] = self.row_indexes
        self.stretches: list[Stretch] = []
        self.next_row = 0

    def written(self, start: int, stop: int, row_slots: NDArray[np.int32]) -> None:
        slots = row_slots[start:stop]
        first = int(slots[0])
        # Records without keys go to one partition after another.
        distinct = [first] if (slots == first).all() else np.unique(slots).tolist()
        results = {slot: self._open.result(slot) for slot in distinct}
        self.row_slots = row_slots
        self.stretches.append(Stretch(start, stop, results))
        self.next_row = stop

    def refused(self, row: int, error: Exception) -> bool:
        if isinstance(error, BufferExhaustedError) and self._puts_back:
            return False
        self._on_refused(error, 1)
        self._chunk.fail((row,), error)
        self.next_row = row + 1
        return True


class _TableWatcher:
    """Notes which stretches of which batches the rows of a table are."""

    def __init__(self, count: int, open_batches: OpenBatches) -> None:
        self._open = open_batches
        self.row_indexes: NDArray[np.int32] = np.zeros(count, np.int32)
        self.parts: list[TablePart] = []

    def written(self, start: int, stop: int, row_slots: NDArray[np.int32]) -> None:
        slots = row_slots[start:stop]
        for slot in np.unique(slots).tolist():
            indexes = self.row_indexes[start:stop][slots == slot]
            # A call has the batches to itself, so its rows in one are neighbours.
            self.parts.append(TablePart(self._open.result(slot), int(indexes[0]), len(indexes)))

    def refused(self, row: int, error: Exception) -> bool:  # noqa: ARG002  as the protocol has it
        return False
