"""The compiled encoder of Avro payloads: bytes of the oracle, from arrays in any layout."""

from __future__ import annotations

import io
import json
import pickle
import struct
from decimal import Decimal

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import PayloadError, SchemaError
from spark_kafka_sink.formats.avro.decoder import Decoder
from spark_kafka_sink.formats.avro.encode_plan import make_encode_plan
from spark_kafka_sink.formats.avro.encoder import Encoder
from spark_kafka_sink.formats.avro.plan import make_plan
from spark_kafka_sink.formats.avro.schema import parse_schema
from spark_kafka_sink.record.default_record import encode_varint
from tests.support.formats import avro_writer
from tests.support.formats.arrow_rows import rows_of
from tests.support.formats.avro_cases import make_case
from tests.support.formats.avro_writer_oracle import rewritten_by_java
from tests.support.formats.compared_avro import problems_of
from tests.support.formats.counted_memory import counted_memory
from tests.support.formats.encode_cases import fastavro_value, make_encode_case, without_logical
from tests.support.formats.guarded_arrays import guarded

DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2}
ENUM = {"type": "enum", "name": "Color", "symbols": ["RED", "GREEN"]}
FIXED = {"type": "fixed", "name": "Code", "size": 4}


def logical(kind, name):
    """Return a schema with a logical type."""
    return {"type": kind, "logicalType": name}


def record(**fields):
    """Return a record with these types of fields."""
    return {
        "type": "record",
        "name": "R",
        "fields": [{"name": name, "type": kind} for name, kind in fields.items()],
    }


def encode(schema, array, prefix=b"", **options):
    """Return the payloads of an array by a schema that is given as a value of JSON."""
    parsed = parse_schema(json.dumps(schema))
    return Encoder(make_encode_plan(parsed, array.type), **options).encode(array, prefix)


@pytest.mark.parametrize(
    ("kind", "union", "expected"),
    [
        (pa.int32(), ["null", "int", "long"], b"\2\2"),
        (pa.int32(), ["long", "int", "null"], b"\2\2"),
        (pa.int64(), ["null", "int", "long"], b"\4\2"),
        (pa.uint32(), ["null", "int", "long"], b"\4\2"),
        (pa.int16(), ["float", "double"], b"\0\0\0\x80\x3f"),
        (pa.float32(), ["double", "float"], b"\2\0\0\x80\x3f"),
        (pa.float64(), ["float", "double"], b"\2" + struct.pack("<d", 1)),
    ],
)
def test_a_number_is_written_as_the_narrowest_of_a_union(kind, union, expected):
    """It is the first type that has all values of the column's, in any order of the branches."""
    assert [expected] == encode(union, pa.array([1], kind)).to_pylist()


def test_a_number_is_no_member_of_other_unions():
    """Those need a struct, whatever other type they have beside that of the number."""
    with pytest.raises(SchemaError, match="needs a struct of member0, member1"):
        encode(["int", "string"], pa.array([1], pa.int32()))


def oracle(case):
    """Return the payloads of a case, and the first row that has none."""
    schema = parse_schema(case.schema)
    payloads = []
    for row, value in enumerate(case.rows):
        try:
            payloads.append(
                None if value is None else avro_writer.encode(schema, case.array.type, value)
            )
        except avro_writer.RefusedError:
            return payloads, row
    return payloads, None


@given(st.integers(0, 2**32))
def test_payloads_are_those_of_the_oracle(seed):
    """Random schemas, and arrays with nulls, slices, dictionaries, runs, views, large offsets."""
    case = make_encode_case(seed)
    encoder = Encoder(make_encode_plan(parse_schema(case.schema), case.array.type))
    payloads, bad_row = oracle(case)
    if bad_row is None:
        encoded = encoder.encode(case.array, b"\0\0\0\0\7")
        encoded.validate(full=True)
        expected = [None if data is None else b"\0\0\0\0\7" + data for data in payloads]
        assert expected == encoded.to_pylist()
    else:
        with pytest.raises(PayloadError) as caught:
            encoder.encode(case.array)
        assert bad_row == caught.value.row


