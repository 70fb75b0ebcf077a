"""CreatePartitions: more partitions for topics that exist (KIP-195).

2 is flexible, 3 knows quotas (KIP-599).
"""

from __future__ import annotations

from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.schema import (
    BOOL,
    INT16,
    INT32,
    STRING,
    ApiMessage,
    VersionRange,
    array,
    field,
    message,
)


@message
class CreatePartitionsAssignment:
    """The brokers of a new partition."""

    broker_ids: tuple[int, ...] = field(array(INT32))


@message
class CreatePartitionsTopic:
    """A topic, and how many partitions it is to have."""

    name: str = field(STRING)
    count: int = field(INT32)
    #: One per new partition; None: as the controller likes.
    assignments: tuple[CreatePartitionsAssignment, ...] | None = field(
        array(CreatePartitionsAssignment), nullable="0+"
    )


@message
class CreatePartitionsRequest(ApiMessage):
    """Asks the controller, through any broker."""

    api_key = ApiKey.CREATE_PARTITIONS
    versions = VersionRange(0, 3)

    topics: tuple[CreatePartitionsTopic, ...] = field(array(CreatePartitionsTopic))
    timeout_ms: int = field(INT32)
    validate_only: bool = field(BOOL)


@message
class CreatePartitionsTopicResult:
    """What became of one topic."""

    name: str = field(STRING)
    error_code: int = field(INT16, default=0)
    error_message: str | None = field(STRING, nullable="0+", default=None)


@message
class CreatePartitionsResponse(ApiMessage):
    """One answer per topic."""

    api_key = ApiKey.CREATE_PARTITIONS
    versions = VersionRange(0, 3)

    throttle_time_ms: int = field(INT32, default=0)
    results: tuple[CreatePartitionsTopicResult, ...] = field(array(CreatePartitionsTopicResult))
