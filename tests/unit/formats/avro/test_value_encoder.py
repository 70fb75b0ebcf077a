"""Single Python values as Avro: bytes, and what is wrong with a value."""

from __future__ import annotations

import datetime as dt
import io
import json
import math
from collections import OrderedDict
from decimal import Decimal
from fractions import Fraction
from uuid import UUID

import fastavro
import numpy as np
import pytest

from spark_kafka_sink.errors import PayloadError, SchemaError
from spark_kafka_sink.formats.avro.schema import parse_schema
from spark_kafka_sink.formats.avro.value_decoder import ValueDecoder
from spark_kafka_sink.formats.avro.value_encoder import ValueEncoder
from tests.support.formats.avro_cases import make_case
from tests.support.formats.encode_cases import fastavro_value, make_encode_case, without_logical

UTC = dt.UTC
ZONE = dt.timezone(dt.timedelta(hours=2))
SOME_UUID = UUID("12345678-1234-5678-1234-567812345678")


def logical(kind, logical_type, **more):
    return {"type": kind, "logicalType": logical_type, **more}


def record(*fields, name="Order"):
    return {"type": "record", "name": name, "fields": list(fields)}


def field(name, kind, **more):
    return {"name": name, "type": kind, **more}


DECIMAL = logical("bytes", "decimal", precision=5, scale=2)
FIXED_DECIMAL = logical("fixed", "decimal", precision=5, scale=2, size=3, name="D")


def encoder(schema, **more):
    return ValueEncoder(parse_schema(json.dumps(schema)), **more)


def encoded(schema, value):
    return encoder(schema).encode(value)


def by_fastavro(schema, value):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("null", None),
        ("boolean", True),
        ("int", -(2**31)),
        ("int", 2**31 - 1),
        ("long", -(2**63)),
        ("long", 2**63 - 1),
        ("float", 1.1),
        ("float", 3),
        ("double", 1.1),
        ("double", 2**53),
        ("double", float("inf")),
        ("string", "ü€𝄞"),
        ("bytes", b"\x00\xff"),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B"),
        ({"type": "array", "items": "int"}, []),
        ({"type": "array", "items": "int"}, [1, 2, 3]),
        ({"type": "map", "values": "int"}, {}),
        ({"type": "map", "values": "int"}, {"b": 1, "a": 2}),
        (logical("string", "uuid"), SOME_UUID),
        (logical("string", "uuid"), str(SOME_UUID)),
        (DECIMAL, Decimal("1.20")),
        (DECIMAL, Decimal("-1.27")),
        (DECIMAL, Decimal("999.99")),
        (DECIMAL, Decimal("0E+3")),
        (FIXED_DECIMAL, Decimal("-999.99")),
        (logical("int", "date"), dt.date(1969, 12, 31)),
        (logical("int", "date"), 17),
        (logical("int", "time-millis"), dt.time(23, 59, 59, 999_999)),
        (logical("long", "time-micros"), dt.time(23, 59, 59, 999_999)),
        (logical("long", "timestamp-millis"), dt.datetime(2026, 1, 2, 3, 4, 5, 6789, UTC)),
        (logical("long", "timestamp-millis"), dt.datetime(1969, 1, 2, 3, 4, 5, 6789, ZONE)),
        (logical("long", "timestamp-micros"), dt.datetime(1969, 1, 2, 3, 4, 5, 6789, ZONE)),
        (logical("long", "local-timestamp-millis"), dt.datetime(1969, 1, 2, 3, 4, 5, 6789)),  # noqa: DTZ001
        (logical("long", "local-timestamp-micros"), dt.datetime(2026, 1, 2, 3, 4, 5, 6789)),  # noqa: DTZ001
        (["null", "long"], None),
        (["null", "long"], 1),
        (["long", "null"], None),
        (["float", "double"], 1.5),
        (["double", "float"], 1.5),
        (["int", "float", "string", "double"], 1.5),
        (["int", "long"], 1),
        (["int", "long"], 2**40),
        (["float", "long"], 7),
        (["string", "bytes"], b"a"),
        (["bytes", "string"], "a"),
        (["null", {"type": "enum", "name": "E", "symbols": ["A"]}, "string"], "A"),
        (["null", {"type": "enum", "name": "E", "symbols": ["A"]}, "string"], "other"),
        (["string", logical("long", "timestamp-micros")], dt.datetime(2026, 1, 1, tzinfo=UTC)),
        (["string", logical("int", "date")], dt.date(2026, 1, 1)),
        (["int", {"type": "array", "items": "int"}], [1]),
        (["int", {"type": "map", "values": "int"}], {"a": 1}),
        (["int", "long"], ("long", 1)),
        ([DECIMAL, "long"], 1),
        ([DECIMAL, "long"], Decimal(1)),
        ([record(field("a", "int"), name="A"), record(field("b", "int"), name="B")], {"b": 1}),
        (
            [record(field("a", "int"), name="A"), record(field("a", "long"), name="B")],
            ("B", {"a": 1}),
        ),
        (
            [
                record(field("a", "int"), name="A"),
                record(field("a", "int"), field("b", "int", default=1), name="B"),
            ],
            {"a": 1, "b": 2},
        ),
        (record(field("id", "long"), field("n", ["null", "string"], default=None)), {"id": 1}),
        (record(field("id", "long", default=7)), {}),
        (record(field("n", ["string", "null"])), {}),
        (record(field("n", "null")), {}),
    ],
)
def test_bytes_are_those_of_fastavro(schema, value):
    """Values of each type become the bytes that Confluent's serializers write."""
    assert by_fastavro(schema, value) == encoded(schema, value)


