"""Serializers with an unsupported signature are refused when the producer is created."""

from __future__ import annotations

from functools import partial, wraps
from inspect import signature

import pytest

from spark_kafka_sink import JavaLikePartitioner, Partitioner, Serializer
from spark_kafka_sink.config.plugin_reference import SERIALIZERS
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.producer.records.serializers import resolve_serializer

TOPIC = "orders"


def _without_parameters():
    raise NotImplementedError


def _of_topic_and_value(topic, data, more):
    raise NotImplementedError


def _with_a_schema(value, *, schema):
    raise NotImplementedError


@wraps(_of_topic_and_value)
def _of_value_only(value):
    raise NotImplementedError


class _JavaStyle:
    def serialize(self, topic, data):
        raise NotImplementedError


class _Called:
    def __call__(self):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("plug_in", "name", "own", "given"),
    [
        (_without_parameters, "", "()", "(value)"),
        (_of_topic_and_value, "", "(topic, data, more)", "(value, topic=topic)"),
        (_with_a_schema, "", "(value, *, schema)", "(value)"),
        (_of_value_only, "", "(value)", "(value, topic=topic)"),
        (_Called, "", "()", "(value)"),
        (_JavaStyle, "serialize of ", "(topic, data)", "(topic, headers, data)"),
    ],
)
@pytest.mark.parametrize("part", ["key", "value"])
def test_a_serializer_with_the_wrong_signature_is_rejected_at_the_start(
    part, plug_in, name, own, given
):
    """The error names the setting, the serializer, its parameters, and the expected ones."""
    with pytest.raises(ConfigError) as raised:
        KafkaProducer({"bootstrap.servers": "127.0.0.1:9", f"{part}.serializer": plug_in})
    expected = (
        f"{part}.serializer: {name}{plug_in.__module__}.{plug_in.__qualname__} takes {own}, but is "
        f"called with {given}: give it these parameters, in this order"
    )
    assert expected == str(raised.value)


def _of_value_and_context(value, context):
    raise NotImplementedError


_of_value_and_context.__signature__ = signature(_of_value_and_context)


@wraps(_of_value_and_context)
def _with_context(value):
    return b"with context"


class _Flexible:
    def __call__(self, *anything, **more):
        return b"flexible"


class _WithoutSignature:
    #: This cannot be parsed as a signature.
    __signature__ = "(unknown"

    def __call__(self, value):
        return b"without a signature"


@pytest.mark.parametrize(
    ("plug_in", "expected"),
    [
        (_Flexible(), b"flexible"),
        (_WithoutSignature(), b"without a signature"),
        (_with_context, b"with context"),
        (partial(int.to_bytes, length=2, byteorder="big"), b"\0\x07"),
        (lambda value, encoding="ascii": str(value).encode(encoding), b"7"),
        (lambda value, *, headers: b"%d" % len(headers), b"0"),
    ],
)
def test_a_serializer_that_can_be_called_is_accepted(plug_in, expected):
    """A serializer is accepted if it can be called, or if its signature is unknown."""
    made = resolve_serializer(SERIALIZERS.read(plug_in), is_key=False)
    assert expected == made.serialize(7, TOPIC, [])


class _MisspeltSerializer(Serializer):
    def serialise(self, _topic, _headers, data):
        return data


class _MisspeltPartitioner(Partitioner):
    def partition_row(self, topic, _columns, _rows):
        return topic.available


class _MisspeltJavaLikePartitioner(JavaLikePartitioner):
    def partitions(self, *_):
        return 0


@pytest.mark.parametrize(
    ("setting", "plug_in", "method"),
    [
        ("key.serializer", _MisspeltSerializer, "serialize"),
        ("value.serializer", _MisspeltSerializer, "serialize"),
        ("partitioner.class", _MisspeltPartitioner, "partition_rows"),
        ("partitioner.class", _MisspeltJavaLikePartitioner, "partition"),
    ],
)
def test_a_plug_in_subclass_must_define_the_method(setting, plug_in, method):
    """A misspelled method is an error at the start: the inherited one would return None."""
    settings = {"bootstrap.servers": "localhost:1", setting: plug_in}
    with pytest.raises(ConfigError, match=rf"^{setting}: .* abstract method '?{method}\b"):
        KafkaProducer(settings)