def written_by_fastavro(schema, value):
    """Return a payload of fastavro."""
    payload = io.BytesIO()
    fastavro.schemaless_writer(payload, schema, value)
    return payload.getvalue()


@pytest.mark.parametrize("first", range(0, 600, 100))
def test_payloads_are_those_of_fastavro(first):
    """An independent library writes the same bytes."""
    for seed in range(first, first + 100):
        case = make_encode_case(seed, plain=True)
        parsed = parse_schema(case.schema)
        schema = fastavro.parse_schema(without_logical(json.loads(case.schema)))
        encoded = Encoder(make_encode_plan(parsed, case.array.type)).encode(case.array)
        expected = [
            written_by_fastavro(schema, fastavro_value(parsed, case.array.type, row))
            for row in case.rows
            if row is not None
        ]
        assert expected == [payload for payload in encoded.to_pylist() if payload is not None]


@pytest.mark.slow
def test_payloads_are_those_of_java():
    """GenericDatumWriter writes the same bytes for the values that it reads from them."""
    cases = []
    for seed in range(1000):
        case = make_encode_case(seed)
        schema = parse_schema(case.schema)
        payloads = Encoder(make_encode_plan(schema, case.array.type)).encode(case.array)
        payloads = [payload for payload in payloads.to_pylist() if payload is not None]
        if payloads:
            cases.append((case.schema, payloads))
    assert [payloads for _, payloads in cases] == rewritten_by_java(cases)


@pytest.mark.parametrize("first", range(0, 300, 100))
def test_what_was_decoded_is_encoded_as_it_was(first):
    """Encoding what a decoder returns gives payloads that are decoded to the same rows."""
    for seed in range(first, first + 100):
        case = make_case(seed)
        schema = parse_schema(case.writer)
        decoder = Decoder(make_plan(schema, schema))
        [output] = decoder.decode(pa.array([*case.payloads, None], pa.binary()))
        if problems_of(output):
            continue
        payloads = Encoder(make_encode_plan(schema, output.values.type)).encode(output.values)
        [again] = decoder.decode(payloads)
        assert {} == problems_of(again)
        column = decoder._plan.column
        assert repr(rows_of(column, output.values)) == repr(rows_of(column, again.values))


@given(st.integers(0, 2**32))
def test_nothing_beyond_the_buffers_is_read(seed):
    """A read beyond the last byte of a column, at any level, would end this process."""
    case = make_encode_case(seed)
    payloads, bad_row = oracle(case)
    encoder = Encoder(make_encode_plan(parse_schema(case.schema), case.array.type))
    if bad_row is None:
        assert payloads == encoder.encode(guarded(case.array)).to_pylist()


