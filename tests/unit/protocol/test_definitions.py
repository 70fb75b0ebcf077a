"""The fields of all messages are those of Kafka's own definitions.

The bytes in `test_golden.py` show where a field is, and of which type; they do not show whether a
value that a version lacks is an error or ignored, and how a field that was left out is read.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest

from spark_kafka_sink.protocol.messages import list_offsets
from spark_kafka_sink.protocol.primitives import ZERO_UUID
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
    VersionRange,
    declared_fields,
)
from tests.support.kafka.message_definitions import DEFINED, FIELDS
from tests.support.network.wire_messages import name_of, versions_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from spark_kafka_sink.protocol.schema import DeclaredField

KAFKAS = json.loads(FIELDS.read_text(encoding="utf-8"))
SCALARS = {
    BOOL: "bool",
    INT8: "int8",
    INT16: "int16",
    UINT16: "uint16",
    INT32: "int32",
    INT64: "int64",
    FLOAT64: "float64",
    UUID: "uuid",
}


#: Tagged fields that the embedded broker does not write, and skips where it reads them.
LEFT_OUT = {
    ("OffsetCommitValue", "topic_id"),
}


#: The ids, -1, of what sends no id there, where Kafka's definitions state no default.
NOTHING = {
    ("ListOffsetsRequest", "replica_id"),
    ("AddPartitionsToTxnRequest", "v3_and_below_producer_id"),
    ("AddPartitionsToTxnRequest", "v3_and_below_producer_epoch"),
}
#: The defaults of fields whose definitions state none.
IMPLIED = {
    "bool": False,
    "bytes": b"",
    "float64": 0.0,
    "string": "",
    "uuid": ZERO_UUID,
    **dict.fromkeys(["int8", "int16", "uint16", "int32", "int64"], 0),
}


def type_name(field_type: FieldType) -> str:
    """Return a type as Kafka's definitions name it; the names of structs are left out."""
    match field_type:
        case Array(element):
            return f"[]{type_name(element)}"
        case Struct():
            return "struct"
        case String():
            return "string"
        case BytesType():
            return "bytes"
        case RecordsType():
            return "records"
        case _:
            return SCALARS[field_type]


def defined_type(name: str) -> str:
    """Return the name of a defined type in the same form."""
    element = name.removeprefix("[]")
    return name if element[0].islower() else name.replace(element, "struct")


def defined_default(definition: dict[str, Any]) -> object:
    """Return the default of a definition, stated or that of its type, as a value of ours."""
    if "default" not in definition:
        return () if definition["type"].startswith("[]") else IMPLIED[definition["type"]]
    text = definition["default"]
    if text in {"null", None}:
        return None
    if text in {"true", "false", True, False}:
        return str(text).lower() == "true"
    return text if definition["type"] == "string" else int(str(text), 0)


def fields_of(message_class: type, path: str = "") -> Iterator[tuple[str, DeclaredField]]:
    """Yield all fields, with the names of the fields that lead to them."""
    for declared in declared_fields(message_class):
        place = f"{path}{declared.name}"
        yield place, declared
        inner = declared.spec.type
        while isinstance(inner, Array):
            inner = inner.element
        if isinstance(inner, Struct):
            yield from fields_of(inner.message_class, f"{place}.")


def versions_in(stated: VersionRange | str | None, versions: Iterable[int]) -> list[int]:
    """Return those of some versions that a range contains."""
    if stated is None or stated == "none":
        return []
    among = VersionRange.parse(stated) if isinstance(stated, str) else stated
    return [version for version in versions if version in among]


@pytest.mark.parametrize("message_class", DEFINED, ids=name_of)
def test_the_fields_of_a_message_are_those_of_kafka(message_class):
    """Name, type, versions, tag, and whether a value may be null or left out, are Kafka's."""
    versions = versions_of(message_class)
    ours = {
        place: (
            type_name(spec.type),
            present,
            versions_in(spec.nullable, present),
            spec.tag,
            spec.ignorable,
        )
        for place, spec in ((place, declared.spec) for place, declared in fields_of(message_class))
        if (present := versions_in(spec.versions, versions))
    }
    kafkas = {
        place: (
            defined_type(defined["type"]),
            present,
            versions_in(defined.get("nullableVersions"), present),
            defined.get("tag"),
            defined.get("ignorable", False),
        )
        for place, defined in KAFKAS[name_of(message_class)].items()
        if (name_of(message_class), place) not in LEFT_OUT
        if (present := versions_in(defined["versions"], versions))
    }
    assert kafkas == ours


@pytest.mark.parametrize("message_class", DEFINED, ids=name_of)
def test_the_defaults_of_a_message_are_those_of_kafka(message_class):
    """A field that has a default here has the one of Kafka's definition, or of its type."""
    definition = KAFKAS[name_of(message_class)]
    stated = {
        place: declared.default
        for place, declared in fields_of(message_class)
        if declared.default is not dataclasses.MISSING
        and (name_of(message_class), place) not in NOTHING
        # Null says better than an empty value that there is nothing, where it is allowed.
        and not (declared.default is None and "nullableVersions" in definition[place])
        and not definition[place]["type"][0].isupper()
    }
    assert {place: defined_default(definition[place]) for place in stated} == stated


def test_the_timestamps_that_stand_for_offsets_are_kafkas():
    """They are numbers in Kafka's ListOffsetsRequest, which no definition has."""
    assert (-1, -2, -3, -4) == (
        list_offsets.LATEST_TIMESTAMP,
        list_offsets.EARLIEST_TIMESTAMP,
        list_offsets.MAX_TIMESTAMP,
        list_offsets.EARLIEST_LOCAL_TIMESTAMP,
    )
