"""The interface of assignors, and the values that they take and return.

The leader of a classic group assigns the partitions. Each member sends a `Subscription`; the
leader's assignor turns all of them into an `Assignment` for each member. The names are those of
Java's ConsumerPartitionAssignor, in snake_case.

Members of all clients exchange subscriptions and assignments, so their bytes in JoinGroup and
SyncGroup are those of Java (ConsumerProtocol): topics and owned partitions sorted, and the highest
version that we know. A newer version is read as that version; what it appends is ignored.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.model import ConsumerGroupMetadata, TopicPartition
from spark_kafka_sink.protocol.codec import read_message, write_message
from spark_kafka_sink.protocol.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerProtocolTopicPartitions,
)
from spark_kafka_sink.protocol.primitives import Buffer, Reader, Writer
from spark_kafka_sink.protocol.schema import Message

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


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
    """The topics that a member wants, and what its assignor adds to them.

    >>> Subscription(topics=("orders",)).owned_partitions
    ()
    """

    #: Their names.
    topics: tuple[str, ...]
    #: The bytes of `subscription_user_data`.
    user_data: bytes | None = None
    #: The partitions that the member owns when it joins.
    owned_partitions: tuple[TopicPartition, ...] = ()
    #: The generation in which it got them; negative if it has none.
    generation_id: int = DEFAULT_GENERATION
    #: The member's client.rack.
    rack_id: str | None = None
    #: From JoinGroup; the subscription's bytes do not have it.
    group_instance_id: str | None = None

    def __post_init__(self) -> None:
        """Check what the user's assignor has added."""
        _check_user_data("subscription_user_data", self.user_data)


@dataclass(frozen=True, slots=True)
class Assignment:
    """The partitions that a member gets, in the order in which the assignor chose them.

    >>> Assignment((TopicPartition("orders", 0),)).partitions
    (TopicPartition(topic='orders', partition=0),)
    """

    #: None of them may be assigned to another member, too.
    partitions: tuple[TopicPartition, ...]
    #: Bytes for the assignor of the member.
    user_data: bytes | None = None

    def __post_init__(self) -> None:
        """Check what the user's assignor has added."""
        _check_user_data("user_data", self.user_data)


@dataclass(frozen=True, slots=True)
class GroupSubscription:
    """The subscriptions of a group by member id, in the order of the JoinGroup response.

    >>> group = GroupSubscription({"member-1": Subscription(topics=("orders",))})
    >>> group.subscriptions["member-1"].topics
    ('orders',)
    """

    #: One for each member, by its id.
    subscriptions: Mapping[str, Subscription]


@dataclass(frozen=True, slots=True)
class GroupAssignment:
    """The assignments of a group by member id: one for each member.

    Raises TypeError for what is not an `Assignment`.

    >>> assigned = GroupAssignment({"member-1": Assignment((TopicPartition("orders", 0),))})
    >>> len(assigned.assignments["member-1"].partitions)
    1
    """

    #: Members without partitions have an `Assignment` of none.
    assignments: Mapping[str, Assignment]

    def __post_init__(self) -> None:
        """Check that an assignor has not left out `Assignment`."""
        for member, assignment in self.assignments.items():
            if not isinstance(assignment, Assignment):
                raise TypeError(f"what member {member!r} gets is an Assignment, not {assignment!r}")


@dataclass(frozen=True, slots=True)
class Cluster:
    """The subscribed topics that exist, as the leader's metadata have them.

    >>> Cluster.without_racks({"orders": 2}).partitions_for_topic("orders")
    (TopicPartition(topic='orders', partition=0), TopicPartition(topic='orders', partition=1))
    >>> Cluster.without_racks({"orders": 3}).racks_per_topic["orders"][2]
    frozenset()
    """

    #: For each topic, the racks of the replicas of each partition, in the order of their numbers.
    racks_per_topic: Mapping[str, Sequence[frozenset[str]]] = field(default_factory=dict)

    @classmethod
    def without_racks(cls, partitions_per_topic: Mapping[str, int]) -> Cluster:
        """Build the cluster of brokers without racks, from the number of partitions.

        `partitions_per_topic` has it for each topic.
        """
        none: frozenset[str] = frozenset()
        return cls({topic: (none,) * count for topic, count in partitions_per_topic.items()})

    def partitions_for_topic(self, topic: str) -> tuple[TopicPartition, ...]:
        """Return all partitions of `topic`; none if it does not exist."""
        count = len(self.racks_per_topic.get(topic, ()))
        return tuple(TopicPartition(topic, partition) for partition in range(count))


class ConsumerPartitionAssignor(Protocol):
    """A strategy to divide partitions between the members of a group.

    Derive a class from it, with a `name` and `assign`, and pass it as partition.assignment.strategy
    to all members of a classic group. An instance belongs to one consumer, and may remember its
    assignments. It may have `configure(settings)` and `close()`.

    >>> class OneReader(ConsumerPartitionAssignor):
    ...     name = "one-reader"
    ...
    ...     def assign(self, cluster, group_subscription):
    ...         first, *others = sorted(group_subscription.subscriptions)
    ...         all_of_them = Assignment(cluster.partitions_for_topic("orders"))
    ...         return GroupAssignment({first: all_of_them} | dict.fromkeys(others, Assignment(())))
    >>> settings = {
    ...     "bootstrap.servers": "localhost:9092",
    ...     "group.id": "billing",
    ...     "partition.assignment.strategy": OneReader,
    ... }
    >>> with KafkaConsumer(settings) as consumer:
    ...     consumer.subscribe(["orders"])
    ...     records = consumer.poll(timeout=1)
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The name in JoinGroup, by which the members agree on a strategy."""

    @property
    def version(self) -> int:
        """The version of the user data; 0 unless it is overridden."""
        return 0

    @property
    def supported_protocols(self) -> tuple[RebalanceProtocol, ...]:
        """The rebalance protocols that it works with; only eager unless it is overridden."""
        return (RebalanceProtocol.EAGER,)

    def subscription_user_data(
        self,
        topics: frozenset[str],  # noqa: ARG002 - for those that override it
    ) -> bytes | None:
        """Return bytes for the leader's assignor, which go into the subscription to `topics`.

        There are none unless it is overridden.
        """
        return None

    @abstractmethod
    def assign(self, cluster: Cluster, group_subscription: GroupSubscription) -> GroupAssignment:
        """Assign the partitions of all subscribed topics, if this member is the leader.

        `cluster` has the partitions, `group_subscription` the members and their topics. The result
        has an `Assignment` for each member. `poll` raises any exception, and the group tries again.
        """

    def on_assignment(self, assignment: Assignment, metadata: ConsumerGroupMetadata) -> None:
        """Handle the `assignment` that this member received; `metadata` has its new generation.

        Nothing is done unless it is overridden.
        """
        # Type checkers take a method of a protocol without a body for an abstract one.
        del assignment, metadata


def _check_user_data(name: str, value: object) -> None:
    if not isinstance(value, bytes | None):
        raise TypeError(f"the {name} of an assignor are bytes or None, not {value!r}")


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
