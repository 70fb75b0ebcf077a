"""The settings of topics and brokers: DescribeConfigs and IncrementalAlterConfigs."""

from __future__ import annotations

from collections import Counter
from enum import IntEnum
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.topic_names import validate_topic_name
from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from spark_kafka_sink.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.devbroker.cluster.partition import Topic
    from spark_kafka_sink.devbroker.cluster.topic_changes import TopicChanges

#: All types of Kafka's ConfigResource.Type: topic, broker, broker logger, client metrics, group.
_KAFKA_RESOURCE_TYPES = frozenset({2, 4, 8, 16, 32})
_TOPIC, _BROKER = 2, 4
#: Values of Kafka's ConfigSource.
_TOPIC_SOURCE, _DEFAULT_SOURCE = 1, 5
#: Values of Kafka's AlterConfigOp.OpType.
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
_FIRST_VERSION_WITH_TYPES = 3


class _ConfigType(IntEnum):
    """The value types of Kafka's DescribeConfigsResponse.ConfigType."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


_TOPIC_CONFIG_TYPES = {
    "max.message.bytes": _ConfigType.INT,
    "message.timestamp.type": _ConfigType.STRING,
    "message.timestamp.before.max.ms": _ConfigType.LONG,
    "message.timestamp.after.max.ms": _ConfigType.LONG,
    "min.insync.replicas": _ConfigType.INT,
    "cleanup.policy": _ConfigType.LIST,
    "compression.type": _ConfigType.STRING,
    "retention.ms": _ConfigType.LONG,
    "retention.bytes": _ConfigType.LONG,
    "segment.bytes": _ConfigType.INT,
    "segment.ms": _ConfigType.LONG,
    "segment.index.bytes": _ConfigType.INT,
    "index.interval.bytes": _ConfigType.INT,
    "flush.messages": _ConfigType.LONG,
    "flush.ms": _ConfigType.LONG,
    "delete.retention.ms": _ConfigType.LONG,
    "min.cleanable.dirty.ratio": _ConfigType.DOUBLE,
    "min.compaction.lag.ms": _ConfigType.LONG,
}


#: The types of the broker's settings that are not integers.
_BROKER_CONFIG_TYPES = {
    "auto.create.topics.enable": _ConfigType.BOOLEAN,
    "log.message.timestamp.after.max.ms": _ConfigType.LONG,
    "log.message.timestamp.before.max.ms": _ConfigType.LONG,
    "log.message.timestamp.type": _ConfigType.STRING,
}


def _find_topic(context: RequestContext, name: str) -> Topic:
    """Raise RefusedError with INVALID_TOPIC_EXCEPTION or UNKNOWN_TOPIC_OR_PARTITION."""
    validate_topic_name(name)
    topic = context.cluster.topic(name)
    if topic is None:
        raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
    return topic


def _named(resource: DescribeConfigsResource | AlterConfigsResource) -> dict[str, Any]:
    return {
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
    }


class _Setting(NamedTuple):
    """A setting with its values and their sources, the effective value first."""

    name: str
    config_type: _ConfigType
    values: tuple[tuple[str, int], ...]
    read_only: bool


@handles(DescribeConfigsRequest)
def describe_configs(
    context: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    """Describe the settings of topics and brokers (DescribeConfigs 1-4).

    A topic has the settings that the broker supports (see `topic_config`), each with the source of
    its value; a broker has those of `BrokerSettings` that Kafka has too, all read-only. Another
    broker, or a type of resource that this broker does not support, gets INVALID_REQUEST; a type
    that Kafka does not have fails the whole request with it. A response has about as many settings
    as a request may have elements (`request_max_elements`); resources beyond that get
    POLICY_VIOLATION.
    """
    for resource in request.resources:
        if resource.resource_type not in _KAFKA_RESOURCE_TYPES:
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
        try:
            result = _describe(context, request, resource, settings_of, left)
        except RefusedError as refused:
            result = context.failed(DescribeConfigsResult, refused, **_named(resource))
        left -= len(result.configs)
        results.append(result)
    return DescribeConfigsResponse(results=tuple(results))


def _describe(
    context: RequestContext,
    request: DescribeConfigsRequest,
    resource: DescribeConfigsResource,
    settings_of: Callable[[int, str], list[_Setting]],
    left: int,
) -> DescribeConfigsResult:
    """Describe a resource, if the response may have more settings. Raises RefusedError."""
    if left <= 0:
        raise RefusedError(
            ErrorCode.POLICY_VIOLATION, "the response is full: request this resource again"
        )
    names = resource.configuration_keys
    return DescribeConfigsResult(
        error_code=ErrorCode.NONE,
        error_message=None,
        **_named(resource),
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
            for setting in settings_of(resource.resource_type, resource.resource_name)
            if names is None or setting.name in names
        ),
    )


def _settings(context: RequestContext, resource_type: int, name: str) -> list[_Setting]:
    if resource_type == _TOPIC:
        return _topic_settings(context, name)
    if resource_type == _BROKER:
        if name not in {"", str(context.node_id)}:
            raise RefusedError(
                ErrorCode.INVALID_REQUEST, f"this is broker {context.node_id}, not {name!r}"
            )
        return _broker_settings(context)
    raise RefusedError(
        ErrorCode.INVALID_REQUEST, f"this broker does not support resource type {resource_type}"
    )


def _topic_settings(context: RequestContext, name: str) -> list[_Setting]:
    topic = _find_topic(context, name)
    defaults = context.settings.topic_defaults.effective_values()
    return [
        _Setting(
            name=key,
            config_type=_TOPIC_CONFIG_TYPES[key],
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
    values: dict[str, int | str] = {
        "auto.create.topics.enable": str(settings.auto_create_topics).lower(),
        "fetch.max.bytes": settings.fetch_max_bytes,
        "group.initial.rebalance.delay.ms": settings.group_initial_rebalance_delay_ms,
        "group.consumer.assignment.interval.ms": settings.group_consumer_assignment_interval_ms,
        "group.consumer.heartbeat.interval.ms": settings.group_consumer_heartbeat_interval_ms,
        "group.consumer.max.size": settings.group_consumer_max_size,
        "group.consumer.session.timeout.ms": settings.group_consumer_session_timeout_ms,
        "group.max.session.timeout.ms": settings.group_max_session_timeout_ms,
        "group.max.size": settings.group_max_size,
        "group.min.session.timeout.ms": settings.group_min_session_timeout_ms,
        "log.message.timestamp.after.max.ms": defaults["message.timestamp.after.max.ms"],
        "log.message.timestamp.before.max.ms": defaults["message.timestamp.before.max.ms"],
        "log.message.timestamp.type": defaults["message.timestamp.type"],
        "message.max.bytes": defaults["max.message.bytes"],
        "min.insync.replicas": defaults["min.insync.replicas"],
        "num.partitions": settings.num_partitions,
        "offset.metadata.max.bytes": settings.offset_metadata_max_bytes,
        "producer.id.expiration.ms": settings.producer_id_expiration_ms,
        "socket.request.max.bytes": settings.socket_request_max_bytes,
        "transaction.max.timeout.ms": settings.transaction_max_timeout_ms,
        "transactional.id.expiration.ms": settings.transactional_id_expiration_ms,
    }
    return [
        _Setting(
            name=name,
            config_type=_BROKER_CONFIG_TYPES.get(name, _ConfigType.INT),
            values=((str(value), _DEFAULT_SOURCE),),
            read_only=True,
        )
        for name, value in values.items()
    ]


@handles(IncrementalAlterConfigsRequest)
def incremental_alter_configs(
    context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Change the settings of topics, all of a topic's or none (IncrementalAlterConfigs 0-1).

    The changes of a request are written to disk at once; if that fails, nothing has changed and
    each topic gets KAFKA_STORAGE_ERROR.

    A value is set, deleted (reset to the default) or, for lists, appended to or subtracted from. A
    value that `topic_config` does not accept gets INVALID_CONFIG. A setting that occurs twice, a
    null value, a resource that occurs twice and a resource that is not a topic get INVALID_REQUEST:
    a broker's settings are fixed when it starts. An unknown operation gets UNKNOWN_SERVER_ERROR.
    """
    times = Counter(map(_key, request.resources))
    responses: dict[tuple[int, str], AlterConfigsResourceResponse] = {}
    altered: list[AlterConfigsResource] = []

    def refuse(resource: AlterConfigsResource, refused: RefusedError) -> None:
        responses[_key(resource)] = context.failed(
            AlterConfigsResourceResponse, refused, **_named(resource)
        )

    try:
        with context.cluster.change_topics() as changes:
            for resource in request.resources:
                try:
                    if times[_key(resource)] > 1:
                        raise _bad_request("Each resource must appear at most once.")
                    _alter(context, changes, resource, validate_only=request.validate_only)
                except RefusedError as refused:
                    refuse(resource, refused)
                else:
                    responses[_key(resource)] = AlterConfigsResourceResponse(
                        error_code=ErrorCode.NONE, error_message=None, **_named(resource)
                    )
                    altered.append(resource)
    except RefusedError as refused:
        for resource in altered:
            refuse(resource, refused)
    return IncrementalAlterConfigsResponse(responses=tuple(responses.values()))


