"""Bytes made by Kafka's own Java client; see golden/MessageGoldens.java."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.field_types import (
    UUID,
    Array,
    BytesType,
    FieldType,
    RecordsType,
    Struct,
    declared_fields,
)
from spark_kafka_sink.protocol.headers import RequestHeader, ResponseHeader
from spark_kafka_sink.protocol.registry import request_class, response_class
from spark_kafka_sink.protocol.schema import Message, decode, encode_bytes
from tests.support.network.wire_messages import MESSAGE_VERSIONS

GOLDENS = json.loads((Path(__file__).parent / "golden" / "java_messages.json").read_text())


def class_of(golden: dict) -> type[Message]:
    """Return our class for a message of the Java client."""
    match golden["kind"]:
        case "request":
            return request_class(ApiKey[golden["api"]])
        case "response":
            return response_class(ApiKey[golden["api"]])
        case "request header":
            return RequestHeader
    return ResponseHeader


def built(message_class: type, values: dict):
    """Build our message from the values of the Java client's."""
    fields = {declared.name: declared.spec.type for declared in declared_fields(message_class)}
    return message_class(**{name: ours(fields[name], value) for name, value in values.items()})


def ours(field_type: FieldType, value):
    """Convert a value from JSON to the form that our messages have."""
    match field_type:
        case _ if value is None:
            return None
        case Struct(message_class):
            return built(message_class, value)
        case Array(element):
            return tuple(ours(element, it) for it in value)
        case RecordsType() | BytesType():
            return bytes.fromhex(value)
        case _ if field_type == UUID:
            return uuid.UUID(value)
    return value


CASES = [
    pytest.param(
        class_of(golden),
        golden["version"],
        golden["values"],
        bytes.fromhex(golden["hex"]),
        id=f"{class_of(golden).__name__}-v{golden['version']}-{golden['variant']}",
    )
    for golden in GOLDENS
    if golden["version"] in class_of(golden).versions
]


def test_every_version_of_every_message_has_golden_bytes():
    """There are bytes of the Java client for every version of every message, full and bare."""
    covered = [tuple(case.values[:2]) for case in CASES]
    assert sorted(MESSAGE_VERSIONS * 2, key=repr) == sorted(covered, key=repr)


@pytest.mark.parametrize(("message_class", "version", "values", "encoded"), CASES)
def test_messages_are_encoded_as_in_java(message_class, version, values, encoded):
    """A message with a value in each field is encoded to the same bytes as in Java."""
    assert encoded.hex() == encode_bytes(built(message_class, values), version).hex()


@pytest.mark.parametrize(("message_class", "version", "values", "encoded"), CASES)
def test_java_messages_are_decoded(message_class, version, values, encoded):
    """The bytes of a Java message are decoded to its values."""
    assert built(message_class, values) == decode(message_class, encoded, version)


@pytest.mark.parametrize(("message_class", "version", "values", "encoded"), CASES)
def test_a_truncated_message_is_refused(message_class, version, values, encoded):
    """A truncated message is never a valid one."""
    for length in range(len(encoded)):
        with pytest.raises(DecodeError):
            decode(message_class, encoded[:length], version)


@pytest.mark.parametrize(("message_class", "version", "values", "encoded"), CASES)
def test_bytes_after_a_message_are_refused(message_class, version, values, encoded):
    """Bytes after a message are an error and not ignored."""
    with pytest.raises(DecodeError, match="1 extra bytes after"):
        decode(message_class, encoded + b"\0", version)


@pytest.mark.parametrize(("message_class", "version", "values", "encoded"), CASES)
def test_a_damaged_message_is_decoded_or_refused(message_class, version, values, encoded):
    """Whichever byte is wrong, the message is decoded or DecodeError is raised."""
    for position in range(len(encoded)):
        # The byte that is right damages nothing; that message is decoded by another test.
        for byte in {0x00, 0x01, 0x7F, 0x80, 0xFF} - {encoded[position]}:
            damaged = bytearray(encoded)
            damaged[position] = byte
            try:
                decode(message_class, damaged, version)
            except DecodeError:
                continue
