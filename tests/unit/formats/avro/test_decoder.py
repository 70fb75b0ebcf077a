"""The compiled decoder of Avro payloads: rows of the interpreter, in Arrow, within limits."""

from __future__ import annotations

import itertools
import json
import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.formats.avro import decoder as decoder_module
from spark_kafka_sink.formats.avro.decoder import Decoder
from spark_kafka_sink.formats.avro.plan import MOST_EMPTY_ITEMS, make_plan
from spark_kafka_sink.formats.avro.problems import worded
from spark_kafka_sink.formats.avro.schema import parse_schema
from spark_kafka_sink.record.default_record import encode_varint
from tests.support.formats.compared_avro import compare_case, problems_of
from tests.support.formats.counted_memory import counted_memory

LONG_ARRAY = {"type": "array", "items": "long"}
STRING_ARRAY = {"type": "array", "items": "string"}


def plan(writer, reader=None):
    """Return the plan for two schemas given as values of JSON, the same one without a reader."""
    reader = writer if reader is None else reader
    return make_plan(parse_schema(json.dumps(writer)), parse_schema(json.dumps(reader)))


def decode(schema, payloads, **options):
    """Return what a decoder makes of payloads."""
    return list(Decoder(plan(schema), **options).decode(pa.array(payloads, pa.binary())))


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_rows_and_errors_are_those_of_the_interpreter(first):
    """Random schemas, evolved ones, and payloads that were damaged, at the end of their memory."""
    for seed in range(first, first + 100):
        compare_case(seed)


@pytest.mark.slow
@pytest.mark.soak
def test_100_000_damaged_payloads_give_the_interpreters_rows_and_errors():
    """Never a crash, a hang, a wrong row, or memory beyond the bound."""
    damaged = 0
    for seed in itertools.count(1_000):
        damaged += compare_case(seed)
        if damaged >= 100_000:
            break


def test_the_bytes_before_a_value_are_skipped():
    """A payload that is shorter than its frame is malformed."""
    payloads = pa.array([b"12345\2", b"1234", b"12345", b"12345\4", None], pa.binary())
    [output] = Decoder(plan("int", ["null", "int"])).decode(payloads, skipped=5)
    assert [1, None, None, 2, None] == output.values.to_pylist()
    assert {
        1: "it has fewer than 5 bytes",
        2: "a value of 1 bytes is longer than the payload",
    } == problems_of(output)


def test_a_slice_is_decoded_as_such():
    """An array that begins in the middle of its buffers has only its own rows."""
    payloads = pa.array([b"\2", None, b"\4", b"\6", b"\x08"], pa.binary()).slice(1, 3)
    [output] = Decoder(plan("int", ["null", "int"])).decode(payloads)
    assert [None, 2, 3] == output.values.to_pylist()
    assert {} == problems_of(output)


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


def text(data):
    """Return a string of Avro."""
    return encode_varint(len(data)) + data


def record(*fields, name="R"):
    """Return a record with these pairs of names and types as fields."""
    fields = [{"name": key, "type": schema} for key, schema in fields]
    return {"type": "record", "name": name, "fields": fields}


def values_of(outputs):
    """Return the values of outputs, one behind the other."""
    return [value for output in outputs for value in output.values.to_pylist()]


def problems_of_all(outputs):
    """Return the problems of outputs."""
    return {row: problem for output in outputs for row, problem in problems_of(output).items()}


@pytest.fixture
def calls(monkeypatch):
    """Return a list that gets an item for each call of the kernel."""
    calls = []

    def counted(*arguments):
        calls.append(1)
        return decode_payloads(*arguments)

    decode_payloads = decoder_module.decode_payloads
    monkeypatch.setattr(decoder_module, "decode_payloads", counted)
    return calls


def test_an_output_above_the_limit_is_divided():
    """The rows are those of the batch, in their order; no output is above the limit."""
    symbol = "A" * 1000
    payloads = [b"\0", None, b"\2"] * 1000
    schema = {"type": "enum", "name": "E", "symbols": [symbol]}
    outputs = list(
        Decoder(plan(schema, ["null", schema]), most_bytes=100_000).decode(
            pa.array(payloads, pa.binary())
        )
    )
    assert [symbol, None, None] * 1000 == values_of(outputs)
    firsts = [output.first for output in outputs]
    assert np.cumsum([0, *(len(output.values) for output in outputs)]).tolist()[:-1] == firsts
    assert 10 < len(outputs) < 15
    assert 100_000 >= max(output.values.nbytes for output in outputs)
    assert list(range(2, 3000, 3)) == list(problems_of_all(outputs))


