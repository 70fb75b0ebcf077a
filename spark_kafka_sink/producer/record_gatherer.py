"""Where records wait until there are enough of them: staged ones, and open batches.

One lock, the *append lock*, goes with the open batches. A caller holds it while it writes columns,
and may then wait for memory. The network thread takes it only if it is free, and never waits: if
somebody writes just now, that one wakes it when it is done.

The network thread says when it will look again by itself. It is woken where that would be too late
for what has come since, and left alone otherwise: a chunk that is written takes less time than the
two threads would take to change places.

Single records are staged without the lock, and written in chunks: by the sender that makes a chunk
full, by whoever waits for one of them or flushes, or by the network thread after linger.ms.

No callback is called while the lock is held: see `callback_queue`. User code that runs with it (a
partitioner, a handler of our log) may send; that is written when the lock is free again.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from spark_kafka_sink.errors import (
    BufferExhaustedError,
    KafkaError,
    KafkaTimeoutError,
    RecordError,
)
from spark_kafka_sink.producer.append_lock import AppendLock, lock_timeout
from spark_kafka_sink.producer.batch_builder import never
from spark_kafka_sink.producer.delivery_errors import broken_off, no_memory_for_callback
from spark_kafka_sink.producer.produce_result import call_now
from spark_kafka_sink.producer.record_accumulator import NEVER
from spark_kafka_sink.producer.row_watchers import ChunkWatcher, TableWatcher
from spark_kafka_sink.producer.staged_records import StagedRecords

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from spark_kafka_sink.model import TopicPartition
    from spark_kafka_sink.producer.batch_builder import BatchBuilder
    from spark_kafka_sink.producer.callback_queue import CallbackQueue
    from spark_kafka_sink.producer.open_batches import OpenBatches
    from spark_kafka_sink.producer.record_futures import FutureRecordMetadata, TablePart
    from spark_kafka_sink.producer.staged_records import StagedChunk
    from spark_kafka_sink.record.columns import RecordColumns

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: So many staged records are written at once: enough that a chunk's own cost (some 100 us) is
#: little for each, and few enough that they lie in the processor's cache still.
CHUNK_RECORDS = 2_048
#: Large records make a full chunk when they have so many bytes together.
MAX_HEAVY_BYTES = 1_048_576
#: Less than is ever free.
NEVER_SHORT = -(2**63)
#: When there was no memory for what is staged, look again after this many seconds.
EXHAUSTED_PAUSE = 0.05


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
        callbacks: CallbackQueue | None = None,
    ) -> None:
        """`linger` in seconds, None where only callers close batches; `max_block` likewise.

        `count_partitions` knows every topic of a staged record; `wakeup` has the network thread
        call `gather` soon; `on_broken_off` hears of an error that may have lost rows on their way
        to a batch, `on_refused` of one that kept so many staged records from getting into one.
        `fail_if_not_ready` raises where no transaction takes records: it is asked with the lock, so
        that none gets from one transaction into another. `callbacks` calls those of records that
        get into no batch; without it they are called where that is found out.
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
        self._lock = AppendLock(self._on_release)
        #: When the network thread will look by itself; `NEVER` while it is about to find that out.
        self._looks_at = NEVER
        #: Whether it came while somebody else had the lock.
        self._was_locked_out = False
        self._failed_by: Exception | None = None
        #: How much memory was free when it did not suffice the last time.
        self._short_with = NEVER_SHORT
        self._callbacks = callbacks
        self.staged = StagedRecords(call_now if callbacks is None else callbacks.add)
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
        if self._callbacks is not None:
            self._callbacks.run_rest()

    @property
    def is_writing(self) -> bool:
        """Whether the caller is user code that is called while records are written."""
        return self._lock.is_held_here

    @property
    def is_full(self) -> bool:
        """Whether what is staged makes a full chunk, which should be written now."""
        return len(self.staged) >= CHUNK_RECORDS or self.staged.heavy_bytes > MAX_HEAVY_BYTES

    def write_columns(
        self,
        columns: RecordColumns,
        partition_counts: Sequence[int],
        first_row: int,
        give_up_at: float | None = None,
        watcher: TableWatcher | None = None,
    ) -> None:
        """Write rows that nobody holds a future of; errors as of `BatchBuilder.append`.

        KafkaTimeoutError when another thread does not let go of the batches by `give_up_at`, or
        memory does not come free by then. Memory that came free in time gives the next row
        max.block.ms of its own.
        """
        with self._filling_batches(self._fail_if_not_ready, give_up_at=give_up_at):
            self._write_all_staged(give_up_at)
            self._builder.append(
                columns,
                partition_counts=partition_counts,
                first_row=first_row,
                now_ms=self._wall_clock_ms(),
                watcher=watcher,
                give_up_at=give_up_at,
                renews=True,
            )

    def write_table(
        self,
        columns: RecordColumns,
        partition_counts: Sequence[int],
        first_row: int,
        give_up_at: float | None = None,
    ) -> list[TablePart]:
        """Write rows whose end somebody waits for; errors likewise."""
        watcher = TableWatcher(columns.num_rows, self._open)
        self.write_columns(columns, partition_counts, first_row, give_up_at, watcher)
        return watcher.parts

    def write_staged(
        self, give_up_at: float | None = None, unless: Callable[[], bool] = never
    ) -> None:
        """Write all that is staged into batches; each record that cannot be fails by itself.

        Where `give_up_at` comes before max.block.ms is over, what could not be written by then
        stays staged. So does all when another thread does not let go of the batches in time, which
        raises KafkaTimeoutError. As soon as `unless()` is true, nothing is waited for any more.
        """
        if self.is_writing:
            return
        latest = self._clock() + self._max_block + 1
        if give_up_at is not None:
            latest = min(give_up_at, latest)
        while not self._lock.acquire_unless(unless, max(latest - self._clock(), 0)):
            if unless():
                return
            if latest <= self._clock():
                raise lock_timeout(self._max_block)
        try:
            with self._telling_what_breaks_off():
                self._write_staged(may_wait=True, give_up_at=give_up_at, unless=unless)
        finally:
            self._lock.release()

    def write_for(self, future: FutureRecordMetadata, give_up_at: float) -> None:
        """Write a full chunk, for the record that made it full.

        When memory has not sufficed by `give_up_at`, that record fails: its sender has waited for
        long enough. The senders of the others have not, so those stay staged. So do all when
        another thread does not let go of the batches in time.
        """
        if self.is_writing or not self._lock.acquire(max(give_up_at - self._clock(), 0)):
            self.note_staged()
            return
        try:
            with self._telling_what_breaks_off():
                shortage = self._write_staged(may_wait=True, give_up_at=give_up_at)
                if shortage is not None and self.staged.withdraw(future, shortage):
                    self._on_refused(shortage, 1)
        finally:
            self._lock.release()

    def write_without_waiting(self) -> None:
        """Write a full chunk as far as there is memory now, if nobody else has the batches."""
        if not self._lock.acquire(timeout=0):
            return
        try:
            with self._telling_what_breaks_off():
                shortage = self._write_staged(may_wait=False)
            self._short_with = NEVER_SHORT if shortage is None else self._builder.free_bytes
        finally:
            self._lock.release()

    def check_may_stage(self) -> None:
        """Raise BufferExhaustedError where no more may be staged by a thread that must not wait.

        While another thread has the batches but does not wait for memory, that thread will write
        what is staged: that much may be staged as there is memory free.
        """
        # A chunk is much to look at for each record that fails.
        if self.is_full and self._builder.free_bytes > self._short_with:
            self.write_without_waiting()
        if self.is_full and not (
            self._lock.is_held and self._builder.has_room_for(self.staged.heavy_bytes)
        ):
            raise no_memory_for_callback()

    def _write_all_staged(self, give_up_at: float | None) -> None:
        """Write all that is staged; raises BufferExhaustedError when memory did not suffice."""
        shortage = self._write_staged(may_wait=True, give_up_at=give_up_at)
        if shortage is not None:
            raise shortage

    def close_batches(self, give_up_at: float | None = None) -> None:
        """Write what is staged and close every open batch: nothing lingers any longer.

        Raises KafkaTimeoutError where that could not be done by `give_up_at`.
        """
        with self._filling_batches(give_up_at=give_up_at):
            shortage = self._write_staged(may_wait=True, give_up_at=give_up_at)
            self._builder.close_all()
            if shortage is not None:
                raise KafkaTimeoutError(
                    "no memory came free in time for what was sent last: check that the brokers "
                    "keep up"
                ) from shortage

    def abort(self, error: Exception, give_up_at: float | None = None) -> None:
        """Fail all that is in no closed batch yet; later records are welcome.

        Raises KafkaTimeoutError when another thread does not let go of the batches in time.
        """
        # Who has the lock may wait for memory that the network thread frees by this very abort.
        self._wakeup()
        with self._holding_batches(give_up_at):
            self._builder.abort_open(error)
            self._fail_staged(error)

    def end_transaction(self, begin: Callable[[], T], give_up_at: float | None = None) -> T:
        """Close every open batch, and `begin` to commit before anybody can open another one.

        Raises KafkaTimeoutError where that could not be done by `give_up_at`: nothing has begun.
        """
        with self._holding_batches(give_up_at):
            with self._telling_what_breaks_off():
                self._write_all_staged(give_up_at)
                self._builder.close_all()
            return begin()

    def begin_transaction(
        self, begin: Callable[[], None], error: Exception, give_up_at: float | None = None
    ) -> None:
        """`begin` a transaction; what was staged before it fails with `error`.

        Raises KafkaTimeoutError when another thread does not let go of the batches in time.
        """
        with self._holding_batches(give_up_at):
            late = len(self.staged)
            begin()
            chunk = self.staged.take(self._wall_clock_ms(), late)
            if chunk is not None:
                chunk.fail(range(late), error)

    @contextmanager
    def _holding_batches(self, give_up_at: float | None) -> Iterator[None]:
        left = -1 if give_up_at is None else max(give_up_at - self._clock(), 0)
        if not self._lock.acquire(timeout=left):
            raise lock_timeout(left)
        try:
            yield
        finally:
            self._lock.release()

    @contextmanager
    def _filling_batches(
        self, check: Callable[[], None] = lambda: None, *, give_up_at: float | None = None
    ) -> Iterator[None]:
        """Have the open batches to oneself; end the producer if they may have lost rows.

        What `check` raises comes before anything has been done.
        """
        with self._holding_batches(give_up_at):
            check()
            with self._telling_what_breaks_off():
                yield

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

    def _write_staged(
        self,
        *,
        may_wait: bool,
        give_up_at: float | None = None,
        unless: Callable[[], bool] = never,
    ) -> BufferExhaustedError | None:
        """Write all that is staged; return why the rest was put back, None where there is none."""
        began_at, self.staged_since = self.staged_since, None
        chunk: StagedChunk | None = None
        try:
            while (chunk := self.staged.take(self._wall_clock_ms(), CHUNK_RECORDS)) is not None:
                shortage = self._write_chunk(
                    chunk,
                    may_wait=may_wait,
                    give_up_at=give_up_at,
                    unless=unless,
                    began_at=began_at,
                )
                if shortage is not None:
                    self.staged_since = self._clock()
                    return shortage
                # In one piece: once futures serve others, an interrupt must not fail them.
                written, chunk = chunk, None
                self.staged.reuse(written)
        except BaseException as error:
            if chunk is not None:
                chunk.fail_rest(broken_off(error))
            raise
        return None

    def _write_chunk(
        self,
        chunk: StagedChunk,
        *,
        may_wait: bool,
        give_up_at: float | None,
        unless: Callable[[], bool],
        began_at: float | None,
    ) -> BufferExhaustedError | None:
        """Write a chunk; return why the rest of it was put back, None where there is none."""
        refusal = self._refusal()
        if refusal is not None:
            chunk.fail(range(len(chunk.futures)), refusal)
            return None
        counts = [self._count_partitions(topic) for topic in chunk.columns.topics]
        gone = chunk.gone_partitions(counts)
        if gone:
            for error in gone.values():
                self._on_refused(error, 1)
            self.staged.refuse(chunk, gone)
            return None
        if give_up_at is not None and give_up_at >= self._clock() + self._max_block:
            give_up_at = None
        is_short = not may_wait or give_up_at is not None
        watcher = ChunkWatcher(
            chunk,
            self._open,
            on_refused=self._on_refused,
            on_progress=self._lock.note_progress,
            puts_back=lambda: is_short or unless(),
        )
        try:
            self._builder.append(
                chunk.columns,
                partition_counts=counts,
                first_row=None,
                now_ms=chunk.now_ms,
                watcher=watcher,
                may_wait=may_wait,
                give_up_at=give_up_at,
                unless=unless,
                began_at=began_at,
            )
        except BufferExhaustedError as error:
            self.staged.put_back(chunk, watcher.next_row)
            return error
        except BaseException as error:
            rest = chunk.unresolved(watcher.next_row)
            broken = broken_off(error)
            self._on_refused(broken, len(rest))
            chunk.fail(rest, broken)
            if not isinstance(error, Exception):
                raise
        return None

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
                    if self._write_staged(may_wait=False) is not None:
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
