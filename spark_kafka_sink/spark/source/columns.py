"""The columns of a read: those of Spark's own Kafka source, and the selection of some of them.

PySpark tells a data source nothing about the columns that a query uses, so a user who wants few of
them says so with a schema: `.schema("value binary, offset long")`. It may have any of the columns
in any order, with their own types.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Final

from pyspark.sql import types

from spark_kafka_sink.errors import SchemaError

if TYPE_CHECKING:
    import pyarrow as pa

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
#: Columns that are null in a record without the part that they show.
_MAY_BE_NULL: Final = frozenset({"key", "value", HEADERS})


def default_columns(*, include_headers: bool) -> types.StructType:
    """Return the columns of a read without a schema of the user's."""
    return types.StructType(
        [field for field in _COLUMNS.fields if include_headers or field.name != HEADERS]
    )


def check_columns(schema: types.StructType) -> None:
    """Raise a SchemaError that lists all problems of a user's schema, and the columns there are."""
    problems = [
        problem for name in dict.fromkeys(schema.names) for problem in _problems(schema, name)
    ]
    if not schema.names:
        problems = ["the schema has no column"]
    if problems:
        known = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in _COLUMNS)
        raise SchemaError(f"{'; '.join(problems)}. The columns of a Kafka record are {known}")


def _problems(schema: types.StructType, name: str) -> list[str]:
    fields = [field for field in schema.fields if field.name == name]
    if len(fields) > 1:
        return [f"{len(fields)} columns are named {name!r}: keep only one of them"]
    [field] = fields
    if name not in _COLUMNS.names:
        similar = [known for known in _COLUMNS.names if known.lower() == name.lower()]
        hint = "".join(
            f" (there is {column!r}, but column names are case-sensitive here)"
            for column in similar
        )
        return [f"there is no column {name!r}{hint}"]
    data_type = _COLUMNS[name].dataType
    if field.dataType.simpleString() != data_type.simpleString():
        actual, expected = field.dataType.simpleString(), data_type.simpleString()
        advice = "read it as it is, and cast it afterwards"
        return [f"column {name!r} is {actual}, but must be {expected}: {advice}"]
    if field.dataType != data_type:
        return [f"the parts of column {name!r} must be nullable: leave out NOT NULL"]
    if not field.nullable and name in _MAY_BE_NULL:
        return [f"column {name!r} must be nullable, since records may lack it: leave out NOT NULL"]
    return []


def arrow_columns(schema: types.StructType) -> pa.Schema:
    """Return the Arrow schema with which PySpark compares the batches of a read."""
    from pyspark.sql.pandas.types import to_arrow_schema

    # Before PySpark 4.2, timestamps are in UTC without being told.
    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)
