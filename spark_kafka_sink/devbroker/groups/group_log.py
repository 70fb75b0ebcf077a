"""The replay of `__consumer_offsets`: all groups and offsets, as the log has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.groups.classic_group import ClassicGroup
from spark_kafka_sink.devbroker.groups.consumer.consumer_group import ConsumerGroup
from spark_kafka_sink.devbroker.groups.consumer.consumer_group_records import (
    CONSUMER_GROUP_KEYS,
    group_of,
    replay_record,
)
from spark_kafka_sink.devbroker.groups.group_records import decode_group, decode_offset
from spark_kafka_sink.devbroker.log.storage.consumer_group_schemas import GROUP_EPOCH_KEY
from spark_kafka_sink.devbroker.log.storage.coordinator_records import (
    GROUP_METADATA_KEY,
    GroupMetadataKey,
    decode_versioned,
    version_of,
)

if TYPE_CHECKING:
    from spark_kafka_sink.devbroker.groups.group_offsets import GroupOffsets
    from spark_kafka_sink.devbroker.log.coordinator_log import CoordinatorBatch, CoordinatorLog


def replay_groups(
    log: CoordinatorLog, offsets: GroupOffsets
) -> dict[str, ClassicGroup | ConsumerGroup]:
    """Read all groups and offsets back from the log (GroupCoordinatorShard.replay).

    An offset creates its group, which stays if the offset is deleted. Raises CorruptRecordError.
    """
    offsets.clear()
    groups: dict[str, ClassicGroup | ConsumerGroup] = {}

    def apply(batch: CoordinatorBatch) -> None:
        if batch.committed is not None:
            offsets.replay_end(batch.partition, batch.producer_id, committed=batch.committed)
            return
        for record in batch.records:
            key, value = record.key or b"", record.value
            if version_of(key) in CONSUMER_GROUP_KEYS:
                _replay_consumer_group(groups, key, value)
            elif version_of(key) != GROUP_METADATA_KEY:
                group_id, partition, committed = decode_offset(key, value)
                if committed is not None:
                    groups.setdefault(group_id, ClassicGroup(group_id))
                offsets.replay(group_id, partition, committed, batch.producer_id)
            elif value is None:
                groups.pop(decode_versioned(GroupMetadataKey, key).group, None)
            else:
                group = decode_group(key, value)
                groups[group.group_id] = group

    log.replay(apply)
    return groups


def _replay_consumer_group(
    groups: dict[str, ClassicGroup | ConsumerGroup], key: bytes, value: bytes | None
) -> None:
    """Apply a record of a consumer group, which replaces a classic one; raises DecodeError."""
    group_id = group_of(key)
    group = groups.get(group_id)
    if version_of(key) == GROUP_EPOCH_KEY and value is None:
        # The last record of a deleted group.
        if isinstance(group, ConsumerGroup):
            del groups[group_id]
        return
    if not isinstance(group, ConsumerGroup):
        if value is None:
            return
        group = groups[group_id] = ConsumerGroup(group_id)
    replay_record(group, key, value)
