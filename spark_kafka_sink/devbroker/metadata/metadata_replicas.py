"""How far each broker has read the metadata log, as the controller knows it from their fetches.

Source: LeaderState.ReplicaState of Kafka's Raft client.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.protocol.messages.describe_quorum import PartitionData, ReplicaState

if TYPE_CHECKING:
    from collections.abc import Iterable

_UNKNOWN: Final = -1


@dataclass(slots=True)
class _Replica:
    """What a broker has fetched; times are in seconds."""

    fetched_at: float
    #: The offset that it asked for last, and the end of the log at that time; None before that.
    offset: int | None = None
    end_offset: int = 0
    caught_up_at: float | None = None


class MetadataReplicas:
    """The brokers that fetch from one controller in its epoch."""

    def __init__(self, node_ids: Iterable[int] = (), now: float = 0.0) -> None:
        """Begin with the brokers that run, as if each was reached just now."""
        self._replicas = {node_id: _Replica(now) for node_id in node_ids}

    def fetched(self, node_id: int, offset: int, end_offset: int, now: float) -> None:
        """Record that a broker has asked for the records from `offset` on, of a log that ends."""
        replica = self._replicas.setdefault(node_id, _Replica(now))
        if offset >= end_offset:
            replica.caught_up_at = now
        elif replica.offset is not None and offset >= replica.end_offset:
            # It has what there was when it last asked.
            replica.caught_up_at = replica.fetched_at
        replica.fetched_at, replica.offset, replica.end_offset = now, offset, end_offset

    def fetched_since(self, node_id: int, time: float) -> bool:
        """Return whether a broker has asked after this time."""
        replica = self._replicas.get(node_id)
        return replica is not None and replica.fetched_at > time

    def describe(
        self, node_ids: Iterable[int], leader_id: int, epoch: int, end_offset: int, now: float
    ) -> PartitionData:
        """Return the state of the log's replicas: all brokers are controllers, so they vote."""
        leader = ReplicaState(
            replica_id=leader_id,
            log_end_offset=end_offset,
            last_fetch_timestamp=_ms(now),
            last_caught_up_timestamp=_ms(now),
        )
        return PartitionData(
            partition_index=0,
            error_message="",
            leader_id=leader_id,
            leader_epoch=epoch,
            high_watermark=end_offset,
            current_voters=tuple(
                leader if node_id == leader_id else self._state(node_id) for node_id in node_ids
            ),
            observers=(),
        )

    def _state(self, node_id: int) -> ReplicaState:
        replica = self._replicas.get(node_id)
        if replica is None or replica.offset is None:
            return ReplicaState(replica_id=node_id, log_end_offset=_UNKNOWN)
        return ReplicaState(
            replica_id=node_id,
            log_end_offset=replica.offset,
            last_fetch_timestamp=_ms(replica.fetched_at),
            last_caught_up_timestamp=_ms(replica.caught_up_at),
        )


def _ms(seconds: float | None) -> int:
    return _UNKNOWN if seconds is None else int(seconds * 1000)
