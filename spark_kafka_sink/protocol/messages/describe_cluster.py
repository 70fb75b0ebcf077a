"""DescribeCluster: the brokers of a cluster (KIP-700).

Version 1 describes brokers or controllers (KIP-919), 2 can include fenced brokers (KIP-1073).
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class DescribeClusterRequest(ApiRequest["DescribeClusterResponse"]):
    """A request to any broker."""

    api_key = ApiKey.DESCRIBE_CLUSTER
    versions = VersionRange(0, 2)

    include_cluster_authorized_operations: bool = field(BOOL)
    #: 1 brokers, 2 controllers.
    endpoint_type: int = field(INT8, versions="1+", default=1)
    include_fenced_brokers: bool = field(BOOL, versions="2+", default=False)


@message
class DescribeClusterBroker:
    """A broker of the cluster."""

    broker_id: int = field(INT32)
    host: str = field(STRING)
    port: int = field(INT32)
    rack: str | None = field(STRING, nullable="0+", default=None)
    is_fenced: bool = field(BOOL, versions="2+", default=False)


@message
class DescribeClusterResponse(ApiResponse, request=DescribeClusterRequest):
    """A response with the cluster's brokers."""

    throttle_time_ms: int = field(INT32, default=0)
    error_code: int = field(INT16, default=0)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    endpoint_type: int = field(INT8, versions="1+", default=1)
    cluster_id: str = field(STRING)
    controller_id: int = field(INT32, default=-1)
    brokers: tuple[DescribeClusterBroker, ...] = field(array(DescribeClusterBroker))
    #: One bit per AclOperation; the minimum int32 if they were not requested.
    cluster_authorized_operations: int = field(INT32, default=-2147483648)
