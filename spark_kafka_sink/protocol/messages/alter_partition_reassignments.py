"""AlterPartitionReassignments: moves partitions to other brokers (KIP-455).

Version 1 can refuse to change the number of replicas (KIP-860).
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class ReassignablePartition:
    """A partition, and the brokers that are to have it."""

    partition_index: int = field(INT32)
    #: The preferred leader first; None to cancel the reassignment.
    replicas: tuple[int, ...] | None = field(array(INT32), nullable="0+", default=None)


@message
class ReassignableTopic:
    """Partitions of one topic."""

    name: str = field(STRING)
    partitions: tuple[ReassignablePartition, ...] = field(array(ReassignablePartition))


@message
class AlterPartitionReassignmentsRequest(ApiRequest["AlterPartitionReassignmentsResponse"]):
    """A request for the controller, which any broker forwards."""

    api_key = ApiKey.ALTER_PARTITION_REASSIGNMENTS
    versions = VersionRange(0, 1)

    timeout_ms: int = field(INT32, default=60000)
    allow_replication_factor_change: bool = field(BOOL, versions="1+", default=True)
    topics: tuple[ReassignableTopic, ...] = field(array(ReassignableTopic))


@message
class ReassignablePartitionResponse:
    """The result for one partition: its reassignment has begun or ended, or it cannot."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16, default=0)
    error_message: str | None = field(STRING, nullable="0+", default=None)


@message
class ReassignableTopicResponse:
    """The results for the partitions of one topic."""

    name: str = field(STRING)
    partitions: tuple[ReassignablePartitionResponse, ...] = field(
        array(ReassignablePartitionResponse)
    )


@message
class AlterPartitionReassignmentsResponse(ApiResponse, request=AlterPartitionReassignmentsRequest):
    """A response with one result per partition."""

    throttle_time_ms: int = field(INT32, default=0)
    allow_replication_factor_change: bool = field(BOOL, versions="1+", ignorable=True, default=True)
    error_code: int = field(INT16, default=0)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    responses: tuple[ReassignableTopicResponse, ...] = field(array(ReassignableTopicResponse))
