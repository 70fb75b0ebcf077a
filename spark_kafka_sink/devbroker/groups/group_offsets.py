"""The offsets of groups: those that are committed, and those pending in a transaction.

The counterpart of Kafka's OffsetMetadataManager. A transaction's offsets are stored separately,
under its producer id; its end applies or discards them. To a transaction the offsets are partitions
like any others, those of __consumer_offsets, each with its producer state. With a durable log
(`coordinator_log`) the log holds the producer state, and offsets are written to it before they
apply. Offsets do not expire. Those of a deleted topic are removed at once, also from transactions,
and from the log as soon as it can be written.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.devbroker.base.topic_names import coordinator_partition
from spark_kafka_sink.devbroker.log.coordinator_log import (
    RecordKey,
    decode_versioned,
    encode_versioned,
)
from spark_kafka_sink.devbroker.log.producer_state import ProducerBatchInfo, ProducerStateManager
from spark_kafka_sink.model import NO_LEADER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, TopicPartition
from spark_kafka_sink.protocol.schema import (
    INT32,
    INT64,
    STRING,
    Message,
    VersionRange,
    field,
    message,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from spark_kafka_sink.devbroker.log.coordinator_log import CoordinatorLog
    from spark_kafka_sink.devbroker.log.producer_state import TransactionMarker
    from spark_kafka_sink.model import ProducerIdAndEpoch

OFFSET_COMMIT_KEY = 1
OFFSET_COMMIT_VALUE = 3


class CommittedOffset(NamedTuple):
    """The offset at which a group continues to read a partition."""

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""


#: The offset in the response if none is committed.
NO_OFFSET = -1


class GroupOffsets:
    """The offsets of all groups."""

    def __init__(self, log: CoordinatorLog) -> None:
        self._log = log
        self._committed: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        #: By partition of __consumer_offsets.
        self._producer_states: dict[int, ProducerStateManager] = defaultdict(ProducerStateManager)
        #: By producer id, then group.
        self._pending: dict[int, dict[str, dict[TopicPartition, CommittedOffset]]] = defaultdict(
            dict
        )
        #: Offsets that were removed, by group, but not from the log yet.
        self._unwritten: dict[str, set[TopicPartition]] = {}

    def clear(self) -> None:
        """Remove all offsets."""
        self._committed.clear()
        self._pending.clear()
        self._unwritten.clear()

    def unload(self, index: int) -> None:
        """Remove the offsets of the groups of a partition of __consumer_offsets."""
        for groups in self._all():
            for group_id in [each for each in groups if coordinator_partition(each) == index]:
                del groups[group_id]
        for group_id in [each for each in self._unwritten if coordinator_partition(each) == index]:
            del self._unwritten[group_id]

    def replay(
        self,
        group_id: str,
        partition: TopicPartition,
        committed: CommittedOffset | None,
        producer_id: int,
    ) -> None:
        """Apply an offset from the log; None deletes it.

        The offset of a producer applies once its transaction is committed; see `end_transaction`.
        """
        if producer_id != NO_PRODUCER_ID and committed is not None:
            self._pending[producer_id].setdefault(group_id, {})[partition] = committed
        elif committed is not None:
            self._committed.setdefault(group_id, {})[partition] = committed
        else:
            self._forget(group_id, {partition})

    def _all(self) -> list[dict[str, dict[TopicPartition, CommittedOffset]]]:
        """Return offsets by group: the committed ones, then those of each transaction."""
        return [self._committed, *self._pending.values()]

    def _known(self, group_id: str) -> list[dict[TopicPartition, CommittedOffset]]:
        """Return the offsets of a group: the committed ones, then those of each transaction."""
        return [groups[group_id] for groups in self._all() if group_id in groups]

    def _forget(self, group_id: str, gone: Collection[TopicPartition]) -> None:
        """Remove offsets, also from the transactions in which they are pending."""
        for groups in self._all():
            offsets = groups.get(group_id)
            if offsets is None:
                continue
            for partition in gone:
                offsets.pop(partition, None)
            if not offsets:
                del groups[group_id]

    def committed(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """Return a group's offsets."""
        return self._committed.get(group_id, {})

    def commit(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset], *, now_ms: int
    ) -> None:
        """Commit offsets of a group. Raises RefusedError; then nothing has changed."""
        if self._log.is_durable:
            records = encode_offsets(group_id, offsets.items(), now_ms=now_ms)
            self._log.append(group_id, records, now_ms=now_ms)
        self._committed.setdefault(group_id, {}).update(offsets)
        self._unwritten.get(group_id, set()).difference_update(offsets)

    def producer_state(self, group_id: str) -> ProducerStateManager:
        """Return the state of the producers that commit offsets of a group."""
        index = coordinator_partition(group_id)
        if self._log.is_durable:
            return self._log.partition(index).producer_state
        return self._producer_states[index]

    def commit_in_transaction(
        self,
        producer: ProducerIdAndEpoch,
        group_id: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        now_ms: int,
    ) -> None:
        """Store offsets that apply once the producer's transaction is committed."""
        if self._log.is_durable:
            records = encode_offsets(group_id, offsets.items(), now_ms=now_ms)
            self._log.append(group_id, records, now_ms=now_ms, producer=producer)
        else:
            self.producer_state(group_id).update(
                ProducerBatchInfo(producer.producer_id, producer.epoch, NO_SEQUENCE, 1, True),
                first_offset=0,
                timestamp=now_ms,
            )
        self._pending[producer.producer_id].setdefault(group_id, {}).update(offsets)

    def unstable(self, group_id: str) -> frozenset[TopicPartition]:
        """Return the partitions whose offsets an open transaction may change."""
        return frozenset(
            partition for groups in self._pending.values() for partition in groups.get(group_id, ())
        )

    def append_marker(self, partition: int, marker: TransactionMarker) -> None:
        """End a transaction for the groups of a __consumer_offsets partition.

        Its offsets are applied or discarded. Raises RefusedError as
        `ProducerStateManager.validate_marker`.
        """
        if self._log.is_durable:
            self._log.append_marker(partition, marker)
        else:
            state = self._producer_states[partition]
            state.validate_marker(marker)
            state.end_transaction(marker)
        self.end_transaction(partition, marker.producer_id, committed=marker.committed)

    def end_transaction(self, index: int, producer_id: int, *, committed: bool) -> None:
        """Apply a transaction marker of a __consumer_offsets partition."""
        pending = self._pending.get(producer_id, {})
        for group_id in sorted(pending):
            if coordinator_partition(group_id) == index:
                offsets = pending.pop(group_id)
                if committed:
                    self._committed.setdefault(group_id, {}).update(offsets)
        if not pending:
            self._pending.pop(producer_id, None)

    def topics(self) -> set[str]:
        """Return the topics with offsets, committed or pending."""
        return {
            partition.topic
            for groups in self._all()
            for offsets in groups.values()
            for partition in offsets
        }

    def delete_group(self, group_id: str, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Delete all offsets of a group, and write the records that delete the group itself.

        Raises RefusedError; then nothing has changed.
        """
        if self._log.is_durable:
            gone = set(self._unwritten.get(group_id, ())).union(*self._known(group_id))
            self._log.append(group_id, [*_encode_tombstones(group_id, gone), *records])
        self._committed.pop(group_id, None)
        self._unwritten.pop(group_id, None)
        for pending in self._pending.values():
            pending.pop(group_id, None)

    def delete(self, group_id: str, partitions: Collection[TopicPartition]) -> None:
        """Delete offsets of a group, also those that are pending in a transaction.

        Raises RefusedError; then nothing has changed.
        """
        known = self._known(group_id)
        gone = {p for p in partitions if any(p in offsets for offsets in known)}
        if gone and self._log.is_durable:
            self._log.append(group_id, _encode_tombstones(group_id, gone))
        self._forget(group_id, gone)

    def delete_topics(self, topics: Collection[str]) -> None:
        """Remove the offsets of deleted topics; call `write_deletions` afterwards.

        Those that are pending do not come back with the end of their transaction
        (OffsetMetadataManager.onTopicsDeleted).
        """
        gone: dict[str, set[TopicPartition]] = defaultdict(set)
        for groups in self._all():
            for group_id, offsets in groups.items():
                gone[group_id].update(p for p in offsets if p.topic in topics)
        for group_id, partitions in gone.items():
            if partitions:
                self._forget(group_id, partitions)
                self._unwritten.setdefault(group_id, set()).update(partitions)

    def write_deletions(self) -> None:
        """Write the removed offsets to the log. Raises RefusedError; some may be written then."""
        for group_id, gone in list(self._unwritten.items()):
            self._log.append(group_id, _encode_tombstones(group_id, gone))
            del self._unwritten[group_id]


def _encode_tombstones(
    group_id: str, partitions: Iterable[TopicPartition]
) -> list[tuple[bytes, bytes | None]]:
    gone = ((partition, None) for partition in sorted(partitions))
    return encode_offsets(group_id, gone, now_ms=0)


# --- offsets as records of `__consumer_offsets` (GroupCoordinatorRecordHelpers)


@message
class OffsetCommitKey(RecordKey):
    """The key of a group's committed offset for a partition."""

    versions = VersionRange(0, 1)

    group: str = field(STRING)
    topic: str = field(STRING)
    partition: int = field(INT32)


@message
class OffsetCommitValue(Message):
    """A group's committed offset for a partition."""

    versions = VersionRange(0, 4)
    flexible_from = 4

    offset: int = field(INT64)
    leader_epoch: int = field(INT32, versions="3+", default=-1, ignorable=True)
    metadata: str = field(STRING)
    commit_timestamp: int = field(INT64)
    expire_timestamp: int = field(INT64, versions="1", default=-1, ignorable=True)


def encode_offsets(
    group_id: str,
    offsets: Iterable[tuple[TopicPartition, CommittedOffset | None]],
    *,
    now_ms: int,
) -> list[tuple[bytes, bytes | None]]:
    """Encode a group's offsets; None deletes one."""
    records = []
    for (topic, index), committed in offsets:
        key = OffsetCommitKey(group=group_id, topic=topic, partition=index)
        value = None
        if committed is not None:
            offset_commit = OffsetCommitValue(
                offset=committed.offset,
                leader_epoch=committed.leader_epoch,
                metadata=committed.metadata,
                commit_timestamp=now_ms,
            )
            value = encode_versioned(offset_commit, OFFSET_COMMIT_VALUE)
        records.append((encode_versioned(key, OFFSET_COMMIT_KEY), value))
    return records


def decode_offset(
    key: bytes, value: bytes | None
) -> tuple[str, TopicPartition, CommittedOffset | None]:
    """Decode an offset: its group, its partition, and the offset. Raises DecodeError."""
    offset_key = decode_versioned(OffsetCommitKey, key)
    committed = None
    if value is not None:
        offset_commit = decode_versioned(OffsetCommitValue, value)
        committed = CommittedOffset(
            offset_commit.offset, offset_commit.leader_epoch, offset_commit.metadata
        )
    return offset_key.group, TopicPartition(offset_key.topic, offset_key.partition), committed
