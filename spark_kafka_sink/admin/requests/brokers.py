"""Requests about brokers: their directories, what they lead, and the controllers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark_kafka_sink.admin.cluster_calls import AnyBroker, Call, error_in, raise_for_code
from spark_kafka_sink.admin.cluster_values import (
    LogDirDescription,
    PartitionReassignment,
    QuorumInfo,
    QuorumReplicaState,
    ReplicaInfo,
    TopicPartitionReplica,
)
from spark_kafka_sink.admin.item_requests import ItemRequest, ItemResults, Routes
from spark_kafka_sink.admin.requests.partitions import by_topic
from spark_kafka_sink.admin.values import ConfigResource, ConfigResourceType
from spark_kafka_sink.errors import KafkaError, NetworkError
from spark_kafka_sink.model import Node, TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages import (
    alter_partition_reassignments,
    alter_replica_log_dirs,
    describe_log_dirs,
    describe_quorum,
    elect_leaders,
    list_config_resources,
    list_partition_reassignments,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from spark_kafka_sink.admin.cluster_calls import ClusterCalls
    from spark_kafka_sink.admin.cluster_values import ElectionType

_METADATA_TOPIC: Final = "__cluster_metadata"
_UNKNOWN: Final = -1
#: The timeout of what controllers do at once, in milliseconds.
_TIMEOUT_MS: Final = 60_000

# --- directories


def describing_log_dirs() -> ItemRequest[
    int, describe_log_dirs.DescribeLogDirsResponse, dict[str, LogDirDescription]
]:
    """Describe the request for the directories of brokers, by their ids."""

    def read(
        response: describe_log_dirs.DescribeLogDirsResponse, broker_ids: Sequence[int]
    ) -> Iterator[tuple[int, dict[str, LogDirDescription] | KafkaError]]:
        # Each request has one broker, which answers for itself.
        for broker_id in broker_ids:
            what = f"DescribeLogDirs of broker {broker_id}"
            yield (
                broker_id,
                error_in(response.error_code, what)
                or {
                    directory.log_dir: _directory(directory, f"{what}: {directory.log_dir}")
                    for directory in response.results
                },
            )

    return ItemRequest.of(
        "DescribeLogDirs",
        lambda _keys, _: describe_log_dirs.DescribeLogDirsRequest(topics=None),
        read,
        route=_to_each_broker,
    )


def _directory(directory: describe_log_dirs.DescribeLogDirsResult, what: str) -> LogDirDescription:
    return LogDirDescription(
        error=error_in(directory.error_code, what),
        replica_infos={
            TopicPartition(topic.name, partition.partition_index): ReplicaInfo(
                size=partition.partition_size,
                offset_lag=partition.offset_lag,
                is_future=partition.is_future_key,
            )
            for topic in directory.topics
            for partition in topic.partitions
        },
        total_bytes=_known(directory.total_bytes),
        usable_bytes=_known(directory.usable_bytes),
        is_cordoned=directory.is_cordoned,
    )


def _known(number: int) -> int | None:
    return None if number == _UNKNOWN else number


def altering_log_dirs(
    paths: Mapping[TopicPartitionReplica, str],
) -> ItemRequest[TopicPartitionReplica, alter_replica_log_dirs.AlterReplicaLogDirsResponse, None]:
    """Describe the request that moves replicas to directories of their brokers."""

    def request(
        replicas: Sequence[TopicPartitionReplica], _timeout_ms: int
    ) -> alter_replica_log_dirs.AlterReplicaLogDirsRequest:
        by_path: dict[str, list[TopicPartition]] = {}
        for replica in replicas:
            place = TopicPartition(replica.topic, replica.partition)
            by_path.setdefault(paths[replica], []).append(place)
        return alter_replica_log_dirs.AlterReplicaLogDirsRequest(
            dirs=tuple(
                alter_replica_log_dirs.AlterReplicaLogDir(
                    path=path,
                    topics=tuple(
                        alter_replica_log_dirs.AlterReplicaLogDirTopic(
                            name=topic, partitions=tuple(partitions)
                        )
                        for topic, partitions in by_topic(places).items()
                    ),
                )
                for path, places in by_path.items()
            )
        )

    def read(
        response: alter_replica_log_dirs.AlterReplicaLogDirsResponse,
        replicas: Sequence[TopicPartitionReplica],
    ) -> Iterator[tuple[TopicPartitionReplica, KafkaError | None]]:
        by_partition = {(replica.topic, replica.partition): replica for replica in replicas}
        for topic in response.results:
            for partition in topic.partitions:
                replica = by_partition.get((topic.topic_name, partition.partition_index))
                if replica is not None:
                    what = f"AlterReplicaLogDirs of {replica}"
                    yield replica, error_in(partition.error_code, what)

    return ItemRequest.of("AlterReplicaLogDirs", request, read, route=_to_their_brokers)


async def _to_each_broker(
    calls: ClusterCalls, broker_ids: Sequence[int], deadline: float
) -> Routes[int]:
    nodes = {node.node_id: node for node in await calls.nodes(deadline)}
    lost: dict[int, KafkaError] = {
        broker_id: _not_running(broker_id) for broker_id in broker_ids if broker_id not in nodes
    }
    return [(nodes[it], [it]) for it in broker_ids if it in nodes], lost


async def _to_their_brokers(
    calls: ClusterCalls, replicas: Sequence[TopicPartitionReplica], deadline: float
) -> Routes[TopicPartitionReplica]:
    nodes = {node.node_id: node for node in await calls.nodes(deadline)}
    lost: dict[TopicPartitionReplica, KafkaError] = {}
    groups: dict[Node, list[TopicPartitionReplica]] = {}
    for replica in replicas:
        node = nodes.get(replica.broker_id)
        if node is None:
            lost[replica] = _not_running(replica.broker_id)
        else:
            groups.setdefault(node, []).append(replica)
    return list(groups.items()), lost


def _not_running(broker_id: int) -> NetworkError:
    return NetworkError(f"broker {broker_id} is not running: only it knows its directories")


# --- elections


def elect_leaders_call(
    election_type: ElectionType, places: Collection[TopicPartition] | None
) -> Call[elect_leaders.ElectLeadersResponse]:
    """Build the call that elects leaders of partitions, or of all."""
    topics = None
    if places is not None:
        topics = tuple(
            elect_leaders.TopicPartitions(topic=topic, partitions=tuple(partitions))
            for topic, partitions in by_topic(places).items()
        )
    return Call(
        AnyBroker(),
        elect_leaders.ElectLeadersRequest(
            election_type=election_type, topic_partitions=topics, timeout_ms=_TIMEOUT_MS
        ),
        "ElectLeaders",
        lambda answer: (answer.error_code,),
    )


def elected_leaders(
    response: elect_leaders.ElectLeadersResponse, what: str
) -> ItemResults[TopicPartition, bool]:
    """Return whether each partition has a new leader; raises BrokerError.

    An error of a partition is final, as in Java: a leader that is not available now will hardly be
    so in a moment.
    """
    raise_for_code(response.error_code, what)
    answer: ItemResults[TopicPartition, bool] = ItemResults({}, {})
    for topic in response.replica_election_results:
        for partition in topic.partition_result:
            place = TopicPartition(topic.topic, partition.partition_id)
            code = partition.error_code
            if code == ErrorCode.ELECTION_NOT_NEEDED:
                answer.add(place, False)
            else:
                error = error_in(code, f"{what} of {place}", partition.error_message)
                answer.add(place, error or True)
    return answer


# --- reassignments


def altering_reassignments(
    replicas: Mapping[TopicPartition, tuple[int, ...] | None],
) -> ItemRequest[
    TopicPartition, alter_partition_reassignments.AlterPartitionReassignmentsResponse, None
]:
    """Describe the request that moves partitions to brokers; None cancels a move."""
    what = "AlterPartitionReassignments"
    module = alter_partition_reassignments

    def request(
        places: Sequence[TopicPartition], timeout_ms: int
    ) -> alter_partition_reassignments.AlterPartitionReassignmentsRequest:
        return module.AlterPartitionReassignmentsRequest(
            timeout_ms=timeout_ms,
            topics=tuple(
                module.ReassignableTopic(
                    name=topic,
                    partitions=tuple(
                        module.ReassignablePartition(
                            partition_index=partition,
                            replicas=replicas[TopicPartition(topic, partition)],
                        )
                        for partition in partitions
                    ),
                )
                for topic, partitions in by_topic(places).items()
            ),
        )

    def read(
        response: alter_partition_reassignments.AlterPartitionReassignmentsResponse,
        places: Sequence[TopicPartition],
    ) -> Iterator[tuple[TopicPartition, KafkaError | None]]:
        for place in places:
            error = error_in(response.error_code, f"{what} of {place}", response.error_message)
            if error is not None:
                yield place, error
        if not response.error_code:
            for topic in response.responses:
                for partition in topic.partitions:
                    place = TopicPartition(topic.name, partition.partition_index)
                    code, message = partition.error_code, partition.error_message
                    yield place, error_in(code, f"{what} of {place}", message)

    return ItemRequest.of(what, request, read, is_for_controller=True)


def list_reassignments_call(
    places: Collection[TopicPartition] | None,
) -> Call[list_partition_reassignments.ListPartitionReassignmentsResponse]:
    """Build the call that lists moving partitions, of those given or of all."""
    topics = None
    if places is not None:
        topics = tuple(
            list_partition_reassignments.ListPartitionReassignmentsTopics(
                name=topic, partition_indexes=tuple(partitions)
            )
            for topic, partitions in by_topic(places).items()
        )
    return Call(
        AnyBroker(),
        list_partition_reassignments.ListPartitionReassignmentsRequest(
            timeout_ms=_TIMEOUT_MS, topics=topics
        ),
        "ListPartitionReassignments",
        lambda answer: (answer.error_code,),
    )


def listed_reassignments(
    response: list_partition_reassignments.ListPartitionReassignmentsResponse, what: str
) -> dict[TopicPartition, PartitionReassignment]:
    """Return the moving partitions in a response; raises BrokerError."""
    raise_for_code(response.error_code, what, response.error_message)
    return {
        TopicPartition(topic.name, partition.partition_index): PartitionReassignment(
            replicas=partition.replicas,
            adding_replicas=partition.adding_replicas,
            removing_replicas=partition.removing_replicas,
        )
        for topic in response.topics
        for partition in topic.partitions
    }


# --- controllers and resources


def describe_quorum_call() -> Call[describe_quorum.DescribeQuorumResponse]:
    """Build the call that describes the controllers."""
    partition = describe_quorum.RequestedPartitionData(partition_index=0)
    topic = describe_quorum.RequestedTopicData(topic_name=_METADATA_TOPIC, partitions=(partition,))
    return Call(
        AnyBroker(),
        describe_quorum.DescribeQuorumRequest(topics=(topic,)),
        "DescribeQuorum",
        lambda answer: (
            answer.error_code,
            *(partition.error_code for topic in answer.topics for partition in topic.partitions),
        ),
    )


def described_quorum(response: describe_quorum.DescribeQuorumResponse, what: str) -> QuorumInfo:
    """Return the controllers in a response; raises BrokerError."""
    raise_for_code(response.error_code, what, response.error_message)
    [topic] = response.topics
    [partition] = topic.partitions
    raise_for_code(partition.error_code, what, partition.error_message)
    return QuorumInfo(
        leader_id=partition.leader_id,
        leader_epoch=partition.leader_epoch,
        high_watermark=partition.high_watermark,
        voters=tuple(map(_replica_state, partition.current_voters)),
        observers=tuple(map(_replica_state, partition.observers)),
        addresses={
            node.node_id: tuple(
                f"{listener.name}://{listener.host}:{listener.port}" for listener in node.listeners
            )
            for node in response.nodes
        },
    )


def _replica_state(state: describe_quorum.ReplicaState) -> QuorumReplicaState:
    return QuorumReplicaState(
        replica_id=state.replica_id,
        replica_directory_id=state.replica_directory_id,
        log_end_offset=_known(state.log_end_offset),
        last_fetch_timestamp=_known(state.last_fetch_timestamp),
        last_caught_up_timestamp=_known(state.last_caught_up_timestamp),
    )


def list_config_resources_call(
    types: Sequence[ConfigResourceType],
) -> Call[list_config_resources.ListConfigResourcesResponse]:
    """Build the call that lists what has settings, of some types or of all."""
    return Call(
        AnyBroker(),
        list_config_resources.ListConfigResourcesRequest(resource_types=tuple(map(int, types))),
        "ListConfigResources",
        lambda answer: (answer.error_code,),
    )


def listed_config_resources(
    response: list_config_resources.ListConfigResourcesResponse, what: str
) -> list[ConfigResource]:
    """Return the resources in a response, without those of newer types; raises BrokerError."""
    raise_for_code(response.error_code, what)
    known = {int(kind) for kind in ConfigResourceType}
    return [
        ConfigResource(ConfigResourceType(resource.resource_type), resource.resource_name)
        for resource in response.config_resources
        if resource.resource_type in known
    ]