@pytest.mark.parametrize(
    ("schema", "array", "cause"),
    [
        (record(a="int"), pa.array([{"a": 1}, {"a": None}]).cast(pa.struct([("a", pa.int32())])),
         "row 1, value.a: the value is null, but the schema has int without null. Fill the nulls"),
        ({"type": "array", "items": "string"}, pa.array([["a"], ["b", None]]),
         "row 1, value[]: the value is null, but the schema has string without null"),
        ({"type": "map", "values": "string"},
         pa.array([[("a", "b")], [("c", None)]], pa.map_(pa.string(), pa.string())),
         "row 1, value{}: the value is null, but the schema has string without null"),
        (record(a=record() | {"name": "I"}),
         pa.array([{"a": {}}, {"a": None}], pa.struct([("a", pa.struct([]))])),
         "row 1, value.a: the value is null, but the schema has record I without null"),
        (record(a={"type": "array", "items": "int"}),
         pa.array([{"a": []}, {"a": None}], pa.struct([("a", pa.list_(pa.int32()))])),
         "row 1, value.a: the value is null, but the schema has array without null"),
        (ENUM, pa.array(["RED", "BLUE"]),
         ("row 1, value: the string is not a symbol of enum Color. Use one of RED, GREEN, or a "
         "schema that has it")),
        (FIXED, pa.array([b"1234", b"123"]),
         "row 1, value: the value has 3 bytes, unlike fixed Code of 4 bytes. Correct its length"),
        (logical("long", "timestamp-nanos"), pa.array([0, 2**61], pa.timestamp("us", "UTC")),
         ("row 1, value: the value of timestamp[us, tz=UTC] does not fit into long "
         "(timestamp-nanos). Correct it, or use a schema with a wider type")),
        (logical("long", "time-micros"), pa.array([0, -1], pa.int64()).view(pa.time64("us")),
         "row 1, value: the value of time64[us] does not fit into long (time-micros)"),
        (logical("long", "time-micros"),
         pa.array([0, 86_400 * 10**9], pa.int64()).view(pa.time64("ns")),
         "row 1, value: the value of time64[ns] does not fit into long (time-micros)"),
        (["string", "int"],
         pa.array([{"member0": "a", "member1": 1}, {"member0": None, "member1": None}]).cast(
             pa.struct([("member0", pa.string()), ("member1", pa.int32())])),
         ("row 1, value: no member of the struct is set, but the schema has a union of string, int "
         "without null. Set one of the members")),
    ],
)  # fmt: skip
def test_the_first_row_that_the_schema_lacks_is_an_error(schema, array, cause):
    """The error names row, path of the field, types and what to do, but never the value."""
    with pytest.raises(PayloadError) as caught:
        encode(schema, array)
    assert cause == str(caught.value)[: len(cause)]
    assert 1 == caught.value.row


def test_rows_that_the_schema_lacks_are_null_and_listed_by_their_reasons():
    """The rows between them are as before, also behind lists that were not completed."""
    kind = pa.struct([("a", pa.list_(pa.string())), ("b", pa.binary())])
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "a", "type": {"type": "array", "items": "string"}},
            {"name": "b", "type": {"type": "fixed", "name": "F", "size": 2}},
        ],
    }
    rows = [
        {"a": ["x"], "b": b"12"},
        {"a": ["x", None], "b": b"12"},
        {"a": [], "b": b"1"},
        None,
        {"a": ["y" * 900, None], "b": b"12"},
        {"a": ["z"], "b": b"123"},
        {"a": None, "b": b"12"},
        {"a": ["z"] * 3, "b": b"34"},
        {"a": [], "b": b"5"},
    ]
    array = pa.array(rows, kind)
    encoder = Encoder(make_encode_plan(parse_schema(json.dumps(schema)), kind))
    payloads, failures = encoder.encode_good(array, b"p")
    payloads.validate(full=True)
    good = [None if row is None or number in {1, 2, 4, 5, 6, 8} else row
            for number, row in enumerate(rows)]  # fmt: skip
    assert encode(schema, pa.array(good, kind), b"p").to_pylist() == payloads.to_pylist()
    found = {str(failure.error).split(". ")[0]: failure.rows.tolist() for failure in failures}
    size = "value.b: the value has {} bytes, unlike fixed F of 2 bytes"
    null = "the value is null, but the schema has"
    assert {
        f"value.a[]: {null} string without null": [1, 4],
        size.format(1): [2, 8],
        size.format(3): [5],
    } == {text: rows for text, rows in found.items() if "value.a:" not in text}
    assert [[6]] == [rows for text, rows in found.items() if text.startswith(f"value.a: {null}")]
    assert all(failure.error.row is None for failure in failures)


