"""Elections and reassignments as clients request them.

Each partition of a request succeeds or fails by itself, and all that succeed are recorded in one
step. The rules are in `replication_control`; this module translates the messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.controller.partition_change_builder import Election
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
    from collections.abc import Iterable

    from spark_kafka_sink.devbroker.controller.replication_control import ReplicationControl
    from spark_kafka_sink.devbroker.metadata.image import MetadataImage
    from spark_kafka_sink.devbroker.metadata.records import MetadataRecord

_ELECTIONS: Final = {PREFERRED: Election.PREFERRED, UNCLEAN: Election.UNCLEAN}


def elect_leaders(
    request: ElectLeadersRequest,
    replication: ReplicationControl,
    image: MetadataImage,
    records: list[MetadataRecord],
) -> ElectLeadersResponse:
    """Add the records of elections; return a result for each partition (ElectLeaders).

    Without topics, all partitions are meant, and those that need no election are left out. Raises
    RefusedError with INVALID_REQUEST for another type of election.
    """
    election = _ELECTIONS.get(request.election_type)
    if election is None:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}"
        )
    wanted: Iterable[tuple[str, Iterable[int]]]
    if request.topic_partitions is None:
        wanted = [(topic.name, list(topic.partitions)) for topic in image.topics.values()]
    else:
        wanted = [(topic.topic, topic.partitions) for topic in request.topic_partitions]
    topics = []
    for name, indexes in wanted:
        results = []
        for index in indexes:
            result = PartitionResult(partition_id=index)
            try:
                records.append(replication.elect_leader(name, index, election))
            except RefusedError as refused:
                if (
                    request.topic_partitions is None
                    and refused.error_code == ErrorCode.ELECTION_NOT_NEEDED
                ):
                    continue
                result = PartitionResult(
                    partition_id=index,
                    error_code=refused.error_code,
                    error_message=refused.message,
                )
            results.append(result)
        topics.append(ReplicaElectionResult(topic=name, partition_result=tuple(results)))
    return ElectLeadersResponse(replica_election_results=tuple(topics))


def alter_reassignments(
    request: AlterPartitionReassignmentsRequest,
    replication: ReplicationControl,
    records: list[MetadataRecord],
) -> AlterPartitionReassignmentsResponse:
    """Add the records of reassignments that begin or are cancelled; return all results."""

    def reassign(topic: str, partition: ReassignablePartition) -> ReassignablePartitionResponse:
        index = partition.partition_index
        try:
            change = replication.reassign(
                topic,
                index,
                partition.replicas,
                may_change_replication_factor=request.allow_replication_factor_change,
            )
        except RefusedError as refused:
            return ReassignablePartitionResponse(
                partition_index=index,
                error_code=refused.error_code,
                error_message=refused.message,
            )
        if change is not None:
            records.append(change)
        return ReassignablePartitionResponse(partition_index=index)

    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        responses=tuple(
            ReassignableTopicResponse(
                name=topic.name,
                partitions=tuple(reassign(topic.name, each) for each in topic.partitions),
            )
            for topic in request.topics
        ),
    )


def list_reassignments(
    request: ListPartitionReassignmentsRequest, image: MetadataImage
) -> ListPartitionReassignmentsResponse:
    """Return the partitions that are moving, of these topics or of all."""
    wanted = None
    if request.topics is not None:
        wanted = {
            (topic.name, index) for topic in request.topics for index in topic.partition_indexes
        }
    topics = []
    for topic in image.topics.values():
        moving = tuple(
            OngoingPartitionReassignment(
                partition_index=partition.partition,
                replicas=partition.replicas,
                adding_replicas=partition.adding,
                removing_replicas=partition.removing,
            )
            for partition in topic.partitions.values()
            if partition.is_reassigning
            and (wanted is None or (topic.name, partition.partition) in wanted)
        )
        if moving:
            topics.append(OngoingTopicReassignment(name=topic.name, partitions=moving))
    return ListPartitionReassignmentsResponse(topics=tuple(topics))
