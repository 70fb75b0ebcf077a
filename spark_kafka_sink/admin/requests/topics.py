"""Requests about topics and the cluster itself, which any broker answers or forwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark_kafka_sink.admin import values
from spark_kafka_sink.admin.cluster_calls import (
    AnyBroker,
    Call,
    Destination,
    error_in,
    raise_for_code,
)
from spark_kafka_sink.admin.item_requests import ItemRequest
from spark_kafka_sink.admin.requests.configs import config_entry
from spark_kafka_sink.model import Node
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages import (
    create_partitions,
    create_topics,
    delete_topics,
    describe_cluster,
    metadata,
)
from spark_kafka_sink.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from spark_kafka_sink.errors import BrokerError
    from spark_kafka_sink.network.connection.node_api_versions import NodeApiVersions

#: The first DeleteTopics version with a struct for each topic.
_STATES_VERSION: Final = 6


def create_topics_call(
    topics: Sequence[values.NewTopic], *, timeout_ms: int, validate_only: bool = False
) -> Call[create_topics.CreateTopicsResponse]:
    """Build the call that creates topics; the caller handles the errors of several."""
    request = create_topics.CreateTopicsRequest(
        topics=tuple(map(_creatable, topics)), timeout_ms=timeout_ms, validate_only=validate_only
    )
    return Call(
        AnyBroker(),
        request,
        f"CreateTopics({', '.join(repr(topic.name) for topic in topics)})",
        lambda answer: [topic.error_code for topic in answer.topics],
    )


def _creatable(topic: values.NewTopic) -> create_topics.CreatableTopic:
    return create_topics.CreatableTopic(
        name=topic.name,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=tuple(
            create_topics.CreatableReplicaAssignment(
                partition_index=partition, broker_ids=tuple(brokers)
            )
            for partition, brokers in topic.replica_assignments.items()
        ),
        configs=tuple(
            create_topics.CreatableTopicConfig(name=name, value=value)
            for name, value in topic.configs.items()
        ),
    )


def was_created(response: create_topics.CreateTopicsResponse) -> bool:
    """Return whether the only topic is new; raises BrokerError, with the broker's own message."""
    result = _result(response.topics[0])
    if isinstance(result, values.CreatedTopic):
        return True
    if result.code == ErrorCode.TOPIC_ALREADY_EXISTS:
        return False
    raise result


def creating_topics(
    topics: Mapping[str, values.NewTopic], *, validate_only: bool
) -> ItemRequest[str, create_topics.CreateTopicsResponse, values.CreatedTopic]:
    """Describe the request that creates topics, by their names."""
    return ItemRequest(
        what="CreateTopics",
        build=lambda _, names, seconds: create_topics_call(
            [topics[name] for name in names],
            timeout_ms=int(seconds * 1000),
            validate_only=validate_only,
        ),
        read=lambda response, _: ((topic.name, _result(topic)) for topic in response.topics),
        is_for_controller=True,
    )


def _result(topic: create_topics.CreatableTopicResult) -> values.CreatedTopic | BrokerError:
    what = f"CreateTopics({topic.name!r})"
    if error := error_in(topic.error_code, what, topic.error_message):
        return error
    configs = None
    if topic.configs is not None and not topic.topic_config_error_code:
        configs = {config.name: config_entry(config) for config in topic.configs}
    return values.CreatedTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        configs=configs,
    )


def deleting_topics() -> ItemRequest[str, delete_topics.DeleteTopicsResponse, None]:
    """Describe the request that deletes topics."""

    def build(
        destination: Destination, names: Sequence[str], seconds: float
    ) -> Call[delete_topics.DeleteTopicsResponse]:
        timeout_ms = int(seconds * 1000)

        def request(
            versions: NodeApiVersions,
        ) -> tuple[delete_topics.DeleteTopicsRequest, int | None]:
            if versions.version_for(delete_topics.DeleteTopicsRequest.api_key) < _STATES_VERSION:
                return delete_topics.DeleteTopicsRequest(
                    topic_names=tuple(names), timeout_ms=timeout_ms
                ), None
            states = tuple(
                delete_topics.DeleteTopicState(name=name, topic_id=ZERO_UUID) for name in names
            )
            return delete_topics.DeleteTopicsRequest(topics=states, timeout_ms=timeout_ms), None

        return Call(destination, request, "DeleteTopics")

    return ItemRequest(
        what="DeleteTopics",
        build=build,
        read=lambda response, _: (
            (
                topic.name,
                error_in(topic.error_code, f"DeleteTopics({topic.name!r})", topic.error_message),
            )
            for topic in response.responses
            if topic.name is not None
        ),
        is_for_controller=True,
    )


