"""DeleteTopics: deletes topics and all their records.

Version 4 is flexible, 5 adds error messages (KIP-599), 6 accepts ids as well as names (KIP-516).
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class DeleteTopicState:
    """A topic, by name or by id."""

    name: str | None = field(STRING, versions="6+", nullable="6+", default=None)
    topic_id: Uuid = field(UUID, versions="6+")


@message
class DeleteTopicsRequest(ApiRequest["DeleteTopicsResponse"]):
    """A request for the controller, which any broker forwards."""

    api_key = ApiKey.DELETE_TOPICS
    versions = VersionRange(1, 6)

    topics: tuple[DeleteTopicState, ...] = field(array(DeleteTopicState), versions="6+", default=())
    topic_names: tuple[str, ...] = field(array(STRING), versions="0-5", ignorable=True, default=())
    timeout_ms: int = field(INT32)


@message
class DeletableTopicResult:
    """The result for one topic."""

    name: str | None = field(STRING, nullable="6+")
    topic_id: Uuid = field(UUID, versions="6+", ignorable=True, default=ZERO_UUID)
    error_code: int = field(INT16, default=0)
    error_message: str | None = field(
        STRING, versions="5+", nullable="5+", ignorable=True, default=None
    )


@message
class DeleteTopicsResponse(ApiResponse, request=DeleteTopicsRequest):
    """A response with one result per topic."""

    throttle_time_ms: int = field(INT32, versions="1+", ignorable=True, default=0)
    responses: tuple[DeletableTopicResult, ...] = field(array(DeletableTopicResult))
