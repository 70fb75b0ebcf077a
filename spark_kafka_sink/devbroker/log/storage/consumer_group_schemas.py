"""The records of consumer groups (KIP-848) in `__consumer_offsets`, in Kafka's own schemas.

Keys begin with an int16 that identifies the kind of record; see `coordinator_records`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.protocol.api_keys import NEVER_FLEXIBLE
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
