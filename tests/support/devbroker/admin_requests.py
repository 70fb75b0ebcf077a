"""Short builders of administrators' requests, for embedded and for other brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.protocol.messages.alter_configs import (
    AlterableConfig as ReplacingConfig,
)
from spark_kafka_sink.protocol.messages.alter_configs import (
    AlterConfigsRequest,
)
from spark_kafka_sink.protocol.messages.alter_configs import (
    AlterConfigsResource as ReplacingResource,
)
from spark_kafka_sink.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from spark_kafka_sink.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from spark_kafka_sink.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from spark_kafka_sink.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from spark_kafka_sink.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from spark_kafka_sink.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from spark_kafka_sink.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
)
from spark_kafka_sink.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    TopicRequest,
)
from spark_kafka_sink.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    RequestedPartitionData,
    RequestedTopicData,
)
from spark_kafka_sink.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
)
from spark_kafka_sink.protocol.messages.describe_topic_partitions import (
    TopicRequest as DescribedTopic,
)
from spark_kafka_sink.protocol.messages.elect_leaders import (
    PREFERRED,
    ElectLeadersRequest,
    TopicPartitions,
)
from spark_kafka_sink.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from spark_kafka_sink.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from spark_kafka_sink.protocol.messages.list_transactions import ListTransactionsRequest
from spark_kafka_sink.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from spark_kafka_sink.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    import uuid
    from collections.abc import Sequence

TOPIC, BROKER, BROKER_LOGGER, GROUP = 2, 4, 8, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


def delete_topics(*topics: str | uuid.UUID | tuple[str | None, uuid.UUID]) -> DeleteTopicsRequest:
    """Create a request, in the form of version 6, to delete topics by name, by id, or by both."""
    states = []
    for topic in topics:
        match topic:
            case str():
                states.append(DeleteTopicState(name=topic, topic_id=ZERO_UUID))
            case (name, topic_id):
                states.append(DeleteTopicState(name=name, topic_id=topic_id))
            case _:
                states.append(DeleteTopicState(name=None, topic_id=topic))
    return DeleteTopicsRequest(topics=tuple(states), timeout_ms=10_000)


def create_partitions(
    *topics: tuple[str, int] | tuple[str, int, Sequence[Sequence[int]]], validate_only: bool = False
) -> CreatePartitionsRequest:
    """Create a request to increase the partition counts of topics, optionally with assignments."""
    return CreatePartitionsRequest(
        topics=tuple(
            CreatePartitionsTopic(
                name=name,
                count=count,
                assignments=tuple(
                    CreatePartitionsAssignment(broker_ids=tuple(ids)) for ids in assignments[0]
                )
                if assignments
                else None,
            )
            for name, count, *assignments in topics
        ),
        timeout_ms=10_000,
        validate_only=validate_only,
    )


def delete_records(*partitions: tuple[str, int, int]) -> DeleteRecordsRequest:
    """Create a request to delete records before an offset: (topic, partition, offset)."""
    return DeleteRecordsRequest(
        topics=tuple(
            DeleteRecordsTopic(
                name=topic,
                partitions=(DeleteRecordsPartition(partition_index=index, offset=offset),),
            )
            for topic, index, offset in partitions
        ),
        timeout_ms=10_000,
    )


def describe_configs(
    *resources: tuple[int, str], keys: Sequence[str] | None = None, synonyms: bool = False
) -> DescribeConfigsRequest:
    """Create a request for configs: (resource type, name)."""
    return DescribeConfigsRequest(
        resources=tuple(
            DescribeConfigsResource(
                resource_type=resource_type,
                resource_name=name,
                configuration_keys=None if keys is None else tuple(keys),
            )
            for resource_type, name in resources
        ),
        include_synonyms=synonyms,
    )


def alter_configs(
    *resources: tuple[int, str, Sequence[tuple[str, int, str | None]]], validate_only: bool = False
) -> IncrementalAlterConfigsRequest:
    """Create a request to alter configs: (resource type, name, [(config, operation, value)])."""
    return IncrementalAlterConfigsRequest(
        resources=tuple(
            AlterConfigsResource(
                resource_type=resource_type,
                resource_name=name,
                configs=tuple(
                    AlterableConfig(name=key, config_operation=operation, value=value)
                    for key, operation, value in configs
                ),
            )
            for resource_type, name, configs in resources
        ),
        validate_only=validate_only,
    )


def describe_producers(topic: str, *partitions: int) -> DescribeProducersRequest:
    """Create a request for the active producers of partitions."""
    return DescribeProducersRequest(
        topics=(TopicRequest(name=topic, partition_indexes=partitions),)
    )


def list_transactions(
    *,
    states: Sequence[str] = (),
    producer_ids: Sequence[int] = (),
    duration_ms: int = -1,
    pattern: str | None = None,
) -> ListTransactionsRequest:
    """Create a request to list transactional ids."""
    return ListTransactionsRequest(
        state_filters=tuple(states),
        producer_id_filters=tuple(producer_ids),
        duration_filter=duration_ms,
        transactional_id_pattern=pattern,
    )


def offset_for_epoch(
    topic: str, partition: int, leader_epoch: int, *, current_leader_epoch: int = -1
) -> OffsetForLeaderEpochRequest:
    """Create a consumer's request for the end offset of a leader epoch."""
    return OffsetForLeaderEpochRequest(
        replica_id=-1,
        topics=(
            OffsetForLeaderTopic(
                topic=topic,
                partitions=(
                    OffsetForLeaderPartition(
                        partition=partition,
                        current_leader_epoch=current_leader_epoch,
                        leader_epoch=leader_epoch,
                    ),
                ),
            ),
        ),
    )


