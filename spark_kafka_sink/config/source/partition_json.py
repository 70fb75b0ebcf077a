"""The JSON in which users name partitions, and an offset or a timestamp for each.

`{"topic": [0, 1]}` names partitions, `{"topic": {"0": 23, "1": -1}}` has a number for each. Numbers
are integers, as Spark's own source requires. A word may stand for a number of all partitions of a
topic, as in `{"topic": "earliest"}` (SPARK-58774). A name that occurs twice is an error; Spark
takes the last one.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.config.config_def import INT_MAX, LONG_MAX
from spark_kafka_sink.model import TopicPartition, is_topic_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_PARTITION: Final = re.compile(r"[0-9]{1,10}")
_SHOWN_CHARACTERS: Final = 200


class PartitionJsonError(Exception):
    """The JSON is wrong; the message says how, as the end of a sentence."""


def shown(text: str) -> str:
    """Return the text for an error, with its end cut off if it is long."""
    return repr(text) if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]!r}..."


def parse_partitions(text: str) -> tuple[TopicPartition, ...]:
    """Return the partitions, sorted; raise PartitionJsonError if it is wrong."""
    named = list(_partitions(_parse(text)))
    if len(set(named)) < len(named):
        raise PartitionJsonError("names a partition twice")
    return tuple(sorted(named))


def parse_numbers(text: str, lowest: int, wanted: str) -> dict[TopicPartition, int]:
    """Return the number of each partition, sorted; raise PartitionJsonError if it is wrong.

    No number may be less than `lowest`. `wanted` says in errors what a number must be.
    """
    numbers, _ = parse_numbers_and_words(text, lowest, wanted, {})
    return numbers


def parse_numbers_and_words(
    text: str, lowest: int, wanted: str, words: Mapping[str, int]
) -> tuple[dict[TopicPartition, int], dict[str, int]]:
    """Return the number of each partition, and those of whole topics, which are given as words.

    Otherwise it is as `parse_numbers`. `words` has the words in lower case with their numbers.
    """
    numbers = {}
    of_topics = {}
    for topic, by_partition in _parse(text).items():
        if isinstance(by_partition, str) and by_partition.lower() in words:
            of_topics[topic] = words[by_partition.lower()]
            continue
        if not isinstance(by_partition, dict):
            raise PartitionJsonError(f"has no object of partitions{_or(words)} for topic {topic!r}")
        for name, number in by_partition.items():
            partition = _partition(topic, int(name) if _PARTITION.fullmatch(name) else name)
            if type(number) is not int or not lowest <= number <= LONG_MAX:
                raise PartitionJsonError(f"has {number!r} for {partition}, which must be {wanted}")
            if partition in numbers:
                raise PartitionJsonError(f"names {partition} twice")
            numbers[partition] = number
    return dict(sorted(numbers.items())), of_topics


def _or(words: Iterable[str]) -> str:
    return "".join(f" or {word}" for word in words)


def _partitions(topics: dict[str, Any]) -> Iterator[TopicPartition]:
    for topic, numbers in topics.items():
        if not isinstance(numbers, list):
            raise PartitionJsonError(f"has no list of partitions for topic {topic!r}")
        for number in numbers:
            yield _partition(topic, number)


def _partition(topic: str, number: object) -> TopicPartition:
    if type(number) is not int or not 0 <= number <= INT_MAX:
        raise PartitionJsonError(f"has {number!r} as a partition of topic {topic!r}")
    return TopicPartition(topic, number)


def _parse(text: str) -> dict[str, Any]:
    try:
        topics = json.loads(text, object_pairs_hook=_without_duplicates)
    except json.JSONDecodeError as error:
        raise PartitionJsonError(f"is not JSON ({error})") from None
    except (ValueError, RecursionError):
        # Too many digits, or too many brackets.
        raise PartitionJsonError("is not JSON") from None
    if not isinstance(topics, dict):
        raise PartitionJsonError("is not an object of topics")
    for topic in topics:
        if not is_topic_name(topic):
            raise PartitionJsonError(f"has {topic!r}, which is not a valid topic name")
    return topics


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise PartitionJsonError(f"names {name!r} twice")
        values[name] = value
    return values
