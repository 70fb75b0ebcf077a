"""The owner of records that are not in a closed batch yet: staged records and open batches.

One lock, the *append lock* (`AppendLock`), protects the open batches. A caller holds it while it
writes columns, and may then wait for memory. The network thread acquires it only if it is free, and
never waits: a thread that is writing wakes it on release.

The network thread sets the time of its next check. It is woken if that would be too late for new
records, and not otherwise: writing a chunk takes less time than switching between the two threads.

Single records are staged without the lock, and written in chunks: by the caller of `send` that
fills a chunk, by a thread that flushes or waits for one of them, or by the network thread after
linger.ms. Only a record that need not linger, and that finds no other on its way, is sent at once.

No callback is called while the lock is held: see `CallbackQueue`. User code that runs under the
lock (a partitioner, a logging handler) may send; its records are written once the lock is free
again.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NoReturn, TypeVar

import numpy as np

from spark_kafka_sink.errors import BufferExhaustedError, KafkaError, KafkaTimeoutError, RecordError
from spark_kafka_sink.network.exponential_backoff import NEVER
from spark_kafka_sink.producer.batch.error_rules import no_memory_for_callback
from spark_kafka_sink.producer.batch.interrupts import AppendLock, interruption_error, lock_timeout
from spark_kafka_sink.producer.batch.produce_result import CallbackQueue, call_now
from spark_kafka_sink.producer.records.batch_builder import BatchBuilder, MemoryWait, never
from spark_kafka_sink.producer.records.record_futures import (
    FutureRecordMetadata,
    RowPlace,
    Stretch,
    TablePart,
)
from spark_kafka_sink.producer.records.staged_records import StagedChunk, StagedRecords

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from spark_kafka_sink.producer.producer_core import ProducerCore
    from spark_kafka_sink.producer.records.batch_builder import RowWatcher
    from spark_kafka_sink.producer.records.open_batches import OpenBatches
    from spark_kafka_sink.record.columns import RecordColumns
    from spark_kafka_sink.record.refused_rows import RefusedRows

T = TypeVar("T")

#: Staged records are written this many at a time: enough that the chunk's own cost (about 100 us)
#: is small per record, and few enough that they are still in the processor's cache.
CHUNK_RECORDS = 2_048
#: Large records fill a chunk when they have this many bytes together.
MAX_HEAVY_BYTES = 1_048_576
#: Less than can ever be free.
NEVER_SHORT = -(2**63)
#: Seconds to wait before trying staged records again for which there was no memory.
EXHAUSTED_PAUSE = 0.05
#: Never passed to the builder itself, which changes it: `_write_staged` copies it.
_AT_ONCE = MemoryWait(may_wait=False)


class ChunkWatcher:
    """An observer that sets the batches of a chunk's futures."""

    def __init__(
        self,
        chunk: StagedChunk,
        open_batches: OpenBatches,
        *,
        on_refused: Callable[[Exception, int], None],
        on_progress: Callable[[], None],
        stays_staged: Callable[[], bool],
    ) -> None:
        """Observe `chunk`; `stays_staged()` returns whether a record without memory is kept."""
        self._chunk = chunk
        self._open = open_batches
        self._on_refused = on_refused
        self._on_progress = on_progress
        self._stays_staged = stays_staged
        self.row_indexes: NDArray[np.int32] = np.zeros(len(chunk.futures), np.int32)
        self.next_row = 0

    def written(self, start: int, stop: int, row_slots: NDArray[np.int32]) -> None:
        """Set the batches of these rows' futures."""
        slots = row_slots[start:stop]
        first = int(slots[0])
        # Records without keys go to one partition after another.
        distinct = [first] if (slots == first).all() else np.unique(slots).tolist()
        results = {slot: self._open[slot].result for slot in distinct}
        self._chunk.assign_places(Stretch(start, stop, results), row_slots, self.row_indexes)
        self.next_row = stop
        self._on_progress()

    def refused(self, row: int, error: Exception) -> bool:
        """Fail the row's future, or return False if its record stays staged for lack of memory."""
        if isinstance(error, BufferExhaustedError) and self._stays_staged():
            return False
        self._on_refused(error, 1)
        self._chunk.fail((row,), error)
        self.next_row = row + 1
        return True


