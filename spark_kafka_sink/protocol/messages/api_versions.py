"""ApiVersions: the API versions that a broker supports, and the features of its cluster.

Version 3 is flexible and contains the client's name (KIP-511) and the cluster's features (KIP-584);
version 4 allows 0 as a feature's minimum version, and 5 says which broker the client means to have
connected to (KIP-1242). A broker that does not support the requested version responds in version 0.
The response's header is never flexible.
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class ApiVersionsRequest(ApiRequest["ApiVersionsResponse"]):
    """The first request on every connection."""

    api_key = ApiKey.API_VERSIONS
    versions = VersionRange(0, 5)

    client_software_name: str = field(STRING, versions="3+", ignorable=True, default="")
    client_software_version: str = field(STRING, versions="3+", ignorable=True, default="")
    #: Both are set, or none: the broker answers REBOOTSTRAP_REQUIRED if it is another one.
    cluster_id: str | None = field(
        STRING, versions="5+", nullable="5+", ignorable=True, default=None
    )
    node_id: int = field(INT32, versions="5+", ignorable=True, default=-1)


@message
class ApiVersion:
    """The supported versions of one API."""

    #: A number, since a newer broker may have APIs that `ApiKey` lacks.
    api_key: int = field(INT16)
    min_version: int = field(INT16)
    max_version: int = field(INT16)


@message
class SupportedFeatureKey:
    """The versions of a feature that the broker supports."""

    name: str = field(STRING, versions="3+")
    min_version: int = field(INT16, versions="3+")
    max_version: int = field(INT16, versions="3+")


@message
class FinalizedFeatureKey:
    """The version of a feature that the whole cluster uses."""

    name: str = field(STRING, versions="3+")
    max_version_level: int = field(INT16, versions="3+")
    min_version_level: int = field(INT16, versions="3+")


@message
class ApiVersionsResponse(ApiResponse, request=ApiVersionsRequest):
    """A response with the broker's APIs and features."""

    error_code: int = field(INT16, default=0)
    api_keys: tuple[ApiVersion, ...] = field(array(ApiVersion))
    throttle_time_ms: int = field(INT32, versions="1+", ignorable=True, default=0)
    supported_features: tuple[SupportedFeatureKey, ...] = field(
        array(SupportedFeatureKey), versions="3+", tag=0, ignorable=True, default=()
    )
    #: Increases with every change of the finalized features; -1 if unknown.
    finalized_features_epoch: int = field(INT64, versions="3+", tag=1, ignorable=True, default=-1)
    finalized_features: tuple[FinalizedFeatureKey, ...] = field(
        array(FinalizedFeatureKey), versions="3+", tag=2, ignorable=True, default=()
    )
    zk_migration_ready: bool = field(BOOL, versions="3+", tag=3, ignorable=True, default=False)
