"""The arguments of `read_arrow`, checked before anything is connected.

An argument of a wrong type is a TypeError, as in the producer's calls; a wrong value, or a wrong
setting of Kafka's consumer, is a ConfigError. Both name the argument.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from spark_kafka_sink.config.config_def import INT_MAX, LONG_MAX
from spark_kafka_sink.config.consumer_config import ConsumerConfig
from spark_kafka_sink.config.offset_specs import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    Assign,
    Subscribe,
    accepted_numbers,
)
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.model import TopicPartition, is_topic_name

if TYPE_CHECKING:
    from spark_kafka_sink.config.offset_specs import Selection

#: "earliest", "latest", a time, or an offset or a time for each partition.
Position: TypeAlias = "str | datetime | Mapping[TopicPartition | int, int | datetime]"
#: A position that was checked: an offset or a time for all partitions, or for each of some.
CheckedPosition: TypeAlias = "int | datetime | dict[TopicPartition, int | datetime]"

#: The numbers that stand for offsets, for a start as well as for an end.
STAND_INS: Final = (EARLIEST_OFFSET, LATEST_OFFSET)
_NAMED: Final = {"earliest": EARLIEST_OFFSET, "latest": LATEST_OFFSET}
_POSITION: Final = (
    '"earliest", "latest", a datetime, or a mapping of partitions to offsets or datetimes'
)


def consumer_config(
    servers: Any, settings: Any, by_keyword: Mapping[str, object]
) -> ConsumerConfig:
    """Return the configuration of the consumer; the keywords have underscores for dots."""
    expected = "a str of host:port, or several of them"
    if not isinstance(servers, str):
        _check_items("bootstrap_servers", servers, expected, str)
        servers = ",".join(servers)
    given: dict[str, object] = {"bootstrap.servers": servers}
    if settings is None:
        settings = {}
    elif not isinstance(settings, Mapping):
        raise ConfigError(
            f"settings must be a mapping of names to values, not {type(settings).__name__}"
        )
    for more in (settings, {name.replace("_", "."): value for name, value in by_keyword.items()}):
        for name in more:
            if name in given:
                raise ConfigError(f"{name} is given twice: remove one of them")
        given |= more
    return ConsumerConfig.from_mapping(given)


def selections(topic: Any) -> list[Selection]:
    """Return one selection for all topics, and one for all single partitions."""
    expected = "the name of a topic or a TopicPartition, or several of them"
    items = [topic] if isinstance(topic, str | TopicPartition) else topic
    _check_items("topic", items, expected, str, TopicPartition)
    if not items:
        raise ConfigError(f"topic is empty: it must be {expected}")
    seen = set()
    for item in items:
        if isinstance(item, TopicPartition):
            _check_partition("topic", item)
        else:
            _check_topic("topic", item)
        if item in seen:
            raise ConfigError(f"topic names {item} twice: remove one of them")
        seen.add(item)
    topics = tuple(item for item in items if isinstance(item, str))
    partitions = tuple(sorted(item for item in items if isinstance(item, TopicPartition)))
    selected: list[Selection] = []
    if topics:
        selected.append(Subscribe(topics))
    if partitions:
        selected.append(Assign(partitions))
    return selected


def checked_position(name: str, position: Any, selected: Collection[Selection]) -> CheckedPosition:
    """Return the start or the end of the read, by its name, with partitions as keys."""
    if isinstance(position, datetime):
        return _checked_time(name, position)
    if isinstance(position, str):
        if position not in _NAMED:
            raise ConfigError(f"{name} must be {_POSITION}, not {position!r}")
        return _NAMED[position]
    _check_type(name, position, _POSITION, Mapping)
    topics = _topics(selected)
    checked: dict[TopicPartition, int | datetime] = {}
    for key, value in position.items():
        partition = _checked_key(name, key, topics)
        if partition in checked:
            raise ConfigError(f"{name} names {partition} twice: remove one of them")
        checked[partition] = _checked_value(f"{name} of {partition}", value)
    return checked


def check_columns(columns: Any) -> None:
    """Raise TypeError unless the columns are None or names; whether they exist is not checked."""
    if columns is not None:
        _check_items("columns", columns, "a list of the names of columns", str)


def check_flag(name: str, flag: Any) -> None:
    """Raise TypeError unless the argument is a bool: a text such as "false" would mean true."""
    _check_type(name, flag, "a bool", bool)


def check_poll_timeout(poll_timeout: Any) -> None:
    """Raise TypeError or ConfigError unless it is a number of seconds greater than 0."""
    _check_type("poll_timeout", poll_timeout, "a number of seconds", int, float)
    if not poll_timeout > 0:
        raise ConfigError(f"poll_timeout must be greater than 0 seconds, not {poll_timeout}")


def _check_type(name: str, value: Any, expected: str, *types: type) -> None:
    """Raise TypeError unless a value has one of some types; a bool is not a number."""
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise TypeError(f"{name} must be {expected}, not {type(value).__name__}")


def _check_items(name: str, values: Any, expected: str, *types: type) -> None:
    """Raise TypeError unless there are several values, each of one of some types."""
    kind = type(values).__name__
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Collection):
        raise TypeError(f"{name} must be {expected}, not {kind}")
    for value in values:
        if not isinstance(value, types):
            raise TypeError(f"{name} must be {expected}, not {kind} with {type(value).__name__}")


def _check_topic(name: str, topic: Any) -> None:
    _check_type(f"{name}: the name of a topic", topic, "a str", str)
    if not is_topic_name(topic):
        raise ConfigError(
            f"{name}: {topic!r} is not a valid topic name: use up to 249 letters, digits, '.', "
            "'_' and '-'"
        )


def _check_partition(name: str, topic_partition: TopicPartition) -> None:
    _check_topic(name, topic_partition.topic)
    number = topic_partition.partition
    _check_type(f"{name}: the number of a partition", number, "an int", int)
    if not 0 <= number <= INT_MAX:
        raise ConfigError(f"{name}: the number of a partition must be 0 or more, not {number}")


def _topics(selected: Collection[Selection]) -> set[str]:
    topics: set[str] = set()
    for selection in selected:
        if isinstance(selection, Subscribe):
            topics.update(selection.topics)
        elif isinstance(selection, Assign):
            topics.update(partition.topic for partition in selection.partitions)
    return topics


def _checked_key(name: str, key: Any, topics: set[str]) -> TopicPartition:
    expected = "a TopicPartition, or the number of a partition"
    _check_type(f"a key of {name}", key, expected, TopicPartition, int)
    if isinstance(key, int) and len(topics) > 1:
        raise ConfigError(
            f"{name} must have TopicPartitions as keys, since several topics are read"
        )
    partition: TopicPartition = TopicPartition(min(topics), key) if isinstance(key, int) else key
    _check_partition(name, partition)
    return partition


def _checked_value(name: str, value: Any) -> int | datetime:
    if isinstance(value, datetime):
        return _checked_time(name, value)
    _check_type(name, value, f"{accepted_numbers(STAND_INS)}, or a datetime", int)
    offset: int = value
    if not EARLIEST_OFFSET <= offset <= LONG_MAX:
        raise ConfigError(f"{name} must be {accepted_numbers(STAND_INS)}, not {offset}")
    return offset


def _checked_time(name: str, time: datetime) -> datetime:
    if time.tzinfo is None:
        raise ConfigError(
            f"{name} must have a time zone, such as datetime(2026, 1, 1, tzinfo=timezone.utc)"
        )
    return time