def test_a_row_above_the_limit_is_malformed():
    """One row that becomes larger than an output is refused, and the others are not."""
    outputs = decode(
        ["null", {"type": "array", "items": {"type": "enum", "name": "E", "symbols": ["A" * 100]}}],
        [b"\2\2\0\0", b"\2" + encode_varint(2000) + b"\0" * 2001, b"\2\2\0\0"],
        most_bytes=50_000,
    )
    assert [["A" * 100], None, ["A" * 100]] == values_of(outputs)
    assert {1: "it becomes more than 50000 bytes"} == problems_of_all(outputs)


@pytest.mark.parametrize("before", [0, 1, 900])
def test_whether_a_row_is_too_large_does_not_depend_on_the_rows_before(before):
    """A row of just the limit is decoded wherever it stands, and one of a byte more is not."""
    # A byte for the struct, which may be null, and one more with four of an offset for each text.
    schema = record(("a", "string"), ("b", "string"))
    fits, too_large = b"a" * (9_992), b"a" * (9_993)
    small = text(b"x") + text(b"yz")
    rows = [small] * before + [text(fits) + text(b""), small, text(b"") + text(too_large), small]
    outputs = decode(schema, rows, most_bytes=10_001)
    expected = [{"a": "x", "b": "yz"}] * (before + 3)
    expected[before : before + 2] = [{"a": fits.decode(), "b": ""}, {"a": "x", "b": "yz"}, None]
    assert expected == values_of(outputs)
    assert {before + 2: "it becomes more than 10001 bytes"} == problems_of_all(outputs)
    assert 10_001 >= max(output.values.nbytes for output in outputs)


def test_a_null_that_costs_more_than_an_output_is_null():
    """A tombstone is not malformed, however many columns a null is in."""
    schema = record(*((f"f{number}", "double") for number in range(100)))
    outputs = decode(schema, [None, bytes(800), None], most_bytes=500)
    assert [None, None, None] == values_of(outputs)
    assert {1: "it becomes more than 500 bytes"} == problems_of_all(outputs)


def test_a_malformed_payload_in_an_output_of_its_own_has_its_own_problem():
    """It is not called too large, though its null is."""
    schema = record(*((f"f{number}", "double") for number in range(100)))
    outputs = decode(schema, [bytes(7)], most_bytes=500)
    assert {0: "f0: a value of 8 bytes is longer than the payload"} == problems_of_all(outputs)


@pytest.mark.parametrize("items", [90, 110, 150, 190, 300])
@pytest.mark.parametrize("before", [0, 40, 90])
def test_the_reason_of_a_row_does_not_depend_on_the_rows_before(items, before):
    """A row that is too large before it is malformed is too large, whatever there is room for."""
    symbols = {"type": "enum", "name": "E", "symbols": ["A" * 95]}
    schema = record(("list", {"type": "array", "items": symbols}), ("flag", "boolean"))

    def row(count, flag):
        return encode_varint(count) + b"\0" * count + b"\0" * (count > 0) + flag

    rows = [row(1, b"\1")] * before + [row(items, b"\2"), row(1, b"\1")]
    outputs = decode(schema, rows, most_bytes=10_000)
    fits = items * 100 < 10_000
    reason = "flag: a boolean is 2" if fits else "it becomes more than 10000 bytes"
    assert {before: reason} == problems_of_all(outputs)
    assert [
        None if number == before else {"list": ["A" * 95], "flag": True}
        for number in range(len(rows))
    ] == values_of(outputs)


