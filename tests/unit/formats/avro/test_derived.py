"""Schemas that are derived from columns: Spark's, with null first and as the default."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.avro.decoder import Decoder
from spark_kafka_sink.formats.avro.derived import derive_schema, record_name
from spark_kafka_sink.formats.avro.encode_plan import make_encode_plan
from spark_kafka_sink.formats.avro.encoder import Encoder
from spark_kafka_sink.formats.avro.plan import make_plan
from spark_kafka_sink.formats.avro.schema import parse_schema
from tests.support.formats.avro_writer_oracle import schemas_of_spark

WEEK = timedelta(weeks=1)
TEXT_MAP = pa.map_(pa.string(), pa.string())


def derived(arrow_type, name="topLevelRecord"):
    """Return the derived schema as a value of JSON."""
    return json.loads(derive_schema(arrow_type, name))


@pytest.mark.parametrize(
    ("arrow_type", "schema"),
    [
        (pa.bool_(), "boolean"),
        (pa.int8(), "int"),
        (pa.uint16(), "int"),
        (pa.uint32(), "long"),
        (pa.int64(), "long"),
        (pa.float16(), "float"),
        (pa.float64(), "double"),
        (pa.large_string(), "string"),
        (pa.string_view(), "string"),
        (pa.dictionary(pa.int32(), pa.string()), "string"),
        (pa.binary_view(), "bytes"),
        (pa.date64(), {"type": "int", "logicalType": "date"}),
        (pa.time32("s"), {"type": "int", "logicalType": "time-millis"}),
        (pa.time64("ns"), {"type": "long", "logicalType": "time-micros"}),
        (pa.timestamp("s"), {"type": "long", "logicalType": "local-timestamp-millis"}),
        (pa.timestamp("us", "Europe/Berlin"), {"type": "long", "logicalType": "timestamp-micros"}),
        (pa.timestamp("ns", "UTC"), {"type": "long", "logicalType": "timestamp-nanos"}),
        (pa.duration("us"), {"type": "long", "spark.sql.catalyst.type": "interval day to second"}),
        (pa.binary(4), {"type": "fixed", "name": "fixed", "namespace": "R", "size": 4}),
        (pa.list_(pa.int32()), {"type": "array", "items": ["null", "int"]}),
        (
            pa.large_list(pa.field("item", pa.int32(), nullable=False)),
            {"type": "array", "items": "int"},
        ),
        (TEXT_MAP, {"type": "map", "values": ["null", "string"]}),
        (
            pa.struct([("a", pa.int32()), pa.field("b", pa.null())]),
            {
                "type": "record",
                "name": "R",
                "fields": [
                    {"name": "a", "type": ["null", "int"], "default": None},
                    {"name": "b", "type": "null", "default": None},
                ],
            },
        ),
    ],
)
def test_each_type_of_arrow_has_a_schema(arrow_type, schema):
    """A type that stores its values in another way has the schema of the values."""
    assert schema == derived(arrow_type, "R")


def test_the_record_around_a_record_is_its_namespace():
    """So two fields of the same name, at different places, can have different types."""
    inner = pa.struct([pa.field("price", pa.decimal128(9, 2), nullable=False)])
    kind = pa.struct([("lines", pa.list_(inner)), ("last", pa.struct([("lines", inner)]))])
    [lines, last] = derived(kind, "shop.Order")["fields"]
    record = lines["type"][1]["items"][1]
    assert ("lines", "shop.Order") == (record["name"], record["namespace"])
    price = record["fields"][0]["type"]
    assert ("fixed", "shop.Order.lines.price", 4) == (
        price["name"],
        price["namespace"],
        price["size"],
    )
    deeper = last["type"][1]["fields"][0]["type"][1]
    assert ("lines", "shop.Order.last") == (deeper["name"], deeper["namespace"])


@pytest.mark.parametrize("name", ["a-b", "", "1a", "a.b", "ü", "a b"])
def test_a_name_that_avro_forbids_is_refused(name):
    """Other libraries than Java's refuse the schema."""
    with pytest.raises(SchemaError, match=f"column 'value.{name}' has the name '{name}'.* Rename"):
        derive_schema(pa.struct([(name, pa.int32())]), "R")


@pytest.mark.parametrize("name", ["", "a-b", "a..b", "a.1", ".a"])
def test_a_wrong_name_for_the_record_is_refused(name):
    """It is that of an option."""
    with pytest.raises(SchemaError, match=f"the record '{name}' has the name .* Set another name"):
        derive_schema(pa.int32(), name)


@pytest.mark.parametrize(
    "arrow_type",
    [
        pa.uint64(),
        pa.decimal256(40, 2),
        pa.month_day_nano_interval(),
        pa.map_(pa.int32(), pa.string()),
        pa.decimal128(5, -2),
    ],
)
def test_a_type_without_a_schema_is_refused(arrow_type):
    """The error names column and type."""
    with pytest.raises(SchemaError, match=r"column 'value\.a' has type .*, for which there is no"):
        derive_schema(pa.struct([("a", arrow_type)]), "R")


def test_a_type_with_too_many_levels_is_refused():
    """A parser refuses its schema."""
    kind = pa.int32()
    for _ in range(101):
        kind = pa.list_(kind)
    with pytest.raises(SchemaError, match="has more than 100 levels"):
        derive_schema(kind, "R")


