"""Types of columns and the writer's schema: what matches, and what an error says."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.avro.encode_plan import make_encode_plan
from spark_kafka_sink.formats.avro.encoder import Encoder
from spark_kafka_sink.formats.avro.plan import MOST_OPERATIONS
from spark_kafka_sink.formats.avro.schema import Fixed, Union, parse_schema
from spark_kafka_sink.record.default_record import encode_varint

DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
ENUM = {"type": "enum", "name": "shop.Color", "symbols": ["RED", "GREEN"]}
FIXED = {"type": "fixed", "name": "Code", "size": 4}


def plan(schema, arrow_type):
    """Return the plan for a schema that is given as a value of JSON."""
    return make_encode_plan(parse_schema(json.dumps(schema)), arrow_type)


def record(*fields, name="shop.Order"):
    """Return a record, whose fields are pairs of name and type, or objects."""
    return {
        "type": "record",
        "name": name,
        "fields": [
            field if isinstance(field, dict) else {"name": field[0], "type": field[1]}
            for field in fields
        ],
    }


def logical(kind, name):
    """Return a schema with a logical type."""
    return {"type": kind, "logicalType": name}


@pytest.mark.parametrize(
    ("arrow_type", "schema", "message"),
    [
        (pa.int64(), "int", "has type int64, and the schema int, which does not have all"),
        (pa.int64(), "double", "has type int64, and the schema double"),
        (pa.int32(), "float", "has type int32, and the schema float"),
        (pa.uint32(), "int", "has type uint32, and the schema int"),
        (pa.uint64(), "long", "has type uint64, and the schema long"),
        (pa.float64(), "float", "has type double, and the schema float"),
        (pa.float32(), "long", "has type float, and the schema long"),
        (pa.bool_(), "int", "has type bool, and the schema int"),
        (pa.int8(), "boolean", "has type int8, and the schema boolean"),
        (pa.string(), "bytes", "has type string, and the schema bytes"),
        (pa.binary(), "string", "has type binary, and the schema string"),
        (pa.binary(), ENUM, "has type binary, and the schema enum shop.Color"),
        (pa.string(), FIXED, "has type string, and the schema fixed Code"),
        (pa.binary(3), FIXED, r"fixed_size_binary\[3\], .* fixed Code of 4 bytes, which has 4"),
        (pa.decimal128(9, 3), DECIMAL, r"decimal128\(9, 3\), and the schema decimal\(9, 2\)"),
        (pa.decimal128(10, 2), DECIMAL, r"decimal128\(10, 2\), and the schema decimal\(9, 2\)"),
        (pa.decimal256(50, 2), DECIMAL | {"precision": 60}, r"decimal256\(50, 2\)"),
        (pa.decimal128(9, 2), "double", r"decimal128\(9, 2\), and the schema double"),
        (pa.int64(), DECIMAL, r"int64, and the schema decimal\(9, 2\)"),
        (
            pa.timestamp("us"),
            logical("long", "timestamp-micros"),
            r"timestamp\[us\], .* which does not have timestamps without a time zone",
        ),
        (
            pa.timestamp("us", "UTC"),
            logical("long", "local-timestamp-millis"),
            "which does not have timestamps with a time zone",
        ),
        (pa.timestamp("us", "UTC"), "int", "and the schema int"),
        (pa.time64("us"), logical("int", "time-millis"), r"time64\[us\]"),
        (pa.time64("us"), "long", r"time64\[us\]"),
        (pa.date32(), "long", r"date32\[day\]"),
        (pa.date32(), logical("int", "time-millis"), r"date32\[day\]"),
        (pa.duration("us"), logical("long", "timestamp-micros"), r"duration\[us\]"),
        (pa.duration("us"), "string", r"duration\[us\]"),
        (pa.month_day_nano_interval(), "long", "month_day_nano_interval"),
        (
            pa.string(),
            record(("a", "int")),
            "the schema record shop.Order, which needs a struct. Cast the column, or use",
        ),
        (pa.binary(), "long", "which does not have all its values. Cast the column, or use"),
        (
            pa.binary(),
            record(("a", "int")),
            "needs a struct. Pass the struct itself, not its bytes",
        ),
        (pa.struct([("a", pa.int32())]), "string", "and the schema string"),
        (pa.list_(pa.int64()), {"type": "array", "items": "int"}, r"\[\]' has type int64"),
        (
            pa.map_(pa.int32(), pa.int32()),
            {"type": "map", "values": "int"},
            "the schema map, which has strings as keys",
        ),
        (
            pa.map_(pa.string(), pa.int64()),
            {"type": "map", "values": "int"},
            r"\{\}' has type int64",
        ),
        (pa.string(), "null", "has type string, and the schema null"),
        (
            pa.string(),
            ["null", "string", "int"],
            "the schema union of null, string, int, which needs a struct of member0, member1",
        ),
        (
            pa.struct([("member0", pa.string()), ("member2", pa.int32())]),
            ["string", "int"],
            "which needs a struct of member0, member1",
        ),
        (pa.float64(), ["int", "long"], "which needs a struct of member0, member1"),
    ],
)
def test_a_type_whose_values_the_schema_lacks_is_refused(arrow_type, schema, message):
    """The error names the path of the column and both types."""
    with pytest.raises(SchemaError, match=f"^Avro: column 'value.*{message}"):
        plan(schema, arrow_type)


@pytest.mark.parametrize(
    ("columns", "fields", "message"),
    [
        (
            ["prise"],
            [("price", "int")],
            (
                "Avro: column 'value.prise' has no field in the record shop.Order; the nearest is "
                "'price'. Drop or rename the column, or use a schema that has the field"
            ),
        ),
        (
            ["zzz"],
            [],
            "Avro: column 'value.zzz' has no field in the record shop.Order. Drop",
        ),
        (
            ["prise"],
            [("price", "int"), ("prise", "int")],
            (
                "Avro: column 'value' has no column for the field 'price' (int) of shop.Order, "
                "which has neither a default nor null; the nearest is 'prise'. Add the column"
            ),
        ),
        (
            ["price", "Price"],
            [("price", "int")],
            (
                "Avro: column 'value.Price' has no field in the record shop.Order; the nearest is "
                "'price'. Drop"
            ),
        ),
        (
            ["PRICE", "Price"],
            [("price", "int")],
            (
                "Avro: column 'value' has PRICE, Price for price of shop.Order, which differ in "
                "case. Name them exactly as the fields"
            ),
        ),
        (
            ["PRICE"],
            [("price", "int"), ("Price", "int")],
            (
                "Avro: column 'value' has PRICE for price, Price of shop.Order, which differ in "
                "case. Name them exactly as the fields"
            ),
        ),
        (
            ["price", "price"],
            [("price", "int")],
            "Avro: column 'value' has two columns 'price'. Drop or rename one of them",
        ),
    ],
)
def test_columns_and_fields_that_do_not_match_are_refused(columns, fields, message):
    """The error names the column, the field, and the nearest name if one is near."""
    with pytest.raises(SchemaError) as caught:
        plan(record(*fields), pa.struct([pa.field(name, pa.int32()) for name in columns]))
    assert message == str(caught.value)[: len(message)]


def test_a_column_may_differ_from_its_field_in_case():
    """An exact name takes precedence over another."""
    schema = record(("a", "int"), ("B", "int"), ("c", "int"))
    array = pa.array([{"C": 3, "a": 1, "b": 2}])
    array = array.cast(pa.struct([("C", pa.int32()), ("a", pa.int32()), ("b", pa.int32())]))
    assert [b"\2\4\6"] == Encoder(plan(schema, array.type)).encode(array).to_pylist()


@pytest.mark.parametrize(
    ("field", "payload"),
    [
        ({"type": "int", "default": 5}, encode_varint(5)),
        ({"type": ["null", "int"]}, b"\0"),
        ({"type": ["int", "null"]}, b"\2"),
        ({"type": ["int", "null"], "default": 7}, b"\0" + encode_varint(7)),
        ({"type": "null"}, b""),
        ({"type": {"type": "array", "items": "int"}, "default": [1, 2]}, b"\4\2\4\0"),
        ({"type": "string", "default": "x" * 100}, encode_varint(100) + b"x" * 100),
    ],
)
def test_a_field_without_a_column_takes_its_default_else_null(field, payload):
    """Without a default, an optional field is null."""
    schema = record({"name": "gone"} | field, ("a", "int"))
    array = pa.array([{"a": 1}, {"a": 2}], pa.struct([("a", pa.int32())]))
    encoded = Encoder(plan(schema, array.type)).encode(array)
    assert [payload + b"\2", payload + b"\4"] == encoded.to_pylist()


def test_a_wrong_default_is_an_error_only_if_it_is_needed():
    """Registries keep schemas whose defaults are wrong."""
    schema = record({"name": "a", "type": "int", "default": "text"})
    plan(schema, pa.struct([("a", pa.int32())]))
    with pytest.raises(SchemaError, match="the default of the field 'a' is no value"):
        plan(schema, pa.struct([]))


def test_a_plan_that_would_be_too_long_is_refused():
    """A type that is used twice in each of twenty others is there a million times."""
    kind = pa.struct([("a", pa.int32())])
    schema = record(("a", "int"), name="R0")
    for level in range(1, 21):
        kind = pa.struct([("a", kind), ("b", kind)])
        schema = record(("a", schema), ("b", f"R{level - 1}"), name=f"R{level}")
    with pytest.raises(SchemaError, match=f"needs more than {MOST_OPERATIONS} operations"):
        plan(schema, kind)


def test_the_name_of_the_column_is_that_of_the_caller():
    """A key is not called a value."""
    with pytest.raises(SchemaError, match="column 'key' has type bool"):
        make_encode_plan(parse_schema('"int"'), pa.bool_(), "key")


def test_a_union_of_too_many_branches_is_refused():
    """An operation has room for so many only."""
    branches = tuple(Fixed(f"F{number}", 1) for number in range(10_001))
    with pytest.raises(SchemaError, match="which has more than 10000 branches"):
        make_encode_plan(Union(branches), pa.binary())


def test_a_column_of_nulls_only_needs_a_field_that_may_be_null():
    """Arrow has a type for it, as Spark has."""
    kind = pa.struct([("a", pa.null())])
    with pytest.raises(SchemaError, match=r"'value\.a' has type null.* which cannot be null"):
        plan(record(("a", "int")), kind)
    array = pa.array([{"a": None}], kind)
    encoder = Encoder(plan(record(("a", ["int", "null"])), kind))
    assert [b"\2"] == encoder.encode(array).to_pylist()


def test_a_member_of_nulls_only_is_never_set():
    """The other members decide."""
    kind = pa.struct([("member0", pa.null()), ("member1", pa.int32())])
    encoder = Encoder(plan(["string", "int"], kind))
    assert [b"\2\2"] == encoder.encode(pa.array([{"member1": 1}], kind)).to_pylist()
