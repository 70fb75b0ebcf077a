"""DeleteTopics 1-6: deletes topics with their records and the offsets committed for them.

Topics are given by name, or from version 6 on by id. One that does not exist gets
UNKNOWN_TOPIC_OR_PARTITION or UNKNOWN_TOPIC_ID; one that occurs twice, or with both name and id, or
with neither, gets INVALID_REQUEST. All topics of a request are deleted with one write to disk; if
that fails, none is deleted and each gets KAFKA_STORAGE_ERROR. A request deletes at most
`request_max_partitions` partitions, but always at least one topic; the remaining topics get
POLICY_VIOLATION.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from spark_kafka_sink.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from spark_kafka_sink.devbroker.cluster.partition import Topic

_FIRST_VERSION_WITH_IDS = 6


@handles(DeleteTopicsRequest)
def delete_topics(context: RequestContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    """Delete each topic."""
    states = _requested_topics(context, request)
    topics = [_find(context, state) for state in states]
    times = Counter(topic.name for topic in topics if topic is not None)
    results: dict[DeleteTopicState, DeletableTopicResult] = {}
    doomed: dict[DeleteTopicState, Topic] = {}
    partitions = 0
    for state, topic in zip(states, topics, strict=True):
        try:
            known = _check(state, topic, times)
            partitions += len(known.partitions)
            if doomed:
                _check_size(context, partitions)
        except RefusedError as refused:
            results[state] = _failed(state, refused.error_code, refused.message)
        else:
            doomed[state] = known
            results[state] = DeletableTopicResult(
                name=known.name, topic_id=known.topic_id, error_code=ErrorCode.NONE
            )
    try:
        with context.cluster.change_topics() as changes:
            for known in doomed.values():
                changes.delete_topic(known)
    except RefusedError as refused:
        results |= {state: _failed(state, refused.error_code, refused.message) for state in doomed}
    return DeleteTopicsResponse(responses=tuple(results.values()))


def _requested_topics(
    context: RequestContext, request: DeleteTopicsRequest
) -> tuple[DeleteTopicState, ...]:
    if context.version >= _FIRST_VERSION_WITH_IDS:
        return request.topics
    return tuple(DeleteTopicState(name=name, topic_id=ZERO_UUID) for name in request.topic_names)


def _find(context: RequestContext, state: DeleteTopicState) -> Topic | None:
    if state.name is not None:
        return context.cluster.topic(state.name)
    return context.cluster.topic_by_id(state.topic_id)


def _check(state: DeleteTopicState, topic: Topic | None, times: Counter[str]) -> Topic:
    """Return the requested topic, or raise RefusedError."""
    has_name, has_id = state.name is not None, state.topic_id != ZERO_UUID
    if has_name and has_id:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "a topic needs a name or an id, not both")
    if not has_name and not has_id:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "a topic needs a name or an id")
    if topic is None:
        raise RefusedError(
            ErrorCode.UNKNOWN_TOPIC_ID if has_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"topic {state.topic_id if has_id else state.name} does not exist",
        )
    if times[topic.name] > 1:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST, "the request contains the topic more than once"
        )
    return topic


def _check_size(context: RequestContext, partitions: int) -> None:
    most = context.settings.request_max_partitions
    if partitions > most:
        raise RefusedError(
            ErrorCode.POLICY_VIOLATION,
            f"the request would delete {partitions} partitions, but at most {most} are allowed: "
            "delete the other topics with another request",
        )


def _failed(state: DeleteTopicState, error_code: ErrorCode, message: str) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=state.name,
        topic_id=state.topic_id,
        error_code=error_code,
        error_message=message,
    )
