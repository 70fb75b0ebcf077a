"""The compiled decoder sees in any answer what the slow decoder sees, or both refuse it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.record.reading.record_decoder import RecordDecoder
from tests.support.record.fetched_rows import (
    PARTITION,
    TOPIC,
    as_rows,
    complete_batches,
    fetched_rows,
)
from tests.support.record.random_answers import Reading, random_answer, random_reading

SEEDS = st.integers(0, 2**64 - 1).map(random.Random)


def expected_rows(answer: bytes, reading: Reading):
    """Return the rows of an answer; None if it is corrupt."""
    try:
        return list(
            fetched_rows(
                answer,
                columns=reading.schema.names,
                start=reading.start,
                end=reading.end,
                aborted=reading.aborted,
            )
        )
    except CorruptRecordError:
        return None


def decoded_rows(decoder: RecordDecoder, answer: bytes, reading: Reading):
    """Return the record batches of one answer; None if it is corrupt."""
    batches = []
    try:
        index = decoder.index(answer, 0)
        batches += decoder.decode(
            answer, index, start=reading.start, end=reading.end, aborted=reading.aborted
        )
    except CorruptRecordError as error:
        decoder.flush()
        return check_place(error)
    rest = decoder.flush()
    return batches + ([rest] if rest is not None else [])


def check_place(error: CorruptRecordError) -> None:
    assert str(error).startswith(f"topic {TOPIC!r}, partition {PARTITION}, offset ")


def new_decoder(reading: Reading) -> RecordDecoder:
    return RecordDecoder(
        reading.schema,
        TOPIC,
        PARTITION,
        max_rows=reading.max_rows,
        max_bytes=reading.max_bytes,
        max_uncompressed_bytes=1 << 20,
    )


def compare(answers: list[bytes], reading: Reading) -> None:
    """Compare several answers read by one decoder, which uses its memory again."""
    decoder = new_decoder(reading)
    held = []
    for answer in answers:
        expected = expected_rows(answer, reading)
        batches = decoded_rows(decoder, answer, reading)
        if expected is None or batches is None:
            assert expected == batches
            continue
        assert all(0 < batch.num_rows <= reading.max_rows for batch in batches)
        assert all(batch.schema == reading.schema for batch in batches)
        assert expected == [row for batch in batches for row in as_rows(batch)]
        held.append((expected, batches))
        # Some are freed before the next answer, so that their memory is used again.
        del held[: len(held) - 2], batches
    for expected, batches in held:
        assert expected == [row for batch in batches for row in as_rows(batch)]


@settings(max_examples=500)
@given(random_=SEEDS)
def test_any_answer_is_decoded_as_by_the_slow_decoder(random_):
    """Both see the same rows in answers of all kinds, or refuse them, for any range and limits."""
    reading = random_reading(random_)
    compare([random_answer(random_) for _ in range(4)], reading)


@given(answer=st.binary(max_size=200), random_=SEEDS)
def test_random_bytes_are_refused_by_both(answer, random_):
    """Purely random bytes are refused, or have no complete batch."""
    compare([answer, bytes(16) + b"\x02" + answer], random_reading(random_))


@given(random_=SEEDS)
def test_the_index_counts_complete_batches(random_):
    """The index finds the batches that the slow decoder finds, and the offset after the last."""
    answer = random_answer(random_)
    answer = answer[: random_.randrange(len(answer) + 1)]
    decoder = new_decoder(random_reading(random_))
    try:
        batches = complete_batches(answer)
    except CorruptRecordError:
        with pytest.raises(CorruptRecordError, match=r"topic 'orders', partition 3, offset "):
            decoder.index(answer, 5)
        return
    index = decoder.index(answer, 5)
    assert len(batches) == index.batch_count
    assert sum(len(batch) for batch in batches) == index.size
    assert index.next_offset >= 5
