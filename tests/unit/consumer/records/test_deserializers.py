"""Deserializers read the bytes of Java's serializers, or raise a helpful error."""

from __future__ import annotations

import struct
from functools import partial
from math import copysign, isnan
from typing import ClassVar
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.config.allow_lists import PLUGINS
from spark_kafka_sink.config.consumer_config import KafkaConsumerConfig
from spark_kafka_sink.config.plug_ins import PlugIns
from spark_kafka_sink.config.plugin_reference import DESERIALIZERS, SERIALIZERS, PluginReference
from spark_kafka_sink.consumer.records.deserializers import (
    Deserializer,
    deserializer_for,
    resolve_deserializers,
)
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.producer.records.serializers import resolve_serializer

TOPIC = "orders"
HEADERS = (("version", b"2"),)
JAVA = "org.apache.kafka.common.serialization."


def deserializer(value, *, is_key=False, **options):
    return deserializer_for(DESERIALIZERS.read(value), is_key=is_key, **options)


def config(**settings):
    given = {name.replace("_", "."): value for name, value in settings.items()}
    return KafkaConsumerConfig.from_mapping({"bootstrap.servers": "a:1", **given})


@pytest.mark.parametrize(
    "reference", [None, *map(DESERIALIZERS.read, ("bytes", f"{JAVA}BytesDeserializer"))]
)
def test_bytes_need_no_deserializer(reference):
    """Bytes stay as they are, without a call for each record."""
    assert deserializer_for(reference, is_key=True) is None


@pytest.mark.parametrize("name", [each for each in DESERIALIZERS.names if each != "bytes"])
def test_none_stays_none(name):
    """A missing key and a tombstone are None, and no deserializer sees them."""
    assert deserializer(name)(TOPIC, None) is None


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("string", b"gr\xc3\xbc\xc3\x9fe", "grüße"),
        ("string", b"", ""),
        ("int", b"\xff\xff\xff\xff\xff\xff\xff\xfe", -2),
        ("int64", b"\x7f\xff\xff\xff\xff\xff\xff\xff", 2**63 - 1),
        ("int32", b"\x80\0\0\0", -(2**31)),
        ("int16", b"\x01\x02", 258),
        ("float", b"\x3f\xf8\0\0\0\0\0\0", 1.5),
        ("float64", b"\x40\0\0\0\0\0\0\0", 2.0),
        ("float32", b"\x3f\xc0\0\0", 1.5),
        ("boolean", b"\x01", True),
        ("boolean", b"\x00", False),
        ("json", b'{"a":[1,null,"\xc3\xbc"],"b":true}', {"a": [1, None, "ü"], "b": True}),
        (
            "uuid",
            b"12345678-1234-5678-1234-56781234567A",
            UUID("12345678-1234-5678-1234-56781234567a"),
        ),
        (f"{JAVA}IntegerDeserializer", b"\0\0\0\x07", 7),
        (f"{JAVA}LongDeserializer", b"\0\0\0\0\0\0\0\x07", 7),
        (f"{JAVA}StringDeserializer", b"x", "x"),
    ],
)
def test_the_bytes_of_java_become_values(name, data, expected):
    """Numbers are big-endian, and text is UTF-8."""
    value = deserializer(name)(TOPIC, data)
    assert expected == value
    assert type(expected) is type(value)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        # Java's consumer replaces what is not UTF-8.
        ("string", b"\xff"),
        ("int", b"\0\0\0\x07"),
        ("int64", b""),
        ("int32", b"\0\0\0\0\0\0\0\x07"),
        ("int16", b"\x01"),
        ("float", b"\0\0\0\0"),
        ("float32", b"\0\0\0\0\0\0\0\0"),
        ("boolean", b"\x02"),
        ("boolean", b""),
        ("boolean", b"\x00\x01"),
        ("json", b""),
        ("json", b"{'a': 1}"),
        ("json", '{"a": 1}'.encode("utf-16")),
        ("json", b"[" * 100_000),
        ("uuid", b"12345678123456781234567812345678"),
        ("uuid", b"{12345678-1234-5678-1234-567812345678}"),
        ("uuid", b"\xff" * 36),
        ("void", b""),
    ],
)
def test_other_bytes_are_rejected(name, data):
    """A built-in deserializer raises an error instead of guessing."""
    with pytest.raises((ValueError, RecursionError)):
        deserializer(name)(TOPIC, data)


