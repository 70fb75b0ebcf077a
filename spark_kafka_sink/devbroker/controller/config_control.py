"""The settings of topics and brokers: the rules of ConfigurationControlManager.

All settings of a resource change or none, and each resource succeeds or fails by itself, with an
error of its own. As in `replication_control`, records are returned, and nothing is changed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.devbroker.base.config_changes import (
    ALL_BROKERS,
    bad_request,
    changed_broker_values,
    changed_topic_values,
    check_broker_values,
    check_configs,
)
from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.topic_config import without_controllers
from spark_kafka_sink.devbroker.base.topic_names import validate_topic_name
from spark_kafka_sink.devbroker.controller.replication_control import MIN_INSYNC_REPLICAS
from spark_kafka_sink.devbroker.controller.topic_control import check_topic_settings
from spark_kafka_sink.devbroker.metadata.records import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    ConfigRecord,
    ConfigResource,
    MetadataRecord,
)
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages import alter_configs as replacing
from spark_kafka_sink.protocol.messages import incremental_alter_configs as incremental

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
    from spark_kafka_sink.devbroker.controller.replication_control import ReplicationControl
    from spark_kafka_sink.devbroker.metadata.image import MetadataImage


class _Outcome(NamedTuple):
    """The result of a resource; its fields have the names of the response's."""

    resource_type: int
    resource_name: str
    error_code: ErrorCode
    error_message: str | None


@dataclass(slots=True, kw_only=True)
class ConfigControl:
    """The rules of settings, by an image."""

    image: MetadataImage
    replication: ReplicationControl
    #: The defaults of topics in the brokers' files.
    topic_defaults: TopicConfig

    def alter(
        self, request: incremental.IncrementalAlterConfigsRequest, records: list[MetadataRecord]
    ) -> incremental.IncrementalAlterConfigsResponse:
        """Add the records of changed settings; return a result for each resource."""
        return incremental.IncrementalAlterConfigsResponse(
            responses=tuple(
                incremental.AlterConfigsResourceResponse(**outcome._asdict())
                for outcome in self._alter_each(request.resources, records, replaces=False)
            )
        )

    def replace(
        self, request: replacing.AlterConfigsRequest, records: list[MetadataRecord]
    ) -> replacing.AlterConfigsResponse:
        """Add the records of replaced settings; return a result for each resource."""
        return replacing.AlterConfigsResponse(
            responses=tuple(
                replacing.AlterConfigsResourceResponse(**outcome._asdict())
                for outcome in self._alter_each(request.resources, records, replaces=True)
            )
        )

    def records(
        self, resource: ConfigResource, changes: Mapping[str, str | None]
    ) -> list[MetadataRecord]:
        """Return the records that set valid settings, or remove those that are None."""
        records: list[MetadataRecord] = [
            ConfigRecord(resource=resource, name=name, value=value)
            for name, value in changes.items()
        ]
        if MIN_INSYNC_REPLICAS in changes:
            if resource.resource_type == TOPIC_RESOURCE:
                records += self.replication.clear_elr(resource.name)
            elif resource == ConfigResource(BROKER_RESOURCE, ALL_BROKERS):
                records += self.replication.clear_elr(None)
        return records

    def _alter_each(
        self,
        resources: Sequence[incremental.AlterConfigsResource | replacing.AlterConfigsResource],
        records: list[MetadataRecord],
        *,
        replaces: bool,
    ) -> list[_Outcome]:
        times = Counter(map(_key, resources))
        outcomes: dict[ConfigResource, _Outcome] = {}
        for resource in resources:
            key = _key(resource)
            try:
                if times[key] > 1:
                    raise bad_request("Each resource must appear at most once.")
                check_configs(resource)
                before = {} if replaces else self.image.config(key)
                after = self._altered(key, resource, before)
            except RefusedError as refused:
                outcomes[key] = _Outcome(*key, refused.error_code, refused.message)
            else:
                records += self.records(key, _changes(self.image.config(key), after))
                outcomes[key] = _Outcome(*key, ErrorCode.NONE, None)
        return list(outcomes.values())

    def _altered(
        self,
        key: ConfigResource,
        resource: incremental.AlterConfigsResource | replacing.AlterConfigsResource,
        before: Mapping[str, str],
    ) -> dict[str, str]:
        """Return what is set for a resource after a change. Raises RefusedError."""
        if key.resource_type == BROKER_RESOURCE:
            self._check_broker(key.name)
            after = changed_broker_values(resource, before)
            check_broker_values(key.name, after, self.topic_defaults)
            return after
        validate_topic_name(key.name)
        if self.image.find_topic(key.name) is None:
            raise RefusedError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {key.name!r} does not exist"
            )
        config = self.topic_defaults.with_values(without_controllers(before))
        after = changed_topic_values(resource, before, config)
        check_topic_settings(after)
        return after

    def _check_broker(self, name: str) -> None:
        if name != ALL_BROKERS and not (name.isdigit() and int(name) in self.image.brokers):
            raise bad_request(f"broker {name} is not registered")


def _key(
    resource: incremental.AlterConfigsResource | replacing.AlterConfigsResource,
) -> ConfigResource:
    return ConfigResource(resource.resource_type, resource.resource_name)


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str | None]:
    """Return the settings that differ; None for one that is not set any more."""
    removed: dict[str, str | None] = dict.fromkeys(before.keys() - after.keys())
    return removed | {name: each for name, each in after.items() if before.get(name) != each}