def replace_configs(
    *resources: tuple[int, str, dict[str, str | None]], validate_only: bool = False
) -> AlterConfigsRequest:
    """Create a request to replace all configs: (resource type, name, {config: value})."""
    return AlterConfigsRequest(
        resources=tuple(
            ReplacingResource(
                resource_type=resource_type,
                resource_name=name,
                configs=tuple(ReplacingConfig(name=key, value=configs[key]) for key in configs),
            )
            for resource_type, name, configs in resources
        ),
        validate_only=validate_only,
    )


def describe_log_dirs(topics: dict[str, Sequence[int]] | None = None) -> DescribeLogDirsRequest:
    """Create a request for the directories of a broker."""
    return DescribeLogDirsRequest(
        topics=None
        if topics is None
        else tuple(
            DescribableLogDirTopic(topic=name, partitions=tuple(indexes))
            for name, indexes in topics.items()
        )
    )


def alter_replica_log_dirs(
    path: str, topics: dict[str, Sequence[int]]
) -> AlterReplicaLogDirsRequest:
    """Create a request to move replicas to a directory."""
    moved = tuple(
        AlterReplicaLogDirTopic(name=name, partitions=tuple(indexes))
        for name, indexes in topics.items()
    )
    return AlterReplicaLogDirsRequest(dirs=(AlterReplicaLogDir(path=path, topics=moved),))


def describe_quorum(topic: str = "__cluster_metadata", *partitions: int) -> DescribeQuorumRequest:
    """Create a request for the replicas of the metadata, or of other partitions."""
    requested = tuple(RequestedPartitionData(partition_index=index) for index in partitions or (0,))
    return DescribeQuorumRequest(
        topics=(RequestedTopicData(topic_name=topic, partitions=requested),)
    )


def describe_topic_partitions(
    *topics: str, most: int = 2000, cursor: tuple[str, int] | None = None
) -> DescribeTopicPartitionsRequest:
    """Create a request for a page of partitions."""
    return DescribeTopicPartitionsRequest(
        topics=tuple(DescribedTopic(name=name) for name in topics),
        response_partition_limit=most,
        cursor=cursor and Cursor(topic_name=cursor[0], partition_index=cursor[1]),
    )


def elect_leaders(
    topics: dict[str, Sequence[int]] | None, election_type: int = PREFERRED
) -> ElectLeadersRequest:
    """Create a request for elections of partitions, or of all."""
    return ElectLeadersRequest(
        election_type=election_type,
        topic_partitions=None
        if topics is None
        else tuple(
            TopicPartitions(topic=name, partitions=tuple(indexes))
            for name, indexes in topics.items()
        ),
        timeout_ms=10_000,
    )


def reassign(
    *partitions: tuple[str, int, Sequence[int] | None], keep_factor: bool = False
) -> AlterPartitionReassignmentsRequest:
    """Create a request to move partitions: (topic, partition, brokers)."""
    return AlterPartitionReassignmentsRequest(
        timeout_ms=10_000,
        allow_replication_factor_change=not keep_factor,
        topics=tuple(
            ReassignableTopic(
                name=topic,
                partitions=(
                    ReassignablePartition(
                        partition_index=index, replicas=None if ids is None else tuple(ids)
                    ),
                ),
            )
            for topic, index, ids in partitions
        ),
    )


def list_reassignments(
    topics: dict[str, Sequence[int]] | None = None,
) -> ListPartitionReassignmentsRequest:
    """Create a request for the moves of partitions, or of all."""
    return ListPartitionReassignmentsRequest(
        timeout_ms=10_000,
        topics=None
        if topics is None
        else tuple(
            ListPartitionReassignmentsTopics(name=name, partition_indexes=tuple(indexes))
            for name, indexes in topics.items()
        ),
    )