@pytest.mark.parametrize(
    ("schema", "value", "same"),
    [
        ("int", np.int64(7), 7),
        ("double", np.float32(1.5), 1.5),
        ("double", Fraction(1, 2), 0.5),
        ("bytes", bytearray(b"a"), b"a"),
        ("bytes", memoryview(b"a"), b"a"),
        ({"type": "array", "items": "int"}, (1, 2), [1, 2]),
        ({"type": "map", "values": "int"}, OrderedDict(a=1), {"a": 1}),
        (DECIMAL, 12, Decimal(12)),
        (DECIMAL, Decimal("1.2000"), Decimal("1.2")),
        (logical("long", "timestamp-nanos"), dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), 10**9),
        (
            {"type": "long", "spark.sql.catalyst.type": "interval day to second"},
            dt.timedelta(seconds=-1),
            -(10**6),
        ),
        (logical("fixed", "uuid", size=16, name="U"), SOME_UUID, SOME_UUID.bytes),
    ],
)
def test_like_values_are_taken_too(schema, value, same):
    """They are written as the value that they stand for."""
    assert encoded(schema, same) == encoded(schema, value)


def test_decimals_have_the_fewest_bytes():
    """As in Java, where -1.28 is one byte."""
    assert b"\x02\x80" == encoded(DECIMAL, Decimal("-1.28"))


def test_a_decimal_may_have_any_number_of_zeros_at_its_end():
    """Python refuses to make an int of so many digits, of which only the first ones count."""
    assert encoded(DECIMAL, Decimal("1.2")) == encoded(DECIMAL, Decimal("1.2" + 5000 * "0"))
    with pytest.raises(PayloadError, match="digits behind the point"):
        encoded(DECIMAL, Decimal("1." + 5000 * "0" + "1"))


@pytest.mark.parametrize("schema", ["float", "double"])
def test_nan_of_numpy_is_a_float(schema):
    """It differs from itself, which is not a loss of digits."""
    assert encoded(schema, math.nan) == encoded(schema, np.float32(math.nan))


def test_bare_bytes_have_no_length():
    """Confluent's serializers leave it out behind their framing, of a whole payload only."""
    assert b"\0ab" == encoder("bytes", bare_bytes=True).encode(b"ab", b"\0")
    assert b"\x7f" == encoder(DECIMAL, bare_bytes=True).encode(Decimal("1.27"))
    inside = {"type": "array", "items": "bytes"}
    assert encoded(inside, [b"a"]) == encoder(inside, bare_bytes=True).encode([b"a"])


UNION = ["int", record(field("a", "int"), name="A"), record(field("b", "int"), name="B")]
NESTED = record(
    field("lines", {"type": "array", "items": record(field("price", "long"), name="Line")}),
    field("tags", {"type": "map", "values": "string"}, default={}),
)


