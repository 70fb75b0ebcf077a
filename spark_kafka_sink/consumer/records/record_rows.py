"""Rows of Arrow as records: the objects of a poll are made column by column.

Each column becomes a list of Python objects at once, in compiled code, and so do the records from
their columns. There is no statement for each record. `LeaderEpochs` has the leader epoch of each,
and `deserialized` calls the user's deserializers.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from itertools import islice, pairwise, repeat
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np

from spark_kafka_sink.consumer.records.consumer_record import NULL_SIZE, ConsumerRecord
from spark_kafka_sink.consumer.records.deserializers import NO_DESERIALIZERS, SizeError
from spark_kafka_sink.errors import (
    KafkaError,
    RecordDeserializationError,
    SchemaRegistryError,
    shown_reason,
)
from spark_kafka_sink.model import NO_LEADER_EPOCH, TopicPartition
from spark_kafka_sink.record.decode import Header

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt
    import pyarrow as pa

    from spark_kafka_sink.consumer.records.deserializers import Deserializers, ResolvedDeserializer
    from spark_kafka_sink.record.arrow.record_decoder import BatchIndex

#: The part of a record that a deserializer reads.
Part: TypeAlias = Literal["key", "value"]

#: baseOffset, batchLength and partitionLeaderEpoch, the first fields of a batch.
_START: Final = struct.Struct(">qii")
#: The bytes of a batch that batchLength does not count.
_LOG_OVERHEAD: Final = 12
#: Makes a tuple of any kind from an iterable, without the checks of its own constructor.
_NEW: Final[Any] = tuple.__new__


class LeaderEpochs:
    """The leader epoch of each offset in an answer, from the headers of its batches.

    Epochs never decrease in a log. So if the first and the last batch have the same one, all have
    it, and no other header has to be read.
    """

    def __init__(self, data: memoryview, index: BatchIndex) -> None:
        """Read the complete batches that `index` counts."""
        self._last = index.leader_epoch
        #: The offsets from which on a batch has another epoch than the one before, and the epochs.
        self._offsets: list[int] = []
        self._epochs: list[int] = []
        if index.batch_count and _START.unpack_from(data)[2] != self._last:
            self._read_headers(data, index.size)

    def at(self, offset: int) -> int:
        """Return the epoch of the record at an offset; `NO_LEADER_EPOCH` if it is not known."""
        if not self._offsets:
            return self._last
        return self._epochs[max(bisect_right(self._offsets, offset) - 1, 0)]

    def of(self, offsets: npt.NDArray[np.int64] | Sequence[int]) -> Iterable[int | None]:
        """Return the epochs of records at offsets, None where it is not known: at least as many."""
        if not self._offsets:
            return repeat(_known(self._last))
        indexes: Any = np.searchsorted(self._offsets, offsets, side="right") - 1
        known = [_known(epoch) for epoch in self._epochs]
        return map(known.__getitem__, indexes.tolist())

    def _read_headers(self, data: memoryview, size: int) -> None:
        position = 0
        while position < size:
            base_offset, length, epoch = _START.unpack_from(data, position)
            if not self._epochs or epoch != self._epochs[-1]:
                self._offsets.append(base_offset)
                self._epochs.append(epoch)
            position += length + _LOG_OVERHEAD


class Fault(NamedTuple):
    """The error of a deserializer in a row, counted from 0."""

    row: int
    part: Part
    error: Exception

    def about(self, record: ConsumerRecord) -> KafkaError:
        """Return the error to raise; `record` has the key and the value as bytes."""
        error = self.error
        place = f"topic {record.topic!r}, partition {record.partition}, offset {record.offset}"
        if isinstance(error, SchemaRegistryError):
            # The record may be fine: it must not look like one to skip.
            return error.with_message(f"{place}: there is no schema for the {self.part}: {error}")
        why = str(error) if isinstance(error, SizeError) else shown_reason(error)
        return RecordDeserializationError(
            f"{place}: the {self.part}.deserializer cannot read the {self.part} ({why}). To "
            f"skip the record, seek to offset {record.offset + 1}",
            record=record,
            part=self.part,
        )


class _BytesColumn:
    """A binary column of rows, with the sizes of its values."""

    def __init__(self, column: Any) -> None:
        self._column = column
        nulls = column.null_count
        self._is_null = nulls == len(column)
        #: None if some are null, so that each has to be looked at.
        self._sizes = None if nulls else np.diff(_list_offsets(column))

    def part(self, start: int, end: int) -> tuple[Iterable[bytes | None], Iterable[int]]:
        """Return some rows as objects, and their sizes: at least as many."""
        if self._is_null:
            return repeat(None), repeat(NULL_SIZE)
        column = self._column.slice(start, end - start)
        parts: list[bytes | None] = column.to_numpy(zero_copy_only=False).tolist()
        if self._sizes is None:
            return parts, [NULL_SIZE if part is None else len(part) for part in parts]
        return parts, self._sizes[start:end].tolist()


class RecordRows:
    """Rows with the columns of `record.arrow.schema.RECORD_SCHEMA`."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        keys, values, offsets, timestamps, timestamp_types, headers = rows.columns
        self._keys, self._values = _BytesColumn(keys), _BytesColumn(values)
        self._offsets = _numbers(offsets)
        self._timestamps = _numbers(timestamps)
        self._timestamp_type: int = timestamp_types[0].as_py()
        self._headers: Any = None if headers.null_count == len(headers) else headers

    def records(
        self,
        start: int,
        end: int,
        topic_partition: TopicPartition,
        epochs: LeaderEpochs,
        deserializers: Deserializers,
    ) -> tuple[list[ConsumerRecord], Fault | None]:
        """Return the records of some rows, and the error of a deserializer that has ended them."""
        numbers = self._offsets[start:end]
        first, last = int(numbers[0]), int(numbers[-1])
        # Gaps between offsets are rare.
        is_dense = last - first == end - start - 1
        keys, key_sizes = self._keys.part(start, end)
        values, value_sizes = self._values.part(start, end)
        return consumer_records(
            topic_partition,
            end - start,
            deserializers,
            offsets=range(first, last + 1) if is_dense else numbers.tolist(),
            keys=keys,
            values=values,
            timestamps=self._timestamps[start:end].tolist(),
            timestamp_types=repeat(self._timestamp_type),
            headers=repeat(()) if self._headers is None else _headers(self._headers[start:end]),
            leader_epochs=epochs.of(numbers),
            key_sizes=key_sizes,
            value_sizes=value_sizes,
        )


