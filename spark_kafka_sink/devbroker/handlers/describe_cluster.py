"""DescribeCluster 0-2: lists the brokers of the cluster.

Only brokers can be requested: controllers (endpoint type 2) get MISMATCHED_ENDPOINT_TYPE, any other
type UNSUPPORTED_ENDPOINT_TYPE. Stopped brokers are not listed. There is no authorizer, so all
operations are authorized.
"""

# ruff: noqa: ARG002 - every handler has the signatures of Handler

from __future__ import annotations

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.handlers.handler import Handler, RequestContext
from spark_kafka_sink.devbroker.handlers.metadata import ALL_CLUSTER_OPERATIONS
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from spark_kafka_sink.protocol.messages.metadata import UNKNOWN_OPERATIONS

_BROKERS, _CONTROLLERS = 1, 2


class DescribeClusterHandler(Handler[DescribeClusterRequest, DescribeClusterResponse]):
    """The handler that describes the cluster."""

    api_key = ApiKey.DESCRIBE_CLUSTER
    versions = DescribeClusterRequest.versions

    def handle(
        self, context: RequestContext, request: DescribeClusterRequest
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

    def error_response(
        self,
        context: RequestContext,
        request: DescribeClusterRequest,
        error_code: ErrorCode,
        message: str,
    ) -> DescribeClusterResponse:
        """Return a response with the error and no brokers."""
        return DescribeClusterResponse(
            error_code=error_code, error_message=message, cluster_id="", brokers=()
        )
