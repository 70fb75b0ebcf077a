"""ListConfigResources: what has settings (KIP-1142).

Version 0 lists client metrics subscriptions only (KIP-714), 1 resources of all types.
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class ListConfigResourcesRequest(ApiRequest["ListConfigResourcesResponse"]):
    """A request to any broker."""

    api_key = ApiKey.LIST_CONFIG_RESOURCES
    versions = VersionRange(0, 1)

    #: Types as in `describe_configs`; empty: all types.
    resource_types: tuple[int, ...] = field(array(INT8), versions="1+", default=())


@message
class ConfigResource:
    """Something that has settings."""

    resource_name: str = field(STRING)
    resource_type: int = field(INT8, versions="1+", ignorable=True, default=16)


@message
class ListConfigResourcesResponse(ApiResponse, request=ListConfigResourcesRequest):
    """A response with all resources of the requested types."""

    throttle_time_ms: int = field(INT32, default=0)
    error_code: int = field(INT16, default=0)
    config_resources: tuple[ConfigResource, ...] = field(array(ConfigResource))
