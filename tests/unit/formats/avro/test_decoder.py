"""The compiled decoder of Avro payloads: rows of the interpreter, in Arrow, within limits."""

from __future__ import annotations

import json
import random

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.avro.decoder import MOST_BYTES, Decoder
from spark_kafka_sink.formats.avro.defaults import zigzag
from spark_kafka_sink.formats.avro.interpreter import MOST_ITEMS, Interpreter, MalformedError
from spark_kafka_sink.formats.avro.plan import make_plan
from spark_kafka_sink.formats.avro.schema import parse_schema
from tests.support.formats.arrow_rows import rows_of
from tests.support.formats.avro_cases import make_case
from tests.support.record.reading.guarded_memory import guarded_array

LONG_ARRAY = {"type": "array", "items": "long"}
STRING_ARRAY = {"type": "array", "items": "string"}


def plan(writer, reader=None):
    """Return the plan for two schemas given as values of JSON, the same one without a reader."""
    reader = writer if reader is None else reader
    return make_plan(parse_schema(json.dumps(writer)), parse_schema(json.dumps(reader)))


def decode(schema, payloads, **options):
    """Return what a decoder makes of payloads."""
    return list(Decoder(plan(schema), **options).decode(pa.array(payloads, pa.binary())))


def changed(rng, payload):
    """Return a payload with some other bytes, or without its end."""
    if rng.random() < 0.3:
        return payload[: rng.randrange(len(payload) + 1)]
    data = bytearray(payload)
    for _ in range(rng.randint(1, 3)):
        if data:
            data[rng.randrange(len(data))] = rng.choice(
                [0, 1, 2, 0x7F, 0x80, 0xFF, rng.getrandbits(8)]
            )
    return bytes(data)


def guarded(payloads):
    """Return an array whose last byte is the last one of its memory."""
    data = b"".join(payload or b"" for payload in payloads)
    memory = guarded_array(len(data))
    memory[:] = np.frombuffer(data, np.uint8)
    array = pa.array(payloads, pa.binary())
    validity, ends, _ = array.buffers()
    buffers = [validity, ends, pa.py_buffer(memory)]
    return pa.Array.from_buffers(pa.binary(), len(array), buffers)


def check_case(seed):
    """Compare the decoder with the interpreter, for good payloads and malformed ones."""
    rng = random.Random(seed)
    case = make_case(seed, payloads=4)
    try:
        made = make_plan(parse_schema(case.writer), parse_schema(case.reader))
    except SchemaError:
        return
    payloads = [*case.payloads, None, *(changed(rng, data) for data in case.payloads * 2)]
    rng.shuffle(payloads)
    expected, problems = [], {}
    for row, payload in enumerate(payloads):
        interpreter = Interpreter(made)
        expected.append(None)
        try:
            if payload is not None:
                interpreter.append(payload)
                expected[-1] = interpreter.rows()[0]
        except MalformedError as error:
            problems[row] = str(error)
    # The interpreter gives up earlier.
    long = [row for row, problem in problems.items() if problem.startswith("it has more than")]
    payloads = [None if row in long else payload for row, payload in enumerate(payloads)]
    [output] = Decoder(made).decode(guarded(payloads))
    output.values.validate(full=True)
    assert {
        row: problem for row, problem in problems.items() if row not in long
    } == output.malformed
    rows = rows_of(made.column, output.values)
    if not made.column.nullable:
        rows = [None if value is None else row for value, row in zip(expected, rows, strict=True)]
    # NaN is not equal to itself.
    assert repr(expected) == repr(rows), case


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_rows_and_errors_are_those_of_the_interpreter(first):
    """Random schemas, evolved ones, and payloads that were damaged, at the end of their memory."""
    for seed in range(first, first + 100):
        check_case(seed)


@pytest.mark.slow
@pytest.mark.soak
def test_100_000_damaged_payloads_give_the_interpreters_rows_and_errors():
    """Never a crash, a hang or a wrong row."""
    for seed in range(1_000, 14_000):
        check_case(seed)


