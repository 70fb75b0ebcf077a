"""DescribeConfigs: the settings of topics and brokers (KIP-133).

Version 1 adds the sources of values, 3 types and documentation (KIP-569), 4 is flexible.
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class DescribeConfigsResource:
    """A topic or a broker."""

    #: 2 topic, 4 broker, 8 broker logger (ConfigResource.Type).
    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    #: None: all settings.
    configuration_keys: tuple[str, ...] | None = field(array(STRING), nullable="0+")


@message
class DescribeConfigsRequest(ApiRequest["DescribeConfigsResponse"]):
    """A request to any broker; for a broker's settings, to that broker."""

    api_key = ApiKey.DESCRIBE_CONFIGS
    versions = VersionRange(1, 4)

    resources: tuple[DescribeConfigsResource, ...] = field(array(DescribeConfigsResource))
    include_synonyms: bool = field(BOOL, versions="1+", default=False)
    include_documentation: bool = field(BOOL, versions="3+", default=False)


@message
class DescribeConfigsSynonym:
    """A setting from which the value may come, in order of precedence."""

    name: str = field(STRING, versions="1+")
    value: str | None = field(STRING, versions="1+", nullable="0+")
    source: int = field(INT8, versions="1+")


@message
class DescribeConfigsResourceResult:
    """A setting of one resource."""

    name: str = field(STRING)
    value: str | None = field(STRING, nullable="0+")
    read_only: bool = field(BOOL)
    #: 1 topic, 4 static broker configuration, 5 default (ConfigSource).
    config_source: int = field(INT8, versions="1+", ignorable=True, default=-1)
    is_sensitive: bool = field(BOOL)
    synonyms: tuple[DescribeConfigsSynonym, ...] = field(
        array(DescribeConfigsSynonym), versions="1+", ignorable=True
    )
    config_type: int = field(INT8, versions="3+", ignorable=True, default=0)
    documentation: str | None = field(
        STRING, versions="3+", nullable="0+", ignorable=True, default=""
    )


@message
class DescribeConfigsResult:
    """The settings of one resource."""

    error_code: int = field(INT16, default=0)
    error_message: str | None = field(STRING, nullable="0+")
    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    configs: tuple[DescribeConfigsResourceResult, ...] = field(array(DescribeConfigsResourceResult))


@message
class DescribeConfigsResponse(ApiResponse, request=DescribeConfigsRequest):
    """A response with one result per resource."""

    throttle_time_ms: int = field(INT32, default=0)
    results: tuple[DescribeConfigsResult, ...] = field(array(DescribeConfigsResult))
