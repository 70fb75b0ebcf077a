"""Groups as records of `__consumer_offsets` (GroupCoordinatorRecordHelpers), and their replay."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.groups.classic_group import ClassicGroup, GroupState, Member
from spark_kafka_sink.devbroker.groups.consumer_group import (
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    ResolvedRegex,
    TopicIdPartition,
)
from spark_kafka_sink.devbroker.groups.group_offsets import GroupOffsets, decode_offset
from spark_kafka_sink.devbroker.log.coordinator_log import (
    RecordKey,
    decode_versioned,
    encode_versioned,
    version_of,
)
from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.protocol.messages.join_group import JoinGroupRequestProtocol
from spark_kafka_sink.protocol.schema import (
    BYTES,
    INT8,
    INT32,
    INT64,
    STRING,
    UUID,
    Message,
    VersionRange,
    array,
    field,
    message,
)

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterable, Iterator, Mapping

    from spark_kafka_sink.devbroker.log.coordinator_log import CoordinatorBatch, CoordinatorLog

    KeyValue = tuple[bytes, bytes | None]

#: The kinds of records, which are the versions of their keys.
GROUP_METADATA_KEY = 2
GROUP_EPOCH_KEY = 3
MEMBER_METADATA_KEY = 5
TARGET_ASSIGNMENT_METADATA_KEY = 6
TARGET_ASSIGNMENT_MEMBER_KEY = 7
CURRENT_ASSIGNMENT_KEY = 8
REGULAR_EXPRESSION_KEY = 16
#: The version of all values of consumer groups.
VALUE_VERSION = 0
GROUP_METADATA_VALUE = 3


class _ConsumerGroupValue(Message):
    """A value of the consumer groups of KIP-848."""

    __slots__ = ()

    versions = VersionRange(0, 0)
    flexible_from = 0


@message
class GroupMetadataKey(RecordKey):
    """The key of a group."""

    versions = VersionRange(2, 2)

    group: str = field(STRING)


@message
class MemberMetadata:
    """A member of a group with its assignment."""

    member_id: str = field(STRING)
    group_instance_id: str | None = field(
        STRING, versions="3+", nullable="3+", default=None, ignorable=True
    )
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    rebalance_timeout: int = field(INT32, versions="1+", default=-1, ignorable=True)
    session_timeout: int = field(INT32)
    subscription: bytes = field(BYTES)
    assignment: bytes = field(BYTES)


@message
class GroupMetadataValue(Message):
    """A generation of a group."""

    versions = VersionRange(0, 4)
    flexible_from = 4

    protocol_type: str = field(STRING)
    generation: int = field(INT32)
    protocol: str | None = field(STRING, nullable="0+")
    leader: str | None = field(STRING, nullable="0+")
    current_state_timestamp: int = field(INT64, versions="2+", default=-1, ignorable=True)
    members: tuple[MemberMetadata, ...] = field(array(MemberMetadata))


@message
class ConsumerGroupMetadataKey(RecordKey):
    """The key of a group's epoch (3), partition metadata (4) or target assignment's epoch (6)."""

    versions = VersionRange(GROUP_EPOCH_KEY, TARGET_ASSIGNMENT_METADATA_KEY)

    group_id: str = field(STRING)


@message
class ConsumerGroupMetadataValue(_ConsumerGroupValue):
    """A group's epoch."""

    epoch: int = field(INT32)
    metadata_hash: int = field(INT64, tag=0, default=0)


@message
class ConsumerGroupMemberKey(RecordKey):
    """The key of a member (5), its target assignment (7) or its current assignment (8)."""

    versions = VersionRange(MEMBER_METADATA_KEY, CURRENT_ASSIGNMENT_KEY)

    group_id: str = field(STRING)
    member_id: str = field(STRING)


@message
class ClassicProtocol:
    """A protocol of a member that uses the classic protocol in a consumer group."""

    name: str = field(STRING)
    metadata: bytes = field(BYTES)


