"""Any answer, taken in any pieces, has the records that the slow decoder finds in it."""

from __future__ import annotations

import random
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from spark_kafka_sink.consumer.records.deserializers import Deserializers, ResolvedDeserializer
from spark_kafka_sink.consumer.records.fetched_records import DEFAULT_FEW_RECORDS, RecordDecoders
from spark_kafka_sink.errors import CorruptRecordError, RecordDeserializationError
from spark_kafka_sink.record.arrow.schema import arrow_schema
from tests.support.consumer.fetched import end_of, expected_records, fetched
from tests.support.record.reading.random_answers import random_answer, random_reading

SEEDS = st.integers(0, 2**64 - 1).map(random.Random)
#: No random answer decompresses to more, except by chance.
DECODERS = [
    RecordDecoders(max_uncompressed_batch_bytes=1 << 20, max_rows=max_rows, few_records=few_records)
    for max_rows in (1, 3, 1000)
    for few_records in (0, DEFAULT_FEW_RECORDS)
]
ARROW = arrow_schema(["value", "offset"])
WITHOUT_OFFSETS = arrow_schema(["key"])


def taken(random_, records):
    """Take all records as objects, in pieces; return them and whether there was no error."""
    found = []
    while not records.is_exhausted:
        most = random_.choice((1, 2, 7, 1000))
        try:
            piece = records.take(most)
        except CorruptRecordError:
            return found, False
        assert len(piece) <= most
        found += piece
    return found, True


def rise(records):
    """Return whether the offsets rise, as they do in every answer that is not a wrong one."""
    return all(one.offset < other.offset for one, other in pairwise(records))


@settings(max_examples=500)
@given(random_=SEEDS)
def test_any_answer_is_returned_as_by_the_slow_decoder(random_):
    """All fields of all records are the same, from any position and with any transactions."""
    answer, reading = random_answer(random_), random_reading(random_)
    position = max(reading.start, 0)
    expected, is_intact = expected_records(answer, position, reading.aborted)

    records = fetched(answer, position, aborted=reading.aborted, decoders=random_.choice(DECODERS))
    found, was_intact = taken(random_, records)

    assert is_intact == was_intact
    # Of a corrupt batch, the records before the corrupt one are returned.
    assert expected == found[: len(expected)]
    if is_intact:
        assert expected == found
        assert not rise(expected) or end_of(answer, position, found) == records.next_offset


def refuse_long(data):
    if len(data) > 32:
        raise ValueError
    return data.hex()


def refuse_trace(data, topic, headers):
    if any(name == "trace-id" for name, _ in headers):
        raise KeyError(topic)
    return data.decode("latin-1")


DESERIALIZERS = [
    Deserializers(None, None),
    Deserializers(ResolvedDeserializer(refuse_long, takes_place=False), None),
    Deserializers(None, ResolvedDeserializer(refuse_trace, takes_place=True)),
    Deserializers(
        ResolvedDeserializer(refuse_trace, takes_place=True),
        ResolvedDeserializer(refuse_long, takes_place=False),
    ),
]


def described(records):
    """Return all that a consumer sees of an answer, besides its records."""
    return (
        records.next_offset,
        records.last_epoch,
        records.is_exhausted,
        records.end_offset,
        records.end_epoch,
        records.batch_count,
        records.size,
    )


def outcome(call, records):
    """Return what a call returns, or the parts of its error."""
    try:
        return call(records)
    except RecordDeserializationError as error:
        return str(error), error.record, error.part, repr(error.__cause__)
    except CorruptRecordError as error:
        return type(error), str(error)