def _key(resource: AlterConfigsResource) -> tuple[int, str]:
    return resource.resource_type, resource.resource_name


def _alter(
    context: RequestContext,
    changes: TopicChanges,
    resource: AlterConfigsResource,
    *,
    validate_only: bool,
) -> None:
    if resource.resource_type != _TOPIC:
        raise _bad_request(f"settings of resource type {resource.resource_type} cannot be changed")
    if len({config.name for config in resource.configs}) < len(resource.configs):
        raise _bad_request("Error due to duplicate config keys")
    topic = _find_topic(context, resource.resource_name)
    overrides = dict(topic.overrides)
    present = topic.config.effective_values()
    for config in resource.configs:
        value = _changed(config, present.get(config.name, ""))
        if value is None:
            overrides.pop(config.name, None)
        else:
            overrides[config.name] = value
    altered = context.settings.topic_defaults.with_values(overrides)
    if not validate_only:
        changes.configure_topic(topic, altered, overrides)


def _changed(config: AlterableConfig, present: str) -> str | None:
    """Return a setting's new value, None for the default. Raises RefusedError."""
    if config.config_operation == _DELETE:
        return None
    if config.value is None:
        raise _bad_request(f"Null value not supported for : {config.name}")
    if config.config_operation == _SET:
        return config.value
    if config.config_operation not in {_APPEND, _SUBTRACT}:
        # Kafka has no specific error for this.
        raise RefusedError(
            ErrorCode.UNKNOWN_SERVER_ERROR, f"unknown operation {config.config_operation}"
        )
    if _TOPIC_CONFIG_TYPES.get(config.name) is not _ConfigType.LIST:
        raise RefusedError(
            ErrorCode.INVALID_CONFIG, f"{config.name} is not a list: set or delete it"
        )
    items = [item for item in present.split(",") if item]
    values = [item for item in config.value.split(",") if item]
    if config.config_operation == _APPEND:
        return ",".join(items + [item for item in values if item not in items])
    return ",".join(item for item in items if item not in values)


def _bad_request(message: str) -> RefusedError:
    return RefusedError(ErrorCode.INVALID_REQUEST, message)
