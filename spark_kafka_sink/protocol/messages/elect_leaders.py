"""ElectLeaders: makes the preferred or an unclean replica the leader of partitions (KIP-183).

Version 1 adds unclean elections (KIP-460), 2 is flexible.
"""

from __future__ import annotations

from typing import Final

from spark_kafka_sink.protocol.schema import *

#: Types of elections: of the first replica of the list, or of any running replica although it is
#: not in sync.
PREFERRED: Final = 0
UNCLEAN: Final = 1


@message
class TopicPartitions:
    """Partitions of one topic."""

    topic: str = field(STRING)
    partitions: tuple[int, ...] = field(array(INT32))


@message
class ElectLeadersRequest(ApiRequest["ElectLeadersResponse"]):
    """A request for the controller, which any broker forwards."""

    api_key = ApiKey.ELECT_LEADERS
    versions = VersionRange(0, 2)

    election_type: int = field(INT8, versions="1+", default=PREFERRED)
    #: None: all partitions.
    topic_partitions: tuple[TopicPartitions, ...] | None = field(
        array(TopicPartitions), nullable="0+"
    )
    timeout_ms: int = field(INT32, default=60000)


@message
class PartitionResult:
    """The result for one partition."""

    partition_id: int = field(INT32)
    error_code: int = field(INT16, default=0)
    error_message: str | None = field(STRING, nullable="0+", default=None)


@message
class ReplicaElectionResult:
    """The results for the partitions of one topic."""

    topic: str = field(STRING)
    partition_result: tuple[PartitionResult, ...] = field(array(PartitionResult))


@message
class ElectLeadersResponse(ApiResponse, request=ElectLeadersRequest):
    """A response with one result per partition.

    If all partitions were requested, it has those only that needed an election.
    """

    throttle_time_ms: int = field(INT32, default=0)
    error_code: int = field(INT16, versions="1+", default=0)
    replica_election_results: tuple[ReplicaElectionResult, ...] = field(
        array(ReplicaElectionResult)
    )
