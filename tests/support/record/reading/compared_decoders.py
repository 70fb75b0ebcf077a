"""The compiled decoder and the slow one, compared on the same answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.record.arrow.record_decoder import RecordDecoder
from tests.support.record.reading.fetched_rows import PARTITION, TOPIC, as_rows, fetched_rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from tests.support.record.reading.random_answers import Reading

#: No random answer decompresses to more, except by chance.
MAX_UNCOMPRESSED_BYTES = 1 << 20


def new_decoder(reading: Reading) -> RecordDecoder:
    """Create a decoder with the limits of a reading."""
    return RecordDecoder(
        reading.schema,
        TOPIC,
        PARTITION,
        max_rows=reading.max_rows,
        max_bytes=reading.max_bytes,
        max_uncompressed_bytes=MAX_UNCOMPRESSED_BYTES,
    )


def compare_decoders(answers: list[bytes], reading: Reading) -> None:
    """Decode answers one after another by both; raise AssertionError if they differ.

    One compiled decoder reads all of them. Some record batches are freed before the next answer,
    so that their memory is used again, and others are compared once more at the end.
    """
    decoder = new_decoder(reading)
    held = []
    for answer in answers:
        expected = _expected_rows(answer, reading)
        batches = _decoded(decoder, answer, reading)
        if expected is None or batches is None:
            assert expected == batches
            continue
        assert all(0 < batch.num_rows <= reading.max_rows for batch in batches)
        assert all(batch.schema == reading.schema for batch in batches)
        assert expected == [row for batch in batches for row in as_rows(batch)]
        held.append((expected, batches))
        del held[: len(held) - 2], batches
    for expected, batches in held:
        assert expected == [row for batch in batches for row in as_rows(batch)]


def compare_streams(answers: Iterable[bytes], reading: Reading) -> None:
    """Decode answers as a stream by both; raise AssertionError if they differ.

    Output goes on from one answer to the next, as in a reader; it ends at a corrupt one.
    """
    decoder = new_decoder(reading)
    expected: list[dict[str, Any]] = []
    batches: list[pa.RecordBatch] = []
    for answer in answers:
        rows = _expected_rows(answer, reading)
        if rows is None:
            batches += _rest(decoder)
            assert _decoded(decoder, answer, reading) is None
        else:
            expected += rows
            index = decoder.index(answer, 0)
            batches += decoder.decode(
                answer, index, start=reading.start, end=reading.end, aborted=reading.aborted
            )
    batches += _rest(decoder)
    assert all(0 < batch.num_rows <= reading.max_rows for batch in batches)
    assert expected == [row for batch in batches for row in as_rows(batch)]


def _rest(decoder: RecordDecoder) -> list[pa.RecordBatch]:
    rest = decoder.flush()
    return [] if rest is None else [rest]


def _expected_rows(answer: bytes, reading: Reading) -> list[dict[str, Any]] | None:
    """Return the rows of an answer; None if it is corrupt."""
    try:
        return list(
            fetched_rows(
                answer,
                columns=reading.schema.names,
                start=reading.start,
                end=reading.end,
                aborted=reading.aborted,
                max_uncompressed_bytes=MAX_UNCOMPRESSED_BYTES,
            )
        )
    except CorruptRecordError:
        return None


def _decoded(
    decoder: RecordDecoder, answer: bytes, reading: Reading
) -> list[pa.RecordBatch] | None:
    """Return the record batches of an answer; None if it is corrupt."""
    batches = []
    try:
        index = decoder.index(answer, 0)
        batches += decoder.decode(
            answer, index, start=reading.start, end=reading.end, aborted=reading.aborted
        )
    except CorruptRecordError as error:
        _check_place(error)
        decoder.flush()
        return None
    return batches + _rest(decoder)


def _check_place(error: CorruptRecordError) -> None:
    assert str(error).startswith(f"topic {TOPIC!r}, partition {PARTITION}, offset ")
