"""DescribeConfigs 1-4: describes the settings of topics and brokers.

A topic has the settings that the broker supports (see `topic_config`), each with the source of its
value; a broker has those of `BrokerSettings` that Kafka has too, all read-only. Another broker, or
a type of resource that this broker does not support, gets INVALID_REQUEST; a type that Kafka does
not have fails the whole request with it. A response has about as many settings as a request may
have elements (`request_max_elements`); resources beyond that get POLICY_VIOLATION.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.handlers.config_resources import (
    KAFKA_RESOURCE_TYPES,
    TOPIC_CONFIG_TYPES,
    ConfigType,
    ResourceType,
    find_topic,
)
from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.protocol.messages.describe_configs import DescribeConfigsResource

_TOPIC_SOURCE = 1
_DEFAULT_SOURCE = 5
_FIRST_VERSION_WITH_TYPES = 3


class _Setting(NamedTuple):
    """A setting with its values and their sources, the effective value first."""

    name: str
    config_type: ConfigType
    values: tuple[tuple[str, int], ...]
    read_only: bool


@handles(DescribeConfigsRequest)
def describe_configs(
    context: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    """Describe the settings of each resource."""
    for resource in request.resources:
        if resource.resource_type not in KAFKA_RESOURCE_TYPES:
            raise RefusedError(
                ErrorCode.INVALID_REQUEST,
                f"unknown resource type {resource.resource_type}",
            )
    # Drop duplicates: a small request that repeats a resource would get a huge response.
    resources = dict.fromkeys(request.resources)
    settings_of = cache(partial(_settings, context))
    left = context.settings.request_max_elements
    results = []
    for resource in resources:
        result = (
            _describe(context, request, resource, settings_of)
            if left > 0
            else _failed(
                resource,
                ErrorCode.POLICY_VIOLATION,
                "the response is full: request this resource again",
            )
        )
        left -= len(result.configs)
        results.append(result)
    return DescribeConfigsResponse(results=tuple(results))


def _describe(
    context: RequestContext,
    request: DescribeConfigsRequest,
    resource: DescribeConfigsResource,
    settings_of: Callable[[int, str], list[_Setting]],
) -> DescribeConfigsResult:
    try:
        settings = settings_of(resource.resource_type, resource.resource_name)
    except RefusedError as refused:
        return _failed(resource, refused.error_code, refused.message)
    names = resource.configuration_keys
    return DescribeConfigsResult(
        error_code=ErrorCode.NONE,
        error_message=None,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=tuple(
            DescribeConfigsResourceResult(
                name=setting.name,
                value=setting.values[0][0],
                read_only=setting.read_only,
                config_source=setting.values[0][1],
                is_sensitive=False,
                synonyms=tuple(
                    DescribeConfigsSynonym(name=setting.name, value=value, source=source)
                    for value, source in setting.values
                )
                if request.include_synonyms
                else (),
                config_type=setting.config_type
                if context.version >= _FIRST_VERSION_WITH_TYPES
                else 0,
                documentation=None,
            )
            for setting in settings
            if names is None or setting.name in names
        ),
    )


def _settings(context: RequestContext, resource_type: int, name: str) -> list[_Setting]:
    if resource_type == ResourceType.TOPIC:
        return _topic_settings(context, name)
    if resource_type == ResourceType.BROKER:
        if name not in {"", str(context.node_id)}:
            raise RefusedError(
                ErrorCode.INVALID_REQUEST, f"this is broker {context.node_id}, not {name!r}"
            )
        return _broker_settings(context)
    raise RefusedError(
        ErrorCode.INVALID_REQUEST, f"this broker does not support resource type {resource_type}"
    )


def _topic_settings(context: RequestContext, name: str) -> list[_Setting]:
    topic = find_topic(context, name)
    defaults = context.settings.topic_defaults.effective_values()
    return [
        _Setting(
            name=key,
            config_type=TOPIC_CONFIG_TYPES[key],
            values=((value, _TOPIC_SOURCE), (defaults[key], _DEFAULT_SOURCE))
            if key in topic.overrides
            else ((value, _DEFAULT_SOURCE),),
            read_only=False,
        )
        for key, value in topic.config.effective_values().items()
    ]


def _broker_settings(context: RequestContext) -> list[_Setting]:
    settings = context.settings
    defaults = settings.topic_defaults.effective_values()
    flag, integer, long, text = (
        ConfigType.BOOLEAN,
        ConfigType.INT,
        ConfigType.LONG,
        ConfigType.STRING,
    )
    values = {
        "auto.create.topics.enable": (flag, str(settings.auto_create_topics).lower()),
        "fetch.max.bytes": (integer, str(settings.fetch_max_bytes)),
        "group.initial.rebalance.delay.ms": (
            integer,
            str(settings.group_initial_rebalance_delay_ms),
        ),
        "group.consumer.assignment.interval.ms": (
            integer,
            str(settings.group_consumer_assignment_interval_ms),
        ),
        "group.consumer.heartbeat.interval.ms": (
            integer,
            str(settings.group_consumer_heartbeat_interval_ms),
        ),
        "group.consumer.max.size": (integer, str(settings.group_consumer_max_size)),
        "group.consumer.session.timeout.ms": (
            integer,
            str(settings.group_consumer_session_timeout_ms),
        ),
        "group.max.session.timeout.ms": (integer, str(settings.group_max_session_timeout_ms)),
        "group.max.size": (integer, str(settings.group_max_size)),
        "group.min.session.timeout.ms": (integer, str(settings.group_min_session_timeout_ms)),
        "log.message.timestamp.after.max.ms": (long, defaults["message.timestamp.after.max.ms"]),
        "log.message.timestamp.before.max.ms": (long, defaults["message.timestamp.before.max.ms"]),
        "log.message.timestamp.type": (text, defaults["message.timestamp.type"]),
        "message.max.bytes": (integer, defaults["max.message.bytes"]),
        "min.insync.replicas": (integer, defaults["min.insync.replicas"]),
        "num.partitions": (integer, str(settings.num_partitions)),
        "offset.metadata.max.bytes": (integer, str(settings.offset_metadata_max_bytes)),
        "producer.id.expiration.ms": (integer, str(settings.producer_id_expiration_ms)),
        "socket.request.max.bytes": (integer, str(settings.socket_request_max_bytes)),
        "transaction.max.timeout.ms": (integer, str(settings.transaction_max_timeout_ms)),
        "transactional.id.expiration.ms": (integer, str(settings.transactional_id_expiration_ms)),
    }
    return [
        _Setting(
            name=name,
            config_type=config_type,
            values=((value, _DEFAULT_SOURCE),),
            read_only=True,
        )
        for name, (config_type, value) in values.items()
    ]


def _failed(
    resource: DescribeConfigsResource, error_code: ErrorCode, message: str
) -> DescribeConfigsResult:
    return DescribeConfigsResult(
        error_code=error_code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=(),
    )
