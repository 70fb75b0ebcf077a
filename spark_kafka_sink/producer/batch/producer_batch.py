"""One record batch on its way to one partition (Kafka's ProducerBatch).

A batch is *open* while records are written into its block, and *closed* once its records are final;
it is compressed soon after. It is *stamped* with producer id and sequence number when it is first
drained, and *done* exactly once. The bytes of a stamped batch never change: every retry sends the
same ones, unless the batch is split or its partition restarts.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from spark_kafka_sink.model import NO_PRODUCER_ID_AND_EPOCH, NO_SEQUENCE, ProducerIdAndEpoch
from spark_kafka_sink.record.record_batch import RECORD_BATCH_OVERHEAD, write_header

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from spark_kafka_sink.model import TopicPartition
    from spark_kafka_sink.producer.batch.buffer_pool import BufferPool
    from spark_kafka_sink.producer.batch.produce_result import ProduceResult
    from spark_kafka_sink.record.columns import Int64Array
    from spark_kafka_sink.record.compression import CompressionType


MAX_ROWS = 1 << 20
#: The same if rows that a broker refuses are set aside: each of them must be known.
MAX_ROWS_SET_ASIDE = 1 << 23
#: About 230 bytes each.
MAX_PIECES = 1 << 14


class RowOrigin(NamedTuple):
    """The origin of the first record of a batch."""

    #: The number of records added to the history before.
    position: int
    #: The number of its input row; None for a record without one.
    row: int | None
    #: The numbering of rows that `row` belongs to; a caller may start a new one.
    numbering: int


class _Rows(NamedTuple):
    position: int
    slots: NDArray[np.int32]
    first_row: int | None


class RowHistory:
    """The slots of the latest rows, so that errors can name a refused record (KIP-467).

    A broker reports refused records by their index in a batch, but the rows of one batch are
    scattered over the input. This history stores one slot number per row, as the kernel returned
    them, for the latest rows only: 4 bytes each, 4 MB at most. For older rows the answer is None.
    Records sent one by one have no row number, but they are counted, because a batch may contain
    both kinds. Rows that are written a few at a time take far more, so the number of pieces is
    limited as well.

    A broker may refuse a batch while the rows after it are still being written, so these are known
    from the beginning of their call on.

    One thread adds, any thread may read.
    """

    def __init__(self, max_rows: int = MAX_ROWS) -> None:
        #: The most rows that are stored.
        self.max_rows = max_rows
        self._pieces: deque[_Rows] = deque()
        #: The rows that are being written, which are not among the pieces yet.
        self._current: _Rows | None = None
        self._row_count = 0
        #: The number of records added so far.
        self.position = 0

    def begin(self, first_row: int | None, slots: NDArray[np.int32]) -> None:
        """Read the slots of records from here while they are written, until `add`."""
        self._current = _Rows(self.position, slots, first_row)

    def add(self, first_row: int | None, slots: NDArray[np.int32]) -> None:
        """Add the slots of records written in sequence; negative for a record in none.

        They are consecutive input rows starting at number `first_row`, or have no numbers if that
        is None.
        """
        if len(slots):
            self._pieces.append(_Rows(self.position, slots, first_row))
        self.position += len(slots)
        self._row_count += len(slots)
        # Only now: another thread reads either the one or the other.
        self._current = None
        while self._row_count > self.max_rows or len(self._pieces) > MAX_PIECES:
            self._row_count -= len(self._pieces.popleft().slots)

    def clear(self) -> None:
        """Remove all rows, because slots are renumbered."""
        self._pieces.clear()
        self._row_count = 0

    def row_of(self, slot: int, position: int, index: int) -> int | None:
        """Return the row of record number `index` of a slot, counted from `position` on.

        Returns None if the row is no longer stored, or has no number.
        """
        for piece, places in self._places(slot, position):
            if index < len(places):
                row = piece.first_row
                return None if row is None else row + int(places[index])
            index -= len(places)
        return None

    def rows_of(self, slot: int, position: int, indexes: range) -> Int64Array | None:
        """Return the rows of consecutive records of a slot; None unless all of them are known."""
        found = [np.zeros(0, np.int64)]
        before = 0
        for piece, places in self._places(slot, position):
            chosen = places[max(indexes.start - before, 0) : max(indexes.stop - before, 0)]
            before += len(places)
            if chosen.size:
                if piece.first_row is None:
                    return None
                found.append(piece.first_row + chosen)
            if before >= indexes.stop:
                return np.concatenate(found)
        return None

    def _places(self, slot: int, position: int) -> Iterator[tuple[_Rows, NDArray[np.intp]]]:
        """Yield the places of a slot's records in each piece, counted from `position` on."""
        # In this order: the rows are among the pieces before they are no longer the current ones.
        current = self._current
        pieces = list(self._pieces)
        if current is not None and not (pieces and pieces[-1].position >= current.position):
            pieces.append(current)
        if not pieces or position < pieces[0].position:
            return
        for piece in pieces:
            start = max(position - piece.position, 0)
            if start < len(piece.slots):
                yield piece, np.flatnonzero(piece.slots[start:] == slot) + start