@pytest.mark.parametrize(
    ("schema", "value", "path", "cause"),
    [
        ("null", 0, "value", "the value is int, but the schema has null"),
        ("boolean", 1, "value", "the value is int, but the schema has boolean"),
        ("int", True, "value", "the value is bool, but the schema has int"),
        ("int", 1.0, "value", "the value is float, but the schema has int"),
        ("int", 2**31, "value", "the value does not fit into int"),
        ("long", -(2**63) - 1, "value", "the value does not fit into long"),
        ("long", "1", "value", "the value is str, but the schema has long"),
        ("long", None, "value", "the value is null, but the schema has long without null"),
        ("float", 1e300, "value", "the value does not fit into float"),
        ("float", 2**24 + 1, "value", "the int has more digits than float"),
        ("double", 2**53 + 1, "value", "the int has more digits than double"),
        ("double", 10**400, "value", "the value does not fit into double"),
        ("double", True, "value", "the value is bool, but the schema has double"),
        ("double", "1", "value", "the value is str, but the schema has double"),
        ("string", b"a", "value", "the value is bytes, but the schema has string"),
        ("string", SOME_UUID, "value", "the value is UUID, but the schema has string"),
        ("string", "\ud800", "value", "the str has surrogates, which UTF-8 cannot encode"),
        ("bytes", "a", "value", "the value is str, but the schema has bytes"),
        (
            {"type": "fixed", "name": "F", "size": 2},
            b"abc",
            "value",
            "the value has 3 bytes, but the schema has F of 2",
        ),
        (
            {"type": "fixed", "name": "F", "size": 2},
            "ab",
            "value",
            "the value is str, but the schema has F",
        ),
        (
            {"type": "enum", "name": "E", "symbols": ["A"]},
            "B",
            "value",
            "the str is not a symbol of E",
        ),
        (
            {"type": "enum", "name": "E", "symbols": ["A"]},
            0,
            "value",
            "the value is int, but the schema has E",
        ),
        (
            {"type": "array", "items": "int"},
            "ab",
            "value",
            "the value is str, but the schema has array",
        ),
        (
            {"type": "array", "items": "int"},
            {1},
            "value",
            "the value is set, but the schema has array",
        ),
        (
            {"type": "array", "items": "int"},
            [1, "b"],
            "value[]",
            "the value is str, but the schema has int",
        ),
        (
            {"type": "map", "values": "int"},
            [],
            "value",
            "the value is list, but the schema has map",
        ),
        (
            {"type": "map", "values": "int"},
            {1: 1},
            "value{}",
            "a key of the map is int, but the schema has string",
        ),
        (DECIMAL, 1.5, "value", "the value is float, but the schema has bytes (decimal(5, 2))"),
        (DECIMAL, True, "value", "the value is bool, but the schema has bytes (decimal(5, 2))"),
        (DECIMAL, Decimal("NaN"), "value", "the decimal is not a finite number"),
        (
            DECIMAL,
            Decimal("1.001"),
            "value",
            "the decimal has more than 2 digits behind the point, which the schema has",
        ),
        (
            DECIMAL,
            Decimal("0.00001000"),
            "value",
            "the decimal has more than 2 digits behind the point, which the schema has",
        ),
        (
            DECIMAL,
            Decimal("1E-1000000"),
            "value",
            "the decimal has more than 2 digits behind the point, which the schema has",
        ),
        (
            [DECIMAL, "string"],
            1,
            "value",
            "the value is int, but the schema has a union of bytes, string",
        ),
        (DECIMAL, Decimal(1000), "value", "the value does not fit into bytes (decimal(5, 2))"),
        (
            DECIMAL,
            Decimal("1E+1000000"),
            "value",
            "the value does not fit into bytes (decimal(5, 2))",
        ),
        (
            logical("int", "date"),
            dt.datetime(2026, 1, 1, tzinfo=UTC),
            "value",
            "the value is datetime, but the schema has int (date)",
        ),
        (
            logical("int", "time-millis"),
            dt.time(1, tzinfo=UTC),
            "value",
            "the value is time, but the schema has int (time-millis)",
        ),
        (
            logical("long", "timestamp-millis"),
            dt.datetime(2026, 1, 1),  # noqa: DTZ001
            "value",
            "the datetime has no time zone, but the schema has long (timestamp-millis)",
        ),
        (
            logical("long", "local-timestamp-millis"),
            dt.datetime(2026, 1, 1, tzinfo=UTC),
            "value",
            "the datetime has a time zone, but the schema has long (local-timestamp-millis)",
        ),
        (
            logical("long", "timestamp-millis"),
            "2026",
            "value",
            "the value is str, but the schema has long (timestamp-millis)",
        ),
        (
            logical("fixed", "decimal", precision=2, scale=0, size=1, name="D"),
            Decimal(1000),
            "value",
            "the value does not fit into D (decimal(2, 0))",
        ),
        (
            ["string", "long"],
            None,
            "value",
            "the value is null, but the schema has union without null",
        ),
        (["null", "long"], "a", "value", "the value is str, but the schema has a union of long"),
        (["string", "int"], 2**40, "value", "the value does not fit into int"),
        (
            UNION,
            {"c": 1},
            "value",
            (
                "the value is dict, but the schema has a union of int, A, B, none of which has the "
                "value"
            ),
        ),
        (UNION, ("A", {"a": "x"}), "value.a", "the value is str, but the schema has int"),
        (UNION, ("C", 1), "value", "the tuple is not the name of a type of the union and a value"),
        (
            NESTED,
            {"lines": [{"price": 1}, {"price": None}]},
            "value.lines[].price",
            "the value is null, but the schema has long without null",
        ),
        (
            NESTED,
            {"lines": [], "tags": {"a": 1}},
            "value.tags{}",
            "the value is int, but the schema has string",
        ),
        (
            NESTED,
            {},
            "value.lines",
            "the field is missing, and the schema has array without a default",
        ),
        (
            NESTED,
            {"lines": [], "tag": {}},
            "value",
            "the record Order has no field 'tag'; did you mean 'tags'?",
        ),
        (NESTED, [], "value", "the value is list, but the schema has Order"),
    ],
)
def test_a_wrong_value_is_refused(schema, value, path, cause):
    """The error names the path of the field and both types, and never shows the value."""
    with pytest.raises(PayloadError) as caught:
        encoded(schema, value)
    assert (path, cause) == (caught.value.field, caught.value.cause)
    assert caught.value.advice


