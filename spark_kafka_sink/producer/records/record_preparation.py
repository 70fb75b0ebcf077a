"""The preparation of a single record before it is staged: serialization, checks, placement.

The order is that of Java's `KafkaProducer.doSend`. Interceptors have already seen the record. Key
and value are serialized, a partitioner that works record by record is called, and the size is
checked against the limits, so that a record that can never be sent is refused at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_kafka_sink.config.arguments import text_of
from spark_kafka_sink.display import counted
from spark_kafka_sink.errors import InvalidPartitionError, RecordTooLargeError
from spark_kafka_sink.model import LONGEST_TEXT
from spark_kafka_sink.producer.records.partitioner import FunctionPartitioner, MethodPartitioner

if TYPE_CHECKING:
    from spark_kafka_sink.config.producer_config import ProducerConfig
    from spark_kafka_sink.producer.producer_core import ProducerCore
    from spark_kafka_sink.producer.records.interceptors import ProducerRecord
    from spark_kafka_sink.producer.records.partitioner import Partitioner
    from spark_kafka_sink.producer.records.serializers import Serializers
    from spark_kafka_sink.record.key_hashes import KeyRule


#: The most bytes of a record besides key, value and headers: varints, attributes (DefaultRecord).
MAX_RECORD_OVERHEAD = 21
#: The longest 32-bit varint.
MAX_VARINT_BYTES = 5
MAX_PARTITION = 2**31 - 1
MAX_TIMESTAMP = 2**63 - 1


class PreparedRecord(NamedTuple):
    """A record as it is staged, except for its future."""

    topic: str
    value: bytes | None
    key: bytes | None
    headers: Sequence[tuple[str, bytes | None]] | None
    partition: int | None
    timestamp: int | None

    @property
    def max_bytes(self) -> int:
        """The most bytes that the record can take in a batch, before compression."""
        size = MAX_RECORD_OVERHEAD + len(self.key or b"") + len(self.value or b"")
        for name, value in self.headers or ():
            size += 2 * MAX_VARINT_BYTES + len(name.encode()) + len(value or b"")
        return size


class RecordPreparation:
    """The serializers, partitioner and limits of one producer."""

    def __init__(
        self,
        config: ProducerConfig,
        core: ProducerCore,
        *,
        partitioner: KeyRule | Partitioner,
        serializers: Serializers,
    ) -> None:
        references = config.key_serializer, config.value_serializer
        #: Whether keys and values are the caller's bytes, unchanged.
        self.leaves_bytes_unchanged = all(
            reference is None or reference.built_in == "bytes" for reference in references
        )
        self._serialize_key = serializers.key.serialize
        self._serialize_value = serializers.value.serialize
        self._passes_headers = serializers.key.takes_headers or serializers.value.takes_headers
        self._partitioner = partitioner if isinstance(partitioner, FunctionPartitioner) else None
        self._java_like = partitioner if isinstance(partitioner, MethodPartitioner) else None
        #: Whether a partitioner must be called for every record.
        self.partitions_each_record = self._partitioner is not None or self._java_like is not None
        self._core = core

    def prepare(self, record: ProducerRecord) -> PreparedRecord:
        """Return the prepared form of a record whose topic has known metadata.

        Raises SerializationError, TypeError or ValueError for an invalid record,
        InvalidPartitionError and RecordTooLargeError.
        """
        headers = _checked_headers(record.headers)
        _check_timestamp(record.timestamp)
        if self._passes_headers:
            headers = list(headers or ())
        key = self._serialize_key(record.key, record.topic, headers)
        value = self._serialize_value(record.value, record.topic, headers)
        if self._passes_headers:
            headers = _checked_headers(headers)
        prepared = PreparedRecord(
            record.topic,
            value,
            key,
            headers,
            self._partition(record, key, value),
            record.timestamp,
        )
        self._check_size(prepared)
        return prepared

    def _partition(
        self, record: ProducerRecord, key: bytes | None, value: bytes | None
    ) -> int | None:
        topic = self._core.topic_partitions(record.topic)
        partition = record.partition
        if partition is None:
            if self._partitioner is not None:
                partition = self._partitioner.partition(topic, key, value)
            elif self._java_like is not None:
                partition = self._java_like.partition(
                    record.topic, record.key, key, record.value, value, self._core.snapshot
                )
            else:
                return None
        if not 0 <= partition < topic.partition_count:
            raise InvalidPartitionError(
                "the topic has no such partition: it has "
                f"{counted(topic.partition_count, 'partition')}, numbered from 0",
                row=None,
                topic=record.topic,
                partition=partition,
                advice="Correct the partition, or leave it out to let the producer choose",
            )
        return partition

    def _check_size(self, record: PreparedRecord) -> None:
        size = record.max_bytes
        if size > self._core.max_record_bytes:
            raise RecordTooLargeError(
                f"the record takes {size} bytes, but max.request.size and buffer.memory allow at "
                f"most {self._core.max_record_bytes}",
                row=None,
                topic=record.topic,
                partition=record.partition,
                advice=(
                    "Raise max.request.size (and the topic's max.message.bytes), or write a "
                    "smaller record"
                ),
            )


def check_place(topic: Any, partition: Any) -> None:
    """Raise TypeError or ValueError for an invalid topic or partition."""
    if not isinstance(topic, str):
        raise TypeError(f"the topic must be a str, not {type(topic).__name__}")
    if not topic:
        raise ValueError("the topic must not be empty")
    if not topic.isascii() or len(topic) > LONGEST_TEXT:
        # No topic has such a name, which a broker reports, unless it cannot even be sent.
        text_of(topic, "the topic")
    if partition is None:
        return
    if not isinstance(partition, int) or isinstance(partition, bool):
        raise TypeError(f"the partition must be an int or None, not {type(partition).__name__}")
    if not 0 <= partition <= MAX_PARTITION:
        raise ValueError(f"the partition must be a number from 0 to 2^31 - 1, not {partition}")


def check_timeout(timeout: Any) -> None:
    """Raise TypeError or ValueError unless the timeout is None or a valid number of seconds."""
    if timeout is None:
        return
    if not isinstance(timeout, int | float) or isinstance(timeout, bool):
        raise TypeError(
            f"the timeout must be a number of seconds, or None, not {type(timeout).__name__}"
        )
    if not timeout >= 0:
        raise ValueError(f"the timeout must be 0 seconds or more, not {timeout}")


def check_callback(on_delivery: Any) -> None:
    """Raise TypeError unless the delivery callback is None or callable."""
    if on_delivery is not None and not callable(on_delivery):
        raise TypeError(f"on_delivery must be a function, not {type(on_delivery).__name__}")


def _check_timestamp(timestamp: Any) -> None:
    if timestamp is None:
        return
    if not isinstance(timestamp, int) or isinstance(timestamp, bool):
        raise TypeError(
            "the timestamp must be an int of milliseconds since 1970, or None, not "
            f"{type(timestamp).__name__}"
        )
    if not 0 <= timestamp <= MAX_TIMESTAMP:
        raise ValueError(f"the timestamp must be milliseconds since 1970, not {timestamp}")


def _checked_headers(headers: Any) -> list[tuple[str, bytes | None]] | None:
    if not headers:
        return None
    checked = []
    if not isinstance(headers, Iterable):
        raise TypeError(
            f"the headers must be pairs of a str and bytes or None, not {type(headers).__name__}"
        )
    for header in headers:
        try:
            name, value = header
        except (TypeError, ValueError):
            raise TypeError("a header must be a pair of a str and bytes or None") from None
        if not isinstance(name, str):
            raise TypeError(f"the name of a header must be a str, not {type(name).__name__}")
        if value is not None and not isinstance(value, bytes | bytearray | memoryview):
            raise TypeError(
                f"the value of header {name!r} must be bytes or None, not {type(value).__name__}"
            )
        checked.append((name, None if value is None else bytes(value)))
    return checked
