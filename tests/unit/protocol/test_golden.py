"""Bytes made by Kafka's own Java client; see golden/MessageGoldens.java."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import NamedTuple

import pytest

from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.codec import decode, encode_bytes
from spark_kafka_sink.protocol.registry import (
    RequestHeader,
    ResponseHeader,
    request_class,
    response_class,
)
from spark_kafka_sink.protocol.schema import (
    UUID,
    Array,
    BytesType,
    FieldType,
    Message,
    RecordsType,
    Struct,
    declared_fields,
)
from tests.support.network.wire_messages import MESSAGES, name_of, versions_of

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


class Case(NamedTuple):
    """A message of the Java client, in our classes, and its bytes."""

    version: int
    variant: str
    message: Message
    encoded: bytes


def cases_by_class() -> dict[type[Message], list[Case]]:
    """Return the messages of all versions that we have, by their class."""
    cases: dict[type[Message], list[Case]] = {}
    for golden in GOLDENS:
        message_class, version = class_of(golden), golden["version"]
        if version in message_class.versions:
            message = built(message_class, golden["values"])
            encoded = bytes.fromhex(golden["hex"])
            case = Case(version, golden["variant"], message, encoded)
            cases.setdefault(message_class, []).append(case)
    return cases


CASES = cases_by_class()
of_each_class = pytest.mark.parametrize("message_class", CASES, ids=name_of)


def test_every_version_of_every_message_has_golden_bytes():
    """There are bytes of the Java client for every version of every message, full and bare."""
    expected = {cls: sorted([*versions_of(cls)] * 2) for cls in MESSAGES}
    assert expected == {cls: sorted(case.version for case in CASES[cls]) for cls in CASES}


@of_each_class
def test_messages_are_encoded_as_in_java(message_class):
    """A message with a value in each field is encoded to the same bytes as in Java."""
    for case in CASES[message_class]:
        assert case.encoded.hex() == encode_bytes(case.message, case.version).hex(), case


@of_each_class
def test_java_messages_are_decoded(message_class):
    """The bytes of a Java message are decoded to its values."""
    for case in CASES[message_class]:
        assert case.message == decode(message_class, case.encoded, case.version), case


@of_each_class
def test_a_truncated_message_is_refused(message_class):
    """A truncated message is never a valid one."""
    for case in CASES[message_class]:
        for length in range(len(case.encoded)):
            assert not is_valid(message_class, case.encoded[:length], case.version), (length, case)


@of_each_class
def test_bytes_after_a_message_are_refused(message_class):
    """Bytes after a message are an error and not ignored."""
    for case in CASES[message_class]:
        with pytest.raises(DecodeError, match="1 extra bytes after"):
            decode(message_class, case.encoded + b"\0", case.version)


@of_each_class
def test_a_damaged_message_is_decoded_or_refused(message_class):
    """Whichever byte is wrong, the message is decoded or DecodeError is raised."""
    for case in CASES[message_class]:
        for position, right in enumerate(case.encoded):
            # The byte that is right damages nothing; that message is decoded by another test.
            for byte in {0x00, 0x01, 0x7F, 0x80, 0xFF} - {right}:
                damaged = bytearray(case.encoded)
                damaged[position] = byte
                is_valid(message_class, damaged, case.version)


def is_valid(message_class: type[Message], encoded: bytes | bytearray, version: int) -> bool:
    """Return whether bytes are decoded to a message, and not refused with a DecodeError."""
    try:
        decode(message_class, encoded, version)
    except DecodeError:
        return False
    return True
