"""The brokers, and what each of them leads: Metadata, DescribeCluster and FindCoordinator."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.authorizer import CLUSTER_NAME, not_authorized
from spark_kafka_sink.devbroker.base.new_topics import new_topics
from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.topic_names import (
    GROUP_METADATA_TOPIC,
    INTERNAL_TOPICS,
    TRANSACTION_STATE_TOPIC,
    validate_topic_name,
)
from spark_kafka_sink.devbroker.cluster.partition import NO_LEADER, Partition, Topic
from spark_kafka_sink.devbroker.cluster.standalone_cluster import StandaloneCluster
from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.model import Node
from spark_kafka_sink.protocol.acl_codes import AclOperation, ResourceType
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from spark_kafka_sink.protocol.messages.find_coordinator import (
    Coordinator,
    CoordinatorType,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from spark_kafka_sink.protocol.messages.metadata import (
    UNKNOWN_OPERATIONS,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from spark_kafka_sink.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    import uuid
    from contextlib import AbstractContextManager

    from spark_kafka_sink.devbroker.cluster.topic_changes import TopicChanges
    from spark_kafka_sink.devbroker.handlers.handler import Cluster

_FIRST_VERSION_WITH_TOPIC_IDS = 12
#: Versions that can request the authorized operations of the cluster.
_VERSIONS_WITH_CLUSTER_OPERATIONS = range(8, 11)
_FIRST_VERSION_WITH_TOPIC_OPERATIONS = 8
#: Endpoint types of DescribeCluster.
_BROKERS, _CONTROLLERS = 1, 2
_FIRST_VERSION_WITH_MANY_KEYS = 4
_NO_NODE_ID = -1
_NO_PORT = -1
_NO_NODE = Node(_NO_NODE_ID, "", _NO_PORT)
#: The types of keys that have coordinators, and the resources that they name.
_RESOURCES = {
    CoordinatorType.GROUP: ResourceType.GROUP,
    CoordinatorType.TRANSACTION: ResourceType.TRANSACTIONAL_ID,
}


def _error_response(
    _context: RequestContext,
    request: MetadataRequest,
    error_code: ErrorCode,
    _message: str,
) -> MetadataResponse:
    """Return a response with the error for each requested topic."""
    return MetadataResponse(
        brokers=(),
        topics=tuple(
            MetadataResponseTopic(
                error_code=error_code,
                name=topic.name if topic.name is not None else "",
                topic_id=topic.topic_id,
                partitions=(),
            )
            for topic in request.topics or ()
        ),
        error_code=error_code,
    )


@handles(MetadataRequest, error_response=_error_response)
def metadata(context: RequestContext, request: MetadataRequest) -> MetadataResponse:
    """Return the brokers, and topics with the leaders of their partitions (Metadata 0-13).

    - A request is for all topics (null, or an empty list in version 0), or for topics by name or by
      id (12+).
    - A topic that does not exist gets UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION if its
      name is invalid, or UNKNOWN_TOPIC_ID.
    - If the client and `auto_create_topics` both allow it, a missing topic is created, but as in
      Kafka this response still has UNKNOWN_TOPIC_OR_PARTITION and the client retries. One request
      creates at most `request_max_partitions` partitions, but may always create one topic. The
      topics are written to disk at once; if that fails, none is created and each gets
      KAFKA_STORAGE_ERROR.
    - A partition without a leader gets LEADER_NOT_AVAILABLE, with its last leader epoch. Version 0
      omits the replicas of stopped brokers, with REPLICA_NOT_AVAILABLE.
    - With an authorizer, a topic that the client may not describe gets TOPIC_AUTHORIZATION_FAILED,
      and so does one that it may not create; of all topics, only those that it may describe are
      listed.
    """
    cluster_operations = UNKNOWN_OPERATIONS
    if (
        context.version in _VERSIONS_WITH_CLUSTER_OPERATIONS
        and request.include_cluster_authorized_operations
    ):
        cluster_operations = _cluster_operations(context)
    return MetadataResponse(
        brokers=context.endpoints(MetadataResponseBroker, context.nodes),
        cluster_id=context.cluster.cluster_id,
        controller_id=context.cluster.controller_id,
        topics=tuple(_topics(context, request)),
        cluster_authorized_operations=cluster_operations,
    )


def _cluster_operations(context: RequestContext) -> int:
    if not context.allows(AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return 0
    return context.authorized_operations(ResourceType.CLUSTER, CLUSTER_NAME)


def _may_describe(context: RequestContext, topic: str) -> bool:
    return context.allows(AclOperation.DESCRIBE, ResourceType.TOPIC, topic)


def _topics(context: RequestContext, request: MetadataRequest) -> list[MetadataResponseTopic]:
    cluster = context.cluster
    if request.topics is None or (context.version == 0 and not request.topics):
        return [
            _topic(context, request, topic)
            for topic in cluster.topics
            if _may_describe(context, topic.name)
        ]
    if context.version < _FIRST_VERSION_WITH_TOPIC_IDS:
        for requested in request.topics:
            if requested.name is None or requested.topic_id != ZERO_UUID:
                raise RefusedError(
                    ErrorCode.INVALID_REQUEST,
                    f"Metadata version {context.version} requests topics by name only",
                )
    topic_ids = {t.topic_id: None for t in request.topics if t.topic_id != ZERO_UUID}
    if topic_ids:
        by_id = [(topic_id, cluster.topic_by_id(topic_id)) for topic_id in topic_ids]
        return [
            _missing_topic(ErrorCode.UNKNOWN_TOPIC_ID, None, topic_id)
            if topic is None
            else _topic(context, request, topic)
            if _may_describe(context, topic.name)
            else _missing_topic(ErrorCode.TOPIC_AUTHORIZATION_FAILED, None, topic_id)
            for topic_id, topic in by_id
        ]
    return _named_topics(context, request)


def _plan(cluster: Cluster) -> AbstractContextManager[TopicChanges | None]:
    """Return a plan of changes; None if a controller makes them."""
    return cluster.change_topics() if isinstance(cluster, StandaloneCluster) else nullcontext()


def _named_topics(context: RequestContext, request: MetadataRequest) -> list[MetadataResponseTopic]:
    names = dict.fromkeys(t.name for t in request.topics or () if t.name is not None)
    described: dict[str, MetadataResponseTopic] = {}
    created: list[str] = []
    # Storage errors count too, so that a full disk is not tried again for every name.
    tried = 0
    cluster = context.cluster
    try:
        with _plan(cluster) as changes:
            for name in names:
                if not _may_describe(context, name):
                    # Whether it exists, or is an internal topic, is not disclosed.
                    described[name] = replace(
                        _missing_topic(ErrorCode.TOPIC_AUTHORIZATION_FAILED, name, ZERO_UUID),
                        is_internal=False,
                    )
                    continue
                topic = cluster.topic(name)
                if topic is not None:
                    described[name] = _topic(context, request, topic)
                    continue
                try:
                    validate_topic_name(name)
                    if _creates(context, request, tried):
                        _check_creation(context, name)
                        if changes is not None:
                            changes.create_topic(
                                name,
                                partitions=context.settings.num_partitions,
                                config=cluster.topic_defaults,
                            )
                        created.append(name)
                        tried += 1
                except RefusedError as refused:
                    code = refused.error_code
                    tried += code is ErrorCode.KAFKA_STORAGE_ERROR
                else:
                    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                described[name] = _missing_topic(code, name, ZERO_UUID)
    except RefusedError as refused:
        described |= {name: _missing_topic(refused.error_code, name, ZERO_UUID) for name in created}
    if created and not isinstance(cluster, StandaloneCluster):
        # As in Kafka, the response does not wait for the outcome: the client asks again.
        cluster.forward(new_topics(created), context.version, context.now)
    return list(described.values())


def _topic(
    context: RequestContext, request: MetadataRequest, topic: Topic
) -> MetadataResponseTopic:
    operations = UNKNOWN_OPERATIONS
    if (
        context.version >= _FIRST_VERSION_WITH_TOPIC_OPERATIONS
        and request.include_topic_authorized_operations
    ):
        operations = context.authorized_operations(ResourceType.TOPIC, topic.name)
    return MetadataResponseTopic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=tuple(_partition(context, partition) for partition in topic.partitions),
        topic_authorized_operations=operations,
    )


def _check_creation(context: RequestContext, name: str) -> None:
    """Raise RefusedError unless the client may create a topic."""
    if not context.allows(AclOperation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME):
        context.check_right(AclOperation.CREATE, ResourceType.TOPIC, name)


def _creates(context: RequestContext, request: MetadataRequest, tried: int) -> bool:
    """Return whether one more topic is created after `tried` attempts in this request."""
    settings = context.settings
    return (
        settings.auto_create_topics
        and request.allow_auto_topic_creation
        and (not tried or (tried + 1) * settings.num_partitions <= settings.request_max_partitions)
    )


def _partition(context: RequestContext, partition: Partition) -> MetadataResponsePartition:
    """Return a partition's metadata (KRaftMetadataCache.getPartitionMetadata)."""
    nodes = context.cluster.nodes
    offline = tuple(replica for replica in partition.replicas if replica not in nodes)
    replicas = partition.replicas
    if context.version == 0:
        replicas = tuple(replica for replica in replicas if replica in nodes)
    if partition.leader_id == NO_LEADER:
        error_code = ErrorCode.LEADER_NOT_AVAILABLE
    elif replicas != partition.replicas:
        error_code = ErrorCode.REPLICA_NOT_AVAILABLE
    else:
        error_code = ErrorCode.NONE
    return MetadataResponsePartition(
        error_code=error_code,
        partition_index=partition.index,
        leader_id=partition.leader_id,
        leader_epoch=partition.leader_epoch,
        replica_nodes=replicas,
        isr_nodes=partition.leadership.isr,
        offline_replicas=offline,
    )


