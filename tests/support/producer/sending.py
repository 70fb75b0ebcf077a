"""Helpers shared by the tests of single sends to the embedded broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.record.decode import Record, decode_records

if TYPE_CHECKING:
    from spark_kafka_sink.devbroker import DevBroker

PARTITIONS = 3
FAST_RETRIES = {"retry.backoff.ms": 1, "retry.backoff.max.ms": 5, "reconnect.backoff.ms": 1}
LONG_LINGER = {"linger.ms": 60_000, "delivery.timeout.ms": 180_000}
TIMEOUT = 120


def sending_producer(broker: DevBroker, **settings: object) -> KafkaProducer:
    """Create a producer with short backoffs, for brokers that recover soon after a failure."""
    given = {"bootstrap.servers": broker.bootstrap_servers, **FAST_RETRIES, **settings}
    return KafkaProducer(given)


def records_of(broker: DevBroker, topic: str = "one", partition: int = 0) -> list[Record]:
    """Read the records in a partition."""
    place = TopicPartition(topic, partition)
    batches = broker.call(lambda b: [bytes(x) for x in b.cluster.partition(place).log.batches()])
    return [record for batch in batches for record in decode_records(batch)]


def values_of(broker: DevBroker, topic: str = "one", partition: int = 0) -> list[bytes | None]:
    """Read the values in a partition."""
    return [record.value for record in records_of(broker, topic, partition)]
