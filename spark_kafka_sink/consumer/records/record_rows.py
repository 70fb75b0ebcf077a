"""Rows of Arrow as records: the objects of a poll are made column by column.

Each column becomes a list of Python objects at once, in compiled code, and so do the records from
their columns. There is no statement for each record.
"""

from __future__ import annotations

from itertools import islice, pairwise, repeat
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from spark_kafka_sink.consumer.records.consumer_record import NULL_SIZE, ConsumerRecord
from spark_kafka_sink.consumer.records.deserialization import deserialized
from spark_kafka_sink.consumer.records.deserializers import NO_DESERIALIZERS
from spark_kafka_sink.record.decode import Header

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt
    import pyarrow as pa

    from spark_kafka_sink.consumer.records.deserialization import Fault
    from spark_kafka_sink.consumer.records.deserializers import Deserializers
    from spark_kafka_sink.consumer.records.leader_epochs import LeaderEpochs
    from spark_kafka_sink.model import TopicPartition


#: Makes a tuple of any kind from an iterable, without the checks of its own constructor.
_NEW: Final[Any] = tuple.__new__


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
    """Rows with the columns of `record.reading.schema.RECORD_SCHEMA`."""

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
    each = int(counts[0])
    if each and (counts == each).all():
        # The same iterator, as often as there are headers in a record.
        return zip(*[iter(headers)] * each, strict=True)
    bounds = (offsets - first).tolist()
    return [tuple(headers[start:end]) for start, end in pairwise(bounds)]