def test_all_rows_may_be_wrong():
    """Then all payloads are null, and none of them without rows."""
    kind = pa.struct([("a", pa.int64())])
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}
    encoder = Encoder(make_encode_plan(parse_schema(json.dumps(schema)), kind))
    for count in (0, 5):
        payloads, failures = encoder.encode_good(pa.array([{"a": None}] * count, kind))
        assert [None] * count == payloads.to_pylist()
        assert count == sum(len(failure.rows) for failure in failures)


def raw(kind, *buffers, length=2):
    """Return an array of buffers that nothing has checked."""
    return pa.Array.from_buffers(kind, length, [None, *map(pa.py_buffer, buffers)])


def int32s(*numbers):
    """Return numbers as Arrow stores them."""
    return np.array(numbers, np.int32).tobytes()


@pytest.mark.parametrize(
    ("schema", "array", "row"),
    [
        ("string", raw(pa.string(), int32s(0, 9, 2), b"ab"), 0),
        ("string", raw(pa.string(), int32s(0, 2, 1, 2), b"ab", length=3), 1),
        ("string", raw(pa.string(), int32s(0, -5, 2), b"ab"), 0),
        ({"type": "array", "items": "boolean"},
         pa.Array.from_buffers(pa.list_(pa.bool_()), 2, [None, pa.py_buffer(int32s(0, 9, 1))],
                               children=[pa.array([True])]), 0),
        (ENUM, raw(pa.string(), int32s(0, 9, 2), b"ab"), 0),
        ("string", pa.DictionaryArray.from_arrays(pa.array([0, 7], pa.int8()),
                                                  pa.array(["a"]), safe=False), 1),
    ],
)  # fmt: skip
def test_a_reference_beyond_the_data_is_an_error(schema, array, row):
    """What is there might be anything of this process."""
    message = "the column refers to data outside of its buffers. Correct the buffers"
    with pytest.raises(PayloadError, match=message) as caught:
        encode(schema, array)
    assert row == caught.value.row


def test_an_imported_array_whose_last_offset_is_wrong_is_an_error():
    """Arrow's import checks no offsets."""
    offsets = np.array([0, 1, 99], np.int32)
    array = raw(pa.string(), offsets, b"x" * 99)
    offsets[2] = -5
    with pytest.raises(PayloadError, match="outside of its buffers") as caught:
        encode("string", array)
    assert 1 == caught.value.row


def test_an_array_whose_offsets_claim_gibibytes_takes_no_memory_for_them():
    """The output's first size is estimated from the data that is there."""
    offsets = np.array([0, 1, 2], np.int32)
    array = raw(pa.string(), offsets, b"ab")
    offsets[2] = 2**31 - 1
    with counted_memory() as pool, pytest.raises(PayloadError, match="outside of its buffers"):
        encode("string", array)
    assert pool.max_memory() < 10_000


def test_an_imported_list_whose_offsets_are_wrong_is_an_error():
    """The first row is named whose items are not there."""
    offsets = np.array([0, 1, 2, 2], np.int32)
    child = pa.array([1, 2], pa.int32())
    buffers = [None, pa.py_buffer(offsets)]
    array = pa.Array.from_buffers(pa.list_(pa.int32()), 3, buffers, children=[child])
    offsets[2] = 9
    with pytest.raises(PayloadError, match="outside of its buffers") as caught:
        encode({"type": "array", "items": "int"}, array)
    assert 1 == caught.value.row


def runs_of_views(ends, length):
    """Return runs of two views; the second view points nowhere."""
    beyond = np.array([99, 0, 7, 1 << 20], np.int32)
    views = np.concatenate((np.array([1, ord("a"), 0, 0], np.int32), beyond))
    values = pa.Array.from_buffers(pa.string_view(), 2, [None, pa.py_buffer(views)])
    kind = pa.run_end_encoded(pa.int32(), pa.string_view())
    children = [pa.array(ends, pa.int32()), values]
    return pa.Array.from_buffers(kind, length, [None], children=children)


