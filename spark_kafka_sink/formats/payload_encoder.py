"""Encoding keys or values of a write: a column of any type into payloads by one schema."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_kafka_sink.config.format_options import Framing, PayloadFormat
from spark_kafka_sink.errors import PayloadError
from spark_kafka_sink.formats.avro.encode_plan import make_encode_plan
from spark_kafka_sink.formats.avro.encoder import Encoder as AvroEncoder
from spark_kafka_sink.formats.json import encode_plan as json_encode_plan
from spark_kafka_sink.registry.framing import prefix

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from spark_kafka_sink.config.format_options import FormatOptions, PayloadOptions, Side
    from spark_kafka_sink.formats.columnar.batch_encoder import BatchEncoder
    from spark_kafka_sink.formats.payload_schemas import PayloadSchema

#: How many rows are encoded at once: with payloads of up to 20 kB, Arrow's limit of 2 GB for a
#: column is not reached.
MOST_ROWS: Final = 100_000


class PayloadEncoder:
    """Encodes columns of one type of Arrow; any thread may use it, also several at once."""

    def __init__(self, side: PayloadOptions, schema: PayloadSchema, kind: Any) -> None:
        """Raise SchemaError if the schema cannot have values of the type."""
        self._schema_id = schema.schema_id
        is_framed = side.framing is Framing.CONFLUENT and schema.schema_id is not None
        self._prefix = prefix(schema.schema_id or 0) if is_framed else b""
        self._encoder: BatchEncoder
        if side.format is PayloadFormat.JSON:
            # With its kernel, which tasks that write Avro do not need.
            from spark_kafka_sink.formats.json.encoder import (  # noqa: PLC0415
                Encoder as JsonEncoder,
            )

            self._encoder = JsonEncoder(json_encode_plan.make_encode_plan(kind, side.side))
        else:
            plan = make_encode_plan(schema.parsed(), kind, side.side, bare_bytes=is_framed)
            self._encoder = AvroEncoder(plan)

    def encode(self, values: Any, first_row: int = 0) -> Any:
        """Return a `pyarrow.BinaryArray` of payloads; nulls remain null.

        Raises PayloadError for the first row that the schema does not have. `first_row` is the
        index of the first value in the table or task, for errors.
        """
        try:
            return self._encoder.encode(values, self._prefix)
        except PayloadError as error:
            row = first_row + (error.row or 0)
            raise error.about(row=row, schema_id=self._schema_id) from None


@lru_cache(maxsize=100)
def payload_encoder(side: PayloadOptions, schema: PayloadSchema, kind: Any) -> PayloadEncoder:
    """Return the encoder of one side, the same one for the same arguments; raises SchemaError."""
    return PayloadEncoder(side, schema, kind)


def encoded(
    batch: pa.RecordBatch,
    schemas: Mapping[Side, PayloadSchema],
    formats: FormatOptions,
    first_row: int = 0,
) -> Iterator[pa.RecordBatch]:
    """Yield a batch with its keys and values encoded, in parts if it has many rows.

    Raises PayloadError for a row that a schema does not have; `first_row` is the index of the first
    one, for errors.
    """
    names = batch.schema.names
    for start in range(0, max(batch.num_rows, 1), MOST_ROWS):
        part = batch.slice(start, MOST_ROWS)
        columns = part.columns
        for side in formats.sides:
            values = part.column(side.side)
            encoder = payload_encoder(side, schemas[side.side], values.type)
            columns[names.index(side.side)] = encoder.encode(values, first_row + start)
        yield pa.RecordBatch.from_arrays(columns, names=names)