def test_items_without_bytes_whose_defaults_are_large_are_bounded():
    """A payload of four bytes would become ten gigabytes."""
    fields = [{"name": "note", "type": "string", "default": "x" * 100_000}]
    reader = {"type": "record", "name": "I", "fields": fields}
    made = plan({"type": "array", "items": record()}, {"type": "array", "items": reader})
    payloads = [
        encode_varint(count) + b"\0" * (count > 0) for count in (1, MOST_EMPTY_ITEMS, 30, 0, 2)
    ]
    with counted_memory() as pool:
        outputs = list(Decoder(made, most_bytes=4_000_000).decode(pa.array(payloads)))
        assert [1, None, 30, 0, 2] == [
            None if items is None else len(items) for items in values_of(outputs)
        ]
        assert {1: "it becomes more than 4000000 bytes"} == problems_of_all(outputs)
        del outputs
    assert 3 * 4_000_000 > pool.max_memory()


@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        (STRING_ARRAY, encode_varint(500_000) + b"\2a" * 500_000 + b"\0"),
        (record(("a", "string"), ("b", "bytes")), text(b"a" * 900_000) + text(b"b" * 900_000)),
        (
            {"type": "map", "values": "int"},
            encode_varint(20_000)
            + b"".join(text(b"%d" % key) + b"\2" for key in range(20_000))
            + b"\0",
        ),
    ],
)
def test_no_more_than_twice_the_limit_is_allocated(schema, payload):
    """Growing buffers, and outputs that are full, remain below it, whatever the rows become."""
    made = Decoder(plan(schema), most_bytes=4_000_000)
    payloads = pa.array([payload] * 20, pa.binary())
    with counted_memory() as pool:
        for output in made.decode(payloads):
            assert 4_000_000 >= output.values.nbytes
            del output  # so that what is counted is one output
    assert 2 * 4_000_000 + 10_000 >= pool.max_memory()


@pytest.mark.parametrize(("schema", "rows"), [("boolean", 500), (["null", "boolean"], 500)])
def test_a_flag_takes_a_byte_until_it_is_a_bit(schema, rows):
    """Beside another one for whether it is null, as the value of a payload may be."""
    payload = b"\1" if schema == "boolean" else b"\2\1"
    outputs = decode(schema, [payload] * 1200, most_bytes=1000)
    assert [rows, rows, 1200 - 2 * rows] == [len(output.values) for output in outputs]


def test_what_is_expected_of_other_rows_counts_as_allocated():
    """A text does not grow to the double if room for many rows was allocated before."""
    schema = record(*((name, "string") for name in "abcde"))
    rows = [text(b"a" * 33_000) + b"\0" * 4] * 120 + [b"\0" * 5] * 50_000
    payloads = pa.array(rows, pa.binary())
    with counted_memory() as pool:
        outputs = [len(each.values) for each in Decoder(plan(schema), 4_000_000).decode(payloads)]
    assert len(rows) == sum(outputs)
    assert 2 * 4_000_000 + 10_000 >= pool.max_memory()


@pytest.mark.parametrize(
    ("schema", "before", "behind", "value"),
    [
        ("string", b"", b"", "b"),
        (STRING_ARRAY, b"\4" + text(b"a" * 100), b"\0", ["a" * 100, "b"]),
    ],
)
def test_a_text_above_the_limit_is_refused_before_memory_for_it_is_allocated(
    schema, before, behind, value
):
    """Its length says that it cannot fit, whatever of the row is there already."""
    texts = [b"a" * 10_000_000, b"b"]
    payloads = pa.array([before + text(each) + behind for each in texts], pa.binary())
    with counted_memory() as pool:
        outputs = list(Decoder(plan(schema), most_bytes=1_000_000).decode(payloads))
    assert [None, value] == values_of(outputs)
    assert 2_000_000 > pool.max_memory()


def test_the_buffers_of_an_output_are_as_large_as_what_is_in_them():
    """What a batch was expected to need is not held by its arrays."""
    writer = record(("a", "string"), ("skipped", "bytes"), ("b", LONG_ARRAY))
    reader = record(("a", "string"), ("b", LONG_ARRAY))
    row = text(b"abc") + text(bytes(100_000)) + b"\2\2\0"
    [output] = Decoder(plan(writer, reader)).decode(pa.array([row] * 10, pa.binary()))
    assert [{"a": "abc", "b": [1]}] * 10 == output.values.to_pylist()
    assert 500 > output.values.get_total_buffer_size()


