"""Java's own clients and the producer agree on the partition of a key and the batch format."""

from __future__ import annotations

import random
import time

from tests.support.kafka.java_tools import consume_with_java, produce_with_java
from tests.support.kafka.readers import read_with_confluent
from tests.support.producer.producing import produce
from tests.support.record.rows import Row, batches_of, expected_records

PARTITIONS = 7
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def partitions_by_key(kafka, topic):
    return {
        record.key: record.partition
        for record in read_with_confluent(kafka.bootstrap_servers, topic)
    }


def test_keys_go_to_the_same_partitions_as_in_java(kafka, create_topic):
    """Java's producer and ours write the same keys to the same partitions."""
    keys = [f"{'schlüssel' * (i % 5)}{i}" for i in range(2000)] + [
        "ключ",
        "鍵",
        "🗝",
        " ",
        "x" * 999,
    ]
    theirs, ours = create_topic(PARTITIONS), create_topic(PARTITIONS)
    produce_with_java(kafka.bootstrap_servers, theirs, dict.fromkeys(keys, "value"))
    rows = [Row(key=key.encode(), value=b"value") for key in keys]
    produce(kafka, batches_of(rows, 500), topic=ours)
    expected = partitions_by_key(kafka, theirs)
    assert len(keys) == len(expected)
    assert expected == partitions_by_key(kafka, ours)


def test_java_reads_every_codec(kafka, create_topic):
    """Java's console consumer reads keys, values, headers and timestamps with all five codecs."""
    topic = create_topic(PARTITIONS)
    now_ms = int(time.time() * 1000)
    rows = []
    for codec in CODECS:
        written = [
            Row(
                key=None if i % 3 == 0 else b"key-%d" % i,
                value=None if i % 7 == 0 else f"{codec} größe {i}".encode(),
                headers=[("codec", codec.encode()), ("codec", b"again")] if i % 2 else None,
                timestamp=(now_ms - i) * 1000,
                partition=i % PARTITIONS if i % 3 == 0 else None,
            )
            for i in range(400)
        ]
        produce(kafka, batches_of(written, 150), topic=topic, **{"compression.type": codec})
        rows += written
    expected = expected_records(rows, topic, PARTITIONS)
    assert expected == consume_with_java(kafka.bootstrap_servers, topic, len(rows))


def test_others_read_large_batches_of_zstd(kafka, create_topic):
    """Java's consumer and librdkafka read batches that have zstd's smaller tables."""
    topic = create_topic(1)
    chance = random.Random(1)
    rows = [
        Row(
            value=b'{"id": %d, "name": "customer %d", "token": "%d"}'
            % (i, i % 97, chance.getrandbits(64)),
            timestamp=int(time.time() * 1000) * 1000,
            partition=0,
        )
        for i in range(12_000)
    ]
    settings = {"compression.type": "zstd", "batch.size": 600_000}
    produce(kafka, batches_of(rows, 4000), topic=topic, **settings)
    expected = expected_records(rows, topic, 1)
    assert expected == read_with_confluent(kafka.bootstrap_servers, topic)
    assert expected == consume_with_java(kafka.bootstrap_servers, topic, len(rows))
