"""Move the leadership of partitions, with independent clients."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from confluent_kafka import ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.support.kafka.readers import reassign
from tests.support.kafka.real_kafka import wait_until

if TYPE_CHECKING:
    from collections.abc import Collection

    from confluent_kafka.admin import PartitionMetadata

    from tests.support.kafka.real_kafka import Broker, KafkaCluster

_SECONDS = 120


def leader_seen_by(broker: Broker, topic: str, partition: int = 0) -> int:
    """Return the leader of a partition according to one broker."""
    return int(_partitions_seen_by(broker, topic)[partition].leader)


def wait_until_out_of_sync(cluster: KafkaCluster, topic: str, away: Collection[Broker]) -> None:
    """Wait until the other brokers count no replica of brokers that are away as in sync."""
    missing = {broker.node_id for broker in away}
    present = [broker for broker in cluster.brokers if broker.node_id not in missing]

    def is_without() -> bool:
        return all(
            missing.isdisjoint(partition.isrs)
            for broker in present
            for partition in _partitions_seen_by(broker, topic).values()
        )

    wait_until(is_without, seconds=_SECONDS, what=f"{topic} without brokers {sorted(missing)}")


def _partitions_seen_by(broker: Broker, topic: str) -> dict[int, PartitionMetadata]:
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    found: dict[int, PartitionMetadata]
    found = admin.list_topics(topic, timeout=_SECONDS).topics[topic].partitions
    return found


def replicas_of(cluster: KafkaCluster, topic: str, partition: int = 0) -> list[Broker]:
    """Return the replicas of a partition, the leader first."""
    found = cluster.admin.list_topics(topic, timeout=_SECONDS).topics[topic].partitions[partition]
    others = [each for each in found.replicas if each != found.leader]
    return [cluster.broker(node_id) for node_id in (found.leader, *others)]


def elect_uncleanly(cluster: KafkaCluster, topic: str, broker: Broker, partition: int = 0) -> None:
    """Make a replica that is not in sync the leader of a partition whose leader has failed."""

    def elected() -> bool:
        # The election fails until the controller knows of both brokers.
        with suppress(KafkaException):
            cluster.admin.elect_leaders(
                ElectionType.UNCLEAN, [TopicPartition(topic, partition)]
            ).result()
        return leader_seen_by(broker, topic, partition) == broker.node_id

    wait_until(elected, seconds=_SECONDS, what=f"broker {broker.node_id} to lead {topic}")


def move_leaders(cluster: KafkaCluster, topic: str) -> None:
    """Move the leadership of every partition to its next replica, as a reassignment tool does.

    This changes the order of the replicas and requests an election of the preferred leaders.
    """
    partitions = cluster.admin.list_topics(topic, timeout=_SECONDS).topics[topic].partitions
    replicas = {
        index: [*partition.replicas[1:], partition.replicas[0]]
        for index, partition in partitions.items()
    }
    reassign(cluster.bootstrap_servers, topic, replicas)

    def elected() -> bool:
        # The election fails until the new replica order is in effect, and if there is nothing to
        # elect.
        cluster.admin.elect_leaders(
            ElectionType.PREFERRED, [TopicPartition(topic, index) for index in replicas]
        ).result()
        metadata = cluster.admin.list_topics(topic, timeout=_SECONDS).topics[topic]
        leaders = {index: partition.leader for index, partition in metadata.partitions.items()}
        return leaders == {index: order[0] for index, order in replicas.items()}

    wait_until(elected, seconds=_SECONDS, what=f"the new leaders of {topic}")
