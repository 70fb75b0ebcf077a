"""What an assignor is, and the values that it takes and returns.

The leader of a classic group assigns the partitions. Each member sends a `Subscription`; the
leader's assignor turns all of them into an `Assignment` for each member. The names are those of
Java's ConsumerPartitionAssignor, in snake_case.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spark_kafka_sink.model import ConsumerGroupMetadata, TopicPartition

#: The generation of a member that has none.
DEFAULT_GENERATION: Final = -1


class RebalanceProtocol(IntEnum):
    """What members do with their partitions while the group rebalances; the highest is preferred.

    >>> max(RebalanceProtocol).name
    'COOPERATIVE'
    """

    #: They give up all of them before they join, so each may get any partition.
    EAGER = 0
    #: They keep them until the leader wants them back; another member gets those in the next round.
    COOPERATIVE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """The topics that a member wants, and what its assignor adds to them."""

    topics: tuple[str, ...]
    #: The bytes of `subscription_user_data`.
    user_data: bytes | None = None
    #: The partitions that the member owns when it joins.
    owned_partitions: tuple[TopicPartition, ...] = ()
    #: The generation in which it got them; negative if it has none.
    generation_id: int = DEFAULT_GENERATION
    rack_id: str | None = None
    #: From JoinGroup; the subscription's bytes do not have it.
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """The partitions that a member gets, in the order in which the assignor chose them."""

    partitions: tuple[TopicPartition, ...]
    #: Bytes for the assignor of the member.
    user_data: bytes | None = None


@dataclass(frozen=True, slots=True)
class GroupSubscription:
    """The subscriptions of a group by member id, in the order of the JoinGroup response."""

    subscriptions: Mapping[str, Subscription]


@dataclass(frozen=True, slots=True)
class GroupAssignment:
    """The assignments of a group by member id: one for each member."""

    assignments: Mapping[str, Assignment]


@dataclass(frozen=True, slots=True)
class Cluster:
    """The topics that the leader's metadata have.

    >>> Cluster.without_racks({"orders": 3}).racks_per_topic["orders"][2]
    frozenset()
    """

    #: For each partition of a topic, in order, the racks of its replicas.
    racks_per_topic: Mapping[str, Sequence[frozenset[str]]] = field(default_factory=dict)

    @classmethod
    def without_racks(cls, partitions_per_topic: Mapping[str, int]) -> Cluster:
        """Build the cluster of brokers without racks, from the number of partitions."""
        none: frozenset[str] = frozenset()
        return cls({topic: (none,) * count for topic, count in partitions_per_topic.items()})


class ConsumerPartitionAssignor(Protocol):
    """A strategy to divide partitions between the members of a group.

    An instance belongs to one consumer and may remember its assignments.
    """

    @property
    def name(self) -> str:
        """The name in JoinGroup, by which the members agree on a strategy."""

    @property
    def version(self) -> int:
        """The version of the user data."""

    @property
    def supported_protocols(self) -> tuple[RebalanceProtocol, ...]:
        """The rebalance protocols that it works with."""

    def subscription_user_data(self, topics: frozenset[str]) -> bytes | None:
        """Return bytes for the leader's assignor, which go into the subscription."""

    def assign(self, cluster: Cluster, group_subscription: GroupSubscription) -> GroupAssignment:
        """Assign the partitions of all subscribed topics."""

    def on_assignment(self, assignment: Assignment, metadata: ConsumerGroupMetadata) -> None:
        """Handle the assignment that this member received, and its new generation."""
