"""Records for the tests of reads, written by an independent client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, NewPartitions

if TYPE_CHECKING:
    from collections.abc import Iterable

_SECONDS = 120


def produce(
    bootstrap_servers: str,
    topic: str,
    values: Iterable[str | None],
    partition: int = 0,
    **more: Any,
) -> None:
    """Write values to a partition, and wait until they are there.

    `more` are the key, the timestamp in milliseconds and the headers of all of them.
    """
    producer = Producer({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    for value in values:
        producer.produce(topic, value=value, partition=partition, **more)
    assert 0 == producer.flush(_SECONDS)


def add_partitions(bootstrap_servers: str, topic: str, total: int) -> None:
    """Raise the number of a topic's partitions."""
    # Without its client, a request is never answered.
    admin = _admin(bootstrap_servers)
    [created] = admin.create_partitions([NewPartitions(topic, total)]).values()
    created.result(_SECONDS)


def delete_records(bootstrap_servers: str, topic: str, before: int, partition: int = 0) -> None:
    """Delete the records of a partition before an offset, as retention does."""
    admin = _admin(bootstrap_servers)
    [deleted] = admin.delete_records([Place(topic, partition, before)]).values()
    deleted.result(_SECONDS)


def _admin(bootstrap_servers: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