@settings(max_examples=1000)
@given(random_=SEEDS, is_checking=st.booleans(), most_bytes=st.sampled_from([50, 1 << 20]))
def test_few_records_are_returned_as_by_the_kernel(random_, is_checking, most_bytes):
    """Each call returns the same records, or raises the same error, at the same position."""
    answer, reading = random_answer(random_), random_reading(random_)
    aborted = random_.choice(([], [], reading.aborted))
    deserializers = random_.choice(DESERIALIZERS)
    by_kernel, without = (
        fetched(
            answer,
            max(reading.start, 0),
            aborted=aborted,
            decoders=RecordDecoders(
                check_crcs=is_checking,
                max_uncompressed_batch_bytes=most_bytes,
                few_records=few_records,
            ),
        )
        for few_records in (0, 1000)
    )
    for most in (*random_.choices((0, 1, 2, 7, 1000), k=20), 1000, 1000):

        def take(records, most=most):
            return records.take(most, deserializers)

        def take_arrow(records, most=most):
            return [rows.to_pylist() for rows in records.take_arrow(ARROW, most)]

        call = take_arrow if random_.random() < 0.1 else take
        assert outcome(call, by_kernel) == outcome(call, without)
        # The kernel may find only by the next call that nothing is left.
        if not without.is_exhausted:
            assert described(by_kernel) == described(without)
    assert described(by_kernel) == described(without)


@settings(max_examples=500)
@given(random_=SEEDS)
def test_records_that_are_made_ahead_are_those_taken_one_by_one(random_):
    """Each call returns the same record, or raises the same error, at the same position."""
    answer, reading = random_answer(random_), random_reading(random_)
    deserializers, decoders = random_.choice(DESERIALIZERS), random_.choice(DECODERS)
    aborted = random_.choice(([], [], reading.aborted))
    one_by_one, ahead = (
        fetched(answer, max(reading.start, 0), aborted=aborted, decoders=decoders) for _ in range(2)
    )

    def take(records, most=1):
        return records.take(most, deserializers)

    def take_next(records):
        record = records.take_made()
        return records.take_first(deserializers) if record is None else [record]

    def take_arrow(records):
        return [rows.to_pylist() for rows in records.take_arrow(ARROW, 2)]

    for _ in range(40):
        kind = random_.random()
        if kind < 0.9:
            assert outcome(take, one_by_one) == outcome(take_next, ahead)
        else:
            call = take_arrow if kind < 0.95 else partial(take, most=3)
            assert outcome(call, one_by_one) == outcome(call, ahead)
        assert described(one_by_one) == described(ahead)


@given(random_=SEEDS)
def test_objects_and_arrow_may_be_taken_by_turns(random_):
    """Each record is returned once, whether as an object or as a row."""
    answer = random_answer(random_)
    expected, is_intact = expected_records(answer)
    # Decoding starts again at the position, which a wrong answer may have passed.
    assume(rise(expected))
    records = fetched(answer, decoders=random_.choice(DECODERS))
    found = []
    while not records.is_exhausted:
        most = random_.choice((1, 2, 1000))
        kind = random_.randrange(3)
        try:
            if kind == 0:
                piece = [(record.key, record.value) for record in records.take(most)]
            elif kind == 1:
                rows = records.take_arrow(ARROW, most)
                piece = [(None, row["value"]) for batch in rows for row in batch.to_pylist()]
            else:
                rows = records.take_arrow(WITHOUT_OFFSETS, most)
                piece = [(row["key"], None) for batch in rows for row in batch.to_pylist()]
        except CorruptRecordError:
            assert not is_intact
            break
        assert len(piece) <= most
        for key, value in piece:
            if len(found) < len(expected):
                record = expected[len(found)]
                assert key == record.key if kind != 1 else value == record.value
            found.append((key, value))
    assert len(expected) <= len(found)
    if is_intact:
        assert len(expected) == len(found)
        assert end_of(answer, 0, expected) == records.next_offset


@given(random_=SEEDS)
def test_an_error_is_raised_again_by_each_call(random_):
    """A corrupt answer never becomes exhausted, and its position stays where the error is."""
    answer = random_answer(random_)
    _, is_intact = expected_records(answer)
    records = fetched(answer, decoders=random_.choice(DECODERS))
    taken(random_, records)
    assert is_intact == records.is_exhausted
    position = records.next_offset
    for _ in range(0 if is_intact else 3):
        with pytest.raises(CorruptRecordError, match="topic 'orders', partition 3, offset "):
            records.take(1)
        assert position == records.next_offset