def creating_partitions(
    new_partitions: Mapping[str, values.NewPartitions], *, validate_only: bool
) -> ItemRequest[str, create_partitions.CreatePartitionsResponse, None]:
    """Describe the request that adds partitions to topics."""
    what = "CreatePartitions"
    return ItemRequest.of(
        what,
        lambda names, timeout_ms: create_partitions.CreatePartitionsRequest(
            topics=tuple(_partitions_of(name, new_partitions[name]) for name in names),
            timeout_ms=timeout_ms,
            validate_only=validate_only,
        ),
        lambda response, _: (
            (topic.name, error_in(topic.error_code, f"{what}({topic.name!r})", topic.error_message))
            for topic in response.results
        ),
        is_for_controller=True,
    )


def _partitions_of(name: str, new: values.NewPartitions) -> create_partitions.CreatePartitionsTopic:
    assignments = None
    if new.new_assignments is not None:
        assignments = tuple(
            create_partitions.CreatePartitionsAssignment(broker_ids=tuple(brokers))
            for brokers in new.new_assignments
        )
    return create_partitions.CreatePartitionsTopic(
        name=name, count=new.total_count, assignments=assignments
    )


# --- metadata


def metadata_call(topics: Sequence[str] | None) -> Call[metadata.MetadataResponse]:
    """Build the call that describes topics, or all of them; the caller handles their errors."""
    return Call(AnyBroker(), _metadata(topics), "Metadata", lambda answer: (answer.error_code,))


def _metadata(
    topics: Sequence[str] | None, *, operations: bool = False
) -> metadata.MetadataRequest:
    return metadata.MetadataRequest(
        topics=None
        if topics is None
        else tuple(metadata.MetadataRequestTopic(name=name) for name in topics),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=operations,
    )


def listed_topics(
    response: metadata.MetadataResponse, *, include_internal: bool
) -> dict[str, values.TopicListing]:
    """Return the topics in a response to `metadata_call(None)`, by name."""
    return {
        topic.name: values.TopicListing(
            name=topic.name, topic_id=topic.topic_id, is_internal=topic.is_internal
        )
        for topic in sorted(response.topics, key=lambda topic: topic.name or "")
        if topic.name is not None and (include_internal or not topic.is_internal)
    }


def describing_topics(
    *, include_authorized_operations: bool
) -> ItemRequest[str, metadata.MetadataResponse, values.TopicDescription]:
    """Describe the request that describes topics."""

    def read(
        response: metadata.MetadataResponse, _names: Sequence[str]
    ) -> Iterable[tuple[str, values.TopicDescription | BrokerError]]:
        nodes = nodes_of(response.brokers)
        for topic in response.topics:
            if topic.name is not None:
                error = error_in(topic.error_code, f"Metadata of topic {topic.name!r}")
                yield topic.name, error or _described(topic, nodes)

    return ItemRequest.of(
        "Metadata",
        lambda names, _: _metadata(names, operations=include_authorized_operations),
        read,
    )


def nodes_of(brokers: Iterable[metadata.MetadataResponseBroker]) -> dict[int, Node]:
    """Return the brokers in a response, by their ids."""
    return {broker.node_id: Node(broker.node_id, broker.host, broker.port) for broker in brokers}


def _described(
    topic: metadata.MetadataResponseTopic, nodes: Mapping[int, Node]
) -> values.TopicDescription:
    def node(node_id: int) -> Node:
        return nodes.get(node_id, Node(node_id, "", -1))

    def info(partition: metadata.MetadataResponsePartition) -> values.TopicPartitionInfo:
        return values.TopicPartitionInfo(
            partition=partition.partition_index,
            leader=nodes.get(partition.leader_id),
            replicas=tuple(map(node, partition.replica_nodes)),
            isr=tuple(map(node, partition.isr_nodes)),
        )

    ordered = sorted(topic.partitions, key=lambda partition: partition.partition_index)
    return values.TopicDescription(
        name=topic.name or "",
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=tuple(map(info, ordered)),
        authorized_operations=values.authorized_operations(topic.topic_authorized_operations),
    )


# --- the cluster


def describe_cluster_call(
    *, include_authorized_operations: bool
) -> Call[describe_cluster.DescribeClusterResponse]:
    """Build the call that describes the cluster."""
    request = describe_cluster.DescribeClusterRequest(
        include_cluster_authorized_operations=include_authorized_operations
    )
    return Call(AnyBroker(), request, "DescribeCluster", lambda answer: (answer.error_code,))


def described_cluster(
    response: describe_cluster.DescribeClusterResponse,
) -> values.ClusterDescription:
    """Return the description in a response; raises BrokerError."""
    raise_for_code(response.error_code, "DescribeCluster", response.error_message)
    nodes = {
        broker.broker_id: Node(broker.broker_id, broker.host, broker.port)
        for broker in response.brokers
    }
    return values.ClusterDescription(
        cluster_id=response.cluster_id,
        controller=nodes.get(response.controller_id),
        nodes=tuple(nodes[node_id] for node_id in sorted(nodes)),
        authorized_operations=values.authorized_operations(response.cluster_authorized_operations),
    )