@message
class ClassicMemberMetadata:
    """A member that uses the classic protocol in a consumer group."""

    session_timeout_ms: int = field(INT32)
    supported_protocols: tuple[ClassicProtocol, ...] = field(array(ClassicProtocol))


@message
class ConsumerGroupMemberMetadataValue(_ConsumerGroupValue):
    """A member with its subscription."""

    instance_id: str | None = field(STRING, nullable="0+")
    rack_id: str | None = field(STRING, nullable="0+")
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    subscribed_topic_names: tuple[str, ...] = field(array(STRING))
    subscribed_topic_regex: str | None = field(STRING, nullable="0+")
    rebalance_timeout_ms: int = field(INT32, default=-1)
    server_assignor: str | None = field(STRING, nullable="0+")
    classic_member_metadata: ClassicMemberMetadata | None = field(
        ClassicMemberMetadata, nullable="0+", tag=0, default=None
    )


@message
class ConsumerGroupTargetAssignmentMetadataValue(_ConsumerGroupValue):
    """The epoch of a group's target assignment."""

    assignment_epoch: int = field(INT32)
    assignment_timestamp: int = field(INT64, tag=0, default=0, ignorable=True)


@message
class TargetTopicPartitions:
    """Partitions of one topic."""

    topic_id: uuid.UUID = field(UUID)
    partitions: tuple[int, ...] = field(array(INT32))


@message
class ConsumerGroupTargetAssignmentMemberValue(_ConsumerGroupValue):
    """A member's target assignment."""

    topic_partitions: tuple[TargetTopicPartitions, ...] = field(array(TargetTopicPartitions))


@message
class CurrentTopicPartitions:
    """Partitions of one topic, with the epochs in which they were assigned (KIP-1251)."""

    topic_id: uuid.UUID = field(UUID)
    partitions: tuple[int, ...] = field(array(INT32))
    assignment_epochs: tuple[int, ...] | None = field(
        array(INT32), nullable="0+", tag=0, default=None
    )


@message
class ConsumerGroupCurrentMemberAssignmentValue(_ConsumerGroupValue):
    """A member's current assignment, with its epoch and state."""

    member_epoch: int = field(INT32)
    previous_member_epoch: int = field(INT32)
    state: int = field(INT8)
    assigned_partitions: tuple[CurrentTopicPartitions, ...] = field(array(CurrentTopicPartitions))
    partitions_pending_revocation: tuple[CurrentTopicPartitions, ...] = field(
        array(CurrentTopicPartitions)
    )


@message
class ConsumerGroupRegularExpressionKey(RecordKey):
    """The key of a resolved regular expression."""

    versions = VersionRange(REGULAR_EXPRESSION_KEY, REGULAR_EXPRESSION_KEY)

    group_id: str = field(STRING)
    regular_expression: str = field(STRING)


@message
class ConsumerGroupRegularExpressionValue(_ConsumerGroupValue):
    """The topics that a regular expression matched."""

    topics: tuple[str, ...] = field(array(STRING))
    version: int = field(INT64)
    timestamp: int = field(INT64)


def encode_deleted_group(group_id: str) -> KeyValue:
    """Encode the deletion of a group."""
    return encode_versioned(GroupMetadataKey(group=group_id), GROUP_METADATA_KEY), None


def encode_group(group: ClassicGroup, *, now_ms: int) -> KeyValue:
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