def test_a_column_that_is_there_twice_is_refused():
    """A record has no field twice."""
    with pytest.raises(SchemaError, match=r"column 'value' has two columns 'a'\. Rename"):
        derive_schema(pa.struct([("a", pa.int32()), ("a", pa.int32())]), "R")


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ("orders-value", "orders_value"),
        ("shop.orders-value", "shop.orders_value"),
        ("7-value", "_7_value"),
        ("a..b", "a._.b"),
        ("", "_"),
        ("string", "string_"),
        (":.context:a-key", "_.context_a_key"),
    ],
)
def test_a_subject_becomes_the_name_of_a_record(subject, name):
    """Characters that a name cannot have become underscores."""
    assert name == record_name(subject)
    derive_schema(pa.struct([]), name)


def _spark_type(rng, depth):
    """Return a type of Spark as a value of JSON, and the same in Arrow."""
    choice = rng.random()
    if depth and choice < 0.3:
        fields, members = [], []
        for number in range(rng.randrange(4)):
            spark, arrow = _spark_type(rng, depth - 1)
            nullable = spark == "void" or rng.random() < 0.6
            fields.append(
                {"name": f"f{number}", "type": spark, "nullable": nullable, "metadata": {}}
            )
            members.append(pa.field(f"f{number}", arrow, nullable=nullable))
        return {"type": "struct", "fields": fields}, pa.struct(members)
    if depth and choice < 0.5:
        spark, arrow = _spark_type(rng, depth - 1)
        nullable = spark == "void" or rng.random() < 0.6
        item = pa.field("element", arrow, nullable=nullable)
        if rng.random() < 0.5:
            array = {"type": "array", "elementType": spark, "containsNull": nullable}
            return array, pa.list_(item)
        values = {"type": "map", "keyType": "string", "valueType": spark}
        return values | {"valueContainsNull": nullable}, pa.map_(pa.string(), item)
    precision = rng.randint(1, 38)
    scale = rng.randint(0, precision)
    return rng.choice(
        [
            ("boolean", pa.bool_()),
            ("byte", pa.int8()),
            ("short", pa.int16()),
            ("integer", pa.int32()),
            ("long", pa.int64()),
            ("float", pa.float32()),
            ("double", pa.float64()),
            ("string", pa.string()),
            ("binary", pa.binary()),
            ("date", pa.date32()),
            ("timestamp", pa.timestamp("us", "UTC")),
            ("timestamp_ntz", pa.timestamp("us")),
            ("void", pa.null()),
            ("interval day to second", pa.duration("us")),
            (f"decimal({precision},{scale})", pa.decimal128(precision, scale)),
        ]
    )


def _with_null_last(schema):
    """Return a schema as Spark has it: null as the last branch, and no default."""
    if isinstance(schema, list):
        return [_with_null_last(schema[1]), "null"]
    if not isinstance(schema, dict):
        return schema
    changed = {key: value for key, value in schema.items() if key != "default"}
    for key in ("items", "values", "type"):
        if key in changed:
            changed[key] = _with_null_last(changed[key])
    if "fields" in changed:
        changed["fields"] = [_with_null_last(field) for field in changed["fields"]]
    return changed


@pytest.mark.slow
def test_the_schema_is_sparks_but_for_null():
    """Types, names and namespaces are those of Spark's own converter, for every type."""
    rng = random.Random(7)
    types = [_spark_type(rng, 3) for _ in range(500)]
    answers = schemas_of_spark([json.dumps(spark) for spark, _ in types])
    for (_, arrow), answer in zip(types, answers, strict=True):
        own = json.dumps(_with_null_last(derived(arrow)))
        assert parse_schema(answer) == parse_schema(own)


_LEAVES = st.sampled_from(
    [
        (pa.bool_(), st.booleans()),
        (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
        (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
        (pa.float32(), st.floats(width=32, allow_nan=False)),
        (pa.float64(), st.floats(allow_nan=False)),
        (pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=40)),
        (pa.binary(), st.binary(max_size=40)),
        (pa.date32(), st.dates()),
        (pa.timestamp("us"), st.datetimes()),
        (pa.duration("us"), st.timedeltas(min_value=-WEEK, max_value=WEEK)),
        (
            pa.decimal128(20, 3),
            st.integers(1 - 10**20, 10**20 - 1).map(lambda n: Decimal(n) / 1000),
        ),
        (pa.null(), st.none()),
    ]
)


def _columns(children):
    """Return types of lists, maps and structs of other types, with their values."""
    lists = children.map(lambda it: (pa.list_(it[0]), st.lists(_or_none(it[1]), max_size=3)))
    maps = children.map(
        lambda it: (
            pa.map_(pa.string(), it[0]),
            st.dictionaries(st.sampled_from("abcd"), _or_none(it[1])).map(lambda d: [*d.items()]),
        )
    )
    structs = st.lists(children, max_size=3).map(
        lambda parts: (
            pa.struct([(f"f{number}", kind) for number, (kind, _) in enumerate(parts)]),
            st.fixed_dictionaries(
                {f"f{number}": _or_none(values) for number, (_, values) in enumerate(parts)}
            ),
        )
    )
    return lists | maps | structs


def _or_none(values):
    return st.none() | values


@given(st.recursive(_LEAVES, _columns, max_leaves=6), st.data())
def test_decoding_gives_what_was_encoded_by_a_derived_schema(column, data):
    """The rows of any type come back, with nulls at every level."""
    kind, values = column
    array = pa.array(data.draw(st.lists(_or_none(values), max_size=5)), kind)
    schema = parse_schema(derive_schema(kind, "R"))
    payloads = Encoder(make_encode_plan(schema, kind)).encode(array)
    outputs = list(Decoder(make_plan(schema, schema)).decode(payloads))
    assert array.to_pylist() == [row for output in outputs for row in output.values.to_pylist()]
