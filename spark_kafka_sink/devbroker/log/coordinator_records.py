"""The records of `__consumer_offsets` and `__transaction_state`, in Kafka's own schemas.

A key begins with an int16 that identifies the kind of record (for offsets and transactions it is
also the version of the key), a value with its version. A null value is a tombstone for its key.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, TypeVar

from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.protocol.api_keys import NEVER_FLEXIBLE
from spark_kafka_sink.protocol.schema import (
    BYTES,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    UUID,
    Message,
    VersionRange,
    array,
    decode,
    encode_bytes,
    field,
    message,
)

if TYPE_CHECKING:
    import uuid

M = TypeVar("M", bound=Message)

_VERSION = struct.Struct(">h")

OFFSET_COMMIT_KEY = 1
GROUP_METADATA_KEY = 2
TRANSACTION_LOG_KEY = 0
OFFSET_COMMIT_VALUE = 3
GROUP_METADATA_VALUE = 3


@message
class OffsetCommitKey(Message):
    """The key of a group's committed offset for a partition."""

    versions = VersionRange(0, 1)
    flexible_from = NEVER_FLEXIBLE

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


@message
class GroupMetadataKey(Message):
    """The key of a group."""

    versions = VersionRange(2, 2)
    flexible_from = NEVER_FLEXIBLE

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
class TransactionLogKey(Message):
    """The key of a transactional id."""

    versions = VersionRange(0, 0)
    flexible_from = NEVER_FLEXIBLE

    transactional_id: str = field(STRING)


@message
class PartitionsSchema:
    """The partitions of a topic in a transaction."""

    topic: str = field(STRING)
    partition_ids: tuple[int, ...] = field(array(INT32))


@message
class TransactionLogValue(Message):
    """The state of a transactional id."""

    versions = VersionRange(0, 1)
    flexible_from = 1

    producer_id: int = field(INT64)
    previous_producer_id: int = field(INT64, versions="1+", tag=0, default=-1, ignorable=True)
    next_producer_id: int = field(INT64, versions="1+", tag=1, default=-1, ignorable=True)
    producer_epoch: int = field(INT16)
    transaction_timeout_ms: int = field(INT32)
    transaction_status: int = field(INT8)
    transaction_partitions: tuple[PartitionsSchema, ...] | None = field(
        array(PartitionsSchema), nullable="0+"
    )
    transaction_last_update_timestamp_ms: int = field(INT64)
    transaction_start_timestamp_ms: int = field(INT64)
    client_transaction_version: int = field(INT16, versions="1+", tag=2, default=0, ignorable=True)


def encode_versioned(content: Message, version: int) -> bytes:
    """Encode a key or value, prefixed with its version."""
    return _VERSION.pack(version) + encode_bytes(content, version)


def version_of(content: bytes | None) -> int:
    """Return the version that a key or value begins with. Raises DecodeError."""
    try:
        (version,) = _VERSION.unpack_from(content or b"")
    except struct.error as error:
        raise DecodeError("the coordinator record has no version") from error
    return int(version)


def decode_versioned(message_class: type[M], content: bytes) -> M:
    """Decode a key or value that begins with its version. Raises DecodeError."""
    version = version_of(content)
    if version not in message_class.versions:
        raise DecodeError(f"{message_class.__name__} version {version} is not supported")
    return decode(message_class, content[_VERSION.size :], version)


GROUP_EPOCH_KEY = 3
#: Kafka before 4.1 wrote it; the metadata hash has replaced it.
PARTITION_METADATA_KEY = 4
MEMBER_METADATA_KEY = 5
TARGET_ASSIGNMENT_METADATA_KEY = 6
TARGET_ASSIGNMENT_MEMBER_KEY = 7
CURRENT_ASSIGNMENT_KEY = 8
REGULAR_EXPRESSION_KEY = 16
#: The version of all values.
VALUE_VERSION = 0


@message
class ConsumerGroupMetadataKey(Message):
    """The key of a group's epoch (3), partition metadata (4) or target assignment's epoch (6)."""

    versions = VersionRange(GROUP_EPOCH_KEY, TARGET_ASSIGNMENT_METADATA_KEY)
    flexible_from = NEVER_FLEXIBLE

    group_id: str = field(STRING)


@message
class ConsumerGroupMetadataValue(Message):
    """A group's epoch."""

    versions = VersionRange(0, 0)
    flexible_from = 0

    epoch: int = field(INT32)
    metadata_hash: int = field(INT64, tag=0, default=0)


@message
class ConsumerGroupMemberKey(Message):
    """The key of a member (5), its target assignment (7) or its current assignment (8)."""

    versions = VersionRange(MEMBER_METADATA_KEY, CURRENT_ASSIGNMENT_KEY)
    flexible_from = NEVER_FLEXIBLE

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
class ConsumerGroupMemberMetadataValue(Message):
    """A member with its subscription."""

    versions = VersionRange(0, 0)
    flexible_from = 0

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
class ConsumerGroupTargetAssignmentMetadataValue(Message):
    """The epoch of a group's target assignment."""

    versions = VersionRange(0, 0)
    flexible_from = 0

    assignment_epoch: int = field(INT32)
    assignment_timestamp: int = field(INT64, tag=0, default=0, ignorable=True)


@message
class TargetTopicPartitions:
    """Partitions of one topic."""

    topic_id: uuid.UUID = field(UUID)
    partitions: tuple[int, ...] = field(array(INT32))


@message
class ConsumerGroupTargetAssignmentMemberValue(Message):
    """A member's target assignment."""

    versions = VersionRange(0, 0)
    flexible_from = 0

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
class ConsumerGroupCurrentMemberAssignmentValue(Message):
    """A member's current assignment, with its epoch and state."""

    versions = VersionRange(0, 0)
    flexible_from = 0

    member_epoch: int = field(INT32)
    previous_member_epoch: int = field(INT32)
    state: int = field(INT8)
    assigned_partitions: tuple[CurrentTopicPartitions, ...] = field(array(CurrentTopicPartitions))
    partitions_pending_revocation: tuple[CurrentTopicPartitions, ...] = field(
        array(CurrentTopicPartitions)
    )


@message
class ConsumerGroupRegularExpressionKey(Message):
    """The key of a resolved regular expression."""

    versions = VersionRange(REGULAR_EXPRESSION_KEY, REGULAR_EXPRESSION_KEY)
    flexible_from = NEVER_FLEXIBLE

    group_id: str = field(STRING)
    regular_expression: str = field(STRING)


@message
class ConsumerGroupRegularExpressionValue(Message):
    """The topics that a regular expression matched."""

    versions = VersionRange(0, 0)
    flexible_from = 0

    topics: tuple[str, ...] = field(array(STRING))
    version: int = field(INT64)
    timestamp: int = field(INT64)