#: The kinds of records, by the number that their keys begin with.
CONSUMER_GROUP_KEYS = frozenset(
    {*range(GROUP_EPOCH_KEY, CURRENT_ASSIGNMENT_KEY + 1), REGULAR_EXPRESSION_KEY}
)
_NO_VERSION = 0
_NEW_MEMBER = ConsumerMember(member_id="")
#: The schemas of the keys; others have only a group. Records of key 4, the partition metadata of
#: Kafka before 4.1, are ignored: the metadata hash has replaced it.
_KEYS: Mapping[
    int,
    type[ConsumerGroupMemberKey | ConsumerGroupRegularExpressionKey | ConsumerGroupMetadataKey],
] = {
    MEMBER_METADATA_KEY: ConsumerGroupMemberKey,
    TARGET_ASSIGNMENT_MEMBER_KEY: ConsumerGroupMemberKey,
    CURRENT_ASSIGNMENT_KEY: ConsumerGroupMemberKey,
    REGULAR_EXPRESSION_KEY: ConsumerGroupRegularExpressionKey,
}


def encode_changes(before: ConsumerGroup, after: ConsumerGroup) -> Iterator[KeyValue]:
    """Encode what differs between two states of a group."""
    group_id = after.group_id
    yield from _removed(group_id, before, after)
    for member in after.members.values():
        old = before.members.get(member.member_id)
        metadata = _metadata_value(member)
        if old is None or _metadata_value(old) != metadata:
            yield _member_record(MEMBER_METADATA_KEY, group_id, member.member_id, metadata)
    yield from _regex_changes(before, after)
    if (before.group_epoch, before.metadata_hash) != (after.group_epoch, after.metadata_hash):
        value = ConsumerGroupMetadataValue(
            epoch=after.group_epoch, metadata_hash=after.metadata_hash
        )
        yield _group_record(GROUP_EPOCH_KEY, group_id, value)
    for member_id, partitions in after.target.items():
        if before.target.get(member_id) != partitions:
            target = _target_value(partitions)
            yield _member_record(TARGET_ASSIGNMENT_MEMBER_KEY, group_id, member_id, target)
    if before.assignment_epoch != after.assignment_epoch:
        assignment = ConsumerGroupTargetAssignmentMetadataValue(
            assignment_epoch=after.assignment_epoch,
            assignment_timestamp=after.assignment_timestamp_ms,
        )
        yield _group_record(TARGET_ASSIGNMENT_METADATA_KEY, group_id, assignment)
    for member in after.members.values():
        current = _current_value(member)
        if current != _current_value(before.members.get(member.member_id, _NEW_MEMBER)):
            yield _member_record(CURRENT_ASSIGNMENT_KEY, group_id, member.member_id, current)


def encode_deleted_consumer_group(group: ConsumerGroup) -> list[KeyValue]:
    """Encode the deletion of a group."""
    return [
        *_removed(group.group_id, group, ConsumerGroup(group.group_id)),
        *_regex_changes(group, ConsumerGroup(group.group_id)),
        _group_record(TARGET_ASSIGNMENT_METADATA_KEY, group.group_id, None),
        _group_record(GROUP_EPOCH_KEY, group.group_id, None),
    ]


def _removed(group_id: str, before: ConsumerGroup, after: ConsumerGroup) -> Iterator[KeyValue]:
    for member_id in before.members:
        if member_id not in after.members:
            for key in (CURRENT_ASSIGNMENT_KEY, TARGET_ASSIGNMENT_MEMBER_KEY, MEMBER_METADATA_KEY):
                yield _member_record(key, group_id, member_id, None)


def _regex_changes(before: ConsumerGroup, after: ConsumerGroup) -> Iterator[KeyValue]:
    for regex in {**before.resolved_regexes, **after.resolved_regexes}:
        resolved = after.resolved_regexes.get(regex)
        if resolved != before.resolved_regexes.get(regex):
            key = ConsumerGroupRegularExpressionKey(
                group_id=after.group_id, regular_expression=regex
            )
            value = None
            if resolved is not None:
                value = ConsumerGroupRegularExpressionValue(
                    topics=tuple(sorted(resolved.topics)),
                    version=_NO_VERSION,
                    timestamp=resolved.timestamp_ms,
                )
            yield _record(key, REGULAR_EXPRESSION_KEY, value)


