"""Deserializers: what they get, and what becomes of the records around one that fails."""

from __future__ import annotations

import json
import pickle

import pytest

from spark_kafka_sink.config.plugin_reference import PluginReference
from spark_kafka_sink.consumer.records.consumer_record import ConsumerRecord
from spark_kafka_sink.consumer.records.deserializers import (
    Deserializers,
    ResolvedDeserializer,
    deserializer_for,
)
from spark_kafka_sink.errors import RecordDeserializationError, SerializationError
from tests.support.consumer.fetched import fetched
from tests.support.record.plain_batches import PlainRecord, plain_batch

UPPER = ResolvedDeserializer(lambda data: data.decode().upper())


def batch(*values):
    """Encode a batch with some values."""
    return plain_batch([PlainRecord(value=value) for value in values])


def offsets(records):
    return [record.offset for record in records]


def values(records):
    return [record.value for record in records]


def test_deserializers_convert_keys_and_values():
    """Sizes are those of the bytes, and null is never passed to a deserializer."""
    answer = plain_batch(
        [
            PlainRecord(key=b"k", value=b"[1]"),
            PlainRecord(key=None, value=b"2"),
            PlainRecord(key=b"", value=None),
        ]
    )
    records = fetched(answer).take(9, Deserializers(UPPER, ResolvedDeserializer(json.loads)))
    assert ["K", None, ""] == [record.key for record in records]
    assert [[1], 2, None] == values(records)
    assert [1, -1, 0] == [record.serialized_key_size for record in records]
    assert [3, 1, -1] == [record.serialized_value_size for record in records]


@pytest.mark.parametrize("nulls", [True, False])
def test_a_deserializer_may_take_the_topic_and_the_headers(nulls):
    """It gets what Java's deserializers get."""
    answer = plain_batch(
        [
            PlainRecord(value=b"a", headers=((b"h", b"1"),)),
            PlainRecord(value=b"b"),
            PlainRecord(value=None if nulls else b"c", headers=((b"h", None),)),
        ]
    )
    everything = ResolvedDeserializer(lambda *given: given, takes_place=True)
    found = values(fetched(answer).take(9, Deserializers(value=everything)))
    last = None if nulls else (b"c", "orders", (("h", None),))
    assert [(b"a", "orders", (("h", b"1"),)), (b"b", "orders", ()), last] == found


@pytest.mark.parametrize("part", ["key", "value"])
def test_records_before_one_that_cannot_be_deserialized_are_returned_first(part):
    """The next call raises the error with its place; after a seek past it, the rest follows."""
    cells = [b"1", b"2", b"no secret", b"4"]
    answer = plain_batch([PlainRecord(value=each, key=each) for each in cells])
    deserializers = Deserializers(**{part: ResolvedDeserializer(json.loads)})
    records = fetched(answer)
    assert [0, 1] == offsets(records.take(9, deserializers))
    assert 2 == records.next_offset
    for _ in range(2):
        with pytest.raises(RecordDeserializationError) as caught:
            records.take(9, deserializers)
        assert (
            f"topic 'orders', partition 3, offset 2: the {part}.deserializer cannot read the "
            f"{part} (JSONDecodeError). To skip the record, seek to offset 3"
        ) == str(caught.value)
        assert isinstance(caught.value.__cause__, json.JSONDecodeError)
        assert (part, 2) == (caught.value.part, caught.value.record.offset)
        assert (b"no secret", b"no secret") == (caught.value.record.key, caught.value.record.value)
    assert (2, False) == (records.next_offset, records.is_exhausted)
    assert [3] == offsets(fetched(answer, 3).take(9, deserializers))


@pytest.mark.parametrize(
    ("keys", "cells", "expected"),
    [
        ([b"1", b"x", b"3"], [b"1", b"2", b"x"], ("key", 1)),
        ([b"1", b"2", b"x"], [b"1", b"x", b"3"], ("value", 1)),
        ([b"1", b"x", b"3"], [b"1", b"x", b"3"], ("key", 1)),
    ],
)
def test_the_first_record_that_fails_counts(keys, cells, expected):
    """Records fail in their order, and the key of a record before its value."""
    answer = plain_batch(
        [PlainRecord(key=key, value=cell) for key, cell in zip(keys, cells, strict=True)]
    )
    part, row = expected
    both = Deserializers(*[ResolvedDeserializer(json.loads)] * 2)
    records = fetched(answer)
    assert list(range(row)) == offsets(records.take(9, both))
    with pytest.raises(SerializationError, match=f"offset {row}: the {part}"):
        records.take(9, both)


def test_a_deserializer_may_succeed_later():
    """As in Java, a record whose deserializer failed is tried again by the next call."""
    attempts = []

    def flaky(data):
        attempts.append(data)
        if len(attempts) == 1:
            raise OSError("the schema registry is away")
        return data

    records = fetched(batch(b"a"))
    with pytest.raises(SerializationError, match="OSError"):
        records.take(1, Deserializers(value=ResolvedDeserializer(flaky)))
    assert [b"a"] == values(records.take(1, Deserializers(value=ResolvedDeserializer(flaky))))


@pytest.mark.parametrize("takes_place", [True, False])
def test_a_deserializer_that_stops_an_iteration_loses_no_record(takes_place):
    """StopIteration is an error like any other."""

    def stop(*_):
        raise StopIteration

    records = fetched(batch(b"a"))
    with pytest.raises(SerializationError, match="offset 0: the value"):
        records.take(1, Deserializers(value=ResolvedDeserializer(stop, takes_place)))


def test_a_number_of_another_size_is_named_with_both_sizes():
    """The sizes tell which deserializer the value was meant for, and show none of its bytes."""
    records = fetched(batch(b"\0\0\0\x07"))
    deserialize = deserializer_for(PluginReference("int64"), is_key=False)
    with pytest.raises(
        SerializationError,
        match=r"the value\.deserializer cannot read the value \(4 bytes instead of 8\)\. To skip",
    ):
        records.take(1, Deserializers(value=deserialize))


def test_a_keyboard_interrupt_in_a_deserializer_is_not_wrapped():
    """The record is not lost."""

    def interrupt(_):
        raise KeyboardInterrupt

    records = fetched(batch(b"a"))
    with pytest.raises(KeyboardInterrupt):
        records.take(1, Deserializers(value=ResolvedDeserializer(interrupt)))
    assert [b"a"] == values(records.take(1))


def test_the_error_is_pickled_with_the_record():
    """A worker may pass it on."""
    record = ConsumerRecord("orders", 0, 42, value=b"x")
    error = RecordDeserializationError("the value is wrong", record=record, part="value")
    copied = pickle.loads(pickle.dumps(error))  # noqa: S301 -- our own bytes
    assert ("the value is wrong", record, "value") == (str(copied), copied.record, copied.part)
