"""Round robin: members take turns, and skip the partitions of topics that they do not want.

Source: org.apache.kafka.clients.consumer.RoundRobinAssignor.
"""

from __future__ import annotations

from itertools import cycle

from spark_kafka_sink.consumer.assignors.abstract_partition_assignor import (
    AbstractPartitionAssignor,
    Partitions,
    Subscriptions,
    Topics,
    sorted_members,
)
from spark_kafka_sink.model import TopicPartition


class RoundRobinAssignor(AbstractPartitionAssignor):
    """The assignor `roundrobin`: balanced if all members want the same topics."""

    name = "roundrobin"

    def assign_partitions(self, topics: Topics, subscriptions: Subscriptions) -> Partitions:
        """Assign the partitions in order, to the members in a circle."""
        assigned: Partitions = {member: [] for member in subscriptions}
        turns = cycle(sorted_members(subscriptions))
        for topic in sorted(topics):
            for partition in range(len(topics[topic])):
                # Each topic has a subscriber, so the search ends.
                member = next(
                    candidate for candidate in turns if topic in subscriptions[candidate].topics
                )
                assigned[member].append(TopicPartition(topic, partition))
        return assigned