def _metadata_value(member: ConsumerMember) -> ConsumerGroupMemberMetadataValue:
    return ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=tuple(sorted(member.subscribed_topic_names)),
        subscribed_topic_regex=member.subscribed_topic_regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.server_assignor,
    )


def _target_value(
    partitions: Iterable[TopicIdPartition],
) -> ConsumerGroupTargetAssignmentMemberValue:
    return ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=tuple(
            TargetTopicPartitions(topic_id=topic_id, partitions=tuple(indexes))
            for topic_id, indexes in partitions_by_topic(partitions).items()
        )
    )


def _current_value(member: ConsumerMember) -> ConsumerGroupCurrentMemberAssignmentValue:
    return ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.member_epoch,
        previous_member_epoch=member.previous_member_epoch,
        state=member.state,
        assigned_partitions=_with_epochs(member.assigned),
        partitions_pending_revocation=_with_epochs(member.pending_revocation),
    )


def _with_epochs(partitions: Mapping[TopicIdPartition, int]) -> tuple[CurrentTopicPartitions, ...]:
    return tuple(
        CurrentTopicPartitions(
            topic_id=topic_id,
            partitions=tuple(indexes),
            assignment_epochs=tuple(
                partitions[TopicIdPartition(topic_id, index)] for index in indexes
            ),
        )
        for topic_id, indexes in partitions_by_topic(partitions).items()
    )


def partitions_by_topic(partitions: Iterable[TopicIdPartition]) -> dict[uuid.UUID, list[int]]:
    """Return the sorted indexes of partitions by topic id."""
    indexes: dict[uuid.UUID, list[int]] = defaultdict(list)
    for topic_id, index in sorted(partitions):
        indexes[topic_id].append(index)
    return indexes


def _group_record(kind: int, group_id: str, value: Message | None) -> KeyValue:
    return _record(ConsumerGroupMetadataKey(group_id=group_id), kind, value)


def _member_record(kind: int, group_id: str, member_id: str, value: Message | None) -> KeyValue:
    return _record(ConsumerGroupMemberKey(group_id=group_id, member_id=member_id), kind, value)


def _record(key: Message, kind: int, value: Message | None) -> KeyValue:
    encoded = None if value is None else encode_versioned(value, VALUE_VERSION)
    return encode_versioned(key, kind), encoded


# --- the replay of the log (GroupMetadataManager.replay)


def replay_groups(
    log: CoordinatorLog, offsets: GroupOffsets, index: int | None = None
) -> dict[str, ClassicGroup | ConsumerGroup]:
    """Read groups and offsets back from `__consumer_offsets` (GroupCoordinatorShard.replay).

    They are those of a partition, or all of them. An offset creates its group, which stays if the
    offset is deleted. Raises CorruptRecordError.
    """
    groups: dict[str, ClassicGroup | ConsumerGroup] = {}

    def apply(batch: CoordinatorBatch) -> None:
        if batch.committed is not None:
            offsets.end_transaction(batch.partition, batch.producer_id, committed=batch.committed)
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

    log.replay(apply, index)
    return groups


def _replay_consumer_group(
    groups: dict[str, ClassicGroup | ConsumerGroup], key: bytes, value: bytes | None
) -> None:
    """Apply a record of a consumer group, which replaces a classic one; raises DecodeError."""
    kind = version_of(key)
    decoded = decode_versioned(_KEYS.get(kind, ConsumerGroupMetadataKey), key)
    group = groups.get(decoded.group_id)
    if kind == GROUP_EPOCH_KEY and value is None:
        # The last record of a deleted group.
        if isinstance(group, ConsumerGroup):
            del groups[decoded.group_id]
        return
    if not isinstance(group, ConsumerGroup):
        if value is None:
            return
        group = groups[decoded.group_id] = ConsumerGroup(decoded.group_id)
    if isinstance(decoded, ConsumerGroupMemberKey):
        _replay_member(group, kind, decoded.member_id, value)
    elif isinstance(decoded, ConsumerGroupRegularExpressionKey):
        if value is None:
            group.resolved_regexes.pop(decoded.regular_expression, None)
        else:
            resolved = decode_versioned(ConsumerGroupRegularExpressionValue, value)
            group.resolved_regexes[decoded.regular_expression] = ResolvedRegex(
                frozenset(resolved.topics), resolved.timestamp
            )
    elif kind == GROUP_EPOCH_KEY and value is not None:
        epoch = decode_versioned(ConsumerGroupMetadataValue, value)
        group.group_epoch, group.metadata_hash = epoch.epoch, epoch.metadata_hash
    elif kind == TARGET_ASSIGNMENT_METADATA_KEY and value is not None:
        target = decode_versioned(ConsumerGroupTargetAssignmentMetadataValue, value)
        group.assignment_epoch = target.assignment_epoch
        group.assignment_timestamp_ms = target.assignment_timestamp


