"""Keys and values that have a format: their schemas on the driver, their encoders in the tasks.

A schema is resolved once for each write, before a task runs, and its column is checked with it.
Tasks get the schema's text and id with the writer, and ask no registry. Only they load the kernel.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkTypeError
from pyspark.sql.types import ArrayType, MapType, StructType

from spark_kafka_sink.config.format_options import SIDES
from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.payload_schemas import PayloadSchema, schemas_to_write
from spark_kafka_sink.spark.announcements import announce, report_logger
from spark_kafka_sink.spark.arrow_types import arrow_columns
from spark_kafka_sink.spark.report_store import driver_directory, oldest_first, replace_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.types import DataType, StructField

    from spark_kafka_sink.config.format_options import FormatOptions, Side
    from spark_kafka_sink.config.sink_options import SinkOptions
    from spark_kafka_sink.record.refused_rows import RefusedRows

logger = logging.getLogger(__name__)

#: How many streams a process of the driver remembers, and how many are in files.
_MOST_STREAMS: Final = 100
#: The directory of the files.
_DIRECTORY: Final = "spark-kafka-sink-schemas"

#: The types of Spark that reach Python as structs of bytes in Spark's own encoding, by their names,
#: since older versions have none of them.
_INTERNAL_TYPES: Final = frozenset({"variant", "geometry", "geography"})

# --- on the driver


def schemas_of_write(
    columns: StructType, options: SinkOptions, topic: str | None, *, is_dry_run: bool
) -> dict[Side, PayloadSchema]:
    """Return the schemas of keys and values that have a format; see `schemas_to_write`."""
    formats = options.formats
    types = {
        side.side: _arrow_type(columns[side.side])
        for side in formats.sides
        if side.side in columns.names
    }
    return schemas_to_write(types, formats, options.registry, topic, is_dry_run=is_dry_run)


def _arrow_type(column: StructField) -> pa.DataType:
    """Return the type of a column as Spark hands it over; raises SchemaError if it cannot."""
    internal = _internal_type(column.dataType)
    if internal is not None:
        raise SchemaError(
            f"column {column.name!r} has the type {internal}, which has no equivalent in a format "
            "of keys and values: cast it to string"
        )
    try:
        kind: pa.DataType = arrow_columns(StructType([column])).field(0).type
    except (PySparkTypeError, ValueError) as error:
        # A ValueError is Arrow's, of a part without a type that cannot be null: that of array().
        raise SchemaError(
            f"column {column.name!r} is {column.dataType.simpleString()}, which Spark cannot hand "
            f"to a Python data source ({error}): cast it"
        ) from error
    return kind


def _internal_type(kind: DataType) -> str | None:
    """Return the first type that Spark hands over as a struct of its own bytes; None without."""
    if kind.typeName() in _INTERNAL_TYPES:
        return kind.typeName()
    parts: list[DataType] = []
    if isinstance(kind, StructType):
        parts = [field.dataType for field in kind]
    elif isinstance(kind, ArrayType):
        parts = [kind.elementType]
    elif isinstance(kind, MapType):
        parts = [kind.keyType, kind.valueType]
    return next(filter(None, map(_internal_type, parts)), None)


class StreamSchemas:
    """The schemas of the streams of this application, by their tokens. Thread-safe.

    A stream asks for its writer with every micro-batch, and keeps its schemas while it runs. They
    are also in files of the driver, for another process: the one before may have died, and the
    registry may be away or have a newer version. A query that is started again has a new token.
    """

    def __init__(self) -> None:
        self._schemas: OrderedDict[str, dict[Side, PayloadSchema]] = OrderedDict()
        self._lock = threading.Lock()

    def of(
        self, token: str, columns: StructType, options: SinkOptions, topic: str | None
    ) -> dict[Side, PayloadSchema]:
        """Return the schemas of a stream; raises what `schemas_of_write` does."""
        with self._lock:
            schemas = self._schemas.get(token)
            if schemas is not None:
                self._schemas.move_to_end(token)
                return schemas
        schemas = _kept(token) or _resolved(token, columns, options, topic)
        with self._lock:
            self._schemas[token] = schemas
            if len(self._schemas) > _MOST_STREAMS:
                self._schemas.popitem(last=False)
        return schemas


def _resolved(
    token: str, columns: StructType, options: SinkOptions, topic: str | None
) -> dict[Side, PayloadSchema]:
    """Resolve the schemas of a stream, keep them, and print those that the user did not choose."""
    schemas = schemas_of_write(columns, options, topic, is_dry_run=True)
    if options.formats.auto_register:
        schemas = schemas_of_write(columns, options, topic, is_dry_run=False)
    for side in options.formats.sides:
        if side.schema.kind == "latest":
            announce(report_logger, f"Kafka: writes {side.side}s by {schemas[side.side]}")
    _keep(token, schemas)
    return schemas


def _kept(token: str) -> dict[Side, PayloadSchema] | None:
    """Return the schemas that another process of the driver has kept; None if none has."""
    directory = driver_directory(_DIRECTORY)
    if directory is None:
        return None
    try:
        kept = json.loads((directory / f"{token}.json").read_text("utf-8"))
        return {side: PayloadSchema.from_json(kept[side]) for side in SIDES if side in kept}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        logger.warning(
            "Kafka: the schemas of a stream cannot be read (%s), and are resolved again", error
        )
        return None


def _keep(token: str, schemas: Mapping[Side, PayloadSchema]) -> None:
    directory = driver_directory(_DIRECTORY)
    if directory is None:
        return
    kept = json.dumps({side: schema.to_json() for side, schema in schemas.items()})
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        target = directory / f"{token}.json"
        earlier = [path for path in oldest_first(directory) if path != target]
        replace_file(target, kept, durable=False)
        for path in earlier[: max(len(earlier) + 1 - _MOST_STREAMS, 0)]:
            path.unlink(missing_ok=True)
    except OSError as error:
        logger.warning(
            "Kafka: the schemas of a stream cannot be kept (%s): if its process of the driver "
            "dies, they are resolved again",
            error,
        )


stream_schemas: Final = StreamSchemas()

# --- in the tasks


def encoded_task(
    batches: Iterator[pa.RecordBatch],
    schemas: Mapping[Side, PayloadSchema],
    formats: FormatOptions,
    refused: RefusedRows | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a task with their keys and values encoded.

    Raises PayloadError for a row that a schema does not have, with its index in the task, unless
    `refused` takes it.
    """
    from spark_kafka_sink.formats.payload_encoder import encoded

    first_row = 0
    for batch in batches:
        yield from encoded(batch, schemas, formats, first_row, refused)
        first_row += batch.num_rows
