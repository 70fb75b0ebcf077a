"""Which schemas read each other's data, at which levels, and what is said of the others."""

from __future__ import annotations

import json

import pytest

from spark_kafka_sink.devbroker.registry.avro_schema import parse_schema
from spark_kafka_sink.devbroker.registry.schema_compatibility import (
    CompatibilityLevel,
    EarlierSchema,
    compatibility_messages,
    incompatibilities,
)
from tests.support.devbroker.registry_calls import record

ID = record("id:long")
WITH_NOTE = record("id:long", "note:string")
WITH_DEFAULT = record("id:long", 'note:string=""')


def messages(level, schema, *earlier):
    """Return why a schema is incompatible with earlier ones at a level."""
    known = [
        EarlierSchema(number, text, parse_schema(text)) for number, text in enumerate(earlier, 1)
    ]
    return compatibility_messages(CompatibilityLevel(level), parse_schema(schema), known)


def reasons(reader, writer):
    """Return the types, paths and details of what keeps a reader from reading."""
    found = incompatibilities(parse_schema(json.dumps(reader)), parse_schema(json.dumps(writer)))
    return [(reason.type.name, reason.path, reason.detail) for reason in found]


@pytest.mark.parametrize(
    ("level", "schema", "earlier", "expected"),
    [
        ("NONE", WITH_NOTE, [ID], True),
        ("BACKWARD", WITH_NOTE, [ID], False),
        ("BACKWARD", WITH_DEFAULT, [ID], True),
        ("BACKWARD", ID, [WITH_NOTE], True),
        ("FORWARD", WITH_NOTE, [ID], True),
        ("FORWARD", ID, [WITH_NOTE], False),
        ("FULL", WITH_NOTE, [ID], False),
        ("FULL", ID, [WITH_NOTE], False),
        ("FULL", WITH_DEFAULT, [ID], True),
        ("BACKWARD", WITH_NOTE, [ID, WITH_NOTE], True),
        ("BACKWARD_TRANSITIVE", WITH_NOTE, [ID, WITH_NOTE], False),
        ("FORWARD", ID, [WITH_NOTE, ID], True),
        ("FORWARD_TRANSITIVE", ID, [WITH_NOTE, ID], False),
        ("FULL_TRANSITIVE", WITH_DEFAULT, [ID, WITH_DEFAULT], True),
        ("BACKWARD", WITH_NOTE, [], True),
    ],
)
def test_levels_say_who_reads_whom(level, schema, earlier, expected):
    """A level names the directions that count, and whether all earlier schemas do."""
    assert expected == (not messages(level, schema, *earlier))


def test_messages_name_place_and_version():
    """A message has Confluent's format, and names the version and the schema that disagree."""
    first, version, schema = messages("BACKWARD", WITH_NOTE, ID)
    assert (
        "{errorType:'READER_FIELD_MISSING_DEFAULT_VALUE', description:'the field at '/fields/1' of "
        "the new schema is missing in the old schema and has no default', additionalInfo:'note'}"
    ) == first
    assert ["{oldSchemaVersion: 1}", f"{{oldSchema: '{ID}'}}"] == [version, schema]


def test_both_directions_are_named():
    """At the level FULL the old schema comes first as reader, and then the new one."""
    named = messages("FULL", WITH_NOTE, record("id:long", "price:double"))
    assert ["price", "note"] == [text.split("'")[-2] for text in named[:2]]
    assert "of the old schema" in named[0]
    assert "of the new schema" in named[1]


def test_a_long_schema_is_cut():
    """Of an old schema only the first ten kilobytes are shown."""
    long = json.dumps({"type": "record", "name": "R", "doc": "a" * 20_000, "fields": []})
    shown = messages("BACKWARD", ID, long)[-1]
    assert shown.startswith("{oldSchema: <truncated> '")
    assert 11_000 > len(shown)


