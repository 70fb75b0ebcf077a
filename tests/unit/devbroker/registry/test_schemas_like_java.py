"""Texts of schemas, and compatibility of schemas, as Java's Avro has them."""

from __future__ import annotations

import json
from random import Random

import pytest

from spark_kafka_sink.devbroker.registry.avro_schema import InvalidSchemaError, parse_schema
from spark_kafka_sink.devbroker.registry.avro_text import (
    canonical_text,
    fingerprint,
    normalized,
)
from spark_kafka_sink.devbroker.registry.schema_compatibility import (
    IncomparableError,
    incompatibilities,
)
from tests.support.devbroker.registry_schemas import evolved_schema, random_schema
from tests.support.devbroker.schema_oracle import incompatibilities_of_java, texts_of_java

pytestmark = pytest.mark.slow

SEED = 20_261
SCHEMAS = 2_000
CASES = 3_000


def field(**parts):
    """Return the text of a record that has one field."""
    return json.dumps({"type": "record", "name": "R", "fields": [{"name": "x", **parts}]})


def named(kind, **parts):
    """Return the text of a type with a name."""
    return json.dumps({"type": kind, "name": kind[0].upper(), **parts})


#: Schemas that Java refuses, or whose text it changes.
CORNERS = [
    '"int"',
    '"Unknown"',
    "[]",
    '["int", "int"]',
    '["int", ["null"]]',
    "{}",
    named("record"),
    named("record", fields=[]),
    named("error", fields=[]),
    *(named("record", name=name, fields=[]) for name in ("1R", "é", "int", "a.int", "a..b")),
    named("record", namespace="1a", fields=[]),
    named("record", name="a.R", fields=[{"name": "x", "type": "R"}]),
    field(type=["null", "R"]),
    field(type="int", default="1"),
    field(type="int", default=1.0),
    field(type="int", default=2**31),
    field(type="long", default=2**31),
    field(type="long", default=2**63),
    field(type="long", default=None),
    field(type=["int", "null"], default=None),
    field(type="float", default="NaN"),
    field(type="double", default="1e3"),
    field(type="double", default="x"),
    field(type="R", default={}),
    field(type={"type": "array", "items": "int"}, default=[1, "a"]),
    field(type={"type": "map", "values": "int"}, default={"a": 1}),
    field(type="int", order="up"),
    field(type="int", order="IGNORE"),
    field(),
    field(type="int", aliases="y"),
    field(type="int", aliases=["y", "y"]),
    named("record", fields=[{"name": "x", "type": "int"}] * 2),
    named("enum", symbols=["A", "A"]),
    named("enum", symbols=["a-b"]),
    named("enum", symbols=["A"], default="B"),
    named("enum", symbols=[]),
    named("fixed", size=-1),
    named("fixed", size=1.5),
    named("fixed"),
    '{"type": "array"}',
    '{"type": "map", "values": "Unknown"}',
    '{"type": "int", "a": 1, "a": 2}',
    '["null", {"type": "record", "name": "R", "fields": []}, "R"]',
    named(
        "record",
        name="a.R",
        fields=[
            {"name": "x", "type": {"type": "fixed", "name": "F", "size": 1}},
            {"name": "y", "type": {"type": "fixed", "name": "F", "size": 1}},
            {"name": "z", "type": "a.F"},
        ],
    ),
    named(
        "record",
        fields=[
            {"name": "x", "type": "Later"},
            {"name": "y", "type": {"type": "enum", "name": "Later", "symbols": ["A"]}},
        ],
    ),
]


def our_text(schema):
    """Return the canonical text of a schema, or nothing if it is invalid."""
    try:
        return canonical_text(parse_schema(schema, strict=True))
    except InvalidSchemaError:
        return None


def test_canonical_texts_are_java_s():
    """Each schema has the text that Java prints, or is refused by both."""
    random = Random(SEED)
    schemas = CORNERS + [random_schema(random) for _ in range(SCHEMAS)]
    expected = [None if text.startswith("!") else text for text in texts_of_java(schemas)]
    different = [
        (schema, java, ours)
        for schema, java in zip(schemas, expected, strict=True)
        if (ours := our_text(schema)) != java
    ]
    assert [] == different[:3]
    assert SCHEMAS * 0.9 < sum(text is not None for text in expected)


def test_compatibility_is_java_s():
    """Each pair of schemas has Java's incompatibilities, at the same places."""
    random = Random(SEED)
    cases = []
    while len(cases) < CASES:
        writer = random_schema(random)
        reader = evolved_schema(random, writer) if random.random() < 0.8 else random_schema(random)
        if our_text(writer) is not None and our_text(reader) is not None:
            cases.append((reader, writer))
    different = [
        (case, java, ours)
        for case, java in zip(cases, incompatibilities_of_java(cases), strict=True)
        if (ours := our_incompatibilities(*case)) != java
    ]
    assert [] == different[:3]


def our_incompatibilities(reader, writer):
    """Return what the registry finds, in the format of the oracle."""
    try:
        found = incompatibilities(parse_schema(reader), parse_schema(writer))
    except IncomparableError:
        return ["!AvroRuntimeException"]
    return [f"{reason.type.name} {reason.path} {reason.detail}" for reason in found]


def test_normalizing_twice_is_normalizing_once():
    """A normalized schema is its own normalized schema, and reads as itself."""
    random = Random(SEED)
    for _ in range(SCHEMAS):
        text = our_text(random_schema(random))
        if text is not None:
            once = normalized(parse_schema(text))
            written = canonical_text(once)
            again = parse_schema(written)
            assert written == canonical_text(normalized(again))
            assert fingerprint(once) == fingerprint(again)
