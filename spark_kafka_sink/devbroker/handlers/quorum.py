"""The controllers of the cluster: DescribeQuorum."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from spark_kafka_sink.devbroker.cluster.standalone_cluster import StandaloneCluster
from spark_kafka_sink.devbroker.cluster.topic_changes import CLUSTER_METADATA_TOPIC
from spark_kafka_sink.devbroker.handlers.handler import Delayed, RequestContext, handles
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    Node,
    PartitionData,
    ReplicaState,
    RequestedPartitionData,
    RequestedTopicData,
    TopicData,
)

_FIRST_VERSION_WITH_NODES = 2
_ASKED = RequestedTopicData(
    topic_name=CLUSTER_METADATA_TOPIC, partitions=(RequestedPartitionData(partition_index=0),)
)


def _error_response(
    _context: RequestContext, _request: object, error_code: ErrorCode, message: str
) -> DescribeQuorumResponse:
    return DescribeQuorumResponse(error_code=error_code, error_message=message, topics=())


@handles(DescribeQuorumRequest, error_response=_error_response)
def describe_quorum(
    context: RequestContext, request: DescribeQuorumRequest
) -> DescribeQuorumResponse | Delayed:
    """Describe who replicates the metadata of the cluster (DescribeQuorum 0-2).

    All brokers are controllers, too. The one that leads says how far each of the others has fetched
    its log. One broker alone has no log, and its offset counts changes.
    Any other partition than the one of the metadata gets UNKNOWN_TOPIC_OR_PARTITION.
    """
    if request.topics != (_ASKED,):
        return DescribeQuorumResponse(
            error_message="",
            topics=tuple(
                TopicData(
                    topic_name=topic.topic_name,
                    partitions=tuple(
                        PartitionData(
                            partition_index=partition.partition_index,
                            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                            error_message="This server does not host this topic-partition.",
                            leader_id=0,
                            leader_epoch=0,
                            high_watermark=0,
                            current_voters=(),
                            observers=(),
                        )
                        for partition in topic.partitions
                    ),
                )
                for topic in request.topics
            ),
        )
    cluster = context.cluster
    if isinstance(cluster, StandaloneCluster):
        described = PartitionData(
            partition_index=0,
            error_message="",
            leader_id=cluster.controller_id,
            leader_epoch=cluster.controller_epoch,
            high_watermark=cluster.metadata_offset,
            current_voters=(
                ReplicaState(
                    replica_id=cluster.controller_id,
                    log_end_offset=cluster.metadata_offset,
                    last_fetch_timestamp=context.now_ms,
                    last_caught_up_timestamp=context.now_ms,
                ),
            ),
            observers=(),
        )
        topic = TopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=(described,))
        response = DescribeQuorumResponse(error_message="", topics=(topic,))
    else:
        outcome = context.ask_controller(cluster, request)
        if isinstance(outcome, Delayed):
            return outcome
        response = cast("DescribeQuorumResponse", outcome)
    if context.version < _FIRST_VERSION_WITH_NODES:
        return response
    listener = context.listener or "PLAINTEXT"
    return replace(
        response,
        nodes=tuple(
            Node(
                node_id=node_id,
                listeners=(Listener(name=listener, host=node.host, port=node.port),),
            )
            for node_id, node in sorted(context.nodes.items())
        ),
    )
