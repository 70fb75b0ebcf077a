"""Requests about topics, which any broker answers or forwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark_kafka_sink.admin.cluster_calls import AnyBroker, Call, refusal
from spark_kafka_sink.admin.item_requests import ItemRequest
from spark_kafka_sink.admin.requests.configs import config_entry
from spark_kafka_sink.admin.values import (
    CreatedTopic,
    TopicDescription,
    TopicListing,
    TopicPartitionInfo,
    authorized_operations,
)
from spark_kafka_sink.model import Node
from spark_kafka_sink.protocol.error_codes import ErrorCode, broker_error
from spark_kafka_sink.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from spark_kafka_sink.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from spark_kafka_sink.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from spark_kafka_sink.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from spark_kafka_sink.admin.cluster_calls import Destination
    from spark_kafka_sink.admin.values import NewPartitions, NewTopic
    from spark_kafka_sink.errors import BrokerError
    from spark_kafka_sink.network.connection.node_api_versions import NodeApiVersions
    from spark_kafka_sink.protocol.messages.create_partitions import CreatePartitionsResponse
    from spark_kafka_sink.protocol.messages.create_topics import (
        CreatableTopicResult,
        CreateTopicsResponse,
    )
    from spark_kafka_sink.protocol.messages.delete_topics import DeleteTopicsResponse
    from spark_kafka_sink.protocol.messages.metadata import (
        MetadataResponse,
        MetadataResponsePartition,
        MetadataResponseTopic,
    )

#: The first DeleteTopics version with a struct for each topic.
_STATES_VERSION: Final = 6


def create_topics_call(
    topics: Sequence[NewTopic], *, timeout_ms: int, validate_only: bool = False
) -> Call[CreateTopicsResponse]:
    """Build the call that creates topics; the caller handles the errors of several."""
    request = CreateTopicsRequest(
        topics=tuple(_creatable(topic) for topic in topics),
        timeout_ms=timeout_ms,
        validate_only=validate_only,
    )
    names = ", ".join(repr(topic.name) for topic in topics)
    return Call(
        destination=AnyBroker(),
        build=lambda _: (request, None),
        error_codes=lambda answer: [topic.error_code for topic in answer.topics],
        what=f"CreateTopics({names})",
    )


def _creatable(topic: NewTopic) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=tuple(
            CreatableReplicaAssignment(partition_index=partition, broker_ids=tuple(brokers))
            for partition, brokers in topic.replica_assignments.items()
        ),
        configs=tuple(
            CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()
        ),
    )


def was_created(response: CreateTopicsResponse) -> bool:
    """Return whether the only topic is new; raises BrokerError, with the broker's own message."""
    result = _result(response.topics[0])
    if isinstance(result, CreatedTopic):
        return True
    if result.code == ErrorCode.TOPIC_ALREADY_EXISTS:
        return False
    raise result


def creating_topics(
    topics: Mapping[str, NewTopic], *, validate_only: bool
) -> ItemRequest[str, CreateTopicsResponse, CreatedTopic]:
    """Describe the request that creates topics, by their names."""

    def build(
        _destination: Destination, names: Sequence[str], seconds: float
    ) -> Call[CreateTopicsResponse]:
        new_topics = [topics[name] for name in names]
        return create_topics_call(
            new_topics, timeout_ms=int(seconds * 1000), validate_only=validate_only
        )

    def read(
        response: CreateTopicsResponse, _names: Sequence[str]
    ) -> Iterator[tuple[str, CreatedTopic | BrokerError]]:
        for topic in response.topics:
            yield topic.name, _result(topic)

    return ItemRequest(what="CreateTopics", build=build, read=read, is_for_controller=True)


def _result(topic: CreatableTopicResult) -> CreatedTopic | BrokerError:
    if topic.error_code:
        what = f"CreateTopics({topic.name!r})"
        return refusal(topic.error_code, what, topic.error_message)
    configs = None
    if topic.configs is not None and not topic.topic_config_error_code:
        configs = {config.name: config_entry(config) for config in topic.configs}
    return CreatedTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        configs=configs,
    )


def deleting_topics() -> ItemRequest[str, DeleteTopicsResponse, None]:
    """Describe the request that deletes topics."""

    def build(
        destination: Destination, names: Sequence[str], seconds: float
    ) -> Call[DeleteTopicsResponse]:
        timeout_ms = int(seconds * 1000)

        def request(versions: NodeApiVersions) -> tuple[DeleteTopicsRequest, int | None]:
            if versions.version_for(DeleteTopicsRequest.api_key) < _STATES_VERSION:
                return DeleteTopicsRequest(topic_names=tuple(names), timeout_ms=timeout_ms), None
            states = tuple(DeleteTopicState(name=name, topic_id=ZERO_UUID) for name in names)
            return DeleteTopicsRequest(topics=states, timeout_ms=timeout_ms), None

        return Call(
            destination=destination,
            build=request,
            what="DeleteTopics",
        )

    def read(
        response: DeleteTopicsResponse, _names: Sequence[str]
    ) -> Iterator[tuple[str, BrokerError | None]]:
        for topic in response.responses:
            if topic.name is not None:
                what = f"DeleteTopics({topic.name!r})"
                code = topic.error_code
                yield topic.name, refusal(code, what, topic.error_message) if code else None

    return ItemRequest(what="DeleteTopics", build=build, read=read, is_for_controller=True)


