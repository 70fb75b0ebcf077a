"""Which partitions a read covers, by its options: exactly one of `SELECTIONS`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.config.source.offset_specs import (
    Assign,
    Selection,
    Subscribe,
    SubscribePattern,
)
from spark_kafka_sink.config.source.partition_json import (
    PartitionJsonError,
    parse_partitions,
    shown,
)
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.model import is_topic_name

if TYPE_CHECKING:
    from collections.abc import Mapping

SELECTIONS: Final = ("subscribe", "subscribePattern", "assign")


def selection(values: Mapping[str, Any]) -> Selection:
    """Return the selection that one of the parsed options describes.

    Raises ConfigError if there is none or more than one, or if it is malformed or empty.
    """
    given = [name for name in SELECTIONS if values[name] is not None]
    if not given:
        raise ConfigError(
            "one of subscribe, subscribePattern and assign is required: set subscribe to the topic"
        )
    if len(given) > 1:
        raise ConfigError(f"{given[0]} and {given[1]} exclude each other: set only one of them")
    text = values[given[0]]
    match given[0]:
        case "subscribe":
            return Subscribe(_topics(text))
        case "subscribePattern":
            return SubscribePattern(_pattern(text))
        case _:
            return _assign(text)


def _topics(text: str) -> tuple[str, ...]:
    topics = tuple(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))
    if not topics:
        raise ConfigError("subscribe contains no topic: set it to a topic, or several")
    for topic in topics:
        if not is_topic_name(topic):
            raise ConfigError(
                f"subscribe: {topic!r} is not a valid topic name: use up to 249 letters, digits, "
                "'.', '_' and '-'; for a regular expression, set subscribePattern"
            )
    return topics


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError(
            f"subscribePattern {text!r} is not a valid regular expression in Python: {error}"
        ) from None
    return text


def _assign(text: str) -> Assign:
    try:
        partitions = parse_partitions(text)
    except PartitionJsonError as error:
        raise ConfigError(
            f'assign {error}: write JSON such as {{"topicA": [0, 1]}}, not {shown(text)}'
        ) from None
    if not partitions:
        raise ConfigError(f"assign names no partition: {text!r}")
    return Assign(partitions)