def test_the_bytes_before_a_value_are_skipped():
    """A payload that is shorter than its frame is malformed."""
    payloads = pa.array([b"12345\2", b"1234", b"12345", b"12345\4", None], pa.binary())
    [output] = Decoder(plan("int", ["null", "int"])).decode(payloads, skipped=5)
    assert [1, None, None, 2, None] == output.values.to_pylist()
    assert {
        1: "it has fewer than 5 bytes",
        2: "a value of 1 bytes is longer than the payload",
    } == output.malformed


def test_a_slice_is_decoded_as_such():
    """An array that begins in the middle of its buffers has only its own rows."""
    payloads = pa.array([b"\2", None, b"\4", b"\6", b"\x08"], pa.binary()).slice(1, 3)
    [output] = Decoder(plan("int", ["null", "int"])).decode(payloads)
    assert [None, 2, 3] == output.values.to_pylist()
    assert {} == output.malformed


@pytest.mark.parametrize("payloads", [[], [None, None]])
def test_arrays_without_payloads_are_decoded(payloads):
    """An array without rows gives no output, one of nulls only gives nulls."""
    outputs = decode(["null", "int"], payloads)
    assert [payloads] * bool(payloads) == [output.values.to_pylist() for output in outputs]


def test_a_repeated_key_of_a_map_keeps_its_last_value():
    """So do Java's maps; other maps of the batch, and nulls, remain as they are."""
    schema = ["null", {"type": "map", "values": STRING_ARRAY}]

    def payload(*entries):
        items = b"".join(
            zigzag(len(key))
            + key
            + zigzag(len(value))
            + b"".join(zigzag(1) + v for v in value)
            + b"\0"
            if value
            else zigzag(len(key)) + key + b"\0"
            for key, value in entries
        )
        return b"\2" + zigzag(len(entries)) + items + b"\0"

    rows = [
        payload((b"a", [b"1"]), (b"b", [b"2"]), (b"a", [b"3", b"4"])),
        b"\0",
        payload((b"a", [b"5"]), (b"b", [])),
        payload((b"b", [b"6"]), (b"b", [b"7"]), (b"b", [b"8"])),
    ]
    [output] = decode(schema, rows)
    output.values.validate(full=True)
    assert [
        [("a", ["3", "4"]), ("b", ["2"])],
        None,
        [("a", ["5"]), ("b", [])],
        [("b", ["8"])],
    ] == output.values.to_pylist()


def test_buffers_grow_with_lists_and_texts():
    """Rows before and after one that needs more room are unchanged."""
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "list", "type": {"type": "array", "items": ["null", LONG_ARRAY]}},
            {"name": "enum", "type": {"type": "enum", "name": "E", "symbols": ["A" * 500]}},
        ],
    }
    payload = b"\4\2" + zigzag(300) + b"\2" * 300 + b"\0\0\0\0"
    [output] = decode(schema, [b"\0\0", payload, b"\0\0", payload] * 100)
    output.values.validate(full=True)
    full = {"list": [[1] * 300, None], "enum": "A" * 500}
    empty = {"list": [], "enum": "A" * 500}
    assert [empty, full] * 200 == output.values.to_pylist()


def test_an_output_above_the_limit_is_divided():
    """The rows are those of the batch, in their order; each output is about the limit."""
    symbol = "A" * 1000
    payloads = [b"\0", None, b"\2"] * 1000
    schema = {"type": "enum", "name": "E", "symbols": [symbol]}
    outputs = list(
        Decoder(plan(schema, ["null", schema]), most_bytes=100_000).decode(
            pa.array(payloads, pa.binary())
        )
    )
    assert [symbol, None, None] * 1000 == [
        v for output in outputs for v in output.values.to_pylist()
    ]
    firsts = [output.first for output in outputs]
    assert np.cumsum([0, *(len(output.values) for output in outputs)]).tolist()[:-1] == firsts
    assert 10 < len(outputs) < 60
    assert list(range(2, 3000, 3)) == [row for output in outputs for row in output.malformed]