def creating_partitions(
    new_partitions: Mapping[str, NewPartitions], *, validate_only: bool
) -> ItemRequest[str, CreatePartitionsResponse, None]:
    """Describe the request that adds partitions to topics."""

    def build(
        destination: Destination, names: Sequence[str], seconds: float
    ) -> Call[CreatePartitionsResponse]:
        request = CreatePartitionsRequest(
            topics=tuple(_partitions_of(name, new_partitions[name]) for name in names),
            timeout_ms=int(seconds * 1000),
            validate_only=validate_only,
        )
        return Call(
            destination=destination,
            build=lambda _: (request, None),
            what="CreatePartitions",
        )

    def read(
        response: CreatePartitionsResponse, _names: Sequence[str]
    ) -> Iterator[tuple[str, BrokerError | None]]:
        for topic in response.results:
            what = f"CreatePartitions({topic.name!r})"
            code = topic.error_code
            yield topic.name, refusal(code, what, topic.error_message) if code else None

    return ItemRequest(what="CreatePartitions", build=build, read=read, is_for_controller=True)


def _partitions_of(name: str, new: NewPartitions) -> CreatePartitionsTopic:
    assignments = None
    if new.new_assignments is not None:
        assignments = tuple(
            CreatePartitionsAssignment(broker_ids=tuple(brokers)) for brokers in new.new_assignments
        )
    return CreatePartitionsTopic(name=name, count=new.total_count, assignments=assignments)


# --- metadata


def metadata_call(
    topics: Sequence[str] | None,
    *,
    destination: Destination | None = None,
    operations: bool = False,
) -> Call[MetadataResponse]:
    """Build the call that describes topics, or all of them; the caller handles their errors."""
    request = MetadataRequest(
        topics=None
        if topics is None
        else tuple(MetadataRequestTopic(name=name) for name in topics),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=operations,
    )
    return Call(
        destination=destination or AnyBroker(),
        build=lambda _: (request, None),
        error_codes=lambda answer: (answer.error_code,),
        what="Metadata",
    )


def listed_topics(response: MetadataResponse, *, include_internal: bool) -> dict[str, TopicListing]:
    """Return the topics in a response to `metadata_call(None)`, by name."""
    return {
        topic.name: TopicListing(
            name=topic.name, topic_id=topic.topic_id, is_internal=topic.is_internal
        )
        for topic in sorted(response.topics, key=lambda topic: topic.name or "")
        if topic.name is not None and (include_internal or not topic.is_internal)
    }


def describing_topics(
    *, include_authorized_operations: bool
) -> ItemRequest[str, MetadataResponse, TopicDescription]:
    """Describe the request that describes topics."""

    def build(
        destination: Destination, names: Sequence[str], _seconds: float
    ) -> Call[MetadataResponse]:
        return metadata_call(
            names, destination=destination, operations=include_authorized_operations
        )

    def read(
        response: MetadataResponse, _names: Sequence[str]
    ) -> Iterator[tuple[str, TopicDescription | BrokerError]]:
        nodes = nodes_of(response)
        for topic in response.topics:
            if topic.name is not None:
                what = f"Metadata of topic {topic.name!r}"
                code = topic.error_code
                yield topic.name, broker_error(code, what) if code else _described(topic, nodes)

    return ItemRequest(what="Metadata", build=build, read=read)


def nodes_of(response: MetadataResponse) -> dict[int, Node]:
    """Return the brokers in a response, by their ids."""
    return {
        broker.node_id: Node(broker.node_id, broker.host, broker.port)
        for broker in response.brokers
    }


def _described(topic: MetadataResponseTopic, nodes: Mapping[int, Node]) -> TopicDescription:
    def node(node_id: int) -> Node:
        return nodes.get(node_id, Node(node_id, "", -1))

    def info(partition: MetadataResponsePartition) -> TopicPartitionInfo:
        return TopicPartitionInfo(
            partition=partition.partition_index,
            leader=nodes.get(partition.leader_id),
            replicas=tuple(map(node, partition.replica_nodes)),
            isr=tuple(map(node, partition.isr_nodes)),
        )

    ordered = sorted(topic.partitions, key=lambda partition: partition.partition_index)
    return TopicDescription(
        name=topic.name or "",
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=tuple(map(info, ordered)),
        authorized_operations=authorized_operations(topic.topic_authorized_operations),
    )
