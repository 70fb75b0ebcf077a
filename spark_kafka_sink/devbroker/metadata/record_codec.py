"""The records of the metadata log as JSON, the way they are stored.

Each is an object with the name of its type, and its fields but those that are None:

    {"type": "TopicRecord", "topic_id": "<uuid>", "name": "orders"}

What is read is validated before anything is done with it: a topic's name becomes a path.
"""

from __future__ import annotations

import dataclasses
import json
import uuid
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.topic_names import validate_topic_name
from spark_kafka_sink.devbroker.metadata.records import (
    BrokerChange,
    ConfigRecord,
    ConfigResource,
    Endpoint,
    MetadataRecord,
    PartitionChange,
    PartitionRecord,
    ProducerIds,
    RegisterBroker,
    RemoveTopic,
    TopicRecord,
    UnregisterBroker,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_TYPE: Final = "type"
_TYPES: Final[dict[str, type[Any]]] = {
    cls.__name__: cls
    for cls in (
        BrokerChange,
        ConfigRecord,
        PartitionChange,
        PartitionRecord,
        ProducerIds,
        RegisterBroker,
        RemoveTopic,
        TopicRecord,
        UnregisterBroker,
    )
}


def _number(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r} is not a whole number")
    return value


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"{value!r} is not a string")
    return value


def _topic_name(value: Any) -> str:
    name = _text(value)
    try:
        validate_topic_name(name)
    except RefusedError as error:
        raise ValueError(error.message) from error
    return name


def _uuid(value: Any) -> uuid.UUID:
    return uuid.UUID(_text(value))


def _node_ids(value: Any) -> tuple[int, ...]:
    return tuple(map(_number, value))


def _endpoints(value: Any) -> tuple[Endpoint, ...]:
    return tuple(
        Endpoint(_text(listener), _text(host), _number(port), _number(security_protocol))
        for listener, host, port, security_protocol in value
    )


def _resource(value: Any) -> ConfigResource:
    resource_type, name = value
    return ConfigResource(_number(resource_type), _text(name))


#: How each field is read; the others are numbers. "name" is read by its record.
_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "topic_id": _uuid,
    "incarnation_id": _uuid,
    "endpoints": _endpoints,
    "rack": _text,
    "fenced": _flag,
    "in_controlled_shutdown": _flag,
    "resource": _resource,
    "value": _text,
    **dict.fromkeys(("replicas", "isr", "adding", "removing", "elr", "last_known_elr"), _node_ids),
}


def encode_record(record: MetadataRecord) -> bytes:
    """Encode a record; what is None is left out."""
    content: dict[str, Any] = {_TYPE: type(record).__name__}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if value is not None:
            content[field.name] = str(value) if isinstance(value, uuid.UUID) else value
    return json.dumps(content, separators=(",", ":")).encode()


def decode_record(encoded: bytes) -> MetadataRecord:
    """Decode a record. Raises ValueError for anything that `encode_record` does not return."""
    try:
        content = json.loads(encoded)
        cls = _TYPES[content.pop(_TYPE)]
        # The only field that may be None and has no default.
        fields: dict[str, Any] = {"value": None} if cls is ConfigRecord else {}
        for name, value in content.items():
            reader: Callable[[Any], Any] = _READERS.get(name, _number)
            if name == "name":
                reader = _topic_name if cls is TopicRecord else _text
            fields[name] = reader(value)
        record: MetadataRecord = cls(**fields)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a record of metadata: {error}") from error
    return record
