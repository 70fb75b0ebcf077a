"""Serializers, interceptors and partitioners provided by the caller, in single sends."""

from __future__ import annotations

import re

import numpy as np
import pytest

from spark_kafka_sink.devbroker.net.faults import AnswerError
from spark_kafka_sink.errors import (
    InvalidPartitionError,
    SerializationError,
)
from spark_kafka_sink.model import RecordMetadata
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.producer.sending import (
    LONG_LINGER,
    PARTITIONS,
    TIMEOUT,
    records_of,
    sending_producer,
    values_of,
)

# --- plug-ins


def test_serializers_convert_key_and_value(broker):
    """Key and value have serializers of their own, and equal keys go to one partition."""
    settings = {"key.serializer": "string", "value.serializer": "json"}
    with sending_producer(broker, **settings) as producer:
        places = {
            producer.send("t", {"n": n}, key="schlüssel").result(TIMEOUT).partition
            for n in range(3)
        }
        with pytest.raises(SerializationError):
            producer.send("t", {"n": object()}, key="k")
    [partition] = places
    assert [b'{"n":0}', b'{"n":1}', b'{"n":2}'] == [
        value.replace(b" ", b"") for value in values_of(broker, "t", partition)
    ]
    assert {"schlüssel".encode()} == {r.key for r in records_of(broker, "t", partition)}


class _Interceptor:
    """An interceptor that appends its mark to each value and records its calls."""

    def __init__(self, mark: bytes, seen: list[object], *, raises: bool = False) -> None:
        self.mark, self.seen, self.raises = mark, seen, raises

    def on_send(self, record):
        if self.raises:
            raise ZeroDivisionError
        return type(record)(record.topic, record.value + self.mark, record.key)

    def on_acknowledgement(self, metadata, error) -> None:
        self.seen.append((self.mark, metadata, error))
        if self.raises:
            raise ZeroDivisionError

    def close(self) -> None:
        self.seen.append((self.mark, "closed"))


def test_interceptors_run_in_order_and_may_raise(broker):
    """An interceptor that raises is skipped, and all are called before the sender's callback."""
    seen = []
    interceptors = (
        _Interceptor(b"1", seen),
        _Interceptor(b"!", seen, raises=True),
        _Interceptor(b"2", seen),
    )
    producer = sending_producer(broker, **{"interceptor.classes": interceptors})
    metadata = producer.send("one", b"v", on_delivery=lambda *end: seen.append(end)).result(TIMEOUT)
    producer.close()
    assert [b"v12"] == values_of(broker)
    assert [(mark, metadata, None) for mark in (b"1", b"!", b"2")] == seen[:3]
    assert (metadata, None) == seen[3]
    assert [(b"1", "closed"), (b"!", "closed"), (b"2", "closed")] == seen[4:]


def test_interceptors_are_notified_of_records_that_reached_no_batch(broker):
    """Interceptors are notified of records that failed before they reached a batch."""
    seen = []
    settings = {"interceptor.classes": (_Interceptor(b"1", seen),), "max.request.size": 1_000}
    with sending_producer(broker, **settings) as producer:
        future = producer.send("one", bytes(2_000))
        producer.flush()
        assert [(b"1", _failed("one"), future.exception(0))] == seen


