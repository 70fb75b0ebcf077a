"""The errors of consumers: of their positions, their records and their groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.errors.base_errors import KafkaError, SerializationError, listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any


class DataLossError(KafkaError):
    """Offsets that were to be read are no longer in the log.

    `wanted` is the offset that was asked for, `available` the nearest one that there is, -1 if
    there is none, and `lost` the number of offsets that cannot be read. The remedies are to read
    from another offset on, or to accept the loss (`failOnDataLoss=false` in Spark).

    The parameters are the message, and the attributes of the error by name.

    >>> error = DataLossError(
    ...     "orders-0: 10 offsets are lost",
    ...     topic="orders",
    ...     partition=0,
    ...     wanted=0,
    ...     available=10,
    ...     lost=10,
    ... )
    >>> isinstance(error, KafkaError), error.lost, error.retriable
    (True, 10, False)
    """

    def __init__(
        self, message: str, *, topic: str, partition: int, wanted: int, available: int, lost: int
    ) -> None:
        """Store the place beside the message."""
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.wanted = wanted
        self.available = available
        self.lost = lost


class RecordDeserializationError(SerializationError):
    """A deserializer cannot read the key or the value of a record (KIP-334).

    `record` is the record with its key and value as bytes, so that it can be kept elsewhere before
    the consumer seeks past it (KIP-1036). `part` is "key" or "value". The deserializer's own
    exception is in `__cause__`.

    >>> record = ConsumerRecord("orders", 0, 42, value=b"not JSON")
    >>> error = RecordDeserializationError("the value is not JSON", record=record, part="value")
    >>> isinstance(error, SerializationError), error.record.offset, error.part
    (True, 42, 'value')
    """

    def __init__(self, message: str, *, record: Any, part: str) -> None:
        """Store the record beside the message, which does not contain its content."""
        super().__init__(message)
        self.record = record
        self.part = part


class CommitFailedError(KafkaError):
    """A consumer's offsets were not committed, because it is no longer a member of its group.

    The group has given the partitions to another member, which will read the records again that
    were returned since the last commit. Retrying does not help; the next `poll` joins the group
    again.

    >>> error = CommitFailedError("OffsetCommit of group 'orders': the member was removed")
    >>> isinstance(error, KafkaError), error.retriable
    (True, False)
    """


class RebalanceInProgressError(KafkaError):
    """A consumer's offsets were not committed, because its group rebalances.

    Call `poll`, which completes the rebalance, then commit again: what was assigned to another
    member in the meantime is not to be committed.

    >>> error = RebalanceInProgressError("OffsetCommit of group 'orders': the group rebalances")
    >>> isinstance(error, KafkaError), error.retriable
    (True, True)
    """

    retriable = True


class NoOffsetForPartitionError(KafkaError):
    """A consumer has no position in some partitions, and auto.offset.reset does not say where.

    `partitions` are those for which the group has committed no offset. The remedies are to `seek`,
    or to set auto.offset.reset to `earliest` or `latest`.

    >>> error = NoOffsetForPartitionError([TopicPartition("orders", 0)])
    >>> error.partitions, error.retriable
    ((TopicPartition(topic='orders', partition=0),), False)
    """

    def __init__(self, partitions: Iterable[Any]) -> None:
        """Build the message from the partitions."""
        self.partitions = tuple(sorted(partitions))
        super().__init__(
            f"{listed(self.partitions)}: no offset is committed, and auto.offset.reset is none. "
            "Call seek with the offset to begin with, or set auto.offset.reset to earliest or "
            "latest"
        )


class OffsetOutOfRangeError(KafkaError):
    """The positions of a consumer are not in the log, and auto.offset.reset is `none`.

    `offsets` has the position in each of these partitions: their records were deleted, or never
    existed. The remedies are to `seek`, or to set auto.offset.reset.

    >>> error = OffsetOutOfRangeError({TopicPartition("orders", 0): 42})
    >>> error.offsets, error.retriable
    ({TopicPartition(topic='orders', partition=0): 42}, False)
    """

    _cause = "the log does not have this offset, and auto.offset.reset is none"

    def __init__(self, offsets: Mapping[Any, int]) -> None:
        """Build the message from the partitions and their offsets."""
        self.offsets = dict(offsets)
        places = [
            f"{partition} at offset {offset}" for partition, offset in sorted(self.offsets.items())
        ]
        super().__init__(
            f"{listed(places)}: {self._cause}. Call seek with another offset, or set "
            "auto.offset.reset to earliest or latest"
        )


class LogTruncationError(OffsetOutOfRangeError):
    """A log was truncated below a consumer's position after an unclean leader election (KIP-320).

    Records that the consumer has read are no longer in the log. `offsets` has its position in each
    partition, and `divergent_offsets` the first offset at which the log differs from what was read,
    as OffsetAndMetadata; partitions whose leader does not know it are not there.

    >>> orders = TopicPartition("orders", 0)
    >>> error = LogTruncationError({orders: 42}, {orders: OffsetAndMetadata(40, 3)})
    >>> isinstance(error, OffsetOutOfRangeError), error.divergent_offsets[orders].offset
    (True, 40)
    """

    _cause = "the log was truncated, so that records read before this offset are lost"

    def __init__(self, offsets: Mapping[Any, int], divergent_offsets: Mapping[Any, Any]) -> None:
        """Build the message from the positions; store where the logs differ."""
        super().__init__(offsets)
        self.divergent_offsets = dict(divergent_offsets)


class WakeupError(KafkaError):
    """A consumer's call was interrupted by `wakeup`, which another thread called.

    >>> error = WakeupError("poll was interrupted by wakeup")
    >>> isinstance(error, KafkaError), error.retriable
    (True, False)
    """
