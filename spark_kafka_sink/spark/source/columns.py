"""The columns of a read: those of Spark's own Kafka source, and the selection of some of them.

PySpark tells a data source nothing about the columns that a query uses, so a user who wants few of
them says so with a schema: `.schema("value binary, offset long")`. It may have any of the columns
in any order, with their own types. A key or a value with a format has the type of its schema, and
`.schema()` may choose among its fields (`payload_columns`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import types

from spark_kafka_sink.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from spark_kafka_sink.config.format_options import Side

HEADERS: Final = "headers"
_HEADERS_TYPE: Final = types.ArrayType(
    types.StructType(
        [
            types.StructField("key", types.StringType()),
            types.StructField("value", types.BinaryType()),
        ]
    )
)
#: All columns, in Spark's order.
_COLUMNS: Final = types.StructType(
    [
        types.StructField("key", types.BinaryType()),
        types.StructField("value", types.BinaryType()),
        types.StructField("topic", types.StringType()),
        types.StructField("partition", types.IntegerType()),
        types.StructField("offset", types.LongType()),
        types.StructField("timestamp", types.TimestampType()),
        types.StructField("timestampType", types.IntegerType()),
        types.StructField(HEADERS, _HEADERS_TYPE),
    ]
)
#: The columns that onDecodeError=null adds.
_DECODE_ERROR: Final = "decodeError"
_ERROR_COLUMNS: Final = types.StructType(
    [
        types.StructField(_DECODE_ERROR, types.StringType()),
        types.StructField("rawKey", types.BinaryType()),
        types.StructField("rawValue", types.BinaryType()),
    ]
)
#: Columns that are null in a record without the part that they show.
_MAY_BE_NULL: Final = frozenset({"key", "value", HEADERS})


def default_columns(
    *,
    include_headers: bool,
    typed: Mapping[Side, types.DataType] | None = None,
    with_errors: bool = False,
) -> types.StructType:
    """Return the columns of a read without a schema of the user's.

    `typed` has the types of keys and values that have a format; `with_errors` adds the columns of
    malformed ones.
    """
    of_schemas: dict[str, types.DataType] = dict((typed or {}).items())
    columns = [
        types.StructField(field.name, of_schemas.get(field.name, field.dataType))
        for field in _COLUMNS.fields
        if include_headers or field.name != HEADERS
    ]
    return types.StructType(columns + (_ERROR_COLUMNS.fields if with_errors else []))


def check_columns(
    schema: types.StructType, typed: Collection[Side] = (), *, with_errors: bool = False
) -> None:
    """Raise a SchemaError that lists all problems of a user's schema, and the columns there are.

    The types of keys and values that have a format (`typed`) are checked with their schemas.
    """
    known = types.StructType(_COLUMNS.fields + (_ERROR_COLUMNS.fields if with_errors else []))
    problems = [
        problem
        for name in dict.fromkeys(schema.names)
        for problem in _problems(schema, name, known, typed)
    ]
    if not schema.names:
        problems = ["the schema has no column"]
    if with_errors and _DECODE_ERROR not in schema.names:
        problems.append(
            f"the schema has no column {_DECODE_ERROR!r}, and with onDecodeError=null a malformed "
            "payload would look like one that is null"
        )
    if problems:
        columns = ", ".join(f"{field.name} {_type_name(field, typed)}" for field in known.fields)
        raise SchemaError(f"{'; '.join(problems)}. The columns of a Kafka record are {columns}")


def _type_name(field: types.StructField, typed: Collection[str]) -> str:
    return "of the schema's type" if field.name in typed else field.dataType.simpleString()


def _problems(
    schema: types.StructType, name: str, known: types.StructType, typed: Collection[str]
) -> list[str]:
    fields = [field for field in schema.fields if field.name == name]
    if len(fields) > 1:
        return [f"{len(fields)} columns are named {name!r}: keep only one of them"]
    [field] = fields
    if name not in known.names:
        similar = [column for column in known.names if column.lower() == name.lower()]
        hint = "".join(
            f" (there is {column!r}, but column names are case-sensitive here)"
            for column in similar
        )
        return [f"there is no column {name!r}{hint}"]
    data_type = field.dataType if name in typed else known[name].dataType
    if field.dataType.simpleString() != data_type.simpleString():
        actual, expected = field.dataType.simpleString(), data_type.simpleString()
        advice = "read it as it is, and cast it afterwards"
        return [f"column {name!r} is {actual}, but must be {expected}: {advice}"]
    if field.dataType != data_type:
        return [f"the parts of column {name!r} must be nullable: leave out NOT NULL"]
    if not field.nullable and (name in _MAY_BE_NULL or name in _ERROR_COLUMNS.names):
        return [f"column {name!r} must be nullable, since records may lack it: leave out NOT NULL"]
    return []
