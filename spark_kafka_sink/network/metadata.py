"""What the client knows about the cluster (brokers, topics, leaders), and when to request it again.

A snapshot is immutable and replaced as a whole, so any thread may read the current one without a
lock. Leader epochs never go back: a response from a broker that lags behind must not send batches
to a leader that has been deposed (KIP-320). Reads no clock and does no I/O.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.model import NO_LEADER_EPOCH, Node, TopicPartition
from spark_kafka_sink.network.exponential_backoff import NEVER, ExponentialBackoff
from spark_kafka_sink.protocol.error_codes import ErrorCode, is_retriable
from spark_kafka_sink.protocol.messages import metadata
from spark_kafka_sink.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from uuid import UUID


NO_LEADER = -1
#: The bit of AclOperation.WRITE in `topic_authorized_operations`.
WRITE_OPERATION_BIT = 1 << 4


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """The last known leader of a partition, as in `MetadataSnapshot`.

    >>> MetadataSnapshot().partition(TopicPartition("orders", 0)) is None
    True
    >>> PartitionMetadata(leader_id=1, leader_epoch=7).leader_id
    1
    """

    #: The id of the broker that leads it; -1 if there is none.
    leader_id: int = NO_LEADER
    #: Increases with each new leader (KIP-320); -1 if it is not known.
    leader_epoch: int = NO_LEADER_EPOCH
    #: Kafka's error code for the partition; 0 for none.
    error_code: int = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic, as in `MetadataSnapshot`; if it has no partitions, `error_code` says why.

    `name` is the topic's name, `error_code` is Kafka's error code for it, 0 for none, and
    `partitions` are its partitions in the order of their numbers.

    >>> from uuid import UUID
    >>> topic = TopicMetadata("orders", UUID(int=0), 0, (PartitionMetadata(leader_id=1),))
    >>> topic.partitions[0].leader_id, topic.is_refused
    (1, False)
    """

    name: str
    #: All zero if the broker is older than topic ids (KIP-516).
    topic_id: UUID
    error_code: int
    partitions: tuple[PartitionMetadata, ...]
    #: What this client may do with the topic, as Kafka's bit field; INT32_MIN if it is not known.
    authorized_operations: int = metadata.UNKNOWN_OPERATIONS

    @property
    def is_refused(self) -> bool:
        """Whether the broker permanently refuses to describe the topic.

        Too few brokers for a topic's replication factor is not permanent: more brokers may join.
        """
        return self.error_code not in {
            ErrorCode.NONE,
            ErrorCode.INVALID_REPLICATION_FACTOR,
        } and not is_retriable(self.error_code)

    @property
    def can_write(self) -> bool | None:
        """Whether this client may write to the topic; None if the broker did not say."""
        if self.authorized_operations == metadata.UNKNOWN_OPERATIONS:
            return None
        return bool(self.authorized_operations & WRITE_OPERATION_BIT)


@dataclass(frozen=True, slots=True)
class MetadataSnapshot:
    """The state of the cluster at one moment, as passed to partitioners.

    `cluster_id` is the cluster's id, `nodes` maps ids to brokers, and `topics` maps names to the
    topics that the producer uses. `racks` maps the ids of brokers that have a rack to it.
    `topic_partition` is a `TopicPartition`.

    >>> snapshot = MetadataSnapshot()
    >>> snapshot.partition_count("orders"), snapshot.leader_of(TopicPartition("orders", 0))
    (0, None)
    """

    cluster_id: str | None = None
    nodes: Mapping[int, Node] = field(default_factory=lambda: MappingProxyType({}))
    topics: Mapping[str, TopicMetadata] = field(default_factory=lambda: MappingProxyType({}))
    racks: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))

    def partition(self, topic_partition: TopicPartition) -> PartitionMetadata | None:
        """Return what is known about a partition; None if it is unknown."""
        topic = self.topics.get(topic_partition.topic)
        if topic is None or not 0 <= topic_partition.partition < len(topic.partitions):
            return None
        return topic.partitions[topic_partition.partition]

    def leader_of(self, topic_partition: TopicPartition) -> Node | None:
        """Return the leader's node; None while no leader is known."""
        known = self.partition(topic_partition)
        return None if known is None else self.nodes.get(known.leader_id)

    def leaders(self, topics: Iterable[str]) -> list[Node]:
        """Return the known leaders of all partitions of topics, each once."""
        known = (self.topics[topic] for topic in topics if topic in self.topics)
        ids = dict.fromkeys(
            partition.leader_id for topic in known for partition in topic.partitions
        )
        return [self.nodes[node_id] for node_id in ids if node_id in self.nodes]

    def topic_id(self, topic: str) -> UUID:
        """Return a topic's id; all zero if it is unknown, or if the broker has none (KIP-516)."""
        known = self.topics.get(topic)
        return known.topic_id if known is not None else ZERO_UUID

    def partition_count(self, topic: str) -> int:
        """Return the number of a topic's partitions; 0 while it is unknown."""
        known = self.topics.get(topic)
        return len(known.partitions) if known is not None else 0


