"""What a `FetchedRecords` should return of an answer, by the slow decoder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_kafka_sink.consumer.records.consumer_record import ConsumerRecord
from spark_kafka_sink.consumer.records.fetched_records import FetchedRecords
from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.record.arrow.schema import arrow_schema
from spark_kafka_sink.record.record_batch import decode_header
from tests.support.record.reading.fetched_rows import (
    PARTITION,
    TOPIC,
    complete_batches,
    fetched_rows,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

ORDERS = TopicPartition(TOPIC, PARTITION)
_COLUMNS = arrow_schema(include_headers=True).names
_END = 2**63 - 1


def fetched(data: bytes, position: int = 0, **options: Any) -> FetchedRecords:
    """Create the records of an answer; aborted transactions are skipped if there are any."""
    return FetchedRecords(
        ORDERS, data, position, is_committed=bool(options.get("aborted")), **options
    )


def expected_records(
    data: bytes, position: int = 0, aborted: Sequence[tuple[int, int]] = ()
) -> tuple[list[ConsumerRecord], bool]:
    """Return the records before the first corrupt batch, and whether the answer is intact."""
    records: list[ConsumerRecord] = []
    intact = data
    try:
        complete_batches(data)
    except CorruptRecordError:
        intact = _before_wrong_header(data)
    try:
        # Those before an error remain.
        records.extend(
            _record(row, _epoch(intact, row["offset"]))
            for row in fetched_rows(
                intact, columns=_COLUMNS, start=position, end=_END, aborted=aborted, max_millis=_END
            )
        )
    except CorruptRecordError:
        return records, False
    return records, intact is data


def end_of(data: bytes, position: int, records: Sequence[ConsumerRecord]) -> int:
    """Return the position after an intact answer, of which `records` are returned.

    It never moves back, even if an answer is so wrong that the offsets of its batches do not rise.
    """
    ends = [position, *(record.offset + 1 for record in records)]
    ends += [decode_header(batch).last_offset + 1 for batch in complete_batches(data)[-1:]]
    return max(ends)


def _record(row: dict[str, Any], epoch: int) -> ConsumerRecord:
    return ConsumerRecord(
        TOPIC,
        PARTITION,
        row["offset"],
        row["key"],
        row["value"],
        timestamp=row["timestamp"] // 1000,
        timestamp_type=row["timestampType"],
        headers=tuple((each["key"], each["value"]) for each in row["headers"] or ()),
        leader_epoch=None if epoch == -1 else epoch,
        serialized_key_size=-1 if row["key"] is None else len(row["key"]),
        serialized_value_size=-1 if row["value"] is None else len(row["value"]),
    )


def _epoch(data: bytes, offset: int) -> int:
    headers = [decode_header(batch) for batch in complete_batches(data)]
    epochs = [header.partition_leader_epoch for header in headers]
    if epochs[0] == epochs[-1]:
        # Epochs never decrease in a log, so others between them are wrong, and are not looked at.
        return epochs[0]
    for header, epoch in zip(headers, epochs, strict=True):
        if header.base_offset <= offset <= header.last_offset:
            return epoch
    raise AssertionError(f"no batch has offset {offset}")


def _before_wrong_header(data: bytes) -> bytes:
    """Return the batches before the first one with a wrong header."""
    end = 0
    while True:
        size = 12 + int.from_bytes(data[end + 8 : end + 12], "big", signed=True)
        try:
            if size < 0 or not complete_batches(data[: end + size])[-1:]:
                return data[:end]
        except CorruptRecordError:
            return data[:end]
        end += size
