"""The embedded protocol of classic consumer groups: what JoinGroup and SyncGroup carry as bytes.

The broker passes these messages between the members without reading them. An int16 with the
version precedes each (`consumer.assignors.partition_assignor`). Version 1 adds the owned partitions
(KIP-429), 2 their generation (KIP-792), 3 the rack (KIP-881). A newer version may only append
fields, so its reader takes it for the highest that it knows and ignores the rest.
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class ConsumerProtocolTopicPartitions:
    """Partitions of a topic."""

    topic: str = field(STRING)
    partitions: tuple[int, ...] = field(array(INT32))


@message
class ConsumerProtocolSubscription(Message):
    """What a member wants, and what it owned before the rebalance."""

    versions = VersionRange(0, 3)
    flexible_from = NEVER_FLEXIBLE

    topics: tuple[str, ...] = field(array(STRING))
    #: Bytes of the member's assignor.
    user_data: bytes | None = field(BYTES, nullable="0+", default=None)
    owned_partitions: tuple[ConsumerProtocolTopicPartitions, ...] = field(
        array(ConsumerProtocolTopicPartitions), versions="1+", ignorable=True, default=()
    )
    #: The generation in which the member owned them; -1 if there is none.
    generation_id: int = field(INT32, versions="2+", ignorable=True, default=-1)
    rack_id: str | None = field(STRING, versions="3+", nullable="3+", ignorable=True, default=None)


@message
class ConsumerProtocolAssignment(Message):
    """What the leader assigns to a member."""

    versions = VersionRange(0, 3)
    flexible_from = NEVER_FLEXIBLE

    assigned_partitions: tuple[ConsumerProtocolTopicPartitions, ...] = field(
        array(ConsumerProtocolTopicPartitions)
    )
    #: Bytes of the leader's assignor.
    user_data: bytes | None = field(BYTES, nullable="0+", default=None)
