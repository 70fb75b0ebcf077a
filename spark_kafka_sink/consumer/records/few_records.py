"""Answers with few records, for which the calls of the kernel would take longer than its work.

`poll` mostly returns a record that has just been written, alone. It is decoded by `record.decode`,
with the same result as by the kernel. All that does not end well here is left to the kernel, and so
are aborted transactions: None is returned, and errors are always the kernel's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from spark_kafka_sink.consumer.records.consumer_record import (
    CREATE_TIME,
    LOG_APPEND_TIME,
    NULL_SIZE,
)
from spark_kafka_sink.consumer.records.record_rows import consumer_records
from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.model import NO_LEADER_EPOCH
from spark_kafka_sink.record.decode import DecodeBudget, decode_payload
from spark_kafka_sink.record.kernel.decode_state import BYTES_PER_HEADER
from spark_kafka_sink.record.reading.record_decoder import BatchIndex
from spark_kafka_sink.record.record_batch import check_crc, decode_header, split_record_batches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_kafka_sink.consumer.records.consumer_record import ConsumerRecord
    from spark_kafka_sink.consumer.records.deserialization import Fault
    from spark_kafka_sink.consumer.records.deserializers import Deserializers
    from spark_kafka_sink.consumer.records.leader_epochs import LeaderEpochs
    from spark_kafka_sink.model import TopicPartition
    from spark_kafka_sink.record.decode import Record
    from spark_kafka_sink.record.record_batch import RecordBatchHeader

#: Of an answer, and of a batch when it is decompressed.
_MOST_BYTES: Final = 1 << 20
#: Of an answer: records and headers.
_MOST_ELEMENTS: Final = 1000
_MAX_INT64: Final = 2**63 - 1


class FewBatches:
    """The batches of an answer with few records; created by `of`."""

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
                    kind = LOG_APPEND_TIME if header.log_append_time else CREATE_TIME
                    rows += [_Row(it, kind) for it in records if it.offset >= start]
        except CorruptRecordError:
            return None
        if any(abs(row.record.timestamp) > _MAX_INT64 for row in rows):
            return None
        elements = _MOST_ELEMENTS - budget.elements
        return FewRows(rows, limit - budget.uncompressed_bytes + elements * BYTES_PER_HEADER)


class _Row(NamedTuple):
    record: Record
    timestamp_type: int


class FewRows:
    """Records that are decoded, with the interface of `RecordRows`."""

    def __init__(self, rows: Sequence[_Row], size: int) -> None:
        self._rows = rows
        #: What the records take in memory, in bytes.
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


def _size(data: bytes | None) -> int:
    return NULL_SIZE if data is None else len(data)
