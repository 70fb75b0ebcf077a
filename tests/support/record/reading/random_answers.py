"""Random answers to Fetch requests, intact or damaged, and random ways to read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_kafka_sink.record.arrow.schema import arrow_schema
from spark_kafka_sink.record.compression import CompressionType, Compressor
from tests.support.fuzzing.random_bytes import changed
from tests.support.record.plain_batches import PlainRecord, encode_record, plain_batch, varint

if TYPE_CHECKING:
    import random

LOG_APPEND_TIME = 8
TRANSACTIONAL = 16
CONTROL = 32
_TIMES = (0, 5, 1_700_000_000_000, -1, -2, 2**62, -(2**62), 9_223_372_036_854_775, 2**63 - 1)
_STRINGS = (None, b"", b"v", b"key-1", b"x" * 32, b"y" * 33, b"z" * 100, b"\x00\xff" * 80)
_NAMES = (b"", b"h", b"trace-id", b"\xed\xa0\x80", b"\xff", "größe".encode(), b"n" * 70)
_LARGE = {"key": pa.large_binary(), "value": pa.large_binary(), "topic": pa.large_string()}
#: How often more all answers are in one output: it takes longer to make one than to decode.
_MANY = 8
_LARGE_HEADERS = pa.large_list(
    pa.struct([pa.field("key", pa.large_string()), pa.field("value", pa.large_binary())])
)


@dataclass
class Reading:
    """How an answer is read."""

    schema: pa.Schema
    start: int
    end: int
    aborted: list[tuple[int, int]]
    max_rows: int
    max_bytes: int


def random_reading(random_: random.Random) -> Reading:
    """Return a random choice of columns, in any order, of the range and of the limits."""
    schema = arrow_schema(include_headers=True)
    fields = random_.sample(list(schema), random_.randint(1, len(schema)))
    if random_.random() < 0.3:
        large = _LARGE | {"headers": _LARGE_HEADERS}
        fields = [field.with_type(large.get(field.name, field.type)) for field in fields]
    return Reading(
        schema=pa.schema(fields),
        start=random_.choice((0, 0, 0, random_.randrange(30), -(2**63))),
        end=random_.choice((2**63 - 1, 2**63 - 1, random_.randrange(40))),
        aborted=[
            (random_.choice((1, 2, 3)), random_.randrange(20))
            for _ in range(random_.choice((0, 0, 1, 3, 6)))
        ],
        max_rows=random_.choice((1, 2, 7, 8, 9, *[1000] * _MANY)),
        max_bytes=random_.choice((1, 50, 300, *[1 << 20] * _MANY)),
    )


def random_answer(random_: random.Random) -> bytes:
    """Return batches with any content; some of them, or the whole answer, may be damaged."""
    batches = []
    offset = 0 if random_.random() < 0.9 else random_.choice((7, -5, 2**40, 2**63 - 40))
    for _ in range(random_.choice((0, 1, 1, 2, 3, 12))):
        batch, count = _random_batch(random_, offset)
        batches.append(batch)
        offset = min(offset + count + random_.choice((0, 0, 2)), 2**63 - 1)
    answer = b"".join(batches)
    return changed(random_, answer) if random_.random() < 0.1 else answer


def _random_batch(random_: random.Random, base_offset: int) -> tuple[bytes, int]:
    codec = random_.choice(list(CompressionType))
    attributes = random_.choice((0, 0, 0, LOG_APPEND_TIME, TRANSACTIONAL, TRANSACTIONAL | CONTROL))
    records = [_random_record(random_) for _ in range(random_.choice((0, 1, 1, 3, 10)))]
    if attributes & CONTROL and random_.random() < 0.9:
        key = random_.choice((b"\0\0\0\0", b"\0\0\0\1", b"\0\1\0\0!", b"\0\0\0"))
        records = [PlainRecord(key=key, value=bytes(6))]
    base_timestamp = records[0].timestamp if records else 0
    deltas, delta = [], -1
    for _ in records:
        delta += random_.choice((1, 1, 1, 1, 1, 2, 200))
        deltas.append(delta)
    payload = b"".join(
        _encode(random_, record, delta, base_timestamp)
        for record, delta in zip(records, deltas, strict=True)
    )
    if random_.random() < 0.15:
        payload = changed(random_, payload)
    if codec is not CompressionType.NONE:
        payload = bytes(Compressor(codec).compress(payload))
        if random_.random() < 0.03:
            payload = changed(random_, payload)
    last_delta = max(delta + random_.choice((0, 0, 0, 0, 0, 1, 3)), 0)
    batch = plain_batch(
        records,
        base_offset=base_offset,
        compression=codec,
        attributes=attributes,
        producer_id=random_.choice((-1, 1, 1, 2, 2, 4)),
        last_offset_delta=last_delta,
        max_timestamp=random_.choice(_TIMES[:4]) if random_.random() < 0.9 else 2**62,
        payload=payload,
    )
    return changed(random_, batch) if random_.random() < 0.02 else batch, last_delta + 1


def _random_record(random_: random.Random) -> PlainRecord:
    headers = tuple(
        (random_.choice(_NAMES), random_.choice(_STRINGS))
        for _ in range(random_.choice((0, 0, 0, 1, 4)))
    )
    timestamp = random_.choice(_TIMES if random_.random() < 0.05 else _TIMES[:4])
    return PlainRecord(random_.choice(_STRINGS), random_.choice(_STRINGS), timestamp, headers)


def _encode(random_: random.Random, record: PlainRecord, delta: int, base_timestamp: int) -> bytes:
    timestamp_delta = record.timestamp - base_timestamp
    if not -(2**63) <= timestamp_delta < 2**63:
        record = record._replace(timestamp=base_timestamp)
    encoded = encode_record(record, offset_delta=delta, base_timestamp=base_timestamp)
    if random_.random() < 0.02:
        # A record whose length does not match.
        return varint(random_.choice((-1, 0, 1, len(encoded), 2**31 - 1))) + encoded[1:]
    return encoded
