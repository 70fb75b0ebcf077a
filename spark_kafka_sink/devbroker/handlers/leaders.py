"""Which brokers have and lead partitions: elections and reassignments."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.devbroker.base.refusal import RefusedError
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
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_kafka_sink.devbroker.cluster.partition import Leadership, Topic
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

    - ELECTION_NOT_NEEDED: the preferred replica leads; for unclean elections, any replica does.
      Without topics, all partitions are meant, and those that need no election are left out.
    - PREFERRED_LEADER_NOT_AVAILABLE: the preferred replica is not in sync.
    - ELIGIBLE_LEADERS_NOT_AVAILABLE: no replica is running.
    - UNKNOWN_TOPIC_OR_PARTITION: there is no such partition.
    - INVALID_REQUEST: another type of election.

    The records that an unclean leader lacks are lost: those since its broker stopped.
    """
    if context.cluster.has_controller:
        return context.ask_controller(request)
    if request.election_type not in {PREFERRED, UNCLEAN}:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}"
        )
    wanted: list[tuple[str, Sequence[int]]]
    if request.topic_partitions is None:
        wanted = [(topic.name, range(len(topic.partitions))) for topic in context.cluster.topics]
    else:
        wanted = [(topic.topic, topic.partitions) for topic in request.topic_partitions]
    results = []
    for topic, indexes in wanted:
        elections = [_elect(context, request, TopicPartition(topic, index)) for index in indexes]
        if request.topic_partitions is None:
            elections = [
                election
                for election in elections
                if election.error_code != ErrorCode.ELECTION_NOT_NEEDED
            ]
        results.append(ReplicaElectionResult(topic=topic, partition_result=tuple(elections)))
    return ElectLeadersResponse(replica_election_results=tuple(results))


def _elect(
    context: RequestContext, request: ElectLeadersRequest, topic_partition: TopicPartition
) -> PartitionResult:
    try:
        if request.election_type == PREFERRED:
            context.cluster.elect_preferred_leader(topic_partition, context.now)
        else:
            context.cluster.elect_any_leader(topic_partition)
    except RefusedError as refused:
        return PartitionResult(
            partition_id=topic_partition.partition,
            error_code=refused.error_code,
            error_message=refused.message,
        )
    return PartitionResult(partition_id=topic_partition.partition)


# --- reassignments


class _Place(NamedTuple):
    """The place of a result in the response: one partition of one topic of the request."""

    topic: int
    partition: int


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

    Nothing is copied, so a move ends at once if all the new brokers run; otherwise when they have
    started. The leader remains if it is one of them.

    - UNKNOWN_TOPIC_OR_PARTITION: there is no such partition.
    - INVALID_REPLICA_ASSIGNMENT: no brokers, one twice, or one that the cluster does not have; or
      a move cannot be cancelled, since only new replicas are in sync.
    - NO_REASSIGNMENT_IN_PROGRESS: there is none to cancel.
    - INVALID_REPLICATION_FACTOR: the number of replicas would change, which version 1 can forbid.
    - KAFKA_STORAGE_ERROR: the changes, which are written to disk at once, cannot be.
    """
    if context.cluster.has_controller:
        return context.ask_controller(request)
    failed: dict[_Place, RefusedError] = {}
    planned: list[_Place] = []
    moves: dict[str, tuple[Topic, dict[int, Leadership]]] = {}
    for number, topic in enumerate(request.topics):
        for position, partition in enumerate(topic.partitions):
            place = _Place(number, position)
            try:
                known = context.cluster.existing_topic(topic.name)
                _, leaderships = moves.setdefault(topic.name, (known, {}))
                leaderships[partition.partition_index] = _moved(
                    context, request, known, partition, leaderships
                )
                planned.append(place)
            except RefusedError as refused:
                failed[place] = refused
    try:
        with context.cluster.change_topics() as changes:
            for known, leaderships in moves.values():
                if leaderships:
                    changes.reassign(known, leaderships)
    except RefusedError as refused:
        failed |= dict.fromkeys(planned, refused)
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        responses=tuple(
            ReassignableTopicResponse(
                name=topic.name,
                partitions=tuple(
                    _result(partition, failed.get(_Place(number, position)))
                    for position, partition in enumerate(topic.partitions)
                ),
            )
            for number, topic in enumerate(request.topics)
        ),
    )


def _result(
    partition: ReassignablePartition, refused: RefusedError | None
) -> ReassignablePartitionResponse:
    return ReassignablePartitionResponse(
        partition_index=partition.partition_index,
        error_code=ErrorCode.NONE if refused is None else refused.error_code,
        error_message=None if refused is None else refused.message,
    )


def _moved(
    context: RequestContext,
    request: AlterPartitionReassignmentsRequest,
    topic: Topic,
    partition: ReassignablePartition,
    earlier: dict[int, Leadership],
) -> Leadership:
    """Return the leadership after a move, or the cancellation of one. Raises RefusedError.

    `earlier` are the moves of the same request.
    """
    index, replicas = partition.partition_index, partition.replicas
    if not 0 <= index < len(topic.partitions):
        raise RefusedError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {topic.name}:{index}."
        )
    leadership = replace(earlier.get(index) or topic.partitions[index].leadership)
    if replicas is None:
        if not (leadership.adding or leadership.removing):
            raise RefusedError(
                ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress."
            )
        try:
            leadership.cancel_reassignment()
        except ValueError as error:
            raise RefusedError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Unable to revert partition assignment for {topic.name}:{index} because {error}.",
            ) from None
        return leadership
    _check_replicas(context, replicas)
    if not request.allow_replication_factor_change and len(replicas) != len(leadership.target):
        raise RefusedError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {len(leadership.target)} to {len(replicas)}",
        )
    leadership.reassign(tuple(replicas))
    leadership.update(context.cluster.nodes, topic.config.min_insync_replicas)
    return leadership


def _check_replicas(context: RequestContext, replicas: Sequence[int]) -> None:
    """Raise RefusedError with INVALID_REPLICA_ASSIGNMENT (validateManualPartitionAssignment)."""
    problem = None
    if not replicas:
        problem = "an empty replica list"
    previous = None
    for broker_id in sorted(replicas):
        if broker_id not in context.cluster.broker_ids:
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

    Without topics, all of them are meant; partitions that do not exist or move are left out.
    """
    if context.cluster.has_controller:
        return context.ask_controller(request)
    wanted = None
    if request.topics is not None:
        wanted = {
            TopicPartition(topic.name, index)
            for topic in request.topics
            for index in topic.partition_indexes
        }
    topics = []
    for topic in context.cluster.topics:
        moving = tuple(
            OngoingPartitionReassignment(
                partition_index=partition.index,
                replicas=partition.replicas,
                adding_replicas=partition.leadership.adding,
                removing_replicas=partition.leadership.removing,
            )
            for partition in topic.partitions
            if (partition.leadership.adding or partition.leadership.removing)
            and (wanted is None or partition.topic_partition in wanted)
        )
        if moving:
            topics.append(OngoingTopicReassignment(name=topic.name, partitions=moving))
    return ListPartitionReassignmentsResponse(topics=tuple(topics))
