"""The arguments of calls outside of Spark that give keys and values a format."""

from __future__ import annotations

import pytest

from spark_kafka_sink.config.config_def import Password
from spark_kafka_sink.config.format_arguments import FormatArguments
from spark_kafka_sink.config.format_options import (
    Framing,
    OnDecodeError,
    PayloadFormat,
    SubjectNameStrategy,
)
from spark_kafka_sink.errors import ConfigError

REGISTRY = {"url": "http://localhost:8081"}
TEXT = '"long"'


def test_without_arguments_nothing_has_a_format():
    """Keys and values are bytes, and no registry is named."""
    arguments = FormatArguments()
    assert not arguments.are_given
    assert ((), None) == (arguments.of_read().formats.sides, arguments.of_read().registry)


def test_arguments_and_options_are_those_of_spark():
    """Each argument is an option of Spark; other options keep their names, in any case."""
    call = FormatArguments(
        key_format="avro",
        value_format="AVRO",
        key_schema=TEXT,
        value_schema="version:7",
        schema_registry=REGISTRY,
        format_options={
            "KEYFRAMING": "none",
            "valueSubjectNameStrategy": "RecordNameStrategy",
            "valueRecordName": "shop.Order",
            "onDecodeError": "null",
        },
    ).of_read()
    key, value = call.formats.sides
    assert (PayloadFormat.AVRO, Framing.NONE, TEXT) == (key.format, key.framing, key.schema.text)
    assert ("version:7", SubjectNameStrategy.RECORD) == (str(value.schema), value.strategy)
    assert OnDecodeError.NULL is call.formats.on_decode_error
    assert ["http://localhost:8081"] == [str(url) for url in call.registry.url]


def test_options_of_writes_are_parsed():
    """A bool is one, as is the text of one."""
    for is_set in (True, "true"):
        options = {"autoRegisterSchemas": is_set, "normalizeSchemas": is_set}
        arguments = FormatArguments(
            value_format="avro", schema_registry=REGISTRY, format_options=options
        )
        formats = arguments.of_write().formats
        assert (True, True) == (formats.auto_register, formats.normalize)


@pytest.mark.parametrize("name", ["url", "schema.registry.url", "Schema.Registry.URL"])
def test_the_prefix_of_a_registrys_setting_may_be_left_out(name):
    """The settings can be those of a read or write of Spark, or of Confluent's clients."""
    arguments = FormatArguments(
        value_format="avro", schema_registry={name: "http://a:1", "max.retries": 7}
    )
    registry = arguments.of_read().registry
    assert (["http://a:1"], 7) == ([str(url) for url in registry.url], registry.max_retries)


def test_references_are_resolved(monkeypatch):
    """As in all settings with secrets."""
    monkeypatch.setenv("REGISTRY_LOGIN", "ada:secret")
    settings = {**REGISTRY, "basic.auth.user.info": "${env:REGISTRY_LOGIN}"}
    registry = FormatArguments(value_format="avro", schema_registry=settings).of_read().registry
    assert "ada:secret" == registry.url[0].user_info.value
    assert "secret" not in repr(registry)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {"value_format": "avro"},
            (
                "valueFormat=avro needs a schema: set schema.registry.url to the Schema Registry "
                "that has it, or valueSchema to its JSON text"
            ),
        ),
        (
            {"value_schema": TEXT},
            "valueSchema needs a format: set valueFormat=avro, or remove it",
        ),
        (
            {"schema_registry": REGISTRY},
            (
                "schema.registry.url needs a format: set valueFormat=avro or keyFormat=avro, or "
                "remove it"
            ),
        ),
        (
            {"value_format": "avro", "schema_registry": {"urll": "http://a:1"}},
            "unknown option 'schema.registry.urll'; did you mean 'schema.registry.url'?",
        ),
        (
            {
                "value_format": "avro",
                "schema_registry": {**REGISTRY, "schema.registry.url": "http://b:1"},
            },
            "schema.registry.url is given twice: remove one of them",
        ),
        (
            {"value_format": "avro", "schema_registry": {"kafka.schema.registry.url": "http://a"}},
            (
                "unknown option 'kafka.schema.registry.url': a registry is not a part of Kafka, so "
                "write 'schema.registry.url'"
            ),
        ),
        (
            {"value_format": "avro", "format_options": {"valueFormat": "avro"}},
            "valueFormat is given twice: remove one of them",
        ),
        (
            {"format_options": {"valueSubjekt": "a"}},
            "unknown option 'valueSubjekt'; did you mean 'valueSubject'?",
        ),
        (
            {"format_options": {"value.schema.id": "7"}},
            "unknown option 'value.schema.id'; did you mean 'valueSchema'?",
        ),
        (
            {"format_options": {"url": "http://a:1"}},
            "unknown option 'url'; did you mean 'url' in schema_registry?",
        ),
        (
            {"format_options": {"kafka.valueSubjekt": "a"}},
            "unknown option 'kafka.valueSubjekt'; did you mean 'valueSubject'?",
        ),
        (
            {"format_options": {"schema.registry.url": "http://a:1"}},
            (
                "schema.registry.url is a setting of the registry, not a format option: set it in "
                "schema_registry"
            ),
        ),
        (
            {"format_options": {"schemaEvolutionMode": "restart"}},
            "schemaEvolutionMode is an option of Spark's streams; remove it",
        ),
    ],
)
def test_a_wrong_value_is_a_config_error(given, expected):
    """Errors are those of Spark's options, with their names, for reads and for writes."""
    arguments = FormatArguments(**given)
    for parse in (arguments.of_read, arguments.of_write):
        with pytest.raises(ConfigError) as caught:
            parse()
        assert expected == str(caught.value)


def test_options_of_the_other_direction_are_refused():
    """The error says whether they are options of reads or of writes."""
    with pytest.raises(ConfigError, match=r"^autoRegisterSchemas is an option of writes; remove"):
        FormatArguments(format_options={"autoregisterschemas": "true"}).of_read()
    with pytest.raises(ConfigError, match=r"^onDecodeError is an option of reads; remove it$"):
        FormatArguments(format_options={"onDecodeError": "null"}).of_write()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"value_format": 1}, "value_format must be a str, not int"),
        ({"key_schema": {}}, "key_schema must be a str, not dict"),
        (
            {"schema_registry": "http://a:1"},
            (
                "schema_registry must be a mapping of names to values such as "
                "{'url': 'http://host:8081'}, not str"
            ),
        ),
        (
            {"format_options": {1: "a"}},
            (
                "format_options must be a mapping of names to values such as "
                "{'autoRegisterSchemas': True}, not with int as a name"
            ),
        ),
    ],
)
def test_an_argument_of_a_wrong_type_is_a_type_error(given, expected):
    """The error names the argument."""
    arguments = FormatArguments(**given)
    for parse in (arguments.of_read, arguments.of_write, arguments.key):
        with pytest.raises(TypeError) as caught:
            parse()
        assert expected == str(caught.value)


def test_equal_arguments_have_equal_keys():
    """Schemas are kept by them: other credentials are other arguments."""

    def key_of(**settings):
        return FormatArguments("avro", schema_registry={**REGISTRY, **settings}).key()

    assert key_of() == key_of()
    assert (
        key_of() == FormatArguments("avro", schema_registry=dict(reversed(REGISTRY.items()))).key()
    )
    first, second = (
        key_of(**{"bearer.auth.token": Password(token)}) for token in ("first", "second")
    )
    assert first != second
    assert key_of(**{"max.retries": 1}) != key_of(**{"max.retries": 2})
    assert {key_of(): 1} == {key_of(): 1}
