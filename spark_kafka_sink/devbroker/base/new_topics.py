"""How many partitions and replicas a new topic gets, as ReplicationControlManager.createTopic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.topic_names import (
    COORDINATOR_PARTITIONS,
    TRANSACTION_STATE_TOPIC,
)
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

_UNSET: Final = -1
_COORDINATOR_REPLICAS: Final = 3


def check_assigned_by_hand(topic: CreatableTopic) -> None:
    """Raise RefusedError with INVALID_REQUEST if a topic with assignments also has counts."""
    if topic.replication_factor != _UNSET or topic.num_partitions != _UNSET:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but replication factor and "
            "numPartitions were not both set to -1.",
        )


def partitions_and_replicas(
    topic: CreatableTopic, *, num_partitions: int, default_replication_factor: int
) -> tuple[int, int]:
    """Return the numbers of partitions and replicas of a topic without assignments.

    The keywords are the settings of these names, for a topic that leaves them open. Raises
    RefusedError with INVALID_REPLICATION_FACTOR or INVALID_PARTITIONS.
    """
    partitions, replicas = topic.num_partitions, topic.replication_factor
    if replicas < _UNSET or replicas == 0:
        raise RefusedError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if partitions < _UNSET or partitions == 0:
        raise RefusedError(
            ErrorCode.INVALID_PARTITIONS,
            "Number of partitions was set to an invalid non-positive value.",
        )
    return (
        num_partitions if partitions == _UNSET else partitions,
        default_replication_factor if replicas == _UNSET else replicas,
    )


def new_topics(names: Iterable[str]) -> CreateTopicsRequest:
    """Return the request for topics with the brokers' defaults."""
    return CreateTopicsRequest(
        topics=tuple(
            CreatableTopic(
                name=name, num_partitions=_UNSET, replication_factor=_UNSET, assignments=()
            )
            for name in names
        )
    )


def coordinator_topic(name: str, brokers: int) -> CreateTopicsRequest:
    """Return the request for an internal topic whose partition leaders are coordinators.

    It has three replicas if there are as many brokers, as offsets.topic.replication.factor and
    transaction.state.log.replication.factor say.
    """
    replicas = min(_COORDINATOR_REPLICAS, brokers)
    configs = {"cleanup.policy": "compact", "segment.bytes": str(100 * 1024**2)}
    if name == TRANSACTION_STATE_TOPIC and replicas == _COORDINATOR_REPLICAS:
        # transaction.state.log.min.isr
        configs["min.insync.replicas"] = "2"
    return CreateTopicsRequest(
        topics=(
            CreatableTopic(
                name=name,
                num_partitions=COORDINATOR_PARTITIONS,
                replication_factor=replicas,
                assignments=(),
                configs=tuple(
                    CreatableTopicConfig(name=key, value=value) for key, value in configs.items()
                ),
            ),
        )
    )
