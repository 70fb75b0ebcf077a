"""Which brokers have and lead partitions: elections and reassignments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.cluster.standalone_cluster import StandaloneCluster
from spark_kafka_sink.devbroker.handlers.handler import Delayed, RequestContext, handles
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from spark_kafka_sink.protocol.messages.elect_leaders import (
    PREFERRED,
    UNCLEAN,
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from spark_kafka_sink.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_kafka_sink.protocol.schema import ApiResponse

# --- elections


def _failed_elections(
    _context: RequestContext, request: ElectLeadersRequest, error_code: ErrorCode, message: str
) -> ElectLeadersResponse:
    """Return a response with the error, also for each partition."""
    return ElectLeadersResponse(
        error_code=error_code if _context.version else ErrorCode.NONE,
        replica_election_results=tuple(
            ReplicaElectionResult(
                topic=topic.topic,
                partition_result=tuple(
                    PartitionResult(
                        partition_id=index, error_code=error_code, error_message=message
                    )
                    for index in topic.partitions
                ),
            )
            for topic in request.topic_partitions or ()
        ),
    )


@handles(ElectLeadersRequest, error_response=_failed_elections)
def elect_leaders(context: RequestContext, request: ElectLeadersRequest) -> ApiResponse | Delayed:
    """Elect the preferred leaders of partitions, or unclean ones (ElectLeaders 0-2).

    One broker leads all of its partitions, so its results are:

    - ELECTION_NOT_NEEDED: the partition has a leader, which is the preferred one. Without topics,
      all partitions are meant, and those that need no election are left out.
    - UNKNOWN_TOPIC_OR_PARTITION: there is no such partition.
    - INVALID_REQUEST: another type of election.
    """
    cluster = context.cluster
    if not isinstance(cluster, StandaloneCluster):
        return context.ask_controller(cluster, request)
    if request.election_type not in {PREFERRED, UNCLEAN}:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}"
        )
    wanted = request.topic_partitions
    if wanted is None:
        nothing = tuple(
            ReplicaElectionResult(topic=topic.name, partition_result=()) for topic in cluster.topics
        )
        return ElectLeadersResponse(replica_election_results=nothing)
    return ElectLeadersResponse(
        replica_election_results=tuple(
            ReplicaElectionResult(
                topic=topic.topic,
                partition_result=tuple(
                    _elect(cluster, TopicPartition(topic.topic, index))
                    for index in topic.partitions
                ),
            )
            for topic in wanted
        )
    )


def _elect(cluster: StandaloneCluster, topic_partition: TopicPartition) -> PartitionResult:
    try:
        cluster.leader(topic_partition)
        error_code, message = (
            ErrorCode.ELECTION_NOT_NEEDED,
            "Leader election not needed for topic partition.",
        )
    except RefusedError as refused:
        error_code, message = refused.error_code, refused.message
    return PartitionResult(
        partition_id=topic_partition.partition, error_code=error_code, error_message=message
    )


# --- reassignments


def _failed_reassignments(
    _context: RequestContext,
    request: AlterPartitionReassignmentsRequest,
    error_code: ErrorCode,
    message: str,
) -> AlterPartitionReassignmentsResponse:
    """Return a response with the error, also for each partition."""
    return AlterPartitionReassignmentsResponse(
        error_code=error_code,
        error_message=message,
        responses=tuple(
            ReassignableTopicResponse(
                name=topic.name,
                partitions=tuple(
                    ReassignablePartitionResponse(
                        partition_index=partition.partition_index,
                        error_code=error_code,
                        error_message=message,
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )


@handles(AlterPartitionReassignmentsRequest, error_response=_failed_reassignments)
def alter_partition_reassignments(
    context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> ApiResponse | Delayed:
    """Move partitions to other brokers (AlterPartitionReassignments 0-1).

    One broker has all of its partitions, and they can only stay. Its errors are:

    - UNKNOWN_TOPIC_OR_PARTITION: there is no such partition.
    - INVALID_REPLICA_ASSIGNMENT: no brokers, one twice, or one that the cluster does not have.
    - NO_REASSIGNMENT_IN_PROGRESS: there is none to cancel.
    """
    cluster = context.cluster
    if not isinstance(cluster, StandaloneCluster):
        return context.ask_controller(cluster, request)
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        responses=tuple(
            ReassignableTopicResponse(
                name=topic.name,
                partitions=tuple(
                    _reassign(cluster, topic.name, partition) for partition in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )


def _reassign(
    cluster: StandaloneCluster, topic: str, partition: ReassignablePartition
) -> ReassignablePartitionResponse:
    error_code, message = ErrorCode.NONE, None
    try:
        _check_reassignment(cluster, topic, partition)
    except RefusedError as refused:
        error_code, message = refused.error_code, refused.message
    return ReassignablePartitionResponse(
        partition_index=partition.partition_index, error_code=error_code, error_message=message
    )


def _check_reassignment(
    cluster: StandaloneCluster, topic: str, partition: ReassignablePartition
) -> None:
    """Raise RefusedError unless a partition is to stay where it is."""
    index, replicas = partition.partition_index, partition.replicas
    if not 0 <= index < len(cluster.existing_topic(topic).partitions):
        raise RefusedError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {topic}:{index}."
        )
    if replicas is None:
        raise RefusedError(
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress."
        )
    _check_replicas(cluster, replicas)


def _check_replicas(cluster: StandaloneCluster, replicas: Sequence[int]) -> None:
    """Raise RefusedError with INVALID_REPLICA_ASSIGNMENT (validateManualPartitionAssignment)."""
    problem = None
    if not replicas:
        problem = "an empty replica list"
    previous = None
    for broker_id in sorted(replicas):
        if broker_id != cluster.node_id:
            problem = f"broker {broker_id}, but no such broker is registered"
            break
        if broker_id == previous:
            problem = f"the broker {broker_id} more than once"
            break
        previous = broker_id
    if problem is not None:
        raise RefusedError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"The manual partition assignment includes {problem}.",
        )


@handles(ListPartitionReassignmentsRequest)
def list_partition_reassignments(
    context: RequestContext, request: ListPartitionReassignmentsRequest
) -> ApiResponse | Delayed:
    """List the partitions that are moving to other brokers (ListPartitionReassignments 0).

    Without topics, all of them are meant; partitions that do not exist or move are left out. Those
    of one broker alone never move.
    """
    cluster = context.cluster
    if not isinstance(cluster, StandaloneCluster):
        return context.ask_controller(cluster, request)
    return ListPartitionReassignmentsResponse(topics=())
