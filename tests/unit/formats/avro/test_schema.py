"""The parser of Avro schemas: what it accepts and refuses, and what it makes of names."""

from __future__ import annotations

import json
import math

import pytest

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.avro.schema import (
    ABSENT,
    MOST_LEVELS,
    Array,
    DecimalType,
    Enum,
    Field,
    Fixed,
    Map,
    Primitive,
    Record,
    Union,
    parse_schema,
    parts_of,
)


def parse(schema, *references):
    """Parse a schema that is given as a value of JSON."""
    return parse_schema(json.dumps(schema), [json.dumps(reference) for reference in references])


def record(*fields, **properties):
    """Return a record, with the name R unless another one is given."""
    return {"type": "record", "name": "R", "fields": list(fields), **properties}


def field(name, schema, **properties):
    """Return a field."""
    return {"name": name, "type": schema, **properties}


@pytest.mark.parametrize(
    "name", ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
)
def test_a_primitive_type_is_a_name_or_an_object(name):
    """A primitive type is given by its name, or as an object with that type."""
    assert Primitive(name) == parse(name) == parse({"type": name, "doc": "ignored"})


def test_all_kinds_of_types_are_parsed_with_their_parts():
    """Each kind of type has its parts, in their order."""
    enum = {"type": "enum", "name": "E", "symbols": ["A", "B"], "default": "B"}
    schema = parse(
        record(
            field("list", {"type": "array", "items": "int"}),
            field("map", {"type": "map", "values": "string"}, default={}),
            field("fixed", {"type": "fixed", "name": "F", "size": 3}),
            field("enum", enum),
            field("union", ["null", "E"], default=None, aliases=["old"]),
        )
    )
    parts = (
        Array(Primitive("int")),
        Map(Primitive("string")),
        Fixed("F", 3),
        Enum("E", ("A", "B"), "B"),
        Union((Primitive("null"), Enum("E", ("A", "B"), "B"))),
    )
    fields = (
        Field("list", parts[0]),
        Field("map", parts[1], {}),
        Field("fixed", parts[2]),
        Field("enum", parts[3]),
        Field("union", parts[4], None, ("old",)),
    )
    assert Record("R", fields) == schema
    assert parts == parts_of(schema)
    assert ABSENT is schema.fields[0].default
    assert [(Primitive("int"),), (Primitive("string"),), (), (), parts[4].branches] == list(
        map(parts_of, parts)
    )


@pytest.mark.parametrize(
    ("properties", "full_name"),
    [
        ({"name": "R"}, "R"),
        ({"name": "R", "namespace": "a.b"}, "a.b.R"),
        ({"name": "c.R", "namespace": "a.b"}, "c.R"),
        ({"name": "R", "namespace": ""}, "R"),
        ({"name": ".R", "namespace": "a.b"}, "R"),
        ({"name": "R", "namespace": None}, "R"),
        ({"name": "R", "namespace": 5}, "R"),
    ],
)
def test_a_full_name_is_the_namespace_and_the_name(properties, full_name):
    """A name with dots is the full name already; an empty namespace is none, or no text."""
    assert full_name == parse({"type": "record", "fields": [], **properties}).name


def test_names_in_a_record_are_in_its_namespace():
    """The namespace of a record is that of the types in it, and of the names that they use."""
    inner = {"type": "fixed", "name": "F", "size": 1, "aliases": ["G", "other.H"]}
    schema = parse(record(field("a", inner), field("b", "F"), field("c", "n.F"), namespace="n"))
    fixed = Fixed("n.F", 1, aliases=("n.G", "other.H"))
    assert (fixed, fixed, fixed) == parts_of(schema)


def test_a_name_is_sought_in_the_namespace_before_the_unnamed_one():
    """A name without dots is one of the namespace, else one of no namespace."""
    outer = {"type": "fixed", "name": "F", "namespace": "", "size": 1}
    inner = {"type": "fixed", "name": "F", "size": 2}
    assert parse(record(field("a", "F"), namespace="n"), outer).fields[0].schema == Fixed("F", 1)
    both = record(field("a", inner), field("b", "F"), namespace="n")
    assert Fixed("n.F", 2) == parse(both, outer).fields[1].schema


@pytest.mark.parametrize(
    "wrap",
    [
        lambda schema: schema,
        lambda schema: ["null", schema],
        lambda schema: {"type": "array", "items": schema},
        lambda schema: {"type": "map", "values": schema},
        lambda schema: record(field("c", schema), name="P"),
    ],
)
def test_a_name_may_be_used_before_it_is_defined(wrap):
    """As in Java, wherever the definition is."""
    fixed = {"type": "fixed", "name": "F", "size": 1}
    schema = parse(record(field("a", "F"), field("b", wrap(fixed)), namespace="n"))
    assert Fixed("n.F", 1) == schema.fields[0].schema
    assert schema == parse(record(field("a", fixed), field("b", wrap("F")), namespace="n"))


