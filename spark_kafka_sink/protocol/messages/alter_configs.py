"""AlterConfigs: replaces all settings of topics and brokers (KIP-133).

What is not in a request is reset; IncrementalAlterConfigs replaced it. Version 2 is flexible.
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class AlterableConfig:
    """One setting."""

    name: str = field(STRING)
    value: str | None = field(STRING, nullable="0+")


@message
class AlterConfigsResource:
    """A topic or a broker, and the settings that it is to have."""

    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    configs: tuple[AlterableConfig, ...] = field(array(AlterableConfig))


@message
class AlterConfigsRequest(ApiRequest["AlterConfigsResponse"]):
    """A request for the controller, which any broker forwards."""

    api_key = ApiKey.ALTER_CONFIGS
    versions = VersionRange(0, 2)

    resources: tuple[AlterConfigsResource, ...] = field(array(AlterConfigsResource))
    validate_only: bool = field(BOOL)


@message
class AlterConfigsResourceResponse:
    """The result for one resource: either all of its settings were replaced or none."""

    error_code: int = field(INT16, default=0)
    error_message: str | None = field(STRING, nullable="0+")
    resource_type: int = field(INT8)
    resource_name: str = field(STRING)


@message
class AlterConfigsResponse(ApiResponse, request=AlterConfigsRequest):
    """A response with one result per resource."""

    throttle_time_ms: int = field(INT32, default=0)
    responses: tuple[AlterConfigsResourceResponse, ...] = field(array(AlterConfigsResourceResponse))
