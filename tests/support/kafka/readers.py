"""Read topics back with independent clients.

Both readers read what exists when they are called: every partition from its earliest offset to its
high watermark, with an explicit assignment and no group, in the order of (partition, offset).
Checksums are verified. A reader that receives nothing for a minute raises TimeoutError.
"""

from __future__ import annotations

import time
import warnings
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

import confluent_kafka

with warnings.catch_warnings():
    # kafka-python reads its schemas with functions that Python 3.11 has deprecated.
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    import kafka
    from kafka.admin import KafkaAdminClient
    from kafka.partitioner.default import murmur2

    from tests.support.network.kafka_python_sockets import sockets_closed

__all__ = [
    "READERS",
    "Record",
    "confluent_batches",
    "murmur2",
    "read_with_confluent",
    "read_with_kafka_python",
    "reassign",
]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PATIENCE_SECONDS = 120


class Record(NamedTuple):
    """A record as a consumer sees it; `timestamp` is in milliseconds."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def read_with_confluent(bootstrap_servers: str, topic: str) -> list[Record]:
    """Read a whole topic with confluent-kafka (librdkafka)."""
    records = [
        Record(
            topic=topic,
            partition=message.partition(),
            offset=message.offset(),
            timestamp=message.timestamp()[1],
            key=message.key(),
            value=message.value(),
            headers=tuple(message.headers() or ()),
        )
        for messages in confluent_batches(bootstrap_servers, topic)
        for message in messages
    ]
    return sorted(records, key=lambda record: (record.partition, record.offset))


def read_with_kafka_python(bootstrap_servers: str, topic: str) -> list[Record]:
    """Read a whole topic with kafka-python."""
    with sockets_closed():
        return _read_with_kafka_python(bootstrap_servers, topic)


def _read_with_kafka_python(bootstrap_servers: str, topic: str) -> list[Record]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap_servers, enable_auto_commit=False, check_crcs=True
    )
    records: list[Record] = []
    try:
        partitions = [
            kafka.TopicPartition(topic, partition)
            for partition in consumer.partitions_for_topic(topic)
        ]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            for partition, messages in consumer.poll(timeout_ms=1000).items():
                deadline = time.monotonic() + _PATIENCE_SECONDS
                records.extend(
                    Record(
                        topic=topic,
                        partition=message.partition,
                        offset=message.offset,
                        timestamp=message.timestamp,
                        key=message.key,
                        value=message.value,
                        headers=tuple(message.headers),
                    )
                    for message in messages
                    if message.offset < ends[partition]
                )
            if time.monotonic() > deadline:
                raise TimeoutError(f"no more records in {topic} after {len(records)}")
    finally:
        consumer.close()
    return sorted(records, key=lambda record: (record.partition, record.offset))


def reassign(bootstrap_servers: str, topic: str, replicas: dict[int, list[int]]) -> None:
    """Assign these replicas, in this order, to partitions of a topic, with kafka-python.

    confluent-kafka has no such call.
    """
    wanted = {kafka.TopicPartition(topic, index): order for index, order in replicas.items()}
    with (
        sockets_closed(),
        closing(KafkaAdminClient(bootstrap_servers=bootstrap_servers)) as admin,
    ):
        refused = {p: e for p, e in admin.alter_partition_reassignments(wanted).items() if e}
    if refused:
        raise ValueError(f"replicas of {topic} cannot be {replicas}: {refused}")


READERS: dict[str, Callable[[str, str], list[Record]]] = {
    "confluent-kafka": read_with_confluent,
    "kafka-python": read_with_kafka_python,
}


def confluent_batches(
    bootstrap_servers: str, topic: str
) -> Iterator[list[confluent_kafka.Message]]:
    """Yield a topic's messages in lists of at most ten thousand, each partition in order."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            # librdkafka requires it even if no group is joined.
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            "fetch.message.max.bytes": 8 << 20,
            "queued.min.messages": 1_000_000,
        }
    )
    try:
        metadata = consumer.list_topics(topic, timeout=_PATIENCE_SECONDS)
        unread: dict[int, range] = {}
        for partition in metadata.topics[topic].partitions:
            place = confluent_kafka.TopicPartition(topic, partition)
            low, high = consumer.get_watermark_offsets(place, timeout=_PATIENCE_SECONDS)
            if low < high:
                unread[partition] = range(low, high)
        consumer.assign(
            [
                confluent_kafka.TopicPartition(topic, partition, offsets.start)
                for partition, offsets in unread.items()
            ]
        )
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while unread:
            # `consume` waits for this many messages, so request no more than there are.
            count = min(10_000, sum(map(len, unread.values())))
            messages = consumer.consume(count, timeout=1.0)
            if messages:
                deadline = time.monotonic() + _PATIENCE_SECONDS
                yield _take(messages, unread)
            elif time.monotonic() > deadline:
                raise TimeoutError(f"no more records in {topic}: {unread} are missing")
    finally:
        consumer.close()


def _take(
    messages: list[confluent_kafka.Message], unread: dict[int, range]
) -> list[confluent_kafka.Message]:
    """Return the messages at unread offsets, and mark these offsets as read."""
    kept = []
    for message in messages:
        error = message.error()
        partition = message.partition()
        if error is None:
            offsets = unread.get(partition, range(0))
            if message.offset() in offsets:
                kept.append(message)
                unread[partition] = range(message.offset() + 1, offsets.stop)
        elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
            # The last offsets may be transaction markers, which consumers do not return.
            unread[partition] = range(0)
        else:
            raise confluent_kafka.KafkaException(error)
    for partition in [partition for partition, offsets in unread.items() if not offsets]:
        del unread[partition]
    return kept
