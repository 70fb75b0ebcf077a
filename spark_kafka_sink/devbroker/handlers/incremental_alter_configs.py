"""IncrementalAlterConfigs 0-1: changes the settings of topics, all of a topic's changes or none.

The changes of a request are written to disk at once; if that fails, nothing has changed and each
topic gets KAFKA_STORAGE_ERROR.

A value is set, deleted (reset to the default) or, for lists, appended to or subtracted from. A
value that `topic_config` does not accept gets INVALID_CONFIG. A setting that occurs twice, a null
value, a resource that occurs twice and a resource that is not a topic get INVALID_REQUEST: a
broker's settings are fixed when it starts. An unknown operation gets UNKNOWN_SERVER_ERROR.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.handlers.config_resources import (
    TOPIC_CONFIG_TYPES,
    ConfigType,
    ResourceType,
    find_topic,
)
from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from spark_kafka_sink.devbroker.cluster.topic_changes import TopicChanges
    from spark_kafka_sink.protocol.messages.incremental_alter_configs import AlterableConfig

_SET, _DELETE, _APPEND, _SUBTRACT = range(4)


@handles(IncrementalAlterConfigsRequest)
def incremental_alter_configs(
    context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Change the settings of each resource."""
    times = Counter(map(_key, request.resources))
    responses: dict[tuple[int, str], AlterConfigsResourceResponse] = {}
    altered: list[AlterConfigsResource] = []
    try:
        with context.cluster.change_topics() as changes:
            for resource in request.resources:
                try:
                    if times[_key(resource)] > 1:
                        raise _bad_request("Each resource must appear at most once.")
                    _alter(context, changes, resource, validate_only=request.validate_only)
                except RefusedError as refused:
                    responses[_key(resource)] = _response(
                        resource, refused.error_code, refused.message
                    )
                else:
                    responses[_key(resource)] = _response(resource, ErrorCode.NONE, None)
                    altered.append(resource)
    except RefusedError as refused:
        responses |= {
            _key(resource): _response(resource, refused.error_code, refused.message)
            for resource in altered
        }
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
    if resource.resource_type != ResourceType.TOPIC:
        raise _bad_request(f"settings of resource type {resource.resource_type} cannot be changed")
    if len({config.name for config in resource.configs}) < len(resource.configs):
        raise _bad_request("Error due to duplicate config keys")
    topic = find_topic(context, resource.resource_name)
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
    if TOPIC_CONFIG_TYPES.get(config.name) is not ConfigType.LIST:
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


def _response(
    resource: AlterConfigsResource, error_code: ErrorCode, message: str | None
) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=error_code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
