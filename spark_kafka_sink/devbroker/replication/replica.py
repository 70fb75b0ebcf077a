"""A broker's replica of a partition: what clients and followers may do with it (Kafka's Partition).

Consumers see what is committed, at the leader and at followers. Only the leader is written to,
knows how far the followers have come, and says where the partition ends. Nothing waits here: who
deletes records asks for the `low_watermark` again when something has changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.refusal import RefusedError, check_leader_epoch
from spark_kafka_sink.devbroker.log.log_segment import FetchedRecords
from spark_kafka_sink.devbroker.metadata.records import NO_LEADER
from spark_kafka_sink.model import NO_LEADER_EPOCH
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.fetch import EpochEndOffset

if TYPE_CHECKING:
    from spark_kafka_sink.devbroker.log.partition_log import PartitionLog
    from spark_kafka_sink.devbroker.metadata.image import MetadataImage
    from spark_kafka_sink.devbroker.metadata.records import TopicIdPartition
    from spark_kafka_sink.devbroker.replication.leader_replica import LeaderReplica
    from spark_kafka_sink.protocol.messages.fetch import FetchPartition


@dataclass(slots=True, eq=False)
class Replica:
    """A broker's replica of a partition."""

    key: TopicIdPartition
    topic: str
    log: PartitionLog
    leader_id: int = NO_LEADER
    leader_epoch: int = NO_LEADER_EPOCH
    #: The replica as a leader; None for a follower.
    leader: LeaderReplica | None = None
    #: Another number each time that it begins to lead after it did not: the same offset may then be
    #: another record.
    term: int = 0

    def as_leader(self) -> LeaderReplica:
        """Return the replica as a leader. Raises RefusedError with NOT_LEADER_OR_FOLLOWER."""
        if self.leader is None:
            raise RefusedError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"the leader of {self.topic}-{self.key.partition} is broker {self.leader_id}",
            )
        return self.leader

    def check_epoch(self, leader_epoch: int) -> None:
        """Raise RefusedError if a client or follower knows another leader epoch (KIP-320)."""
        check_leader_epoch(leader_epoch, self.leader_epoch)

    def check_offsets_available(self) -> None:
        """Raise RefusedError with OFFSET_NOT_AVAILABLE while a new leader does not know the end.

        Its high watermark may be behind what consumers have seen until it has reached the leader's
        epoch (KIP-207).
        """
        epoch_start = 0 if self.leader is None else self.leader.epoch_start_offset
        if epoch_start > self.log.high_watermark:
            raise RefusedError(
                ErrorCode.OFFSET_NOT_AVAILABLE,
                f"the high watermark is {self.log.high_watermark}, and the leader's epoch begins "
                f"at {epoch_start}",
            )

    def low_watermark(self, image: MetadataImage) -> int:
        """Return the lowest log start of all replicas on running brokers.

        The counterpart of Partition.lowWatermarkIfLeader. Raises RefusedError as `as_leader`.
        """
        starts = [
            follower.log_start_offset
            for replica, follower in self.as_leader().followers.items()
            if replica in image.brokers and not image.brokers[replica].fenced
        ]
        return min([self.log.log_start_offset, *starts])

    def closest_follower(self, rack: str, fetch_offset: int, image: MetadataImage) -> int | None:
        """Return the follower in a consumer's rack that has its offset; None to use this broker.

        Of several followers it is the one that lags least, by its log end, then by time, or else
        the one with the highest id (RackAwareReplicaSelector,
        ReplicaManager.findPreferredReadReplica; KIP-392).
        """
        leader = self.leader
        if leader is None or not rack or _rack(self.leader_id, image) == rack:
            return None
        followers = [
            (follower.log_end_offset, follower.caught_up_at, replica)
            for replica, follower in leader.followers.items()
            if replica in leader.isr
            and _rack(replica, image) == rack
            and follower.log_start_offset <= fetch_offset <= follower.log_end_offset
        ]
        return max(followers)[-1] if followers else None

    def read(
        self, offset: int, *, max_bytes: int, min_one_batch: bool, committed: bool
    ) -> FetchedRecords:
        """Return what a consumer may read; see `PartitionLog.read`.

        Records that are not committed yet are there, so their offsets are not out of range.
        """
        log = self.log
        if log.high_watermark < offset <= log.log_end_offset:
            return FetchedRecords([], 0, 0, offset, offset)
        return log.read(
            offset,
            max_bytes=max_bytes,
            min_one_batch=min_one_batch,
            committed=committed,
            end_offset=log.high_watermark,
        )


def _rack(node_id: int, image: MetadataImage) -> str | None:
    broker = image.brokers.get(node_id)
    return None if broker is None or broker.fenced else broker.rack


def diverging_epoch(
    log: PartitionLog, partition: FetchPartition, end_offset: int
) -> EpochEndOffset | None:
    """Return where the requester's log diverges from this one; None if it does not.

    As Partition.readRecords, for a log that ends at `end_offset`. Raises RefusedError with
    OFFSET_OUT_OF_RANGE for an unknown epoch, and for an offset before the log start.
    """
    epoch = partition.last_fetched_epoch
    if epoch == NO_LEADER_EPOCH:
        return None
    end = log.end_offset_for_epoch(epoch)
    if end is None:
        raise RefusedError(ErrorCode.OFFSET_OUT_OF_RANGE, f"leader epoch {epoch} is unknown")
    if partition.fetch_offset < log.log_start_offset:
        raise RefusedError(
            ErrorCode.OFFSET_OUT_OF_RANGE, f"the log starts at offset {log.log_start_offset}"
        )
    end_of_epoch = min(end.end_offset, end_offset)
    if end.epoch == epoch and end_of_epoch >= partition.fetch_offset:
        return None
    return EpochEndOffset(epoch=end.epoch, end_offset=end_of_epoch)
