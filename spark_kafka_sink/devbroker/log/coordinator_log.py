"""The log that stores a coordinator's state: an internal topic, in Kafka's format.

It exists only if the cluster has a data directory; otherwise a coordinator's state is in memory
alone. A record is on disk before the request is acknowledged, and is read back when the directory
is opened. A partition is created with its first record. Clients do not see these topics.

The records are in Kafka's own schemas. A key begins with an int16 that identifies the kind of
record (for offsets and transactions it is also the version of the key), a value with its version. A
null value is a tombstone for its key.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from spark_kafka_sink.devbroker.base.refusal import RefusedError, refused_if_disk_fails
from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
from spark_kafka_sink.devbroker.base.topic_names import (
    GROUP_METADATA_TOPIC,
    TRANSACTION_STATE_TOPIC,
    coordinator_partition,
)
from spark_kafka_sink.devbroker.log.batch_builder import build_batch
from spark_kafka_sink.errors import CorruptRecordError, DecodeError
from spark_kafka_sink.model import (
    NO_PRODUCER_ID,
    NO_PRODUCER_ID_AND_EPOCH,
    NO_SEQUENCE,
    TopicPartition,
)
from spark_kafka_sink.protocol.api_keys import NEVER_FLEXIBLE
from spark_kafka_sink.protocol.codec import decode, encode_bytes
from spark_kafka_sink.protocol.error_codes import ErrorCode
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
    field,
    message,
)
from spark_kafka_sink.record.decode import (
    ControlRecordType,
    Record,
    decode_control_record,
    decode_record_batch,
)
from spark_kafka_sink.record.record_batch import decode_header

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Sequence

    from spark_kafka_sink.devbroker.log.log_manager import LogManager
    from spark_kafka_sink.devbroker.log.partition_log import PartitionLog
    from spark_kafka_sink.model import ProducerIdAndEpoch

    KeyValue = tuple[bytes, bytes | None]

_TRANSACTIONAL = 0x10
#: As offsets.topic.segment.bytes and transaction.state.log.segment.bytes.
_CONFIG = TopicConfig(cleanup_policy="compact", segment_bytes=100 * 1024**2)
#: The consequence of losing a partition.
_CONSEQUENCES = {
    GROUP_METADATA_TOPIC: "its groups then lose their committed offsets",
    TRANSACTION_STATE_TOPIC: (
        "its transactional ids then start again from nothing; open transactions stay open"
    ),
}


class CoordinatorBatch(NamedTuple):
    """A batch of a coordinator's log, as it is read back."""

    #: The partition of __consumer_offsets or __transaction_state.
    partition: int
    records: list[Record]
    #: -1 if the batch belongs to no transaction.
    producer_id: int
    #: For a marker, whether it commits the producer's transaction; None for other batches.
    committed: bool | None


