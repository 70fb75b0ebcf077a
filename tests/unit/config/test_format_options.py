"""The options by which keys and values get types."""

from __future__ import annotations

import pytest

from spark_kafka_sink.config.config_def import ConfigDef
from spark_kafka_sink.config.format_options import (
    FORMAT_OPTIONS,
    LATEST,
    READ_FORMAT_OPTIONS,
    SIDES,
    WRITE_FORMAT_OPTIONS,
    EvolutionMode,
    FormatOptions,
    Framing,
    OnDecodeError,
    PayloadFormat,
    PayloadOptions,
    SchemaChoice,
    SubjectNameStrategy,
)
from spark_kafka_sink.errors import ConfigError

TABLE = ConfigDef.named({**FORMAT_OPTIONS, **READ_FORMAT_OPTIONS, **WRITE_FORMAT_OPTIONS})
TEXT = '{"type": "record", "name": "Order", "fields": []}'


def parse(*, has_registry=True, is_read=False, **options):
    """Parse options of a read or a write, with a Schema Registry or without."""
    return FormatOptions.parse(
        TABLE.parse(options), frozenset(options), has_registry=has_registry, is_read=is_read
    )


def message(*, has_registry=True, is_read=False, **options):
    """Return the error of options."""
    with pytest.raises(ConfigError) as error:
        parse(has_registry=has_registry, is_read=is_read, **options)
    return str(error.value)


def test_payloads_are_bytes_by_default():
    """Without a format, neither side has one."""
    assert FormatOptions() == parse(has_registry=False)
    assert () == parse(has_registry=False).sides


@pytest.mark.parametrize("side", SIDES)
def test_a_side_has_a_format(side):
    """With a registry, a side in Avro has Confluent's framing and the latest schema."""
    expected = PayloadOptions(
        side=side,
        format=PayloadFormat.AVRO,
        framing=Framing.CONFLUENT,
        schema=LATEST,
        subject=None,
        strategy=SubjectNameStrategy.TOPIC,
        record_name=None,
    )
    options = parse(**{f"{side}Format": "AVRO"})
    assert (expected,) == options.sides
    assert expected == getattr(options, side)


def test_a_text_needs_no_registry():
    """Without a registry, payloads have no framing."""
    [side] = parse(has_registry=False, valueFormat="avro", valueSchema=TEXT).sides
    assert (Framing.NONE, SchemaChoice("text", text=TEXT)) == (side.framing, side.schema)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("latest", LATEST),
        ("LATEST", LATEST),
        ("version:7", SchemaChoice("version", 7)),
        ("Version:7", SchemaChoice("version", 7)),
        ("id:2147483647", SchemaChoice("id", 2_147_483_647)),
        ("ID:7", SchemaChoice("id", 7)),
        ('"string"', SchemaChoice("text", text='"string"')),
        ('["null", "int"]', SchemaChoice("text", text='["null", "int"]')),
    ],
)
def test_a_schema_is_chosen(text, expected):
    """A schema is the latest, one by version or id, or a text."""
    assert expected == parse(valueFormat="avro", valueSchema=text).value.schema


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (LATEST, "latest"),
        (SchemaChoice("id", 4), "id:4"),
        (SchemaChoice("text", text=TEXT), "the text of a schema"),
    ],
)
def test_a_choice_is_shown(choice, expected):
    """An error shows which schema was chosen, but not a whole text."""
    assert expected == str(choice)


@pytest.mark.parametrize(
    "text", ["newest", "version:0", "id:2147483648", "id:x", "version:latest", "string"]
)
def test_another_choice_is_refused(text):
    """What is no choice of a schema is an error that shows those that there are."""
    expected = (
        f"valueSchema must be latest, version:7, id:42, or the JSON text of a schema, not {text!r}"
    )
    assert expected == message(valueFormat="avro", valueSchema=text)


@pytest.mark.parametrize("text", ["order.avsc", "ORDER.AVSC", "order.json", "/schemas/order"])
def test_a_file_is_not_a_schema(text):
    """For what looks like the name of a file, the error says to pass the file's text."""
    refused = message(valueFormat="avro", valueSchema=text)
    assert refused.endswith(f", not {text!r}. Pass the text of the file")


@pytest.mark.parametrize(
    "name",
    [
        "RecordNameStrategy",
        "recordnamestrategy",
        "io.confluent.kafka.serializers.subject.RecordNameStrategy",
        "IO.Confluent.kafka.serializers.subject.strategy.RECORDNAMESTRATEGY",
    ],
)
def test_a_strategy_has_two_names(name):
    """A strategy is named as Confluent's class, with its package or without, in any case."""
    options = parse(valueFormat="avro", valueSubjectNameStrategy=name, valueRecordName="shop.Order")
    assert (SubjectNameStrategy.RECORD, "shop.Order") == (
        options.value.strategy,
        options.value.record_name,
    )


