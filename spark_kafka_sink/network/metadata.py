"""What the client knows of the cluster: brokers, topics, leaders.

A snapshot is immutable and replaced as a whole, so any thread may read the current one without a
lock. Leader epochs never go back: an answer from a broker that lags behind must not send batches
to a leader that has been deposed (KIP-320). Reads no clock and no socket.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.model import NO_LEADER_EPOCH, Node, TopicPartition
from spark_kafka_sink.network.metadata_recovery import NEVER
from spark_kafka_sink.network.metadata_topics import MetadataTopics
from spark_kafka_sink.network.refresh_schedule import RefreshSchedule
from spark_kafka_sink.protocol.error_codes import ErrorCode, is_retriable
from spark_kafka_sink.protocol.messages.metadata import UNKNOWN_OPERATIONS
from spark_kafka_sink.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
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
    def is_refused(self) -> bool:
        """Whether the broker refuses to describe the topic, now and whenever it is asked again.

        Too few brokers for the replicas of a topic to be created is none of that: more may come.
        """
        return self.error_code not in {
            ErrorCode.NONE,
            ErrorCode.INVALID_REPLICATION_FACTOR,
        } and not is_retriable(self.error_code)

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

    def partition(self, topic_partition: TopicPartition) -> PartitionMetadata | None:
        """Give what is known of a partition; None where it is not known at all."""
        topic = self.topics.get(topic_partition.topic)
        if topic is None or topic_partition.partition >= len(topic.partitions):
            return None
        return topic.partitions[topic_partition.partition]

    def leader_of(self, topic_partition: TopicPartition) -> Node | None:
        """Name the leader's node, or None while there is none that we know."""
        topic = self.topics.get(topic_partition.topic)
        if topic is None or topic_partition.partition >= len(topic.partitions):
            return None
        return self.nodes.get(topic.partitions[topic_partition.partition].leader_id)

    def topic_id(self, topic: str) -> UUID:
        """Give a topic's id; all zero where it is not known, or the broker has none (KIP-516)."""
        known = self.topics.get(topic)
        return known.topic_id if known is not None else ZERO_UUID

    def partition_count(self, topic: str) -> int:
        """Count a topic's partitions; 0 while it is not known."""
        known = self.topics.get(topic)
        return len(known.partitions) if known is not None else 0


class MetadataQuestion(NamedTuple):
    """What to ask next."""

    topics: tuple[str, ...]
    #: Whether these are all topics; if not, the answer replaces only what it tells of them.
    is_full: bool