class CoordinatorLog:
    """The log of one internal topic."""

    def __init__(self, logs: LogManager, topic: str, leader_epoch: Callable[[int], int]) -> None:
        """Store partitions in `logs`; `leader_epoch` returns the leader epoch of a partition."""
        self.topic = topic
        self._logs = logs
        self._leader_epoch = leader_epoch
        self._topic_id: uuid.UUID | None = None
        self._partitions: dict[int, PartitionLog] = {}
        self._latest_ms = 0

    @property
    def is_durable(self) -> bool:
        """Whether the log stores anything at all."""
        return self._logs.is_durable

    def open(self, topic_id: uuid.UUID, now: float) -> None:
        """Open the existing partitions."""
        self._partitions.clear()
        self._topic_id = topic_id
        self._latest_ms = int(now * 1000)
        if self._logs.data is not None:
            for index in self._logs.data.partitions(self.topic):
                self._open_partition(index)

    def leader_epochs(self) -> dict[int, int]:
        """Return the latest leader epoch of each existing partition."""
        return {index: log.leader_epoch for index, log in self._partitions.items()}

    def partition(self, index: int) -> PartitionLog:
        """Return a partition's log, creating it if needed.

        Raises RefusedError with KAFKA_STORAGE_ERROR if it cannot be created.
        """
        log = self._partitions.get(index)
        if log is None:
            with refused_if_disk_fails(f"{self.topic}-{index} cannot be created"):
                log = self._open_partition(index)
        return log

    def _open_partition(self, index: int) -> PartitionLog:
        if self._topic_id is None:
            raise RuntimeError(f"{self.topic} has not been opened")
        log = self._partitions[index] = self._logs.log(
            TopicPartition(self.topic, index), self._topic_id, _CONFIG, self._latest_ms / 1000
        )
        return log

    def append(
        self,
        key: str,
        records: Sequence[KeyValue],
        *,
        now_ms: int | None = None,
        producer: ProducerIdAndEpoch = NO_PRODUCER_ID_AND_EPOCH,
    ) -> None:
        """Write records about a group or transactional id, if the log is durable.

        With a `producer` they belong to its transaction. Raises RefusedError if they cannot be
        written; a disk failure becomes NOT_COORDINATOR, which makes clients retry
        (TransactionStateManager.appendTransactionToLog, CoordinatorOperationExceptionHelper).
        """
        if not self.is_durable or not records:
            return
        index = coordinator_partition(key)
        self._latest_ms = now_ms = max(self._latest_ms, now_ms or 0)
        batch = memoryview(
            build_batch(
                [Record(offset, now_ms, *record) for offset, record in enumerate(records)],
                base_offset=0,
                last_offset_delta=len(records) - 1,
                attributes=_TRANSACTIONAL if producer.is_valid else 0,
                base_timestamp=now_ms,
                max_timestamp=now_ms,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                base_sequence=NO_SEQUENCE,
            )
        )
        try:
            log = self.partition(index)
            epoch = self._leader_epoch(index)
            if epoch > log.leader_epoch:
                log.begin_leader_epoch(epoch)
            log.append(batch, decode_header(batch), now_ms=now_ms, from_coordinator=True)
        except RefusedError as refused:
            if refused.error_code is not ErrorCode.KAFKA_STORAGE_ERROR:
                raise
            raise RefusedError(ErrorCode.NOT_COORDINATOR, refused.message) from refused

    def replay(self, apply: Callable[[CoordinatorBatch], None]) -> None:
        """Call `apply` with every batch, partition by partition.

        Raises CorruptRecordError for a batch that cannot be read or applied; the error names the
        file and says how to recover.
        """
        for index, log in sorted(self._partitions.items()):
            for segment in log.segments:
                position = 0
                try:
                    for span in segment.spans():
                        position = span.position
                        _apply(index, segment.batch(span), apply)
                        position += span.size_in_bytes
                    if position < segment.size_in_bytes:
                        raise _not_a_batch()
                except (CorruptRecordError, DecodeError) as error:
                    raise CorruptRecordError(
                        f"{segment.records.location}, byte {position}: {error}. Restore the file "
                        f"from a backup, or move the directory of {self.topic}-{index} away "
                        f"({_CONSEQUENCES[self.topic]}). Otherwise the next start truncates the "
                        "file at this position, and all records after it are lost"
                    ) from error


def _apply(index: int, batch: memoryview, apply: Callable[[CoordinatorBatch], None]) -> None:
    decoded = decode_record_batch(batch)
    header = decoded.header
    committed = None
    if header.is_control:
        if not decoded.records:
            return
        control = decode_control_record(decoded.records[0])
        committed = control.type == ControlRecordType.COMMIT
    producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
    apply(CoordinatorBatch(index, decoded.records, producer_id, committed))


def _not_a_batch() -> CorruptRecordError:
    return CorruptRecordError("the remaining bytes are not a record batch")


M = TypeVar("M", bound=Message)

_VERSION = struct.Struct(">h")

OFFSET_COMMIT_KEY = 1
GROUP_METADATA_KEY = 2
TRANSACTION_LOG_KEY = 0
OFFSET_COMMIT_VALUE = 3
GROUP_METADATA_VALUE = 3


class _Key(Message):
    """The key of a record; its versions identify the kind of record."""

    __slots__ = ()

    flexible_from = NEVER_FLEXIBLE


class _ConsumerGroupValue(Message):
    """A value of the consumer groups of KIP-848."""

    __slots__ = ()

    versions = VersionRange(0, 0)
    flexible_from = 0


@message
class OffsetCommitKey(_Key):
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


@message
class GroupMetadataKey(_Key):
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
class TransactionLogKey(_Key):
    """The key of a transactional id."""

    versions = VersionRange(0, 0)

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
MEMBER_METADATA_KEY = 5
TARGET_ASSIGNMENT_METADATA_KEY = 6
TARGET_ASSIGNMENT_MEMBER_KEY = 7
CURRENT_ASSIGNMENT_KEY = 8
REGULAR_EXPRESSION_KEY = 16
#: The version of all values.
VALUE_VERSION = 0


@message
class ConsumerGroupMetadataKey(_Key):
    """The key of a group's epoch (3), partition metadata (4) or target assignment's epoch (6)."""

    versions = VersionRange(GROUP_EPOCH_KEY, TARGET_ASSIGNMENT_METADATA_KEY)

    group_id: str = field(STRING)


@message
class ConsumerGroupMetadataValue(_ConsumerGroupValue):
    """A group's epoch."""

    epoch: int = field(INT32)
    metadata_hash: int = field(INT64, tag=0, default=0)


@message
class ConsumerGroupMemberKey(_Key):
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
class ConsumerGroupRegularExpressionKey(_Key):
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