class BatchRows(NamedTuple):
    """The rows of a batch or of a part of one, as a reference into `RowHistory`."""

    history: RowHistory
    slot: int
    position: int
    #: Records of the batch before this part.
    skipped: int = 0

    def row_of(self, index: int) -> int | None:
        """Return the input row of the batch's record `index`; None if it is not known."""
        return self.history.row_of(self.slot, self.position, self.skipped + index)

    def behind(self, record_count: int) -> BatchRows:
        """Return the rows after the first `record_count` of these."""
        return self._replace(skipped=self.skipped + record_count)

    def numbers(self, record_count: int) -> Int64Array | None:
        """Return the input rows of all records of a batch; None unless all of them are known."""
        indexes = range(self.skipped, self.skipped + record_count)
        return self.history.rows_of(self.slot, self.position, indexes)

    @property
    def is_part(self) -> bool:
        """Whether the first row of the whole batch may be in another part."""
        return self.skipped > 0


class KnownRows(NamedTuple):
    """The rows of a batch from which others were removed, by their numbers."""

    rows: Int64Array

    def row_of(self, index: int) -> int | None:
        """Return the input row of the batch's record `index`."""
        return int(self.rows[index])

    def behind(self, record_count: int) -> KnownRows:
        """Return the rows after the first `record_count` of these."""
        return KnownRows(self.rows[record_count:])

    def numbers(self, record_count: int) -> Int64Array | None:
        """Return the input rows of the first records."""
        return self.rows[:record_count]

    @property
    def is_part(self) -> bool:
        """True: the batch is not the whole one."""
        return True


class FinalState(Enum):
    """The outcome of a batch."""

    SUCCEEDED = auto()
    FAILED = auto()


class BatchAlreadyDoneError(RuntimeError):
    """A batch was completed twice: the accounting of the producer is broken."""


def empty_header() -> memoryview:
    """Return space for a batch header, separate from the records."""
    return memoryview(bytearray(RECORD_BATCH_OVERHEAD))


