"""CreatePartitions 0-3: adds partitions to existing topics.

- INVALID_PARTITIONS: the new count is not larger than the current one.
- INVALID_REPLICA_ASSIGNMENT: there is not one assignment for each new partition, or one does not
  name as many brokers as the topic has replicas, and one of them must be running.
- INVALID_REQUEST: a topic occurs twice.
- POLICY_VIOLATION: the request adds more than `request_max_partitions` partitions.

With `validate_only` the response is the same but nothing is created. All partitions of a request
are written to disk at once; if that fails, none is created and each topic gets KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.handlers.create_topics import check_new_partitions, check_replicas
from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)

if TYPE_CHECKING:
    from spark_kafka_sink.devbroker.cluster.partition import Topic
    from spark_kafka_sink.devbroker.cluster.topic_changes import TopicChanges
    from spark_kafka_sink.protocol.messages.create_partitions import CreatePartitionsTopic


@handles(CreatePartitionsRequest)
def create_partitions(
    context: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    """Add partitions to each topic."""
    _check_size(context, request)
    times = Counter(topic.name for topic in request.topics)
    results: list[CreatePartitionsTopicResult] = []
    try:
        with context.cluster.change_topics() as changes:
            results += [
                _create(context, changes, topic, validate_only=request.validate_only)
                for topic in request.topics
                if times[topic.name] == 1
            ]
    except RefusedError as refused:
        results = [
            _result(result.name, refused.error_code, refused.message)
            if result.error_code == ErrorCode.NONE
            else result
            for result in results
        ]
    results.extend(
        _result(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        for name, count in times.items()
        if count > 1
    )
    return CreatePartitionsResponse(results=tuple(results))


def _create(
    context: RequestContext,
    changes: TopicChanges,
    requested: CreatePartitionsTopic,
    *,
    validate_only: bool,
) -> CreatePartitionsTopicResult:
    try:
        topic, assignments = _check(context, requested)
        if not validate_only:
            changes.add_partitions(topic, requested.count, assignments)
    except RefusedError as refused:
        return _result(requested.name, refused.error_code, refused.message)
    return _result(requested.name, ErrorCode.NONE, None)


def _check_size(context: RequestContext, request: CreatePartitionsRequest) -> None:
    known = ((requested, context.cluster.topic(requested.name)) for requested in request.topics)
    new = sum(
        max(0, requested.count - len(topic.partitions))
        for requested, topic in known
        if topic is not None
    )
    check_new_partitions(context, new)


def _check(
    context: RequestContext, requested: CreatePartitionsTopic
) -> tuple[Topic, list[tuple[int, ...]] | None]:
    """Return the topic and the new partitions' brokers; None leaves the assignment to the broker.

    Raises RefusedError.
    """
    topic = context.cluster.topic(requested.name)
    if topic is None:
        raise RefusedError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {requested.name!r} does not exist"
        )
    present = len(topic.partitions)
    if requested.count <= present:
        raise RefusedError(
            ErrorCode.INVALID_PARTITIONS,
            f"the topic has {present} partition(s); {requested.count} would not be an increase",
        )
    if requested.assignments is None:
        return topic, None
    if len(requested.assignments) != requested.count - present:
        raise RefusedError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"the request has {len(requested.assignments)} assignments for "
            f"{requested.count - present} new partition(s)",
        )
    assignments = [tuple(assignment.broker_ids) for assignment in requested.assignments]
    check_replicas(context, assignments, topic.replication_factor)
    return topic, assignments


def _result(name: str, error_code: ErrorCode, message: str | None) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(name=name, error_code=error_code, error_message=message)
