"""The columns of a read whose keys or values have a format: bytes in, values out.

Records are read with their payloads as bytes, and decoded here, after and apart from whatever a
read tries again: a payload that is malformed today is malformed tomorrow.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.config.format_options import SIDES, OnDecodeError
from spark_kafka_sink.errors import KafkaError, PayloadError, SchemaError, SchemaRegistryError
from spark_kafka_sink.formats.columnar.reasons import NONE, Malformed
from spark_kafka_sink.formats.payload_decoder import (
    NO_SCHEMA,
    MalformedPayloads,
    NoDecoderError,
    payload_decoder,
)
from spark_kafka_sink.formats.payload_schemas import schemas_to_read
from spark_kafka_sink.record.arrow.schema import arrow_schema
from spark_kafka_sink.registry.framing import SCHEMA_ID_HEADERS, rows_with_schema_id_header

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from spark_kafka_sink.config.format_arguments import CallFormats
    from spark_kafka_sink.config.format_options import FormatOptions, Side
    from spark_kafka_sink.config.registry_settings import RegistrySettings
    from spark_kafka_sink.formats.payload_decoder import (
        Decoded,
        JsonPayloadDecoder,
        PayloadDecoder,
    )
    from spark_kafka_sink.formats.payload_schemas import PayloadSchema
    from spark_kafka_sink.model import TopicPartition

logger = logging.getLogger(__name__)

#: The columns that a read with onDecodeError=null adds.
DECODE_ERROR: Final = "decodeError"
RAW: Final[dict[Side, str]] = {"key": "rawKey", "value": "rawValue"}
_ADDED: Final = (DECODE_ERROR, *RAW.values())


class Values(NamedTuple):
    """The values of consecutive records."""

    batches: list[pa.RecordBatch]
    #: The first record that is left; None if there is none.
    next_offset: int | None
    #: Why it has no values; None if there was no room for them.
    error: KafkaError | None
    #: The memory that they take, in bytes.
    size: int


class _StoppedError(Exception):
    """The schema of a payload cannot be had or read: why, and the offset of its record."""

    def __init__(self, error: KafkaError, offset: int) -> None:
        super().__init__(error, offset)
        self.error = error
        self.offset = offset


class PayloadColumns:
    """The columns of one read, and the decoders of its keys and values."""

    def __init__(
        self,
        schema: pa.Schema,
        decoders: Mapping[Side, PayloadDecoder | JsonPayloadDecoder],
        on_error: OnDecodeError = OnDecodeError.FAIL,
    ) -> None:
        """Yield batches of `schema`; a side without a decoder remains bytes."""
        #: The columns of the batches.
        self.schema = schema
        self._decoders = dict(decoders)
        self._on_error = on_error
        fields = [
            field.with_type(pa.binary()) if field.name in decoders else field
            for field in schema
            if field.name not in _ADDED
        ]
        names = {field.name for field in fields}
        # Both are needed for errors, and the headers since a payload may be framed by them.
        wanted = ["offset", "headers", *(SIDES if on_error is OnDecodeError.NULL else ())]
        fields += [field for field in arrow_schema(wanted) if field.name not in names]
        #: The columns to read, with payloads as bytes.
        self.raw_schema = pa.schema(fields)

    def batches(self, batch: Any, place: TopicPartition) -> Iterator[Any]:
        """Yield a batch of `raw_schema` with typed columns, as several if it becomes too large.

        Raises PayloadError for a malformed payload, unless it becomes null, and SchemaRegistryError
        or SchemaError for one whose schema cannot be had or read.
        """
        try:
            yield from self._parts(batch, place)
        except _StoppedError as stopped:
            raise stopped.error from stopped.error.__cause__

    def _parts(self, batch: Any, place: TopicPartition) -> Iterator[Any]:
        """Do what `batches` does; `_StoppedError` has the offset of an error of a schema."""
        refused = {side: self._with_id_headers(batch, side, place) for side in self._decoders}
        yield from self._decoded(batch, list(self._decoders), {}, refused, place)

    def _with_id_headers(self, batch: Any, side: Side, place: TopicPartition) -> MalformedPayloads:
        """Return the payloads whose schema is named in a header; raise PayloadError for them.

        Such a payload has no frame, and might decode by a schema that it was not written with.
        """
        if self._decoders[side].needs_no_schema:
            return MalformedPayloads.of(NONE)
        rows = rows_with_schema_id_header(batch.column("headers"), side)
        if len(rows):
            rows = rows[np.asarray(batch.column(side).is_valid())[rows]]
        if not len(rows):
            return MalformedPayloads.of(NONE)
        header = SCHEMA_ID_HEADERS[side]
        cause = f"its schema is named in the header {header}, a framing that is not supported yet"
        if self._on_error is OnDecodeError.NULL:
            return MalformedPayloads.of(Malformed.of(rows, f"{side}: {cause}"))
        raise PayloadError(
            cause,
            topic=place.topic,
            partition=place.partition,
            offset=batch.column("offset")[int(rows[0])].as_py(),
            field=side,
            advice=f"Read the {side} as raw bytes, or set onDecodeError=null",
        )

    def values(
        self, batches: Sequence[pa.RecordBatch], place: TopicPartition, most_bytes: float
    ) -> Values:
        """Return the values of some batches of `raw_schema`, up to an error, if there is one.

        Once they take `most_bytes`, no further ones are decoded.
        """
        typed: list[pa.RecordBatch] = []
        size = 0
        for batch in batches:
            error: KafkaError | None = None
            first, end = 0, batch.num_rows
            while first < end and size < most_bytes:
                try:
                    for part in self._parts(batch.slice(first, end - first), place):
                        typed.append(part)
                        first += part.num_rows
                        size += part.nbytes
                        if size >= most_bytes:
                            break
                except (PayloadError, _StoppedError) as raised:
                    error = raised.error if isinstance(raised, _StoppedError) else raised
                    if error.retriable:
                        # A registry that is away: to ask it for another id could take minutes.
                        break
                    # Those before it, among which there may be another one, on the other side.
                    end = pc.index(batch.column("offset"), raised.offset).as_py()
            if first < batch.num_rows:
                next_offset = batch.column("offset")[first].as_py()
                is_before = error is not None and not error.retriable and first < end
                return Values(typed, next_offset, None if is_before else error, size)
        return Values(typed, None, None, size)

    def _decoded(
        self,
        batch: Any,
        sides: list[Side],
        columns: dict[str, Any],
        malformed: dict[Side, MalformedPayloads],
        place: TopicPartition,
    ) -> Iterator[Any]:
        """Decode the sides that are left; each may divide the batch further.

        Of these, `malformed` has the payloads that must not be decoded.
        """
        if not sides:
            yield self._batch(batch, columns, malformed)
            return
        side, *others = sides
        for decoded in self._outputs(side, batch, malformed[side].rows, place):
            if len(decoded.malformed.rows) and self._on_error is OnDecodeError.FAIL:
                # The caller may read again once the registry has the schema.
                self._decoders[side].forget_unknown()
                raise _error(batch, decoded, place)
            first, rows = decoded.first, len(decoded.values)
            yield from self._decoded(
                batch.slice(first, rows),
                others,
                {name: column.slice(first, rows) for name, column in columns.items()}
                | {side: decoded.values},
                {
                    name: MalformedPayloads.merged(
                        [refused, decoded.malformed] if name == side else [refused]
                    ).sliced(first, rows)
                    for name, refused in malformed.items()
                },
                place,
            )

    def _outputs(
        self, side: Side, batch: Any, refused: npt.NDArray[np.int64], place: TopicPartition
    ) -> Iterator[Decoded]:
        """Decode one side but for some rows, which become null."""
        most_reasons = 1 if self._on_error is OnDecodeError.FAIL else None
        payloads = _without(batch.column(side), refused)
        try:
            yield from self._decoders[side].decode(payloads, most_reasons)
        except NoDecoderError as stopped:
            offset = batch.column("offset")[stopped.row].as_py()
            message = (
                f"topic {place.topic!r}, partition {place.partition}, offset {offset}, schema "
                f"{stopped.schema_id}, {side}: {stopped.error}"
            )
            error = stopped.error
            named: KafkaError = (
                error.with_message(message)
                if isinstance(error, SchemaRegistryError)
                else SchemaError(message)
            )
            named.__cause__ = error
            raise _StoppedError(named, offset) from error

    def _batch(
        self,
        batch: Any,
        columns: dict[str, Any],
        malformed: dict[Side, MalformedPayloads],
    ) -> Any:
        if self._on_error is OnDecodeError.NULL:
            columns |= _error_columns(batch, malformed)
        arrays = []
        for field in self.schema:
            column = columns.get(field.name)
            column = batch.column(field.name) if column is None else column
            arrays.append(with_type(column, field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def payload_columns(
    formats: FormatOptions,
    registry: RegistrySettings | None,
    columns: pa.Schema,
    schemas: Mapping[Side, PayloadSchema],
) -> PayloadColumns:
    """Return the typed columns of a read by their schemas; sides that are no columns are skipped.

    Raises SchemaError for a column that its schema does not have.
    """
    decoders = {
        side.side: payload_decoder(
            side,
            schemas[side.side],
            columns.field(side.side).type,
            registry,
            formats.evolution,
        )
        for side in formats.sides
        if side.side in columns.names
    }
    return PayloadColumns(columns, decoders, formats.on_decode_error)


def resolved_columns(
    call: CallFormats,
    columns: Sequence[str] | None,
    topics: Sequence[str] | None,
    *,
    include_headers: bool = False,
) -> PayloadColumns | None:
    """Return the typed columns of a read outside of Spark; None if all of them are bytes.

    The registry is asked for the schemas of those sides that are selected. `columns` may name the
    columns of malformed payloads, which are added otherwise. `topics` is None if a pattern selects
    them. Raises ConfigError, SchemaError or SchemaRegistryError.
    """
    added = _ADDED if call.formats.has_error_columns else ()
    records = None if columns is None else [name for name in columns if name not in added]
    raw = arrow_schema(records, include_headers=include_headers)
    formats = replace(
        call.formats,
        key=call.formats.key if "key" in raw.names else None,
        value=call.formats.value if "value" in raw.names else None,
    )
    if not formats.sides:
        return None
    schemas = schemas_to_read(formats, call.registry, topics)
    for side, schema in schemas.items():
        logger.info("reads %ss by %s", side, schema)
    types: dict[str, Any] = {side: schema.column_type() for side, schema in schemas.items()}
    fields = {field.name: field.with_type(types.get(field.name, field.type)) for field in raw}
    if added:
        fields |= {
            name: pa.field(name, pa.string() if name == DECODE_ERROR else pa.binary())
            for name in added
        }
    names = list(raw.names if columns is None else columns)
    for name in added:
        if names.count(name) > 1:
            raise SchemaError(f"the column {name!r} is selected twice: remove one of them")
    names += [name for name in added if name not in names]
    typed = pa.schema([fields[name] for name in names])
    return payload_columns(formats, call.registry, typed, schemas)


def with_type(values: Any, wanted: Any) -> Any:
    """Return an array with another type of the same values: others may be null, or other names.

    Arrow's own cast refuses nulls in a struct that is null itself, if its fields may not be null.
    """
    if values.type == wanted:
        return values
    if pa.types.is_struct(wanted):
        fields = [wanted.field(number) for number in range(wanted.num_fields)]
        children = [with_type(values.field(at), field.type) for at, field in enumerate(fields)]
        validity = values.is_valid().buffers()[1] if values.null_count else None
        return pa.StructArray.from_buffers(wanted, len(values), [validity], children=children)
    if pa.types.is_list(wanted):
        child = with_type(values.values, wanted.value_type)
    elif pa.types.is_map(wanted):
        entries = [values.keys, with_type(values.items, wanted.item_type)]
        child = pa.StructArray.from_arrays(entries, fields=[wanted.key_field, wanted.item_field])
    else:
        return values.cast(wanted)
    return pa.Array.from_buffers(
        wanted, len(values), values.buffers()[:2], offset=values.offset, children=[child]
    )


def _without(payloads: Any, rows: npt.NDArray[np.int64]) -> Any:
    """Return payloads with nulls in some rows."""
    if not len(rows):
        return payloads
    is_refused = np.zeros(len(payloads), np.bool_)
    is_refused[rows] = True
    return pc.if_else(pa.array(is_refused), pa.scalar(None, pa.binary()), payloads)


def _error_columns(batch: Any, malformed: dict[Side, MalformedPayloads]) -> dict[str, Any]:
    """Return what is wrong with each row, and its bytes; null where nothing is."""
    errors = pa.nulls(batch.num_rows, pa.string())
    for payloads in malformed.values():
        if len(payloads.rows):
            numbers = np.full(batch.num_rows, -1, np.int64)
            numbers[payloads.rows] = np.arange(len(payloads.rows))
            texts = _reasons(payloads).take(pa.array(numbers, mask=numbers < 0))
            both = pc.binary_join_element_wise(errors, texts, "; ")
            errors = pc.coalesce(both, errors, texts)
    masked = errors.is_valid()
    nothing = pa.scalar(None, pa.binary())
    raw = {RAW[side]: pc.if_else(masked, batch.column(side), nothing) for side in SIDES}
    return {DECODE_ERROR: errors, **raw}


def _reasons(malformed: MalformedPayloads) -> Any:
    """Return why payloads are malformed, with the ids of their schemas."""
    has_id = malformed.schema_ids != NO_SCHEMA
    if not has_id.any():
        return malformed.reasons
    ids = pa.array(malformed.schema_ids).cast(pa.string())
    named = pc.binary_join_element_wise(malformed.reasons, " (schema ", ids, ")", "")
    return pc.if_else(pa.array(has_id), named, malformed.reasons)


def _error(batch: Any, decoded: Decoded, place: TopicPartition) -> PayloadError:
    malformed = decoded.malformed
    schema_id = int(malformed.schema_ids[0])
    field, _, cause = malformed.reasons[0].as_py().partition(": ")
    return PayloadError(
        cause,
        field=field,
        topic=place.topic,
        partition=place.partition,
        offset=batch.column("offset")[int(malformed.rows[0])].as_py(),
        schema_id=None if schema_id == NO_SCHEMA else schema_id,
        advice="To go on, set onDecodeError=null: such a payload becomes null, and its bytes are "
        "shown in another column",
    )
