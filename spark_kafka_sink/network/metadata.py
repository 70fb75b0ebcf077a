"""What the client knows of the cluster: brokers, topics, leaders.

A snapshot is immutable and replaced as a whole, so any thread may read the current one without a
lock. Leader epochs never go back: an answer from a broker that lags behind must not send batches
to a leader that has been deposed (KIP-320). Reads no clock and no socket.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.model import NO_LEADER_EPOCH, Node, TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.metadata import UNKNOWN_OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from spark_kafka_sink.network.exponential_backoff import ExponentialBackoff
    from spark_kafka_sink.protocol.messages.metadata import (
        MetadataResponse,
        MetadataResponsePartition,
        MetadataResponseTopic,
    )

NO_LEADER = -1
#: Bit of `topic_authorized_operations` for AclOperation.WRITE.
WRITE_OPERATION_BIT = 1 << 4


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """Who leads a partition, as last heard."""

    leader_id: int = NO_LEADER
    leader_epoch: int = NO_LEADER_EPOCH
    error_code: int = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic's partitions, by number; none where `error_code` says why."""

    name: str
    #: All zero where the broker is older than topic ids (KIP-516).
    topic_id: UUID
    error_code: int
    partitions: tuple[PartitionMetadata, ...]
    authorized_operations: int = UNKNOWN_OPERATIONS

    @property
    def can_write(self) -> bool | None:
        """Whether this client may write to the topic; None where the broker did not say."""
        if self.authorized_operations == UNKNOWN_OPERATIONS:
            return None
        return bool(self.authorized_operations & WRITE_OPERATION_BIT)


@dataclass(frozen=True, slots=True)
class MetadataSnapshot:
    """The cluster at one moment."""

    cluster_id: str | None = None
    nodes: Mapping[int, Node] = field(default_factory=lambda: MappingProxyType({}))
    topics: Mapping[str, TopicMetadata] = field(default_factory=lambda: MappingProxyType({}))

    def leader_of(self, topic_partition: TopicPartition) -> Node | None:
        """Name the leader's node, or None while there is none that we know."""
        topic = self.topics.get(topic_partition.topic)
        if topic is None or topic_partition.partition >= len(topic.partitions):
            return None
        return self.nodes.get(topic.partitions[topic_partition.partition].leader_id)

    def partition_count(self, topic: str) -> int:
        """Count a topic's partitions; 0 while it is not known."""
        known = self.topics.get(topic)
        return len(known.partitions) if known is not None else 0


class Metadata:
    """The current snapshot, the topics it must cover, and when to ask again."""

    def __init__(self, *, refresh_backoff: ExponentialBackoff, max_age: float) -> None:
        """Start knowing nothing; `max_age` is metadata.max.age.ms in seconds."""
        self.snapshot = MetadataSnapshot()
        self._refresh_backoff = refresh_backoff
        self._max_age = max_age
        self._topics: dict[str, None] = {}
        self._update_requested = False
        self._last_success: float | None = None
        self._failures = 0
        self._not_before = 0.0

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics to ask about."""
        return tuple(self._topics)

    def add_topic(self, topic: str) -> None:
        """Ask about this topic too, from now on."""
        if topic not in self._topics:
            self._topics[topic] = None
            self._update_requested = True

    def request_update(self) -> None:
        """Note that an answer showed the snapshot to be out of date."""
        self._update_requested = True

    def next_update_at(self) -> float:
        """When to ask next: as soon as the back-off allows, or when the snapshot is too old."""
        if self._update_requested or self._last_success is None:
            return self._not_before
        return max(self._last_success + self._max_age, self._not_before)

    def failed(self, now: float) -> None:
        """Note that nobody answered; the next question waits for the back-off."""
        self._not_before = now + self._refresh_backoff.delay(self._failures)
        self._failures += 1

    def update(self, response: MetadataResponse, now: float) -> None:
        """Replace the snapshot by an answer, keeping what is newer in the old one.

        DecodeError, and nothing changed, when the answer contradicts itself.
        """
        old = self.snapshot.topics
        topics = {
            topic.name: _merge_topic(old.get(topic.name), topic)
            for topic in response.topics
            if topic.name is not None
        }
        self.snapshot = MetadataSnapshot(
            cluster_id=response.cluster_id,
            nodes=MappingProxyType(
                {b.node_id: Node(b.node_id, b.host, b.port) for b in response.brokers}
            ),
            topics=MappingProxyType({**old, **topics}),
        )
        self._last_success = now
        incomplete = any(
            topic.error_code or any(p.leader_id == NO_LEADER for p in topic.partitions)
            for topic in topics.values()
        )
        self._update_requested = incomplete or any(name not in topics for name in self._topics)
        if self._update_requested:
            # An answer without a leader is as good as none: ask again, but not in a tight loop.
            self.failed(now)
        else:
            self._failures = 0
            self._not_before = now + self._refresh_backoff.delay(0)


def _merge_topic(old: TopicMetadata | None, new: MetadataResponseTopic) -> TopicMetadata:
    # An error, or a broker older than topic ids, names none: that makes it no other topic.
    topic_id = old.topic_id if old is not None and not new.topic_id.int else new.topic_id
    recreated = old is not None and old.topic_id != topic_id
    known = () if old is None or recreated else old.partitions
    answered = {partition.partition_index: partition for partition in new.partitions}
    if answered.keys() != set(range(len(new.partitions))):
        raise DecodeError(f"the broker's list of the partitions of {new.name!r} has gaps")
    partitions = tuple(
        _merge_partition(known[index] if index < len(known) else None, answered[index])
        for index in range(len(answered))
    )
    if not partitions and old is not None and new.error_code:
        # The topic cannot be described just now; what was known of it stays the best guess.
        partitions = old.partitions
    return TopicMetadata(
        name=str(new.name),
        topic_id=topic_id,
        error_code=new.error_code,
        partitions=partitions,
        authorized_operations=new.topic_authorized_operations,
    )


def _merge_partition(
    old: PartitionMetadata | None, new: MetadataResponsePartition
) -> PartitionMetadata:
    known_epoch = NO_LEADER_EPOCH if old is None else old.leader_epoch
    if old is not None and NO_LEADER_EPOCH != new.leader_epoch < known_epoch:
        return old
    # An answer without an epoch (an error, or an old broker) is believed, but resets nothing.
    return PartitionMetadata(new.leader_id, max(known_epoch, new.leader_epoch), new.error_code)
