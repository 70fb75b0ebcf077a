"""Encoding keys or values of a write: a column of any type into payloads by one schema."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.config.format_options import Framing, PayloadFormat
from spark_kafka_sink.errors import PayloadError, SchemaError
from spark_kafka_sink.formats.avro.encode_plan import make_encode_plan
from spark_kafka_sink.formats.avro.encoder import Encoder as AvroEncoder
from spark_kafka_sink.formats.columnar.inputs import MALFORMED, MALFORMED_ADVICE
from spark_kafka_sink.formats.columnar.sources import is_any_string
from spark_kafka_sink.formats.json import encode_plan as json_encode_plan
from spark_kafka_sink.record.arrow.record_columns import first_bad_row
from spark_kafka_sink.record.refused_rows import RefusedPayloads, RowErrorKind
from spark_kafka_sink.registry.framing import prefix

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from spark_kafka_sink.config.format_options import FormatOptions, PayloadOptions, Side
    from spark_kafka_sink.formats.columnar.batch_encoder import BatchEncoder, Failure
    from spark_kafka_sink.formats.json.encoder import Encoder as JsonEncoder
    from spark_kafka_sink.formats.payload_schemas import PayloadSchema
    from spark_kafka_sink.record.refused_rows import RefusedRows

#: How many rows are encoded at once: with payloads of up to 20 kB, Arrow's limit of 2 GB for a
#: column is not reached.
MOST_ROWS: Final = 100_000
#: What `_json_encoder` writes before a value; behind it is a brace.
_BEFORE: Final = b'{"v":'
_KINDS: Final[dict[Side, RowErrorKind]] = {"key": RowErrorKind.KEY, "value": RowErrorKind.VALUE}


class PayloadEncoder:
    """Encodes columns of one type of Arrow; any thread may use it, also several at once."""

    def __init__(self, side: PayloadOptions, schema: PayloadSchema, kind: Any) -> None:
        """Raise SchemaError if the schema cannot have values of the type."""
        self._side = side.side
        self._schema_id = schema.schema_id
        # Without an id but with a subject it is that of a dry run, which registers nothing.
        is_known = schema.schema_id is not None or schema.subject is not None
        is_framed = side.framing is Framing.CONFLUENT and is_known
        self._prefix = prefix(schema.schema_id or 0) if is_framed else b""
        self._encoder: BatchEncoder
        if side.format is PayloadFormat.JSON:
            # With its kernel, which tasks that write Avro do not need.
            from spark_kafka_sink.formats.json import encoder as json_encoder  # noqa: PLC0415

            self._encoder = json_encoder.Encoder(json_encode_plan.make_encode_plan(kind, side.side))
        else:
            plan = make_encode_plan(schema.parsed(), kind, side.side, bare_bytes=is_framed)
            self._encoder = AvroEncoder(plan)

    def encode(self, values: Any, first_row: int = 0, refused: RefusedRows | None = None) -> Any:
        """Return a `pyarrow.BinaryArray` of payloads; nulls remain null.

        Raises PayloadError for the first row that the schema does not have. With `refused`, such
        rows are added to it, and their payloads are null. `first_row` is the index of the first
        value in the table or task, for errors.
        """
        try:
            if refused is None:
                return self._encoder.encode(values, self._prefix)
            payloads, failures = self._encoder.encode_good(values, self._prefix)
        except PayloadError as error:
            row = None if error.row is None else first_row + error.row
            raise error.about(row=row, schema_id=self._schema_id) from None
        if failures:
            self._refuse(failures, values, first_row, refused)
        return payloads

    def _refuse(
        self, failures: Sequence[Failure], values: Any, first_row: int, refused: RefusedRows
    ) -> None:
        """Add the rows that the schema does not have, and for dead letters their values as JSON."""
        if refused.keeps_payloads:
            rows = np.sort(np.concatenate([failure.rows for failure in failures]))
            texts = cache(partial(self._texts, values, failures, first_row, rows))
            refused.keep(RefusedPayloads(self._side, first_row + rows, values, texts))
        for failure in failures:
            reason = failure.error.about(schema_id=self._schema_id)
            refused.add(_KINDS[self._side], reason, first_row + failure.rows)

    def _texts(
        self,
        values: Any,
        failures: Sequence[Failure],
        first_row: int,
        rows: npt.NDArray[np.int64],
    ) -> Any:
        """Return rows as JSON; raise the error of one that refers to other memory."""
        with suppress(PayloadError):
            return texts_of(values, rows)
        for failure in failures:
            for row in failure.rows.tolist():
                if not _is_readable(values.slice(row, 1)):
                    raise failure.error.about(row=first_row + row, schema_id=self._schema_id)
        return _texts_one_by_one(values, rows)


@lru_cache(maxsize=100)
def payload_encoder(side: PayloadOptions, schema: PayloadSchema, kind: Any) -> PayloadEncoder:
    """Return the encoder of one side, the same one for the same arguments; raises SchemaError."""
    return PayloadEncoder(side, schema, kind)


def encoded(
    batch: pa.RecordBatch,
    schemas: Mapping[Side, PayloadSchema],
    formats: FormatOptions,
    first_row: int = 0,
    refused: RefusedRows | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield a batch with its keys and values encoded, in parts if it has many rows.

    Raises PayloadError for a row that a schema does not have, unless `refused` takes it;
    `first_row` is the index of the first one, for errors.
    """
    names = batch.schema.names
    for start in range(0, max(batch.num_rows, 1), MOST_ROWS):
        part = batch.slice(start, MOST_ROWS)
        columns = part.columns
        for side in formats.sides:
            values = part.column(side.side)
            encoder = payload_encoder(side, schemas[side.side], values.type)
            columns[names.index(side.side)] = encoder.encode(values, first_row + start, refused)
        yield pa.RecordBatch.from_arrays(columns, names=names)


