"""Messages with random values, and mutated bytes, all determined by a seed: the fuzzers' inputs."""

from __future__ import annotations

import struct
import uuid
from typing import TYPE_CHECKING, Any

from spark_kafka_sink.protocol.schema import (
    BOOL,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT16,
    UUID,
    Array,
    BytesType,
    RecordsType,
    String,
    Struct,
    declared_fields,
)
from spark_kafka_sink.record.compression import CompressionType
from tests.support.record.plain_batches import plain_batch

if TYPE_CHECKING:
    import random

_BITS = {INT8: 8, INT16: 16, INT32: 32, INT64: 64}
_WORDS = ["t", "t", "g", "p", "member", "", "new.topic", "..", "PLAIN", "x" * 300, "\u0000", "ü"]
_PAYLOAD = b"\0\0alice\0alice\0secret n,,n=alice,r=abc c=biws,r=abc,p=AAAA"


def random_message(random_: random.Random, cls: type, version: int, depth: int = 0) -> Any:
    """Create a message with a random value in each field of the version."""
    values: dict[str, Any] = {}
    for declared in declared_fields(cls):
        spec = declared.spec
        if version not in spec.versions:
            continue
        if spec.nullable is not None and version in spec.nullable and random_.random() < 0.15:
            values[declared.name] = None
        else:
            values[declared.name] = _value(random_, spec.type, version, depth)
    return cls(**values)


def _value(random_: random.Random, field_type: Any, version: int, depth: int) -> Any:
    match field_type:
        case Struct(message_class):
            return random_message(random_, message_class, version, depth + 1)
        case Array(element):
            count = random_.choice((0, 1, 1, 2)) if depth < 4 else 0
            return tuple(_value(random_, element, version, depth + 1) for _ in range(count))
        case String():
            return random_.choice(_WORDS)
        case RecordsType():
            return random_batch(random_)
        case BytesType():
            start = random_.randrange(len(_PAYLOAD))
            return _PAYLOAD[start : start + random_.randrange(40)]
    return _scalar(random_, field_type)


def _scalar(random_: random.Random, field_type: Any) -> Any:
    if field_type is BOOL:
        return random_.random() < 0.5
    if field_type is UUID:
        return uuid.UUID(int=random_.getrandbits(128))
    if field_type is UINT16:
        return random_.choice((0, 1, 2**16 - 1, random_.randrange(2**16)))
    bits = _BITS.get(field_type)
    if bits is None:
        return random_.random()
    top = 1 << (bits - 1)
    few = (0, 0, 0, 1, 1, 2, 3, 5, -1, -2, top - 1, -top)
    return random_.choice(few) if random_.random() < 0.9 else random_.randrange(-top, top)


def random_batch(random_: random.Random) -> bytes:
    """Create record batches of any codec, most of them intact."""
    return b"".join(
        plain_batch(
            random_.choice((0, 1, 3)),
            compression=random_.choice(list(CompressionType)),
            producer_id=random_.choice((-1, -1, 0, 1)),
            producer_epoch=random_.choice((-1, 0)),
            base_sequence=random_.choice((-1, 0, 1)),
            attributes=random_.choice((0, 0, 0, 8, 16, 32, 48)),
        )
        for _ in range(random_.choice((1, 1, 1, 2)))
    )


def changed(random_: random.Random, data: bytes) -> bytes:
    """Change a few bytes: flip, overwrite, insert, delete, repeat, cut."""
    result = bytearray(data)
    for _ in range(random_.choice((0, 1, 1, 2, 4))):
        position = random_.randrange(len(result) + 1)
        match random_.randrange(7):
            case 0 if position < len(result):
                result[position] ^= 1 << random_.randrange(8)
            case 1 if position < len(result):
                result[position] = random_.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                number = random_.choice((10**9, -1, -2, 2**31 - 1, 0, 1))
                result[position : position + 4] = struct.pack(">i", number)
            case 3:
                result[position:position] = random_.randbytes(random_.randrange(1, 9))
            case 4:
                del result[position : position + random_.randrange(1, 9)]
            case 5:
                result[position:position] = result[position : position + random_.randrange(1, 60)]
            case 6:
                del result[random_.randrange(len(result) + 1) :]
    return bytes(result)
