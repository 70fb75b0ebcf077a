"""Commits of a stream's source offsets to a consumer group, so that lag monitors see its progress.

Offsets are committed after the micro-batch is written. Spark itself relies on its checkpoint and
never reads the group, so a failed commit is only a warning, and the next micro-batch makes up for
it. A replayed batch commits its offsets again, which changes nothing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.errors import BrokerError, KafkaError
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.spark.source_offsets import read_source_offsets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_kafka_sink.config.sink_options import SinkOptions
    from spark_kafka_sink.model import TopicPartition

logger = logging.getLogger(__name__)

#: The option of the sink that names the group.
_OPTION: Final = "sourceConsumerGroup"
_UNKNOWN_TOPIC: Final = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.name
#: Advice for broker errors, by name.
_ADVICE: Final = {
    ErrorCode.UNKNOWN_MEMBER_ID.name: (
        "the group has active members, and Kafka accepts offsets only from them: use a group that "
        "no consumer joins"
    ),
    _UNKNOWN_TOPIC: "{option} requires the stream to read from the cluster that it writes to",
    ErrorCode.GROUP_AUTHORIZATION_FAILED.name: "{option} requires READ on the group",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED.name: (
        "{option} requires READ on the topics of the source"
    ),
}
#: Errors that concern a single topic.
_OF_A_TOPIC: Final = frozenset(
    {
        _UNKNOWN_TOPIC,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED.name,
    }
)


def commit_source_offsets(options: SinkOptions, batch_id: int) -> None:
    """Commit a micro-batch's source offsets to the group, if one is set; a failure is logged."""
    group_id = options.source_consumer_group
    if group_id is None:
        return
    try:
        offsets = read_source_offsets(options.checkpoint_location, batch_id)
        refused = _commit(options, group_id, offsets)
    except KafkaError as error:
        _warn(group_id, batch_id, _with_advice(error, _OPTION))
        return
    causes = refusals_text(refused, _OPTION)
    if causes:
        _warn(group_id, batch_id, causes)


def refusals_text(refused: Mapping[TopicPartition, KafkaError], option: str) -> str:
    """Return why offsets were refused, and what to do; empty if none was.

    `option` is the one that names the group.
    """
    # One error of each kind: brokers reject whole topics or the whole request.
    causes: dict[tuple[str, ...], KafkaError] = {}
    for topic_partition, refusal in sorted(refused.items()):
        name = refusal.name if isinstance(refusal, BrokerError) else str(refusal)
        topic = (topic_partition.topic,) if name in _OF_A_TOPIC else ()
        causes.setdefault((name, *topic), refusal)
    return "; ".join(_with_advice(cause, option) for cause in causes.values())


def _commit(
    options: SinkOptions, group_id: str, offsets: Mapping[TopicPartition, int]
) -> Mapping[TopicPartition, BrokerError]:
    from spark_kafka_sink.admin.driver_client import DriverClient

    with DriverClient(options.producer) as admin:
        timeout = options.producer.request_timeout_ms / 1000
        return admin.commit_group_offsets(group_id, offsets, timeout=timeout)


def _with_advice(error: KafkaError, option: str) -> str:
    name = error.name if isinstance(error, BrokerError) else None
    if name is None or name not in _ADVICE or (name == _UNKNOWN_TOPIC and option != _OPTION):
        return str(error)
    return f"{error}: {_ADVICE[name].format(option=option)}"


def _warn(group_id: str, batch_id: int, cause: str) -> None:
    logger.warning(
        "batch %d was written, but not all of its source offsets were committed to "
        "sourceConsumerGroup %r; the next batch will make up for it: %s",
        batch_id,
        group_id,
        cause,
    )
