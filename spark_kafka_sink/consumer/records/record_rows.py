"""Rows of Arrow as records: the objects of a poll are made column by column.

Each column becomes a list of Python objects at once, in compiled code, and so do the records from
their columns. There is no statement for each record.
"""

from __future__ import annotations

from itertools import islice, pairwise, repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from spark_kafka_sink.consumer.records.consumer_record import NULL_SIZE, ConsumerRecord
from spark_kafka_sink.record.decode import Header
from spark_kafka_sink.record.reading.schema import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy.typing as npt
    import pyarrow as pa

    from spark_kafka_sink.model import TopicPartition

#: The columns of `consumer_records`, in this order.
RECORD_SCHEMA: Final = arrow_schema(
    ["key", "value", "offset", "timestamp", "timestampType", "headers"]
)
_MICROS_PER_MILLI: Final = 1000
#: Makes a tuple of any kind from an iterable, without the checks of its own constructor.
_NEW: Final[Any] = tuple.__new__

#: What a deserializer returns for bytes that are not null.
Deserialize: TypeAlias = "Callable[..., Any]"


class ResolvedDeserializer(NamedTuple):
    """The deserializer of keys or of values, which is never called for null.

    It is called with the bytes; if `takes_place`, with the topic and the headers of the record too:
    `deserialize(data, topic, headers)`.
    """

    deserialize: Deserialize
    takes_place: bool = False


class Fault(NamedTuple):
    """The error of a deserializer: of the `key` or the `value` of a row, counted from 0."""

    row: int
    part: str
    error: Exception


def consumer_records(  # noqa: PLR0917  the parts of the records
    rows: pa.RecordBatch,
    offsets: Sequence[int],
    topic_partition: TopicPartition,
    epochs: Iterable[int | None],
    key_deserializer: ResolvedDeserializer | None,
    value_deserializer: ResolvedDeserializer | None,
) -> tuple[list[ConsumerRecord], Fault | None]:
    """Return the records of rows with the columns of `RECORD_SCHEMA`, and what stopped them.

    `offsets` are those of the rows. An error of a deserializer ends the records before the one that
    it is about.
    """
    keys, values, _, timestamps, timestamp_types, header_lists = rows.columns
    count = len(offsets)
    topic, partition = topic_partition
    key_parts, key_sizes = _bytes_and_sizes(keys)
    value_parts, value_sizes = _bytes_and_sizes(values)
    headers = _headers(header_lists)
    fault: Fault | None = None
    if key_deserializer is not None or value_deserializer is not None:
        headers = list(islice(headers, count))
        if key_deserializer is not None:
            key_parts, fault = _deserialized("key", key_deserializer, key_parts, topic, headers)
        if value_deserializer is not None:
            # A record whose key failed is not needed.
            wanted = headers if fault is None else headers[: fault.row]
            value_parts, value_fault = _deserialized(
                "value", value_deserializer, value_parts, topic, wanted
            )
            fault = value_fault or fault
        if fault is not None:
            offsets = offsets[: fault.row]
    micros: Any = timestamps.buffers()[1]
    micros = np.frombuffer(micros, np.int64)[timestamps.offset : timestamps.offset + count]
    records: list[ConsumerRecord] = list(
        map(
            _NEW,
            repeat(ConsumerRecord),
            # Constant columns are endless.
            zip(
                repeat(topic),
                repeat(partition),
                offsets,
                key_parts,
                value_parts,
                (micros // _MICROS_PER_MILLI).tolist(),
                repeat(timestamp_types[0].as_py()),
                headers,
                epochs,
                key_sizes,
                value_sizes,
                strict=False,
            ),
        )
    )
    return records, fault


def _bytes_and_sizes(column: Any) -> tuple[Iterable[bytes | None], Iterable[int]]:
    """Return a binary column as objects, and their sizes."""
    count, nulls = len(column), column.null_count
    if nulls == count:
        return repeat(None), repeat(NULL_SIZE)
    parts: list[bytes | None] = column.to_numpy(zero_copy_only=False).tolist()
    if nulls:
        return parts, [NULL_SIZE if part is None else len(part) for part in parts]
    return parts, np.diff(_list_offsets(column)).tolist()


def _list_offsets(column: Any) -> npt.NDArray[np.int32]:
    """Return the offsets of a binary or list column: one more than it has rows."""
    first = column.offset
    return np.frombuffer(column.buffers()[1], np.int32)[first : first + len(column) + 1]


def _headers(column: Any) -> Iterable[tuple[Header, ...]]:
    if column.null_count == len(column):
        return repeat(())
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
        return zip(*[iter(headers)] * each, strict=True)
    bounds = (offsets - first).tolist()
    return [tuple(headers[start:end]) for start, end in pairwise(bounds)]


def _deserialized(
    part: str,
    deserializer: ResolvedDeserializer,
    parts: Iterable[bytes | None],
    topic: str,
    headers: Sequence[tuple[Header, ...]],
) -> tuple[list[Any], Fault | None]:
    """Return the objects of the first parts, one for each of `headers`, and what stopped them."""
    deserialize, takes_place = deserializer
    data = list(islice(parts, len(headers)))
    objects: list[Any] = []
    calls: Iterator[Any]
    if None in data:
        calls = (
            None
            if each is None
            else deserialize(each, topic, its_headers)
            if takes_place
            else deserialize(each)
            for each, its_headers in zip(data, headers, strict=True)
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
