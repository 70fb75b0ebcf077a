"""Deserializers at work: keys and values become objects, up to the first record that fails.

Records fail in their order, and the key of a record before its value, as in Java's `CompletedFetch`
(parseRecord). A record that failed is tried again when it is wanted again.
"""

from __future__ import annotations

from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from spark_kafka_sink.consumer.records.deserializers import SizeError
from spark_kafka_sink.errors import RecordDeserializationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from spark_kafka_sink.consumer.records.consumer_record import ConsumerRecord
    from spark_kafka_sink.consumer.records.deserializers import Deserializers, ResolvedDeserializer
    from spark_kafka_sink.record.decode import Header

#: The part of a record that a deserializer reads.
Part: TypeAlias = Literal["key", "value"]


class Fault(NamedTuple):
    """The error of a deserializer in a row, counted from 0."""

    row: int
    part: Part
    error: Exception

    def about(self, record: ConsumerRecord) -> RecordDeserializationError:
        """Return the error to raise; `record` has the key and the value as bytes."""
        error = self.error
        # Any other error may quote the data, which must not be logged.
        why = str(error) if isinstance(error, SizeError) else type(error).__name__
        return RecordDeserializationError(
            f"topic {record.topic!r}, partition {record.partition}, offset {record.offset}: the "
            f"{self.part}.deserializer cannot read the {self.part} ({why}). To "
            f"skip the record, seek to offset {record.offset + 1}",
            record=record,
            part=self.part,
        )


def deserialized(
    deserializers: Deserializers,
    keys: Iterable[bytes | None],
    values: Iterable[bytes | None],
    topic: str,
    headers: Sequence[tuple[Header, ...]],
) -> tuple[Iterable[Any], Iterable[Any], Fault | None]:
    """Return the keys and values of rows, one for each of `headers`, and what has ended them."""
    fault: Fault | None = None
    if deserializers.key is not None:
        keys, fault = _objects("key", deserializers.key, keys, topic, headers)
    if deserializers.value is not None:
        # The value of a record whose key failed is not needed.
        wanted = headers if fault is None else headers[: fault.row]
        values, value_fault = _objects("value", deserializers.value, values, topic, wanted)
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
