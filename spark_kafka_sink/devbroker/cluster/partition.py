"""A topic, its partitions, and which broker may serve them (Kafka's Partition).

The brokers of a cluster share one log for each partition; the partition's `leadership` decides
which of them serves it, as Kafka's PartitionChangeBuilder does. Nothing is replicated: the log
stands for every replica, so a replica on a running broker is in sync at once, as long as there is a
leader to follow.

- A running leader remains leader, even when the preferred leader returns.
- Otherwise the first in-sync replica of the list becomes leader; each change, including one to "no
  leader", raises the leader epoch.
- Replicas that leave while fewer than min.insync.replicas are in sync remain eligible (KIP-966):
  once no replica is in sync, only they may lead again, because only they surely have all records.
- A test, or an administrator (ElectLeaders), can elect an unclean leader, whose log lacks records;
  the others truncate theirs at once.
- Reassigned replicas on running brokers replace the old ones at once; the others when they start.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from spark_kafka_sink.devbroker.base.refusal import RefusedError, check_leader_epoch
from spark_kafka_sink.devbroker.base.topic_names import INTERNAL_TOPICS
from spark_kafka_sink.devbroker.log.partition_log import PartitionLog
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    import uuid
    from collections.abc import Collection, Container, Mapping

    from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
    from spark_kafka_sink.devbroker.log.log_segment import FetchedRecords
    from spark_kafka_sink.devbroker.log.partition_log import AppendResult
    from spark_kafka_sink.devbroker.log.producer_state import TransactionMarker
    from spark_kafka_sink.record.record_batch import RecordBatchHeader


NO_LEADER = -1


@dataclass(slots=True)
class Leadership:
    """The leader and the replicas of one partition."""

    #: The brokers with a replica, the preferred leader first.
    replicas: tuple[int, ...]
    leader_id: int
    leader_epoch: int = 0
    #: The in-sync replicas.
    isr: tuple[int, ...] = ()
    #: Replicas that are not in sync but may still become leader.
    eligible: frozenset[int] = frozenset()
    #: The replicas that a reassignment adds and removes; both empty if none is in progress.
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after the reassignment that is in progress, or as they are."""
        return tuple(replica for replica in self.replicas if replica not in self.removing)

    @classmethod
    def begin(cls, replicas: tuple[int, ...], running: Container[int]) -> Self:
        """Return a leadership in which the first replica on a running broker leads."""
        isr = tuple(replica for replica in replicas if replica in running)
        return cls(replicas, isr[0] if isr else NO_LEADER, isr=isr)

    def update(self, running: Container[int], min_insync_replicas: int) -> bool:
        """Update the replicas for the running brokers; return whether the leader has changed."""
        known = {*self.isr, *self.eligible}
        alive = tuple(replica for replica in self.replicas if replica in running)
        leader_id = next(
            (
                replica
                for candidates in ((self.leader_id,), self.isr, self.eligible)
                for replica in self.replicas
                if replica in candidates and replica in running
            ),
            NO_LEADER,
        )
        self.isr = () if leader_id == NO_LEADER else alive
        enough = len(self.isr) >= min(min_insync_replicas, len(self.replicas))
        self.eligible = frozenset() if enough else frozenset(known.difference(self.isr))
        has_moved = self._lead(leader_id)
        return self._complete_reassignment() or has_moved

    def reassign(self, target: tuple[int, ...]) -> None:
        """Begin to move to other replicas, the preferred leader first; `update` ends it.

        The old replicas remain until all the new ones are in sync (KIP-455).
        """
        self.adding = tuple(sorted(set(target).difference(self.replicas)))
        self.removing = tuple(sorted(set(self.replicas).difference(target)))
        self.replicas = target + self.removing

    def cancel_reassignment(self) -> None:
        """Return to the old replicas. Raises ValueError if none of those is in sync."""
        isr = tuple(replica for replica in self.isr if replica not in self.adding)
        if not isr:
            raise ValueError("it would require an unclean leader election")
        self.replicas = tuple(replica for replica in self.replicas if replica not in self.adding)
        self.adding = self.removing = ()
        self._replace_isr(isr)

    def _complete_reassignment(self) -> bool:
        """Remove the old replicas if all new ones are in sync; return whether the epoch changes.

        At least one replica in sync must remain (PartitionReassignmentReplicas).
        """
        target = self.target
        isr = tuple(replica for replica in target if replica in self.isr)
        if not (self.adding or self.removing) or not isr or not set(self.adding).issubset(isr):
            return False
        removes = bool(self.removing)
        self.replicas = target
        self.adding = self.removing = ()
        return self._replace_isr(isr) if removes else False

    def _replace_isr(self, isr: tuple[int, ...]) -> bool:
        """Leave only some replicas in sync, with a new leader epoch; return True."""
        self.isr = isr
        self.eligible = self.eligible.intersection(self.replicas)
        if self.leader_id not in isr:
            self.leader_id = isr[0]
        self.leader_epoch += 1
        return True

    def move_to(self, node_id: int) -> bool:
        """Make another replica the leader; return whether it was not the leader already.

        Raises ValueError if it is not in sync.
        """
        if node_id not in self.isr:
            raise ValueError(f"broker {node_id} is not in the ISR, {self.isr}")
        return self._lead(node_id)

    def elect_uncleanly(self, node_id: int, running: Container[int]) -> None:
        """Make a running replica the leader in a new epoch, even if it is the leader already."""
        self.leader_id = node_id
        self.leader_epoch += 1
        self.isr = tuple(replica for replica in self.replicas if replica in running)
        self.eligible = frozenset()

    def _lead(self, leader_id: int) -> bool:
        changed = leader_id != self.leader_id
        if changed:
            self.leader_id = leader_id
            self.leader_epoch += 1
        return changed


