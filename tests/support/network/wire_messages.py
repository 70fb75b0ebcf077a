"""Every message class in every version, and Hypothesis strategies for their values."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from spark_kafka_sink.protocol.registry import RequestHeader, ResponseHeader, declared_messages
from spark_kafka_sink.protocol.schema import (
    BOOL,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT16,
    UUID,
    Array,
    BytesType,
    FieldType,
    RecordsType,
    String,
    Struct,
    declared_fields,
)

if TYPE_CHECKING:
    from spark_kafka_sink.protocol.schema import Message

#: Maps a field's name to a strategy for its values, or None to use that of the field's type.
Special = Callable[[str], st.SearchStrategy | None]

API_MESSAGES = [message_class for pair in declared_messages() for message_class in pair]


MESSAGES = [*API_MESSAGES, RequestHeader, ResponseHeader]


def versions_of(message_class: type[Message]) -> range:
    """Return all versions of a message."""
    return range(message_class.versions.min, message_class.versions.max + 1)


def name_of(message_class: type[Message]) -> str:
    """Return the name of a class for a test's id."""
    return message_class.__name__


_SCALARS = {
    BOOL: st.booleans(),
    INT8: st.integers(-(2**7), 2**7 - 1),
    INT16: st.integers(-(2**15), 2**15 - 1),
    UINT16: st.integers(0, 2**16 - 1),
    INT32: st.integers(-(2**31), 2**31 - 1),
    INT64: st.integers(-(2**63), 2**63 - 1),
    # NaN is not equal to itself.
    FLOAT64: st.floats(allow_nan=False),
    UUID: st.uuids(),
}
_TEXT = st.text(st.characters(codec="utf-8"), max_size=6)
_BYTES = st.binary(max_size=8)


def _nothing_special(_name: str) -> None:
    return None


@cache  # Hypothesis validates a strategy once, but a new one for each example again.
def messages(
    message_class: type, version: int, special: Special = _nothing_special
) -> st.SearchStrategy:
    """Return a strategy for messages with any value in each field of the version."""
    fields = {}
    for declared in declared_fields(message_class):
        spec = declared.spec
        if version not in spec.versions:
            continue
        values = special(declared.name)
        if values is None:
            values = _values(spec.type, version, special)
        if spec.nullable is not None and version in spec.nullable:
            values = st.none() | values
        fields[declared.name] = values
    return st.builds(message_class, **fields)


def _values(field_type: FieldType, version: int, special: Special) -> st.SearchStrategy:
    match field_type:
        case Struct(message_class):
            return messages(message_class, version, special)
        case Array(element):
            elements = _values(element, version, special)
            return st.lists(elements, max_size=2).map(tuple)
        case String():
            return _TEXT
        case RecordsType() | BytesType():
            return _BYTES
    return _SCALARS[field_type]