def test_a_row_above_the_limit_is_malformed():
    """One row that becomes larger than an output is refused, and the others are not."""
    outputs = decode(
        ["null", {"type": "array", "items": {"type": "enum", "name": "E", "symbols": ["A" * 100]}}],
        [b"\2\2\0\0", b"\2" + zigzag(2000) + b"\0" * 2001, b"\2\2\0\0"],
        most_bytes=50_000,
    )
    assert [["A" * 100], None, ["A" * 100]] == [v for o in outputs for v in o.values.to_pylist()]
    [(row, problem)] = [item for output in outputs for item in output.malformed.items()]
    assert (1, "it becomes more than 50000 bytes") == (row, problem)


@pytest.mark.parametrize("items", ["null", {"type": "record", "name": "I", "fields": []}])
def test_items_without_bytes_count_against_the_limit(items):
    """A payload of ten bytes says that it has 2^62 items."""
    [output] = decode(["null", {"type": "array", "items": items}], [b"\2" + zigzag(2**62) + b"\0"])
    assert {0: f"it becomes more than {MOST_BYTES} bytes"} == output.malformed


def test_the_problem_of_a_payload_with_very_many_items_is_that():
    """The interpreter, which knows the problem, would take minutes for fifty million items."""
    schema = ["null", {"type": "array", "items": "null"}]
    [output] = decode(schema, [b"\2" + zigzag(2 * MOST_ITEMS) + b"\0\0"])
    assert {0: f"it has more than {MOST_ITEMS} items"} == output.malformed
    [output] = decode(schema, [b"\2" + zigzag(2 * MOST_ITEMS) + b"\0"])
    assert 2 * MOST_ITEMS == len(output.values[0])


def test_many_columns_are_decoded_in_several_outputs():
    """Where a row has many columns, an output begins with fewer rows than the batch has."""
    fields = [{"name": f"f{number}", "type": "double"} for number in range(1000)]
    schema = {"type": "record", "name": "R", "fields": fields}
    outputs = decode(schema, [bytes(8000)] * 100, most_bytes=100_000)
    assert 100 == sum(len(output.values) for output in outputs)
    assert 7 < len(outputs) < 20
    assert all(0.0 == value for output in outputs for value in output.values[0].as_py().values())


@pytest.mark.parametrize(
    ("payload", "value"),
    [
        (b"", "0"),
        (b"\x05", "5"),
        (b"\xfb", "-5"),
        (b"\0" * 20 + b"\x05", "5"),
        (b"\xff" * 20 + b"\xfb", "-5"),
        ((10**38 - 1).to_bytes(16, "big"), "9" * 38),
        ((1 - 10**38).to_bytes(16, "big", signed=True), "-" + "9" * 38),
        ((10**38).to_bytes(16, "big"), None),
        ((-(10**38)).to_bytes(16, "big", signed=True), None),
        ((-(2**127)).to_bytes(16, "big", signed=True), None),
        ((2**127).to_bytes(17, "big", signed=True), None),
        ((-(2**127) - 1).to_bytes(17, "big", signed=True), None),
        ((2**64).to_bytes(9, "big"), str(2**64)),
        ((-(2**64)).to_bytes(9, "big", signed=True), str(-(2**64))),
    ],
)
def test_decimals_of_any_length_are_decoded(payload, value):
    """Leading bytes that only repeat the sign do not count; 38 digits are the most."""
    schema = {"type": "bytes", "logicalType": "decimal", "precision": 38}
    [output] = decode(["null", schema], [b"\2" + zigzag(len(payload)) + payload])
    [decoded] = output.values.to_pylist()
    assert value == (None if decoded is None else str(decoded))


def test_lists_can_be_in_a_hundred_lists():
    """The deepest schema that there can be has its levels counted."""
    schema, payload = "int", b"\2"
    for _ in range(100):
        schema, payload = {"type": "array", "items": schema}, b"\2" + payload + b"\0"
    [output] = decode(schema, [payload])
    value = output.values.to_pylist()[0]
    for _ in range(100):
        [value] = value
    assert 1 == value