def place_replicas(
    index: int, count: int, running: Collection[int], brokers: Collection[int]
) -> tuple[int, ...]:
    """Return the replicas of a partition, spread as by StripedReplicaPlacer with one rack.

    Brokers that are not running get replicas if there are too few others. Raises RefusedError with
    INVALID_REPLICATION_FACTOR if there are too few brokers, or none is running.
    """
    check_replication_factor(count, running, brokers)
    stopped = {*brokers}.difference(running)
    replicas = (*_rotated(sorted(running), index), *_rotated(sorted(stopped), index))
    return replicas[:count]


def check_replication_factor(
    count: int, running: Collection[int], brokers: Collection[int]
) -> None:
    """Raise RefusedError with INVALID_REPLICATION_FACTOR if so many replicas cannot be placed."""
    if count > len(brokers):
        problem = f"the cluster has only {len(brokers)} broker(s)"
    elif not running:
        problem = "no broker is running"
    else:
        return
    raise RefusedError(
        ErrorCode.INVALID_REPLICATION_FACTOR,
        f"Unable to replicate the partition {count} time(s): {problem}.",
    )


def _rotated(brokers: list[int], count: int) -> list[int]:
    start = count % len(brokers) if brokers else 0
    return brokers[start:] + brokers[:start]


@dataclass(slots=True)
class Partition:
    """A partition: its leadership and its log."""

    topic: Topic
    index: int
    leadership: Leadership
    log: PartitionLog = field(default_factory=PartitionLog)
    #: Followers that have stopped to replicate, each with the offset at which its log ends.
    lagging: dict[int, int] = field(default_factory=dict)
    #: Replicas whose brokers have stopped, each with the offset at which its log ended then.
    stopped: dict[int, int] = field(default_factory=dict)

    @property
    def topic_partition(self) -> TopicPartition:
        """The name of the topic and the index."""
        return TopicPartition(self.topic.name, self.index)

    @property
    def leader_id(self) -> int:
        """The id of the leader, -1 for none."""
        return self.leadership.leader_id

    @property
    def leader_epoch(self) -> int:
        """The leader epoch, which every change of leader raises."""
        return self.leadership.leader_epoch

    @property
    def replicas(self) -> tuple[int, ...]:
        """The brokers with a replica."""
        return self.leadership.replicas

    def log_end_offset(self, node_id: int) -> int:
        """Return where the log of a replica ends."""
        end_offset = self.log.log_end_offset
        return min(self.lagging.get(node_id, end_offset), end_offset)

    def end_offset(self, node_id: int) -> int:
        """Return the high watermark of a replica, which is also its log end."""
        return self.log_end_offset(node_id)

    def check_leader(self, node_id: int) -> None:
        """Raise RefusedError with NOT_LEADER_OR_FOLLOWER unless this broker leads the partition."""
        if node_id != self.leader_id:
            raise RefusedError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"the leader of {self.topic.name}-{self.index} is broker {self.leader_id}, "
                f"not {node_id}",
            )

    def check_reader(self, node_id: int, leader_epoch: int, *, only_leader: bool = True) -> None:
        """Raise RefusedError unless a client that knows this leader epoch may read from a broker.

        The checks are: NOT_LEADER_OR_FOLLOWER if the broker has no replica; the epoch, as in
        `check_leader_epoch`; NOT_LEADER_OR_FOLLOWER if `only_leader` is set and the broker is not
        the leader (Partition.getLocalLog).
        """
        if node_id not in self.replicas:
            self.check_leader(node_id)
        self.check_leader_epoch(leader_epoch)
        if only_leader:
            self.check_leader(node_id)

    def check_leader_epoch(self, leader_epoch: int) -> None:
        """Raise RefusedError if the client's leader epoch is not the partition's (KIP-320).

        See the function of this name.
        """
        check_leader_epoch(leader_epoch, self.leader_epoch)

    def check_enough_replicas(self) -> None:
        """Raise RefusedError with NOT_ENOUGH_REPLICAS below min.insync.replicas.

        The minimum is never more than the number of replicas (Partition.effectiveMinIsr).
        """
        enough = min(self.topic.config.min_insync_replicas, len(self.replicas))
        if len(self.leadership.isr) < enough:
            raise RefusedError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self.topic.name}-{self.index} has {len(self.leadership.isr)} in-sync replicas, "
                f"but min.insync.replicas is {enough}",
            )

    # Writes. They are replicated at once: `ReplicatedPartition` overrides this.

    @property
    def term(self) -> int:
        """What `check_replicated` is told of a write: another leader may not have it."""
        return 0

    def append(
        self, batch: memoryview, header: RecordBatchHeader, *, acks: int, now: float
    ) -> AppendResult:
        """Append a validated batch. Raises RefusedError as `PartitionLog.append`."""
        del acks
        return self.log.append(batch, header, now_ms=int(now * 1000))

    def append_marker(self, marker: TransactionMarker, now: float) -> int:
        """Append a transaction marker; return its offset.

        Raises RefusedError as `PartitionLog.append_marker`.
        """
        del now
        return self.log.append_marker(marker)

    def check_replicated(self, end_offset: int, term: int) -> ErrorCode | None:
        """Return the outcome of a write that ends before an offset; None to wait.

        `term` is that of the partition after the write.
        """
        del end_offset, term
        return ErrorCode.NONE

    def low_watermark(self) -> int:
        """Return the lowest log start of all replicas. Raises RefusedError if it cannot."""
        return self.log.log_start_offset

    # Reads.

    def read(
        self, node_id: int, offset: int, *, max_bytes: int, min_one_batch: bool, committed: bool
    ) -> FetchedRecords:
        """Return what a consumer may read from a replica; see `PartitionLog.read`."""
        return self.log.read(
            offset,
            max_bytes=max_bytes,
            min_one_batch=min_one_batch,
            committed=committed,
            end_offset=self.end_offset(node_id),
        )

    def check_offsets_available(self) -> None:
        """Raise RefusedError with OFFSET_NOT_AVAILABLE while the leader does not know the end."""

    def closest_follower(
        self, rack: str, fetch_offset: int, racks: Mapping[int, str]
    ) -> int | None:
        """Return the follower in a consumer's rack that has its offset; None to use the leader.

        `racks` are those of the brokers by id. The leader is used if it is in the rack, if the
        consumer has none, and if no in-sync follower in the rack has the offset. Of several
        followers, the one that lags least is used, or else the one with the highest id
        (RackAwareReplicaSelector, ReplicaManager.findPreferredReadReplica; KIP-392).
        """
        if not rack or racks.get(self.leader_id) == rack:
            return None
        followers = [
            replica
            for replica in self.leadership.isr
            if racks.get(replica) == rack
            and self.log.log_start_offset <= fetch_offset <= self.end_offset(replica)
        ]
        return max(followers, key=lambda replica: (self.end_offset(replica), replica), default=None)


@dataclass(slots=True)
class Topic:
    """A topic and its partitions."""

    name: str
    topic_id: uuid.UUID
    config: TopicConfig
    partitions: list[Partition] = field(default_factory=list)
    #: The settings that were set explicitly, by Kafka's names; `config` is the resulting whole.
    overrides: dict[str, str] = field(default_factory=dict)

    @property
    def is_internal(self) -> bool:
        """Whether this is an internal topic of Kafka."""
        return self.name in INTERNAL_TOPICS

    @property
    def replication_factor(self) -> int:
        """The number of replicas of each partition."""
        return len(self.partitions[0].replicas)
