"""The settings of topics, brokers and groups: DescribeConfigs and ListConfigResources."""

from __future__ import annotations

import logging
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_kafka_sink.devbroker.base.authorizer import CLUSTER_NAME
from spark_kafka_sink.devbroker.base.config_changes import ALL_BROKERS, BROKER, TOPIC
from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.server_config import (
    HOURS,
    OF_TOPIC_CONFIG,
    SERVER_CONFIGS,
    ServerConfig,
)
from spark_kafka_sink.devbroker.base.topic_config import TOPIC_CONFIG_TYPES, ConfigType
from spark_kafka_sink.devbroker.base.topic_names import validate_topic_name
from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.protocol.acl_codes import AclOperation, ResourceType
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from spark_kafka_sink.protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from spark_kafka_sink.devbroker.cluster.partition import Topic

#: Other values of Kafka's ConfigResource.Type.
BROKER_LOGGER, CLIENT_METRICS, GROUP = 8, 16, 32
_KAFKA_RESOURCE_TYPES = frozenset({TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP})
#: Values of Kafka's ConfigSource.
_TOPIC_SOURCE, _BROKER_SOURCE, _ALL_BROKERS_SOURCE, _STATIC_SOURCE, _DEFAULT_SOURCE = range(1, 6)
_LOGGER_SOURCE = 6
_FIRST_VERSION_WITH_TYPES = 3
_FIRST_VERSION_WITH_RESOURCE_TYPES = 1
_LOGGER_TYPE = 0
#: Kafka's defaults of what distinguishes brokers.
_IDENTITY_DEFAULTS = {"broker.id": "-1"}
#: The names that Kafka has for Python's levels.
_LEVELS = {"WARNING": "WARN", "CRITICAL": "FATAL"}
#: The settings of groups, and the brokers' settings that are their defaults.
_OF_GROUPS = {
    f"consumer.{name}": f"group.consumer.{name}"
    for name in ("assignment.interval.ms", "heartbeat.interval.ms", "session.timeout.ms")
}


class _Value(NamedTuple):
    """A value of a setting, or of the one from which it comes."""

    name: str
    value: str
    source: int


class _Setting(NamedTuple):
    """A setting, with all values that it might have, the effective one first."""

    name: str
    config_type: int
    value: str | None
    read_only: bool
    synonyms: tuple[_Value, ...]
    #: Where the value comes from if there are no synonyms.
    source: int = _DEFAULT_SOURCE


def check_config_right(
    context: RequestContext, operation: AclOperation, resource_type: int, name: str
) -> None:
    """Raise RefusedError unless the client may do something with the settings of a resource."""
    if resource_type == TOPIC:
        context.check_right(operation, ResourceType.TOPIC, name)
    elif resource_type == GROUP:
        context.check_right(operation, ResourceType.GROUP, name)
    else:
        context.check_right(operation, ResourceType.CLUSTER, CLUSTER_NAME)


def find_topic(context: RequestContext, name: str) -> Topic:
    """Raise RefusedError with INVALID_TOPIC_EXCEPTION or UNKNOWN_TOPIC_OR_PARTITION."""
    validate_topic_name(name)
    return context.cluster.existing_topic(name)


def check_node_id(context: RequestContext, name: str) -> None:
    """Raise RefusedError with INVALID_REQUEST unless a name is the id of this broker."""
    try:
        node_id = int(name)
    except ValueError:
        problem = f"Broker id must be an integer, but it is: {name}"
    else:
        if node_id == context.node_id:
            return
        problem = f"Unexpected broker id, expected {context.node_id}, but received {name}"
    raise RefusedError(ErrorCode.INVALID_REQUEST, problem)


