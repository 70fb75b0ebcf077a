"""The records of the metadata log: KRaft's, without what this broker does not have.

The controller appends them, and every broker applies them to its `MetadataImage`, in the order of
the log. They are values; only `PartitionChange` has rules of its own, because the controller and
the brokers must apply a change in the same way. Times, log directories, features and snapshots are
left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import uuid

#: The leader of a partition that has none (LeaderConstants.NO_LEADER).
NO_LEADER: Final = -1
#: The types of resources that have settings (ConfigResource.Type).
TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
#: The leader was elected from the in-sync replicas, or has recovered since (LeaderRecoveryState).
RECOVERED: Final = 0
#: The leader was elected uncleanly, and has not said yet that it has recovered.
RECOVERING: Final = 1


class TopicIdPartition(NamedTuple):
    """A partition, by the id of its topic, which no other topic ever has."""

    topic_id: uuid.UUID
    partition: int


class ConfigResource(NamedTuple):
    """What settings belong to: a topic by its name, a broker by its id, or "" for all brokers."""

    resource_type: int
    name: str


class Endpoint(NamedTuple):
    """The address of a broker at one of its listeners; `security_protocol` is Kafka's number."""

    listener: str
    host: str
    port: int
    security_protocol: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBroker:
    """The registration of a broker, which replaces the previous one of the same id.

    It is also the state of the broker in an image, with later changes applied.
    """

    node_id: int
    #: The offset of the first record of this incarnation's registration.
    broker_epoch: int
    #: Chosen by the broker's process when it starts.
    incarnation_id: uuid.UUID
    endpoints: tuple[Endpoint, ...] = ()
    rack: str | None = None
    #: Whether the broker may lead no partition, and is hidden from clients.
    fenced: bool = True
    in_controlled_shutdown: bool = False

    @property
    def is_active(self) -> bool:
        """Whether the broker may lead partitions and be in sync."""
        return not self.fenced and not self.in_controlled_shutdown


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerChange:
    """A change of a broker's state; None means no change (BrokerRegistrationChangeRecord)."""

    node_id: int
    broker_epoch: int
    fenced: bool | None = None
    in_controlled_shutdown: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBroker:
    """The end of a broker's registration."""

    node_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    """A new topic, whose partitions follow."""

    topic_id: uuid.UUID
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTopic:
    """The deletion of a topic, its partitions and its settings."""

    topic_id: uuid.UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRecord:
    """A new partition.

    It is also the state of the partition in an image, with later changes applied
    (PartitionRegistration).
    """

    topic_id: uuid.UUID
    partition: int
    #: The brokers with a replica, the preferred leader first; those of `adding` and `removing` too.
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    #: Eligible leader replicas: not in sync, but sure to have all committed records (KIP-966).
    elr: tuple[int, ...] = ()
    #: The last leader, while there is none and no replica is in sync.
    last_known_elr: tuple[int, ...] = ()
    leader_recovery_state: int = RECOVERED
    #: Raised by each change of leader, and by whatever else must stop the leader for a moment.
    leader_epoch: int = 0
    #: Raised by each change.
    partition_epoch: int = 0

    @property
    def id(self) -> TopicIdPartition:
        """The id of the topic, and the number of the partition."""
        return TopicIdPartition(self.topic_id, self.partition)

    @property
    def has_leader(self) -> bool:
        """Whether the partition has a leader."""
        return self.leader != NO_LEADER

    @property
    def has_preferred_leader(self) -> bool:
        """Whether the first replica leads."""
        return self.leader == self.replicas[0]

    @property
    def is_reassigning(self) -> bool:
        """Whether replicas are being added or removed."""
        return bool(self.adding or self.removing)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChange:
    """A change of a partition; None means no change.

    A `leader` raises the leader epoch even if it is the same as before.
    """

    topic_id: uuid.UUID
    partition: int
    leader: int | None = None
    isr: tuple[int, ...] | None = None
    replicas: tuple[int, ...] | None = None
    adding: tuple[int, ...] | None = None
    removing: tuple[int, ...] | None = None
    elr: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None
    leader_recovery_state: int | None = None

    @property
    def id(self) -> TopicIdPartition:
        """The id of the topic, and the number of the partition."""
        return TopicIdPartition(self.topic_id, self.partition)

    @property
    def is_empty(self) -> bool:
        """Whether nothing changes."""
        return all(getattr(self, name) is None for name in _CHANGEABLE)

    def apply_to(self, partition: PartitionRecord) -> PartitionRecord:
        """Return a partition with this change (PartitionRegistration.merge)."""
        changes = {
            name: value for name in _CHANGEABLE if (value := getattr(self, name)) is not None
        }
        return replace(
            partition,
            **changes,
            leader_epoch=partition.leader_epoch + (self.leader is not None),
            partition_epoch=partition.partition_epoch + 1,
        )


_CHANGEABLE = (
    "leader",
    "isr",
    "replicas",
    "adding",
    "removing",
    "elr",
    "last_known_elr",
    "leader_recovery_state",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRecord:
    """A setting of a topic or broker; None removes it, so that the default applies."""

    resource: ConfigResource
    name: str
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIds:
    """A block of producer ids that was given to a broker; the next one begins after it."""

    node_id: int
    broker_epoch: int
    next_producer_id: int


MetadataRecord: TypeAlias = (
    RegisterBroker
    | BrokerChange
    | UnregisterBroker
    | TopicRecord
    | RemoveTopic
    | PartitionRecord
    | PartitionChange
    | ConfigRecord
    | ProducerIds
)