@pytest.mark.parametrize(
    ("ends", "offsets", "payloads"),
    [([1, 2], [0, 0, 0], [b"\0"] * 2), ([1], [0, 0, 1], [b"\0", b"\2\2a\0"])],
    ids=["no rows", "no run"],
)
def test_values_that_no_row_has_are_not_looked_at(ends, offsets, payloads):
    """They have not been checked, and may lead anywhere."""
    array = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), runs_of_views(ends, len(ends)))
    assert payloads == encode({"type": "array", "items": "string"}, array).to_pylist()


@pytest.mark.parametrize("kind", [pa.list_view(pa.string()), pa.list_(pa.string(), 1)])
def test_lists_in_any_layout_are_encoded(kind):
    """Slices, nulls and items below nulls included."""
    array = pa.array([["a"], None, ["b"], ["c"]], kind)
    payloads = encode({"type": "array", "items": "string"}, array.slice(1, 2))
    assert [None, b"\2\2b\0"] == payloads.to_pylist()


def test_a_dictionary_of_an_extension_type_is_encoded():
    """Both only store the values in another way."""
    values = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0" * 16], pa.binary(16)))
    array = pa.DictionaryArray.from_arrays(pa.array([0, None, 0]), values)
    assert [b"\x20" + b"0" * 16, None] == encode("bytes", array.slice(0, 2)).to_pylist()


def test_a_string_must_be_utf8():
    """A reader would refuse or change it; what is below a null is not looked at."""
    array = raw(pa.string(), int32s(0, 1, 3), b"a\xc3\x28")
    with pytest.raises(PayloadError, match=r"^row 1, value: the string is not UTF-8\. Correct it"):
        encode("string", array)
    hidden = pa.Array.from_buffers(pa.string(), 2, [pa.py_buffer(b"\1"), *array.buffers()[1:]])
    assert [b"\2a", None] == encode("string", hidden).to_pylist()


@pytest.mark.parametrize(
    ("number", "data"),
    [
        (0, b"\0"),
        (127, b"\x7f"),
        (128, b"\0\x80"),
        (-1, b"\xff"),
        (-128, b"\x80"),
        (-129, b"\xff\x7f"),
        (2**63 - 1, (2**63 - 1).to_bytes(8, "big")),
        (2**63, b"\0" + (2**63).to_bytes(8, "big")),
        (-(2**63), b"\x80" + bytes(7)),
        (-(2**63) - 1, b"\xff\x7f" + b"\xff" * 7),
        (2**64, b"\1" + bytes(8)),
        (10**38 - 1, (10**38 - 1).to_bytes(16, "big")),
        (1 - 10**38, (1 - 10**38).to_bytes(16, "big", signed=True)),
    ],
)
def test_a_decimal_has_as_few_bytes_as_javas(number, data):
    """BigInteger.toByteArray gives the shortest number in two's complement."""
    value = Decimal(number).scaleb(-2) if abs(number) < 10**20 else None
    digits = tuple(map(int, str(abs(number))))
    value = Decimal((int(number < 0), digits, -2))
    array = pa.array([value], pa.decimal128(38, 2))
    assert [bytes([2 * len(data)]) + data] == encode(DECIMAL, array).to_pylist()


@pytest.mark.parametrize("number", [10**38, -(10**38), 2**127 - 1, -(2**127)])
def test_a_decimal_with_more_digits_than_its_type_is_an_error(number):
    """Arrow does not check the numbers in its buffers."""
    array = raw(pa.decimal128(38, 2), number.to_bytes(16, "little", signed=True), length=1)
    with pytest.raises(
        PayloadError, match=r"decimal128\(38, 2\) does not fit into decimal\(38, 2\)"
    ):
        encode(DECIMAL, array)


