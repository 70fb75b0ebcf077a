"""The request about the cluster itself, which any broker answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.admin.cluster_calls import AnyBroker, Call, refusal
from spark_kafka_sink.admin.values import ClusterDescription, authorized_operations
from spark_kafka_sink.model import Node
from spark_kafka_sink.protocol.messages.describe_cluster import DescribeClusterRequest

if TYPE_CHECKING:
    from spark_kafka_sink.protocol.messages.describe_cluster import DescribeClusterResponse


def describe_cluster_call(*, include_authorized_operations: bool) -> Call[DescribeClusterResponse]:
    """Build the call that describes the cluster."""
    request = DescribeClusterRequest(
        include_cluster_authorized_operations=include_authorized_operations
    )
    return Call(
        destination=AnyBroker(),
        build=lambda _: (request, None),
        error_codes=lambda answer: (answer.error_code,),
        what="DescribeCluster",
    )


def described_cluster(response: DescribeClusterResponse) -> ClusterDescription:
    """Return the description in a response; raises BrokerError."""
    if response.error_code:
        raise refusal(response.error_code, "DescribeCluster", response.error_message)
    nodes = {
        broker.broker_id: Node(broker.broker_id, broker.host, broker.port)
        for broker in response.brokers
    }
    return ClusterDescription(
        cluster_id=response.cluster_id,
        controller=nodes.get(response.controller_id),
        nodes=tuple(nodes[node_id] for node_id in sorted(nodes)),
        authorized_operations=authorized_operations(response.cluster_authorized_operations),
    )
