"""The schemas of keys and values, and what is asked of a registry to find them."""

from __future__ import annotations

import json
from itertools import product
from types import SimpleNamespace

import pyarrow as pa
import pytest

from spark_kafka_sink.config.config_def import ConfigDef
from spark_kafka_sink.config.format_options import (
    FORMAT_OPTIONS,
    WRITE_FORMAT_OPTIONS,
    FormatOptions,
    Framing,
    PayloadFormat,
)
from spark_kafka_sink.errors import ConfigError, SchemaError
from spark_kafka_sink.formats.payload_schemas import (
    PayloadSchema,
    schema_to_read,
    schema_to_write,
    writers_schema,
)
from spark_kafka_sink.registry.schemas import Compatibility, RegisteredSchema

TABLE = ConfigDef.named({**FORMAT_OPTIONS, **WRITE_FORMAT_OPTIONS})
TEXT = '{"type": "record", "name": "Order", "fields": []}'
#: The values of each option that are tried, None where it is not set.
VALUES = {
    "valueSchema": (None, "latest", "version:7", "id:42", TEXT),
    "valueFraming": (None, "none"),
    "valueSubject": (None, "theirs"),
    "valueSubjectNameStrategy": (None, "RecordNameStrategy", "TopicRecordNameStrategy"),
    "valueRecordName": (None, "shop.Item"),
}
WRITES = {"autoRegisterSchemas": (None, "true"), "normalizeSchemas": (None, "true")}


class Registry:
    """A client that notes what it is asked, and has every schema."""

    def __init__(self):
        self.asked = []

    def __getattr__(self, name):
        """Return a call that notes its arguments."""

        def call(*given, **named):
            self.asked.append((name, given, tuple(sorted(named.items()))))
            return RegisteredSchema(id=5, text=TEXT, subject=None)

        return call


def asked_in(options, *, is_read, has_registry):
    """Return what a read or a write asks, and the schema that it has; raises ConfigError."""
    formats = FormatOptions.parse(
        TABLE.parse(options), frozenset(options), has_registry=has_registry, is_read=is_read
    )
    side, registry = formats.value, Registry()
    client = registry if has_registry else None
    if is_read:
        schema = schema_to_read(side, client, ["orders"])
        if client is not None and side.framing is Framing.CONFLUENT:
            writers_schema(client, 9, side.subject or schema.subject)
    else:

        def derive(name):
            registry.asked.append(("derive", name))
            return TEXT

        schema = schema_to_write(side, formats, client, "orders", derive, is_dry_run=False)
    return registry.asked, schema, side.framing


@pytest.mark.parametrize("is_read", [True, False])
@pytest.mark.parametrize("has_registry", [True, False])
def test_every_accepted_option_has_an_effect(is_read, has_registry):
    """Whatever is set together, no option is accepted that changes nothing."""
    table = VALUES if is_read else VALUES | WRITES
    accepted = 0
    for values in product(*table.values()):
        pairs = zip(table, values, strict=True)
        options = {name: chosen for name, chosen in pairs if chosen is not None}
        given = {"valueFormat": "avro", **options}
        try:
            found = asked_in(given, is_read=is_read, has_registry=has_registry)
        except ConfigError:
            continue
        accepted += 1
        if is_read and has_registry:
            assert [] != found[0], options
        for name, value in options.items():
            if value == "latest" or (name == "valueFraming" and not has_registry):
                continue  # The defaults.
            others = {key: value for key, value in given.items() if key != name}
            try:
                assert found != asked_in(others, is_read=is_read, has_registry=has_registry), (
                    options,
                    name,
                )
            except (ConfigError, SchemaError):
                # Without it, the options say too little.
                continue
    assert accepted >= (10 if has_registry else 1)


def test_a_check_does_not_call_a_derived_schema_a_given_one():
    """A dry run registers nothing, so there is no id to show."""
    options = {"valueFormat": "avro", "autoRegisterSchemas": "true"}
    formats = FormatOptions.parse(
        TABLE.parse(options), frozenset(options), has_registry=True, is_read=False
    )
    compatible = Compatibility(is_compatible=True)
    registry = SimpleNamespace(test_compatibility=lambda *_, **__: compatible)
    schema = schema_to_write(
        formats.value, formats, registry, "orders", lambda _: TEXT, is_dry_run=True
    )
    assert "the schema to register (subject orders-value)" == str(schema)
    assert "the given schema" == str(PayloadSchema(TEXT))


