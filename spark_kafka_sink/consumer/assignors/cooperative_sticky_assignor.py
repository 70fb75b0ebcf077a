"""Cooperative sticky: as sticky, but members keep their partitions while the group rebalances.

A partition that is to change its owner is first withheld from all members: its owner gives it up,
joins again, and the next rebalance assigns it (KIP-429).

Source: org.apache.kafka.clients.consumer.CooperativeStickyAssignor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.consumer.assignors.abstract_sticky_assignor import (
    AbstractStickyAssignor,
    MemberData,
)
from spark_kafka_sink.consumer.assignors.partition_assignor import (
    DEFAULT_GENERATION,
    RebalanceProtocol,
)
from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.protocol.primitives import Reader, Writer

if TYPE_CHECKING:
    from spark_kafka_sink.consumer.assignors.abstract_partition_assignor import (
        Partitions,
        Subscriptions,
        Topics,
    )
    from spark_kafka_sink.consumer.assignors.partition_assignor import Assignment, Subscription
    from spark_kafka_sink.model import ConsumerGroupMetadata, TopicPartition


class CooperativeStickyAssignor(AbstractStickyAssignor):
    """The assignor `cooperative-sticky`."""

    name = "cooperative-sticky"
    supported_protocols = (RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER)

    def __init__(self) -> None:
        super().__init__()
        self._generation = DEFAULT_GENERATION

    def on_assignment(
        self,
        assignment: Assignment,  # noqa: ARG002 - part of the protocol
        metadata: ConsumerGroupMetadata,
    ) -> None:
        """Keep the generation."""
        self._generation = metadata.generation_id

    def subscription_user_data(
        self,
        topics: frozenset[str],  # noqa: ARG002 - part of the protocol
    ) -> bytes:
        """Return the generation, for leaders that read subscriptions before version 2."""
        writer = Writer()
        writer.write_int32(self._generation)
        return b"".join(writer.finish())

    def member_data(self, subscription: Subscription) -> MemberData:
        """Return the owned partitions, with the generation from the user data if need be."""
        generation = subscription.generation_id
        if generation < 0:
            generation = DEFAULT_GENERATION
            if subscription.user_data is not None:
                try:
                    generation = Reader(subscription.user_data).read_int32()
                except DecodeError:
                    generation = DEFAULT_GENERATION
        return MemberData(subscription.owned_partitions, generation)

    def assign_partitions(self, topics: Topics, subscriptions: Subscriptions) -> Partitions:
        """Assign the partitions, without those that another member has to give up first."""
        assigned, changing = self.assign_and_report(topics, subscriptions)
        if changing is None:
            changing = changing_owners(subscriptions, assigned)
        for topic_partition, member in changing.items():
            assigned[member].remove(topic_partition)
        return assigned


def changing_owners(
    subscriptions: Subscriptions, assigned: Partitions
) -> dict[TopicPartition, str]:
    """Return the new owners of partitions that another member owned."""
    added: dict[TopicPartition, str] = {}
    removed: set[TopicPartition] = set()
    for member, partitions in assigned.items():
        owned = set(subscriptions[member].owned_partitions)
        added.update(
            dict.fromkeys(
                (topic_partition for topic_partition in partitions if topic_partition not in owned),
                member,
            )
        )
        removed |= owned.difference(partitions)
    return {
        topic_partition: member
        for topic_partition, member in added.items()
        if topic_partition in removed
    }
