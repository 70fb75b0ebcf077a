"""IncrementalAlterConfigs: changes individual settings of topics and brokers (KIP-339).

Version 1 is flexible.
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class AlterableConfig:
    """A change to one setting."""

    name: str = field(STRING)
    #: 0 set, 1 delete, 2 append to a list, 3 subtract from it.
    config_operation: int = field(INT8)
    value: str | None = field(STRING, nullable="0+")


@message
class AlterConfigsResource:
    """A topic or a broker, and the changes to its settings."""

    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    configs: tuple[AlterableConfig, ...] = field(array(AlterableConfig))


@message
class IncrementalAlterConfigsRequest(ApiRequest["IncrementalAlterConfigsResponse"]):
    """A request for the controller, which any broker forwards."""

    api_key = ApiKey.INCREMENTAL_ALTER_CONFIGS
    versions = VersionRange(0, 1)

    resources: tuple[AlterConfigsResource, ...] = field(array(AlterConfigsResource))
    validate_only: bool = field(BOOL)


@message
class AlterConfigsResourceResponse:
    """The result for one resource: either all of its changes were made or none."""

    error_code: int = field(INT16, default=0)
    error_message: str | None = field(STRING, nullable="0+")
    resource_type: int = field(INT8)
    resource_name: str = field(STRING)


@message
class IncrementalAlterConfigsResponse(ApiResponse, request=IncrementalAlterConfigsRequest):
    """A response with one result per resource."""

    throttle_time_ms: int = field(INT32, default=0)
    responses: tuple[AlterConfigsResourceResponse, ...] = field(array(AlterConfigsResourceResponse))