@handles(DescribeConfigsRequest)
def describe_configs(
    context: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    """Describe the settings of topics, brokers, loggers and groups (DescribeConfigs 1-4).

    A topic has the settings that the broker supports (see `topic_config`), a broker those of
    `BrokerSettings` that Kafka has too (see `server_config`), each with the source of its value,
    and the empty name stands for what was set for all brokers while they ran. A broker's loggers
    are Python's. All groups have the same settings.

    Another broker, or a type of resource that this broker does not support, gets INVALID_REQUEST; a
    type that Kafka does not have fails the whole request with it. A response has about as many
    settings as a request may have elements (`request_max_elements`); resources beyond that get
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


def _named(resource: DescribeConfigsResource) -> dict[str, Any]:
    return {
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
    }


def _describe(
    context: RequestContext,
    request: DescribeConfigsRequest,
    resource: DescribeConfigsResource,
    settings_of: Callable[[int, str], list[_Setting]],
    left: int,
) -> DescribeConfigsResult:
    """Describe a resource, if the response may have more settings. Raises RefusedError."""
    check_config_right(
        context, AclOperation.DESCRIBE_CONFIGS, resource.resource_type, resource.resource_name
    )
    if left <= 0:
        raise RefusedError(
            ErrorCode.POLICY_VIOLATION, "the response is full: request this resource again"
        )
    # An empty list requests all settings, too, as in Kafka.
    names = resource.configuration_keys or None
    return DescribeConfigsResult(
        error_code=ErrorCode.NONE,
        error_message=None,
        **_named(resource),
        configs=tuple(
            DescribeConfigsResourceResult(
                name=setting.name,
                value=setting.value,
                read_only=setting.read_only,
                config_source=setting.synonyms[0].source if setting.synonyms else setting.source,
                is_sensitive=False,
                synonyms=tuple(
                    DescribeConfigsSynonym(name=name, value=value, source=source)
                    for name, value, source in setting.synonyms
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
    if resource_type == TOPIC:
        return _topic_settings(context, name)
    if resource_type == BROKER:
        if name == ALL_BROKERS:
            return _settings_of_all_brokers(context)
        check_node_id(context, name)
        return [*_broker_settings(context), *_identity(context)]
    if resource_type == BROKER_LOGGER:
        check_node_id(context, name)
        return list(_loggers())
    if resource_type == GROUP and name:
        return _group_settings(context)
    raise RefusedError(
        ErrorCode.INVALID_REQUEST, f"this broker does not support resource type {resource_type}"
    )


def _topic_settings(context: RequestContext, name: str) -> list[_Setting]:
    topic = find_topic(context, name)
    return [
        _Setting(
            name=key,
            config_type=TOPIC_CONFIG_TYPES[key],
            value=value,
            read_only=False,
            synonyms=(
                *([_Value(key, value, _TOPIC_SOURCE)] if key in topic.overrides else []),
                *_synonyms(context, OF_TOPIC_CONFIG[key]),
            ),
        )
        for key, value in topic.config.effective_values().items()
    ]


def _synonyms(context: RequestContext, config: ServerConfig) -> list[_Value]:
    """Return the values that a setting of this broker might have, the effective one first."""
    name, configs = config.name, context.cluster.broker_configs
    values = [
        _Value(name, configs[resource][name], source)
        for resource, source in (
            (str(context.node_id), _BROKER_SOURCE),
            (ALL_BROKERS, _ALL_BROKERS_SOURCE),
        )
        if name in configs.get(resource, {})
    ]
    static = config.value(context.settings, context.settings.topic_defaults)
    if static not in {None, config.default}:
        values.append(_Value(name, str(static), _STATIC_SOURCE))
    if config.default is not None:
        values.append(_Value(name, config.default, _DEFAULT_SOURCE))
    elif values and (hours := name.removesuffix("ms") + "hours") in HOURS:
        values.append(_Value(hours, HOURS[hours], _DEFAULT_SOURCE))
    return values


def _broker_settings(context: RequestContext) -> list[_Setting]:
    settings = []
    for config in SERVER_CONFIGS.values():
        synonyms = tuple(_synonyms(context, config))
        value = synonyms[0].value if synonyms else None
        settings.append(_Setting(config.name, config.type, value, not config.is_dynamic, synonyms))
    settings += [
        _Setting(
            name,
            ConfigType.INT,
            value,
            read_only=True,
            synonyms=(_Value(name, value, _DEFAULT_SOURCE),),
        )
        for name, value in HOURS.items()
    ]
    return settings


def _settings_of_all_brokers(context: RequestContext) -> list[_Setting]:
    return [
        _Setting(
            name=name,
            config_type=SERVER_CONFIGS[name].type,
            value=value,
            read_only=False,
            synonyms=(_Value(name, value, _ALL_BROKERS_SOURCE),),
        )
        for name, value in context.cluster.broker_configs.get(ALL_BROKERS, {}).items()
    ]


def _identity(context: RequestContext) -> list[_Setting]:
    """Return what distinguishes the broker from others: its id, addresses, directory and rack."""
    cluster, node_id = context.cluster, str(context.node_id)
    listeners = cluster.other_addresses or {"PLAINTEXT": cluster.nodes}
    addresses = ",".join(
        f"{name}://{nodes[context.node_id].host}:{nodes[context.node_id].port}"
        for name, nodes in listeners.items()
        if context.node_id in nodes
    )
    rack = cluster.racks.get(context.node_id)
    static: list[tuple[str, ConfigType, str | None]] = [
        ("advertised.listeners", ConfigType.LIST, addresses),
        ("broker.id", ConfigType.INT, node_id),
        ("broker.rack", ConfigType.STRING, rack),
        ("log.dirs", ConfigType.LIST, cluster.logs.location),
        ("node.id", ConfigType.INT, node_id),
        ("process.roles", ConfigType.LIST, "broker,controller"),
    ]
    settings = []
    for name, config_type, value in static:
        synonyms = [] if value is None else [_Value(name, value, _STATIC_SOURCE)]
        if name in _IDENTITY_DEFAULTS:
            synonyms.append(_Value(name, _IDENTITY_DEFAULTS[name], _DEFAULT_SOURCE))
        settings.append(
            _Setting(name, config_type, value, read_only=True, synonyms=tuple(synonyms))
        )
    return settings


def _loggers() -> Iterator[_Setting]:
    names = sorted(
        name
        for name, logger in logging.root.manager.loggerDict.items()
        if isinstance(logger, logging.Logger) and name.startswith("spark_kafka_sink.devbroker")
    )
    for name in ("root", *names):
        logger = logging.root if name == "root" else logging.getLogger(name)
        level = logging.getLevelName(logger.getEffectiveLevel())
        yield _Setting(
            name=name,
            config_type=_LOGGER_TYPE,
            value=_LEVELS.get(level, level),
            read_only=True,
            synonyms=(),
            source=_LOGGER_SOURCE,
        )


def _group_settings(context: RequestContext) -> list[_Setting]:
    settings = []
    for name, of_brokers in _OF_GROUPS.items():
        config = SERVER_CONFIGS[of_brokers]
        synonyms = tuple(_synonyms(context, config))
        settings.append(
            _Setting(name, config.type, synonyms[0].value, read_only=True, synonyms=synonyms)
        )
    return settings


@handles(ListConfigResourcesRequest)
def list_config_resources(
    context: RequestContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    """List what has settings: brokers, their loggers, and topics (ListConfigResources 0-1).

    Version 0 lists subscriptions to client metrics only, and there are none; groups have
    no settings of their own. An unknown type gets UNSUPPORTED_VERSION.
    """
    if context.version < _FIRST_VERSION_WITH_RESOURCE_TYPES:
        return ListConfigResourcesResponse(config_resources=())
    types = frozenset(request.resource_types) or _KAFKA_RESOURCE_TYPES
    if not types <= _KAFKA_RESOURCE_TYPES:
        raise RefusedError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"Unsupported resource type {min(types - _KAFKA_RESOURCE_TYPES)}",
        )
    brokers = [str(node_id) for node_id in sorted(context.nodes)]
    resources = [(BROKER_LOGGER, name) for name in brokers]
    resources += [(BROKER, name) for name in brokers]
    resources += [(TOPIC, topic.name) for topic in context.cluster.topics]
    return ListConfigResourcesResponse(
        config_resources=tuple(
            ConfigResource(resource_name=name, resource_type=resource_type)
            for resource_type, name in resources
            if resource_type in types
        )
    )