class TableWatcher:
    """An observer that records where the rows of a table are in their batches."""

    def __init__(self, count: int, open_batches: OpenBatches) -> None:
        self._open = open_batches
        self.row_indexes: NDArray[np.int32] = np.zeros(count, np.int32)
        self.parts: list[TablePart] = []
        #: The first row that is in no batch.
        self.next_row = 0

    def written(self, start: int, stop: int, row_slots: NDArray[np.int32]) -> None:
        """Record the parts of the table, one for each batch."""
        self.next_row = stop
        slots = row_slots[start:stop]
        for slot in np.unique(slots).tolist():
            indexes = self.row_indexes[start:stop][slots == slot]
            # A call owns the open batches, so its rows are adjacent in each.
            self.parts.append(TablePart(self._open[slot].result, int(indexes[0]), len(indexes)))

    def refused(self, row: int, error: Exception) -> bool:  # noqa: ARG002  as the protocol has it
        """Return False: the caller gets the error."""
        return False


class PlaceWatcher:
    """An observer that records where the first rows of a call are."""

    def __init__(self, most: int, count: int, open_batches: OpenBatches) -> None:
        self._most = most
        self._open = open_batches
        self.row_indexes: NDArray[np.int32] = np.zeros(count, np.int32)
        self.places: list[RowPlace] = []

    def written(self, start: int, stop: int, row_slots: NDArray[np.int32]) -> None:
        """Record the places of these rows, as long as they are among the first."""
        for row in range(start, min(stop, self._most)):
            result = self._open[int(row_slots[row])].result
            self.places.append(RowPlace(result, int(self.row_indexes[row])))

    def refused(self, row: int, error: Exception) -> bool:  # noqa: ARG002  as the protocol has it
        """Return False: the caller gets the error."""
        return False


