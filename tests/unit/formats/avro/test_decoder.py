"""The compiled decoder of Avro payloads: rows of the interpreter, in Arrow, within limits."""

from __future__ import annotations

import json
import pickle
import random

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.avro.decoder import Decoder
from spark_kafka_sink.formats.avro.interpreter import Interpreter, MalformedError
from spark_kafka_sink.formats.avro.plan import MOST_EMPTY_ITEMS, make_plan
from spark_kafka_sink.formats.avro.schema import parse_schema
from spark_kafka_sink.record.default_record import encode_varint
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
    [output] = Decoder(made).decode(guarded(payloads))
    output.values.validate(full=True)
    assert problems == output.malformed
    rows = rows_of(made.column, output.values)
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
            encode_varint(len(key))
            + key
            + encode_varint(len(value))
            + b"".join(encode_varint(1) + v for v in value)
            + b"\0"
            if value
            else encode_varint(len(key)) + key + b"\0"
            for key, value in entries
        )
        return b"\2" + encode_varint(len(entries)) + items + b"\0"

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
    payload = b"\4\2" + encode_varint(300) + b"\2" * 300 + b"\0\0\0\0"
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
        [b"\2\2\0\0", b"\2" + encode_varint(2000) + b"\0" * 2001, b"\2\2\0\0"],
        most_bytes=50_000,
    )
    assert [["A" * 100], None, ["A" * 100]] == [v for o in outputs for v in o.values.to_pylist()]
    [(row, problem)] = [item for output in outputs for item in output.malformed.items()]
    assert (1, "it becomes more than 50000 bytes") == (row, problem)


@pytest.mark.parametrize("items", ["null", {"type": "record", "name": "I", "fields": []}])
def test_items_without_bytes_count_against_the_limit(items):
    """A payload of ten bytes says that it has 2^62 items."""
    [output] = decode(
        ["null", {"type": "array", "items": items}], [b"\2" + encode_varint(2**62) + b"\0"]
    )
    assert {0: f"it has more than {MOST_EMPTY_ITEMS} items without bytes"} == output.malformed


def test_items_without_bytes_count_in_all_blocks():
    """So many are read in one block or several, and one more is too many."""
    schema = {"type": "array", "items": "null"}
    half = encode_varint(MOST_EMPTY_ITEMS // 2)
    [output] = decode(schema, [half + half + b"\0", half + half + b"\2\0"])
    assert MOST_EMPTY_ITEMS == len(output.values[0])
    assert {1: f"it has more than {MOST_EMPTY_ITEMS} items without bytes"} == output.malformed


@pytest.mark.parametrize("skipped", ["null", {"type": "fixed", "name": "F", "size": 0}])
def test_a_skipped_list_of_items_without_bytes_is_not_visited(skipped):
    """There may be 2^62 of them, also in a record."""
    items = {"type": "record", "name": "I", "fields": [{"name": "x", "type": skipped}]}
    fields = [{"name": "gone", "type": {"type": "array", "items": items}}]
    fields.append({"name": "a", "type": "int"})
    writer = {"type": "record", "name": "R", "fields": fields}
    reader = {"type": "record", "name": "R", "fields": fields[1:]}
    payloads = pa.array([encode_varint(2**61) + b"\0\2"], pa.binary())
    [output] = Decoder(plan(writer, reader)).decode(payloads)
    assert [{"a": 1}] == output.values.to_pylist()


def test_a_block_of_more_items_than_bytes_is_refused_at_once():
    """Every item that has bytes takes one at least."""
    schema = {"type": "array", "items": "boolean"}
    [output] = decode(schema, [encode_varint(2**61) + b"\1\0"])
    assert {0: f"a block of {2**61} items is longer than the payload"} == output.malformed


def test_a_missing_or_malformed_payload_is_null_whatever_the_schema_says():
    """A tombstone is no record of zeros."""
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    [output] = decode(schema, [b"\2", None, b"", b"\6"])
    assert [{"a": 1}, None, None, {"a": 3}] == output.values.to_pylist()
    assert [2] == list(output.malformed)


def test_two_batches_can_be_decoded_by_turns():
    """A generator that is not exhausted keeps its own place."""
    schema = {"type": "enum", "name": "E", "symbols": ["A" * 1000, "B" * 1000]}
    decoder = Decoder(plan(schema), most_bytes=50_000)
    first = decoder.decode(pa.array([b"\0"] * 100, pa.binary()))
    second = decoder.decode(pa.array([b"\2"] * 70, pa.binary()))
    rows = [[*next(first).values.to_pylist()], [*next(second).values.to_pylist()]]
    rows[0] += [value for output in first for value in output.values.to_pylist()]
    rows[1] += [value for output in second for value in output.values.to_pylist()]
    assert [["A" * 1000] * 100, ["B" * 1000] * 70] == rows


def test_a_copied_decoder_decodes():
    """Addresses are those of the copy's own memory."""
    pickled = pickle.dumps(Decoder(plan({"type": "enum", "name": "E", "symbols": ["A"]})))
    decoder = pickle.loads(pickled)  # noqa: S301
    [output] = decoder.decode(pa.array([b"\0"], pa.binary()))
    assert ["A"] == output.values.to_pylist()


@pytest.mark.parametrize("other", [pa.large_binary(), pa.binary_view(), pa.binary(1), pa.string()])
def test_payloads_of_another_type_are_refused(other):
    """The kernel would take their buffers for offsets of 32 bits."""
    with pytest.raises(TypeError, match="payloads are an array of binary, not "):
        list(Decoder(plan("int")).decode(pa.nulls(2, other)))


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
    [output] = decode(["null", schema], [b"\2" + encode_varint(len(payload)) + payload])
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
