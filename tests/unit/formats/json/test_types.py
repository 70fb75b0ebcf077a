"""The types that JSON is read as: Spark's DDL, Spark's JSON of a type, and parts of them."""

from __future__ import annotations

import json
import re
from itertools import permutations

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.columnar.columns import MOST_COLUMNS
from spark_kafka_sink.formats.json.types import column_of, narrowed, parse_type, readable

DDL = """
    id BIGINT NOT NULL COMMENT 'it''s', `a ``b`: Struct<x: decimal, y:NUMERIC(5),z:dec(38, 10)>,
    tags array<string>, counts map<string,array<int>>, t1 tinyint, s smallint, f float, d double,
    flag boolean, data binary, day date, at timestamp, local timestamp_ntz
""".replace("'it''s'", "'it is'")
ITEMS = pa.list_(pa.field("element", pa.int32()))
KIND = pa.struct(
    [
        ("id", pa.int64()),
        (
            "a `b",
            pa.struct(
                [
                    ("x", pa.decimal128(10, 0)),
                    ("y", pa.decimal128(5, 0)),
                    ("z", pa.decimal128(38, 10)),
                ]
            ),
        ),
        ("tags", pa.list_(pa.field("element", pa.string()))),
        ("counts", pa.map_(pa.string(), pa.field("value", ITEMS))),
        ("t1", pa.int8()),
        ("s", pa.int16()),
        ("f", pa.float32()),
        ("d", pa.float64()),
        ("flag", pa.bool_()),
        ("data", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
    ]
)


def field(name, kind):
    """Return a field as Spark's JSON has it."""
    return {"name": name, "type": kind, "nullable": False, "metadata": {}}


def test_ddl_is_parsed():
    """With all names of types, comments, quoted names, in any case."""
    assert KIND == parse_type(DDL)
    assert ITEMS == parse_type("array<int>")
    assert pa.map_(pa.string(), pa.field("value", pa.int64())) == parse_type("MAP<STRING, long>")
    assert pa.struct([("struct", pa.int32())]) == parse_type("struct int")
    assert pa.struct([]) == parse_type("struct<>")


def test_sparks_json_is_parsed():
    """That of a struct, an array or a map; whether something may be null has no effect."""
    inner = {"type": "struct", "fields": [field("x", "decimal(5,2)"), field("y", "timestamp")]}
    items = {"type": "array", "elementType": inner, "containsNull": False}
    text = {"type": "struct", "fields": [field("id", "long"), field("items", items)]}
    expected = parse_type("id bigint, items array<struct<x: decimal(5,2), y: timestamp>>")
    assert expected == parse_type(json.dumps(text))
    counts = {"type": "map", "keyType": "string", "valueType": "integer"}
    assert parse_type("map<string, int>") == parse_type(json.dumps(counts))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("id", "its end instead of a type"),
        ("id bigint name string", "'name string' instead of ','"),
        ("id bigint,", "its end instead of the name of a field"),
        ("id varchar(10)", r"'varchar\(10\)' instead of a type that JSON is read as"),
        ("id interval day", "'interval day' instead of a type that JSON is read as"),
        ("id array<int", "its end instead of '>'"),
        ("id int NOT", "its end instead of NULL"),
        ("id int COMMENT x", "'x' instead of a comment"),
        ("id decimal(x)", r"'x\)' instead of a number"),
        ("id decimal(39,0)", "there is no decimal"),
        ("id map<int,int>", "a map has keys of int32"),
        ("id int, id int", "the value has the field 'id' twice"),
        ("id int; drop", "cannot be parsed"),
        ("array<" * 200, "more than 100 others"),
        ("{", "is not the JSON of a type"),
        ('"long"', "is read as a struct, an array or a map, not as int64"),
        ('{"type":"struct","fields":[1]}', "1 is not a field"),
        ('{"type":"map","keyType":"long","valueType":"long"}', 'keys of "long"'),
        ('{"type":"array","elementType":"variant"}', '"variant" is not a type'),
        (", ".join(f"c{number} int" for number in range(MOST_COLUMNS)), "10000 columns"),
    ],
)
def test_a_wrong_text_is_refused(text, problem):
    """The error says what is there instead of what."""
    with pytest.raises(SchemaError, match=f"^JSON: .*{problem}"):
        parse_type(text)


def test_a_schema_of_avro_is_refused_once():
    """The error of a part is not wrapped into one that says the same of the whole."""
    with pytest.raises(SchemaError) as error:
        parse_type('{"type": "record"}')
    assert (
        'JSON: {"type": "record"} is not a type that JSON is read as: the schema is the JSON of a '
        "type of Spark's (df.schema.json()), or its DDL (id bigint, name string)"
    ) == str(error.value)


def _ddl(levels):
    return f"{'array<' * levels}int{'>' * levels}"


def _spark_json(levels):
    kind = "integer"
    for _ in range(levels):
        kind = {"type": "array", "elementType": kind}
    return json.dumps(kind)


def _arrow(levels):
    kind = pa.int32()
    for _ in range(levels):
        kind = pa.list_(pa.field("element", kind))
    return kind


def test_a_type_has_a_hundred_levels_at_most():
    """In DDL, in Spark's JSON, and in a type of Arrow."""
    kind = _arrow(100)
    assert kind == column_of(kind).type == parse_type(_ddl(100)) == parse_type(_spark_json(100))
    for read, value in ((column_of, _arrow), (parse_type, _ddl), (parse_type, _spark_json)):
        with pytest.raises(SchemaError, match="types within more than 100 others"):
            read(value(101))


def test_a_part_of_a_type_may_be_read():
    """Fewer fields, in another order, at all levels."""
    asked = parse_type("counts map<string,array<int>>, `a ``b` struct<z: decimal(38,10)>")
    assert asked == narrowed(KIND, asked, "value")
    for ddl, problem in [
        ("other int", "column 'value': the schema has no field 'other'; it has id, a `b"),
        ("id int", "column 'value.id' is int32, but its schema has int64"),
        ("tags array<int>", r"column 'value.tags\[\]' is int32"),
        ("counts map<string,array<string>>", r"column 'value.counts\{\}\[\]' is string"),
    ]:
        with pytest.raises(SchemaError, match=problem):
            narrowed(KIND, parse_type(ddl), "value")
    kinds = [
        pa.int64(),
        parse_type("id bigint"),
        parse_type("array<int>"),
        parse_type("map<string,int>"),
    ]
    for kind, asked in permutations(kinds, 2):
        with pytest.raises(SchemaError, match=f"column 'value' is {re.escape(str(asked))}, but"):
            narrowed(kind, asked, "value")


def test_a_type_of_arrow_is_read_as_the_one_of_json():
    """All of it may be null, and other layouts of strings are read as the usual one."""
    entry = pa.field("value", pa.large_string(), nullable=False)
    kind = pa.struct(
        [
            pa.field("a", pa.large_list(pa.string_view()), nullable=False),
            pa.field("b", pa.map_(pa.string(), entry)),
        ]
    )
    assert parse_type("a array<string>, b map<string,string>") == readable(kind)


def test_a_type_that_json_is_not_read_as_is_refused():
    """Such as times, which only another type of Arrow has."""
    for kind in (pa.time64("us"), pa.uint8(), pa.float16()):
        with pytest.raises(SchemaError, match=r"the field 'a' is .*, which is not read from JSON"):
            column_of(pa.struct([("a", kind)]))
