"""Parsing Avro schemas for a registry: what is accepted, what is refused, and bounded work."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.devbroker.registry.avro_schema import (
    MOST_LEVELS,
    MOST_PARTS,
    InvalidSchemaError,
    parse_schema,
    types_of,
)
from spark_kafka_sink.devbroker.registry.avro_text import canonical_text, fingerprint, normalized

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda parts: (
        st.lists(parts, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "name", "fields", "items", "values", "symbols", "size", "default"]
            ),
            parts | st.sampled_from(["record", "array", "map", "enum", "fixed", "int"]),
            max_size=4,
        )
    ),
)


def test_a_schema_may_contain_itself():
    """A record may refer to itself, directly and by a union."""
    text = '{"type":"record","name":"Node","fields":[{"name":"next","type":["null","Node"]}]}'
    schema = parse_schema(text, strict=True)
    assert schema is schema.parts[0].parts[1]
    assert text == canonical_text(schema)


def test_references_bring_names():
    """A schema may use the names of those that come before it, which its text does not define."""
    customer = '{"type":"record","name":"a.Customer","fields":[]}'
    order = '{"type":"record","name":"a.Order","fields":[{"name":"by","type":"Customer"}]}'
    schema = parse_schema(order, [customer])
    assert '"type":"Customer"' in canonical_text(schema, ["a.Customer"])
    assert '"name":"Customer"' in canonical_text(schema)
    with pytest.raises(InvalidSchemaError, match=r"at by: the type \"a\.Customer\" is not defined"):
        parse_schema(order)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("{", "the schema is not JSON"),
        ("NaN", "not a value of JSON"),
        ("7", "a schema is a name, an object or a list, not 7"),
        ('{"type": ["null"]}', "'type' must be a name"),
        ('{"type": "dict"}', "is not a type"),
        ('{"type": "array"}', "'items' is missing"),
        ('{"type": "map"}', "'values' is missing"),
        ('{"type": "record", "fields": []}', "the name of a record is a text"),
        ('{"type": "record", "name": "R"}', "needs a list of fields"),
        ('{"type": "record", "name": "R", "fields": [7]}', "a field is an object"),
        ('{"type": "enum", "name": "E"}', "needs a list of symbols"),
        ('{"type": "enum", "name": "E", "symbols": ["A", "A"]}', "a symbol twice"),
        ('{"type": "fixed", "name": "F", "size": "4"}', "'size' is a number of bytes"),
        ('{"type": "fixed", "name": "F-G", "size": 4}', "begins with a letter"),
        ('["int", "int"]', "a union has int twice"),
        ('[["int"]]', "cannot be a branch"),
        ("[" * 100_000, "too many levels"),
        ('{"type": "array", "items": ' * 150 + '"int"' + "}" * 150, "more than 100 levels"),
    ],
)
def test_a_wrong_schema_is_refused(schema, message):
    """Each mistake has a message of its own."""
    with pytest.raises(InvalidSchemaError, match=message.replace("[", r"\[")):
        parse_schema(schema, strict=True)


def test_a_name_is_checked_less_for_known_schemas():
    """Letters of any language are accepted in a schema that is registered already."""
    schema = '{"type": "record", "name": "Größe", "fields": []}'
    assert "Größe" == parse_schema(schema).full_name
    with pytest.raises(InvalidSchemaError):
        parse_schema(schema, strict=True)


def test_a_default_that_needs_itself_is_wrong():
    """A record whose default is another one of it never ends, and is refused."""
    schema = (
        '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "R", "default": {}}]}'
    )
    with pytest.raises(InvalidSchemaError, match="the default of the field a of R"):
        parse_schema(schema, strict=True)
    assert "R" == parse_schema(schema).full_name


def test_deep_defaults_are_refused():
    """A default of many levels, which a recursive type allows, is an error and no crash."""
    schema = (
        '{"type": "record", "name": "R", "fields": [{"name": "a", "type": '
        '{"type": "array", "items": {"type": "array", "items": "int"}}, "default": []},'
        '{"name": "r", "type": ["null", "R"], "default": null},'
        '{"name": "x", "type": "R", "default": ' + '{"r": ' * 400 + "null" + "}" * 400 + "}]}"
    )
    with pytest.raises(InvalidSchemaError):
        parse_schema(schema, strict=True)


def test_the_work_is_bounded():
    """Parts that are used many times, in types and defaults, are visited once."""
    parts = [{"type": "record", "name": "R0", "fields": []}]
    for level in range(1, 60):
        fields = [
            {"name": name, "type": f"R{level - 1}", "default": {}} for name in ("a", "b", "c")
        ]
        parts.append({"type": "record", "name": f"R{level}", "fields": fields})
    schema = parse_schema(json.dumps([*parts, "null"]), strict=True)
    assert 62 == sum(1 for _ in types_of(schema))
    assert canonical_text(schema) == canonical_text(normalized(schema))


def test_a_default_is_compared_with_each_type_once():
    """A deep default of a union of recursive records takes no exponential work."""
    records = [
        {
            "type": "record",
            "name": name,
            "fields": [{"name": "x", "type": ["A", "B", "C"]}],
        }
        for name in ("A", "B", "C")
    ]
    default = {"x": 7}
    for _ in range(30):
        default = {"x": default}
    field = {"name": "f", "type": ["A", "B", "C"], "default": default}
    text = json.dumps([*records, {"type": "record", "name": "R", "fields": [field]}])
    with pytest.raises(InvalidSchemaError, match="the default of the field f"):
        parse_schema(text, strict=True)
    assert "default" not in canonical_text(normalized(parse_schema(text)))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "int", **dict.fromkeys(map(str, range(MOST_PARTS)), 1)},
        {"type": "enum", "name": "E", "symbols": [f"s{number}" for number in range(MOST_PARTS)]},
        [{"type": "map", "values": "int"}] * MOST_PARTS,
    ],
)
def test_a_schema_of_many_parts_is_refused(schema):
    """Types, properties and symbols are counted together."""
    with pytest.raises(InvalidSchemaError, match="more than 10000 parts"):
        parse_schema(json.dumps(schema))


@given(JSON)
def test_any_json_is_a_schema_or_refused(value):
    """Any value raises InvalidSchemaError and nothing else, or has a text that means the same."""
    try:
        schema = parse_schema(json.dumps(value, allow_nan=False), strict=True)
    except ValueError as error:
        assert isinstance(error, InvalidSchemaError) or "Out of range float" in str(error)  # noqa: PT017
        return
    again = parse_schema(canonical_text(schema), strict=True)
    assert canonical_text(schema) == canonical_text(again)
    assert fingerprint(schema) == fingerprint(again)


def test_levels_are_those_of_nesting():
    """The deepest schema that is accepted has as many levels as the constant says."""
    depth = MOST_LEVELS
    text = '{"type": "array", "items": ' * depth + '"int"' + "}" * depth
    assert depth + 1 == sum(1 for _ in types_of(parse_schema(text)))
    assert text.replace(" ", "") == canonical_text(parse_schema(text))


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (
            {"type": "long", "z": 1, "logicalType": "timestamp-millis", "a": {"c": 1, "b": 2}},
            '{"type":"long","logicalType":"timestamp-millis","a":{"b":2,"c":1},"z":1}',
        ),
        (
            {"type": "bytes", "scale": 2, "precision": 4, "logicalType": "decimal"},
            '{"type":"bytes","logicalType":"decimal","precision":4,"scale":2}',
        ),
        (
            {"type": "int", "logicalType": "uuid", "a": 1},
            '{"type":"int","a":1,"logicalType":"uuid"}',
        ),
        (
            {"type": "enum", "name": "E", "symbols": ["A"], "doc": "", "aliases": ["Z", "B"]},
            '{"type":"enum","name":"E","symbols":["A"],"aliases":["B","Z"]}',
        ),
    ],
)
def test_normalizing_orders_what_has_no_order(schema, expected):
    """Properties and aliases are sorted, those of a valid logical type first."""
    assert expected == canonical_text(normalized(parse_schema(json.dumps(schema))))


@pytest.mark.parametrize(
    ("kind", "default", "expected"),
    [
        ("double", 1, "1.0"),
        ("float", 0.1, "0.1"),
        ("float", 1.23456789, "1.2345679"),
        ("double", 1e22, "1.0E22"),
        ("double", 10**400, None),
        ("float", -1e300, '"-Infinity"'),
        ("float", "NaN", '"NaN"'),
        ("long", 7, "7"),
        ("string", "é", '"é"'),
        ("boolean", True, "true"),
        ("int", "seven", None),
        (["null", "double"], 1, "1.0"),
        ({"type": "map", "values": "int"}, {"b": 1, "a": 2}, '{"a":2,"b":1}'),
        ({"type": "array", "items": "double"}, [1, 2.5], "[1.0,2.5]"),
    ],
)
def test_normalizing_writes_defaults_as_their_types(kind, default, expected):
    """A default is written as a value of its type, and left out if it is none."""
    field = {"name": "a", "type": kind, "default": default}
    record = {"type": "record", "name": "R", "fields": [field]}
    text = canonical_text(normalized(parse_schema(json.dumps(record))))
    assert expected == (text[:-3].partition(',"default":')[2] or None)
