"""The log that stores a coordinator's state: an internal topic, in Kafka's format.

One broker has it only with a data directory; otherwise a coordinator's state is in memory alone. A
record is on disk before the request is acknowledged, and is read back when the directory is opened.
A partition is created with its first record. Clients do not see these topics. Several brokers
replicate it instead (`ReplicatedCoordinatorLog`), in topics like others.

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
from spark_kafka_sink.protocol.schema import Message
from spark_kafka_sink.record.decode import Record, decode_control_record, decode_record_batch
from spark_kafka_sink.record.record_batch import ControlRecordType, decode_header

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Sequence

    from spark_kafka_sink.devbroker.log.log_manager import LogManager
    from spark_kafka_sink.devbroker.log.partition_log import PartitionLog
    from spark_kafka_sink.devbroker.log.producer_state import TransactionMarker
    from spark_kafka_sink.model import ProducerIdAndEpoch

    KeyValue = tuple[bytes, bytes | None]

M = TypeVar("M", bound=Message)

_VERSION = struct.Struct(">h")
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


#: What the errors of a write mean to the coordinator's clients, which retry them
#: (CoordinatorOperationExceptionHelper).
_AS_COORDINATOR = {
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_TOPIC_ID: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
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
            self._append(coordinator_partition(key), batch, now_ms)
        except RefusedError as refused:
            code = _AS_COORDINATOR.get(refused.error_code)
            if code is None:
                raise
            raise RefusedError(code, refused.message) from refused

    def _append(self, index: int, batch: memoryview, now_ms: int) -> None:
        log = self.partition(index)
        epoch = self._leader_epoch(index)
        if epoch > log.leader_epoch:
            log.begin_leader_epoch(epoch)
        log.append(batch, decode_header(batch), now_ms=now_ms, from_coordinator=True)

    def append_marker(self, index: int, marker: TransactionMarker) -> None:
        """Append the marker that ends a producer's transaction.

        Raises RefusedError as `PartitionLog.append_marker`.
        """
        self.partition(index).append_marker(marker)

    def replay(self, apply: Callable[[CoordinatorBatch], None], index: int | None = None) -> None:
        """Call `apply` with every batch of a partition, or of all of them in order.

        Raises CorruptRecordError for a batch that cannot be read or applied; the error names the
        file and says how to recover.
        """
        indexes = sorted(self._partitions) if index is None else [index]
        for each in indexes:
            _replay(self.topic, each, self.partition(each), apply)


def _replay(
    topic: str, index: int, log: PartitionLog, apply: Callable[[CoordinatorBatch], None]
) -> None:
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
                f"from a backup, or move the directory of {topic}-{index} away "
                f"({_CONSEQUENCES[topic]}). Otherwise the next start truncates the "
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


class RecordKey(Message):
    """The key of a record; its versions identify the kind of record."""

    __slots__ = ()

    flexible_from = NEVER_FLEXIBLE


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