NUMBERS = {
    "int16": st.integers(-(2**15), 2**15 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "int": st.integers(-(2**63), 2**63 - 1),
    "float32": st.floats(width=32),
    "float64": st.floats(),
    "float": st.floats(),
}
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = {
    **NUMBERS,
    "boolean": st.booleans(),
    "string": TEXT,
    "uuid": st.uuids(),
    "json": st.recursive(st.booleans() | st.integers() | TEXT, st.lists, max_leaves=10),
}


@pytest.mark.parametrize("name", VALUES)
@given(data=st.data())
def test_what_a_serializer_writes_is_read_back(name, data):
    """Each deserializer is the inverse of the producer's serializer of the same name."""
    value = data.draw(VALUES[name])
    written = resolve_serializer(SERIALIZERS.read(name), is_key=False).serialize(value, TOPIC)
    back = deserializer(name)(TOPIC, written)
    if isinstance(value, float):
        assert isnan(value) == isnan(back)
        assert copysign(1, value) == copysign(1, back) or isnan(value)
    assert value == back or value != value  # noqa: PLR0124  not a number


def test_the_names_are_those_of_the_serializers():
    """A producer's and a consumer's settings have the same short names."""
    assert SERIALIZERS.names == DESERIALIZERS.names
    assert {java.replace("Serializer", "Deserializer") for java in SERIALIZERS.aliases} == set(
        DESERIALIZERS.aliases
    )


# --- user-defined deserializers


def test_a_function_gets_the_bytes():
    """The function's result is the value, and None is not passed to it."""
    seen = []

    def parse(data):
        seen.append(data)
        return int(data)

    made = deserializer(parse)
    assert [1, None, 2] == [made(TOPIC, data) for data in (b"1", None, b"2")]
    assert [b"1", b"2"] == seen
    assert (parse, False) == made


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda data, topic: (data, topic), (b"1", TOPIC)),
        (lambda data, *, headers: (data, headers), (b"1", HEADERS)),
        (lambda data, headers, topic: (data, headers, topic), (b"1", HEADERS, TOPIC)),
    ],
)
def test_a_function_gets_topic_and_headers_by_name(function, expected):
    """The topic and the headers are passed by keyword to parameters of these names."""
    made = deserializer(function)
    assert made.takes_place
    assert expected == made.deserialize(b"1", TOPIC, HEADERS)
    assert expected == made(TOPIC, b"1", HEADERS)


def test_a_record_without_headers_has_none():
    """Headers are optional in a call."""
    assert () == deserializer(lambda data, headers: headers)(TOPIC, b"1")


@pytest.mark.parametrize(
    ("function", "data", "expected"),
    [
        (bytes.decode, b"abc", "abc"),
        (partial(int, base=16), b"ff", 255),
        (struct.Struct("B").unpack, b"\x01", (1,)),
    ],
)
def test_functions_written_in_c_get_the_bytes_only(function, data, expected):
    """Functions written in C are accepted, whether or not they have a signature."""
    assert expected == deserializer(function)(TOPIC, data)


def test_deserializers_can_be_imported():
    """A deserializer is named as `package.module:attribute`."""
    assert b"AB" == deserializer("base64:b64decode")(TOPIC, b"QUI=")


def test_the_environment_restricts_what_is_imported(monkeypatch):
    """A deserializer that the allow-list does not name is never imported."""
    monkeypatch.setenv(PLUGINS, "base64:b64decode")
    assert config(key_deserializer="base64:b64decode").key_deserializer is not None
    with pytest.raises(ConfigError, match=r"^value\.deserializer 'os:system' cannot be imported: "):
        config(value_deserializer="os:system")


