"""DescribeCluster 0-2: lists the brokers of the cluster.

Only brokers can be requested: controllers (endpoint type 2) get MISMATCHED_ENDPOINT_TYPE, any other
type UNSUPPORTED_ENDPOINT_TYPE. Stopped brokers are not listed. There is no authorizer, so all
operations are authorized.
"""

from __future__ import annotations

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.devbroker.handlers.metadata import ALL_CLUSTER_OPERATIONS
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from spark_kafka_sink.protocol.messages.metadata import UNKNOWN_OPERATIONS

_BROKERS, _CONTROLLERS = 1, 2


@handles(DescribeClusterRequest)
def describe_cluster(
    context: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    """Return the running brokers."""
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
        cluster_authorized_operations=ALL_CLUSTER_OPERATIONS
        if request.include_cluster_authorized_operations
        else UNKNOWN_OPERATIONS,
    )
