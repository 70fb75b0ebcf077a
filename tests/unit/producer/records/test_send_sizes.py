"""Which records are staged, weighed or written at once, and how the others are sent."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import SerializationError
from tests.support.producer.sending import LONG_LINGER, records_of, sending_producer, values_of


@pytest.mark.parametrize(
    ("record", "staged", "heavy_bytes"),
    [
        ({"value": bytes(512)}, 2, 0),
        ({"value": bytes(513)}, 2, 513),
        ({"value": b"", "key": bytes(512)}, 2, 0),
        ({"value": b"v", "key": bytes(513)}, 2, 514),
        ({"value": bytes(513), "key": bytes(3)}, 2, 516),
        ({"value": bytes(4_096)}, 2, 4_096),
        ({"value": bytes(4_097)}, 0, 0),
        ({"value": bytes(4_000), "key": bytes(96)}, 2, 4_096),
        ({"value": bytes(4_000), "key": bytes(97)}, 0, 0),
        ({"value": bytes(491), "partition": 0}, 2, 0),
        ({"value": bytes(492), "partition": 0}, 2, 513),
        ({"value": bytes(4_075), "partition": 0}, 2, 4_096),
        ({"value": bytes(4_076), "partition": 0}, 0, 0),
        ({"value": bytes(477), "headers": [("ab", b"cd")]}, 2, 0),
        ({"value": bytes(478), "headers": [("ab", b"cd")]}, 2, 513),
        ({"value": bytes(466), "headers": [("ä", None), ("b", b"")], "key": b"k"}, 2, 0),
        ({"value": bytes(468), "headers": [("ä", None), ("b", b"")], "key": b"k"}, 2, 513),
    ],
)
def test_the_size_of_a_record_decides_whether_it_is_staged(broker, record, staged, heavy_bytes):
    """Up to 512 bytes a record weighs nothing, and above 4,096 it is written to a batch at once."""
    # A record with more than a key and value weighs at most what it takes in a batch.
    with sending_producer(broker, **LONG_LINGER) as producer:
        producer.send("one", b"first")
        producer.send("one", **record)
        found = producer._gatherer.staged
        assert (staged, heavy_bytes) == (len(found), found.heavy_bytes)


def test_a_chunk_is_written_as_soon_as_it_is_full(broker):
    """The record that fills the chunk writes it, and none before does."""
    with sending_producer(broker, **LONG_LINGER) as producer:
        futures = [producer.send("one", b"v") for _ in range(2_047)]
        assert 2_047 == len(producer._gatherer.staged)
        assert [None] == list({future.chunk for future in futures})
        futures.append(producer.send("one", b"v"))
        assert 0 == len(producer._gatherer.staged)
        assert None not in {future.chunk for future in futures}


@pytest.mark.parametrize(
    "record", [{"value": bytes(4_096)}, {"value": bytes(4_075), "partition": 0}], ids=len
)
def test_a_chunk_is_written_once_its_bytes_exceed_the_limit(broker, record):
    """256 records of 4,096 bytes do not exceed 1 MiB yet."""
    with sending_producer(broker, **LONG_LINGER) as producer:
        producer.send("one", b"first")
        for _ in range(256):
            producer.send("one", **record)
        staged = producer._gatherer.staged
        assert (257, 1_048_576) == (len(staged), staged.heavy_bytes)
        producer.send("one", **record)
        assert (0, 0) == (len(staged), staged.heavy_bytes)


def test_a_record_with_more_than_a_value_is_sent_whole(broker):
    """A record with more than a value is sent whole, even after plain records of its topic."""
    outcomes = []
    with sending_producer(broker, **LONG_LINGER) as producer:
        producer.send("one", b"plain")
        producer.send("one", b"key", b"k")
        producer.send("one", b"headers", headers=[("h", b"1")])
        producer.send("one", b"timestamp", timestamp=5)
        producer.send("one", b"delivered", on_delivery=lambda *ended: outcomes.append(ended))
        producer.send("one", bytearray(b"bytearray"), key=memoryview(b"view"))
        producer.send("one")
        for value, key in (("text", None), (b"v", "text"), (1, None), (b"v", 1)):
            with pytest.raises(SerializationError):
                producer.send("one", value, key)
        producer.flush()
    assert [
        (b"plain", None, ()),
        (b"key", b"k", ()),
        (b"headers", None, (("h", b"1"),)),
        (b"timestamp", None, ()),
        (b"delivered", None, ()),
        (b"bytearray", b"view", ()),
        (None, None, ()),
    ] == [(record.value, record.key, tuple(record.headers)) for record in records_of(broker)]
    assert [b"timestamp"] == [each.value for each in records_of(broker) if each.timestamp == 5]
    [(metadata, error)] = outcomes
    assert (4, None) == (metadata.offset, error)


def test_a_record_with_only_a_partition_and_a_value_goes_to_that_partition(broker):
    """A record with a partition goes there, even after records that stuck to another one."""
    with sending_producer(broker, **LONG_LINGER) as producer:
        producer.send("t", b"plain")
        for partition in range(3):
            producer.send("t", b"%d" % partition, partition=partition)
        producer.flush()
    found = [values_of(broker, "t", partition) for partition in range(3)]
    assert [[b"0"], [b"1"], [b"2"]] == [[v for v in values if v != b"plain"] for values in found]
