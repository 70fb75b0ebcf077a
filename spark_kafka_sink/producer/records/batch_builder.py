"""The builder that turns columns into closed batches, on the writing thread.

The kernel fills open batches in bulk and returns when it cannot continue. The next step (another
block, a larger one, the next sticky partition) is decided here, once per batch, never per row. A
batch is closed when it is full, when memory runs short, when it has waited for linger.ms and could
be sent at once, or when its writer has finished. A writing thread compresses the batches it closes,
so a slow network makes it wait for memory instead of using more. The network thread, which closes
batches after linger.ms, passes them on uncompressed, to be compressed elsewhere.

The size of a batch: its block starts at the size of the partition's last batches and grows
fourfold, up to `batch.size` (or less, see `BatchSizes`) divided by the compression ratio seen so
far, as long as that is at most half of the free memory or a fair share of the total. So one busy
partition writes full batches, and ten thousand quiet ones fit into the same `buffer.memory`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from spark_kafka_sink.errors import BufferExhaustedError, RecordError, RecordTooLargeError
from spark_kafka_sink.network.exponential_backoff import NEVER
from spark_kafka_sink.producer.batch.batch_compression import BatchCompression, batches_of
from spark_kafka_sink.producer.batch.buffer_pool import MIN_BLOCK_BYTES, BufferPool, block_bytes
from spark_kafka_sink.producer.batch.interrupts import interruption_error
from spark_kafka_sink.producer.batch.producer_batch import (
    BatchRows,
    ProducerBatch,
    RowHistory,
    RowOrigin,
    empty_header,
)
from spark_kafka_sink.producer.records.open_batches import NO_SLOT, FilledBlock, OpenBatches
from spark_kafka_sink.record.compression import CompressionType
from spark_kafka_sink.record.default_record import encode_record
from spark_kafka_sink.record.kernel.kernel import NO_INDEXES, AppendStatus, append_rows
from spark_kafka_sink.record.record_batch import RECORD_BATCH_OVERHEAD
from spark_kafka_sink.record.refused_rows import RowErrorKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from spark_kafka_sink.config.producer_config import ProducerConfig
    from spark_kafka_sink.model import TopicPartition
    from spark_kafka_sink.producer.producer_core import ProducerCore
    from spark_kafka_sink.producer.records.row_placement import PlacedRows, RowPlacement
    from spark_kafka_sink.producer.records.staged_records import StagedRecord
    from spark_kafka_sink.producer.sender_metrics import SenderMetrics
    from spark_kafka_sink.record.columns import RecordColumns
    from spark_kafka_sink.record.kernel.kernel import AppendResult
    from spark_kafka_sink.record.refused_rows import RefusedRows

GROWTH = 4
FIRST_BLOCK_BYTES = 16_384
#: Seconds after which a thread waiting for memory rechecks due batches that it left open.
LEAST_PAUSE = 0.05
#: While all batches are closed, the network thread is woken after so many bytes. Woken for each
#: batch, it would send as many requests, and take the interpreter's lock from the closing thread.
WAKE_BYTES = 262_144


def never() -> bool:
    """Return False: the default for waits that nothing cuts short."""
    return False


class RowWatcher(Protocol):
    """An observer of where each row was written, used when a caller waits for the rows."""

    #: int32[rows], filled with each row's index in its batch.
    row_indexes: NDArray[np.int32]

    def written(self, start: int, stop: int, row_slots: NDArray[np.int32]) -> None:
        """Record that these rows are in the open batches of their slots, before those change."""

    def refused(self, row: int, error: Exception) -> bool:
        """Record why a row cannot be written; return True to continue with the next one."""


@dataclass(slots=True)
class MemoryWait:
    """How long one `append` call may wait for memory; a row by default for max.block.ms."""

    #: Without this, memory must be available at once.
    may_wait: bool = True
    #: When to give up instead, in seconds.
    give_up_at: float | None = None
    #: Whether after each wait that ends with memory the next one may take max.block.ms again.
    renews: bool = False
    #: Once this is true, no row waits any more.
    unless: Callable[[], bool] = never
    #: The deadline of the current wait; after a timeout the next row keeps it.
    deadline: float | None = None


@dataclass(slots=True)
class _AppendCall:
    placed: PlacedRows
    #: The sticky partitions of the call's topics, copied from `OpenBatches.sticky`.
    sticky: NDArray[np.void]
    first_row: int | None
    wait: MemoryWait
    began_at: float | None

    def input_row(self, row: int) -> int | None:
        """Return the caller's number of a row; None if rows have no numbers."""
        return None if self.first_row is None else self.first_row + row


