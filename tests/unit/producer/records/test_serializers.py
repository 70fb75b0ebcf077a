"""Serializers produce the same bytes as Java's, or a helpful error."""

from __future__ import annotations

import json
import math
import re
import struct
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.config.plugin_reference import SERIALIZERS, PluginReference
from spark_kafka_sink.errors import ConfigError, KafkaError, SerializationError
from spark_kafka_sink.producer.records.serializers import resolve_serializer

TOPIC = "orders"
INT64 = st.integers(-(2**63), 2**63 - 1)


def serializer(value: object, *, is_key: bool = False, **options: str):
    return resolve_serializer(SERIALIZERS.read(value), is_key=is_key, **options).serialize


@pytest.mark.parametrize("name", SERIALIZERS.names)
def test_none_stays_none(name):
    """Every serializer leaves null as it is, as for a tombstone or a missing key."""
    assert serializer(name)(None, TOPIC) is None


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("bytes", b"\x00\xff", b"\x00\xff"),
        ("bytes", bytearray(b"ab"), b"ab"),
        ("bytes", memoryview(b"abcd")[::2], b"ac"),
        ("string", "grüße", b"gr\xc3\xbc\xc3\x9fe"),
        ("string", "", b""),
        ("int", 1, b"\0\0\0\0\0\0\0\x01"),
        ("int", -2, b"\xff\xff\xff\xff\xff\xff\xff\xfe"),
        ("int64", 2**63 - 1, b"\x7f\xff\xff\xff\xff\xff\xff\xff"),
        ("int32", -(2**31), b"\x80\0\0\0"),
        ("int16", 258, b"\x01\x02"),
        ("float", 1.5, b"\x3f\xf8\0\0\0\0\0\0"),
        ("float64", -0.0, b"\x80\0\0\0\0\0\0\0"),
        ("float", 2, b"\x40\0\0\0\0\0\0\0"),
        ("float32", 1.5, b"\x3f\xc0\0\0"),
        ("boolean", True, b"\x01"),
        ("boolean", False, b"\x00"),
        ("json", {"a": [1, None, "ü"], "b": True}, b'{"a":[1,null,"\xc3\xbc"],"b":true}'),
        (
            "uuid",
            UUID("12345678-1234-5678-1234-567812345678"),
            b"12345678-1234-5678-1234-567812345678",
        ),
        ("org.apache.kafka.common.serialization.IntegerSerializer", 7, b"\0\0\0\x07"),
        ("org.apache.kafka.common.serialization.LongSerializer", 7, b"\0\0\0\0\0\0\0\x07"),
        ("org.apache.kafka.common.serialization.StringSerializer", "x", b"x"),
    ],
)
def test_values_become_the_bytes_of_java(name, value, expected):
    """Numbers are big-endian, text is UTF-8, and JSON is compact."""
    data = serializer(name)(value, TOPIC)
    assert expected == data
    assert bytes is type(data)


@given(INT64)
def test_integers_are_eight_bytes_big_endian(number):
    """Integers have the bytes of LongSerializer over the whole range."""
    assert number.to_bytes(8, "big", signed=True) == serializer("int")(number, TOPIC)


@given(st.floats())
def test_floats_are_doubles(number):
    """Every float can be decoded again, including infinities and NaN."""
    (back,) = struct.unpack(">d", serializer("float")(number, TOPIC))
    assert (math.isnan(number) and math.isnan(back)) or number == back


JSON_TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.recursive(st.booleans() | INT64 | JSON_TEXT, st.lists, max_leaves=10))
def test_json_can_be_read_back(value):
    """Every JSON value can be decoded again."""
    assert value == json.loads(serializer("json")(value, TOPIC))


def test_text_is_encoded_as_utf_8():
    """Other encodings need a function, as the error for serializer.encoding says."""
    assert b"\xc3\xbc" == serializer("string")("ü", TOPIC)
    assert b"\xfc" == serializer(lambda text: text.encode("latin-1"))("ü", TOPIC)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bytes", "text"),
        ("bytes", 3),
        ("string", b"bytes"),
        ("string", 1),
        ("string", "\ud800"),
        ("int", "1"),
        ("int", 1.0),
        ("int", True),
        ("int", 2**63),
        ("int32", 2**31),
        ("int16", -(2**15) - 1),
        ("float", "1"),
        ("float", True),
        ("float", 10**400),
        ("float32", 1e300),
        ("float32", False),
        ("boolean", 1),
        ("json", {1, 2}),
        ("json", math.nan),
        ("json", "\ud800"),
        ("json", b"bytes"),
        ("uuid", "12345678-1234-5678-1234-567812345678"),
        ("void", 0),
    ],
)
def test_a_value_of_the_wrong_type_is_rejected(name, value):
    """The error names the topic, the part, the type and the serializer, and has a cause."""
    kind = type(value).__name__
    sentence = f"topic 'orders': the serializer '{name}' cannot convert a value of type {kind} "
    with pytest.raises(SerializationError, match=sentence) as raised:
        serializer(name)(value, TOPIC)
    assert raised.value.__cause__ is not None
    assert not raised.value.retriable
    assert isinstance(raised.value, KafkaError)


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("int", 2**63, "int (OverflowError)"),
        ("int16", -(2**15) - 1, "int (OverflowError)"),
        ("int32", 1.5, "float (TypeError)"),
        ("float32", 1e300, "float (OverflowError)"),
        ("float", b"1", "bytes (TypeError)"),
        ("float", 10**400, "int (OverflowError)"),
    ],
)
def test_a_number_that_does_not_fit_is_told_from_a_value_of_another_type(name, value, kind):
    """`(error)`, the name of what Python's struct module raises, says neither."""
    with pytest.raises(SerializationError, match=f"value of type {re.escape(kind)}"):
        serializer(name)(value, TOPIC)