def _replay_member(group: ConsumerGroup, kind: int, member_id: str, value: bytes | None) -> None:
    if kind == TARGET_ASSIGNMENT_MEMBER_KEY:
        if value is None:
            group.target.pop(member_id, None)
        else:
            target = decode_versioned(ConsumerGroupTargetAssignmentMemberValue, value)
            group.target[member_id] = frozenset(
                TopicIdPartition(topic.topic_id, index)
                for topic in target.topic_partitions
                for index in topic.partitions
            )
        return
    member = group.members.get(member_id, ConsumerMember(member_id=member_id))
    if kind == MEMBER_METADATA_KEY and value is None:
        group.members.pop(member_id, None)
    elif kind == MEMBER_METADATA_KEY and value is not None:
        group.members[member_id] = _with_metadata(member, value)
    elif value is not None:
        group.members[member_id] = _with_assignment(member, value)
    elif member_id in group.members:
        group.members[member_id] = replace(
            member,
            member_epoch=0,
            previous_member_epoch=-1,
            state=MemberState.STABLE,
            assigned={},
            pending_revocation={},
        )


def _with_metadata(member: ConsumerMember, value: bytes) -> ConsumerMember:
    metadata = decode_versioned(ConsumerGroupMemberMetadataValue, value)
    return replace(
        member,
        instance_id=metadata.instance_id,
        rack_id=metadata.rack_id,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        subscribed_topic_names=frozenset(metadata.subscribed_topic_names),
        subscribed_topic_regex=metadata.subscribed_topic_regex or "",
        rebalance_timeout_ms=metadata.rebalance_timeout_ms,
        server_assignor=metadata.server_assignor,
    )


def _with_assignment(member: ConsumerMember, value: bytes) -> ConsumerMember:
    assignment = decode_versioned(ConsumerGroupCurrentMemberAssignmentValue, value)
    try:
        state = MemberState(assignment.state)
    except ValueError:
        raise DecodeError(f"{assignment.state} is not the state of a member") from None
    return replace(
        member,
        member_epoch=assignment.member_epoch,
        previous_member_epoch=assignment.previous_member_epoch,
        state=state,
        assigned=_from_epochs(assignment.assigned_partitions, assignment.member_epoch),
        pending_revocation=_from_epochs(
            assignment.partitions_pending_revocation, assignment.member_epoch
        ),
    )


def _from_epochs(
    topics: Iterable[CurrentTopicPartitions], member_epoch: int
) -> dict[TopicIdPartition, int]:
    """Return partitions with their epochs; before KIP-1251 these were not written."""
    partition_epochs: dict[TopicIdPartition, int] = {}
    for topic in topics:
        epochs = topic.assignment_epochs or (member_epoch,) * len(topic.partitions)
        if len(epochs) != len(topic.partitions):
            raise DecodeError(
                f"{len(topic.partitions)} partitions have {len(epochs)} assignment epochs"
            )
        for index, epoch in zip(topic.partitions, epochs, strict=True):
            partition_epochs[TopicIdPartition(topic.topic_id, index)] = epoch
    return partition_epochs
