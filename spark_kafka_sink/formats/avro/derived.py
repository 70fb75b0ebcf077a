"""The Avro schema of a column: what a job registers that has no schema.

Types and names of records are those of Spark's `SchemaConverters.toAvroType`: the record of a field
has the field's name, and the record around it as namespace; a decimal is fixed. Unlike there, an
optional field is a union of null and its type, in this order, with null as its default: so a later
schema may add or drop it.

Types that Spark does not have become those that lose the least: timestamps of nanoseconds are
`timestamp-nanos`, those of seconds `timestamp-millis`.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import pyarrow as pa

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.avro.schema import MOST_LEVELS, PRIMITIVES, SPARK_PROPERTY
from spark_kafka_sink.formats.columnar.sources import (
    is_any_binary,
    is_any_list,
    is_any_string,
    value_type,
)

#: The names of Avro's specification. Java's library accepts more, other libraries do not.
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_]")
_PLAIN: Final = {
    "null": "null",
    "bool": "boolean",
    **dict.fromkeys(("int8", "int16", "int32", "uint8", "uint16"), "int"),
    **dict.fromkeys(("int64", "uint32"), "long"),
    **dict.fromkeys(("halffloat", "float"), "float"),
    "double": "double",
}
_SUFFIXES: Final = {"s": "millis", "ms": "millis", "us": "micros", "ns": "nanos"}


def derive_schema(arrow_type: Any, name: str) -> str:
    """Return the JSON text of the schema for columns of a `pyarrow.DataType`.

    `name` is the full name of the record. Nulls as a whole are tombstones, so the schema is no
    union. Raises `SchemaError` for a name that Avro forbids, or a type without a schema.
    """
    for part in name.split("."):
        _check_name(part, f"the record {name!r}", "Set another name")
    namespace, _, short = name.rpartition(".")
    return json.dumps(_schema(arrow_type, short, namespace, "value", 0))


def record_name(subject: str) -> str:
    """Return the name of the record for a subject: its illegal characters become underscores."""
    parts = []
    for part in subject.split("."):
        legal = _NOT_IN_NAMES.sub("_", part)
        parts.append(legal if _NAME.fullmatch(legal) else f"_{legal}")
    name = ".".join(parts)
    return f"{name}_" if name in PRIMITIVES else name


def _schema(arrow_type: Any, name: str, namespace: str, path: str, level: int) -> Any:
    if level > MOST_LEVELS:
        raise SchemaError(f"Avro: column {path!r} has more than {MOST_LEVELS} levels")
    kind = value_type(arrow_type)
    full_name = f"{namespace}.{name}" if namespace else name
    if pa.types.is_struct(kind):
        fields = [_field(field, full_name, path, level) for field in kind]
        _check_fields([field["name"] for field in fields], path)
        space = {"namespace": namespace} if namespace else {}
        return {"type": "record", "name": name, **space, "fields": fields}
    if is_any_list(kind):
        item = _optional(kind.value_field, name, namespace, f"{path}[]", level)
        return {"type": "array", "items": item}
    if pa.types.is_map(kind) and is_any_string(value_type(kind.key_type)):
        item = _optional(kind.item_field, name, namespace, f"{path}{{}}", level)
        return {"type": "map", "values": item}
    schema = _leaf(kind, full_name)
    if schema is None:
        raise SchemaError(
            f"Avro: column {path!r} has type {arrow_type}, for which there is no schema. Cast it"
        )
    return schema


def _field(field: Any, full_name: str, path: str, level: int) -> dict[str, Any]:
    path = f"{path}.{field.name}"
    _check_name(field.name, f"column {path!r}", "Rename it")
    schema = _optional(field, field.name, full_name, path, level)
    default = {"default": None} if field.nullable else {}
    return {"name": field.name, "type": schema, **default}


def _optional(field: Any, name: str, namespace: str, path: str, level: int) -> Any:
    schema = _schema(field.type, name, namespace, path, level + 1)
    return ["null", schema] if field.nullable and schema != "null" else schema


def _leaf(kind: Any, full_name: str) -> Any:  # noqa: PLR0911  one for each kind of type
    if str(kind) in _PLAIN:
        return _PLAIN[str(kind)]
    if is_any_string(kind) or (is_any_binary(kind) and not pa.types.is_fixed_size_binary(kind)):
        return "string" if is_any_string(kind) else "bytes"
    if pa.types.is_fixed_size_binary(kind):
        return _fixed(full_name, kind.byte_width)
    if pa.types.is_decimal(kind) and 0 <= kind.scale <= kind.precision <= 38:  # noqa: PLR2004
        decimal = {"logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
        return _fixed(full_name, _bytes_of_digits(kind.precision)) | decimal
    if pa.types.is_date(kind):
        return {"type": "int", "logicalType": "date"}
    if pa.types.is_time32(kind):
        return {"type": "int", "logicalType": "time-millis"}
    if pa.types.is_time64(kind):
        return {"type": "long", "logicalType": "time-micros"}
    if pa.types.is_timestamp(kind):
        prefix = "timestamp" if kind.tz is not None else "local-timestamp"
        return {"type": "long", "logicalType": f"{prefix}-{_SUFFIXES[kind.unit]}"}
    if pa.types.is_duration(kind):
        return {"type": "long", SPARK_PROPERTY: "interval day to second"}
    return None


def _fixed(full_name: str, size: int) -> dict[str, Any]:
    return {"type": "fixed", "name": "fixed", "namespace": full_name, "size": size}


def _bytes_of_digits(precision: int) -> int:
    """Return the fewest bytes that have all numbers of so many digits."""
    size = 1
    while 2 ** (8 * size - 1) < 10**precision:
        size += 1
    return size


def _check_name(name: str, what: str, advice: str) -> None:
    if not _NAME.fullmatch(name):
        raise SchemaError(
            f"Avro: {what} has the name {name!r}, and a name in Avro has letters, digits and "
            f"underscores only, and does not begin with a digit. {advice}"
        )


def _check_fields(names: list[str], path: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise SchemaError(f"Avro: column {path!r} has two columns {name!r}. Rename one of them")
        seen.add(name)