class RefreshSchedule:
    """When to request metadata next (the timing half of org.apache.kafka.clients.Metadata).

    A request is due at once for a new topic, soon if a response showed the metadata to be out of
    date, and in any case after metadata.max.age.ms. It is held back for retry.backoff.ms after
    every response, and for twice as long each time no broker answers or a response contains nothing
    new (KIP-580), up to retry.backoff.max.ms. Callers pass times in seconds of one monotonic clock.
    """

    def __init__(self, *, backoff: ExponentialBackoff, max_age: float) -> None:
        """Start without a response: the first request may be sent at once."""
        self._backoff = backoff
        self._max_age = max_age
        self._full_update_requested = True
        self._is_expired = False
        #: When all topics were last received; None before the first time.
        self.last_full_answer: float | None = None
        self._failures = 0
        self._equivalent_answers = 0
        self._not_before = 0.0

    def request_full_update(self) -> None:
        """Request a full update; the back-off after responses without news still applies."""
        self._full_update_requested = True

    def allow_at_once(self) -> None:
        """Drop all back-offs: what is requested now was never requested before."""
        self._not_before = 0.0
        self._equivalent_answers = 0

    def expire(self) -> None:
        """Treat the metadata as too old from now on: everything is due at once."""
        self._is_expired = True
        self._not_before = 0.0

    def is_full_update_due(self, now: float) -> bool:
        """Return whether everything has to be requested, and not only what is new."""
        return self._full_update_requested or self._expires_at() <= now

    def _expires_at(self) -> float:
        if self._is_expired:
            return 0.0
        return NEVER if self.last_full_answer is None else self.last_full_answer + self._max_age

    def next_at(self, *, has_new_topics: bool) -> float:
        """Return when to send the next request."""
        if has_new_topics or self._full_update_requested:
            return self._not_before
        return max(self._expires_at(), self._not_before)

    def failed(self, now: float) -> None:
        """Record that no broker answered; the next request waits for the back-off."""
        self._not_before = now + self._backoff.delay(self._failures)
        self._failures += 1

    def answered(self, now: float, *, full: bool, progressed: bool) -> None:
        """Record a response; `progressed` is whether it contained anything new.

        A response that was requested because the metadata was too old counts as progress: no change
        was expected.
        """
        if progressed or self._expires_at() <= now:
            self._equivalent_answers = 0
        self._not_before = now + self._backoff.delay(self._equivalent_answers)
        self._equivalent_answers += 1
        self._failures = 0
        if full:
            self._full_update_requested = False
            self._is_expired = False
            self.last_full_answer = now


class MetadataTopics:
    """The topics that a producer needs metadata for, each while it is in use (ProducerMetadata).

    A topic that has not been used for metadata.max.idle.ms is dropped, so that a producer that
    keeps writing to new topics does not request all of them forever. A topic that no response has
    named yet is never dropped. Any thread may add topics: a writing thread records the use of its
    topics without involving the network thread. Callers pass times in seconds.
    """

    def __init__(self, *, max_idle: float) -> None:
        self._max_idle = max_idle
        self._lock = threading.Lock()
        self._expires_at: dict[str, float] = {}
        self._new: dict[str, None] = {}

    def add(self, topic: str, now: float) -> bool:
        """Record that a topic is used; return whether it is new."""
        with self._lock:
            is_new = topic not in self._expires_at
            self._expires_at[topic] = now + self._max_idle
            if is_new:
                self._new[topic] = None
            return is_new

    def ask_again(self, topic: str) -> None:
        """Treat a topic as if no response had ever named it."""
        with self._lock:
            if topic in self._expires_at:
                self._new[topic] = None

    @property
    def has_new(self) -> bool:
        """Whether there are topics that no response has named yet."""
        return bool(self._new)

    def all(self) -> tuple[str, ...]:
        """Return all topics, in the order they were added."""
        with self._lock:
            return tuple(self._expires_at)

    def new(self) -> tuple[str, ...]:
        """Return the topics that no response has named yet."""
        with self._lock:
            return tuple(self._new)

    def answered(self, topics: Collection[str]) -> None:
        """Record which topics a response has named."""
        with self._lock:
            for topic in topics:
                self._new.pop(topic, None)

    def expire(self, now: float) -> frozenset[str]:
        """Remove the topics that have not been used for too long, and return them."""
        with self._lock:
            expired = frozenset(
                topic
                for topic, expires_at in self._expires_at.items()
                if expires_at <= now and topic not in self._new
            )
            for topic in expired:
                del self._expires_at[topic]
            return expired


class MetadataQuestion(NamedTuple):
    """The next metadata request."""

    topics: tuple[str, ...]
    #: Whether these are all topics; if not, the response replaces only the topics that it names.
    is_full: bool


