"""A topic and its partitions, as handlers see them (Kafka's Partition).

Who leads a partition is decided elsewhere: one broker leads all that it has, and with several
brokers a controller decides. `Partition` is a partition of one broker, whose log has the only
replica: what is written is committed at once. `replicated_topics` has those with more replicas.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from spark_kafka_sink.devbroker.base.refusal import check_leader_epoch
from spark_kafka_sink.devbroker.base.topic_names import INTERNAL_TOPICS
from spark_kafka_sink.devbroker.log.partition_log import PartitionLog
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    import uuid

    from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
    from spark_kafka_sink.devbroker.log.log_segment import FetchedRecords
    from spark_kafka_sink.devbroker.log.partition_log import AppendResult
    from spark_kafka_sink.devbroker.log.producer_state import TransactionMarker
    from spark_kafka_sink.record.record_batch import RecordBatchHeader


NO_LEADER = -1


@dataclass(frozen=True, slots=True)
class Leadership:
    """The leader and the replicas of one partition."""

    #: The brokers with a replica, the preferred leader first.
    replicas: tuple[int, ...]
    leader_id: int
    leader_epoch: int
    #: The in-sync replicas.
    isr: tuple[int, ...]
    #: Replicas that are not in sync but may still become leader (KIP-966).
    eligible: frozenset[int] = frozenset()

    @classmethod
    def of_only(cls, node_id: int, leader_epoch: int = 0) -> Self:
        """Return the leadership of a broker that has the only replica, and runs."""
        return cls((node_id,), node_id, leader_epoch, isr=(node_id,))


@dataclass(slots=True)
class Partition:
    """A partition: its leadership and its log."""

    topic: Topic
    index: int
    leadership: Leadership
    log: PartitionLog = field(default_factory=PartitionLog)

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

    def check_leader(self) -> None:
        """Raise RefusedError with NOT_LEADER_OR_FOLLOWER unless this broker leads the partition."""

    def check_reader(self, leader_epoch: int, *, only_leader: bool = True) -> None:
        """Raise RefusedError unless a client that knows this leader epoch may read here.

        The checks are: NOT_LEADER_OR_FOLLOWER if this broker has no replica; the epoch, as in
        `check_leader_epoch`; NOT_LEADER_OR_FOLLOWER if `only_leader` is set and this broker is not
        the leader (Partition.getLocalLog).
        """
        del only_leader
        self.check_leader_epoch(leader_epoch)

    def check_leader_epoch(self, leader_epoch: int) -> None:
        """Raise RefusedError if the client's leader epoch is not the partition's (KIP-320).

        See the function of this name.
        """
        check_leader_epoch(leader_epoch, self.leader_epoch)

    def check_enough_replicas(self) -> None:
        """Raise RefusedError with NOT_ENOUGH_REPLICAS below min.insync.replicas.

        The minimum is never more than the number of replicas (Partition.effectiveMinIsr).
        """

    # Writes.

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
        self, offset: int, *, max_bytes: int, min_one_batch: bool, committed: bool
    ) -> FetchedRecords:
        """Return what a consumer may read here; see `PartitionLog.read`."""
        return self.log.read(
            offset, max_bytes=max_bytes, min_one_batch=min_one_batch, committed=committed
        )

    def check_offsets_available(self) -> None:
        """Raise RefusedError with OFFSET_NOT_AVAILABLE while the leader does not know the end."""

    def closest_follower(self, rack: str, fetch_offset: int) -> int | None:
        """Return the follower in a consumer's rack that has its offset; None to use the leader."""
        del rack, fetch_offset
        return None


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
