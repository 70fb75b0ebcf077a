"""Changes to the settings of topics and brokers: IncrementalAlterConfigs and AlterConfigs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.server_config import SERVER_CONFIGS, topic_values
from spark_kafka_sink.devbroker.base.topic_config import TOPIC_CONFIG_TYPES, ConfigType
from spark_kafka_sink.devbroker.handlers.configs import (
    ALL_BROKERS,
    BROKER,
    TOPIC,
    check_config_right,
    check_node_id,
    find_topic,
)
from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.protocol.acl_codes import AclOperation
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages import alter_configs as replacing
from spark_kafka_sink.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from spark_kafka_sink.devbroker.cluster.topic_changes import TopicChanges

#: Values of Kafka's AlterConfigOp.OpType.
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
#: A default of topics that a single broker cannot have for itself (KIP-966).
_MIN_INSYNC_REPLICAS = "min.insync.replicas"

ResourceT = TypeVar("ResourceT", AlterConfigsResource, replacing.AlterConfigsResource)
ResponseT = TypeVar(
    "ResponseT", AlterConfigsResourceResponse, replacing.AlterConfigsResourceResponse
)


@handles(IncrementalAlterConfigsRequest)
def incremental_alter_configs(
    context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Change settings of topics and brokers, all of a resource or none (0-1).

    The changes of topics are written to disk at once; if that fails, nothing has changed and each
    topic gets KAFKA_STORAGE_ERROR.

    A value is set, deleted (reset to the default) or, for lists, appended to or subtracted from. A
    value that `topic_config` does not accept gets INVALID_CONFIG. A setting that occurs twice, a
    null value, a resource that occurs twice and one of another type get INVALID_REQUEST. For a
    topic, an unknown operation gets UNKNOWN_SERVER_ERROR.

    Brokers have their settings since they started, apart from the defaults of topics, which change
    for all brokers (the empty name), or for the only one. All others, and invalid values, get
    INVALID_REQUEST.
    """

    def alter(changes: TopicChanges, resource: AlterConfigsResource) -> None:
        if resource.resource_type == TOPIC:
            topic = find_topic(context, resource.resource_name)
            values = dict(topic.overrides)
            present = topic.config.effective_values()
            for config in resource.configs:
                is_list = TOPIC_CONFIG_TYPES.get(config.name) is ConfigType.LIST
                _change(values, config, present.get(config.name, ""), is_list=is_list)
            _alter_topic(context, changes, resource, values, validate_only=request.validate_only)
            return
        check_broker(context, resource.resource_name)
        values = dict(context.cluster.broker_configs.get(resource.resource_name, {}))
        for config in resource.configs:
            if config.config_operation not in {_SET, _DELETE, _APPEND, _SUBTRACT}:
                raise _bad_request(f"Unknown operations type {config.config_operation}")
            known = SERVER_CONFIGS.get(config.name)
            default = (known and known.default) or ""
            is_list = known is not None and known.type is ConfigType.LIST
            _change(values, config, values.get(config.name, default), is_list=is_list)
        _alter_brokers(context, resource, values, validate_only=request.validate_only)

    responses = _alter_each(context, request.resources, alter, AlterConfigsResourceResponse)
    return IncrementalAlterConfigsResponse(responses=responses)


@handles(replacing.AlterConfigsRequest)
def alter_configs(
    context: RequestContext, request: replacing.AlterConfigsRequest
) -> replacing.AlterConfigsResponse:
    """Replace the settings of topics and brokers (AlterConfigs 0-2).

    What is not in the request is reset to its default. The errors are those of
    IncrementalAlterConfigs.
    """

    def alter(changes: TopicChanges, resource: replacing.AlterConfigsResource) -> None:
        values = {config.name: config.value or "" for config in resource.configs}
        if resource.resource_type == TOPIC:
            _alter_topic(context, changes, resource, values, validate_only=request.validate_only)
        else:
            check_broker(context, resource.resource_name)
            _alter_brokers(context, resource, values, validate_only=request.validate_only)

    responses = _alter_each(
        context, request.resources, alter, replacing.AlterConfigsResourceResponse
    )
    return replacing.AlterConfigsResponse(responses=responses)


