"""The compiled decoder of Avro payloads, compared with the interpreter, its oracle."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.avro.decoder import Decoder
from spark_kafka_sink.formats.avro.interpreter import Interpreter, MalformedError
from spark_kafka_sink.formats.avro.plan import make_plan
from spark_kafka_sink.formats.avro.schema import parse_schema
from spark_kafka_sink.record.default_record import encode_varint
from tests.support.formats.arrow_rows import rows_of
from tests.support.formats.avro_cases import make_case
from tests.support.record.reading.guarded_memory import guarded_array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_kafka_sink.formats.avro.columns import Column
    from spark_kafka_sink.formats.avro.plan import Plan
    from spark_kafka_sink.formats.columnar.batch_decoder import Output

#: Numbers that say too much, or just not too much.
_COUNTS = (-(2**63), -(2**31) - 1, -65, -1, 0, 1, 2, 64, 2**31 - 1, 2**31, 2**62, 2**63 - 1)
#: What a column may take beside its values, and their copies while buffers grow.
_COLUMN_BYTES = 500
_BYTES = (0, 1, 2, 0x7F, 0x80, 0xFF)


def compare_case(seed: int, damaged: int = 8) -> int:
    """Compare the decoders for random schemas, payloads, and so many damaged payloads.

    Returns the number of damaged payloads: none if the schemas are refused.
    """
    rng = random.Random(seed)
    case = make_case(seed, payloads=4)
    try:
        plan = make_plan(parse_schema(case.writer), parse_schema(case.reader))
    except SchemaError:
        return 0
    payloads = [*case.payloads, None]
    payloads += [damage(rng, rng.choice(case.payloads)) for _ in range(damaged)]
    rng.shuffle(payloads)
    few_bytes = rng.choice((70, 200, 1000, 1 << 20))
    compare_decoders(plan, payloads, few_bytes)
    peak = _peak_memory(Decoder(plan, few_bytes), guarded(payloads))
    assert peak <= 3 * few_bytes + _COLUMN_BYTES * _count(plan.column)
    return damaged


def _peak_memory(decoder: Decoder, payloads: Any) -> int:
    """Return the most bytes that are allocated while values are made, output by output."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    try:
        for output in decoder.decode(payloads, most_reasons=0):
            # No buffer may outlive its pool.
            del output
    finally:
        pa.set_memory_pool(before)
    return int(pool.max_memory())


def _count(column: Column) -> int:
    return 1 + sum(map(_count, column.children))


def damage(rng: random.Random, payload: bytes) -> bytes:
    """Return a payload with some other bytes, bits or numbers, or without its end."""
    data = bytearray(payload)
    while data == payload:
        _damage(rng, data)
    return bytes(data)


def _damage(rng: random.Random, data: bytearray) -> None:
    for _ in range(rng.randint(1, 3)):
        position = rng.randrange(len(data) + 1)
        match rng.randrange(6):
            case 0:
                del data[position:]
            case 1:
                data[position:position] = encode_varint(rng.choice(_COUNTS))
            case 2 if position < len(data):
                data[position : position + 1] = encode_varint(rng.choice(_COUNTS))
            case 3 if position < len(data):
                data[position] ^= 1 << rng.randrange(8)
            case 4 if position < len(data):
                data[position] = rng.choice((*_BYTES, rng.getrandbits(8)))
            case 5:
                data[position:position] = data[: rng.randrange(9)]


def compare_decoders(plan: Plan, payloads: Sequence[bytes | None], few_bytes: int) -> None:
    """Compare rows and problems, also in outputs of few bytes."""
    interpreter = Interpreter(plan)
    read, problems = [], {}
    for row, payload in enumerate(payloads):
        try:
            if payload is not None:
                interpreter.append(payload)
                read.append(row)
        except MalformedError as error:
            problems[row] = str(error)
    expected = [None] * len(payloads)
    for row, value in zip(read, interpreter.rows(), strict=True):
        expected[row] = value
    rows, found = decoded(plan, Decoder(plan), payloads)
    # NaN is not equal to itself.
    assert repr(expected) == repr(rows)
    assert problems == found
    few = Decoder(plan, few_bytes)
    rows, found = decoded(plan, few, payloads)
    for row in found:
        # A malformed payload may become too large before it is found to be malformed.
        if found[row] != problems.get(row):
            assert f"it becomes more than {few_bytes} bytes" == found[row]
            _, alone = decoded(plan, few, [payloads[row]])
            assert alone[0] in {found[row], problems.get(row)}
            expected[row] = None
    assert repr(expected) == repr(rows)
    assert {} == {row: problem for row, problem in problems.items() if row not in found}


def decoded(
    plan: Plan, decoder: Decoder, payloads: Sequence[bytes | None]
) -> tuple[list[Any], dict[int, str]]:
    """Return the rows of all outputs, and their problems."""
    rows: list[Any] = []
    problems: dict[int, str] = {}
    for output in decoder.decode(guarded(payloads)):
        output.values.validate(full=True)
        assert len(rows) == output.first
        rows += rows_of(plan.column, output.values)
        problems |= problems_of(output)
    return rows, problems


def problems_of(output: Output) -> dict[int, str]:
    """Return the malformed rows of an output, and why they are."""
    malformed = output.malformed
    return dict(zip(malformed.rows.tolist(), malformed.reasons.to_pylist(), strict=True))


def guarded(payloads: Sequence[bytes | None]) -> Any:
    """Return an array whose last byte is the last one of its memory."""
    data = b"".join(payload or b"" for payload in payloads)
    memory = guarded_array(len(data))
    memory[:] = np.frombuffer(data, np.uint8)
    array = pa.array(payloads, pa.binary())
    validity, ends, _ = array.buffers()
    buffers = [validity, ends, pa.py_buffer(memory)]
    return pa.Array.from_buffers(pa.binary(), len(array), buffers)