class Metadata:
    """The current snapshot, the topics it must cover, and when to request it again."""

    def __init__(
        self, *, refresh_backoff: ExponentialBackoff, max_age: float, max_idle: float = NEVER
    ) -> None:
        """Start with an empty snapshot.

        `max_age` is metadata.max.age.ms and `max_idle` is metadata.max.idle.ms, both in seconds.
        """
        self.snapshot = MetadataSnapshot()
        self._topics = MetadataTopics(max_idle=max_idle)
        self._schedule = RefreshSchedule(backoff=refresh_backoff, max_age=max_age)

    # --- what to request, and when

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics to request."""
        return self._topics.all()

    def add_topic(self, topic: str, now: float) -> None:
        """Record that a topic is used: request it until it has been idle for metadata.max.idle.ms.

        May be called by any thread. A new topic is due at once; a caller that waits for it has to
        make sure that a request is sent (`NetworkClient.wait_for_topics`).
        """
        if self._topics.add(topic, now):
            self._schedule.allow_at_once()

    def ask_again(self, topic: str) -> None:
        """Request a refused topic as if it were new: authorization may have been granted since."""
        self._topics.ask_again(topic)
        self._schedule.allow_at_once()

    def is_unanswered(self, topic: str) -> bool:
        """Return whether no response has named a topic since `add_topic` or `ask_again`."""
        return topic in self._topics.new()

    @property
    def updated_at(self) -> float | None:
        """When all topics were last received, in seconds; None before the first time."""
        return self._schedule.last_full_answer

    def request_update(self) -> None:
        """Request a full update, since the snapshot may be out of date."""
        self._schedule.request_full_update()

    def expire(self) -> None:
        """Treat the snapshot as older than metadata.max.age.ms: all topics are due at once."""
        self._schedule.expire()

    def next_update_at(self) -> float:
        """Return when the next request is due: when the back-off allows, or at the maximum age."""
        return self._schedule.next_at(has_new_topics=self._topics.has_new)

    def question(self, now: float) -> MetadataQuestion:
        """Return the request to send now, after dropping topics that were idle for too long.

        New topics are requested by themselves unless all topics are due anyway.
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

    # --- responses

    def failed(self, now: float) -> None:
        """Record that no broker answered; the next request waits for the back-off."""
        self._schedule.failed(now)

    def update(
        self, response: metadata.MetadataResponse, now: float, *, is_full: bool = True
    ) -> None:
        """Replace the snapshot with a response, keeping whatever is newer in the old one.

        `is_full` is that of the request. Raises DecodeError, and changes nothing, if the response
        contradicts itself.
        """
        snapshot = self.snapshot
        # Ids and epochs of another cluster have no meaning in this one (after a rebootstrap).
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
            racks=MappingProxyType({b.node_id: b.rack for b in response.brokers if b.rack}),
        )
        self._topics.answered(topics)
        progressed = any(_tells_more(old.get(name), topic) for name, topic in topics.items())
        self._schedule.answered(now, full=is_full, progressed=progressed)
        requested = self._topics.all() if is_full else ()
        if (
            (moved and not is_full)
            or any(_is_incomplete(topic) for topic in topics.values())
            or any(name not in topics for name in requested if name not in self._topics.new())
        ):
            self._schedule.request_full_update()

    def update_leaders(
        self, leaders: Mapping[TopicPartition, tuple[int, int]], nodes: Iterable[Node]
    ) -> set[TopicPartition]:
        """Apply the leaders (id and epoch) that a broker named in an error response (KIP-951).

        A leader is applied if its epoch is newer, its partition is known, and the address of its
        node is known or among `nodes`. Returns the partitions whose leader has changed. A full
        update is still worthwhile: the hints concern only a few partitions.
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
        """Forget the brokers, and request everything as soon as the back-off allows.

        Topics are kept: their partition counts are the best guess until a broker answers.
        """
        self.snapshot = replace(self.snapshot, nodes=MappingProxyType({}))
        self._schedule.request_full_update()


def _is_incomplete(topic: TopicMetadata) -> bool:
    """Return whether another response may soon say more; never so for a refused topic."""
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


def _merge_topic(old: TopicMetadata | None, new: metadata.MetadataResponseTopic) -> TopicMetadata:
    # A missing id (an error, or a broker older than topic ids) does not mean another topic.
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
        # The topic cannot be described at the moment; what was known remains the best guess.
        partitions = old.partitions
    return TopicMetadata(
        name=str(new.name),
        topic_id=topic_id,
        error_code=new.error_code,
        partitions=partitions,
        authorized_operations=new.topic_authorized_operations,
    )


def _merge_partition(
    old: PartitionMetadata | None, new: metadata.MetadataResponsePartition
) -> PartitionMetadata:
    known_epoch = NO_LEADER_EPOCH if old is None else old.leader_epoch
    if old is not None and NO_LEADER_EPOCH != new.leader_epoch < known_epoch:
        return old
    # A response without an epoch (an error, or an old broker) is applied, but resets no epoch.
    return PartitionMetadata(new.leader_id, max(known_epoch, new.leader_epoch), new.error_code)
