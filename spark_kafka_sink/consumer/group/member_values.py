"""The values of a member of a KIP-848 group: its settings, its assignment, and what to do next."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from spark_kafka_sink.consumer.group.group_values import FindCoordinator, Wait

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from spark_kafka_sink.model import TopicPartition
    from spark_kafka_sink.network.base.exponential_backoff import ExponentialBackoff
    from spark_kafka_sink.protocol.messages.consumer_group_heartbeat import (
        ConsumerGroupHeartbeatRequest,
    )

_NO_LOCAL_EPOCH: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """The settings of a member of a KIP-848 group; times are seconds."""

    group_id: str
    #: The id that the client has created for itself (KIP-1082), as Kafka's Uuid.toString.
    member_id: str
    #: group.instance.id; None for a dynamic member.
    group_instance_id: str | None = None
    #: client.rack; None if it is empty.
    rack_id: str | None = None
    #: group.remote.assignor; None leaves the choice to the coordinator.
    server_assignor: str | None = None
    #: max.poll.interval.ms, which is also the time that a rebalance may take.
    rebalance_timeout: float
    #: enable.auto.commit
    is_auto_commit: bool = False
    #: retry.backoff.ms and retry.backoff.max.ms
    backoff: ExponentialBackoff


@dataclass(frozen=True, slots=True)
class LocalAssignment:
    """Partitions by topic id, with a number that grows with every target assignment.

    The number makes two assignments differ even if their partitions are the same, so that each one
    is acknowledged.

    Source: AbstractMembershipManager.LocalAssignment.
    """

    local_epoch: int = _NO_LOCAL_EPOCH
    #: The sorted partitions of each topic.
    partitions: Mapping[UUID, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def is_none(self) -> bool:
        """Whether the member has received no assignment, which is not the same as an empty one."""
        return self.local_epoch == _NO_LOCAL_EPOCH


NO_ASSIGNMENT: Final = LocalAssignment()


class SendHeartbeat(NamedTuple):
    """Send ConsumerGroupHeartbeat to the coordinator.

    A subscription by a regular expression needs version 1. If the coordinator supports no version
    that the request needs, the caller reports UNSUPPORTED_VERSION as the answer.
    """

    #: Tells this step from earlier ones of the same kind.
    number: int
    request: ConsumerGroupHeartbeatRequest


class CommitBeforeRevocation(NamedTuple):
    """Commit the positions, because the assignment is about to change (enable.auto.commit)."""

    number: int
    #: When to give up, and to report the commit as done, in seconds on the caller's clock.
    until: float


class Revoke(NamedTuple):
    """Call on_partitions_revoked; the partitions are still assigned."""

    number: int
    partitions: tuple[TopicPartition, ...]


class Assign(NamedTuple):
    """Call on_partitions_assigned with `added`, which may be empty; all are assigned already.

    Added partitions are not fetched before the outcome is reported.
    """

    number: int
    partitions: tuple[TopicPartition, ...]
    added: tuple[TopicPartition, ...]


class Lose(NamedTuple):
    """Call on_partitions_lost: others may own the partitions by now."""

    number: int
    partitions: tuple[TopicPartition, ...]


class RefreshMetadata(NamedTuple):
    """Request new metadata with the names of these topics."""

    topic_ids: frozenset[UUID]


Callback: TypeAlias = Revoke | Assign | Lose
Step: TypeAlias = (
    FindCoordinator
    | SendHeartbeat
    | CommitBeforeRevocation
    | Revoke
    | Assign
    | Lose
    | RefreshMetadata
    | Wait
)