def test_the_other_options_are_parsed():
    """Options of both sides are those of the read or write."""
    options = parse(
        keyFormat="avro",
        onDecodeError="NULL",
        schemaEvolutionMode="restart",
        normalizeSchemas="true",
        autoRegisterSchemas="true",
    )
    assert (OnDecodeError.NULL, EvolutionMode.RESTART, True, True, True) == (
        options.on_decode_error,
        options.evolution,
        options.normalize,
        options.auto_register,
        options.has_error_columns,
    )


@pytest.mark.parametrize(
    ("options", "has_registry", "expected"),
    [
        (
            {"valueFormat": "protobuf"},
            True,
            (
                "valueFormat must be one of: raw, avro, json (protobuf is not supported yet), not "
                "'protobuf'"
            ),
        ),
        (
            {"valueFormat": "xml"},
            True,
            "valueFormat must be one of: raw, avro, json, not 'xml'",
        ),
        (
            {"valueSchema": TEXT},
            False,
            "valueSchema needs a format: set valueFormat=avro, or remove it",
        ),
        (
            {"onDecodeError": "null"},
            False,
            "onDecodeError needs a format: set valueFormat=avro or keyFormat=avro, or remove it",
        ),
        (
            {},
            True,
            (
                "schema.registry.url needs a format: set valueFormat=avro or keyFormat=avro, or "
                "remove it"
            ),
        ),
        (
            {"keyFormat": "avro"},
            False,
            (
                "keyFormat=avro needs a schema: set schema.registry.url to the Schema Registry "
                "that has it, or keySchema to its JSON text"
            ),
        ),
        (
            {"valueFormat": "avro", "valueSchema": TEXT, "valueFraming": "confluent"},
            False,
            (
                "valueFraming=confluent needs schema.registry.url: the framing is the id of a "
                "schema in a Schema Registry"
            ),
        ),
        (
            {"valueFormat": "avro", "valueSchema": TEXT, "valueSubject": "orders"},
            False,
            "valueSubject needs schema.registry.url: subjects are in a Schema Registry",
        ),
        (
            {
                "valueFormat": "avro",
                "valueSubject": "orders",
                "valueSubjectNameStrategy": "RecordNameStrategy",
            },
            True,
            "valueSubject and valueSubjectNameStrategy both name the subject: remove one of them",
        ),
        (
            {"valueFormat": "avro", "valueSubjectNameStrategy": "RecordNameStrategy"},
            True,
            (
                "valueSubjectNameStrategy=RecordNameStrategy needs valueRecordName to find "
                "valueSchema=latest: the name of the record is part of the subject"
            ),
        ),
        (
            {"valueFormat": "avro", "valueSchema": "id:7", "autoRegisterSchemas": "true"},
            True,
            (
                "autoRegisterSchemas=true contradicts valueSchema=id:7, which is registered "
                "already: remove one of them, or set valueSchema to the text to register"
            ),
        ),
        (
            {"valueFormat": "avro", "valueSchema": "id:7", "schemaEvolutionMode": "restart"},
            True,
            (
                "schemaEvolutionMode=restart needs valueSchema=latest: with id:7, a query that is "
                "started again reads no more than before"
            ),
        ),
        (
            {"valueFormat": "avro", "valueSchema": TEXT, "autoRegisterSchemas": "true"},
            False,
            "autoRegisterSchemas=true needs schema.registry.url",
        ),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, has_registry, expected):
    """An option that would have no effect, or contradicts another one, is an error."""
    assert expected == message(has_registry=has_registry, **options)


NO_SUBJECT = "for which no subject is looked up: remove it"


@pytest.mark.parametrize(
    ("options", "is_read", "expected"),
    [
        (
            {"valueSchema": TEXT, "valueRecordName": "a.B"},
            True,
            f"valueRecordName has no effect with valueSchema as the text of a schema, {NO_SUBJECT}",
        ),
        (
            {"valueSchema": TEXT, "valueSubjectNameStrategy": "RecordNameStrategy"},
            True,
            "valueSubjectNameStrategy has no effect with valueSchema as the text of a schema, "
            + NO_SUBJECT,
        ),
        (
            {"valueSchema": "id:7", "valueSubjectNameStrategy": "TopicNameStrategy"},
            False,
            f"valueSubjectNameStrategy has no effect with valueSchema=id:7, {NO_SUBJECT}",
        ),
        (
            {"valueRecordName": "a.B"},
            False,
            (
                "valueRecordName has no effect with "
                "valueSubjectNameStrategy=TopicNameStrategy, unless a schema is derived and "
                "registered (autoRegisterSchemas=true): remove it"
            ),
        ),
        (
            {"valueSubject": "orders", "valueRecordName": "a.B"},
            True,
            "valueRecordName has no effect with valueSubject: remove it",
        ),
        (
            {"valueSchema": TEXT, "valueFraming": "none", "valueSubject": "orders"},
            True,
            (
                "valueSubject has no effect with valueSchema as the text of a schema and "
                "valueFraming=none, for which no registry is asked: remove it"
            ),
        ),
        (
            {"valueSchema": TEXT, "valueFraming": "none"},
            True,
            (
                "schema.registry.url has no effect: with the text of a schema and without "
                "framing, a read asks no registry. Remove it"
            ),
        ),
        (
            {"valueFraming": "none", "schemaEvolutionMode": "restart"},
            True,
            (
                "schemaEvolutionMode=restart has no effect with valueFraming=none: such "
                "payloads do not name their schemas. Remove it"
            ),
        ),
        (
            {"normalizeSchemas": "true"},
            False,
            (
                "normalizeSchemas=true has no effect, since no text of a schema is sent to "
                "a Schema Registry: remove it, or set autoRegisterSchemas=true"
            ),
        ),
    ],
)
def test_options_without_effect_are_refused(options, is_read, expected):
    """An option that nothing in this read or write looks at is an error that says why."""
    assert expected == message(is_read=is_read, valueFormat="avro", **options)


def test_nothing_is_normalized_without_a_registry():
    """It is the registry that normalizes a text."""
    expected = (
        "normalizeSchemas=true has no effect, since no text of a schema is sent to a Schema "
        "Registry: remove it, or set schema.registry.url"
    )
    options = {"valueFormat": "avro", "valueSchema": TEXT, "normalizeSchemas": "true"}
    assert expected == message(has_registry=False, **options)


def test_json_has_no_registry():
    """The type that is read is DDL or JSON; a key in Avro beside it may have a registry."""
    options = parse(valueFormat="JSON", has_registry=False)
    assert (PayloadFormat.JSON, Framing.NONE, LATEST) == (
        options.value.format,
        options.value.framing,
        options.value.schema,
    )
    both = parse(
        keyFormat="avro",
        valueFormat="json",
        valueSchema="id bigint",
        schemaEvolutionMode="restart",
        is_read=True,
    )
    assert (Framing.CONFLUENT, Framing.NONE) == (both.key.framing, both.value.framing)
    assert SchemaChoice("text", text="id bigint") == both.value.schema
    written = parse(keyFormat="avro", valueFormat="json", autoRegisterSchemas="true")
    assert written.auto_register


@pytest.mark.parametrize(
    ("options", "has_registry", "is_read", "expected"),
    [
        (
            {"valueFraming": "confluent"},
            True,
            True,
            (
                "valueFraming=confluent is not supported yet with valueFormat=json: it is that of "
                "JSON Schema in a Schema Registry"
            ),
        ),
        (
            {"valueSchema": "id:42"},
            True,
            True,
            (
                "valueSchema=id:42 is a schema in a Schema Registry, and JSON with such a schema "
                "(JSON Schema) is not supported yet: set valueSchema to DDL (id bigint, name "
                "string), or to the JSON of a type of Spark's"
            ),
        ),
        *(
            (
                {name: value},
                True,
                True,
                (
                    f"{name} has no effect with valueFormat=json, which has no schema in a Schema "
                    "Registry: remove it"
                ),
            )
            for name, value in (
                ("valueSubject", "s"),
                ("valueSubjectNameStrategy", "TopicNameStrategy"),
                ("valueRecordName", "r"),
            )
        ),
        (
            {"valueSchema": "id bigint"},
            False,
            False,
            (
                "valueSchema has no effect in a write with valueFormat=json: the column has its "
                "type. Remove it"
            ),
        ),
        (
            {"valueSchema": "id bigint"},
            True,
            True,
            (
                "schema.registry.url has no effect with valueFormat=json, which has no schema in a "
                "Schema Registry: remove it"
            ),
        ),
        (
            {"valueSchema": "id bigint", "schemaEvolutionMode": "restart"},
            False,
            True,
            (
                "schemaEvolutionMode=restart has no effect with valueFraming=none: such payloads "
                "do not name their schemas. Remove it"
            ),
        ),
        (
            {"autoRegisterSchemas": "true"},
            False,
            False,
            "autoRegisterSchemas=true needs schema.registry.url",
        ),
    ],
)
def test_options_without_an_effect_on_json_are_refused(options, has_registry, is_read, expected):
    """So are those of JSON Schema, by name."""
    assert expected == message(
        has_registry=has_registry, is_read=is_read, valueFormat="json", **options
    )
