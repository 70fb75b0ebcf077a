"""How far groups have read: offsets that are committed, and those that a transaction will commit.

Kafka's OffsetMetadataManager. Offsets of a transaction are kept beside the others under its
producer id; its end applies them or throws them away. To transactions the offsets are partitions
like others, those of __consumer_offsets, each with the state of its producers. Offsets do not
expire.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.devbroker.internal_topics import coordinator_partition
from spark_kafka_sink.devbroker.producer_state import ProducerBatchInfo, ProducerStateManager
from spark_kafka_sink.model import NO_LEADER_EPOCH, NO_SEQUENCE, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_kafka_sink.devbroker.producer_state import TransactionMarker
    from spark_kafka_sink.model import ProducerIdAndEpoch

#: What Kafka answers where there is no offset.
NO_OFFSET = -1


class CommittedOffset(NamedTuple):
    """The next offset that a group wants to read of a partition."""

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""


class GroupOffsets:
    """The offsets of all groups."""

    def __init__(self) -> None:
        """Know none."""
        self._committed: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        #: By partition of __consumer_offsets.
        self._producer_states: dict[int, ProducerStateManager] = defaultdict(ProducerStateManager)
        #: By producer id, then group.
        self._pending: dict[int, dict[str, dict[TopicPartition, CommittedOffset]]] = defaultdict(
            dict
        )

    def committed(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """Return a group's offsets."""
        return self._committed.get(group_id, {})

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Remember offsets of a group."""
        self._committed.setdefault(group_id, {}).update(offsets)

    def producer_state(self, group_id: str) -> ProducerStateManager:
        """Return what is known of the producers that commit offsets of a group."""
        return self._producer_states[coordinator_partition(group_id)]

    def commit_in_transaction(
        self,
        producer: ProducerIdAndEpoch,
        group_id: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        now_ms: int,
    ) -> None:
        """Remember offsets that count once the producer's transaction is committed."""
        self.producer_state(group_id).update(
            ProducerBatchInfo(producer.producer_id, producer.epoch, NO_SEQUENCE, 1, True),
            first_offset=0,
            timestamp=now_ms,
        )
        self._pending[producer.producer_id].setdefault(group_id, {}).update(offsets)

    def is_unstable(self, group_id: str, partition: TopicPartition) -> bool:
        """Tell whether an open transaction may change the offset of a partition."""
        return any(partition in groups.get(group_id, {}) for groups in self._pending.values())

    def append_marker(self, partition: int, marker: TransactionMarker) -> None:
        """Apply or forget what a transaction has for the groups of a __consumer_offsets partition.

        Raises RefusedError as `ProducerStateManager.validate_marker`.
        """
        state = self._producer_states[partition]
        state.validate_marker(marker)
        state.end_transaction(marker)
        pending = self._pending.get(marker.producer_id, {})
        for group_id in sorted(pending):
            if coordinator_partition(group_id) == partition:
                offsets = pending.pop(group_id)
                if marker.committed:
                    self.commit(group_id, offsets)
        if not pending:
            self._pending.pop(marker.producer_id, None)

    def delete_group(self, group_id: str) -> None:
        """Forget all of a group's offsets."""
        self._committed.pop(group_id, None)
        for pending in self._pending.values():
            pending.pop(group_id, None)

    def delete_topic(self, topic: str) -> None:
        """Forget the offsets of a topic that is no more."""
        for committed in self._committed.values():
            for partition in [p for p in committed if p.topic == topic]:
                del committed[partition]