def record(name, *fields, **more):
    """Return a record with these names and types as fields."""
    typed = [{"name": field, "type": kind} for field, kind in fields]
    return {"type": "record", "name": name, "fields": typed, **more}


def read_of_topics(*texts):
    """Return the schema of a read of several topics, whose latest schemas have these texts."""
    schemas = {f"t{number}-value": text for number, text in enumerate(texts)}

    class Subjects:
        def latest_schema(self, subject):
            return RegisteredSchema(id=1, text=schemas[subject], subject=subject, version=1)

    options = {"valueFormat": "avro"}
    formats = FormatOptions.parse(
        TABLE.parse(options), frozenset(options), has_registry=True, is_read=True
    )
    topics = [subject.removesuffix("-value") for subject in schemas]
    return schema_to_read(formats.value, Subjects(), topics)


def test_topics_with_equal_schemas_are_read_together():
    """Two texts of one schema are equal, however many parts it has."""
    schema = "long"
    for number in range(30):
        schema = record(f"R{number}", ("a", schema), ("b", f"R{number - 1}" if number else "long"))
    first, second = json.dumps(schema), json.dumps(schema, indent=1)
    assert first == read_of_topics(first, second).text


E = {"type": "enum", "name": "E", "symbols": ["A", "B"]}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("int", "long"),
        (record("R", ("a", "int")), record("R", ("b", "int"))),
        (record("R"), record("R", aliases=["S"])),
        (E, {**E, "default": "A"}),
        (E, {**E, "symbols": ["B", "A"]}),
        (
            record("R", ("a", "int")),
            {**record("R"), "fields": [{"name": "a", "type": "int", "aliases": ["b"]}]},
        ),
        (
            {**record("R"), "fields": [{"name": "a", "type": "int", "default": 0}]},
            {**record("R"), "fields": [{"name": "a", "type": "int", "default": 1}]},
        ),
    ],
)
def test_topics_with_different_schemas_are_refused(first, second):
    """Whatever changes how another schema is read is a difference, also an alias or a default."""
    message = "the values of the topics have different schemas, schema 1 .subject t0-value"
    with pytest.raises(SchemaError, match=message):
        read_of_topics(json.dumps(first), json.dumps(second))


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        (PayloadSchema(TEXT.replace("[]", '[{"name": "id", "type": "long"}]')), " Order"),
        (PayloadSchema("id bigint", format=PayloadFormat.JSON), ""),
    ],
)
def test_a_selection_of_fields_is_checked_by_the_format(schema, named):
    """Only Avro's schemas have a name, which the error has then."""
    schema.check_selection(pa.struct([pa.field("id", pa.int64())]), "value")
    with pytest.raises(SchemaError) as refused:
        schema.check_selection(pa.struct([pa.field("x", pa.int64())]), "value")
    problem = f"column 'value': the schema{named} has no field 'x'; it has id"
    assert problem == str(refused.value)


class StrictRegistry(Registry):
    """A registry to which no schema is compatible."""

    def __init__(self, messages):
        super().__init__()
        self.messages = messages

    def test_compatibility(self, *_, **__):
        """Return the reasons, if there are any."""
        return Compatibility(is_compatible=False, messages=self.messages)


@pytest.mark.parametrize(
    ("schema", "advice"),
    [
        (
            {"valueSchema": TEXT},
            (
                "Change the schema (a new field may need a default), or the subject's "
                "compatibility level"
            ),
        ),
        (
            {},
            (
                "Set valueSchema to the text of a compatible schema. (This one was derived from "
                "the column: a field gets a default only if it may be null)"
            ),
        ),
    ],
)
@pytest.mark.parametrize(
    ("messages", "reasons"),
    [
        ((), "the registry does not say why"),
        (("no default", "other name"), "no default; other name"),
    ],
)
def test_an_incompatible_schema_is_refused_with_what_to_do(schema, advice, messages, reasons):
    """A schema that was given is to be changed; one that was derived is to be given."""
    given = {"valueFormat": "avro", "autoRegisterSchemas": "true", **schema}
    formats = FormatOptions.parse(
        TABLE.parse(given), frozenset(given), has_registry=True, is_read=False
    )
    with pytest.raises(SchemaError) as refused:
        schema_to_write(
            formats.value,
            formats,
            StrictRegistry(messages),
            "orders",
            lambda _: TEXT,
            is_dry_run=True,
        )
    problem = "the schema of values is not compatible with the subject 'orders-value'"
    assert f"{problem}: {reasons}. {advice}" == str(refused.value)
