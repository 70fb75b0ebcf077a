"""Rows for the sink: as Arrow batches to write, and as the records that consumers must read.

A `Row` holds the values of a user's row. `arrow_batch` converts rows to an Arrow batch as Spark or
another program might, and `expected_records` returns what Kafka must contain afterwards. Rows with
keys are partitioned by kafka-python's murmur2, so that the sink's own is not tested against itself.
"""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from tests.support.kafka.readers import Record, murmur2

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TIMESTAMP = pa.timestamp("us", tz="UTC")


class Row(NamedTuple):
    """A row of a DataFrame; `timestamp` is in microseconds, as in Spark."""

    key: bytes | None = None
    value: bytes | None = None
    headers: list[tuple[str, bytes | None]] | None = None
    timestamp: int | None = None
    partition: int | None = None
    topic: str | None = None


def arrow_batch(
    rows: Sequence[Row],
    *,
    columns: Iterable[str] = ("key", "value", "headers", "timestamp", "partition"),
    types: dict[str, pa.DataType] | None = None,
) -> pa.RecordBatch:
    """Convert rows to an Arrow batch with the given columns; `types` overrides default types."""
    default_types = {
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": HEADERS,
        "timestamp": TIMESTAMP,
        "partition": pa.int32(),
        "topic": pa.string(),
    }
    all_types = default_types | (types or {})
    arrays = {}
    for name in columns:
        values = [getattr(row, name) for row in rows]
        if name == "headers":
            values = [
                None if value is None else [{"key": k, "value": v} for k, v in value]
                for value in values
            ]
        plain = pa.array(values, default_types[name])
        arrays[name] = plain if plain.type == all_types[name] else plain.cast(all_types[name])
    return pa.record_batch(arrays)


def batches_of(rows: Sequence[Row], size: int, **layout: object) -> Iterator[pa.RecordBatch]:
    """Convert rows to batches of `size` rows or fewer."""
    for start in range(0, len(rows), size):
        yield arrow_batch(rows[start : start + size], **layout)


def place(row: Row, partitions: int) -> int:
    """Return the partition of a row that has a partition or a key."""
    if row.partition is not None:
        return row.partition
    assert row.key is not None
    return (murmur2(row.key) & 0x7FFFFFFF) % partitions


def expected_records(rows: Iterable[Row], topic: str, partitions: int) -> list[Record]:
    """Return what a topic that was empty must contain, by partition and offset.

    Each row needs a key or a partition, and a timestamp.
    """
    offsets = [itertools.count() for _ in range(partitions)]
    records = []
    for row in rows:
        partition = place(row, partitions)
        assert row.timestamp is not None
        record = Record(
            topic=topic,
            partition=partition,
            offset=next(offsets[partition]),
            timestamp=row.timestamp // 1000,
            key=row.key,
            value=row.value,
            headers=tuple(row.headers or ()),
        )
        records.append(record)
    return sorted(records, key=lambda record: (record.partition, record.offset))


def mixed_rows(count: int, partitions: int, *, now_ms: int, seed: int = 7) -> list[Row]:
    """Create rows of every kind: null, empty, long, repeated, not ASCII, at various times."""
    chance = random.Random(seed)

    def text() -> bytes | None:
        kind = chance.random()
        if kind < 0.1:
            return None
        if kind < 0.2:
            return b""
        if kind < 0.25:
            return chance.randbytes(chance.randrange(5000))
        return f"grüße-{chance.randrange(1000)}".encode()

    def headers() -> list[tuple[str, bytes | None]] | None:
        kind = chance.random()
        if kind < 0.4:
            return None
        names = ("trace", "trace", "größe", "")
        return [(chance.choice(names), text()) for _ in range(chance.randrange(4))]

    rows = []
    for _ in range(count):
        key = text()
        rows.append(
            Row(
                key=key,
                value=text(),
                headers=headers(),
                timestamp=(now_ms - chance.randrange(10**9)) * 1000 + chance.randrange(1000),
                partition=chance.randrange(partitions)
                if key is None or chance.random() < 0.3
                else None,
            )
        )
    return rows
