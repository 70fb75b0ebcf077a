"""Changes to the settings of topics and brokers: IncrementalAlterConfigs and AlterConfigs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

from spark_kafka_sink.devbroker.base.config_changes import (
    ALL_BROKERS,
    BROKER,
    TOPIC,
    bad_request,
    changed_broker_values,
    changed_topic_values,
    check_broker_values,
    check_configs,
)
from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.cluster.standalone_cluster import StandaloneCluster
from spark_kafka_sink.devbroker.handlers.configs import (
    check_config_right,
    check_node_id,
    find_topic,
)
from spark_kafka_sink.devbroker.handlers.controller_requests import forward_items
from spark_kafka_sink.devbroker.handlers.handler import Delayed, RequestContext, handles
from spark_kafka_sink.protocol.acl_codes import AclOperation
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages import alter_configs as replacing
from spark_kafka_sink.protocol.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from spark_kafka_sink.devbroker.cluster.broker_view import BrokerView
    from spark_kafka_sink.devbroker.cluster.topic_changes import TopicChanges

ResourceT = TypeVar("ResourceT", AlterConfigsResource, replacing.AlterConfigsResource)
ResponseT = TypeVar(
    "ResponseT", AlterConfigsResourceResponse, replacing.AlterConfigsResourceResponse
)


@handles(IncrementalAlterConfigsRequest)
def incremental_alter_configs(
    context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse | Delayed:
    """Change settings of topics and brokers, all of a resource or none (0-1).

    The changes of topics are written to disk at once; if that fails, nothing has changed and each
    topic gets KAFKA_STORAGE_ERROR.

    A value is set, deleted (reset to the default) or, for lists, appended to or subtracted from. A
    value that `topic_config` does not accept gets INVALID_CONFIG. A setting that occurs twice, a
    null value, a resource that occurs twice and one of another type get INVALID_REQUEST. For a
    topic, an unknown operation gets UNKNOWN_SERVER_ERROR.

    Brokers have their settings since they started, apart from the defaults of topics, which change
    for all brokers (the empty name), or for the one that is asked. All others, and invalid values,
    get INVALID_REQUEST.
    """
    cluster = context.cluster
    if not isinstance(cluster, StandaloneCluster):
        results = _by_controller(context, cluster, request, AlterConfigsResourceResponse)
        if isinstance(results, Delayed):
            return results
        return IncrementalAlterConfigsResponse(responses=results)

    def alter(changes: TopicChanges, resource: AlterConfigsResource) -> None:
        if resource.resource_type == TOPIC:
            topic = find_topic(context, resource.resource_name)
            values = changed_topic_values(resource, topic.overrides, topic.config)
            _alter_topic(context, changes, resource, values, validate_only=request.validate_only)
            return
        _check_broker(context, resource.resource_name)
        before = cluster.broker_configs.get(resource.resource_name, {})
        values = changed_broker_values(resource, before)
        _alter_brokers(context, cluster, resource, values, validate_only=request.validate_only)

    responses = _alter_each(
        context, cluster, request.resources, alter, AlterConfigsResourceResponse
    )
    return IncrementalAlterConfigsResponse(responses=responses)


@handles(replacing.AlterConfigsRequest)
def alter_configs(
    context: RequestContext, request: replacing.AlterConfigsRequest
) -> replacing.AlterConfigsResponse | Delayed:
    """Replace the settings of topics and brokers (AlterConfigs 0-2).

    What is not in the request is reset to its default. The errors are those of
    IncrementalAlterConfigs.
    """
    cluster = context.cluster
    if not isinstance(cluster, StandaloneCluster):
        results = _by_controller(context, cluster, request, replacing.AlterConfigsResourceResponse)
        if isinstance(results, Delayed):
            return results
        return replacing.AlterConfigsResponse(responses=results)

    def alter(changes: TopicChanges, resource: replacing.AlterConfigsResource) -> None:
        values = {config.name: config.value or "" for config in resource.configs}
        if resource.resource_type == TOPIC:
            _alter_topic(context, changes, resource, values, validate_only=request.validate_only)
        else:
            _check_broker(context, resource.resource_name)
            _alter_brokers(context, cluster, resource, values, validate_only=request.validate_only)

    responses = _alter_each(
        context, cluster, request.resources, alter, replacing.AlterConfigsResourceResponse
    )
    return replacing.AlterConfigsResponse(responses=responses)


def _by_controller(
    context: RequestContext,
    view: BrokerView,
    request: IncrementalAlterConfigsRequest | replacing.AlterConfigsRequest,
    response_class: type[ResponseT],
) -> tuple[ResponseT, ...] | Delayed:
    """Make the controller change those of the resources that the client may change."""

    def check(resource: AlterConfigsResource | replacing.AlterConfigsResource) -> None:
        check_config_right(context, AclOperation.ALTER_CONFIGS, *_key(resource))
        if resource.resource_type == BROKER:
            _check_broker(context, resource.resource_name)

    resources: Sequence[AlterConfigsResource | replacing.AlterConfigsResource] = request.resources
    return forward_items(
        context,
        view,
        request,
        ("resources", "responses"),
        resources,
        check=check,
        failed=lambda resource, refused: context.failed(
            response_class, refused, **_named(resource)
        ),
    )


def _alter_each(
    context: RequestContext,
    cluster: StandaloneCluster,
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
        with cluster.change_topics() as changes:
            for resource in resources:
                try:
                    if times[_key(resource)] > 1:
                        raise bad_request("Each resource must appear at most once.")
                    check_config_right(context, AclOperation.ALTER_CONFIGS, *_key(resource))
                    check_configs(resource)
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


def _check_broker(context: RequestContext, name: str) -> None:
    """Raise RefusedError with INVALID_REQUEST unless settings of a broker may be changed here."""
    if name != ALL_BROKERS:
        check_node_id(context, name)


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
    cluster: StandaloneCluster,
    resource: AlterConfigsResource | replacing.AlterConfigsResource,
    values: Mapping[str, str],
    *,
    validate_only: bool,
) -> None:
    name = resource.resource_name
    check_broker_values(name, values, context.settings.topic_defaults)
    if not validate_only:
        cluster.configure_brokers(name, values)