def test_a_field_must_match_one_field():
    """A reader's field whose name and aliases match several fields is an error."""
    field = {"name": "a", "type": "int", "aliases": ["b"]}
    reader = json.dumps({"type": "record", "name": "Order", "fields": [field]})
    (first, *_) = messages("BACKWARD", reader, record("a:int", "b:int"))
    assert "the field a matches several fields of the writer: a, b" == first


@pytest.mark.parametrize(
    ("reader", "writer", "expected"),
    [
        (
            "int",
            "string",
            ("TYPE_MISMATCH", "/", "reader type: INT not compatible with writer type: STRING"),
        ),
        (
            ["null", "int"],
            "string",
            ("MISSING_UNION_BRANCH", "/", "reader union lacking writer type: STRING"),
        ),
        (
            ["null", "int"],
            ["null", "string"],
            ("MISSING_UNION_BRANCH", "/1", "reader union lacking writer type: STRING"),
        ),
        (
            {"type": "array", "items": {"type": "map", "values": "int"}},
            {"type": "array", "items": {"type": "map", "values": "long"}},
            (
                "TYPE_MISMATCH",
                "/items/values",
                "reader type: INT not compatible with writer type: LONG",
            ),
        ),
        (
            {"type": "fixed", "name": "F", "size": 4},
            {"type": "fixed", "name": "a.F", "size": 8},
            ("FIXED_SIZE_MISMATCH", "/size", "expected: 8, found: 4"),
        ),
        (
            {"type": "fixed", "name": "G", "size": 4},
            {"type": "fixed", "name": "a.F", "size": 4},
            ("NAME_MISMATCH", "/name", "expected: a.F"),
        ),
        (
            {"type": "enum", "name": "E", "symbols": ["A"]},
            {"type": "enum", "name": "E", "symbols": ["C", "A", "B"]},
            ("MISSING_ENUM_SYMBOLS", "/symbols", "[B, C]"),
        ),
    ],
)
def test_each_reason_has_a_place_and_details(reader, writer, expected):
    """A reason is named by Java's type, with the place in the reader's schema."""
    assert [expected] == reasons(reader, writer)


@pytest.mark.parametrize(
    ("reader", "writer"),
    [
        ("double", "int"),
        ("bytes", "string"),
        (["null", "long"], "int"),
        ("long", ["int", "long"]),
        (
            {"type": "enum", "name": "E", "symbols": ["A"], "default": "A"},
            {"type": "enum", "name": "E", "symbols": ["B"]},
        ),
        (
            {"type": "fixed", "name": "b.G", "aliases": ["a.F"], "size": 4},
            {"type": "fixed", "name": "a.F", "size": 4},
        ),
    ],
)
def test_what_can_be_read_has_no_reason(reader, writer):
    """Promotions, defaults of enums and aliases are compatible."""
    assert [] == reasons(reader, writer)


def test_recursive_schemas_end():
    """A schema that contains itself is compared once."""
    fields = [{"name": "next", "type": ["null", "Node"]}, {"name": "value", "type": "int"}]
    node = {"type": "record", "name": "Node", "fields": fields}
    assert [] == reasons(node, node)
    other = {**node, "fields": [fields[0], {"name": "value", "type": "string"}]}
    assert [("TYPE_MISMATCH", "/fields/1/type")] == [found[:2] for found in reasons(node, other)]


def test_shared_parts_are_compared_once():
    """A schema whose parts are shared in many ways takes little work, and few messages."""

    def levels(kind):
        parts = []
        for level in range(40):
            part = f"R{level - 1}" if level else kind
            fields = [{"name": name, "type": part} for name in ("a", "b")]
            parts.append({"type": "record", "name": f"R{level}", "fields": fields})
        return [*parts, "null"]

    assert 40 == len(reasons(levels("int"), levels("string")))


def test_large_unions_are_not_compared_forever():
    """Schemas whose types need too many comparisons count as incompatible, with the reason."""
    reader, writer = (
        json.dumps([{"type": "fixed", "name": f"{name}{n}", "size": 1} for n in range(500)])
        for name in ("a", "b")
    )
    (first, *_) = messages("BACKWARD", reader, writer)
    assert "the schemas need more than 200000 comparisons of types" == first
