"""Bulk writes of numbered rows to the embedded broker, and what its log contains afterwards."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from tests.support.producer.sending import FAST_RETRIES, PARTITIONS, values_of
from tests.support.record.record_columns import columns

if TYPE_CHECKING:
    from spark_kafka_sink.devbroker import DevBroker

#: Small batches, so that a few thousand rows make many requests.
SMALL_BATCHES = {"batch.size": 2_000, "compression.type": "none"}


def bulk_producer(broker: DevBroker, **settings: object) -> KafkaProducer:
    """Create a producer whose batches do not linger."""
    given = {"bootstrap.servers": broker.bootstrap_servers, **FAST_RETRIES, **settings}
    return KafkaProducer(ProducerConfig.from_mapping(given), lingers=False)


def values_of_all(
    broker: DevBroker, topic: str = "t", partitions: int = PARTITIONS
) -> list[list[bytes | None]]:
    """Read the values in the broker's log, partition by partition, in order."""
    return [values_of(broker, topic, partition) for partition in range(partitions)]


def all_values(broker: DevBroker) -> list[bytes | None]:
    """Read the values of all partitions into one list."""
    return list(itertools.chain(*values_of_all(broker)))


def is_even(records: list[int], total: int, percent: float = 10) -> bool:
    """Return whether the partitions' records are `total`, and each within `percent` of the mean."""
    mean = total / len(records)
    most = max(abs(each - mean) for each in records)
    return sum(records) == total and most <= mean * percent / 100


def numbered(count: int, start: int = 0) -> list[bytes]:
    """Return this many values, numbered from `start`."""
    return [b"%08d" % row for row in range(start, start + count)]


def write_in_order(
    producer: KafkaProducer, rows: int = 20_000, step: int = 1_000
) -> list[list[bytes]]:
    """Write numbered rows round-robin; return what each partition must contain afterwards."""
    for start in range(0, rows, step):
        values = numbered(step, start)
        partitions = [row % PARTITIONS for row in range(start, start + step)]
        producer.append(columns(values, partitions=partitions), first_row=start)
    producer.flush()
    return [numbered(rows)[p::PARTITIONS] for p in range(PARTITIONS)]
