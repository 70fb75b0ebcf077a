"""The partitions and offsets that callers pass to clients, checked where the mistake was made.

Raised later, on a network thread, the error would end the client rather than the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeGuard

from spark_kafka_sink.model import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

_MAX_INT32: Final = 2**31 - 1
_MAX_INT64: Final = 2**63 - 1


def topic_of(name: object) -> str:
    """Return the name of a topic."""
    if not isinstance(name, str) or not name.strip():
        raise TypeError(f"the name of a topic is a text, not {name!r}")
    _check_text(name, f"the name of the topic {name!r}")
    return name


def partition_of(partition: object) -> TopicPartition:
    """Return a partition; a pair of topic and number is one, too."""
    if not isinstance(partition, tuple) or len(partition) != len(TopicPartition._fields):
        raise TypeError(f"a partition is a TopicPartition, not {partition!r}")
    topic, number = partition
    topic_of(topic)
    if not is_integer(number):
        raise TypeError(f"the partition of topic {topic!r} is a number, not {number!r}")
    if number < 0:
        raise ValueError(f"the partition {number} of topic {topic!r} is negative")
    if number > _MAX_INT32:
        raise ValueError(f"the partition {number} of topic {topic!r} does not fit into 32 bits")
    return TopicPartition(topic, number)


def offset_of(partition: TopicPartition, offset: OffsetAndMetadata | int) -> OffsetAndMetadata:
    """Return an offset of a partition with its metadata."""
    found = offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
    if not is_integer(found.offset):
        raise TypeError(f"{partition}: an offset is a number, not {found.offset!r}")
    if found.offset < 0:
        raise ValueError(f"{partition}: the offset {found.offset} is negative")
    if found.offset > _MAX_INT64:
        raise ValueError(f"{partition}: the offset {found.offset} does not fit into 64 bits")
    if not is_integer(found.leader_epoch):
        raise TypeError(f"{partition}: a leader epoch is a number, not {found.leader_epoch!r}")
    if abs(found.leader_epoch) > _MAX_INT32:
        raise ValueError(
            f"{partition}: the leader epoch {found.leader_epoch} does not fit into 32 bits"
        )
    if not isinstance(found.metadata, str | None):
        raise TypeError(f"{partition}: the metadata of an offset are a text")
    _check_text(found.metadata, f"{partition}: the metadata of an offset")
    return found


def offsets_of(
    offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets of partitions, each with its metadata; the caller may change its own."""
    if not isinstance(offsets, Mapping):
        raise TypeError(f"offsets are a mapping of TopicPartition to offset, not {offsets!r}")
    found: dict[TopicPartition, OffsetAndMetadata] = {}
    for partition, offset in offsets.items():
        checked = partition_of(partition)
        found[checked] = offset_of(checked, offset)
    return found


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
        if not isinstance(text, str):
            raise TypeError(f"the {name} of a consumer group is a text, not {text!r}")
        _check_text(text, f"the {name} {text!r} of a consumer group")
    number = group.generation_id
    if not is_integer(number):
        raise TypeError(f"the generation_id of a consumer group is a number, not {number!r}")
    if abs(number) > _MAX_INT32:
        raise ValueError(f"the generation_id {number} does not fit into 32 bits")
    if number > 0 and not group.member_id:
        raise ValueError(f"the consumer group's generation_id is {number}, but it has no member_id")


def is_integer(value: object) -> TypeGuard[int]:
    """Return whether a value is a number without a fraction; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def _check_text(text: str | None, what: str) -> None:
    """Raise ValueError for a text that cannot be sent."""
    try:
        (text or "").encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} cannot be encoded as UTF-8: {error.reason}") from error