class BatchBuilder:
    """A builder that fills, closes and enqueues batches. Not thread-safe: one thread at a time."""

    def __init__(
        self,
        config: ProducerConfig,
        *,
        open_batches: OpenBatches,
        placement: RowPlacement,
        pool: BufferPool,
        compression: BatchCompression,
        core: ProducerCore,
        clock: Callable[[], float],
        lingers: bool,
        listener: SenderMetrics,
    ) -> None:
        """Create a builder that passes closed batches to `core`.

        `clock` returns monotonic seconds. With `lingers` the age of a batch counts from its
        opening, as in Java, otherwise from its closing: slow input must never expire an open batch.
        """
        self._open = open_batches
        self._placement = placement
        self._pool = pool
        self._core = core
        self._clock = clock
        self._lingers = lingers
        self._linger = config.linger_ms / 1000
        self._delivery_timeout = config.delivery_timeout_ms / 1000
        self._max_block = config.max_block_ms / 1000
        #: The size of the largest record that can be sent, measured in an empty batch.
        self.max_record_bytes = (
            min(config.max_request_size, config.buffer_memory) - RECORD_BATCH_OVERHEAD
        )
        self._compression = compression
        self._sizes = compression.sizes
        #: The slots of the latest rows.
        self.history = RowHistory()
        #: The number of the last row that was written.
        self._last_row: int | None = None
        #: How often callers have restarted the numbering of rows.
        self._numbering = 0
        self._moves = open_batches.moves
        self._listener = listener
        #: The bytes that were not free when memory was short the last time.
        self.short_of = 0
        #: When the first batch was opened that `close_due` has not seen yet.
        self.first_opened_at = NEVER

    # --- appending

    def append(
        self,
        columns: RecordColumns,
        *,
        partition_counts: Sequence[int],
        first_row: int | None,
        now_ms: int,
        watcher: RowWatcher | None = None,
        wait: MemoryWait | None = None,
        began_at: float | None = None,
        refused: RefusedRows | None = None,
    ) -> None:
        """Append all rows.

        `partition_counts` has an entry for each of `columns.topics`. `first_row` is the number of
        the first row, for errors; None if rows have no numbers. `now_ms` is the timestamp of rows
        without one. `began_at`, in seconds, is when the first row arrived: a batch opened now has
        been waiting since then.

        Raises InvalidTopicError, InvalidPartitionError or RecordTooLargeError for a bad row,
        BufferExhaustedError when memory is not available in time. For a record that is too large,
        and for lack of memory, the watcher decides first. With `refused`, bad rows are added to it
        and skipped (`RowPlacement.place`).
        """
        placed = self._place(columns, partition_counts, first_row, refused)
        if self._open.moves != self._moves:
            # The history refers to slots by their old numbers.
            self._moves = self._open.moves
            self.history.clear()
        self._begin_rows(first_row)
        sticky = self._open.sticky[placed.sticky_rows]
        call = _AppendCall(placed, sticky, first_row, wait or MemoryWait(), began_at)
        row = 0
        self.history.begin(first_row, placed.row_slots)
        try:
            while row < columns.num_rows:
                result = append_rows(
                    placed.columns,
                    placed.row_slots,
                    row,
                    self._open.slots,
                    sticky,
                    now_ms,
                    self.max_record_bytes,
                    row_indexes=NO_INDEXES if watcher is None else watcher.row_indexes,
                )
                if watcher is not None and result.next_row > row:
                    watcher.written(row, result.next_row, placed.row_slots)
                row = result.next_row
                if first_row is not None and row:
                    self._last_row = first_row + row - 1
                try:
                    self._continue_append(result, call)
                except (RecordError, BufferExhaustedError) as error:
                    if refused is not None and isinstance(error, RecordError):
                        refused.add_row(RowErrorKind.SIZE, error)
                    elif watcher is None or not watcher.refused(row, error):
                        raise
                    placed.row_slots[row] = NO_SLOT
                    row += 1
        finally:
            self._open.sticky[placed.sticky_rows] = sticky
            self.history.add(first_row, placed.row_slots[:row])

    def _place(
        self,
        columns: RecordColumns,
        partition_counts: Sequence[int],
        first_row: int | None,
        refused: RefusedRows | None,
    ) -> PlacedRows:
        try:
            return self._placement.place(columns, partition_counts, first_row, refused)
        except RecordError as error:
            if first_row is None:
                raise error.about_row(None) from error.__cause__
            raise

    def _begin_rows(self, first_row: int | None) -> None:
        if first_row is not None and self._last_row is not None and first_row <= self._last_row:
            # A caller restarted the numbering: a range of rows across the restart would be wrong.
            self._numbering += 1
            self._last_row = None

    def _continue_append(self, result: AppendResult, call: _AppendCall) -> None:
        """Do what the kernel needs to continue."""
        match result.status:
            case AppendStatus.ALL_APPENDED:
                return
            case AppendStatus.BATCH_FULL:
                self._make_room(result.slot, result.record_bytes, result.next_row, call)
            case AppendStatus.STICKY_FULL:
                placed, sticky = call.placed, call.sticky
                index = int(placed.columns.topic_index[result.next_row])
                name = placed.columns.topics[index]
                self._placement.move_sticky(
                    sticky[index],
                    name,
                    placed.topics[index],
                    batch_size=self._sizes.size_of(name),
                )
            case AppendStatus.RECORD_TOO_LARGE:
                raise self._too_large(result, call)

    def _too_large(self, result: AppendResult, call: _AppendCall) -> RecordTooLargeError:
        row, columns = result.next_row, call.placed.columns
        # A row without a key that has no sticky partition yet has no slot.
        target = None if result.slot == NO_SLOT else self._open.topic_partition(result.slot)
        return RecordTooLargeError(
            f"the record takes {result.record_bytes} bytes, but max.request.size and buffer.memory "
            f"allow at most {self.max_record_bytes}",
            row=call.input_row(row),
            topic=columns.topics[int(columns.topic_index[row])],
            partition=None if target is None else target.partition,
            advice=(
                "Raise max.request.size (and the topic's max.message.bytes), or write a smaller "
                "record"
            ),
        )

    # --- memory

    def _make_room(self, slot: int, record_bytes: int, row: int, call: _AppendCall) -> None:
        """Make space for a record of this size in a slot: a larger block, or a new batch."""
        if slot in self._open:
            used = self._open.used_bytes(slot)
            if used + record_bytes <= self._target_bytes(slot) and self._grow(
                slot, used + record_bytes
            ):
                return
            self.close(slot)
        target = self._target_bytes(slot)
        last = int(self._open.last_bytes[slot])
        # A batch that would grow once more starts at its full size: growing copies it.
        start = target if GROWTH * last >= target else last or FIRST_BLOCK_BYTES
        needed = RECORD_BATCH_OVERHEAD + record_bytes
        # The largest record takes all the memory; a size rounded up could never be allocated.
        size = min(block_bytes(max(min(start, target), needed)), self._pool.total_bytes)
        block = self._allocate(size, slot, row, call)
        try:
            now = self._clock() if call.began_at is None else call.began_at
            self.first_opened_at = min(self.first_opened_at, now)
            # `record_bytes` was measured after other records, where it takes a few more bytes.
            origin = RowOrigin(self.history.position + row, call.input_row(row), self._numbering)
            self._open.open(slot, block, min(max(target, needed), size), origin=origin, now=now)
        finally:
            if slot not in self._open:
                self._pool.deallocate(block)

    def _grow(self, slot: int, needed: int) -> bool:
        target = self._target_bytes(slot)
        old = self._open[slot].block
        size = min(block_bytes(max(GROWTH * old.nbytes, needed)), block_bytes(target))
        if size <= old.nbytes:
            return False
        block = self._pool.try_allocate(size)
        if block is None:
            return False
        try:
            self._open.grow(slot, block, min(size, target))
        finally:
            self._pool.deallocate(block if self._open[slot].block is old else old)
        return True

    def _target_bytes(self, slot: int) -> int:
        """Return how large a slot's batch may grow, in uncompressed bytes including the header."""
        topic = self._open.topic_partition(slot).topic
        full = int(self._sizes.size_of(topic) / self._compression.estimated_ratio(topic))
        fair_share = self._pool.total_bytes // (2 * (len(self._open) + 1))
        most = max(fair_share, self._pool.available_bytes // 2, MIN_BLOCK_BYTES)
        return min(full, most)

    def _allocate(self, size: int, slot: int, row: int, call: _AppendCall) -> NDArray[np.uint8]:
        while (block := self._pool.try_allocate(size)) is None:
            if size > self._pool.total_bytes - self._open.allocated_bytes:
                # Waiting cannot help: the memory is in open batches, which nothing else closes.
                self.close(self._open.fullest())
                continue
            if not self._wait_for(size, call.wait):
                self.short_of = size
                number = call.input_row(row)
                row_prefix = "" if number is None else f"row {number}, "
                raise BufferExhaustedError(
                    f"no buffer memory became free within {self._max_block:g} s (max.block.ms) for "
                    f"{row_prefix}{self._open.topic_partition(slot)}: buffer.memory "
                    f"({self._pool.total_bytes} bytes) is full of unacknowledged records. Check "
                    "that the brokers keep up, or raise max.block.ms or buffer.memory"
                )
        call.wait.deadline = None
        return block

    def _wait_for(self, size: int, wait: MemoryWait) -> bool:
        started = self._clock()
        may_wait = wait.may_wait and not wait.unless()
        if not may_wait:
            wait.deadline = started
        elif wait.deadline is None:
            wait.deadline = started + self._max_block
            if wait.give_up_at is not None:
                wait.deadline = min(wait.deadline, wait.give_up_at)
        deadline = max(wait.deadline, started)
        until, enough, is_over = started, False, False
        try:
            while not enough and not is_over:
                since = until
                until = self._close_lingering(since, deadline) if may_wait else deadline
                enough = self._pool.wait_for(size, until - since)
                is_over = until >= deadline
        finally:
            now = self._clock()
            if may_wait:
                self._listener.on_buffer_wait(now - started, now)
        if may_wait and not enough:
            self._listener.on_buffer_exhausted(now)
        if enough and wait.renews:
            wait.give_up_at = None
        return enough

    def _close_lingering(self, now: float, deadline: float) -> float:
        """Close batches that linger no longer; return when to check again, at most `deadline`.

        A thread that waits for memory owns the open batches: no other thread can close those of
        other partitions meanwhile.
        """
        if not self._lingers:
            return deadline
        check_at = self._close_due(now, self._next_in_queue_at)
        left_open, next_opened_at = self._open.due(now, self._linger)
        if left_open:
            # Nothing signals this thread when the queues before these batches become empty.
            check_at = min(check_at, now + max(self._linger, LEAST_PAUSE))
            next_opened_at = self._open[left_open[0]].opened_at
        # The network thread must check them once this thread releases them.
        self.first_opened_at = NEVER if next_opened_at is None else next_opened_at
        return min(deadline, check_at)

    @property
    def free_bytes(self) -> int:
        """The number of bytes that are free now."""
        return self._pool.available_bytes

    def has_room_for(self, size: int) -> bool:
        """Return whether `size` bytes are free and no thread waits for memory."""
        return not self._pool.waiting_threads and size <= self._pool.available_bytes

    # --- closing

    def close_all(self) -> None:
        """Close every open batch."""
        # Batches that linger are small anyway, so callers that flush often would pay twice.
        if not self._lingers:
            self._placement.restart_turns()
        must_wake, since = False, 0
        try:
            for slot in self._open.open_slots():
                since += self._open.used_bytes(slot)
                must_wake |= self._close(slot)
                if must_wake and since >= WAKE_BYTES:
                    self._core.wake_network_thread()
                    must_wake, since = False, 0
        finally:
            if must_wake:
                self._core.wake_network_thread()

    def close_due(self, now: float) -> float:
        """Close the batches that have waited for linger.ms and can be sent at once.

        Batches that cannot be sent continue to fill, until they have waited for
        delivery.timeout.ms. Returns the time at which the next batch will be due, or will have
        waited that long; `NEVER` if no batch is left open.
        """
        return self._close_due(now, self._core.sendable_at)

    def _close_due(
        self, now: float, sendable_at: Callable[[TopicPartition, float], float]
    ) -> float:
        self.first_opened_at = NEVER
        slots, next_opened_at = self._open.due(now, self._linger)
        next_at = NEVER if next_opened_at is None else next_opened_at + self._linger
        for slot in slots:
            expires_at = self._open[slot].opened_at + self._delivery_timeout
            close_at = min(sendable_at(self._open.topic_partition(slot), now), expires_at)
            if close_at <= now:
                self.close(slot)
            else:
                next_at = min(next_at, close_at)
        return next_at

    def _next_in_queue_at(self, topic_partition: TopicPartition, now: float) -> float:
        """Return `now` if only the network decides when a batch of this partition is sent."""
        return now if self._core.accumulator.is_queue_empty(topic_partition) else NEVER

    def abort_open(self, error: Exception) -> bool:
        """Fail the records in open batches (like `RecordAccumulator.abort_undrained_batches`).

        Returns whether there were any.
        """
        had_records = False
        for slot in self._open.open_slots():
            result = self._open[slot].result
            try:
                had_records |= self._open.used_bytes(slot) > RECORD_BATCH_OVERHEAD
                self._discard_open(slot)
                result.fail(error)
            except BaseException:
                # After an interrupt, too, every future must complete.
                self._discard_open(slot)
                result.fail(error)
                raise
        return had_records

    def close(self, slot: int) -> None:
        """Close one open batch and enqueue it, in parts if it compressed less than expected."""
        if self._close(slot):
            self._core.wake_network_thread()

    def _close(self, slot: int) -> bool:
        """Close one open batch; return whether the network thread must be woken to send it."""
        result = self._open[slot].result
        try:
            filled = self._open.take(slot)
            if filled.record_count:
                return self._enqueue(filled)
            self._pool.deallocate(filled.block)
        except BaseException as error:
            self._discard_open(slot)
            # Every future must complete, and lost rows without a future must be noted.
            failure = interruption_error(error)
            result.fail(failure)
            self._core.accumulator.note_loss(failure)
            raise
        return False

    def _discard_open(self, slot: int) -> None:
        if slot not in self._open:
            return
        block = self._open[slot].block
        try:
            self._open.discard(slot)
        finally:
            if slot not in self._open:
                self._pool.deallocate(block)

    def fill_single(
        self, record: StagedRecord, partition_count: int, *, now_ms: int, opened_at: float
    ) -> FilledBlock | None:
        """Write a record into a batch of its own, which is never open; `enqueue` queues it.

        It goes to the partition that `append` would choose, as the same bytes. Columns, slots and
        kernels pay for thousands of records; for one they take six times as long. `opened_at` is in
        seconds. Returns None if only `append` can write the record, or refuse it.
        """
        future = record.future
        timestamp = now_ms if future.timestamp is None else future.timestamp
        encoded = encode_record(record.key, record.value, headers=future.headers or ())
        used_bytes = RECORD_BATCH_OVERHEAD + len(encoded)
        if len(encoded) > self.max_record_bytes or not partition_count:
            return None
        block = self._pool.try_allocate(block_bytes(used_bytes))
        if block is None:
            return None
        filled: FilledBlock | None = None
        try:
            slot = self._placement.place_single(
                record, partition_count, len(encoded), self._sizes.size_of(record.topic)
            )
            if slot == NO_SLOT:
                return None
            block.data[RECORD_BATCH_OVERHEAD:used_bytes] = encoded
            origin = RowOrigin(self.history.position, None, self._numbering)
            self.history.add(None, np.array((slot,), np.int32))
            filled = FilledBlock(
                topic_partition=self._open.topic_partition(slot),
                slot=slot,
                result=self._open.new_result(slot),
                opened_at=opened_at,
                block=block,
                used_bytes=used_bytes,
                record_count=1,
                base_timestamp=timestamp,
                max_timestamp=timestamp,
                max_record_bytes=len(encoded),
                origin=origin,
            )
            return filled
        finally:
            if filled is None:
                self._pool.deallocate(block)

    def discard(self, filled: FilledBlock) -> None:
        """Return the memory of a filled block to the pool, instead of queueing its batch."""
        self._pool.deallocate(filled.block)

    def enqueue(self, filled: FilledBlock) -> None:
        """Add the batch of a filled block to its queue, compressed if another thread sends it.

        If this raises, the memory of what is in no queue has been freed.
        """
        if self._enqueue(filled):
            self._core.wake_network_thread()

    def _enqueue(self, filled: FilledBlock) -> bool:
        must_wake = False
        try:
            batches = [self._closed_batch(filled)]
        except BaseException:
            self.discard(filled)
            raise
        try:
            if not batches[0].is_compressed and self._core.may_compress(batches[0]):
                self._compress(batches)
            while batches:
                # From here on the queues own it, even if they refuse it.
                must_wake = self._core.enqueue(batches.pop(0)) or must_wake
        except BaseException:
            for batch in batches:
                batch.free(self._pool)
            if must_wake:
                self._core.wake_network_thread()
            raise
        return must_wake

    def _closed_batch(self, filled: FilledBlock) -> ProducerBatch:
        origin = filled.origin
        records = filled.block.data[RECORD_BATCH_OVERHEAD : filled.used_bytes]
        codec = self._compression.codec
        is_final = codec is CompressionType.NONE
        return ProducerBatch(
            topic_partition=filled.topic_partition,
            result=filled.result,
            payload=records,
            record_count=filled.record_count,
            base_timestamp=filled.base_timestamp,
            max_timestamp=filled.max_timestamp,
            uncompressed_bytes=len(records),
            max_record_bytes=filled.max_record_bytes,
            compression=codec,
            first_row=origin.row,
            last_row=self._last_row if origin.numbering == self._numbering else None,
            created_at=filled.opened_at if self._lingers else self._clock(),
            rows=BatchRows(self.history, filled.slot, origin.position),
            block=filled.block,
            header=filled.block.data[:RECORD_BATCH_OVERHEAD] if is_final else empty_header(),
            is_compressed=is_final,
        )

    def _compress(self, batches: list[ProducerBatch]) -> None:
        """Replace the only batch, whose records are in its block, by its compressed parts."""
        batch = batches[0]
        parts = batches_of(batch, self._compression.compressed(batch))
        size = sum(part.size_bytes for part in parts)
        block, batch.block = batch.block, None
        batches[:] = parts
        if block is not None:
            self._pool.replace(block, size)
