"""The results of `poll`: records, and the records of each partition."""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spark_kafka_sink import display
from spark_kafka_sink.model import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_kafka_sink.record.decode import Header

#: The timestamp of a record that has none (RecordBatch.NO_TIMESTAMP).
NO_TIMESTAMP: Final = -1
#: The size of a key or value that is null (ConsumerRecord.NULL_SIZE).
NULL_SIZE: Final = -1
CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1
#: Java's names of timestamp types, by their numbers.
_TIMESTAMP_TYPES: Final = {CREATE_TIME: "CreateTime", LOG_APPEND_TIME: "LogAppendTime"}
#: The number of partitions in a text that is one line long.
_SHOWN_PARTITIONS: Final = 3


class ConsumerRecord(NamedTuple):
    """A record that a consumer has read (Kafka's class of the same name).

    `topic`, `partition` and `offset` say where it is. `key` and `value` are what the deserializers
    returned: without them, bytes or None.

    >>> record = ConsumerRecord("orders", 0, 42, b"alice", b"a book", timestamp=1_700_000_000_000)
    >>> record.value, record.timestamp_type_name, record.headers
    (b'a book', 'CreateTime', ())
    """

    topic: str
    partition: int
    offset: int
    key: Any = None
    value: Any = None
    #: Milliseconds since 1970; -1 if there is none.
    timestamp: int = NO_TIMESTAMP
    #: 0 if the producer has set the timestamp, 1 if the broker has, when it appended the record.
    timestamp_type: int = CREATE_TIME
    #: In the order in which they were sent; a key may occur more than once.
    headers: tuple[Header, ...] = ()
    #: The epoch of the leader that appended it; None if it is not known.
    leader_epoch: int | None = None
    #: Bytes of the key before it was deserialized; -1 if it is null.
    serialized_key_size: int = NULL_SIZE
    #: Bytes of the value before it was deserialized; -1 if it is null.
    serialized_value_size: int = NULL_SIZE

    @property
    def timestamp_type_name(self) -> str:
        """The name of the timestamp type, as Java has it: `CreateTime` or `LogAppendTime`."""
        return _TIMESTAMP_TYPES.get(self.timestamp_type, "NoTimestampType")

    def __repr__(self) -> str:
        """Show all fields; a long key, value or list of headers is cut."""
        fields = (
            f"{name}={display.shortened(repr(value))}"
            for name, value in zip(self._fields, self, strict=True)
        )
        return f"ConsumerRecord({', '.join(fields)})"

    def _repr_html_(self) -> str:
        """Show the fields in words."""
        return display.block(
            f"record at offset {self.offset} of {self.topic}-{self.partition}",
            display.facts(
                {
                    "key": _shown(self.key),
                    "value": _shown(self.value),
                    "timestamp": self._timestamp_text(),
                    "headers": ", ".join(
                        f"{name}: {'null' if value is None else _shown(value)}"
                        for name, value in self.headers
                    )
                    or None,
                    "leader epoch": self.leader_epoch,
                    "key, in bytes": _size(self.serialized_key_size),
                    "value, in bytes": _size(self.serialized_value_size),
                }
            ),
        )

    def _timestamp_text(self) -> str | None:
        if self.timestamp == NO_TIMESTAMP:
            return None
        return f"{display.moment(self.timestamp)} ({self.timestamp_type_name})"


class ConsumerRecords(dict[TopicPartition, list[ConsumerRecord]]):
    """The records that one `poll` has returned: a list for each partition, in offset order.

    `records` has the records by partition. `next_offsets` has the offset to commit, with its leader
    epoch, of each partition whose position has moved: also of one that only had records to skip, as
    those of aborted transactions (KIP-1094).

    >>> orders = TopicPartition("orders", 0)
    >>> records = ConsumerRecords(
    ...     {orders: [ConsumerRecord("orders", 0, 42, value=b"a book")]},
    ...     {orders: OffsetAndMetadata(43)},
    ... )
    >>> records
    <1 record in 1 partition: orders-0 at offset 42>
    >>> [record.value for record in records.records("orders")]
    [b'a book']
    >>> records.next_offsets[orders].offset
    43
    """

    def __init__(
        self,
        records: Mapping[TopicPartition, list[ConsumerRecord]] | None = None,
        next_offsets: Mapping[TopicPartition, OffsetAndMetadata] | None = None,
    ) -> None:
        """Create the result of a poll; without arguments, of one that has returned nothing."""
        super().__init__(records or {})
        self.next_offsets: dict[TopicPartition, OffsetAndMetadata] = dict(next_offsets or {})

    @property
    def count(self) -> int:
        """The number of records in all partitions; `len` is the number of partitions."""
        return sum(map(len, self.values()))

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions that have records."""
        return frozenset(self)

    @property
    def is_empty(self) -> bool:
        """Whether there are no records; `next_offsets` may have some nevertheless."""
        return not any(self.values())

    def records(self, of: str | TopicPartition | None = None) -> list[ConsumerRecord]:
        """Return the records of a topic, of a partition, or all of them without an argument.

        Those of a partition are in offset order; partitions follow one another.
        """
        if of is None:
            return list(chain.from_iterable(self.values()))
        if isinstance(of, str):
            of_topic = (records for partition, records in self.items() if partition.topic == of)
            return list(chain.from_iterable(of_topic))
        return list(self.get(of, ()))

    def __repr__(self) -> str:
        """Show the number of records, and the offsets of the first partitions."""
        parts = [
            f"{partition} {_offsets(records)}"
            for partition, records in islice(self.items(), _SHOWN_PARTITIONS)
        ]
        rest = len(self) - len(parts)
        text = ", ".join(parts) + (f" and {rest:,} more" if rest else "")
        return f"<{self._summary()}{': ' if text else ''}{text}>"

    def _summary(self) -> str:
        partitions = display.counted(len(self), "partition")
        return f"{display.counted(self.count, 'record')} in {partitions}"

    def _repr_html_(self) -> str:
        """Show the records and offsets of each partition, and the first records."""
        partitions = (
            (
                *(str(part) for part in partition),
                len(records),
                *((records[0].offset, records[-1].offset) if records else (None, None)),
                next_offset.offset if (next_offset := self.next_offsets.get(partition)) else None,
            )
            for partition, records in sorted(self.items())
        )
        first = (
            (str(partition), record.offset, _shown(record.key), _shown(record.value))
            for partition, records in sorted(self.items())
            for record in islice(records, display.MAX_ROWS)
        )
        return display.block(
            self._summary(),
            display.table(
                ("topic", "partition", "records", "first offset", "last offset", "next offset"),
                partitions,
                count=len(self),
                things=("partition", "partitions"),
                bars=2,
            ),
            display.table(
                ("partition", "offset", "key", "value"),
                first,
                count=self.count,
                things=("record", "records"),
                plain={2, 3},
            ),
        )


def _offsets(records: list[ConsumerRecord]) -> str:
    if not records:
        return "without records"
    if len(records) == 1:
        return f"at offset {records[0].offset}"
    return f"at offsets {records[0].offset} to {records[-1].offset}"


def _shown(data: object) -> object:
    """Return the beginning of bytes as text; a character has at most four bytes."""
    if isinstance(data, bytes):
        return data[: 4 * display.MAX_TEXT].decode(errors="replace")
    return data


def _size(count: int) -> int | str:
    return "none" if count == NULL_SIZE else count
