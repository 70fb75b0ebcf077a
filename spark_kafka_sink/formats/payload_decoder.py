"""Decoding keys or values of a read: each payload by its own schema, all into one column.

With Confluent's framing a payload names its schema, so that a batch may have payloads of several.
Those of each schema are decoded together, and then return to their places.

An output is bounded (`MOST_BYTES`), since a payload may become far larger than it is. A batch that
becomes more is decoded as several outputs.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.config.format_options import EvolutionMode, Framing, PayloadFormat
from spark_kafka_sink.display import listed
from spark_kafka_sink.errors import KafkaError, SchemaError
from spark_kafka_sink.formats.avro.columns import columns_of
from spark_kafka_sink.formats.avro.decoder import Decoder
from spark_kafka_sink.formats.avro.encode_plan import make_encode_plan
from spark_kafka_sink.formats.avro.encoder import Encoder
from spark_kafka_sink.formats.avro.narrowing import narrowed, unread_parts
from spark_kafka_sink.formats.avro.plan import make_plan
from spark_kafka_sink.formats.avro.schema import Primitive
from spark_kafka_sink.formats.columnar.batch_decoder import MOST_BYTES
from spark_kafka_sink.formats.columnar.reasons import NONE, Malformed
from spark_kafka_sink.formats.json.plan import make_plan as make_json_plan
from spark_kafka_sink.formats.json.types import narrowed as narrowed_json
from spark_kafka_sink.formats.payload_schemas import (
    UnknownSchemaError,
    UnreadableSchemaError,
    writers_schema,
)
from spark_kafka_sink.registry.client import registry_client
from spark_kafka_sink.registry.framing import PREFIX_BYTES, Unframed, schema_ids, why_all_unframed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from spark_kafka_sink.config.format_options import PayloadOptions
    from spark_kafka_sink.config.registry_settings import RegistrySettings
    from spark_kafka_sink.formats.avro.schema import Schema
    from spark_kafka_sink.formats.columnar.batch_decoder import BatchDecoder
    from spark_kafka_sink.formats.payload_schemas import PayloadSchema

logger = logging.getLogger(__name__)

#: In the place of an id, of a payload without one.
NO_SCHEMA: Final = -1


class MalformedPayloads(NamedTuple):
    """Payloads that have no value, and why: by their rows, in order."""

    rows: npt.NDArray[np.int64]
    #: A `pyarrow.StringArray` of sentences that name the key or value, and the field in it.
    reasons: Any
    #: The ids of their schemas; -1 if they have none.
    schema_ids: npt.NDArray[np.int64]

    @classmethod
    def of(cls, malformed: Malformed, schema_id: int = NO_SCHEMA) -> MalformedPayloads:
        """Return rows with the same schema, or without one."""
        ids = np.full(len(malformed.rows), schema_id, np.int64)
        return cls(malformed.rows, malformed.reasons, ids)

    @classmethod
    def merged(cls, parts: Sequence[MalformedPayloads]) -> MalformedPayloads:
        """Return the rows of all parts, in order."""
        parts = [part for part in parts if len(part.rows)]
        if len(parts) < 2:  # noqa: PLR2004
            return parts[0] if parts else cls.of(NONE)
        rows = np.concatenate([part.rows for part in parts])
        order = np.argsort(rows, kind="stable")
        reasons = pa.concat_arrays([part.reasons for part in parts]).take(pa.array(order))
        ids = np.concatenate([part.schema_ids for part in parts])
        return cls(rows[order], reasons, ids[order])

    def sliced(self, first: int, count: int) -> MalformedPayloads:
        """Return those of `count` rows from `first` on, which is row 0 then."""
        begin, end = np.searchsorted(self.rows, (first, first + count)).tolist()
        return MalformedPayloads(
            self.rows[begin:end] - first,
            self.reasons.slice(begin, end - begin),
            self.schema_ids[begin:end],
        )


@dataclass(frozen=True, slots=True)
class Decoded:
    """The values of consecutive payloads, from the row `first` of the batch on."""

    first: int
    values: Any
    #: By the row in the batch; these are null in `values`.
    malformed: MalformedPayloads


#: Gives bytes the length that Confluent's serializers leave out behind their framing.
_BYTES: Final = Encoder(make_encode_plan(Primitive("bytes"), pa.binary()))
_MOST_BYTES_OF_ONE: Final = 2**31 - 1
#: How many ids may be unknown. Payloads without a frame have many.
_MOST_UNKNOWN: Final = 1000
#: How many batches at most do not ask again for an id that was unknown, and for how many seconds:
#: a stream may take hours for so many batches.
_MOST_SKIPS: Final = 1000
_MOST_SECONDS: Final = 60.0


@dataclass(slots=True)
class _Unknown:
    """An id that the registry did not have, and how many batches do not ask for it again."""

    reason: str
    skips: int
    #: By the clock of the decoder: then the next batch asks for it, whatever is left of `skips`.
    asked_again_at: float
    skipped: int = 0


class NoDecoderError(Exception):
    """The schema of a payload cannot be had, or not be read."""

    def __init__(self, row: int, schema_id: int, error: KafkaError) -> None:
        super().__init__(row, schema_id, error)
        #: The payload's row in the batch.
        self.row = row
        self.schema_id = schema_id
        #: Why.
        self.error = error


class JsonPayloadDecoder:
    """Decodes payloads of JSON into a column of one type; any thread may use it."""

    #: Whether a payload that names its schema in a header can be read nevertheless.
    needs_no_schema: Final = True

    def __init__(self, kind: Any, name: str = "value") -> None:
        """Set the type of the values, and what errors call the payload: `name`."""
        # With its kernel, which reads of Avro do not need.
        from spark_kafka_sink.formats.json.decoder import (  # noqa: PLC0415
            Decoder as JsonDecoder,
        )

        self.type: Any = kind
        self._decoder = JsonDecoder(make_json_plan(kind), value=name)

    def decode(self, payloads: Any, most_reasons: int | None = None) -> Iterator[Decoded]:
        """Decode a `pyarrow.BinaryArray`; nulls remain null.

        With `most_reasons`, the outputs have only the first malformed payloads, so many of them.
        """
        yield from _unframed(self._decoder, payloads, most_reasons)

    def forget_unknown(self) -> None:
        """Forget nothing: no payload names a schema."""


def _unframed(decoder: BatchDecoder, payloads: Any, most_reasons: int | None) -> Iterator[Decoded]:
    """Decode payloads of one schema."""
    for output in decoder.decode(payloads, most_reasons=most_reasons):
        yield Decoded(output.first, output.values, MalformedPayloads.of(output.malformed))


class PayloadDecoder:
    """Decodes payloads into the column of a reader's schema.

    `writers` is the schema of all payloads if they have no framing. With Confluent's framing it
    returns the schema of an id, or raises `UnknownSchemaError` or `UnreadableSchemaError`. Any
    thread may use a decoder, also several at once.
    """

    needs_no_schema: Final = False

    def __init__(
        self,
        reader: Schema,
        writers: Schema | Callable[[int], Schema],
        most_bytes: int = MOST_BYTES,
        name: str = "value",
        *,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Set what errors call the payload: `name`.

        `clock` returns seconds; without it, only batches count until an unknown id is asked again.
        """
        self._reader = reader
        self._clock = clock or (lambda: 0.0)
        self._name = name
        self._most_bytes = most_bytes
        #: The decoders of ids, or why there will never be one.
        self._by_id: dict[int, Decoder | str] = {}
        self._unknown: dict[int, _Unknown] = {}
        #: The ids of the schema "bytes": behind the frame are the bytes, without their length.
        self._bare: set[int] = set()
        self._writers = writers
        self._only = None if callable(writers) else self._decoder_of(writers)
        #: The type of the values.
        self.type: Any = columns_of(reader).type

    def decode(self, payloads: Any, most_reasons: int | None = None) -> Iterator[Decoded]:
        """Decode a `pyarrow.BinaryArray`; nulls remain null.

        The outputs have all rows, in their order. With `most_reasons`, they have only the first
        malformed payloads of each schema, so many of them. Raises NoDecoderError for a schema that
        the columns cannot have, and for a KafkaError of `writers`.
        """
        if self._only is not None:
            yield from _unframed(self._only, payloads, most_reasons)
            return
        ids = schema_ids(payloads)
        first = 0
        while first < len(ids):
            decoded = self._next(payloads, ids, first, most_reasons)
            yield decoded
            first += len(decoded.values)

    def forget_unknown(self) -> None:
        """Forget the ids that the registry did not have, so that it is asked again."""
        self._unknown.clear()

    def _next(
        self, payloads: Any, ids: npt.NDArray[np.int64], first: int, most_reasons: int | None
    ) -> Decoded:
        """Decode rows from `first` on: all that are left, or half of them until they fit."""
        rows = len(ids) - first
        while True:
            part_ids = ids[first : first + rows]
            try:
                decoded = self._together(payloads.slice(first, rows), part_ids, most_reasons)
            except NoDecoderError as error:
                error.row += first
                raise
            if decoded is not None:
                values, malformed = decoded
                return Decoded(first, values, malformed._replace(rows=first + malformed.rows))
            rows = (rows + 1) // 2

    def _together(
        self, payloads: Any, ids: npt.NDArray[np.int64], most_reasons: int | None
    ) -> tuple[Any, MalformedPayloads] | None:
        """Decode rows of any schemas; return None if they become too much for one output.

        Rows of one schema are decoded as far as they fit.
        """
        if (ids == ids[0]).all():
            return self._group(payloads, np.arange(len(ids)), int(ids[0]), most_reasons)
        order = np.argsort(ids, kind="stable")
        groups = np.split(order, np.flatnonzero(np.diff(ids[order])) + 1)
        malformed: list[MalformedPayloads] = []
        parts: list[Any] = []
        size = 0
        for rows in groups:
            schema_id = int(ids[rows[0]])
            chosen = payloads.take(pa.array(rows))
            values, why = self._group(chosen, rows, schema_id, most_reasons)
            if len(values) < len(rows):
                return None
            malformed.append(why._replace(rows=rows[why.rows]))
            parts.append(values)
            size += values.nbytes
            if size > self._most_bytes:
                return None
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        values = pa.concat_arrays(parts).take(pa.array(places))
        return values, MalformedPayloads.merged(malformed)

    def _group(
        self,
        payloads: Any,
        rows: npt.NDArray[np.int64],
        schema_id: int,
        most_reasons: int | None,
    ) -> tuple[Any, MalformedPayloads]:
        """Decode payloads of one schema, as many as are an output; `rows` is where they are."""
        if schema_id == Unframed.NULL:
            return pa.nulls(len(rows), self.type), MalformedPayloads.of(NONE)
        if schema_id < 0:
            payloads = payloads.slice(0, most_reasons)
            reasons = pc.binary_join_element_wise(
                f"{self._name}: it ", why_all_unframed(payloads), ""
            )
            unframed = Malformed(np.arange(len(payloads)), reasons)
            return pa.nulls(len(rows), self.type), MalformedPayloads.of(unframed)
        try:
            decoder = self._decoder(schema_id)
        except KafkaError as error:
            raise NoDecoderError(int(rows[0]), schema_id, error) from error
        if isinstance(decoder, str):
            unknown = Malformed.of(np.arange(len(rows))[:most_reasons], decoder)
            return pa.nulls(len(rows), self.type), MalformedPayloads.of(unknown, schema_id)
        skipped = PREFIX_BYTES
        if schema_id in self._bare:
            # Without an end, Arrow fails if one of several values is empty.
            bare = pc.binary_slice(payloads, PREFIX_BYTES, _MOST_BYTES_OF_ONE)
            payloads, skipped = _BYTES.encode(bare), 0
        output = next(decoder.decode(payloads, skipped, most_reasons=most_reasons))
        return output.values, MalformedPayloads.of(output.malformed, schema_id)

    def _decoder(self, schema_id: int) -> Decoder | str:
        """Return the decoder of an id, or why there is none."""
        known = self._by_id.get(schema_id)
        if known is not None:
            return known
        unknown = self._unknown.get(schema_id)
        if (
            unknown is not None
            and unknown.skipped < unknown.skips
            and self._clock() < unknown.asked_again_at
        ):
            unknown.skipped += 1
            return unknown.reason
        if not callable(self._writers):
            raise TypeError("payloads without framing have no ids")
        try:
            writer = self._writers(schema_id)
            known = self._decoder_of(writer)
        except UnknownSchemaError as error:
            return self._remember(schema_id, f"{self._name}: {error}")
        except UnreadableSchemaError as error:
            known = f"{self._name}: {error}"
        else:
            if writer.type == "bytes":
                self._bare.add(schema_id)
        self._by_id[schema_id] = known
        self._unknown.pop(schema_id, None)
        return known

    def _remember(self, schema_id: int, reason: str) -> str:
        """Keep an unknown id, so that the next batches do not ask again: first one, then more.

        The registry may have it later, and until then rows with it are lost or set aside.
        """
        skips = self._unknown[schema_id].skips if schema_id in self._unknown else 0
        self._unknown[schema_id] = _Unknown(
            reason, min(2 * skips + 1, _MOST_SKIPS), self._clock() + _MOST_SECONDS
        )
        if len(self._unknown) > _MOST_UNKNOWN:
            raise SchemaError(
                f"the registry has no schema for more than {_MOST_UNKNOWN} ids in the "
                f"{self._name}s of the topic: if these have no framing, set {self._name}Framing="
                f"none, or read them as raw bytes"
            )
        return reason

    def _decoder_of(self, writer: Schema) -> Decoder:
        return Decoder(make_plan(writer, self._reader), self._most_bytes, self._name)