def _missing_topic(
    error_code: ErrorCode, name: str | None, topic_id: uuid.UUID
) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=error_code,
        name=name,
        topic_id=topic_id,
        is_internal=name in INTERNAL_TOPICS,
        partitions=(),
    )


@handles(DescribeClusterRequest)
def describe_cluster(
    context: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    """Return the brokers of the cluster (DescribeCluster 0-2).

    Only brokers can be requested: controllers (endpoint type 2) get MISMATCHED_ENDPOINT_TYPE, any
    other type UNSUPPORTED_ENDPOINT_TYPE. Stopped brokers are not listed.
    """
    if request.endpoint_type != _BROKERS:
        raise RefusedError(
            ErrorCode.MISMATCHED_ENDPOINT_TYPE
            if request.endpoint_type == _CONTROLLERS
            else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            f"this is a broker, not an endpoint of type {request.endpoint_type}",
        )
    cluster = context.cluster
    return DescribeClusterResponse(
        error_code=ErrorCode.NONE,
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller_id,
        brokers=tuple(
            DescribeClusterBroker(
                broker_id=node.node_id,
                host=node.host,
                port=node.port,
                rack=cluster.racks.get(node.node_id),
                is_fenced=False,
            )
            for node in context.nodes.values()
        ),
        cluster_authorized_operations=_cluster_operations(context)
        if request.include_cluster_authorized_operations
        else UNKNOWN_OPERATIONS,
    )


@handles(FindCoordinatorRequest, when_failed={"node_id": _NO_NODE_ID, "port": _NO_PORT})
def find_coordinator(
    context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    """Find the coordinators of groups or transactional ids (FindCoordinator 0-6).

    - The coordinator is the broker that leads the id's partition of __consumer_offsets or
      __transaction_state; while no broker does, the error is COORDINATOR_NOT_AVAILABLE. Clients do
      not see these topics (`topic_names`).
    - With an authorizer, the client must be allowed to describe the group or transactional id.
    - Share groups, which this broker does not support, and all other key types get INVALID_REQUEST.
    - Up to version 3 a request has one key; from version 4 on it has many, each with its own
      result.
    """
    if request.key_type not in _RESOURCES:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST,
            f"this broker does not support coordinator key type {request.key_type}",
        )
    of_groups = request.key_type == CoordinatorType.GROUP
    context.cluster.prepare_coordinators(
        GROUP_METADATA_TOPIC if of_groups else TRANSACTION_STATE_TOPIC, context.now
    )
    find = (
        context.cluster.group_coordinator if of_groups else context.cluster.transaction_coordinator
    )
    running = context.nodes
    resource_type = _RESOURCES[CoordinatorType(request.key_type)]

    def coordinator(key: str) -> tuple[Node, ErrorCode]:
        if not context.allows(AclOperation.DESCRIBE, resource_type, key):
            return _NO_NODE, not_authorized(resource_type).error_code
        node = running.get(find(key), _NO_NODE)
        return node, ErrorCode.COORDINATOR_NOT_AVAILABLE if node is _NO_NODE else ErrorCode.NONE

    if context.version < _FIRST_VERSION_WITH_MANY_KEYS:
        node, error_code = coordinator(request.key)
        return FindCoordinatorResponse(
            error_code=error_code,
            error_message=error_code.name,
            node_id=node.node_id,
            host=node.host,
            port=node.port,
        )
    return FindCoordinatorResponse(
        coordinators=tuple(
            Coordinator(
                key=key,
                node_id=node.node_id,
                host=node.host,
                port=node.port,
                error_code=error_code,
                error_message="",
            )
            for key in request.coordinator_keys
            for node, error_code in (coordinator(key),)
        )
    )