class RecordGatherer:
    """The guard of one producer's open batches."""

    def __init__(
        self,
        *,
        builder: BatchBuilder,
        open_batches: OpenBatches,
        core: ProducerCore,
        wall_clock_ms: Callable[[], int],
        clock: Callable[[], float],
        linger: float | None,
        max_block: float,
        callbacks: CallbackQueue | None = None,
    ) -> None:
        """Create a gatherer; `linger` and `max_block` are in seconds.

        `linger` is None if only callers close batches. `core` must know every topic of a staged
        record. `callbacks` runs the callbacks of records that are added to no batch; by default
        they are called where the record fails.
        """
        self._builder = builder
        self._open = open_batches
        self._core = core
        self._wall_clock_ms = wall_clock_ms
        self._clock = clock
        self._linger = linger
        self._max_block = max_block
        self._lock = AppendLock(self._on_release)
        #: When the network thread will check by itself; `NEVER` until it has determined that.
        self._next_check_at = NEVER
        #: Whether the network thread came while another thread held the lock.
        self._was_locked_out = False
        self._failed_by: Exception | None = None
        #: How much memory was free when there was not enough the last time.
        self._short_with = NEVER_SHORT
        self._callbacks = callbacks
        self.staged = StagedRecords(call_now if callbacks is None else callbacks.add)
        #: When the oldest staged record arrived, in seconds; None until a thread has noted it.
        self.staged_since: float | None = None

    # --- called by the callers' threads

    def note_staged(self) -> None:
        """Record that a record was staged; its time counts from the first since the last write."""
        if self.staged_since is None:
            since = self._clock()
            try:
                self.staged_since = since
                if not (self._linger == 0 and self._is_idle and self._send_at_once()):
                    self._wake_if_too_late_for(since)
            except BaseException:
                # The caller was interrupted, and no later record would wake the others.
                self._lock.note_progress()
                self._core.wake_network_thread()
                raise
        if self._failed_by is not None:
            # The record was staged while all others were being failed.
            self.fail_all(self._failed_by)

    @property
    def _is_idle(self) -> bool:
        """Whether no record is on its way, and the caller is a thread that sends."""
        core = self._core
        return not (self._open or core.accumulator.has_incomplete) and core.may_send_at_once()

    def _send_at_once(self) -> bool:
        """Send what is staged in a batch of its own, unless another thread holds the lock.

        Staging saves time only if more records follow before the network thread has run. A caller
        that waits for each record would wake it twice: to stage the record, and to send it.
        """
        return self._lock.call(self._send_staged, never, 0)

    def _send_staged(self) -> bool:
        def send() -> None:
            if not self._send_single():
                self._write_staged(_AT_ONCE)
                self._builder.close_all()

        # An error that ended the producer is raised by the futures and by every later call.
        with suppress(KafkaError):
            self._report_interrupts(send)
        return True

    def _wake_if_too_late_for(self, since: float) -> None:
        if self._linger is not None and since + self._linger < self._next_check_at:
            self._core.wake_network_thread()

    def _on_release(self) -> None:
        since = self.staged_since
        # The network thread wants nothing of what is in closed batches only.
        if self._was_locked_out and (since is not None or self._open):
            self._core.wake_network_thread()
        else:
            # A record is still staged if there was no memory for it.
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
        """Whether the staged records fill a chunk, which should be written now."""
        return len(self.staged) >= CHUNK_RECORDS or self.staged.heavy_bytes > MAX_HEAVY_BYTES

    @property
    def unwritten_records(self) -> int:
        """The number of records in no closed batch, read without the lock."""
        return len(self.staged) + self._open.record_count

    def write_columns(
        self,
        columns: RecordColumns,
        partition_counts: Sequence[int],
        first_row: int | None,
        give_up_at: float | None = None,
        *,
        watcher: RowWatcher | None = None,
        refused: RefusedRows | None = None,
        may_wait: bool = True,
    ) -> None:
        """Write rows without futures; raises the errors of `BatchBuilder.append`.

        Raises KafkaTimeoutError when another thread does not release the lock by `give_up_at`, or
        memory is not available by then. After each wait that ends with memory, the next row may
        wait for max.block.ms again. Without `may_wait`, memory must be free now.
        """

        # With the lock held, so that no record moves from one transaction to another.
        def write_if_ready() -> None:
            self._core.fail_if_transaction_not_ready()
            self._report_interrupts(write)

        def write() -> None:
            self._write_all_staged(MemoryWait(may_wait, give_up_at))
            self._builder.append(
                columns,
                partition_counts=partition_counts,
                first_row=first_row,
                now_ms=self._wall_clock_ms(),
                watcher=watcher,
                wait=MemoryWait(may_wait, give_up_at, renews=True),
                refused=refused,
            )

        self._hold_batches(write_if_ready, give_up_at)

    def watch_places(self, most: int, count: int) -> PlaceWatcher:
        """Return a watcher of the first `most` of `count` rows, for `write_columns`."""
        return PlaceWatcher(most, count, self._open)

    def write_table(
        self,
        columns: RecordColumns,
        partition_counts: Sequence[int],
        first_row: int | None,
        give_up_at: float | None = None,
    ) -> list[TablePart]:
        """Write rows of a table with a future; return its parts. Raises the same errors."""
        watcher = self.watch_table(columns.num_rows)
        self.write_columns(columns, partition_counts, first_row, give_up_at, watcher=watcher)
        return watcher.parts

    def watch_table(self, count: int) -> TableWatcher:
        """Return a watcher of all of `count` rows, for `write_columns`."""
        return TableWatcher(count, self._open)

    def write_staged(
        self, give_up_at: float | None = None, unless: Callable[[], bool] = never
    ) -> None:
        """Write all staged records into batches; a record that cannot be written fails alone.

        If `give_up_at` is earlier than max.block.ms allows, records that could not be written by
        then stay staged. All of them do when another thread does not release the lock in time,
        which raises KafkaTimeoutError. Once `unless()` is true, nothing waits any longer.
        """
        if self.is_writing:
            return
        latest = self._clock() + self._max_block + 1
        if give_up_at is not None:
            latest = min(give_up_at, latest)

        def write() -> bool:
            self._write_staged(MemoryWait(give_up_at=give_up_at, unless=unless))
            return True

        held = partial(self._report_interrupts, write)
        while not self._lock.call(held, never, max(latest - self._clock(), 0), unless):
            if unless():
                return
            if latest <= self._clock():
                raise lock_timeout(self._max_block)

    def write_for(self, future: FutureRecordMetadata, give_up_at: float) -> None:
        """Write a full chunk, for the record that filled it.

        When there is not enough memory by `give_up_at`, that record fails: its caller has waited
        long enough. The callers of the other records have not, so those stay staged. All of them do
        when another thread does not release the lock in time.
        """

        def write() -> None:
            shortage = self._write_staged(MemoryWait(give_up_at=give_up_at))
            if shortage is not None and self.staged.withdraw(future, shortage):
                self._core.note_failed_send(shortage, 1)

        self._lock.call(
            partial(self._report_interrupts, write),
            self.note_staged,
            max(give_up_at - self._clock(), 0),
        )

    def write_without_waiting(self) -> None:
        """Write a full chunk as far as memory is free now, unless another thread holds the lock."""

        def write() -> None:
            shortage = self._report_interrupts(partial(self._write_staged, _AT_ONCE))
            self._short_with = NEVER_SHORT if shortage is None else self._builder.free_bytes

        self._lock.call(write, lambda: None, 0)

    def check_may_stage(self) -> None:
        """Raise BufferExhaustedError if a thread that must not wait may not stage any more.

        A thread that holds the lock without waiting for memory will write the staged records. Until
        then as many may be staged as there is free memory.
        """
        # Processing a chunk for each record that fails would be expensive.
        if self.is_full and self._builder.free_bytes > self._short_with:
            self.write_without_waiting()
        if self.is_full and not (
            self._lock.is_held and self._builder.has_room_for(self.staged.heavy_bytes)
        ):
            raise no_memory_for_callback()

    def _write_all_staged(self, wait: MemoryWait) -> None:
        """Write all staged records; raise BufferExhaustedError if there was not enough memory."""
        shortage = self._write_staged(wait)
        if shortage is not None:
            raise shortage

    @property
    def short_of(self) -> int:
        """The bytes that were not free when memory was short the last time."""
        return self._builder.short_of

    def close_batches(self, give_up_at: float | None = None, *, may_wait: bool = True) -> None:
        """Write all staged records and close every open batch, without waiting for linger.ms.

        Raises KafkaTimeoutError if that was not possible by `give_up_at`, or now without
        `may_wait`.
        """

        def close() -> None:
            shortage = self._write_staged(MemoryWait(may_wait, give_up_at))
            self._builder.close_all()
            if shortage is not None:
                raise KafkaTimeoutError(
                    "no buffer memory became free in time for the last records. Check that the "
                    "brokers keep up, or raise buffer.memory"
                ) from shortage

        self._hold_batches(partial(self._report_interrupts, close), give_up_at)

    def abort(self, error: Exception, give_up_at: float | None = None) -> None:
        """Fail all records that are in no closed batch; later records are accepted.

        Raises KafkaTimeoutError when another thread does not release the lock in time.
        """
        # The holder of the lock may be waiting for memory that the network thread frees by this
        # abort.
        self._core.wake_network_thread()

        def fail() -> None:
            self._builder.abort_open(error)
            self._fail_staged(error)

        self._hold_batches(fail, give_up_at)

    def end_transaction(
        self, begin: Callable[[], T], give_up_at: float | None = None, *, may_wait: bool = True
    ) -> T:
        """Close every open batch, and call `begin` to commit before another one can be opened.

        Raises KafkaTimeoutError if that was not possible by `give_up_at`, or now without
        `may_wait`: nothing has begun then.
        """

        def close() -> None:
            self._write_all_staged(MemoryWait(may_wait, give_up_at))
            self._builder.close_all()

        def end() -> T:
            self._report_interrupts(close)
            return begin()

        return self._hold_batches(end, give_up_at)

    def begin_transaction(
        self, begin: Callable[[], None], error: Exception, give_up_at: float | None = None
    ) -> None:
        """Call `begin` to begin a transaction; records staged before it fail with `error`.

        Raises KafkaTimeoutError when another thread does not release the lock in time.
        """

        def fail_late() -> None:
            late = len(self.staged)
            begin()
            self._fail_oldest(late, error)

        self._hold_batches(fail_late, give_up_at)

    def _hold_batches(self, work: Callable[[], T], give_up_at: float | None) -> T:
        """Return what `work` returns with the lock held."""
        left = -1 if give_up_at is None else max(give_up_at - self._clock(), 0)

        def time_out() -> NoReturn:
            raise lock_timeout(left)

        return self._lock.call(work, time_out, left)

    def _report_interrupts(self, work: Callable[[], T]) -> T:
        """Call `work`; end the producer if open batches may have lost rows. Needs the lock."""
        try:
            return work()
        except (RecordError, KafkaTimeoutError):
            # Raised before the row was touched: the rows before it were written as they should be.
            raise
        except BaseException as error:
            # An interrupt, for example, may strike between closing a batch and queueing it, or
            # while one moves to a larger block. Continuing would acknowledge everything except that
            # batch.
            failure = interruption_error(error)
            self._core.refuse(failure)
            self._failed_by = failure
            self._fail_staged_and_open(failure)
            raise

    # --- called with the lock held

    def _write_staged(self, wait: MemoryWait) -> BufferExhaustedError | None:
        """Write all staged records; return why the rest was put back, or None if none was."""
        began_at, self.staged_since = self.staged_since, None
        chunk: StagedChunk | None = None
        try:
            while (chunk := self.staged.take(self._wall_clock_ms(), CHUNK_RECORDS)) is not None:
                shortage = self._write_chunk(chunk, replace(wait), began_at)
                if shortage is not None:
                    self.staged_since = self._clock()
                    return shortage
                # One statement: once futures are reused, an interrupt must not fail them.
                written, chunk = chunk, None
                self.staged.reuse(written)
        except BaseException as error:
            if chunk is not None:
                chunk.fail_rest(interruption_error(error))
            raise
        return None

    def _send_single(self) -> bool:
        """Send the only staged record in a batch of its own, if that needs no kernel.

        This is the short way for a caller that waits for each record. Returns False if only
        `BatchBuilder.append` can write it. After any exception its future has ended.
        """
        began_at, self.staged_since = self.staged_since, None
        # Read after that: the thread that stages a record from now on will note it.
        record = self.staged.single()
        # Another thread may have opened a batch since `_is_idle`; nothing overtakes its records.
        if record is None or began_at is None or self._open or self._refusal() is not None:
            self.staged_since = began_at
            return False
        filled = None
        try:
            filled = self._builder.fill_single(
                record,
                self._core.count_partitions(record.topic),
                now_ms=self._wall_clock_ms(),
                opened_at=began_at,
            )
            if filled is None:
                self.staged_since = began_at
                return False
            try:
                self.staged.place_single(record, filled.result, filled.base_timestamp)
            except BaseException:
                self._builder.discard(filled)
                raise
            self._builder.enqueue(filled)
        except BaseException as error:
            failure = interruption_error(error)
            if filled is None or record.future.chunk is None:
                self.staged.withdraw(record.future, failure)
            else:
                filled.result.fail(failure)
            # Its caller got no future, so only the transaction can tell that the record is missing.
            self._core.note_failed_send(failure, 1)
            self._core.accumulator.note_loss(failure)
            raise
        return True

    def _write_chunk(
        self, chunk: StagedChunk, wait: MemoryWait, began_at: float | None
    ) -> BufferExhaustedError | None:
        """Write a chunk; return why the rest of it was put back, or None if none was."""
        refusal = self._refusal()
        if refusal is not None:
            chunk.fail(range(len(chunk.futures)), refusal)
            return None
        counts = [self._core.count_partitions(topic) for topic in chunk.columns.topics]
        missing = chunk.missing_partitions(counts)
        if missing:
            for error in missing.values():
                self._core.note_failed_send(error, 1)
            self.staged.refuse(chunk, missing)
            return None
        if wait.give_up_at is not None and wait.give_up_at >= self._clock() + self._max_block:
            wait.give_up_at = None
        is_short = not wait.may_wait or wait.give_up_at is not None
        watcher = ChunkWatcher(
            chunk,
            self._open,
            on_refused=self._core.note_failed_send,
            on_progress=self._lock.note_progress,
            stays_staged=lambda: is_short or wait.unless(),
        )
        try:
            self._builder.append(
                chunk.columns,
                partition_counts=counts,
                first_row=None,
                now_ms=chunk.now_ms,
                watcher=watcher,
                wait=wait,
                began_at=began_at,
            )
        except BufferExhaustedError as error:
            self.staged.put_back(chunk, watcher.next_row)
            return error
        except BaseException as error:
            rest = chunk.unresolved(watcher.next_row)
            failure = interruption_error(error)
            self._core.note_failed_send(failure, len(rest))
            chunk.fail(rest, failure)
            chunk.register_callbacks()
            if not isinstance(error, Exception):
                raise
        return None

    def _refusal(self) -> Exception | None:
        if self._failed_by is None:
            try:
                self._core.fail_if_transaction_not_ready()
            except KafkaError as error:
                return error
        return self._failed_by

    def _fail_staged_and_open(self, error: Exception) -> bool:
        """Fail all staged records and open batches; return whether any batch was open."""
        # Reset before the records fail: one that is staged later must be noted again.
        self.staged_since = None
        had_open_batches = self._builder.abort_open(error)
        self._fail_staged(error)
        return had_open_batches

    def _fail_staged(self, error: Exception) -> None:
        while self._fail_oldest(CHUNK_RECORDS, error):
            pass

    def _fail_oldest(self, count: int, error: Exception) -> bool:
        """Fail at most `count` staged records; return whether there were any."""
        chunk: StagedChunk | None = None
        try:
            chunk = self.staged.take(self._wall_clock_ms(), count)
            if chunk is not None:
                chunk.fail(range(len(chunk.futures)), error)
        except BaseException:
            if chunk is not None:
                chunk.fail_rest(error)
            raise
        return chunk is not None

    # --- called by the network thread

    def gather(self, now: float) -> float:
        """Close the batches that are due and can be sent at once; return when to check again."""
        if self._linger is None or self._failed_by is not None:
            return NEVER
        # Set before checking: a record that arrives from now on may be missed, and wakes us again.
        self._next_check_at = NEVER
        self._was_locked_out = True
        if not self._lock.acquire(timeout=0):
            return NEVER
        self._was_locked_out = False
        try:
            next_at = NEVER
            if self.staged_since is not None:
                if self.staged_since + self._linger <= now:
                    if self._write_staged(_AT_ONCE) is not None:
                        # Nothing signals this thread when expiring batches free memory.
                        next_at = now + max(self._linger, EXHAUSTED_PAUSE)
                else:
                    next_at = self.staged_since + self._linger
            next_at = min(next_at, self._builder.close_due(now))
            self._next_check_at = next_at
            return next_at
        finally:
            self._lock.release(quietly=True)

    def has_open(self) -> bool:
        """Return whether `gather` may find a staged record or an open batch.

        Without the lock: a thread that stages or adds a record meanwhile wakes the network thread
        when it is done, unless the next check is early enough for it.
        """
        return self._linger is not None and (self.staged_since is not None or bool(self._open))

    def fail_all(self, error: Exception) -> None:
        """Fail all records in no closed batch, now and later: the producer has ended."""
        self._failed_by = error
        if self.is_writing:
            return

        def fail() -> None:
            if self._fail_staged_and_open(error):
                self._core.refuse(error)

        # The holder of the lock no longer waits for memory: the pool is closed by now.
        self._hold_batches(fail, None)