def _check_readable(values: Any) -> None:
    """Raise PayloadError unless Python may read all rows of a column."""
    if not _is_readable(values):
        raise PayloadError(MALFORMED, advice=MALFORMED_ADVICE)


def _is_readable(array: Any) -> bool:
    """Return whether the rows of an array refer only to its own memory."""
    try:
        return first_bad_row(array) is None
    except pa.ArrowInvalid:
        return False


def texts_of(values: Any, rows: npt.NDArray[np.int64]) -> Any:
    """Return rows of a column as JSON, as Spark's `to_json` writes it, in a `pyarrow.BinaryArray`.

    What `to_json` does not have is the text of `text_of`. Raises PayloadError if the column refers
    to data outside of its buffers, perhaps in other rows.
    """
    try:
        encoder = _json_encoder(values.type)
    except SchemaError:
        # JSON does not have all types.
        _check_readable(values)
        return _texts_one_by_one(values, rows)
    texts, failures = encoder.encode_rows(pa.StructArray.from_arrays([values], names=["v"]), rows)
    texts = pc.binary_slice(texts, len(_BEFORE), -1)
    if not failures:
        return texts
    _check_readable(values)
    failed = np.sort(np.concatenate([failure.rows for failure in failures]))
    index = np.arange(len(rows))
    index[failed] = len(rows) + np.arange(failed.size)
    others = _texts_one_by_one(values, rows[failed])
    return pa.concat_arrays([texts, others]).take(pa.array(index))


@lru_cache(maxsize=100)
def _json_encoder(kind: Any) -> JsonEncoder:
    """Return the encoder of a struct with one field; raises SchemaError if JSON lacks its type."""
    from spark_kafka_sink.formats.json import (  # noqa: PLC0415  only bad rows need it
        encoder as json_encoder,
    )

    return json_encoder.Encoder(json_encode_plan.make_encode_plan(pa.struct([("v", kind)])))


def _texts_one_by_one(values: Any, rows: npt.NDArray[np.int64]) -> Any:
    return pa.array([text_of(values[row]) for row in rows.tolist()], pa.string()).cast(pa.binary())


def text_of(scalar: Any) -> str:
    """Return a value of Arrow as JSON for people, whatever is in it; bytes are in Base64."""
    return json.dumps(_readable(scalar), ensure_ascii=False)


def _readable(scalar: Any) -> Any:
    """Return a value as what JSON has."""
    kind = scalar.type
    value: Any
    if not scalar.is_valid:
        value = None
    elif pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        value = _readable(scalar.value)
    elif pa.types.is_struct(kind):
        value = {field.name: _readable(scalar[index]) for index, field in enumerate(kind)}
    elif isinstance(scalar, pa.ListScalar):
        items: Any = scalar.values
        value = [_readable(item) for item in items]
    elif hasattr(scalar, "as_buffer"):
        content = scalar.as_buffer().to_pybytes()
        value = (
            content.decode(errors="replace")
            if is_any_string(kind)
            else base64.b64encode(content).decode()
        )
    elif pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        value = scalar.as_py()
    else:
        # Python does not have all moments and decimals.
        value = scalar.cast(pa.string()).as_py()
    return value