def consumer_records(
    topic_partition: TopicPartition,
    count: int,
    deserializers: Deserializers,
    *,
    offsets: Iterable[int],
    keys: Iterable[bytes | None],
    values: Iterable[bytes | None],
    timestamps: Iterable[int],
    timestamp_types: Iterable[int],
    headers: Iterable[tuple[Header, ...]],
    leader_epochs: Iterable[int | None],
    key_sizes: Iterable[int],
    value_sizes: Iterable[int],
) -> tuple[list[ConsumerRecord], Fault | None]:
    """Return `count` records of a partition, and the error of a deserializer that has ended them.

    There is an offset for each record; other columns may be longer.
    """
    topic, partition = topic_partition
    fault: Fault | None = None
    if deserializers != NO_DESERIALIZERS:
        headers = list(islice(headers, count))
        keys, values, fault = deserialized(deserializers, keys, values, topic, headers)
        if fault is not None:
            offsets = islice(offsets, fault.row)
    records: list[ConsumerRecord] = list(
        map(
            _NEW,
            repeat(ConsumerRecord),
            # The offsets end it: constant columns are endless.
            zip(
                repeat(topic),
                repeat(partition),
                offsets,
                keys,
                values,
                timestamps,
                timestamp_types,
                headers,
                leader_epochs,
                key_sizes,
                value_sizes,
                strict=False,
            ),
        )
    )
    return records, fault


def deserialized(
    deserializers: Deserializers,
    keys: Iterable[bytes | None],
    values: Iterable[bytes | None],
    topic: str,
    headers: Sequence[tuple[Header, ...]],
) -> tuple[Iterable[Any], Iterable[Any], Fault | None]:
    """Return the keys and values of rows, one for each of `headers`, and what has ended them.

    They become objects up to the first record that fails. Records fail in their order, and the key
    of a record before its value, as in Java's `CompletedFetch` (parseRecord). A record that failed
    is tried again when it is wanted again.
    """
    fault: Fault | None = None
    if deserializers.key is not None:
        keys, fault = _objects("key", deserializers.key, keys, topic, headers)
    if deserializers.value is not None:
        # The value of a record whose key failed is not needed.
        value_headers = headers if fault is None else headers[: fault.row]
        values, value_fault = _objects("value", deserializers.value, values, topic, value_headers)
        fault = value_fault or fault
    return keys, values, fault


def _objects(
    part: Part,
    deserializer: ResolvedDeserializer,
    parts: Iterable[bytes | None],
    topic: str,
    headers: Sequence[tuple[Header, ...]],
) -> tuple[list[Any], Fault | None]:
    deserialize, takes_place = deserializer
    data = list(islice(parts, len(headers)))
    objects: list[Any] = []
    calls: Iterator[Any]
    if None in data:
        calls = (
            None
            if item is None
            else deserialize(item, topic, record_headers)
            if takes_place
            else deserialize(item)
            for item, record_headers in zip(data, headers, strict=True)
        )
    elif takes_place:
        calls = map(deserialize, data, repeat(topic), headers)
    else:
        calls = map(deserialize, data)
    try:
        # Objects before an error remain.
        objects.extend(calls)
    except Exception as error:  # noqa: BLE001  any error of a user's function
        return objects, Fault(len(objects), part, error)
    if len(objects) < len(data):
        # It would look like the end of the calls.
        return objects, Fault(len(objects), part, RuntimeError("StopIteration was raised"))
    return objects, None


def _known(epoch: int) -> int | None:
    return None if epoch == NO_LEADER_EPOCH else epoch


def _numbers(column: Any) -> npt.NDArray[np.int64]:
    return np.frombuffer(column.buffers()[1], np.int64)[: len(column)]


def _list_offsets(column: Any) -> npt.NDArray[np.int32]:
    """Return the offsets of a binary or list column: one more than it has rows."""
    first = column.offset
    return np.frombuffer(column.buffers()[1], np.int32)[first : first + len(column) + 1]


def _headers(column: Any) -> Iterable[tuple[Header, ...]]:
    offsets = _list_offsets(column)
    first, last = int(offsets[0]), int(offsets[-1])
    elements = column.values[first:last]
    names, contents = (
        elements.field(number).to_numpy(zero_copy_only=False).tolist() for number in range(2)
    )
    headers: list[Header] = list(map(_NEW, repeat(Header), zip(names, contents, strict=True)))
    counts = np.diff(offsets)
    count = int(counts[0])
    if count and (counts == count).all():
        # The same iterator, as often as there are headers in a record.
        return zip(*[iter(headers)] * count, strict=True)
    bounds = (offsets - first).tolist()
    return [tuple(headers[start:end]) for start, end in pairwise(bounds)]