@pytest.mark.parametrize(
    ("unit", "name", "number", "written"),
    [
        ("us", "timestamp-millis", -1, -1),
        ("us", "timestamp-millis", 1999, 1),
        ("us", "timestamp-millis", -2000, -2),
        ("ns", "timestamp-micros", -1, -1),
        ("s", "timestamp-nanos", 9, 9 * 10**9),
        ("us", None, 1999, 1),
    ],
)
def test_a_timestamp_is_cut_off_towards_the_past(unit, name, number, written):
    """So does Spark, which also writes milliseconds where the schema has only a long."""
    schema = logical("long", name) if name else "long"
    array = pa.array([number], pa.timestamp(unit, "UTC"))
    assert encode("long", pa.array([written])).to_pylist() == encode(schema, array).to_pylist()


@pytest.mark.parametrize(
    ("number", "written"),
    [((2**63 - 1) // 1000, 2**63 - 1 - 807), (-(2**63) // 1000 + 1, -(2**63) + 808)],
)
def test_a_timestamp_is_written_if_its_unit_has_it(number, written):
    """The last one has less than a millisecond to the end of a long."""
    schema, kind = logical("long", "timestamp-micros"), pa.timestamp("ms", "UTC")
    expected = encode("long", pa.array([written])).to_pylist()
    assert expected == encode(schema, pa.array([number], kind)).to_pylist()
    beyond = number + (1 if number > 0 else -1)
    with pytest.raises(PayloadError, match="does not fit into long"):
        encode(schema, pa.array([beyond], kind))


def test_the_first_member_that_is_set_is_written():
    """So does Spark; without one, the union's null is written."""
    members = [pa.array(["a", None, None]), pa.array([1, 2, None], pa.int32())]
    array = pa.StructArray.from_arrays(members, ["member0", "member1"])
    payloads = encode(["int", "null", "string"], members_swapped(array))
    assert [b"\0\2", b"\0\4", b"\2"] == payloads.to_pylist()
    assert [b"\4\2a", b"\0\4", b"\2"] == encode(
        ["int", "null", "string"], only_text(array)
    ).to_pylist()


def members_swapped(array):
    """Return a struct whose first member is the second one."""
    return pa.StructArray.from_arrays([array.field(1), array.field(0)], ["member0", "member1"])


def only_text(array):
    """Return a struct whose numbers are null where there is a text."""
    numbers = pa.array([None, 2, None], pa.int32())
    return pa.StructArray.from_arrays([numbers, array.field(0)], ["member0", "member1"])


def test_rows_that_are_null_as_a_whole_remain_null():
    """They are tombstones, also where the schema has a branch for null."""
    array = pa.array([None, "a", None]).slice(1)
    assert [b"1\2\2a", None] == encode(["null", "string"], array, b"1").to_pylist()
    assert [None, None] == encode("int", pa.nulls(2)).to_pylist()
    assert [] == encode("int", pa.array([], pa.int32())).to_pylist()


@pytest.mark.parametrize(
    ("kind", "schema"), [(pa.string_view(), "string"), (pa.binary_view(), "bytes")], ids=str
)
def test_views_of_nulls_are_not_followed(kind, schema):
    """They may be anything, also of a size that would end this process."""
    views = b"".join(struct.pack("<iiii", size, 0x61616161, 0, 0) for size in (2, -(2**30), 4))
    array = pa.Array.from_buffers(kind, 3, [pa.py_buffer(b"\5"), pa.py_buffer(views)])
    for rows in (array, array.slice(1), pa.DictionaryArray.from_arrays([0, 1, 2], array)):
        expected = [b"\4aa", None, b"\x08aaaa"]
        assert expected[-len(rows) :] == encode(schema, rows).to_pylist()


def test_a_prefix_of_any_length_is_before_each_payload():
    """Framing has five bytes, or many."""
    for length in (0, 1, 5, 31, 32, 33, 500):
        prefix = bytes(range(250)) * 2
        encoded = encode("int", pa.array([1, None, 2], pa.int32()), prefix[:length])
        assert [prefix[:length] + b"\2", None, prefix[:length] + b"\4"] == encoded.to_pylist()


def test_the_output_grows():
    """Constants, texts, lists and decimals of any size are written whole."""
    large = {"type": "fixed", "name": "F", "size": 300, "logicalType": "decimal", "precision": 9}
    schema = record(lists={"type": "array", "items": "long"}, text="string", number=large)
    schema["fields"].append({"name": "gone", "type": "string", "default": "d" * 1000})
    numbers = [2**62] * 2000
    array = pa.array(
        [{"lists": numbers, "text": "t" * 5000, "number": Decimal(-7)}] * 20,
        pa.struct(
            [("lists", pa.list_(pa.int64())), ("text", pa.string()), ("number", pa.decimal128(9))]
        ),
    )
    row = {"lists": numbers, "text": "t" * 5000, "number": Decimal(-7)}
    expected = avro_writer.encode(parse_schema(json.dumps(schema)), array.type, row)
    assert [expected] * 20 == encode(schema, array).to_pylist()


def test_an_output_above_the_limit_is_an_error():
    """Offsets of 32 bits have 2 GiB; the error names the row that does not fit."""
    message = "^row 9: the payloads of the batch have more than 100 bytes. Write fewer rows at once"
    with pytest.raises(PayloadError, match=message):
        encode("string", pa.array(["ten letter"] * 20), most_bytes=100)
    assert 9 == len(encode("string", pa.array(["ten letter"] * 9), most_bytes=100))


def test_extension_types_are_encoded_as_their_storage():
    """A uuid of Arrow is sixteen bytes."""
    array = pa.array([b"0123456789abcdef"], pa.uuid())
    schema = {"type": "fixed", "name": "F", "size": 16, "logicalType": "uuid"}
    assert [b"0123456789abcdef"] == encode(schema, array).to_pylist()


@pytest.mark.parametrize(
    "other", [pa.array([1], pa.int32()), pa.chunked_array([[1]]), pa.scalar(1), [1]]
)
def test_an_array_of_another_type_is_refused(other):
    """The kernel would take its buffers for those of the plan's type."""
    encoder = Encoder(make_encode_plan(parse_schema('"long"'), pa.int64()))
    with pytest.raises(TypeError, match="the plan is for arrays of int64, not "):
        encoder.encode(other)


def test_a_copied_encoder_encodes():
    """Addresses are those of the copy's own memory."""
    schema = parse_schema(json.dumps(record(a="int", b=ENUM)))
    kind = pa.struct([("a", pa.int32()), ("b", pa.string())])
    copied = pickle.loads(pickle.dumps(Encoder(make_encode_plan(schema, kind))))  # noqa: S301
    assert [b"\2\2"] == copied.encode(pa.array([{"a": 1, "b": "GREEN"}], kind)).to_pylist()


@pytest.mark.parametrize(
    ("array", "payload"),
    [
        (pa.array([b"abc"]), b"abc"),
        (pa.array([b""], pa.large_binary()), b""),
        (pa.array([b"x" * 500]), b"x" * 500),
    ],
)
def test_bare_bytes_have_no_length(array, payload):
    """Confluent's serializers write so behind their framing, for this schema only."""
    for schema, length in (("bytes", b""), (["null", "bytes"], encode_varint(len(payload)))):
        plan = make_encode_plan(parse_schema(json.dumps(schema)), array.type, bare_bytes=True)
        branch = b"" if schema == "bytes" else b"\2"
        assert [b"1" + branch + length + payload] == Encoder(plan).encode(array, b"1").to_pylist()


def test_a_bare_decimal_has_no_length():
    """It is a value of bytes, too."""
    array = pa.array([Decimal("-1.29"), None], pa.decimal128(38, 2))
    plan = make_encode_plan(parse_schema(json.dumps(DECIMAL)), array.type, bare_bytes=True)
    assert [b"\xff\x7f", None] == Encoder(plan).encode(array).to_pylist()
