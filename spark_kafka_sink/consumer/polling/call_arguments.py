"""The arguments of a consumer's methods, checked: a mistake is raised where it was made."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.offset_arguments import (
    INT64,
    is_integer,
    number_of,
    number_of_seconds,
    partition_of,
    topic_of,
)

if TYPE_CHECKING:
    from spark_kafka_sink.model import TopicPartition

_LISTENER = ("on_partitions_assigned", "on_partitions_revoked", "on_partitions_lost")


def seconds_of(timeout: float) -> float:
    """Return a timeout in seconds, as much as a thread can wait."""
    seconds = number_of_seconds(timeout)
    if not seconds >= 0:
        raise ValueError(f"timeout is {timeout}, but must be a number of seconds from 0 on")
    return min(seconds, threading.TIMEOUT_MAX / 2)


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


def times_of(times: object) -> dict[TopicPartition, int]:
    """Return the times of several partitions."""
    if not isinstance(times, Mapping):
        raise TypeError(f"times are a mapping of TopicPartition to ms since 1970, not {times!r}")
    return {partition_of(each): _time_of(each, time) for each, time in times.items()}


def _time_of(partition: TopicPartition, time: object) -> int:
    if not is_integer(time):
        raise TypeError(
            f"{partition}: a time is a whole number of ms since 1970, such as "
            f"int(moment.timestamp() * 1000) of a datetime, not {time!r}"
        )
    if number_of(time, f"{partition}: a time", bits=INT64) < 0:
        raise ValueError(f"{partition}: the time {time} is negative")
    return time
