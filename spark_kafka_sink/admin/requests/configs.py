"""Requests about settings of topics, brokers and groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark_kafka_sink.admin.cluster_calls import AnyBroker, Call, raised, refusal
from spark_kafka_sink.admin.item_requests import ItemRequest, Routes
from spark_kafka_sink.admin.values import (
    ConfigEntry,
    ConfigResource,
    ConfigResourceType,
    ConfigSource,
    ConfigSynonym,
)
from spark_kafka_sink.errors import BrokerError, NetworkError
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.create_topics import CreatableTopicConfigs
from spark_kafka_sink.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from spark_kafka_sink.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from spark_kafka_sink.admin.cluster_calls import ClusterCalls, Destination
    from spark_kafka_sink.admin.values import AlterConfigOp
    from spark_kafka_sink.errors import KafkaError
    from spark_kafka_sink.protocol.messages.describe_configs import (
        DescribeConfigsResourceResult,
        DescribeConfigsResponse,
        DescribeConfigsResult,
    )
    from spark_kafka_sink.protocol.messages.incremental_alter_configs import (
        IncrementalAlterConfigsResponse,
    )

#: The names of ConfigType, by their numbers in responses.
_TYPE_NAMES: Final = (
    *(None, "BOOLEAN", "STRING", "INT", "SHORT", "LONG"),
    *("DOUBLE", "LIST", "CLASS", "PASSWORD"),
)
_OF_ONE_BROKER: Final = (ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER)


def describing_configs(
    *, include_synonyms: bool, include_documentation: bool
) -> ItemRequest[ConfigResource, DescribeConfigsResponse, dict[str, ConfigEntry]]:
    """Describe the request for all settings of resources."""

    def build(
        destination: Destination, resources: Sequence[ConfigResource], _seconds: float
    ) -> Call[DescribeConfigsResponse]:
        request = _describe_configs(
            resources,
            include_synonyms=include_synonyms,
            include_documentation=include_documentation,
        )
        return Call(
            destination=destination, build=lambda _: (request, None), what="DescribeConfigs"
        )

    def read(
        response: DescribeConfigsResponse, resources: Sequence[ConfigResource]
    ) -> Iterator[tuple[ConfigResource, dict[str, ConfigEntry] | BrokerError]]:
        by_name = _by_type_and_name(resources)
        for result in response.results:
            resource = by_name.get((result.resource_type, result.resource_name))
            if resource is not None:
                yield resource, _entries(result, f"DescribeConfigs of {resource}")

    return ItemRequest(what="DescribeConfigs", route=_to_their_brokers, build=build, read=read)


def describe_topic_configs_call(topic: str) -> Call[DescribeConfigsResponse]:
    """Build the call for all settings of a topic."""
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    request = _describe_configs([resource])
    return Call(
        destination=AnyBroker(),
        build=lambda _: (request, None),
        error_codes=lambda answer: (answer.results[0].error_code,),
        what=f"DescribeConfigs of {resource}",
        # Every broker knows which topics exist, so waiting for a missing one is pointless.
        accepts=frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}),
    )


def described_topic_configs(
    response: DescribeConfigsResponse, what: str
) -> Mapping[str, str | None]:
    """Return a topic's settings; raises BrokerError, with the broker's own message."""
    entries = raised(_entries(response.results[0], what))
    return {name: entry.value for name, entry in entries.items()}


def _describe_configs(
    resources: Sequence[ConfigResource],
    *,
    include_synonyms: bool = False,
    include_documentation: bool = False,
) -> DescribeConfigsRequest:
    return DescribeConfigsRequest(
        resources=tuple(
            DescribeConfigsResource(
                resource_type=resource.resource_type,
                resource_name=resource.name,
                configuration_keys=None,
            )
            for resource in resources
        ),
        include_synonyms=include_synonyms,
        include_documentation=include_documentation,
    )


def _entries(result: DescribeConfigsResult, what: str) -> dict[str, ConfigEntry] | BrokerError:
    if result.error_code:
        return refusal(result.error_code, what, result.error_message)
    return {config.name: config_entry(config) for config in result.configs}


def altering_configs(
    changes: Mapping[ConfigResource, Sequence[AlterConfigOp]], *, validate_only: bool
) -> ItemRequest[ConfigResource, IncrementalAlterConfigsResponse, None]:
    """Describe the request that changes settings of resources."""

    def build(
        destination: Destination, resources: Sequence[ConfigResource], _seconds: float
    ) -> Call[IncrementalAlterConfigsResponse]:
        request = IncrementalAlterConfigsRequest(
            resources=tuple(
                AlterConfigsResource(
                    resource_type=resource.resource_type,
                    resource_name=resource.name,
                    configs=tuple(
                        AlterableConfig(
                            name=change.name, config_operation=change.op, value=change.value
                        )
                        for change in changes[resource]
                    ),
                )
                for resource in resources
            ),
            validate_only=validate_only,
        )
        return Call(
            destination=destination,
            build=lambda _: (request, None),
            what="IncrementalAlterConfigs",
        )

    def read(
        response: IncrementalAlterConfigsResponse, resources: Sequence[ConfigResource]
    ) -> Iterator[tuple[ConfigResource, KafkaError | None]]:
        by_name = _by_type_and_name(resources)
        for result in response.responses:
            resource = by_name.get((result.resource_type, result.resource_name))
            if resource is not None:
                what, code = f"IncrementalAlterConfigs of {resource}", result.error_code
                yield resource, refusal(code, what, result.error_message) if code else None

    return ItemRequest(
        what="IncrementalAlterConfigs", route=_to_their_brokers, build=build, read=read
    )


def _by_type_and_name(
    resources: Sequence[ConfigResource],
) -> dict[tuple[int, str], ConfigResource]:
    return {(resource.resource_type, resource.name): resource for resource in resources}


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


def config_entry(config: DescribeConfigsResourceResult | CreatableTopicConfigs) -> ConfigEntry:
    """Convert a setting in a response."""
    if isinstance(config, CreatableTopicConfigs):
        return ConfigEntry(
            name=config.name,
            value=config.value,
            source=ConfigSource(config.config_source),
            is_sensitive=config.is_sensitive,
            is_read_only=config.read_only,
        )
    number = config.config_type
    return ConfigEntry(
        name=config.name,
        value=config.value,
        source=ConfigSource(config.config_source),
        is_sensitive=config.is_sensitive,
        is_read_only=config.read_only,
        type_name=_TYPE_NAMES[number] if 0 <= number < len(_TYPE_NAMES) else None,
        documentation=config.documentation or None,
        synonyms=tuple(
            ConfigSynonym(
                name=synonym.name, value=synonym.value, source=ConfigSource(synonym.source)
            )
            for synonym in config.synonyms
        ),
    )
