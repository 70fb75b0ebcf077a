"""Consumer groups and their members."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from spark_kafka_sink.admin.values.acls import AclOperation
    from spark_kafka_sink.model import Node, TopicPartition


#: The protocol type of groups of consumers, as opposed to those of Kafka Connect and others.
CONSUMER_PROTOCOL_TYPE: Final = "consumer"
#: The types of groups of consumers (GroupType), and their states (GroupState.groupStatesForType).
GROUP_TYPES: Final = ("Classic", "Consumer")
GROUP_STATES: Final = (
    *("Stable", "Empty", "PreparingRebalance", "CompletingRebalance", "Assigning"),
    *("Reconciling", "Dead"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupListing:
    """A consumer group in a list.

    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     admin.alter_consumer_group_offsets("billing", {TopicPartition("orders", 0): 0})
    ...     [group] = admin.list_consumer_groups()
    >>> group.group_id, group.state
    ('billing', 'Empty')
    """

    #: The name of the group.
    group_id: str
    #: The name of its state, such as Stable or Empty; empty if the broker is older than 2.6.
    state: str
    #: Classic, or Consumer for the protocol of KIP-848; empty if the broker is older than 3.8.
    type: str
    #: Whether its members assign partitions themselves, so that it only stores offsets.
    is_simple: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDescription:
    """A member of a consumer group.

    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     admin.alter_consumer_group_offsets("billing", {TopicPartition("orders", 0): 0})
    ...     group = admin.describe_consumer_groups(["billing"])["billing"]
    >>> [isinstance(member, MemberDescription) for member in group.members]
    []
    """

    #: The id that the coordinator knows it by.
    member_id: str
    #: The static id of the member (KIP-345), if it has one.
    group_instance_id: str | None
    #: The client.id of its consumer.
    client_id: str
    #: The address of the client, such as `/10.0.0.7`.
    host: str
    #: The partitions that the member reads.
    assignment: tuple[TopicPartition, ...]
    #: What it is to read when the rebalance has ended; None in a classic group.
    target_assignment: tuple[TopicPartition, ...] | None = None
    #: None in a classic group.
    member_epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupDescription:
    """A consumer group and its members.

    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     admin.alter_consumer_group_offsets("billing", {TopicPartition("orders", 0): 0})
    ...     group = admin.describe_consumer_groups(["billing"])["billing"]
    >>> group.state, group.members, group.coordinator.node_id
    ('Empty', (), 1)
    """

    #: The name of the group.
    group_id: str
    #: The name of its state: Stable, Empty, PreparingRebalance, CompletingRebalance, and in groups
    #: of the new protocol also Assigning and Reconciling.
    state: str
    #: Classic, or Consumer for the protocol of KIP-848.
    type: str
    #: Whether its members assign partitions themselves, so that it only stores offsets.
    is_simple: bool
    #: The assignor that the members have agreed on, such as `range`; empty if there is none.
    partition_assignor: str
    #: Its members; empty if there are none.
    members: tuple[MemberDescription, ...]
    #: The broker that manages the group.
    coordinator: Node
    #: What this user may do with it; None unless it was requested.
    authorized_operations: frozenset[AclOperation] | None = None
