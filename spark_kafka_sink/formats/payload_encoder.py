"""Encoding keys or values of a write: a column of any type into payloads by one schema."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from spark_kafka_sink.config.format_options import Framing
from spark_kafka_sink.errors import PayloadError
from spark_kafka_sink.formats.avro.encode_plan import make_encode_plan
from spark_kafka_sink.formats.avro.encoder import Encoder
from spark_kafka_sink.registry.framing import prefix

if TYPE_CHECKING:
    from spark_kafka_sink.config.format_options import PayloadOptions
    from spark_kafka_sink.formats.payload_schemas import PayloadSchema


class PayloadEncoder:
    """Encodes columns of one type of Arrow; any thread may use it, also several at once."""

    def __init__(self, side: PayloadOptions, schema: PayloadSchema, kind: Any) -> None:
        """Raise SchemaError if the schema cannot have values of the type."""
        self._schema_id = schema.schema_id
        is_framed = side.framing is Framing.CONFLUENT and schema.schema_id is not None
        self._prefix = prefix(schema.schema_id or 0) if is_framed else b""
        plan = make_encode_plan(schema.parsed(), kind, side.side, bare_bytes=is_framed)
        self._encoder = Encoder(plan)

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
