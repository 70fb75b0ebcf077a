"""Short ways to decode answers in tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_kafka_sink.record.arrow.record_decoder import RecordDecoder
from spark_kafka_sink.record.arrow.schema import arrow_schema
from tests.support.record.reading.fetched_rows import PARTITION, TOPIC, as_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

#: An end that no offset reaches.
NO_END = 2**63 - 1


def decoder_of(*columns: str, **settings: Any) -> RecordDecoder:
    """Create a decoder for some columns; without any, for all of them."""
    schema = arrow_schema(columns or None, include_headers=not columns)
    return RecordDecoder(schema, TOPIC, PARTITION, **settings)


def decode_all(
    decoder: RecordDecoder,
    data: bytes,
    *,
    start: int = 0,
    end: int = NO_END,
    aborted: Sequence[tuple[int, int]] = (),
) -> list[pa.RecordBatch]:
    """Decode an answer, and flush the decoder."""
    index = decoder.index(data, start)
    batches = list(decoder.decode(data, index, start=start, end=end, aborted=aborted))
    rest = decoder.flush()
    return batches if rest is None else [*batches, rest]


def rows_of(decoder: RecordDecoder, data: bytes, **options: Any) -> list[dict[str, Any]]:
    """Decode an answer into rows; timestamps are in microseconds."""
    return [row for batch in decode_all(decoder, data, **options) for row in as_rows(batch)]


def column_of(name: str, data: bytes, **options: Any) -> list[Any]:
    """Decode one column of an answer."""
    return [row[name] for row in rows_of(decoder_of(name), data, **options)]