def test_a_schema_uses_the_types_of_its_references():
    """A reference defines names for the schema, and for the references behind it."""
    first = {"type": "enum", "name": "a.E", "symbols": ["X"]}
    second = {"type": "record", "name": "a.P", "fields": [field("e", "a.E")]}
    schema = parse({"type": "array", "items": "a.P"}, first, second)
    assert Array(Record("a.P", (Field("e", Enum("a.E", ("X",))),))) == schema


@pytest.mark.parametrize(
    ("schema", "logical"),
    [
        ({"type": "int", "logicalType": "date"}, "date"),
        ({"type": "int", "logicalType": "time-millis"}, "time-millis"),
        ({"type": "int", "logicalType": "timestamp-millis"}, None),
        ({"type": "long", "logicalType": "timestamp-millis"}, "timestamp-millis"),
        ({"type": "long", "logicalType": "local-timestamp-nanos"}, "local-timestamp-nanos"),
        ({"type": "string", "logicalType": "date"}, None),
        ({"type": "string", "logicalType": "uuid"}, "uuid"),
        ({"type": "long", "logicalType": 5}, None),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4}, DecimalType(4, 0)),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 4},
            DecimalType(4, 4),
        ),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 5}, None),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": -1}, None),
        ({"type": "bytes", "logicalType": "decimal", "precision": 0}, None),
        ({"type": "bytes", "logicalType": "decimal", "precision": "4"}, None),
        ({"type": "bytes", "logicalType": "decimal"}, None),
        ({"type": "int", "logicalType": "decimal", "precision": 4}, None),
    ],
)
def test_a_logical_type_that_the_type_cannot_have_is_ignored(schema, logical):
    """As the specification demands, an invalid logical type is no error."""
    assert logical == parse(schema).logical


@pytest.mark.parametrize(
    ("size", "logical", "expected"),
    [
        (4, {"logicalType": "decimal", "precision": 9, "scale": 2}, DecimalType(9, 2)),
        (4, {"logicalType": "decimal", "precision": 10, "scale": 2}, None),
        (0, {"logicalType": "decimal", "precision": 1}, None),
        (12, {"logicalType": "duration"}, "duration"),
        (11, {"logicalType": "duration"}, None),
        (16, {"logicalType": "uuid"}, "uuid"),
        (15, {"logicalType": "uuid"}, None),
    ],
)
def test_a_fixed_must_have_room_for_its_logical_type(size, logical, expected):
    """A decimal needs so many bytes as its largest number; a duration has twelve."""
    schema = {"type": "fixed", "name": "F", "size": size, **logical}
    assert expected == parse(schema).logical


def test_a_recursive_schema_is_refused():
    """A record that contains itself has no type of a column."""
    with pytest.raises(SchemaError, match=r"next\[1\]: the schema is recursive \(n.R contains"):
        parse(record(field("next", ["null", "R"]), namespace="n"))


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (5, "a schema is a name, an object or a list, not 5"),
        ({}, "'type' must be a name, not null"),
        ({"type": {"type": "int"}}, '\'type\' must be a name, not {"type": "int"}'),
        ("Unknown", "the type 'Unknown' is not defined"),
        ("lnog", "the type 'lnog' is not defined; the nearest is 'long'"),
        ("String", "the type 'String' is not defined; the nearest is 'string'"),
        ({"type": "array"}, "'items' is missing"),
        ({"type": "map"}, "'values' is missing"),
        ({"type": "array", "items": "Unknown"}, "items: the type 'Unknown' is not defined"),
        (["int", ["null"]], "[1]: a union cannot be a branch of a union"),
        (["int", {"type": "int"}], "[1]: the union has int twice"),
        ({"type": "record", "fields": []}, "the name of a record is a text, not null"),
        ({"type": "record", "name": "R"}, "the record R needs a list of fields"),
        (record(5), "a field of R is an object, not 5"),
        (record({"type": "int"}), "a field of R is a name, not null"),
        (record({"name": "a"}), "a: 'type' is missing"),
        (record(field("a", "int"), field("a", "int")), "a: the record R has this field twice"),
        (record(field("a", ["int", 5])), "a[1]: a schema is a name, an object or a list, not 5"),
        (record(field("a b", "int")), "letters, digits and underscores only, unlike 'a b'"),
        (record(field("1a", "int")), "unlike '1a'"),
        (record(field("a", "int", aliases="b")), "a: 'aliases' is a list of texts, not \"b\""),
        ({"type": "record", "name": "int", "fields": []}, "cannot have the name of the type int"),
        ({"type": "record", "name": "a..R", "fields": []}, "a part of the name 'a..R'"),
        (record(field("a", {"type": "fixed", "name": "R", "size": 1})), "a: the type R is defined"),
        ({"type": "enum", "name": "E"}, "the enum E needs a list of symbols"),
        ({"type": "enum", "name": "E", "symbols": [1]}, "'symbols' is a list of texts, not [1]"),
        ({"type": "enum", "name": "E", "symbols": ["A", "A"]}, "the enum E has a symbol twice"),
        ({"type": "enum", "name": "E", "symbols": ["A-B"]}, "a symbol of E has letters"),
        (
            {"type": "enum", "name": "E", "symbols": ["A"], "default": "B"},
            "is not one of its symbols",
        ),
        ({"type": "fixed", "name": "F"}, "the size of F is a number of bytes, not null"),
        ({"type": "fixed", "name": "F", "size": -1}, "the size of F is a number of bytes, not -1"),
        ({"type": "fixed", "name": "F", "size": True}, "is a number of bytes, not true"),
        ("x" * 50, "is not defined"),
        ({"type": ["x" * 50]}, f'not ["{"x" * 38}...'),
    ],
)
def test_an_invalid_schema_is_refused_with_the_place_and_the_problem(schema, problem):
    """The error has the path of the wrong part, and what is wrong with it."""
    with pytest.raises(SchemaError) as raised:
        parse(schema)
    assert str(raised.value).startswith("Avro schema")
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "the text of the schema is not JSON: "),
        ('{"type": "int", "type": "long"}', "'type' is there twice"),
        ('{"type": "int", "default": NaN}', "NaN is no value of JSON"),
        ("[" * 100_000, "the text of the schema has too many levels"),
    ],
)
def test_a_text_that_is_not_json_is_refused(text, problem):
    """JSON with a key twice is refused as well: readers disagree about which value counts."""
    with pytest.raises(SchemaError, match=problem):
        parse_schema(text)


