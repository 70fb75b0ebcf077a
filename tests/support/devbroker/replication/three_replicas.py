"""The metadata of a topic with one partition on three brokers, to test one broker's part."""

from __future__ import annotations

import uuid

from spark_kafka_sink.devbroker.metadata.image import MetadataImage
from spark_kafka_sink.devbroker.metadata.records import (
    TOPIC_RESOURCE,
    BrokerChange,
    ConfigRecord,
    ConfigResource,
    PartitionChange,
    PartitionRecord,
    RegisterBroker,
    TopicIdPartition,
    TopicRecord,
)

TOPIC_ID = uuid.UUID(int=7)
KEY = TopicIdPartition(TOPIC_ID, 0)


def broker_epoch(node_id: int) -> int:
    """Return the epoch with which a broker is registered."""
    return 100 + node_id


def three_replicas(
    *, isr: tuple[int, ...] = (0, 1, 2), leader: int = 0, min_insync_replicas: int = 1
) -> MetadataImage:
    """Return an image with brokers 0 to 2, all active, and topic "t" with one partition."""
    image = MetadataImage()
    for node_id in range(3):
        image.apply(
            [
                RegisterBroker(
                    node_id=node_id,
                    broker_epoch=broker_epoch(node_id),
                    incarnation_id=uuid.UUID(int=node_id),
                    fenced=False,
                )
            ]
        )
    image.apply(
        [
            TopicRecord(topic_id=TOPIC_ID, name="t"),
            PartitionRecord(
                topic_id=TOPIC_ID,
                partition=0,
                replicas=(0, 1, 2),
                isr=isr,
                leader=leader,
                leader_epoch=3,
            ),
            ConfigRecord(
                resource=ConfigResource(TOPIC_RESOURCE, "t"),
                name="min.insync.replicas",
                value=str(min_insync_replicas),
            ),
        ]
    )
    return image


def fence(node_id: int) -> BrokerChange:
    """Return the record that fences a broker."""
    return BrokerChange(node_id=node_id, broker_epoch=broker_epoch(node_id), fenced=True)


def change(**changes: object) -> PartitionChange:
    """Return the record of a change of the partition."""
    return PartitionChange(topic_id=TOPIC_ID, partition=0, **changes)