def _alter_each(
    context: RequestContext,
    resources: Sequence[ResourceT],
    alter: Callable[[TopicChanges, ResourceT], None],
    response_class: type[ResponseT],
) -> tuple[ResponseT, ...]:
    """Change each resource that occurs once, and write all changes of topics at once."""
    times = Counter(map(_key, resources))
    responses: dict[tuple[int, str], ResponseT] = {}
    altered: list[ResourceT] = []

    def refuse(resource: ResourceT, refused: RefusedError) -> None:
        responses[_key(resource)] = context.failed(response_class, refused, **_named(resource))

    try:
        with context.cluster.change_topics() as changes:
            for resource in resources:
                try:
                    if times[_key(resource)] > 1:
                        raise _bad_request("Each resource must appear at most once.")
                    check_config_right(context, AclOperation.ALTER_CONFIGS, *_key(resource))
                    _check_configs(resource)
                    alter(changes, resource)
                except RefusedError as refused:
                    refuse(resource, refused)
                else:
                    responses[_key(resource)] = response_class(
                        error_code=ErrorCode.NONE, error_message=None, **_named(resource)
                    )
                    if resource.resource_type == TOPIC:
                        altered.append(resource)
    except RefusedError as refused:
        for resource in altered:
            refuse(resource, refused)
    return tuple(responses.values())


def _key(resource: AlterConfigsResource | replacing.AlterConfigsResource) -> tuple[int, str]:
    return resource.resource_type, resource.resource_name


def _named(resource: AlterConfigsResource | replacing.AlterConfigsResource) -> dict[str, Any]:
    return {
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
    }


def _check_configs(resource: AlterConfigsResource | replacing.AlterConfigsResource) -> None:
    """Raise RefusedError with INVALID_REQUEST for what no resource may have."""
    configs: Sequence[AlterableConfig | replacing.AlterableConfig] = resource.configs
    if len({config.name for config in configs}) < len(configs):
        raise _bad_request("Error due to duplicate config keys")
    nulls = [
        config.name
        for config in configs
        if config.value is None and getattr(config, "config_operation", _SET) != _DELETE
    ]
    if nulls:
        raise _bad_request(f"Null value not supported for : {', '.join(nulls)}")
    if resource.resource_type not in {TOPIC, BROKER}:
        raise _bad_request(f"settings of resource type {resource.resource_type} cannot be changed")


def check_broker(context: RequestContext, name: str) -> None:
    """Raise RefusedError with INVALID_REQUEST unless settings of a broker may be changed here."""
    if name == ALL_BROKERS:
        return
    check_node_id(context, name)
    if len(context.cluster.broker_ids) > 1:
        raise _bad_request(
            "all brokers of this cluster share the log of each partition: change the settings of "
            "all brokers, with an empty name"
        )


def _alter_topic(
    context: RequestContext,
    changes: TopicChanges,
    resource: AlterConfigsResource | replacing.AlterConfigsResource,
    values: Mapping[str, str],
    *,
    validate_only: bool,
) -> None:
    topic = find_topic(context, resource.resource_name)
    altered = context.cluster.topic_defaults.with_values(values)
    if not validate_only:
        changes.configure_topic(topic, altered, values)


def _alter_brokers(
    context: RequestContext,
    resource: AlterConfigsResource | replacing.AlterConfigsResource,
    values: Mapping[str, str],
    *,
    validate_only: bool,
) -> None:
    fixed = [
        name for name in values if name in SERVER_CONFIGS and not SERVER_CONFIGS[name].is_dynamic
    ]
    if fixed:
        raise _bad_request(f"Cannot update these configs dynamically: [{', '.join(fixed)}]")
    unknown = [name for name in values if name not in SERVER_CONFIGS]
    if unknown:
        raise _bad_request(f"this broker does not have the settings {', '.join(unknown)}")
    name = resource.resource_name
    if name != ALL_BROKERS and _MIN_INSYNC_REPLICAS in values:
        raise RefusedError(
            ErrorCode.INVALID_CONFIG,
            f"Broker-level {_MIN_INSYNC_REPLICAS} cannot be altered while ELR is enabled.",
        )
    try:
        context.settings.topic_defaults.with_values(topic_values(values))
    except RefusedError as refused:
        raise _bad_request(refused.message) from refused
    if not validate_only:
        context.cluster.configure_brokers(name, values)


def _change(
    values: dict[str, str], config: AlterableConfig, present: str, *, is_list: bool
) -> None:
    """Change one of the values that were set, which is `present` now. Raises RefusedError."""
    value = config.value or ""
    if config.config_operation == _DELETE:
        values.pop(config.name, None)
        return
    if config.config_operation in {_APPEND, _SUBTRACT}:
        if not is_list:
            raise RefusedError(
                ErrorCode.INVALID_CONFIG, f"{config.name} is not a list: set or delete it"
            )
        items = [item for item in present.split(",") if item]
        others = [item for item in value.split(",") if item]
        if config.config_operation == _APPEND:
            items += [item for item in others if item not in items]
        else:
            items = [item for item in items if item not in others]
        value = ",".join(items)
    elif config.config_operation != _SET:
        # Kafka has no specific error for this.
        raise RefusedError(
            ErrorCode.UNKNOWN_SERVER_ERROR, f"unknown operation {config.config_operation}"
        )
    values[config.name] = value


def _bad_request(message: str) -> RefusedError:
    return RefusedError(ErrorCode.INVALID_REQUEST, message)
