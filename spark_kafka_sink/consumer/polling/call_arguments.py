"""The arguments of a consumer's methods, checked: a mistake is raised where it was made."""

from __future__ import annotations

import re
import threading

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


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
