"""CreatePartitions 0-3: more partitions for topics that exist.

INVALID_PARTITIONS for a number that is not above the present one, INVALID_REPLICA_ASSIGNMENT for
assignments that do not fit (brokers that run, as many as each partition has), INVALID_REQUEST for a
topic that is named twice. `validate_only` answers the same and creates nothing.
"""

# ruff: noqa: ARG002 - every handler has the signatures of Handler

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.handlers.create_topics import (
    MAX_RECORDS_PER_REQUEST,
    check_replicas,
)
from spark_kafka_sink.devbroker.handlers.handler import Handler, RequestContext
from spark_kafka_sink.devbroker.refusal import RefusedError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)

if TYPE_CHECKING:
    from spark_kafka_sink.protocol.messages.create_partitions import CreatePartitionsTopic


class CreatePartitionsHandler(Handler[CreatePartitionsRequest, CreatePartitionsResponse]):
    """Adds partitions."""

    api_key = ApiKey.CREATE_PARTITIONS
    versions = CreatePartitionsRequest.versions

    def handle(
        self, context: RequestContext, request: CreatePartitionsRequest
    ) -> CreatePartitionsResponse:
        """Add partitions to each topic."""
        times = Counter(topic.name for topic in request.topics)
        results = [
            _create(context, topic, validate_only=request.validate_only)
            for topic in request.topics
            if times[topic.name] == 1
        ]
        results.extend(
            _result(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            for name, count in times.items()
            if count > 1
        )
        return CreatePartitionsResponse(results=tuple(results))

    def error_response(
        self,
        context: RequestContext,
        request: CreatePartitionsRequest,
        error_code: ErrorCode,
        message: str,
    ) -> CreatePartitionsResponse:
        """Answer that no partition was added."""
        return CreatePartitionsResponse(
            results=tuple(_result(topic.name, error_code, message) for topic in request.topics)
        )


def _create(
    context: RequestContext, asked: CreatePartitionsTopic, *, validate_only: bool
) -> CreatePartitionsTopicResult:
    try:
        assignments = _check(context, asked)
        if not validate_only:
            context.cluster.add_partitions(asked.name, asked.count, assignments)
    except RefusedError as refused:
        return _result(asked.name, refused.error_code, refused.message)
    return _result(asked.name, ErrorCode.NONE, None)


def _check(context: RequestContext, asked: CreatePartitionsTopic) -> list[tuple[int, ...]] | None:
    """Return the brokers for the new partitions, None where any will do."""
    topic = context.cluster.topic(asked.name)
    if topic is None:
        raise RefusedError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {asked.name!r}"
        )
    present = len(topic.partitions)
    if asked.count <= present:
        raise RefusedError(
            ErrorCode.INVALID_PARTITIONS,
            f"the topic has {present} partition(s), {asked.count} are not more",
        )
    if asked.count - present > MAX_RECORDS_PER_REQUEST:
        raise RefusedError(
            ErrorCode.POLICY_VIOLATION,
            f"{asked.count - present} partitions are more than one request may create",
        )
    if asked.assignments is None:
        return None
    if len(asked.assignments) != asked.count - present:
        raise RefusedError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{len(asked.assignments)} assignments for {asked.count - present} new partition(s)",
        )
    assignments = [tuple(assignment.broker_ids) for assignment in asked.assignments]
    check_replicas(context, assignments, topic.replication_factor)
    return assignments


def _result(name: str, error_code: ErrorCode, message: str | None) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(name=name, error_code=error_code, error_message=message)
