"""kio, an independent implementation of the same schemas, reads what we write and vice versa.

Some values have other types in kio (durations, times, error codes, None for the zero id). The
values drawn here are those that kio can represent; all others are tested with Java's bytes.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import importlib
import io
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_reader, entity_writer

from spark_kafka_sink.protocol.codec import decode, encode_bytes
from spark_kafka_sink.protocol.primitives import ZERO_UUID
from tests.support.network.wire_messages import API_MESSAGES, messages, name_of, versions_of

if TYPE_CHECKING:
    from types import ModuleType

    from spark_kafka_sink.protocol.schema import Message

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
LAST_SECOND = 253_402_300_799  # of the year 9999

#: Functions that convert our values to kio's types, where these differ.
KIO_TYPES = {
    "error_code": KioErrorCode,
    "timedelta_i32": lambda value: dt.timedelta(milliseconds=value),
    "timedelta_i64": lambda value: dt.timedelta(milliseconds=value),
    "datetime_i64": lambda value: None if value == -1 else EPOCH + dt.timedelta(milliseconds=value),
    "uuid": lambda value: None if value == ZERO_UUID else value,
}

#: The structs that have the same name in a request and its response, which are one module here.
KIO_NAMES = {
    "AlterPartitionRequestPartition": "PartitionData",
    "AlterPartitionRequestTopic": "TopicData",
    "AlterPartitionResponsePartition": "PartitionData",
    "AlterPartitionResponseTopic": "TopicData",
    "EntryResult": "EntryData",
    "RequestedPartitionData": "PartitionData",
    "RequestedTopicData": "TopicData",
}
#: The fields that had another name before Kafka 4.4.
KIO_FIELDS = {"generation_id": "generation_id_or_member_epoch"}
#: The first versions of Kafka 4.4, which kio does not have yet: Java's bytes test them alone.
FIRST_OF_4_4 = {"ApiVersions": 5, "DeleteGroups": 3, "TxnOffsetCommit": 6}


def kio_versions(message_class: type) -> list[int]:
    """Return the versions of a request or response that kio has."""
    api = re.sub("(Request|Response)$", "", message_class.__name__)
    first = FIRST_OF_4_4.get(api)
    return [each for each in versions_of(message_class) if first is None or each < first]


def kio_module(message_class: type, version: int) -> ModuleType:
    """Return kio's module of a request or response."""
    api, kind = re.fullmatch(r"(\w+)(Request|Response)", message_class.__name__).groups()
    snake = re.sub(r"(?<!^)(?=[A-Z])", "_", api).lower()
    return importlib.import_module(f"kio.schema.{snake}.v{version}.{kind.lower()}")


def values_kio_can_hold(field_name: str) -> st.SearchStrategy | None:
    """Return a strategy for a field whose kio type is narrower than the wire, or None."""
    if field_name.endswith("error_code"):
        return st.sampled_from([code.value for code in KioErrorCode])
    if field_name in {"retention_time_ms", "session_lifetime_ms"}:
        return st.integers(0, LAST_SECOND)
    # kio reads a time as a float, which is exact for whole seconds only.
    whole_seconds = st.integers(0, LAST_SECOND).map(lambda seconds: seconds * 1000)
    if field_name == "log_append_time_ms":
        return st.just(-1) | whole_seconds
    if field_name == "transaction_start_time_ms":
        return whole_seconds
    return None


def to_kio(module: ModuleType, message):
    """Build kio's message of the same name with the same values."""
    name = type(message).__name__
    kio_class = getattr(module, KIO_NAMES.get(name, name))
    return kio_class(
        **{
            declared.name: kio_value(
                module, declared.metadata.get("kafka_type"), value_of(message, declared.name)
            )
            for declared in dataclasses.fields(kio_class)
        }
    )


def value_of(message, kio_name: str):
    """Return a field that kio may have named otherwise."""
    names = (kio_name, f"{kio_name}_ms", KIO_FIELDS.get(kio_name, ""))
    return getattr(message, next(name for name in names if hasattr(message, name)))


def kio_value(module: ModuleType, kafka_type: str | None, value):
    """Convert one of our values to kio's."""
    if isinstance(value, tuple):
        return tuple(kio_value(module, kafka_type, it) for it in value)
    if dataclasses.is_dataclass(value):
        return to_kio(module, value)
    return KIO_TYPES.get(kafka_type, lambda same: same)(value)


@pytest.mark.parametrize("message_class", API_MESSAGES, ids=name_of)
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_messages_are_exchanged_with_kio(message_class, data):
    """Kio reads what we write, writes the same bytes, and we read what it writes."""
    for version in kio_versions(message_class):
        exchange(message_class, version, data)


def exchange(message_class: type[Message], version: int, data: st.DataObject) -> None:
    """Write a message, compare it with kio's, and read kio's."""
    message = data.draw(messages(message_class, version, values_kio_can_hold))
    module = kio_module(message_class, version)
    kio_message = to_kio(module, message)
    encoded = encode_bytes(message, version)

    read, size = entity_reader(type(kio_message))(encoded, 0)
    assert (kio_message, len(encoded)) == (read, size)

    written = io.BytesIO()
    entity_writer(type(kio_message))(written, kio_message)
    assert encoded.hex() == written.getvalue().hex()
    assert message == decode(message_class, written.getvalue(), version)
