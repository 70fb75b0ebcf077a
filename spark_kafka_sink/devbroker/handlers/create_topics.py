"""CreateTopics 2-7: creates topics.

Each topic is created or rejected on its own:

- INVALID_TOPIC_EXCEPTION, TOPIC_ALREADY_EXISTS: its name.
- INVALID_REQUEST: it occurs twice in the request.
- INVALID_PARTITIONS: the number of partitions.
- INVALID_REPLICATION_FACTOR: -1 is the default; there must be enough brokers.
- INVALID_REPLICA_ASSIGNMENT: the manual assignment.
- INVALID_CONFIG: the settings; see `topic_config` for the supported ones.

A request that creates more than `request_max_partitions` partitions gets POLICY_VIOLATION. With
`validate_only` the response is the same but nothing is created. All topics of a request are written
to disk at once; if that fails, none is created and each gets KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

import uuid
from collections import Counter
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.create_topics import (
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
    from spark_kafka_sink.devbroker.cluster.topic_changes import TopicChanges
    from spark_kafka_sink.protocol.messages.create_topics import (
        CreatableReplicaAssignment,
        CreatableTopic,
    )

#: The number of partitions or replicas that requests the default.
_UNSET = -1
#: Values of Kafka's ConfigSource: where a setting's value comes from.
_TOPIC_CONFIG_SOURCE = 1
_DEFAULT_CONFIG_SOURCE = 5


@handles(CreateTopicsRequest)
def create_topics(context: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
    """Create each topic that passes the checks."""
    times = Counter(topic.name for topic in request.topics)
    topics = [topic for topic in request.topics if times[topic.name] == 1]
    _check_size(context, topics)
    results: list[CreatableTopicResult] = []
    try:
        with context.cluster.change_topics() as changes:
            results += [
                _create(context, changes, topic, validate_only=request.validate_only)
                for topic in topics
            ]
    except RefusedError as refused:
        results = [
            _refused_topic(result.name, refused.error_code, refused.message)
            if result.error_code == ErrorCode.NONE
            else result
            for result in results
        ]
    results.extend(
        _refused_topic(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        for name, count in times.items()
        if count > 1
    )
    return CreateTopicsResponse(topics=tuple(results))


def _check_size(context: RequestContext, topics: Sequence[CreatableTopic]) -> None:
    partitions = sum(
        len(topic.assignments)
        or (
            context.settings.num_partitions
            if topic.num_partitions == _UNSET
            else max(0, topic.num_partitions)
        )
        for topic in topics
    )
    check_new_partitions(context, partitions)


def check_new_partitions(context: RequestContext, count: int) -> None:
    """Raise RefusedError with POLICY_VIOLATION for more partitions than a request may create."""
    most = context.settings.request_max_partitions
    if count > most:
        raise RefusedError(
            ErrorCode.POLICY_VIOLATION,
            f"the request would create {count} partitions, but at most {most} are allowed",
        )


def _create(
    context: RequestContext, changes: TopicChanges, topic: CreatableTopic, *, validate_only: bool
) -> CreatableTopicResult:
    try:
        changes.check_new_topic_name(topic.name)
        config = _config(context, topic)
        partitions, replication_factor = _size(context, changes, topic)
        if validate_only:
            topic_id = uuid.uuid4()
        else:
            topic_id = changes.create_topic(
                topic.name,
                partitions=partitions,
                config=config,
                overrides={entry.name: entry.value or "" for entry in topic.configs},
                replication_factor=replication_factor,
                assignments=_assignments(topic),
            ).topic_id
    except RefusedError as refused:
        return _refused_topic(topic.name, refused.error_code, refused.message)
    set_by_client = {entry.name for entry in topic.configs}
    return CreatableTopicResult(
        name=topic.name,
        topic_id=topic_id,
        error_code=ErrorCode.NONE,
        error_message=None,
        num_partitions=partitions,
        replication_factor=replication_factor,
        configs=tuple(
            CreatableTopicConfigs(
                name=name,
                value=value,
                read_only=False,
                config_source=(
                    _TOPIC_CONFIG_SOURCE if name in set_by_client else _DEFAULT_CONFIG_SOURCE
                ),
                is_sensitive=False,
            )
            for name, value in config.effective_values().items()
        ),
    )


def _config(context: RequestContext, topic: CreatableTopic) -> TopicConfig:
    values: dict[str, str] = {}
    nulls: list[str] = []
    for entry in topic.configs:
        if entry.value is None:
            nulls.append(entry.name)
        else:
            values[entry.name] = entry.value
    if nulls:
        raise RefusedError(
            ErrorCode.INVALID_CONFIG,
            f"Null value not supported for topic configs: {','.join(nulls)}",
        )
    return context.settings.topic_defaults.with_values(values)


def _size(context: RequestContext, changes: TopicChanges, topic: CreatableTopic) -> tuple[int, int]:
    """Return the numbers of partitions and replicas.

    Checks in the order of ReplicationControlManager.createTopic. Raises RefusedError.
    """
    if topic.assignments:
        if topic.replication_factor != _UNSET or topic.num_partitions != _UNSET:
            raise RefusedError(
                ErrorCode.INVALID_REQUEST,
                "A manual partition assignment was specified, but replication factor and "
                "numPartitions were not both set to -1.",
            )
        replication_factor = _check_assignments(context, topic.assignments)
        return len(topic.assignments), replication_factor
    if topic.replication_factor < _UNSET or topic.replication_factor == 0:
        raise RefusedError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if topic.num_partitions < _UNSET or topic.num_partitions == 0:
        raise RefusedError(
            ErrorCode.INVALID_PARTITIONS,
            "Number of partitions was set to an invalid non-positive value.",
        )
    settings = context.settings
    replication_factor = topic.replication_factor
    if replication_factor == _UNSET:
        replication_factor = settings.default_replication_factor
    changes.check_replication_factor(replication_factor)
    partitions = topic.num_partitions
    return settings.num_partitions if partitions == _UNSET else partitions, replication_factor


def _assignments(topic: CreatableTopic) -> list[tuple[int, ...]] | None:
    if not topic.assignments:
        return None
    in_order = sorted(topic.assignments, key=lambda assignment: assignment.partition_index)
    return [tuple(assignment.broker_ids) for assignment in in_order]


def _check_assignments(
    context: RequestContext, assignments: Sequence[CreatableReplicaAssignment]
) -> int:
    """Check a manual assignment and return its number of replicas."""
    indexes = {assignment.partition_index for assignment in assignments}
    if len(indexes) < len(assignments):
        problem = "a partition is assigned more than once"
    elif indexes != set(range(len(assignments))):
        problem = "partitions should be a consecutive 0-based integer sequence"
    else:
        return check_replicas(context, [assignment.broker_ids for assignment in assignments])
    raise RefusedError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)


def check_replicas(
    context: RequestContext,
    assignments: Sequence[Sequence[int]],
    replication_factor: int | None = None,
) -> int:
    """Return the number of replicas, which must be the same for each partition.

    Raises RefusedError with INVALID_REPLICA_ASSIGNMENT (validateManualPartitionAssignment).
    """
    for replicas in assignments:
        if replication_factor is None:
            replication_factor = len(replicas)
        if not replicas:
            problem = "the manual partition assignment has an empty replica list"
        elif len(set(replicas)) < len(replicas):
            problem = f"the manual partition assignment has duplicates: {list(replicas)}"
        elif not context.cluster.broker_ids >= set(replicas):
            problem = f"not all of brokers {list(replicas)} exist"
        elif context.cluster.nodes.keys().isdisjoint(replicas):
            problem = f"none of brokers {list(replicas)} is running"
        elif len(replicas) != replication_factor:
            problem = (
                f"{list(replicas)} must be {replication_factor} replica(s), as for other partitions"
            )
        else:
            continue
        raise RefusedError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)
    return replication_factor or 0


def _refused_topic(name: str, error_code: ErrorCode, message: str) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=error_code, error_message=message)
