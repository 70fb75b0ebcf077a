"""Keys and values that have a format: their schemas on the driver, their encoders in the tasks.

A schema is resolved once for each write, before a task runs, and its column is checked with it.
Tasks get the schema's text and id with the writer, and ask no registry. Only they load the kernel.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.types import StructType

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.avro.derived import derive_schema
from spark_kafka_sink.formats.avro.encode_plan import make_encode_plan
from spark_kafka_sink.formats.payload_schemas import schema_to_write
from spark_kafka_sink.registry.client import registry_client
from spark_kafka_sink.spark.arrow_types import arrow_columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql.types import StructField

    from spark_kafka_sink.config.format_options import FormatOptions, Side
    from spark_kafka_sink.config.sink_options import SinkOptions
    from spark_kafka_sink.formats.payload_schemas import PayloadSchema

#: How many streams a process of the driver remembers.
_MOST_STREAMS: Final = 100

# --- on the driver


def schemas_to_write(
    columns: StructType, options: SinkOptions, topic: str | None, *, is_dry_run: bool
) -> dict[Side, PayloadSchema]:
    """Return the schemas of keys and values that have a format, and check their columns.

    `topic` is None if a column names it. In a dry run nothing is registered; whoever registers has
    made one before, so that nothing is registered for a write that cannot be. Raises ConfigError,
    SchemaError or SchemaRegistryError.
    """
    formats = options.formats
    client = None if options.registry is None else registry_client(options.registry)
    types = {}
    for side in formats.sides:
        if side.side not in columns.names:
            raise SchemaError(
                f"{side.side}Format={side.format} needs a column {side.side!r}, and there is none: "
                "add it, or remove the option"
            )
        types[side.side] = _arrow_type(columns[side.side])
    schemas: dict[Side, PayloadSchema] = {}
    for side in formats.sides:
        kind = types[side.side]
        schema = schema_to_write(
            side, formats, client, topic, partial(derive_schema, kind), is_dry_run=is_dry_run
        )
        make_encode_plan(schema.parsed(), kind, side.side)
        schemas[side.side] = schema
    return schemas


def _arrow_type(column: StructField) -> pa.DataType:
    """Return the type of a column as Spark hands it over; raises SchemaError if it cannot."""
    try:
        kind: pa.DataType = arrow_columns(StructType([column])).field(0).type
    except PySparkTypeError as error:
        raise SchemaError(
            f"column {column.name!r} is {column.dataType.simpleString()}, which Spark cannot hand "
            f"to a Python data source ({error}): cast it"
        ) from error
    return kind


class _StreamSchemas:
    """The schemas of the streams of this process of the driver, by their tokens. Thread-safe.

    A stream asks for its writer with every micro-batch, and keeps its schemas while the process
    lives. If it has died, `latest` is resolved again.
    """

    def __init__(self) -> None:
        self._schemas: OrderedDict[str, dict[Side, PayloadSchema]] = OrderedDict()
        self._lock = threading.Lock()

    def of(
        self, token: str, columns: StructType, options: SinkOptions, topic: str | None
    ) -> dict[Side, PayloadSchema]:
        """Return the schemas of a stream; raises what `schemas_to_write` does."""
        with self._lock:
            schemas = self._schemas.get(token)
            if schemas is not None:
                self._schemas.move_to_end(token)
        if schemas is None:
            schemas = schemas_to_write(columns, options, topic, is_dry_run=True)
            if options.formats.auto_register:
                schemas = schemas_to_write(columns, options, topic, is_dry_run=False)
            with self._lock:
                self._schemas[token] = schemas
                if len(self._schemas) > _MOST_STREAMS:
                    self._schemas.popitem(last=False)
        return schemas


stream_schemas: Final = _StreamSchemas()

# --- in the tasks


def encoded(
    batches: Iterator[pa.RecordBatch], schemas: Mapping[Side, PayloadSchema], formats: FormatOptions
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a task with their keys and values encoded.

    Raises PayloadError for a row that a schema does not have, with its index in the task.
    """
    from spark_kafka_sink.formats.payload_encoder import payload_encoder

    first_row = 0
    for batch in batches:
        names, columns = batch.schema.names, batch.columns
        for side in formats.sides:
            schema = schemas[side.side]
            values = batch.column(side.side)
            payloads = payload_encoder(side, schema, values.type).encode(values, first_row)
            columns[names.index(side.side)] = payloads
        yield pa.RecordBatch.from_arrays(columns, names=names)
        first_row += batch.num_rows
