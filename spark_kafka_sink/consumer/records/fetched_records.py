"""The records of one partition's answer to a Fetch that are not yet returned (`CompletedFetch`).

`FewBatches` decodes an answer with few records, and `RecordDecoders` has the decoders for others.

Rules:
- Nothing is decoded before it is wanted, but then as much as fits into a record batch of Arrow. Its
  rows become objects only when they are returned.
- An error waits until the records before it are returned. It is then raised by each call, and
  `next_offset` is where it is, so that a user can seek past it.
- `next_offset` passes over what is never returned (control records, aborted transactions, offsets
  that compaction has removed) at the end of the answer, and before an error.
- All reading begins at `next_offset`, so records may be taken as objects and as Arrow by turns.
  After each change, decoding starts again there.
- Records that are taken one by one are made many at a time.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from spark_kafka_sink.consumer.records.consumer_record import (
    CREATE_TIME,
    LOG_APPEND_TIME,
    NULL_SIZE,
)
from spark_kafka_sink.consumer.records.deserializers import NO_DESERIALIZERS, Deserializers
from spark_kafka_sink.consumer.records.record_rows import LeaderEpochs, RecordRows, consumer_records
from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.model import DEFAULT_MAX_UNCOMPRESSED_BYTES, NO_LEADER_EPOCH, TopicPartition
from spark_kafka_sink.record.arrow.record_decoder import (
    DEFAULT_MAX_ROWS,
    BatchIndex,
    RecordDecoder,
    memory_limit,
)
from spark_kafka_sink.record.arrow.schema import RECORD_SCHEMA, arrow_schema
from spark_kafka_sink.record.decode import DecodeBudget, Record, decode_payload
from spark_kafka_sink.record.kernel.decode_state import BYTES_PER_HEADER
from spark_kafka_sink.record.record_batch import check_crc, decode_header, split_record_batches

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    import numpy.typing as npt
    import pyarrow as pa
    from typing_extensions import Buffer

    from spark_kafka_sink.consumer.records.consumer_record import ConsumerRecord
    from spark_kafka_sink.consumer.records.record_rows import Fault
    from spark_kafka_sink.record.record_batch import RecordBatchHeader

#: The kernel takes as long for any few records as `record.decode` for about so many.
DEFAULT_FEW_RECORDS: Final = 10
#: The most bytes of an answer with few records, and of its batches when they are decompressed.
_MOST_BYTES: Final = 1 << 20
#: The most records and headers of such an answer.
_MOST_ELEMENTS: Final = 1000
#: More decoders than this are not kept for later use.
_MOST_IDLE: Final = 4
#: The number of records that are made at once if they are taken one by one.
_MADE_AT_ONCE: Final = 500
_MAX_INT64: Final = 2**63 - 1
_MAX_OFFSET: Final = _MAX_INT64
_OFFSET_FIELD: Final = arrow_schema(["offset"]).field(0)


class _Row(NamedTuple):
    record: Record
    timestamp_type: int


class FewBatches:
    """The batches of an answer with few records; created by `of`.

    `poll` mostly returns a record that has just been written, alone, for which the calls of the
    kernel would take longer than its work. It is decoded by `record.decode`, with the same result
    as by the kernel. All that does not end well here is left to the kernel, and so are aborted
    transactions: None is returned, and errors are always the kernel's.
    """

    def __init__(self, batches: Sequence[tuple[RecordBatchHeader, memoryview]]) -> None:
        self._batches = batches

    @classmethod
    def of(cls, data: memoryview, most_records: int) -> FewBatches | None:
        """Return the complete batches of an answer; None if they are too many or malformed."""
        if data.nbytes > _MOST_BYTES:
            return None
        batches = []
        left = most_records
        try:
            for batch in split_record_batches(data):
                header = decode_header(batch)
                # Compaction may leave a batch without records.
                left -= max(header.record_count, 1)
                if left < 0 or max(header.base_offset, header.last_offset) >= _MAX_INT64:
                    return None
                batches.append((header, batch))
        except CorruptRecordError:
            return None
        return cls(batches)

    def index(self, position: int) -> BatchIndex:
        """Return what `RecordDecoder.index` does of the answer to a request at `position`."""
        if not self._batches:
            return BatchIndex(position, 0, 0, NO_LEADER_EPOCH)
        last, _ = self._batches[-1]
        return BatchIndex(
            max(position, last.last_offset + 1),
            len(self._batches),
            sum(header.size_in_bytes for header, _ in self._batches),
            last.partition_leader_epoch,
        )

    def rows(self, start: int, max_uncompressed_bytes: int) -> FewRows | None:
        """Return the records from offset `start` on, without control records; None if corrupt."""
        limit = min(max_uncompressed_bytes, _MOST_BYTES)
        budget = DecodeBudget(limit, _MOST_ELEMENTS)
        rows: list[_Row] = []
        try:
            for header, batch in self._batches:
                check_crc(batch)
                records = decode_payload(header, batch, budget)
                if not header.is_control:
                    timestamp_type = LOG_APPEND_TIME if header.log_append_time else CREATE_TIME
                    rows += [
                        _Row(record, timestamp_type) for record in records if record.offset >= start
                    ]
        except CorruptRecordError:
            return None
        if any(abs(row.record.timestamp) > _MAX_INT64 for row in rows):
            return None
        elements = _MOST_ELEMENTS - budget.elements
        return FewRows(rows, limit - budget.uncompressed_bytes + elements * BYTES_PER_HEADER)


class FewRows:
    """Records that are decoded, with the interface of `RecordRows`."""

    def __init__(self, rows: Sequence[_Row], size: int) -> None:
        self._rows = rows
        #: The memory that the records take, in bytes.
        self.size = size
        self.offsets = [row.record.offset for row in rows]

    def records(
        self,
        start: int,
        end: int,
        topic_partition: TopicPartition,
        epochs: LeaderEpochs,
        deserializers: Deserializers,
    ) -> tuple[list[ConsumerRecord], Fault | None]:
        """Return the records of some rows, and the error of a deserializer that has ended them."""
        records, timestamp_types = zip(*self._rows[start:end], strict=True)
        offsets, timestamps, keys, values, headers = zip(*records, strict=True)
        return consumer_records(
            topic_partition,
            len(offsets),
            deserializers,
            offsets=offsets,
            keys=keys,
            values=values,
            timestamps=timestamps,
            timestamp_types=timestamp_types,
            headers=headers,
            leader_epochs=epochs.of(offsets),
            key_sizes=map(_size, keys),
            value_sizes=map(_size, values),
        )


class RecordDecoders:
    """The idle decoders of one consumer, and how they decode; not thread-safe.

    Answers of all its partitions use them one after the other: a decoder's memory is large, and to
    touch new memory costs about as much as to decode into it. A `FetchedRecords` takes a decoder
    when its first record is wanted, has it to itself until it is exhausted or closed, and then
    returns it for the next one.

    `check_crcs` is the setting check.crcs. A batch that decompresses to more than
    `max_uncompressed_batch_bytes` is refused. At most `max_rows` rows are decoded at once. Answers
    with at most `few_records` need no decoder to become objects: see `FewBatches`.
    """

    def __init__(
        self,
        *,
        check_crcs: bool = True,
        max_uncompressed_batch_bytes: int = DEFAULT_MAX_UNCOMPRESSED_BYTES,
        max_rows: int = DEFAULT_MAX_ROWS,
        few_records: int = DEFAULT_FEW_RECORDS,
    ) -> None:
        self._check_crcs = check_crcs
        self.max_uncompressed_batch_bytes = max_uncompressed_batch_bytes
        #: The memory that the records of a poll may take, in bytes.
        self.poll_bytes = memory_limit(max_uncompressed_batch_bytes)
        self._max_rows = max_rows
        self.few_records = few_records
        #: A full deque forgets its oldest item.
        self._idle: deque[tuple[Any, RecordDecoder]] = deque(maxlen=_MOST_IDLE)

    def take(self, schema: Any, topic_partition: TopicPartition) -> RecordDecoder:
        """Return a decoder for a partition, in use nowhere else; raise SchemaError as it does."""
        for entry in self._idle:
            if entry[0] is schema or entry[0].equals(schema, check_metadata=True):
                self._idle.remove(entry)
                entry[1].assign(*topic_partition)
                return entry[1]
        return RecordDecoder(
            schema,
            *topic_partition,
            check_crcs=self._check_crcs,
            max_rows=self._max_rows,
            max_uncompressed_bytes=self.max_uncompressed_batch_bytes,
        )

    def give_back(self, schema: Any, decoder: RecordDecoder) -> None:
        """Keep a decoder for later; it has nothing left to flush."""
        self._idle.append((schema, decoder))


class _Reading(NamedTuple):
    """A decoder, and the record batches that it yields."""

    decoder: RecordDecoder
    batches: Generator[pa.RecordBatch]


class FetchedRecords:
    """The rest of an answer; not thread-safe.

    The bytes of the answer are referred to until it is exhausted or closed.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        data: Buffer,
        position: int,
        *,
        aborted: Sequence[tuple[int, int]] = (),
        is_committed: bool = False,
        decoders: RecordDecoders | None = None,
    ) -> None:
        """Begin at offset `position` of the record batches in `data`.

        With `is_committed` (isolation.level=read_committed), the records of `aborted` transactions
        are skipped, given as the producer id and the first offset of each. `decoders` are those of
        the consumer.
        """
        self.topic_partition = topic_partition
        #: The position of the consumer after all that was returned.
        self.next_offset = position
        #: The leader epoch of the last batch that was read; `NO_LEADER_EPOCH` if it is not known.
        self.last_epoch = NO_LEADER_EPOCH
        self._decoders = decoders or RecordDecoders()
        self._aborted = aborted if is_committed else ()
        self._data = memoryview(data).cast("B")
        #: None if the kernel has to decode them.
        self._few = None if self._aborted else FewBatches.of(self._data, self._decoders.few_records)
        self._index, self._header_error = index, _ = self._find_batches(position)
        #: The number of complete batches; none of a response that is too small for the first one.
        self.batch_count = index.batch_count
        #: The number of bytes of the complete batches.
        self.size = index.size
        self._epochs = LeaderEpochs(self._data, index)
        #: Whether there is nothing left, not even an error.
        self.is_exhausted = False
        # The reading in progress, or one that has ended.
        self._schema: Any = None
        #: None once all rows are decoded.
        self._reading: _Reading | None = None
        #: The position after all that is skipped behind the last row, and the error there.
        self._end = index.next_offset
        self._error: CorruptRecordError | None = None
        #: None if the next rows are still to be decoded.
        self._rows: Any = None
        self._record_rows: RecordRows | FewRows | None = None
        #: The records of the next rows, as far as they are made.
        self._made: deque[ConsumerRecord] = deque()
        self._offsets: Sequence[int] | npt.NDArray[np.int64] = ()
        #: The number of rows that are returned.
        self._row = 0
        #: The memory that a row takes on average, in bytes.
        self._row_bytes = 0.0
        #: The memory that the last result takes, in bytes.
        self.taken_bytes = 0.0
        if not index.batch_count and self._header_error is None:
            self.close()

    @property
    def end_offset(self) -> int:
        """The position after the last complete batch."""
        return self._index.next_offset

    @property
    def end_epoch(self) -> int:
        """The leader epoch of the last complete batch; `NO_LEADER_EPOCH` if it is not known."""
        return self._index.leader_epoch

    def take(
        self,
        max_records: int,
        deserializers: Deserializers = NO_DESERIALIZERS,
        max_bytes: float = inf,
    ) -> list[ConsumerRecord]:
        """Return the next records, at most `max_records`; none if it is exhausted.

        Once they take `max_bytes` in memory, no further ones are decoded. Without a deserializer,
        keys and values are bytes. If a record cannot be returned, those before it are, and the next
        call raises CorruptRecordError, or RecordDeserializationError with the deserializer's error
        as its cause.
        """
        records: list[ConsumerRecord] = []
        fault: Fault | None = None
        self._made.clear()
        self.taken_bytes = 0.0
        while (
            (remaining := max_records - len(records)) > 0
            and fault is None
            and self.taken_bytes < max_bytes
        ):
            end = self._find_record_rows(remaining)
            if not end:
                break
            next_records, fault = self._records(end, deserializers)
            records = records + next_records if records else next_records
            self._advance(len(next_records))
        if not records and max_records > 0:
            if fault is not None:
                [record], _ = self._records(self._row + 1, NO_DESERIALIZERS)
                raise fault.about(record) from fault.error
            self._raise_error()
        return records

    def take_first(self, deserializers: Deserializers = NO_DESERIALIZERS) -> list[ConsumerRecord]:
        """Return the next record, as `take` does, and make those after it for `take_made`."""
        if not self._made and (end := self._find_record_rows(_MADE_AT_ONCE)):
            self._made += self._records(end, deserializers)[0]
        record = self.take_made()
        # If it cannot be made, the error is raised.
        return self.take(1, deserializers) if record is None else [record]

    def take_made(self) -> ConsumerRecord | None:
        """Return the next record if it is made; that takes next to no time."""
        if not self._made:
            return None
        record = self._made.popleft()
        self._advance(1)
        return record

    def take_arrow(
        self, schema: pa.Schema, max_rows: int | None = None, max_bytes: float = inf
    ) -> list[pa.RecordBatch]:
        """Return the next records as Arrow, at most `max_rows`; see `record.arrow.schema`.

        Once they take `max_bytes`, no further ones are decoded. The memory is not copied. If a
        record cannot be returned, those before it are, and the next call raises CorruptRecordError.
        Raises SchemaError for an unknown column.
        """
        names = schema.names
        # The offset of the last row that was returned must be known.
        with_offset = schema if "offset" in names else schema.append(_OFFSET_FIELD)
        batches: list[pa.RecordBatch] = []
        self._made.clear()
        left = _MAX_OFFSET if max_rows is None else max_rows
        self.taken_bytes = 0.0
        while left > 0 and self.taken_bytes < max_bytes:
            end = self._find_rows(with_offset, left)
            if not end:
                break
            count = end - self._row
            rows = self._rows.slice(self._row, count)
            batches.append(rows if with_offset is schema else rows.select(names))
            left -= count
            self._advance(count)
        if not batches and left > 0:
            self._raise_error()
        return batches

    def close(self) -> None:
        """Drop the rest: `is_exhausted` from now on."""
        self._stop_reading()
        self._made.clear()
        self.is_exhausted = True
        self._data = memoryview(b"")
        self._few = None

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error.with_traceback(None)

    def _find_batches(self, position: int) -> tuple[BatchIndex, CorruptRecordError | None]:
        """Return the complete batches, and the error of the first one with a wrong header."""
        if self._few is not None:
            return self._few.index(position), None
        decoder = self._decoders.take(RECORD_SCHEMA, self.topic_partition)
        result = decoder.index_intact(self._data, position)
        self._decoders.give_back(RECORD_SCHEMA, decoder)
        return result

    # --- the reading in progress

    def _records(
        self, end: int, deserializers: Deserializers
    ) -> tuple[list[ConsumerRecord], Fault | None]:
        """Return the records of the rows before `end`, and the error that has ended them."""
        assert self._record_rows is not None  # noqa: S101  `_find_record_rows` has returned `end`
        return self._record_rows.records(
            self._row, end, self.topic_partition, self._epochs, deserializers
        )

    def _find_record_rows(self, most: int) -> int:
        """Make sure that there are rows for records; return the end of those to return next."""
        if self._schema is None and self._record_rows is None and self._few is not None:
            self._decode_few(self._few)
        if self._record_rows is None:
            end = self._find_rows(RECORD_SCHEMA, most)
            self._record_rows = RecordRows(self._rows) if end else None
        return min(self._row + most, len(self._offsets)) if self._record_rows is not None else 0

    def _decode_few(self, few: FewBatches) -> None:
        """Decode all that is left, without a kernel; if that fails, the kernel finds out why."""
        rows = few.rows(self.next_offset, self._decoders.max_uncompressed_batch_bytes)
        if rows is None:
            self._few = None
        elif rows.offsets:
            self._record_rows, self._offsets, self._row = rows, rows.offsets, 0
            self._row_bytes = rows.size / len(rows.offsets)
            self._end = self._index.next_offset
        else:
            self._finish()

    def _find_rows(self, schema: pa.Schema, most: int) -> int:
        """Make sure that there are decoded rows; return the end of those to return next, or 0."""
        if self.is_exhausted:
            return 0
        if self._schema is None or not (
            schema is self._schema or schema.equals(self._schema, check_metadata=True)
        ):
            self._start_reading(schema)
        if self._rows is None and self._reading is not None:
            self._decode(self._reading)
        return 0 if self._rows is None else min(self._row + most, len(self._offsets))

    def _start_reading(self, schema: pa.Schema) -> None:
        decoder = self._decoders.take(schema, self.topic_partition)
        self._stop_reading()
        batches = decoder.decode(
            self._data,
            self._index,
            start=self.next_offset,
            end=_MAX_OFFSET,
            aborted=self._aborted,
        )
        self._schema = schema
        self._reading = _Reading(decoder, batches)

    def _stop_reading(self) -> None:
        """Return the decoder, if there is one; rows that are left are decoded again if wanted."""
        if self._reading is not None:
            # Between its record batches, the decoder is empty.
            self._reading.batches.close()
            self._decoders.give_back(self._schema, self._reading.decoder)
        self._schema = self._reading = self._rows = self._record_rows = self._error = None

    def _decode(self, reading: _Reading) -> None:
        """Decode the next rows, or find that there are none."""
        error, end = self._header_error, self._index.next_offset
        # A decoder that was interrupted is not used again: it may hold rows, or half of one.
        self._reading = None
        try:
            try:
                rows = next(reading.batches, None)
            except CorruptRecordError as corrupt:
                error, end = corrupt, reading.decoder.failed_offset
                rows = None
            is_last = rows is None
            if is_last:
                rows = reading.decoder.flush()
        except BaseException:
            self._stop_reading()
            raise
        if is_last:
            self._decoders.give_back(self._schema, reading.decoder)
            self._error, self._end = error, end
        else:
            self._reading = reading
        if rows is None:
            self._finish()
        else:
            self._set_rows(rows)
            self._row_bytes = reading.decoder.finished_bytes / rows.num_rows

    def _set_rows(self, rows: pa.RecordBatch) -> None:
        self._rows = rows
        self._row = 0
        offsets: Any = rows.column("offset")
        self._offsets = np.frombuffer(offsets.buffers()[1], np.int64)[: rows.num_rows]

    def _advance(self, count: int) -> None:
        """Count rows as returned."""
        if not count:
            return
        self._row += count
        self.taken_bytes += count * self._row_bytes
        self._move_to(int(self._offsets[self._row - 1]) + 1)
        if self._row == len(self._offsets):
            self._rows = self._record_rows = None
            if self._reading is None:
                self._finish()

    def _finish(self) -> None:
        """Pass over what follows the last row."""
        self._move_to(self._end)
        if self._error is None:
            self.close()

    def _move_to(self, offset: int) -> None:
        if offset > self.next_offset:
            self.next_offset = offset
            self.last_epoch = self._epochs.at(offset - 1)


def _size(data: bytes | None) -> int:
    return NULL_SIZE if data is None else len(data)