@lru_cache(maxsize=100)
def payload_decoder(
    side: PayloadOptions,
    schema: PayloadSchema,
    wanted: Any,
    registry: RegistrySettings | None = None,
    evolution: EvolutionMode = EvolutionMode.NONE,
) -> PayloadDecoder | JsonPayloadDecoder:
    """Return the decoder of one side, the same one for the same arguments.

    The column has the type `wanted`, a selection of the fields of `schema`. Raises SchemaError if
    it is not, or the schema is wrong.
    """
    if side.format is PayloadFormat.JSON:
        return JsonPayloadDecoder(narrowed_json(schema.column_type(), wanted, side.side), side.side)
    reader = narrowed(schema.parsed(), wanted, side.side)
    if side.framing is Framing.NONE or registry is None:
        return PayloadDecoder(reader, schema.parsed(), name=side.side)
    writers = partial(schema_of_writer, side, schema, registry, evolution)
    clock = registry_client(registry).clock
    return PayloadDecoder(reader, writers, name=side.side, clock=clock)


def schema_of_writer(
    side: PayloadOptions,
    schema: PayloadSchema,
    registry: RegistrySettings,
    evolution: EvolutionMode,
    schema_id: int,
) -> Schema:
    """Return the schema of an id; notice what of it is not read."""
    if schema_id == schema.schema_id:
        return schema.parsed()
    # Ids are unique within the context of a subject only.
    subject = side.subject or schema.subject
    writer = writers_schema(registry_client(registry), schema_id, subject)
    unread = unread_parts(writer, schema.parsed())
    # Registries number schemas in their order: what an older one has was dropped.
    if unread and schema.schema_id is not None and schema_id > schema.schema_id:
        more = f"more than {schema}: {listed(unread)}"
        if evolution is EvolutionMode.RESTART:
            raise SchemaError(
                f"its schema has {more}. To read this, make the DataFrame again (load) and start "
                "the query with it (schemaEvolutionMode=restart)"
            )
        logger.warning(
            "Kafka: %ss with schema %d have %s. This is not read", side.side, schema_id, more
        )
    return writer
