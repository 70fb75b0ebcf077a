"""Fuzz targets for the compiled decoder and encoder of Avro, compared with interpreter and oracle.

The columns that are encoded may be malformed: what refers beyond an array must be an error.
"""

from __future__ import annotations

import ctypes
import json
import struct
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_kafka_sink.errors import PayloadError, SchemaError
from spark_kafka_sink.formats.avro.encode_plan import make_encode_plan
from spark_kafka_sink.formats.avro.encoder import Encoder
from spark_kafka_sink.formats.avro.interpreter import Interpreter
from spark_kafka_sink.formats.avro.plan import make_plan
from spark_kafka_sink.formats.avro.schema import parse_schema
from tests.support.formats import avro_writer
from tests.support.formats.avro_cases import make_case
from tests.support.formats.compared_avro import compare_decoders, damage
from tests.support.formats.encode_cases import make_encode_case, without_logical

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from spark_kafka_sink.formats.avro.plan import Plan

#: The schemas are made from this many seeds, so that inputs which differ meet the same one.
_SCHEMAS = 500
#: The payloads of one input.
_PAYLOADS = 6
#: The types with offsets or views.
_TEXTS = ("string", "large_string", "binary", "large_binary")


class AvroTarget:
    """Payloads of Avro; the first bytes choose the schemas and the size of the outputs."""

    name = "avro"

    def make(self, random_: random.Random) -> bytes:
        """Return several payloads, most of them damaged, each preceded by its size."""
        seed = random_.randrange(_SCHEMAS)
        payloads = make_case(seed, payloads=_PAYLOADS).payloads
        payloads = [
            damage(random_, payload) if random_.random() < 0.8 else payload for payload in payloads
        ]
        return struct.pack(">HB", seed, random_.randrange(256)) + b"".join(
            struct.pack(">H", len(payload)) + payload for payload in payloads
        )

    def take(self, data: bytes) -> None:
        """Decode the payloads with the compiled decoder and the interpreter."""
        if len(data) < 3:
            return
        seed, few_bytes = struct.unpack_from(">HB", data)
        plan = _plan(seed % _SCHEMAS)
        if plan is not None:
            compare_decoders(plan, split_payloads(data[3:]), 32 << few_bytes % 16)


class AvroEncoderTarget:
    """Columns of Arrow in any layout; the first bytes are the seed that makes one.

    Each four bytes more change a byte of what the column refers with: which buffer, where, and to
    what. Values are not changed.
    """

    name = "avroencoder"

    def make(self, random_: random.Random) -> bytes:
        """Return a seed and, half of the time, some changes."""
        return seed_and_changes(random_)

    def take(self, data: bytes) -> None:
        """Encode the column, compare the payloads with the oracle's, and decode them again."""
        case = make_encode_case(int.from_bytes(data[:4], "big"))
        schema = parse_schema(case.schema)
        try:
            encoder = Encoder(make_encode_plan(schema, case.array.type))
        except SchemaError:
            return
        expected, is_refused = [], False
        try:
            for row in case.rows:
                payload = None if row is None else avro_writer.encode(schema, case.array.type, row)
                expected.append(payload)
        except avro_writer.RefusedError:
            is_refused = True
        is_changed = change_references(case.array, data[4:])
        try:
            encoded = encoder.encode(case.array)
        except PayloadError:
            if not is_changed and not is_refused:
                raise
            return
        encoded.validate(full=True)
        payloads = encoded.to_pylist()
        if not is_changed and (is_refused or payloads != expected):
            raise RuntimeError(f"{payloads} instead of {expected}")
        # Without logical types, since numbers may be beyond what these can be read as.
        plain = parse_schema(json.dumps(without_logical(json.loads(case.schema))))
        interpreter = Interpreter(make_plan(plain, plain))
        for payload in payloads:
            if payload is not None:
                interpreter.append(payload)


def seed_and_changes(random_: random.Random) -> bytes:
    """Return the input of an encoder: a seed and, half of the time, some changes."""
    changes = random_.choice((0, 0, 1, 2))
    return random_.randbytes(4) + random_.randbytes(4 * changes)


def change_references(array: pa.Array, changes: bytes) -> bool:
    """Change offsets, indices, views or ends of runs in place; return whether there are any."""
    buffers = [buffer for buffer in _referring(array) if buffer is not None and buffer.size]
    for start in range(0, len(changes) - 3, 4):
        which, position, value = struct.unpack_from(">BHB", changes, start)
        if buffers:
            buffer = buffers[which % len(buffers)]
            ctypes.memset(buffer.address + position % buffer.size, value, 1)
    return bool(buffers) and len(changes) >= 4


def _referring(array: pa.Array) -> Iterator[pa.Buffer | None]:
    """Yield the buffers whose numbers say where values are, at all levels."""
    kind = array.type
    if pa.types.is_struct(kind):
        for number in range(kind.num_fields):
            yield from _referring(array.field(number))
    elif pa.types.is_dictionary(kind):
        yield array.indices.buffers()[1]
        yield from _referring(array.dictionary)
    elif pa.types.is_run_end_encoded(kind):
        yield array.run_ends.buffers()[1]
        yield from _referring(array.values)
    elif pa.types.is_map(kind):
        yield array.buffers()[1]
        yield from _referring(array.keys)
        yield from _referring(array.items)
    elif pa.types.is_nested(kind):
        yield array.buffers()[1]
        if pa.types.is_list_view(kind):
            yield array.buffers()[2]
        yield from _referring(array.values)
    elif not pa.types.is_fixed_size_binary(kind) and (
        "string" in str(kind) or "binary" in str(kind)
    ):
        yield array.buffers()[1]


@lru_cache(_SCHEMAS)
def _plan(seed: int) -> Plan | None:
    case = make_case(seed, payloads=0)
    try:
        return make_plan(parse_schema(case.writer), parse_schema(case.reader))
    except SchemaError:
        return None


def split_payloads(data: bytes) -> list[bytes | None]:
    """Return a null, and payloads that are preceded by their sizes."""
    payloads: list[bytes | None] = [None]
    while len(data) >= 2 and len(payloads) <= _PAYLOADS:
        (size,) = struct.unpack_from(">H", data)
        payloads.append(data[2 : 2 + size])
        data = data[2 + size :]
    return payloads