@dataclass(slots=True, eq=False, kw_only=True)
class ProducerBatch:
    """A closed batch: its records are final, and it waits for a broker's answer."""

    topic_partition: TopicPartition
    #: The records without the batch header, as they will be sent once `is_compressed`.
    payload: memoryview
    record_count: int
    base_timestamp: int
    max_timestamp: int
    #: Bytes of the records before compression, without the batch header.
    uncompressed_bytes: int
    #: Bytes of the largest record before compression; a part has the value of the whole batch.
    max_record_bytes: int
    compression: CompressionType
    #: The first and the last input row that may be in this batch; rows between them may be in
    #: others. None if it is not known, or if rows have no numbers.
    first_row: int | None
    last_row: int | None
    #: The start of delivery.timeout.ms: the closing, or with linger.ms the opening.
    created_at: float
    #: The pending result of its records.
    result: ProduceResult
    #: The input rows of its records, if they are stored.
    rows: BatchRows | KnownRows | None = None
    #: The block that contains `payload`, while it is not compressed.
    block: NDArray[np.uint8] | None = None
    header: memoryview = field(default_factory=empty_header)
    producer_id_and_epoch: ProducerIdAndEpoch = NO_PRODUCER_ID_AND_EPOCH
    base_sequence: int = NO_SEQUENCE
    #: Whether it is part of a transaction.
    is_transactional: bool = False
    #: Whether a failed attempt may nevertheless have been appended.
    may_be_appended: bool = False
    #: The number of failed attempts.
    attempts: int = 0
    #: It must not be drained again before this time.
    retry_at: float = 0.0
    #: Whether its payload is compressed with `compression`; it is not sent before that.
    is_compressed: bool = True
    #: Whether its bytes were passed to a connection that has not answered.
    is_in_flight: bool = False
    #: Whether the worker thread is reading its bytes.
    is_with_worker: bool = False
    last_error: Exception | None = None
    final_state: FinalState | None = None
    _is_stamped: bool = field(default=False, init=False)

    @property
    def size_bytes(self) -> int:
        """Bytes on the wire, including the header."""
        return RECORD_BATCH_OVERHEAD + len(self.payload)

    @property
    def has_sequence(self) -> bool:
        """Whether it has been assigned a sequence number."""
        return self.base_sequence != NO_SEQUENCE

    @property
    def is_held(self) -> bool:
        """Whether a connection or the worker may still read its bytes, so they cannot be freed."""
        return self.is_in_flight or self.is_with_worker

    @property
    def is_done(self) -> bool:
        """Whether it has been acknowledged or has failed."""
        return self.final_state is not None

    def set_producer_state(
        self, producer: ProducerIdAndEpoch, base_sequence: int, *, is_transactional: bool = False
    ) -> None:
        """Set the producer id, epoch and sequence number that all its retries keep."""
        self.producer_id_and_epoch = producer
        self.base_sequence = base_sequence
        self.is_transactional = is_transactional
        self._is_stamped = False

    def buffers(self) -> list[bytes | memoryview]:
        """Return the batch as sent on the wire, with its header written and its CRC computed."""
        if not self._is_stamped:
            write_header(
                self.header,
                self.payload,
                compression=self.compression,
                base_timestamp=self.base_timestamp,
                max_timestamp=self.max_timestamp,
                producer_id=self.producer_id_and_epoch.producer_id,
                producer_epoch=self.producer_id_and_epoch.epoch,
                base_sequence=self.base_sequence,
                record_count=self.record_count,
                transactional=self.is_transactional,
            )
            self._is_stamped = True
        return [self.header, self.payload]

    def finish(self, state: FinalState) -> None:
        """Record the outcome; raise BatchAlreadyDoneError the second time."""
        if self.final_state is not None:
            raise BatchAlreadyDoneError(
                f"the batch for {self.topic_partition} has already {self.final_state.name}: "
                f"it cannot become {state.name}"
            )
        self.final_state = state

    def free(self, pool: BufferPool) -> None:
        """Return its memory to the pool; nothing may read its bytes any more."""
        if self.block is not None:
            block, self.block = self.block, None
            pool.deallocate(block)
        else:
            pool.release(self.size_bytes)

    @property
    def first_record_row(self) -> int | None:
        """The input row of its first record; None if it is not known."""
        if self.rows is not None and self.rows.is_part:
            return self.rows.row_of(0)
        return self.first_row

    def __str__(self) -> str:
        """Return what an operator needs to find the rows."""
        records = "1 record" if self.record_count == 1 else f"{self.record_count} records"
        description = f"{records} for {self.topic_partition}"
        if self.first_row is None:
            return description
        if self.record_count == 1 and (row := self.first_record_row) is not None:
            return f"{description}, row {row},"
        if self.last_row is None:
            return f"{description}, from row {self.first_row} on"
        return f"{description}, among rows {self.first_row} to {self.last_row}"
