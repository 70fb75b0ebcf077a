"""The arguments of a consumer's methods, checked: a mistake is raised where it was made."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping
from typing import TypeGuard

from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.model import OffsetAndMetadata, TopicPartition

_LISTENER = ("on_partitions_assigned", "on_partitions_revoked", "on_partitions_lost")


def seconds_of(timeout: float) -> float:
    """Return a timeout in seconds, as much as a thread can wait."""
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout is a number of seconds, not {timeout!r}")
    if not timeout >= 0:
        raise ValueError(f"timeout is {timeout}, but must not be negative")
    return min(timeout, threading.TIMEOUT_MAX / 2)


def topic_of(name: object) -> str:
    """Return the name of a topic."""
    if not isinstance(name, str) or not name.strip():
        raise TypeError(f"the name of a topic is a text, not {name!r}")
    return name


def topics_of(topics: object) -> list[str]:
    """Return the names of topics; a text is one name."""
    if isinstance(topics, str):
        return [topic_of(topics)]
    if isinstance(topics, re.Pattern):
        raise TypeError("topics are names: pass a regular expression as `pattern`")
    if not isinstance(topics, Iterable):
        raise TypeError(f"topics are names, not {topics!r}")
    return [topic_of(each) for each in topics]


def pattern_of(pattern: object) -> re.Pattern[str]:
    """Return a compiled regular expression."""
    if isinstance(pattern, re.Pattern) and isinstance(pattern.pattern, str):
        return pattern
    if not isinstance(pattern, str):
        raise TypeError(f"pattern is a regular expression as text, not {pattern!r}")
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"pattern is not a regular expression: {error}") from error


def check_listener(listener: object) -> None:
    """Raise TypeError for an object without the methods of a ConsumerRebalanceListener."""
    missing = [name for name in _LISTENER if not callable(getattr(listener, name, None))]
    if listener is not None and missing:
        raise TypeError(
            f"the listener has no method {missing[0]}: derive its class from "
            "ConsumerRebalanceListener"
        )


def check_callback(callback: object) -> None:
    """Raise TypeError for a callback that cannot be called."""
    if callback is not None and not callable(callback):
        raise TypeError(f"callback is a function of offsets and error, not {callback!r}")


def partition_of(partition: object) -> TopicPartition:
    """Return a partition; a pair of topic and number is one, too."""
    if not isinstance(partition, tuple) or len(partition) != len(TopicPartition._fields):
        raise TypeError(f"a partition is a TopicPartition, not {partition!r}")
    topic, number = partition
    topic_of(topic)
    if not _is_integer(number):
        raise TypeError(f"the partition of topic {topic!r} is a number, not {number!r}")
    if number < 0:
        raise ValueError(f"the partition {number} of topic {topic!r} is negative")
    return TopicPartition(topic, number)


def partitions_of(partitions: object) -> list[TopicPartition]:
    """Return several partitions."""
    if isinstance(partitions, str | TopicPartition) or not isinstance(partitions, Iterable):
        raise TypeError(f"partitions are a list of TopicPartition, not {partitions!r}")
    return [partition_of(each) for each in partitions]


def offsets_of(offsets: object) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets of several partitions."""
    if not isinstance(offsets, Mapping):
        raise TypeError(f"offsets are a mapping of TopicPartition to offset, not {offsets!r}")
    return {partition_of(each): offset_of(each, offset) for each, offset in offsets.items()}


def times_of(times: object) -> dict[TopicPartition, int]:
    """Return the times of several partitions."""
    if not isinstance(times, Mapping):
        raise TypeError(f"times are a mapping of TopicPartition to ms since 1970, not {times!r}")
    return {partition_of(each): _time_of(each, time) for each, time in times.items()}


def _time_of(partition: TopicPartition, time: object) -> int:
    if not _is_integer(time):
        raise TypeError(
            f"{partition}: a time is a whole number of ms since 1970, such as "
            f"int(moment.timestamp() * 1000) of a datetime, not {time!r}"
        )
    if time < 0:
        raise ValueError(f"{partition}: the time {time} is negative")
    return time


def offset_of(partition: TopicPartition, offset: OffsetAndMetadata | int) -> OffsetAndMetadata:
    """Return an offset of a partition with its metadata."""
    found = offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
    if not _is_integer(found.offset):
        raise TypeError(f"{partition}: an offset is a number, not {found.offset!r}")
    if found.offset < 0:
        raise ValueError(f"{partition}: the offset {found.offset} is negative")
    if not _is_integer(found.leader_epoch):
        raise TypeError(f"{partition}: a leader epoch is a number, not {found.leader_epoch!r}")
    if not isinstance(found.metadata, str | None):
        raise TypeError(f"{partition}: the metadata of an offset are a text")
    return found


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
