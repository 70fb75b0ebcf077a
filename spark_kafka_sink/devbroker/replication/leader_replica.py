"""The replica of a partition whose broker leads it (the leader's part of Kafka's Partition).

It knows how far each follower has come from that follower's fetches: a fetch from an offset says
that all before it is in the follower's log. From that follow

- the high watermark: the lowest log end of all replicas that are in sync, or may be in sync without
  this leader knowing it yet (the maximal ISR), or are about to be. It does not move while fewer
  than min.insync.replicas are in sync (KIP-966);
- the ISR that the controller should record: it loses followers that have not caught up for
  `replica.lag.time.max.ms`, and gains those that have all committed records and all from before
  this leader's epoch, and whose broker may be in sync. One proposal is open at a time; until the
  controller has responded, a follower that would join counts, and one that would leave still does.

Nothing is sent here: `proposal` is what to ask of the controller. Time is an argument, in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from spark_kafka_sink.devbroker.log.partition_log import AppendResult, PartitionLog
    from spark_kafka_sink.devbroker.log.producer_state import TransactionMarker
    from spark_kafka_sink.devbroker.metadata.image import MetadataImage
    from spark_kafka_sink.devbroker.metadata.records import PartitionRecord
    from spark_kafka_sink.record.record_batch import RecordBatchHeader

#: The acks of a producer that waits for all in-sync replicas.
ACKS_ALL = -1
_UNKNOWN = -1
_NEVER = float("-inf")

#: The proposed ISR is not taken, and the recorded one holds (Partition.handleAlterPartitionError).
_REJECTED = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA})
#: This leader may be out of date: its proposal stays open until the metadata arrive.
_OUT_OF_DATE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    }
)


@dataclass(slots=True)
class FollowerState:
    """How far a follower has come (Kafka's Replica)."""

    log_end_offset: int = _UNKNOWN
    log_start_offset: int = _UNKNOWN
    #: The leader's log end at the last fetch, and when that was.
    leader_end_offset: int = _UNKNOWN
    fetched_at: float = _NEVER
    #: The last time at which it had all that the leader had then.
    caught_up_at: float = _NEVER
    #: The epoch of its broker, by its last fetch; None before the first one.
    broker_epoch: int | None = None
    #: The high watermark in the last response to it.
    sent_high_watermark: int = _UNKNOWN

    def fetched(
        self, offset: int, log_start_offset: int, leader_end_offset: int, now: float
    ) -> None:
        """Record a fetch from an offset (Replica.updateFetchStateOrThrow).

        A follower that now has what the leader had at its fetch before was caught up then.
        """
        if offset >= leader_end_offset:
            self.caught_up_at = max(self.caught_up_at, now)
        elif offset >= self.leader_end_offset:
            self.caught_up_at = max(self.caught_up_at, self.fetched_at)
        self.log_end_offset = offset
        self.log_start_offset = log_start_offset
        self.leader_end_offset = leader_end_offset
        self.fetched_at = now

    def is_caught_up(self, leader_end_offset: int, now: float, max_lag: float) -> bool:
        """Return whether it has all, or had all a short time ago."""
        return self.log_end_offset == leader_end_offset or now - self.caught_up_at <= max_lag


class IsrProposal(NamedTuple):
    """An ISR that the leader asks the controller to record (PendingPartitionChange)."""

    isr: tuple[int, ...]
    #: The brokers' epochs, in the same order; -1 if one is not known.
    broker_epochs: tuple[int, ...]
    leader_epoch: int
    partition_epoch: int
    #: The follower that would join; None if others would leave.
    joining: int | None


class LeaderReplica:
    """A partition that this broker leads."""

    def __init__(
        self,
        node_id: int,
        broker_epoch: int,
        log: PartitionLog,
        *,
        max_lag: float,
    ) -> None:
        """Create a leader without a leadership, which `lead` begins.

        `max_lag` is `replica.lag.time.max.ms`, in seconds.
        """
        self.log = log
        self.followers: dict[int, FollowerState] = {}
        #: The in-sync replicas that the controller has recorded, as far as this leader knows.
        self.isr: frozenset[int] = frozenset()
        self.replicas: tuple[int, ...] = ()
        self.leader_epoch = _UNKNOWN
        self.partition_epoch = _UNKNOWN
        #: Where the log ended when this leader took over.
        self.epoch_start_offset = 0
        #: The ISR that the controller has not confirmed yet.
        self.proposal: IsrProposal | None = None
        #: Whether the proposal must be sent.
        self.must_propose = False
        #: The epoch with which this broker is registered.
        self.broker_epoch = broker_epoch
        self._node_id = node_id
        self._max_lag = max_lag

    @property
    def maximal_isr(self) -> frozenset[int]:
        """The replicas that may be in sync by now, whatever the controller decides."""
        joining = None if self.proposal is None else self.proposal.joining
        return self.isr if joining is None else self.isr | {joining}

    @property
    def min_isr(self) -> int:
        """The minimum of in-sync replicas for acks=all (Partition.effectiveMinIsr)."""
        return min(self.log.config.min_insync_replicas, len(self.replicas))

    @property
    def is_under_min_isr(self) -> bool:
        """Whether too few replicas are in sync for acks=all."""
        return len(self.isr) < self.min_isr

    def lead(self, partition: PartitionRecord, image: MetadataImage, now: float) -> bool:
        """Continue with newer metadata, or begin to lead; return whether the high watermark moved.

        The counterpart of Partition.makeLeader. Metadata that are not newer are ignored: the
        controller's response to a proposal arrives before they do, and a later proposal must not be
        forgotten because of them.
        """
        if partition.leader_epoch < self.leader_epoch or (
            partition.leader_epoch == self.leader_epoch
            and partition.partition_epoch <= self.partition_epoch
        ):
            return False
        self.replicas = partition.replicas
        self.isr = frozenset(partition.isr)
        self._withdraw()
        others = [replica for replica in partition.replicas if replica != self._node_id]
        self.followers = {
            replica: self.followers.get(replica) or FollowerState() for replica in others
        }
        if partition.leader_epoch > self.leader_epoch:
            self._begin_epoch(partition, now)
        self.partition_epoch = partition.partition_epoch
        return self.maybe_increment_high_watermark(image, now)

    def _begin_epoch(self, partition: PartitionRecord, now: float) -> None:
        was_leader = self.leader_epoch != _UNKNOWN
        self.leader_epoch = partition.leader_epoch
        self.epoch_start_offset = self.log.log_end_offset
        self.log.begin_leader_epoch(partition.leader_epoch)
        for replica, state in self.followers.items():
            in_sync = replica in self.isr
            state.caught_up_at = now if in_sync else _NEVER
            if was_leader:
                state.leader_end_offset = self.epoch_start_offset
                state.fetched_at = now if in_sync else _NEVER

    def append(
        self,
        batch: memoryview,
        header: RecordBatchHeader,
        *,
        acks: int,
        now_ms: int,
        from_coordinator: bool = False,
    ) -> AppendResult:
        """Append a validated batch (Partition.appendRecordsToLeader).

        Raises RefusedError with NOT_ENOUGH_REPLICAS if acks is -1 and too few are in sync, and as
        `PartitionLog.append`. The caller then lets the high watermark move.
        """
        if acks == ACKS_ALL:
            self.check_enough_replicas()
        return self.log.append(batch, header, now_ms=now_ms, from_coordinator=from_coordinator)

    def append_marker(self, marker: TransactionMarker) -> int:
        """Append a transaction marker, with acks=all; return its offset.

        Raises RefusedError as `append`, and as `PartitionLog.append_marker`.
        """
        self.check_enough_replicas()
        return self.log.append_marker(marker)

    def check_enough_replicas(self) -> None:
        """Raise RefusedError with NOT_ENOUGH_REPLICAS if too few are in sync for acks=all."""
        if self.is_under_min_isr:
            raise RefusedError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{len(self.isr)} replicas are in sync, but min.insync.replicas is {self.min_isr}",
            )

    def follower_fetched(
        self,
        replica_id: int,
        broker_epoch: int,
        offset: int,
        log_start_offset: int,
        *,
        image: MetadataImage,
        now: float,
    ) -> bool:
        """Record the fetch of a follower; return whether the high watermark has moved.

        The counterpart of Partition.updateFollowerFetchState. Raises RefusedError with
        NOT_LEADER_OR_FOLLOWER for a broker that has been registered again since.
        """
        follower = self.followers[replica_id]
        registered = image.brokers.get(replica_id)
        if registered is not None and -1 < broker_epoch < registered.broker_epoch:
            raise RefusedError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {replica_id} has been registered with epoch {registered.broker_epoch}; "
                f"the request has {broker_epoch}",
            )
        previous = follower.log_end_offset
        follower.broker_epoch = broker_epoch
        follower.fetched(offset, log_start_offset, self.log.log_end_offset, now)
        self._maybe_expand_isr(replica_id, image)
        return offset != previous and self.maybe_increment_high_watermark(image, now)

    def maybe_increment_high_watermark(self, image: MetadataImage, now: float) -> bool:
        """Move the high watermark up, if possible; return whether it has moved."""
        if self.is_under_min_isr:
            return False
        log_end_offset = self.log.log_end_offset
        lowest = log_end_offset
        maximal_isr = self.maximal_isr
        for replica, follower in self.followers.items():
            if follower.log_end_offset < lowest and (
                replica in maximal_isr
                # About to join: the controller's answer must not be needed for each such record.
                or (
                    follower.is_caught_up(log_end_offset, now, self._max_lag)
                    and self._may_join(replica, image)
                )
            ):
                lowest = follower.log_end_offset
        return lowest > self.log.high_watermark and self.log.update_high_watermark(lowest)

    def _maybe_expand_isr(self, replica: int, image: MetadataImage) -> None:
        log_end_offset = self.followers[replica].log_end_offset
        if (
            self.proposal is None
            and replica not in self.isr
            and log_end_offset >= self.log.high_watermark
            and log_end_offset >= self.epoch_start_offset
            and self._may_join(replica, image)
        ):
            self._propose(self.isr | {replica}, joining=replica)

    def maybe_shrink_isr(self, now: float) -> None:
        """Begin a proposal without the followers that have not caught up for too long."""
        if self.proposal is not None:
            return
        log_end_offset = self.log.log_end_offset
        in_sync = frozenset(
            replica
            for replica in self.isr
            if replica == self._node_id
            or (
                (follower := self.followers.get(replica)) is not None
                and follower.is_caught_up(log_end_offset, now, self._max_lag)
            )
        )
        if in_sync != self.isr:
            self._propose(in_sync, joining=None)

    def drop_from_isr(self, replica: int) -> None:
        """Begin a proposal without a follower, as if it had not caught up for too long."""
        self.followers[replica].caught_up_at = _NEVER
        if replica in self.isr:
            self._propose(self.isr - {replica}, joining=None)

    def _propose(self, isr: frozenset[int], joining: int | None) -> None:
        ordered = tuple(replica for replica in self.replicas if replica in isr)
        self.proposal = IsrProposal(
            ordered,
            tuple(map(self._epoch_of, ordered)),
            self.leader_epoch,
            self.partition_epoch,
            joining,
        )
        self.must_propose = True

    def _withdraw(self) -> None:
        self.proposal = None
        self.must_propose = False

    def _epoch_of(self, replica: int) -> int:
        if replica == self._node_id:
            return self.broker_epoch
        epoch = self.followers[replica].broker_epoch
        return _UNKNOWN if epoch is None else epoch

    def _may_join(self, replica: int, image: MetadataImage) -> bool:
        """Return whether a replica's broker may be in sync (Partition.isReplicaIsrEligible)."""
        registered = image.brokers.get(replica)
        epoch = self.followers[replica].broker_epoch
        return (
            registered is not None
            and registered.is_active
            and epoch in {_UNKNOWN, registered.broker_epoch}
        )

    def isr_recorded(
        self,
        proposal: IsrProposal,
        isr: frozenset[int],
        partition_epoch: int,
        image: MetadataImage,
        now: float,
    ) -> bool:
        """Take the controller's answer to a proposal; return whether the high watermark moved.

        It is ignored if the proposal is not the open one any more.
        """
        if proposal != self.proposal or partition_epoch < self.partition_epoch:
            return False
        self.isr = isr
        self.partition_epoch = partition_epoch
        self._withdraw()
        return self.maybe_increment_high_watermark(image, now)

    def isr_refused(self, proposal: IsrProposal, error_code: int) -> None:
        """Handle the controller's refusal of a proposal, or a failure to ask (NETWORK_EXCEPTION).

        It is ignored if the proposal is not the open one any more.
        """
        if proposal != self.proposal:
            return
        if error_code in _REJECTED:
            self._withdraw()
        elif error_code not in _OUT_OF_DATE:
            self.must_propose = True

    def check_replicated(self, offset: int) -> ErrorCode | None:
        """Return the outcome of an acks=all write that ends before `offset`; None to wait.

        The counterpart of Partition.checkEnoughReplicasReachOffset.
        """
        if self.log.high_watermark < offset:
            return None
        if len(self.maximal_isr) < self.min_isr:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.NONE