@pytest.mark.parametrize("given", [None, 2])
def test_interceptors_learn_the_place_of_a_record_that_failed(broker, given):
    """As in Java, a failed record has a topic and a partition, and its error has both, too."""
    seen = []
    broker.on(ApiKey.PRODUCE, AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    with sending_producer(broker, **{"interceptor.classes": (_Listener(seen),)}) as producer:
        error = producer.send("t", b"v", partition=given).exception(TIMEOUT)
    assert "t" == error.topic
    assert given in {None, error.partition}
    assert [(_failed("t", error.partition), error)] == seen


def _failed(topic: str, partition: int = -1) -> RecordMetadata:
    """Return the metadata of a record that failed."""
    return RecordMetadata(topic, partition, -1, -1, -1, -1)


@pytest.mark.parametrize(
    ("record", "settings", "error"),
    [
        ({"topic": ""}, {}, ValueError),
        ({"topic": "one", "headers": [("name", 1)]}, {}, TypeError),
        ({"topic": "one", "value": b"v"}, {"value.serializer": "string"}, SerializationError),
    ],
)
def test_interceptors_are_notified_of_invalid_records(broker, record, settings, error):
    """Interceptors that saw the record receive the same error as the caller."""
    seen = []
    settings |= {"interceptor.classes": (_Listener(seen),)}
    with sending_producer(broker, **settings) as producer:
        with pytest.raises(error) as caught:
            producer.send(**record)
        assert [(_failed(record["topic"]), caught.value)] == seen


class _Listener:
    """An interceptor that only receives acknowledgements."""

    def __init__(self, seen: list[object]) -> None:
        self._seen = seen

    def on_acknowledgement(self, metadata, error) -> None:
        """Record the metadata and the error."""
        self._seen.append((metadata, error))


def test_a_partitioner_function_is_called_for_each_record(broker):
    """A partitioner plug-in is called for every record without a partition."""

    def last_digit(topic, key, value, partition_count, available) -> int:
        return int(value) % partition_count

    with sending_producer(broker, **{"partitioner.class": last_digit}) as producer:
        for number in range(9):
            producer.send("t", b"%d" % number)
        producer.send("t", b"9", partition=1)
    assert [[b"0", b"3", b"6"], [b"1", b"4", b"7", b"9"], [b"2", b"5", b"8"]] == [
        values_of(broker, "t", p) for p in range(PARTITIONS)
    ]


@pytest.mark.parametrize("answer", [lambda: 1 / 0, lambda: "1", lambda: None, lambda: 2**31])
def test_the_error_for_an_invalid_partition_names_the_function(broker, answer):
    """The record fails with the function's name and the topic, but without a row number."""

    def lost(topic, key, value, partition_count, available) -> int:
        return 0 if value == b"right" else answer()

    with sending_producer(broker, **{"partitioner.class": lost}) as producer:
        error = producer.send("t", b"wrong").exception(0)
        assert isinstance(error, InvalidPartitionError)
        assert re.match(r"topic 't': the partitioner .*\blost failed with \w+Error: ", str(error))
        assert error.row is None
        producer.send("t", b"right").result(TIMEOUT)


def test_a_plug_in_that_raises_fails_its_records_and_is_named(broker):
    """A partitioner's error fails all records staged together, and later ones are sent."""

    class Unreliable:
        is_failing = True

        def partition_rows(self, topic, columns, rows) -> np.ndarray:
            if self.is_failing:
                raise LookupError("not today")
            return np.zeros(rows.size, np.int32)

    unreliable = Unreliable()
    with sending_producer(broker, **LONG_LINGER, **{"partitioner.class": unreliable}) as producer:
        refused = [producer.send("t", b"%d" % number) for number in range(5)]
        errors = [future.exception(TIMEOUT) for future in refused]
        outcomes = (
            "topic 't': the partitioner .*Unreliable failed: LookupError: not today. Make it return"
        )
        assert all(re.match(outcomes, str(error)) for error in errors)
        unreliable.is_failing = False
        later = producer.send("t", b"later")
        producer.flush()
        assert 0 == later.result(0).offset


def test_errors_of_single_records_have_no_row_number(broker):
    """Single records have no row number, whether the producer or the broker refuses them."""
    with sending_producer(broker, **{"max.request.size": 1_000}) as producer:
        large = producer.send("one", bytes(2_000))
        assert str(large.exception(0)).startswith("topic 'one': the record takes ")
    broker.on(ApiKey.PRODUCE, AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    with sending_producer(broker) as producer:
        error = producer.send("one", b"v").exception(TIMEOUT)
    assert str(error).startswith("1 record for one-0 was not delivered: ")
    assert str(error).endswith("Grant this user WRITE on the topic")


def test_a_partition_that_does_not_exist_fails_its_record(broker):
    """A partition that does not exist fails only its record."""

    def wrong(topic, key, value, partition_count, available) -> int:
        return 7 if value == b"wrong" else 0

    with sending_producer(broker, **{"partitioner.class": wrong}) as producer:
        refused = producer.send("t", b"wrong")
        assert isinstance(refused.exception(0), InvalidPartitionError)
        producer.send("t", b"right").result(TIMEOUT)


def test_round_robin_sends_to_the_partitions_in_turn(broker):
    """Records with and without a key take turns, as with Java's RoundRobinPartitioner."""
    with sending_producer(broker, **{"partitioner.class": "round_robin"}) as producer:
        places = [producer.send("t", b"v", key=b"k" if number % 2 else None) for number in range(9)]
        partitions = [future.result(TIMEOUT).partition for future in places]
    assert [[0, 1, 2]] * 3 == [sorted(partitions[n : n + 3]) for n in range(0, 9, 3)]