def test_a_reference_that_is_not_json_is_named_as_such():
    """The error is about the referenced schema, not about the schema."""
    with pytest.raises(SchemaError, match="the text of a referenced schema is not JSON"):
        parse_schema('"int"', ["}"])


def test_sizes_and_precisions_are_ints():
    """As in Java: a larger size is refused, and a decimal of a larger precision is none."""
    most = 2**31 - 1
    assert Fixed("F", most) == parse({"type": "fixed", "name": "F", "size": most})
    with pytest.raises(SchemaError, match="the size of F is a number of bytes, not 2147483648"):
        parse({"type": "fixed", "name": "F", "size": most + 1})
    kinds = [{"type": "bytes", "logicalType": "decimal", "precision": most + n} for n in (0, 1)]
    assert [DecimalType(most, 0), None] == [parse(kind).logical for kind in kinds]


def test_an_error_has_the_path_of_the_part():
    """It consists of the fields, branches, items and values on the way."""
    wrong = [{"type": "array", "items": {"type": "map", "values": record(field("c", "lnog"))}}]
    with pytest.raises(SchemaError) as refused:
        parse(record(field("a", record(field("b", wrong), name="Q")), name="P"))
    assert (
        "Avro schema, a.b[0].items.values.c: the type 'lnog' is not defined; the nearest is 'long'"
    ) == str(refused.value)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1.5", 1.5),
        (" -1.5f ", -1.5),
        ("+1e3D", 1000.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("Infinity", math.inf),
        ("-Infinity", -math.inf),
        ("0x10p-1", 8.0),
        ("-0X.8P1d", -1.0),
        ("0x1p9999", math.inf),
        ("-0x1p9999", -math.inf),
    ],
)
def test_a_text_is_the_default_of_a_floating_number(text, number):
    """As Java's `Double.parseDouble` reads it; that of a field of another type remains a text."""
    for kind, default in (("float", number), ("double", number), ("string", text)):
        assert default == parse(record(field("a", kind, default=text))).fields[0].default


def test_a_default_may_be_no_number():
    """It is NaN, or a text that no parser takes for a number."""
    kept = ["1.5x", "", "1_0", "nan", "0x1", "1,5"]
    fields = [field(f"f{n}", "double", default=text) for n, text in enumerate([*kept, "NaN"])]
    defaults = [each.default for each in parse(record(*fields)).fields]
    assert kept == defaults[:-1]
    assert math.isnan(defaults[-1])


@pytest.mark.parametrize(
    ("wrap", "levels"),
    [
        (lambda schema, _: {"type": "array", "items": schema}, 1),
        (lambda schema, _: {"type": "map", "values": schema}, 1),
        (lambda schema, _: [{"type": "map", "values": schema}], 2),
        (lambda schema, n: record(field("a", schema), name=f"R{n}"), 1),
    ],
)
def test_a_schema_has_a_hundred_levels_at_most(wrap, levels):
    """Every walk over a schema is recursive, so its depth has a limit."""
    schema = "int"
    for number in range(MOST_LEVELS // levels):
        schema = wrap(schema, number)
    assert parts_of(parse(schema))
    with pytest.raises(SchemaError, match="the schema has more than 100 levels"):
        parse({"type": "array", "items": schema})