def test_the_error_says_whether_it_was_the_key_or_the_value():
    """A key's error names the key and its setting, but not its content."""
    with pytest.raises(SerializationError, match=r"a key of type str .*key\.serializer") as raised:
        serializer("bytes", is_key=True)("secret", TOPIC)
    assert "secret" not in str(raised.value)


def test_without_a_serializer_only_bytes_are_accepted():
    """Without a serializer bytes are sent as they are, and other types are refused."""
    plain = resolve_serializer(None, is_key=False).serialize
    assert b"v" == plain(b"v", TOPIC)
    with pytest.raises(SerializationError, match="the serializer 'bytes'"):
        plain("v", TOPIC)


# --- user-defined serializers


def test_a_function_gets_the_value():
    """The function's result is sent, and None is not passed to it."""
    seen = []

    def to_bytes(value):
        seen.append(value)
        return bytearray(str(value), "ascii")

    made = serializer(to_bytes)
    assert [b"1", None, b"2"] == [made(value, TOPIC) for value in (1, None, 2)]
    assert [1, 2] == seen
    assert bytes is type(made(3, TOPIC))


def test_a_function_with_a_topic_parameter_gets_the_topic():
    """The topic is passed by keyword, whether or not the parameter has a default."""
    assert b"orders/1" == serializer(lambda value, topic: f"{topic}/{value}".encode())(1, TOPIC)
    assert b"orders/1" == serializer(lambda value, *, topic: f"{topic}/{value}".encode())(1, TOPIC)


def test_functions_written_in_c_are_accepted():
    """Functions written in C get only the value, whether or not they have a signature."""
    assert b"abc" == serializer(str.encode)("abc", TOPIC)
    assert b"01 02" == serializer(lambda value: value.hex(" ").encode())(b"\x01\x02", TOPIC)
    assert b"\x01" == serializer(struct.Struct("B").pack)(1, TOPIC)


def test_a_class_is_instantiated_and_called():
    """The class is instantiated once, without arguments."""

    class Suffixing:
        made = 0

        def __init__(self) -> None:
            Suffixing.made += 1

        def __call__(self, value):
            return value + b"!"

    suffixing = serializer(Suffixing)
    assert [b"a!", b"b!"] == [suffixing(value, TOPIC) for value in (b"a", b"b")]
    assert 1 == Suffixing.made


def test_serializers_can_be_imported():
    """A serializer is named as `package.module:attribute`."""
    assert b"QUI=" == serializer("base64:b64encode")(b"AB", TOPIC)


def test_a_function_can_create_a_tombstone():
    """A function that returns None makes the value null."""
    assert serializer(lambda _: None)("gone", TOPIC) is None


class _JavaStyle:
    def __init__(self, returned):
        self.returned = returned

    def serialize(self, topic, headers, data):
        return self.returned


@pytest.mark.parametrize(("returned", "kind"), [("text", "str"), (3, "int"), ([1], "list")])
@pytest.mark.parametrize(
    ("make", "name"),
    [(lambda it: lambda _: it, "lambda>"), (_JavaStyle, "_JavaStyle")],
    ids=["function", "method"],
)
def test_a_serializer_must_return_bytes(make, name, returned, kind):
    """If the result is not bytes, the error blames the serializer by name, and not the value."""
    sentence = rf"^topic 'a': the serializer \S*{name} \(value\.serializer\) returned {kind}, not"
    with pytest.raises(SerializationError, match=sentence) as raised:
        serializer(make(returned))(1, "a")
    assert ("text.encode()" in str(raised.value)) == (kind == "str")


@pytest.mark.parametrize("returned", [bytearray(b"v"), memoryview(b"v")])
def test_a_serializer_can_return_any_bytes_like_object(returned):
    """A serializer may return the buffer that it has filled."""
    assert b"v" == serializer(lambda _: returned)(1, TOPIC)


def test_an_error_in_a_function_is_the_cause():
    """The error is a SerializationError, with the function's error as its cause."""
    cause = ZeroDivisionError()

    def fail(value):
        raise cause

    with pytest.raises(SerializationError, match=r"fail.*ZeroDivisionError") as raised:
        serializer(fail)(1, TOPIC)
    assert cause is raised.value.__cause__


def test_a_target_that_cannot_be_called_is_rejected():
    """The error for a target that cannot be called names the setting."""
    with pytest.raises(ConfigError, match=r"key\.serializer: .*object is not a serializer"):
        resolve_serializer(PluginReference(target=object()), is_key=True)


def test_a_class_without_callable_instances_is_rejected():
    """The instance, and not the class, must be callable."""

    class Silent:
        pass

    with pytest.raises(ConfigError, match=r"value\.serializer: .*Silent is not a serializer"):
        serializer(Silent)
