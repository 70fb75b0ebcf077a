"""Sticky: balanced, and as many partitions as possible stay with their members.

The rebalance is eager: members give up their partitions and send what they had as user data.
Version 1 of the user data adds the generation (KIP-341).

Source: org.apache.kafka.clients.consumer.StickyAssignor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.consumer.assignors.abstract_sticky_assignor import (
    AbstractStickyAssignor,
    MemberData,
)
from spark_kafka_sink.consumer.assignors.java_order import hash_ordered
from spark_kafka_sink.consumer.assignors.partition_assignor import DEFAULT_GENERATION
from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.model import ConsumerGroupMetadata, TopicPartition
from spark_kafka_sink.protocol.codec import encode_bytes, read_message
from spark_kafka_sink.protocol.consumer_protocol import ConsumerProtocolTopicPartitions
from spark_kafka_sink.protocol.primitives import Reader
from spark_kafka_sink.protocol.schema import INT32, Message, VersionRange, array, field, message

if TYPE_CHECKING:
    from spark_kafka_sink.consumer.assignors.partition_assignor import Assignment, Subscription


@message
class StickyAssignorUserData(Message):
    """The last assignment of a member."""

    versions = VersionRange(0, 1)
    flexible_from = 2

    previous_assignment: tuple[ConsumerProtocolTopicPartitions, ...] = field(
        array(ConsumerProtocolTopicPartitions)
    )
    generation: int = field(INT32, versions="1+", default=DEFAULT_GENERATION)


class StickyAssignor(AbstractStickyAssignor):
    """The assignor `sticky`."""

    name = "sticky"

    def __init__(self) -> None:
        super().__init__()
        self._last: tuple[TopicPartition, ...] | None = None
        self._generation = DEFAULT_GENERATION

    def on_assignment(self, assignment: Assignment, metadata: ConsumerGroupMetadata) -> None:
        """Keep the assignment for the next rebalance."""
        self._last = assignment.partitions
        self._generation = metadata.generation_id

    def subscription_user_data(
        self,
        topics: frozenset[str],  # noqa: ARG002 - part of the protocol
    ) -> bytes | None:
        """Return the last assignment; None if there is none."""
        if self._last is None:
            return None
        by_topic: dict[str, list[int]] = {
            topic_partition.topic: [] for topic_partition in self._last
        }
        for topic, partition in self._last:
            by_topic[topic].append(partition)
        user_data = StickyAssignorUserData(
            previous_assignment=tuple(
                ConsumerProtocolTopicPartitions(topic=topic, partitions=tuple(by_topic[topic]))
                for topic in hash_ordered(by_topic)
            ),
            generation=self._generation,
        )
        return encode_bytes(user_data, 1)

    def member_data(self, subscription: Subscription) -> MemberData:
        """Return the last assignment from the user data; none if they are not intelligible."""
        if not subscription.user_data:
            return MemberData(())
        for version in (1, 0):
            try:
                # Bytes after it are ignored.
                user_data = read_message(
                    StickyAssignorUserData, Reader(subscription.user_data), version
                )
            except DecodeError:
                continue
            partitions = [
                TopicPartition(topic.topic, partition)
                for topic in user_data.previous_assignment
                for partition in topic.partitions
            ]
            return MemberData(partitions, user_data.generation)
        return MemberData(())
