"""Keys and values that have a format: their schemas, and the types of their columns in Spark.

`latest` is resolved once, on the driver, when Spark asks for the columns; what was found reaches
the tasks with the reader. They decode (`consumer.payload_columns`), and ask the registry only for
ids that they meet in payloads and do not know yet.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import types as spark_sql
from pyspark.sql.pandas.types import from_arrow_type

from spark_kafka_sink.config.format_options import PayloadFormat, SchemaChoice
from spark_kafka_sink.config.source_options import topics_of
from spark_kafka_sink.errors import ConfigError, SchemaError
from spark_kafka_sink.formats.payload_schemas import schemas_to_read
from spark_kafka_sink.spark.announcements import announce, report_logger
from spark_kafka_sink.spark.arrow_types import arrow_columns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import DataType, StructType

    from spark_kafka_sink.config.format_options import FormatOptions, PayloadOptions, Side
    from spark_kafka_sink.config.registry_settings import RegistrySettings
    from spark_kafka_sink.formats.payload_schemas import PayloadSchema


#: Arrow writes and reads no deeper types in its format for other processes.
_MOST_LEVELS: Final = 63


def resolved(
    options: Mapping[str, object], formats: FormatOptions, registry: RegistrySettings | None
) -> dict[Side, PayloadSchema]:
    """Return the schemas of keys and values that have a format.

    Raises ConfigError, SchemaError or SchemaRegistryError.
    """
    schemas = schemas_to_read(formats, registry, topics_of(options))
    for side in formats.sides:
        if schemas[side.side].schema_id is not None and side.schema.kind == "latest":
            announce(report_logger, f"Kafka: reads {side.side}s by {schemas[side.side]}")
    return schemas


def resolved_again(
    options: Mapping[str, object],
    formats: FormatOptions,
    registry: RegistrySettings | None,
    columns: StructType,
) -> dict[Side, PayloadSchema]:
    """Return the schemas of a read with columns of the user's, which may be those of JSON.

    Spark asks for such a reader several times, in several processes, so each must find the same
    schemas. Raises ConfigError if a schema is to be the latest one, and what `resolved` raises.
    """
    formats = replace(
        formats, key=_with_type(formats.key, columns), value=_with_type(formats.value, columns)
    )
    for side in formats.sides:
        if side.schema.kind == "latest":
            name = f"{side.side}Schema"
            raise ConfigError(
                f"a read with .schema(...) needs {name}=version:7, id:42 or the text of a schema: "
                "Spark asks for such a reader several times, and the latest schema may be another "
                "one each time"
            )
    return resolved(options, formats, registry)


def _with_type(side: PayloadOptions | None, columns: StructType) -> PayloadOptions | None:
    """Return the options of a side, with the type of its column if that of JSON is not given."""
    if side is None or side.format is not PayloadFormat.JSON or side.schema.kind == "text":
        return side
    is_selected = side.side in columns.names
    text = columns[side.side].dataType.json() if is_selected else "struct<>"
    return replace(side, schema=SchemaChoice("text", text=text))


def spark_types(schemas: Mapping[Side, PayloadSchema]) -> dict[Side, DataType]:
    """Return the types of the columns of keys and values that have a format."""
    return {side: _spark_type(schema.column_type()) for side, schema in schemas.items()}


def _spark_type(kind: Any) -> DataType:
    """Return Spark's type; before Spark 4.1, which has none for them, times are numbers."""
    if pa.types.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        return spark_sql.StructType(
            [
                spark_sql.StructField(field.name, _spark_type(field.type), field.nullable)
                for field in fields
            ]
        )
    if pa.types.is_list(kind):
        item = kind.value_field
        return spark_sql.ArrayType(_spark_type(item.type), item.nullable)
    if pa.types.is_map(kind):
        item = kind.item_field
        return spark_sql.MapType(spark_sql.StringType(), _spark_type(item.type), item.nullable)
    if pa.types.is_time64(kind) and not hasattr(spark_sql, "TimeType"):
        return spark_sql.LongType()
    return from_arrow_type(kind, prefer_timestamp_ntz=True)


def check_types(columns: StructType, schemas: Mapping[Side, PayloadSchema]) -> None:
    """Raise SchemaError unless the columns of a read are selections of their schemas' fields."""
    asked = arrow_columns(columns)
    for side, schema in schemas.items():
        if side in asked.names:
            kind = asked.field(side).type
            schema.check_selection(kind, side)
            if _levels(kind) > _MOST_LEVELS:
                raise SchemaError(
                    f"column {side!r} has types within more than {_MOST_LEVELS} others (a map "
                    "counts as two), which Arrow cannot hand to Spark: leave out the deepest ones "
                    f'with .schema("{side} struct<...>"), or read it as raw bytes'
                )


def _levels(kind: Any) -> int:
    """Return within how many others the deepest type is."""
    if pa.types.is_map(kind):
        return 2 + _levels(kind.item_type)
    parts = [kind.field(number).type for number in range(kind.num_fields)]
    return 1 + max(map(_levels, parts)) if parts else 0