def test_buffers_grow_twofold_and_the_row_goes_on(calls):
    """A thousand records of a thousand numbers: no row is begun again, and calls are few."""
    items = {"type": "array", "items": record(("n", LONG_ARRAY), ("t", "string"))}
    item = encode_varint(1000) + b"\2" * 1000 + b"\0" + b"\2x"
    [output] = decode(items, [encode_varint(1000) + item * 1000 + b"\0"])
    assert [[{"n": [1] * 1000, "t": "x"}] * 1000] == output.values.to_pylist()
    # The logarithms of 1,000,000 longs, 1,000 structs and lists, and 1,000 texts and their bytes.
    assert 60 > len(calls)


def test_items_without_bytes_cannot_pass_the_limits_of_offsets():
    """Items that take no memory are counted as one byte, since offsets count them."""
    [first, *_] = outputs = decode(
        {"type": "array", "items": "null"},
        [encode_varint(MOST_EMPTY_ITEMS) + b"\0"] * 25,
        most_bytes=10 * MOST_EMPTY_ITEMS,
    )
    assert 9 == len(first.values)
    assert 25 == sum(len(output.values) for output in outputs)


@pytest.mark.parametrize("most", [0, 2**30])
def test_the_limit_of_an_output_is_below_a_gibibyte(most):
    """Offsets have 32 bits."""
    with pytest.raises(ValueError, match=f"most_bytes is a number from 1 to 2.30 - 1, not {most}"):
        Decoder(plan("int"), most_bytes=most)
    assert Decoder(plan("int"), most_bytes=2**30 - 1)


PATHS = record(
    ("orders", {"type": "array", "items": record(("price", "string"), ("n", "boolean"), name="O")}),
    ("tags", {"type": "map", "values": ["null", record(("x", "int"), name="T")]}),
    ("e", {"type": "enum", "name": "E", "symbols": ["A"]}),
)


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (b"\2\2\xff\0\0\0\0", "orders[].price: a string is not UTF-8"),
        (b"\2\2a\3\0\0\0", "orders[].n: a boolean is 3"),
        (b"\x10\2a\1\2a\1", "orders: a block of 8 items is longer than the payload"),
        (b"\2\2a\1\x7f", "orders: a value of 1 bytes is longer than the payload"),
        (b"\0\2\2\xff\0\0\0", "tags{}: a string is not UTF-8"),
        (b"\0\2\2a\6\0\0", "tags{}: the union has no branch 3"),
        (b"\0\2\2a\2\xff\xff\xff\xff\xff\1", "tags{}.x: a number has more bits than its type"),
        (b"\0\0\2", "e: the enum has no symbol 1"),
        (b"\0\0\0\0", "bytes are left behind the value"),
    ],
)
def test_a_problem_has_the_path_of_its_field(payload, problem):
    """Fields, items of lists and of maps; in a value that has a name, the path begins with it."""
    [output] = decode(PATHS, [payload])
    assert {0: problem} == problems_of(output)
    [output] = decode(PATHS, [payload], value="key")
    path, separator, rest = problem.rpartition(": ")
    named = f"key.{path}: {rest}" if separator else f"key: {rest}"
    assert {0: named} == problems_of(output)


def test_a_problem_of_a_skipped_field_has_the_writers_name():
    """The reader does not have the field, but what is wrong is in it."""
    writer = record(("old", {"type": "array", "items": record(("x", "boolean"), name="I")}))
    [output] = Decoder(plan(writer, record())).decode(pa.array([b"\2\5\0"], pa.binary()))
    assert {0: "old[].x: a boolean is 5"} == problems_of(output)


def test_a_problem_of_a_default_is_that_of_the_constant():
    """A default beyond the range of its column is not looked for in the payload."""
    field = {"name": "t", "type": {"type": "long", "logicalType": "timestamp-millis"}}
    reader = {"type": "record", "name": "R", "fields": [field | {"default": 2**62}]}
    [output] = Decoder(plan(record(), reader)).decode(pa.array([b""], pa.binary()))
    assert {0: "t: a timestamp is beyond the range of microseconds"} == problems_of(output)


def test_a_long_path_is_shortened():
    """A hundred levels with long names have the end of their path in the text."""
    schema = "boolean"
    for number in range(50):
        schema = record((f"field_with_a_long_name_{number}", schema), name=f"R{number}")
    [output] = decode(schema, [b"\2"], value="value")
    path, _, problem = problems_of(output)[0].partition(": ")
    assert ("a boolean is 2", "value...") == (problem, path[:8])
    assert path.endswith(".field_with_a_long_name_1.field_with_a_long_name_0")
    assert 210 > len(path)


