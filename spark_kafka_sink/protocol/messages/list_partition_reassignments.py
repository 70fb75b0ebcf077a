"""ListPartitionReassignments: the partitions that are moving to other brokers (KIP-455)."""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class ListPartitionReassignmentsTopics:
    """Partitions of one topic."""

    name: str = field(STRING)
    partition_indexes: tuple[int, ...] = field(array(INT32))


@message
class ListPartitionReassignmentsRequest(ApiRequest["ListPartitionReassignmentsResponse"]):
    """A request for the controller, which any broker forwards."""

    api_key = ApiKey.LIST_PARTITION_REASSIGNMENTS
    versions = VersionRange(0, 0)

    timeout_ms: int = field(INT32, default=60000)
    #: None: all topics.
    topics: tuple[ListPartitionReassignmentsTopics, ...] | None = field(
        array(ListPartitionReassignmentsTopics), nullable="0+", default=None
    )


@message
class OngoingPartitionReassignment:
    """A partition that is moving."""

    partition_index: int = field(INT32)
    #: All replicas, those that are added and removed included.
    replicas: tuple[int, ...] = field(array(INT32))
    adding_replicas: tuple[int, ...] = field(array(INT32))
    removing_replicas: tuple[int, ...] = field(array(INT32))


@message
class OngoingTopicReassignment:
    """The moving partitions of one topic."""

    name: str = field(STRING)
    partitions: tuple[OngoingPartitionReassignment, ...] = field(
        array(OngoingPartitionReassignment)
    )


@message
class ListPartitionReassignmentsResponse(ApiResponse, request=ListPartitionReassignmentsRequest):
    """A response with the partitions that are moving; the others are left out."""

    throttle_time_ms: int = field(INT32, default=0)
    error_code: int = field(INT16, default=0)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    topics: tuple[OngoingTopicReassignment, ...] = field(array(OngoingTopicReassignment))
