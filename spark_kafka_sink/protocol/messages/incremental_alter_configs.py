"""IncrementalAlterConfigs: changes some settings of topics and brokers (KIP-339).

1 is flexible.
"""

from __future__ import annotations

from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.schema import (
    BOOL,
    INT8,
    INT16,
    INT32,
    STRING,
    ApiMessage,
    VersionRange,
    array,
    field,
    message,
)


@message
class AlterableConfig:
    """A change of one setting."""

    name: str = field(STRING)
    #: 0 set, 1 delete, 2 append to a list, 3 subtract from it.
    config_operation: int = field(INT8)
    value: str | None = field(STRING, nullable="0+")


@message
class AlterConfigsResource:
    """A topic or broker."""

    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    configs: tuple[AlterableConfig, ...] = field(array(AlterableConfig))


@message
class IncrementalAlterConfigsRequest(ApiMessage):
    """Asks the controller, through any broker."""

    api_key = ApiKey.INCREMENTAL_ALTER_CONFIGS
    versions = VersionRange(0, 1)

    resources: tuple[AlterConfigsResource, ...] = field(array(AlterConfigsResource))
    validate_only: bool = field(BOOL)


@message
class AlterConfigsResourceResponse:
    """What became of one resource: all of its changes, or none."""

    error_code: int = field(INT16, default=0)
    error_message: str | None = field(STRING, nullable="0+")
    resource_type: int = field(INT8)
    resource_name: str = field(STRING)


@message
class IncrementalAlterConfigsResponse(ApiMessage):
    """One answer per resource."""

    api_key = ApiKey.INCREMENTAL_ALTER_CONFIGS
    versions = VersionRange(0, 1)

    throttle_time_ms: int = field(INT32, default=0)
    responses: tuple[AlterConfigsResourceResponse, ...] = field(array(AlterConfigsResourceResponse))
