"""The partitions that a selection covers, read from metadata responses.

Internal topics never match a pattern, as in Spark's source, whose Admin.listTopics leaves them out;
a topic that is named may be internal.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from spark_kafka_sink.config.config_def import nearest_names
from spark_kafka_sink.config.source.offset_specs import Assign, Subscribe, SubscribePattern
from spark_kafka_sink.display import counted
from spark_kafka_sink.errors import BrokerError, ConfigError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode, broker_error, is_retriable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from spark_kafka_sink.config.source.offset_specs import Selection
    from spark_kafka_sink.protocol.messages.metadata import (
        MetadataResponse,
        MetadataResponseTopic,
    )

#: The most existing names that an error about a missing topic suggests.
_MOST_NAMES: Final = 3


class TopicAnswers(NamedTuple):
    """What a metadata response says about topics."""

    topics: tuple[MetadataResponseTopic, ...]
    #: The first topic that does not exist, as far as the broker knows.
    missing: str | None
    #: An error that may be over soon.
    retriable: BrokerError | None


def wanted_topics(selection: Selection) -> tuple[str, ...] | None:
    """Return the topics to request; None for all of them."""
    match selection:
        case Subscribe(topics):
            return topics
        case Assign(partitions):
            return tuple(dict.fromkeys(partition.topic for partition in partitions))
        case SubscribePattern():
            return None


def read_topics(
    response: MetadataResponse, names: Iterable[str] | None, *, includes_internal: bool = False
) -> TopicAnswers:
    """Return the topics of a response; without `names` those that exist.

    Internal topics are among those only with `includes_internal`.

    Raises BrokerError if this client may not read one of the named topics.
    """
    answered = {topic.name: topic for topic in response.topics if topic.name is not None}
    if names is None:
        listed = tuple(
            topic
            for topic in answered.values()
            if (includes_internal or not topic.is_internal)
            and not topic.error_code
            and topic.partitions
        )
        return TopicAnswers(listed, None, None)
    found: list[MetadataResponseTopic] = []
    missing: str | None = None
    retriable: BrokerError | None = None
    for name in names:
        topic = answered.get(name)
        if topic is None or topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            missing = missing or name
        elif topic.error_code:
            error = _topic_error(name, topic.error_code)
            if not is_retriable(topic.error_code):
                raise error
            retriable = retriable or error
        else:
            found.append(topic)
    return TopicAnswers(tuple(found), missing, retriable)


def _topic_error(name: str, code: int) -> BrokerError:
    advice = None
    if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        advice = "Grant this user DESCRIBE and READ on the topic"
    return broker_error(code, f"topic {name!r} cannot be read", advice)


def selected_partitions(
    selection: Selection,
    topics: Sequence[MetadataResponseTopic],
    *,
    skips_missing: bool = False,
) -> tuple[TopicPartition, ...]:
    """Return the partitions of a selection, sorted; with `skips_missing`, those that exist.

    Raises BrokerError for a partition that does not exist, ConfigError for a pattern that is not
    valid.
    """
    partitions = sorted(
        TopicPartition(topic.name or "", partition.partition_index)
        for topic in topics
        for partition in topic.partitions
    )
    if isinstance(selection, SubscribePattern):
        try:
            pattern = re.compile(selection.pattern)
        except re.error as error:
            raise ConfigError(f"the pattern {selection.pattern!r} is not valid: {error}") from None
        return tuple(each for each in partitions if pattern.search(each.topic))
    if isinstance(selection, Assign):
        wanted = set(selection.partitions)
        unknown = sorted(wanted.difference(partitions))
        if unknown and not skips_missing:
            raise missing_partition(
                unknown[0], sum(p.topic == unknown[0].topic for p in partitions)
            )
        return tuple(sorted(wanted.intersection(partitions)))
    return tuple(partitions)


def missing_partition(topic_partition: TopicPartition, count: int) -> BrokerError:
    """Return the error for a partition that its topic does not have."""
    return broker_error(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"{topic_partition} does not exist: topic {topic_partition.topic!r} has "
        f"{counted(count, 'partition')}, numbered from 0",
    )


def missing_topic(name: str, existing: Iterable[str]) -> BrokerError:
    """Return the error for a topic that does not exist; it suggests similar names."""
    names = ", ".join(map(repr, nearest_names(name, existing, most=_MOST_NAMES)))
    similar = f"similar names: {names}" if names else "no topic that this user sees is similar"
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return BrokerError(
        f"topic {name!r} does not exist; {similar}. Check the name, and that this user may "
        "describe the topic",
        code=code,
        name=code.name,
    )
