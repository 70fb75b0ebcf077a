"""CreatePartitions: adds partitions to existing topics (KIP-195).

Version 2 is flexible, 3 supports quotas (KIP-599).
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class CreatePartitionsAssignment:
    """The replicas of a new partition."""

    broker_ids: tuple[int, ...] = field(array(INT32))


@message
class CreatePartitionsTopic:
    """A topic and its new total of partitions."""

    name: str = field(STRING)
    count: int = field(INT32)
    #: One per new partition; None: the controller decides.
    assignments: tuple[CreatePartitionsAssignment, ...] | None = field(
        array(CreatePartitionsAssignment), nullable="0+"
    )


@message
class CreatePartitionsRequest(ApiRequest["CreatePartitionsResponse"]):
    """A request for the controller, which any broker forwards."""

    api_key = ApiKey.CREATE_PARTITIONS
    versions = VersionRange(0, 3)

    topics: tuple[CreatePartitionsTopic, ...] = field(array(CreatePartitionsTopic))
    timeout_ms: int = field(INT32)
    validate_only: bool = field(BOOL)


@message
class CreatePartitionsTopicResult:
    """The result for one topic."""

    name: str = field(STRING)
    error_code: int = field(INT16, default=0)
    error_message: str | None = field(STRING, nullable="0+", default=None)


@message
class CreatePartitionsResponse(ApiResponse, request=CreatePartitionsRequest):
    """A response with one result per topic."""

    throttle_time_ms: int = field(INT32, default=0)
    results: tuple[CreatePartitionsTopicResult, ...] = field(array(CreatePartitionsTopicResult))
