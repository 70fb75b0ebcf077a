"""Subscriptions and assignments as the bytes that JoinGroup and SyncGroup carry.

They are what members of all clients exchange, so the bytes are those of Java: topics and owned
partitions sorted, and the highest version that we know. A newer version is read as that version;
what it appends is ignored.

Source: org.apache.kafka.clients.consumer.internals.ConsumerProtocol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from spark_kafka_sink.consumer.assignors.partition_assignor import (
    DEFAULT_GENERATION,
    Assignment,
    Subscription,
)
from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerProtocolTopicPartitions,
)
from spark_kafka_sink.protocol.primitives import Reader, Writer
from spark_kafka_sink.protocol.schema import Message, read_message, write_message

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spark_kafka_sink.protocol.primitives import Buffer

M = TypeVar("M", bound=Message)


def serialize_subscription(subscription: Subscription, version: int | None = None) -> bytes:
    """Encode a subscription, in the highest version unless another is given."""
    data = ConsumerProtocolSubscription(
        topics=tuple(sorted(subscription.topics)),
        user_data=subscription.user_data,
        owned_partitions=_by_topic(sorted(subscription.owned_partitions)),
        generation_id=max(subscription.generation_id, DEFAULT_GENERATION),
        rack_id=subscription.rack_id,
    )
    return _encoded(data, version)


def deserialize_subscription(buffer: Buffer) -> Subscription:
    """Decode a subscription of any version; raises DecodeError if it is none."""
    data = _decoded(ConsumerProtocolSubscription, buffer)
    return Subscription(
        topics=data.topics,
        user_data=data.user_data,
        owned_partitions=_partitions(data.owned_partitions),
        generation_id=max(data.generation_id, DEFAULT_GENERATION),
        rack_id=data.rack_id or None,
    )


def serialize_assignment(assignment: Assignment, version: int | None = None) -> bytes:
    """Encode an assignment, in the highest version unless another is given."""
    data = ConsumerProtocolAssignment(
        assigned_partitions=_by_topic(assignment.partitions), user_data=assignment.user_data
    )
    return _encoded(data, version)


def deserialize_assignment(buffer: Buffer) -> Assignment:
    """Decode an assignment of any version; raises DecodeError if it is none."""
    if not buffer:
        # The coordinator sends nothing to members that the leader's assignor has left out.
        raise DecodeError(
            "the assignor of the group's leader has no assignment for this member: it must return "
            "one for each member, if only of no partitions"
        )
    data = _decoded(ConsumerProtocolAssignment, buffer)
    return Assignment(_partitions(data.assigned_partitions), data.user_data)


def _encoded(data: Message, version: int | None) -> bytes:
    if version is None:
        version = data.versions.max
    writer = Writer()
    writer.write_int16(version)
    write_message(writer, data, version)
    return b"".join(writer.finish())


def _decoded(message_class: type[M], buffer: Buffer) -> M:
    reader = Reader(buffer)
    version = reader.read_int16()
    if version < message_class.versions.min:
        raise DecodeError(f"{message_class.__name__} has the version {version}")
    return read_message(message_class, reader, min(version, message_class.versions.max))


def _by_topic(
    partitions: Iterable[TopicPartition],
) -> tuple[ConsumerProtocolTopicPartitions, ...]:
    """Group partitions by topic, in the order in which the topics first appear."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    return tuple(
        ConsumerProtocolTopicPartitions(topic=topic, partitions=tuple(numbers))
        for topic, numbers in by_topic.items()
    )


def _partitions(
    by_topic: Iterable[ConsumerProtocolTopicPartitions],
) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(topic.topic, partition)
        for topic in by_topic
        for partition in topic.partitions
    )
