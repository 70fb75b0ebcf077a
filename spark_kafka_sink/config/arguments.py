"""The values that callers pass to clients, checked where the mistake was made.

Raised later, on a network thread, the error would end the client rather than the call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, TypeGuard

from spark_kafka_sink.model import (
    LONGEST_TEXT,
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    TopicPartition,
    utf8_size,
)

#: The sizes of numbers in requests, in bits.
INT16: Final = 16
INT32: Final = 32
INT64: Final = 64


def text_of(text: object, what: str) -> str:
    """Return a text that can be sent; `what` describes it for errors."""
    if not isinstance(text, str):
        raise TypeError(f"{what} is a text, not {text!r}")
    size = utf8_size(text)
    if size is None:
        raise ValueError(f"{what} cannot be encoded as UTF-8: surrogates not allowed")
    if size > LONGEST_TEXT:
        raise ValueError(f"{what} has {size} bytes; Kafka's limit is {LONGEST_TEXT}")
    return text


def number_of(number: object, what: str, *, bits: int = INT32) -> int:
    """Return a number that can be sent in so many bits; `what` describes it for errors."""
    if not is_integer(number):
        raise TypeError(f"{what} is a number, not {number!r}")
    limit = 1 << (bits - 1)
    if not -limit <= number < limit:
        raise ValueError(f"{what} does not fit into {bits} bits: {number}")
    return number


def number_of_seconds(timeout: object) -> float:
    """Return a timeout, which is a number of seconds."""
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout is a number of seconds, not {timeout!r}")
    return timeout


def topic_of(name: object) -> str:
    """Return the name of a topic."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a topic is a text, not {name!r}")
    if not name.strip():
        raise ValueError(f"the name of a topic must not be blank, as {name!r} is")
    return text_of(name, f"the name of the topic {name!r}")


def partition_of(partition: object) -> TopicPartition:
    """Return a partition; a pair of topic and number is one, too."""
    if not isinstance(partition, tuple) or len(partition) != len(TopicPartition._fields):
        raise TypeError(f"a partition is a TopicPartition, not {partition!r}")
    topic, number = partition
    topic_of(topic)
    if number_of(number, f"the partition of topic {topic!r}") < 0:
        raise ValueError(f"the partition {number} of topic {topic!r} is negative")
    return TopicPartition(topic, number)


def partitions_of(partitions: object) -> list[TopicPartition]:
    """Return several partitions."""
    if isinstance(partitions, str | TopicPartition) or not isinstance(partitions, Iterable):
        raise TypeError(f"partitions are a list of TopicPartition, not {partitions!r}")
    return [partition_of(partition) for partition in partitions]


def offset_of(partition: TopicPartition, offset: OffsetAndMetadata | int) -> OffsetAndMetadata:
    """Return an offset of a partition with its metadata."""
    if not is_integer(offset) and not isinstance(offset, OffsetAndMetadata):
        raise TypeError(
            f"{partition}: an offset is a number or an OffsetAndMetadata, not {offset!r}"
        )
    committed = offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
    if number_of(committed.offset, f"{partition}: an offset", bits=INT64) < 0:
        raise ValueError(f"{partition}: the offset {committed.offset} is negative")
    number_of(committed.leader_epoch, f"{partition}: a leader epoch")
    if committed.metadata is not None:
        text_of(committed.metadata, f"{partition}: the metadata of an offset")
    return committed


def offsets_of(
    offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets of partitions, each with its metadata; the caller may change its own."""
    if not isinstance(offsets, Mapping):
        raise TypeError(f"offsets are a mapping of TopicPartition to offset, not {offsets!r}")
    committed: dict[TopicPartition, OffsetAndMetadata] = {}
    for partition, offset in offsets.items():
        checked = partition_of(partition)
        committed[checked] = offset_of(checked, offset)
    return committed


def check_transactional_id(transactional_id: object) -> None:
    """Raise TypeError or ValueError unless it can be a transactional id."""
    if not text_of(transactional_id, "the transactional id"):
        raise ValueError("the transactional id must not be empty")


def check_group(group: object) -> None:
    """Raise TypeError or ValueError unless `group` can be a consumer group and its member.

    Source: KafkaProducer.throwIfInvalidGroupMetadata.
    """
    if not isinstance(group, ConsumerGroupMetadata):
        raise TypeError(
            "group_metadata is a ConsumerGroupMetadata, such as consumer.group_metadata() returns, "
            f"not {group!r}"
        )
    texts: dict[str, Any] = {"group_id": group.group_id, "member_id": group.member_id}
    if group.group_instance_id is not None:
        texts["group_instance_id"] = group.group_instance_id
    for name, text in texts.items():
        text_of(text, f"the {name} of a consumer group")
    number = number_of(group.generation_id, "the generation_id of a consumer group")
    if number > 0 and not group.member_id:
        raise ValueError(f"the consumer group's generation_id is {number}, but it has no member_id")


def check_columns(columns: Any) -> None:
    """Raise TypeError unless the columns are None or names; whether they exist is not checked."""
    if columns is not None:
        check_items("columns", columns, "a list of the names of columns", str)


def check_items(name: str, values: Any, expected: str, *types: type) -> None:
    """Raise TypeError unless there are several values, each of one of some types."""
    kind = type(values).__name__
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Collection):
        raise TypeError(f"{name} must be {expected}, not {kind}")
    for value in values:
        if not isinstance(value, types):
            raise TypeError(f"{name} must be {expected}, not {kind} with {type(value).__name__}")


def is_integer(value: object) -> TypeGuard[int]:
    """Return whether a value is a number without a fraction; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)