class Metadata:
    """The current snapshot, the topics it must cover, and when to ask again."""

    def __init__(
        self, *, refresh_backoff: ExponentialBackoff, max_age: float, max_idle: float = NEVER
    ) -> None:
        """Start knowing nothing; `max_age` is metadata.max.age.ms, `max_idle` metadata.max.idle.ms.

        Both are in seconds.
        """
        self.snapshot = MetadataSnapshot()
        self._topics = MetadataTopics(max_idle=max_idle)
        self._schedule = RefreshSchedule(backoff=refresh_backoff, max_age=max_age)

    # --- what to ask, and when

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics to ask about."""
        return self._topics.all()

    def add_topic(self, topic: str, now: float) -> None:
        """Note that a topic is used: ask about it until it was idle for metadata.max.idle.ms.

        May be called by any thread. A new topic is to be asked about at once; who waits for it must
        see to it that somebody does (`NetworkClient.wait_for_topics`).
        """
        if self._topics.add(topic, now):
            self._schedule.allow_at_once()

    def ask_again(self, topic: str) -> None:
        """Ask about a topic that was refused as if it were new: rights may have been granted."""
        self._topics.ask_again(topic)
        self._schedule.allow_at_once()

    def is_unanswered(self, topic: str) -> bool:
        """Whether no answer has named a topic since it was added, or is to be asked about again."""
        return topic in self._topics.new()

    @property
    def updated_at(self) -> float | None:
        """When all of it was last answered, in seconds; None before the first answer."""
        return self._schedule.last_full_answer

    def request_update(self) -> None:
        """Note that an answer showed the snapshot to be out of date."""
        self._schedule.request_full_update()

    def expire(self) -> None:
        """Treat the snapshot as older than metadata.max.age.ms: ask about all topics at once."""
        self._schedule.expire()

    def next_update_at(self) -> float:
        """When to ask next: as soon as the back-off allows, or when the snapshot is too old."""
        return self._schedule.next_at(has_new_topics=self._topics.has_new)

    def question(self, now: float) -> MetadataQuestion:
        """Tell what to ask now; topics that were not used for too long are forgotten first.

        New topics are asked about by themselves unless all have to be asked about anyway.
        """
        expired = self._topics.expire(now)
        if expired:
            known = self.snapshot.topics
            kept = {name: topic for name, topic in known.items() if name not in expired}
            self.snapshot = replace(self.snapshot, topics=MappingProxyType(kept))
        new = self._topics.new()
        if new and not self._schedule.is_full_update_due(now):
            return MetadataQuestion(new, is_full=False)
        return MetadataQuestion(self._topics.all(), is_full=True)

    # --- what was answered

    def failed(self, now: float) -> None:
        """Note that nobody answered; the next question waits for the back-off."""
        self._schedule.failed(now)

    def update(self, response: MetadataResponse, now: float, *, is_full: bool = True) -> None:
        """Replace the snapshot by an answer, keeping what is newer in the old one.

        `is_full` is that of the question. DecodeError, and nothing changed, when the answer
        contradicts itself.
        """
        snapshot = self.snapshot
        # Ids and epochs of another cluster mean nothing in this one (after a rebootstrap).
        moved = None not in {snapshot.cluster_id, response.cluster_id} and (
            snapshot.cluster_id != response.cluster_id
        )
        old = {} if moved else snapshot.topics
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
        self._topics.answered(topics)
        progressed = any(_tells_more(old.get(name), topic) for name, topic in topics.items())
        self._schedule.answered(now, full=is_full, progressed=progressed)
        asked = self._topics.all() if is_full else ()
        if (
            (moved and not is_full)
            or any(_is_incomplete(topic) for topic in topics.values())
            or any(name not in topics for name in asked if name not in self._topics.new())
        ):
            self._schedule.request_full_update()

    def update_leaders(
        self, leaders: Mapping[TopicPartition, tuple[int, int]], nodes: Iterable[Node]
    ) -> set[TopicPartition]:
        """Take over leaders (id and epoch) that a broker named in a refusal (KIP-951).

        Only what is newer than what we know counts, of partitions that we know, with a node whose
        address is known or among `nodes`. Gives the partitions whose leader has changed. A full
        update is still worth asking for: hints are about few partitions.
        """
        snapshot = self.snapshot
        known_nodes = {**snapshot.nodes, **{node.node_id: node for node in nodes}}
        changed: dict[str, dict[int, PartitionMetadata]] = {}
        updated = set()
        for topic_partition, (leader_id, leader_epoch) in leaders.items():
            known = snapshot.partition(topic_partition)
            if known is None or leader_id not in known_nodes:
                continue
            if leader_epoch > known.leader_epoch:
                topic, index = topic_partition
                leader = replace(known, leader_id=leader_id, leader_epoch=leader_epoch)
                changed.setdefault(topic, {})[index] = leader
                updated.add(topic_partition)
        if updated:
            topics = dict(snapshot.topics)
            for name, replaced in changed.items():
                partitions = enumerate(topics[name].partitions)
                topics[name] = replace(
                    topics[name], partitions=tuple(replaced.get(i, old) for i, old in partitions)
                )
            self.snapshot = replace(
                snapshot,
                nodes=MappingProxyType(known_nodes),
                topics=MappingProxyType(topics),
            )
        return updated

    def rebootstrap(self) -> None:
        """Forget the brokers, and ask for everything as soon as the back-off allows.

        Topics are kept: their number of partitions is the best guess until somebody answers.
        """
        self.snapshot = replace(self.snapshot, nodes=MappingProxyType({}))
        self._schedule.request_full_update()


def _is_incomplete(topic: TopicMetadata) -> bool:
    """Whether another answer may soon tell more: never so of a topic that was refused for good."""
    if topic.error_code:
        return not topic.is_refused
    return any(partition.leader_id == NO_LEADER for partition in topic.partitions)


def _tells_more(old: TopicMetadata | None, new: TopicMetadata) -> bool:
    if old is None or old.topic_id != new.topic_id or len(old.partitions) != len(new.partitions):
        return True
    return any(
        now.leader_epoch > old.partitions[index].leader_epoch or now.leader_epoch == NO_LEADER_EPOCH
        for index, now in enumerate(new.partitions)
    )


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