def test_malformed_rows_cost_neither_calls_nor_texts_of_their_own(calls, monkeypatch):
    """The kernel goes on behind them, and a problem is worded once for all rows that have it."""
    texts = []

    def counted(problem, detail=""):
        texts.append(problem)
        return worded(problem, detail)

    monkeypatch.setattr(decoder_module, "worded", counted)
    good = encode_varint(1000) + b"\2" * 1000
    [output] = decode(LONG_ARRAY, [good + b"\0", good + b"\1", good + b"\0\0"] * 500)
    problems = {
        first + row: problem
        for first in range(0, 1500, 3)
        for row, problem in (
            (1, "a value of 1 bytes is longer than the payload"),
            (2, "bytes are left behind the value"),
        )
    }
    assert problems == problems_of(output)
    assert 2 == len(texts)
    assert 30 > len(calls)


def test_as_many_reasons_are_given_as_are_wanted():
    """Where the first malformed row ends a read, the others have no texts."""
    payloads = pa.array([b"\2", b"", b"\2\2", b""], pa.binary())
    [output] = Decoder(plan("int")).decode(payloads, most_reasons=1)
    assert {1: "a value of 1 bytes is longer than the payload"} == problems_of(output)
    assert [1, None, None, None] == output.values.to_pylist()


ENTRIES = st.lists(
    st.tuples(
        st.sampled_from(["", "a", "b", "ab", "abcdefgh", "abcdefgi", "abcdefghi", "ü" * 9])
        | st.text(max_size=3),
        st.integers(-3, 3),
    ),
    max_size=40,
)


@given(st.lists(ENTRIES, max_size=6))
def test_maps_have_the_last_value_of_each_key(rows):
    """Whatever the number and length of the keys, at the place of the first entry."""
    payloads = [
        (encode_varint(len(row)) if row else b"")
        + b"".join(text(key.encode()) + encode_varint(value) for key, value in row)
        + b"\0"
        for row in rows
    ]
    outputs = decode({"type": "map", "values": "int"}, payloads)
    assert [list(dict(row).items()) for row in rows] == values_of(outputs)


def test_a_map_of_many_keys_is_decoded_without_comparing_each_with_all():
    """Keys are found by their hashes, and a repeated one is found too."""
    entries = [f"key {number}".encode() for number in range(100_000)] + [b"key 77"]
    payload = encode_varint(len(entries)) + b"".join(text(key) + b"\2" for key in entries) + b"\0"
    [output] = decode({"type": "map", "values": "int"}, [payload])
    assert 100_000 == len(output.values[0])


@pytest.mark.parametrize("items", ["null", {"type": "record", "name": "I", "fields": []}])
def test_items_without_bytes_count_against_the_limit(items):
    """A payload of ten bytes says that it has 2^62 items."""
    [output] = decode(
        ["null", {"type": "array", "items": items}], [b"\2" + encode_varint(2**62) + b"\0"]
    )
    assert {0: f"it has more than {MOST_EMPTY_ITEMS} items without bytes"} == problems_of(output)


def test_items_without_bytes_count_in_all_blocks():
    """So many are read in one block or several, and one more is too many."""
    schema = {"type": "array", "items": "null"}
    half = encode_varint(MOST_EMPTY_ITEMS // 2)
    [output] = decode(schema, [half + half + b"\0", half + half + b"\2\0"])
    assert MOST_EMPTY_ITEMS == len(output.values[0])
    assert {1: f"it has more than {MOST_EMPTY_ITEMS} items without bytes"} == problems_of(output)


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
    assert {0: f"a block of {2**61} items is longer than the payload"} == problems_of(output)


def test_a_missing_or_malformed_payload_is_null_whatever_the_schema_says():
    """A tombstone is no record of zeros."""
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    [output] = decode(schema, [b"\2", None, b"", b"\6"])
    assert [{"a": 1}, None, None, {"a": 3}] == output.values.to_pylist()
    assert {2: "a: a value of 1 bytes is longer than the payload"} == problems_of(output)


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
        (b"", None),
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
