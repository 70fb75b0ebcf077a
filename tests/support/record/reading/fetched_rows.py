"""What a reader should see in an answer, by the slow decoder and by Kafka's rules, row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.record.decode import (
    DEFAULT_MAX_UNCOMPRESSED_BYTES,
    Record,
    decode_control_record,
    decode_record_batch,
)
from spark_kafka_sink.record.record_batch import (
    ControlRecordType,
    RecordBatchHeader,
    decode_header,
    split_record_batches,
    validate_record_batch,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

TOPIC = "orders"
PARTITION = 3
_MAX_INT64 = 2**63 - 1
#: The latest timestamp that fits into 64 bits in microseconds.
MAX_MILLIS = _MAX_INT64 // 1000


def complete_batches(data: bytes) -> list[memoryview]:
    """Return the complete batches of an answer; raise CorruptRecordError for a wrong header."""
    batches = list(split_record_batches(data))
    headers = [decode_header(batch) for batch in batches]
    _check_cut_off_batch(data[sum(len(batch) for batch in batches) :])
    for header in headers:
        if header.base_offset + max(header.last_offset_delta, 0) >= _MAX_INT64:
            raise CorruptRecordError("no offset may follow")
    return batches


def _check_cut_off_batch(rest: bytes) -> None:
    if len(rest) > 16:
        assert 2 == rest[16]


def fetched_rows(
    data: bytes,
    *,
    columns: Sequence[str],
    start: int,
    end: int,
    aborted: Sequence[tuple[int, int]] = (),
    max_uncompressed_bytes: int = DEFAULT_MAX_UNCOMPRESSED_BYTES,
    max_millis: int = MAX_MILLIS,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of an answer; raise CorruptRecordError where it is reached.

    So it is if a timestamp is larger than `max_millis`, or as far below 1970.

    Aborted transactions are filtered as in Java's CompletedFetch: by a set of producers.
    """
    waiting = sorted(aborted, key=lambda entry: entry[1])
    aborting: set[int] = set()
    for batch in complete_batches(data):
        header = decode_header(batch)
        if header.base_offset >= end:
            return
        if header.producer_id >= 0:
            while waiting and waiting[0][1] <= header.last_offset:
                aborting.add(waiting.pop(0)[0])
        validate_record_batch(batch)
        of_aborted = header.producer_id in aborting
        if header.is_control and of_aborted:
            records = _records(batch, max_uncompressed_bytes)
            if records and _is_abort_marker(records[0]):
                aborting.remove(header.producer_id)
        elif header.last_offset >= start and not (header.is_transactional and of_aborted):
            records = _records(batch, max_uncompressed_bytes)
            yield from _rows(records, header, columns, start, end, max_millis=max_millis)


def _records(batch: memoryview, max_uncompressed_bytes: int) -> list[Record]:
    if not decode_header(batch).compression:
        max_uncompressed_bytes = len(batch)
    return decode_record_batch(batch, max_uncompressed_bytes=max_uncompressed_bytes).records


def _is_abort_marker(record: Record) -> bool:
    # Only its key matters.
    marker = decode_control_record(record._replace(value=bytes(6)))
    return marker.type == ControlRecordType.ABORT


def _rows(
    records: list[Record],
    header: RecordBatchHeader,
    columns: Sequence[str],
    start: int,
    end: int,
    *,
    max_millis: int,
) -> Iterator[dict[str, Any]]:
    for record in records:
        if header.is_control or not start <= record.offset < end:
            continue
        if "timestamp" in columns and abs(record.timestamp) > max_millis:
            raise CorruptRecordError("the timestamp does not fit")
        row = {
            "key": record.key,
            "value": record.value,
            "topic": TOPIC,
            "partition": PARTITION,
            "offset": record.offset,
            "timestamp": record.timestamp * 1000,
            "timestampType": int(header.log_append_time),
            "headers": [header._asdict() for header in record.headers] or None,
        }
        yield {name: row[name] for name in columns}


def as_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the rows of a record batch; timestamps as microseconds, of which Python has fewer."""
    batch.validate(full=True)
    index = batch.schema.get_field_index("timestamp")
    if index >= 0:
        batch = batch.set_column(index, "timestamp", batch.column(index).cast("int64"))
    return batch.to_pylist()
