"""Requests about settings of topics, brokers and groups."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from spark_kafka_sink.admin.cluster_calls import AnyBroker, Call, error_in, raised
from spark_kafka_sink.admin.item_requests import ItemRequest, Routes
from spark_kafka_sink.admin.values import (
    ConfigEntry,
    ConfigResource,
    ConfigResourceType,
    ConfigSource,
    ConfigSynonym,
)
from spark_kafka_sink.errors import BrokerError, KafkaError, NetworkError
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages import describe_configs, incremental_alter_configs
from spark_kafka_sink.protocol.messages.create_topics import CreatableTopicConfigs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from spark_kafka_sink.admin.cluster_calls import ClusterCalls, Destination
    from spark_kafka_sink.admin.values import AlterConfigOp

ResultT = TypeVar(
    "ResultT",
    describe_configs.DescribeConfigsResult,
    incremental_alter_configs.AlterConfigsResourceResponse,
)
#: The names of ConfigType, by their numbers in responses.
_TYPE_NAMES: Final = (
    *(None, "BOOLEAN", "STRING", "INT", "SHORT", "LONG"),
    *("DOUBLE", "LIST", "CLASS", "PASSWORD"),
)
_OF_ONE_BROKER: Final = (ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER)


def describing_configs(
    *, include_synonyms: bool, include_documentation: bool
) -> ItemRequest[ConfigResource, describe_configs.DescribeConfigsResponse, dict[str, ConfigEntry]]:
    """Describe the request for all settings of resources."""
    return ItemRequest.of(
        "DescribeConfigs",
        lambda resources, _: _describe_configs(
            resources,
            include_synonyms=include_synonyms,
            include_documentation=include_documentation,
        ),
        lambda response, resources: (
            (resource, _entries(result, f"DescribeConfigs of {resource}"))
            for resource, result in _matched(response.results, resources)
        ),
        route=_to_their_brokers,
    )


def describe_topic_configs_call(topic: str) -> Call[describe_configs.DescribeConfigsResponse]:
    """Build the call for all settings of a topic."""
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    return Call(
        AnyBroker(),
        _describe_configs([resource]),
        f"DescribeConfigs of {resource}",
        lambda answer: (answer.results[0].error_code,),
        # Every broker knows which topics exist, so waiting for a missing one is pointless.
        accepts=frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}),
    )


def described_topic_configs(
    response: describe_configs.DescribeConfigsResponse, what: str
) -> Mapping[str, str | None]:
    """Return a topic's settings; raises BrokerError, with the broker's own message."""
    entries = raised(_entries(response.results[0], what))
    return {name: entry.value for name, entry in entries.items()}


def _describe_configs(
    resources: Sequence[ConfigResource],
    *,
    include_synonyms: bool = False,
    include_documentation: bool = False,
) -> describe_configs.DescribeConfigsRequest:
    return describe_configs.DescribeConfigsRequest(
        resources=tuple(
            describe_configs.DescribeConfigsResource(
                resource_type=resource.resource_type,
                resource_name=resource.name,
                configuration_keys=None,
            )
            for resource in resources
        ),
        include_synonyms=include_synonyms,
        include_documentation=include_documentation,
    )


def _entries(
    result: describe_configs.DescribeConfigsResult, what: str
) -> dict[str, ConfigEntry] | BrokerError:
    error = error_in(result.error_code, what, result.error_message)
    return error or {config.name: config_entry(config) for config in result.configs}


def altering_configs(
    changes: Mapping[ConfigResource, Sequence[AlterConfigOp]], *, validate_only: bool
) -> ItemRequest[ConfigResource, incremental_alter_configs.IncrementalAlterConfigsResponse, None]:
    """Describe the request that changes settings of resources."""
    what = "IncrementalAlterConfigs"
    return ItemRequest.of(
        what,
        lambda resources, _: incremental_alter_configs.IncrementalAlterConfigsRequest(
            resources=tuple(_altered(resource, changes[resource]) for resource in resources),
            validate_only=validate_only,
        ),
        lambda response, resources: (
            (resource, error_in(result.error_code, f"{what} of {resource}", result.error_message))
            for resource, result in _matched(response.responses, resources)
        ),
        route=_to_their_brokers,
    )


def _altered(
    resource: ConfigResource, changes: Sequence[AlterConfigOp]
) -> incremental_alter_configs.AlterConfigsResource:
    return incremental_alter_configs.AlterConfigsResource(
        resource_type=resource.resource_type,
        resource_name=resource.name,
        configs=tuple(
            incremental_alter_configs.AlterableConfig(
                name=change.name, config_operation=change.op, value=change.value
            )
            for change in changes
        ),
    )


def _matched(
    results: Iterable[ResultT], resources: Sequence[ConfigResource]
) -> Iterator[tuple[ConfigResource, ResultT]]:
    """Yield the resources with their results; results of other resources are ignored."""
    by_name = {(int(resource.resource_type), resource.name): resource for resource in resources}
    for result in results:
        resource = by_name.get((result.resource_type, result.resource_name))
        if resource is not None:
            yield resource, result


async def _to_their_brokers(
    calls: ClusterCalls, resources: Sequence[ConfigResource], deadline: float
) -> Routes[ConfigResource]:
    """Send the settings of a broker to itself, all others to any broker."""
    of_brokers = [
        resource
        for resource in resources
        if resource.resource_type in _OF_ONE_BROKER and resource.name
    ]
    rest = [resource for resource in resources if resource not in of_brokers]
    routes: list[tuple[Destination, list[ConfigResource]]] = [(AnyBroker(), rest)] if rest else []
    lost: dict[ConfigResource, KafkaError] = {}
    nodes = {str(node.node_id): node for node in await calls.nodes(deadline)} if of_brokers else {}
    for resource in of_brokers:
        node = nodes.get(resource.name)
        if node is None:
            lost[resource] = NetworkError(f"{resource} is not running: its settings are its own")
        else:
            routes.append((node, [resource]))
    return routes, lost


def config_entry(
    config: describe_configs.DescribeConfigsResourceResult | CreatableTopicConfigs,
) -> ConfigEntry:
    """Convert a setting in a response."""
    entry = ConfigEntry(
        name=config.name,
        value=config.value,
        source=ConfigSource(config.config_source),
        is_sensitive=config.is_sensitive,
        is_read_only=config.read_only,
    )
    if isinstance(config, CreatableTopicConfigs):
        return entry
    number = config.config_type
    return replace(
        entry,
        type_name=_TYPE_NAMES[number] if 0 <= number < len(_TYPE_NAMES) else None,
        documentation=config.documentation or None,
        synonyms=tuple(
            ConfigSynonym(
                name=synonym.name, value=synonym.value, source=ConfigSource(synonym.source)
            )
            for synonym in config.synonyms
        ),
    )
