"""The compiled decoder sees in any answer what the slow decoder sees, or both refuse it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kafka_sink.errors import CorruptRecordError
from tests.support.record.reading.compared_decoders import compare_decoders, new_decoder
from tests.support.record.reading.fetched_rows import complete_batches
from tests.support.record.reading.random_answers import random_answer, random_reading

SEEDS = st.integers(0, 2**64 - 1).map(random.Random)


@settings(max_examples=500)
@given(random_=SEEDS)
def test_any_answer_is_decoded_as_by_the_slow_decoder(random_):
    """Both see the same rows in answers of all kinds, or refuse them, for any range and limits."""
    reading = random_reading(random_)
    compare_decoders([random_answer(random_) for _ in range(4)], reading)


@given(answer=st.binary(max_size=200), random_=SEEDS)
def test_random_bytes_are_refused_by_both(answer, random_):
    """Purely random bytes are refused, or have no complete batch."""
    compare_decoders([answer, bytes(16) + b"\x02" + answer], random_reading(random_))


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
