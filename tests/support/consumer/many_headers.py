"""Records with so many headers that only a few of them fit into a poll."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.producer.kafka_producer import KafkaProducer

if TYPE_CHECKING:
    from spark_kafka_sink.consumer.kafka_consumer import KafkaConsumer
    from spark_kafka_sink.model import TopicPartition

#: Of a record that counts 200 kB. Compressed, it has a few hundred bytes.
MANY = 1000
RECORDS = 8
#: The memory of a poll here, so that the test is fast.
POLL_BYTES = 700_000
#: What a poll returns at most: it ends with the record that exceeds the limit.
AT_ONCE = 4
#: Of a record that is refused, by the limit of all consumers.
TOO_MANY = 700_000
SECONDS = 120.0


def write_many_headers(
    bootstrap_servers: str, place: TopicPartition, *, is_one_refused: bool = False
) -> None:
    """Write the records, perhaps one that is refused, and one without headers."""
    settings = {
        "bootstrap.servers": bootstrap_servers,
        "compression.type": "zstd",
        "max.request.size": 100 << 20,
        "batch.size": 0,
    }
    with KafkaProducer(settings) as producer:
        for count in (*[MANY] * RECORDS, *[TOO_MANY] * is_one_refused, 0):
            producer.send(
                place.topic, b"v", partition=place.partition, headers=[("", b"")] * count
            ).result(SECONDS)


def check_polls(consumer: KafkaConsumer, place: TopicPartition, *, as_arrow: bool) -> None:
    """Check that each poll returns what fits."""
    decoders = consumer._polls._decoders
    decoders.poll_bytes = POLL_BYTES
    # The limit is checked between outputs of the decoder.
    decoders._max_rows = 1
    consumer.assign([place])
    got: list[int] = []
    while len(got) < RECORDS:
        if as_arrow:
            table = consumer.poll_arrow(SECONDS, include_headers=True)
            offsets = table.column("offset").to_pylist()
            counts = {len(each or ()) for each in table.column("headers").to_pylist()}
        else:
            records = consumer.poll(SECONDS)[place]
            offsets = [record.offset for record in records]
            counts = {len(record.headers) for record in records}
        assert counts <= {MANY, 0}
        assert 1 <= len(offsets) <= AT_ONCE
        got += offsets
        assert got[-1] + 1 == consumer.position(place)
    assert list(range(len(got))) == got


def check_refusal(consumer: KafkaConsumer, place: TopicPartition) -> None:
    """Check that the record that never fits is an error, and can be read or passed over."""
    message = f"{place.topic}.*offset {RECORDS}: the record has too many headers"
    with pytest.raises(CorruptRecordError, match=message):
        consumer.poll(SECONDS)
    assert RECORDS == consumer.position(place)
    assert RECORDS == consumer.poll_arrow(SECONDS, columns=["offset"]).column("offset")[0].as_py()
    consumer.seek(place, RECORDS + 1)
    assert [RECORDS + 1] == [record.offset for record in consumer.poll(SECONDS)[place]]
