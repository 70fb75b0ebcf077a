"""Groups and their offsets as records of `__consumer_offsets` (GroupCoordinatorRecordHelpers)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.groups.classic_group import ClassicGroup, Member
from spark_kafka_sink.devbroker.groups.committed_offset import CommittedOffset
from spark_kafka_sink.devbroker.groups.group_state import GroupState
from spark_kafka_sink.devbroker.log.storage.coordinator_records import (
    GROUP_METADATA_KEY,
    GROUP_METADATA_VALUE,
    OFFSET_COMMIT_KEY,
    OFFSET_COMMIT_VALUE,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_versioned,
    encode_versioned,
)
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.messages.join_group import JoinGroupRequestProtocol

if TYPE_CHECKING:
    from collections.abc import Iterable


def encode_offsets(
    group_id: str,
    offsets: Iterable[tuple[TopicPartition, CommittedOffset | None]],
    *,
    now_ms: int,
) -> list[tuple[bytes, bytes | None]]:
    """Encode a group's offsets; None deletes one."""
    return [
        (
            encode_versioned(
                OffsetCommitKey(
                    group=group_id, topic=partition.topic, partition=partition.partition
                ),
                OFFSET_COMMIT_KEY,
            ),
            None
            if committed is None
            else encode_versioned(
                OffsetCommitValue(
                    offset=committed.offset,
                    leader_epoch=committed.leader_epoch,
                    metadata=committed.metadata,
                    commit_timestamp=now_ms,
                ),
                OFFSET_COMMIT_VALUE,
            ),
        )
        for partition, committed in offsets
    ]


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


def encode_deleted_group(group_id: str) -> tuple[bytes, bytes | None]:
    """Encode the deletion of a group."""
    return encode_versioned(GroupMetadataKey(group=group_id), GROUP_METADATA_KEY), None


def encode_group(group: ClassicGroup, *, now_ms: int) -> tuple[bytes, bytes | None]:
    """Encode a group's generation."""
    key, _ = encode_deleted_group(group.group_id)
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation_id,
        protocol=group.protocol_name,
        leader=group.leader_id,
        current_state_timestamp=now_ms,
        members=tuple(
            MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.metadata(group.protocol_name or ""),
                assignment=member.assignment,
            )
            for member in group.members.values()
        ),
    )
    return key, encode_versioned(value, GROUP_METADATA_VALUE)


def decode_group(key: bytes, value: bytes) -> ClassicGroup:
    """Decode a group with its members, whose sessions have not started. Raises DecodeError."""
    group_id = decode_versioned(GroupMetadataKey, key).group
    decoded = decode_versioned(GroupMetadataValue, value)
    group = ClassicGroup(
        group_id,
        state=GroupState.STABLE if decoded.members else GroupState.EMPTY,
        generation_id=decoded.generation,
        protocol_type=decoded.protocol_type or None,
        protocol_name=decoded.protocol,
        leader_id=decoded.leader,
    )
    for member in decoded.members:
        group.add(
            Member(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout,
                session_timeout_ms=member.session_timeout,
                protocols=(
                    JoinGroupRequestProtocol(
                        name=decoded.protocol or "", metadata=member.subscription
                    ),
                ),
                assignment=member.assignment,
                is_new=False,
            ),
            decoded.protocol_type,
        )
    return group
