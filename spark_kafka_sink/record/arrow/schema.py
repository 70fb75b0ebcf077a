"""The columns of records that are read: those of Spark's own Kafka source, in its Arrow types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_kafka_sink.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_HEADERS: Final = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
#: All columns, in Spark's order.
_TYPES: Final[dict[str, Any]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": _HEADERS,
}
#: The columns of a record that differ within an answer. Timestamps are in milliseconds: any one of
#: Kafka's fits, which in microseconds it may not.
RECORD_SCHEMA: Final = pa.schema(
    [
        pa.field(name, pa.timestamp("ms", tz="UTC") if name == "timestamp" else _TYPES[name])
        for name in ("key", "value", "offset", "timestamp", "timestampType", "headers")
    ]
)


def arrow_schema(
    columns: Sequence[str] | None = None, *, include_headers: bool = False
) -> pa.Schema:
    """Return the schema of some columns, in the given order, or of all columns in Spark's order.

    `include_headers` adds the column `headers` to all columns. Raises SchemaError for a column that
    does not exist.
    """
    if columns is None:
        columns = [name for name in _TYPES if include_headers or name != "headers"]
    unknown = [name for name in columns if name not in _TYPES]
    if unknown:
        raise _unknown_column(unknown[0])
    schema = pa.schema([pa.field(name, _TYPES[name]) for name in columns])
    check_schema(schema)
    return schema


def check_schema(schema: pa.Schema) -> None:
    """Raise SchemaError unless each field is a column of Kafka's records, in a type it can have.

    Binary and string columns, and the list of headers, may have 64-bit offsets; timestamps may have
    any time zone, and be in milliseconds too.
    """
    if not len(schema):
        raise SchemaError(f"no columns are selected: select some of {_all_columns()}")
    for field in schema:
        if field.name not in _TYPES:
            raise _unknown_column(field.name)
        if len(schema.get_all_field_indices(field.name)) > 1:
            raise SchemaError(f"the column {field.name!r} is selected twice: remove one of them")
        if not _TYPE_CHECKS.get(field.name, _TYPES[field.name].equals)(field.type):
            raise SchemaError(
                f"column {field.name!r} has type {field.type}; it must be {_TYPES[field.name]}"
            )


def _is_binary(kind: Any) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _is_string(kind: Any) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _is_timestamp(kind: Any) -> bool:
    return pa.types.is_timestamp(kind) and kind.unit in {"us", "ms"}


def _is_headers(kind: Any) -> bool:
    return (
        (pa.types.is_list(kind) or pa.types.is_large_list(kind))
        and pa.types.is_struct(kind.value_type)
        and [field.name for field in kind.value_type] == ["key", "value"]
        and _is_string(kind.value_type[0].type)
        and _is_binary(kind.value_type[1].type)
    )


#: The columns that have more than one type.
_TYPE_CHECKS: Final[dict[str, Callable[[Any], bool]]] = {
    "key": _is_binary,
    "value": _is_binary,
    "topic": _is_string,
    "timestamp": _is_timestamp,
    "headers": _is_headers,
}


def _unknown_column(name: str) -> SchemaError:
    return SchemaError(f"there is no column {name!r}: the columns are {_all_columns()}")


def _all_columns() -> str:
    return ", ".join(_TYPES)
