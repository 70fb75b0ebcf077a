"""DeleteTopics: deletes topics and all their records.

Version 4 is flexible, 5 adds error messages (KIP-599), 6 accepts ids as well as names (KIP-516).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.primitives import ZERO_UUID
from spark_kafka_sink.protocol.schema import (
    INT16,
    INT32,
    STRING,
    UUID,
    ApiRequest,
    ApiResponse,
    VersionRange,
    array,
    field,
    message,
)

if TYPE_CHECKING:
    import uuid


@message
class DeleteTopicState:
    """A topic, by name or by id."""

    name: str | None = field(STRING, versions="6+", nullable="6+", default=None)
    topic_id: uuid.UUID = field(UUID, versions="6+")


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
    topic_id: uuid.UUID = field(UUID, versions="6+", ignorable=True, default=ZERO_UUID)
    error_code: int = field(INT16, default=0)
    error_message: str | None = field(
        STRING, versions="5+", nullable="5+", ignorable=True, default=None
    )


@message
class DeleteTopicsResponse(ApiResponse):
    """A response with one result per topic."""

    api_key = ApiKey.DELETE_TOPICS
    versions = VersionRange(1, 6)

    throttle_time_ms: int = field(INT32, versions="1+", ignorable=True, default=0)
    responses: tuple[DeletableTopicResult, ...] = field(array(DeletableTopicResult))