@pytest.mark.parametrize(
    ("schema", "advice"),
    [
        ("null", "None"),
        ("boolean", "True or False"),
        ("int", "an int"),
        ("double", "a float"),
        ("string", "a str"),
        (logical("string", "uuid"), "a str or a uuid.UUID"),
        ("bytes", "bytes"),
        ({"type": "fixed", "name": "F", "size": 16}, "bytes"),
        (logical("fixed", "uuid", name="F", size=16), "bytes or a uuid.UUID"),
        (logical("int", "date"), "a datetime.date"),
        (logical("int", "time-millis"), "a datetime.time without a time zone"),
        (logical("long", "timestamp-micros"), "a datetime.datetime with a time zone"),
        (logical("long", "local-timestamp-micros"), "a datetime.datetime without a time zone"),
        ({"type": "array", "items": "int"}, "a list"),
        ({"type": "map", "values": "int"}, "a dict"),
        (record(), "a dict"),
    ],
)
def test_the_error_says_what_to_pass(schema, advice):
    """It names the types of Python that the schema takes."""
    with pytest.raises(PayloadError) as caught:
        encoded(schema, object())
    assert f"Pass {advice}" == caught.value.advice


def test_the_wrong_value_of_an_optional_field_is_named_exactly():
    """A union with one type beside null refuses as that type does, if it may be one."""
    schema = record(field("at", ["null", "long"]), field("rest", "int"))
    with pytest.raises(PayloadError) as caught:
        encoded(schema, {"at": 2**70, "rest": 1})
    assert ("value.at", "the value does not fit into long") == (
        caught.value.field,
        caught.value.cause,
    )


def test_an_encoder_can_be_used_again_after_an_error():
    """Nothing of a refused value is left."""
    each = encoder(NESTED)
    with pytest.raises(PayloadError):
        each.encode({"lines": [{"price": 1}, {"price": "x"}]})
    assert b"\x02\x02\0\0" == each.encode({"lines": [{"price": 1}]})


def test_a_wrong_default_is_an_error_where_it_is_needed():
    """Registries keep schemas with such defaults."""
    each = encoder(record(field("id", "int", default="text")))
    assert b"\x02" == each.encode({"id": 1})
    with pytest.raises(SchemaError, match="the default of the field 'id'"):
        each.encode({})


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_payloads_of_random_schemas_are_those_of_fastavro(first):
    """Confluent's serializers use it; `test_confluent_serializer` compares with them."""
    compared = 0
    for seed in range(first, first + 100):
        case = make_encode_case(seed, plain=True)
        schema = without_logical(json.loads(case.schema))
        ours, parsed = encoder(schema), fastavro.parse_schema(schema)
        for row in case.rows:
            if row is None:
                continue
            value = fastavro_value(parse_schema(case.schema), case.array.type, row)
            assert by_fastavro(parsed, value) == ours.encode(value)
            compared += 1
    assert compared > 300


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_decoded_values_are_encoded_again(first):
    """The decoder's values of any type are what the encoder takes, and nothing is lost."""
    compared = 0
    for seed in range(first, first + 100):
        case = make_case(seed)
        schema = parse_schema(case.writer)
        decoder, ours = ValueDecoder(schema, schema), ValueEncoder(schema)
        for payload in case.payloads:
            try:
                value = decoder.decode(payload)
            except PayloadError:
                continue
            again = decoder.decode(ours.encode(value))
            # In a union of double and int, 1 is written as 1.0; NaN is not equal to itself.
            assert value == again or repr(value) == repr(again)
            compared += 1
    assert compared > 200