class Versioned:
    """A deserializer with Java's method, and the life cycle of a plug-in."""

    made: ClassVar[list[Versioned]] = []

    def __init__(self):
        self.life = []
        Versioned.made.append(self)

    def configure(self, settings, *, is_key):
        """Record the group and the part."""
        self.life.append((settings["group.id"], is_key))

    def deserialize(self, topic, headers, data):
        """Return all arguments."""
        return topic, headers, data

    def close(self):
        """Record the end."""
        self.life.append("closed")


@pytest.mark.parametrize("is_key", [True, False])
def test_an_object_with_the_method_of_java_is_configured_and_closed(is_key):
    """A class is instantiated once, configured for keys or values, and closed at the end."""
    plug_ins = PlugIns({"group.id": "billing"})
    made = deserializer(Versioned, is_key=is_key, plug_ins=plug_ins)
    assert (TOPIC, HEADERS, b"1") == made.deserialize(b"1", TOPIC, HEADERS)
    assert (TOPIC, (), b"1") == made(TOPIC, b"1")
    assert made.takes_place
    plug_ins.close()
    assert [("billing", is_key), "closed"] == Versioned.made[-1].life


class _JavaStyle:
    def deserialize(self, topic, data):
        raise NotImplementedError


def _of_headers_first(headers, topic, data):
    raise NotImplementedError


class _Misspelt(Deserializer):
    def deserialise(self, topic, headers, data):
        raise NotImplementedError


@pytest.mark.parametrize("part", ["key", "value"])
@pytest.mark.parametrize(
    ("plug_in", "problem"),
    [
        (
            _JavaStyle(),
            (
                f"deserialize of {__name__}._JavaStyle takes (topic, data), but is called with "
                "(topic, headers, data): give it these parameters, in this order"
            ),
        ),
        (
            object(),
            (
                "builtins.object is not a deserializer: pass a function (data) -> value, which may "
                "also have parameters named topic and headers, or an object with a method "
                "deserialize(topic, headers, data)"
            ),
        ),
        (
            _of_headers_first,
            (
                f"{__name__}._of_headers_first takes (headers, topic, data), but is called with "
                "(data, topic=topic, headers=headers): give it these parameters, in this order"
            ),
        ),
    ],
)
def test_an_object_that_cannot_deserialize_is_rejected(part, plug_in, problem):
    """The error names the setting, the object and what is expected."""
    with pytest.raises(ConfigError) as caught:
        deserializer(plug_in, is_key=part == "key")
    assert f"{part}.deserializer: {problem}" == str(caught.value)


def test_a_subclass_must_define_the_method():
    """A misspelled method is an error at the start: the inherited one would return None."""
    with pytest.raises(
        ConfigError, match=r"^key\.deserializer: .* abstract method '?deserialize\b"
    ):
        deserializer(_Misspelt, is_key=True)


def test_both_deserializers_of_a_configuration_are_created():
    """Each setting has its own deserializer; the default leaves bytes as they are."""
    key, value = resolve_deserializers(config(key_deserializer="int32", value_deserializer="json"))
    assert (7, [7]) == (key(TOPIC, b"\0\0\0\x07"), value(TOPIC, b"[7]"))
    assert (None, None) == resolve_deserializers(config())


def test_both_deserializers_belong_to_the_same_plug_ins():
    """Both are configured with the settings, each for its part, and closed."""
    plug_ins = PlugIns({"group.id": "billing"})
    resolve_deserializers(
        config(key_deserializer=Versioned, value_deserializer=Versioned), plug_ins
    )
    plug_ins.close()
    key, value = Versioned.made[-2:]
    assert [("billing", True), "closed"] == key.life
    assert [("billing", False), "closed"] == value.life


def test_the_reference_of_a_deserializer_is_kept():
    """A reference that was read already stays the same."""
    reference = PluginReference(built_in="int16")
    assert 258 == deserializer_for(reference, is_key=False)(TOPIC, b"\x01\x02")
