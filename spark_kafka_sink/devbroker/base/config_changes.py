"""The rules of IncrementalAlterConfigs and AlterConfigs: what the settings are after a change.

They are those of Kafka's ConfigurationControlManager and of the broker's own checks. The values
that were set before come in, and those that are set now come out; nothing is stored here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.server_config import SERVER_CONFIGS, topic_values
from spark_kafka_sink.devbroker.base.topic_config import TOPIC_CONFIG_TYPES, ConfigType
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
    from spark_kafka_sink.protocol.messages import alter_configs as replacing
    from spark_kafka_sink.protocol.messages import incremental_alter_configs as incremental

    Resource = incremental.AlterConfigsResource | replacing.AlterConfigsResource

#: Values of Kafka's ConfigResource.Type.
TOPIC: Final = 2
BROKER: Final = 4
#: The name under which settings of all brokers are stored.
ALL_BROKERS: Final = ""
#: Values of Kafka's AlterConfigOp.OpType.
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
#: A default of topics that a single broker cannot have for itself (KIP-966).
_MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"


def bad_request(message: str) -> RefusedError:
    """Return the refusal of a resource with INVALID_REQUEST."""
    return RefusedError(ErrorCode.INVALID_REQUEST, message)


def check_configs(resource: Resource) -> None:
    """Raise RefusedError with INVALID_REQUEST for what no resource may have."""
    configs: Sequence[incremental.AlterableConfig | replacing.AlterableConfig] = resource.configs
    if len({config.name for config in configs}) < len(configs):
        raise bad_request("Error due to duplicate config keys")
    nulls = [
        config.name
        for config in configs
        if config.value is None and getattr(config, "config_operation", _SET) != _DELETE
    ]
    if nulls:
        raise bad_request(f"Null value not supported for : {', '.join(nulls)}")
    if resource.resource_type not in {TOPIC, BROKER}:
        raise bad_request(f"settings of resource type {resource.resource_type} cannot be changed")


def changed_topic_values(
    resource: Resource, values: Mapping[str, str], config: TopicConfig
) -> dict[str, str]:
    """Return what is set for a topic after a change; `values` are those before.

    `config` are the settings of the topic as a whole. Raises RefusedError.
    """
    changed = dict(values)
    present = config.effective_values()
    for each in resource.configs:
        is_list = TOPIC_CONFIG_TYPES.get(each.name) is ConfigType.LIST
        _change(changed, each, present.get(each.name, ""), is_list=is_list)
    return changed


def changed_broker_values(resource: Resource, values: Mapping[str, str]) -> dict[str, str]:
    """Return what is set for a broker after a change; `values` are those before.

    Raises RefusedError.
    """
    changed = dict(values)
    for config in resource.configs:
        operation = getattr(config, "config_operation", _SET)
        if operation not in {_SET, _DELETE, _APPEND, _SUBTRACT}:
            raise bad_request(f"Unknown operations type {operation}")
        known = SERVER_CONFIGS.get(config.name)
        default = (known and known.default) or ""
        is_list = known is not None and known.type is ConfigType.LIST
        _change(changed, config, changed.get(config.name, default), is_list=is_list)
    return changed


def check_broker_values(name: str, values: Mapping[str, str], topic_defaults: TopicConfig) -> None:
    """Raise RefusedError unless a broker, or all of them, may have these settings.

    `topic_defaults` are those of the brokers' files.
    """
    fixed = [each for each in values if each in SERVER_CONFIGS and not _is_dynamic(each)]
    if fixed:
        raise bad_request(f"Cannot update these configs dynamically: [{', '.join(fixed)}]")
    unknown = [each for each in values if each not in SERVER_CONFIGS]
    if unknown:
        raise bad_request(f"this broker does not have the settings {', '.join(unknown)}")
    if name != ALL_BROKERS and _MIN_INSYNC_REPLICAS in values:
        raise RefusedError(
            ErrorCode.INVALID_CONFIG,
            f"Broker-level {_MIN_INSYNC_REPLICAS} cannot be altered while ELR is enabled.",
        )
    try:
        topic_defaults.with_values(topic_values(values))
    except RefusedError as refused:
        raise bad_request(refused.message) from refused


def _is_dynamic(name: str) -> bool:
    return SERVER_CONFIGS[name].is_dynamic


def _change(
    values: dict[str, str],
    config: incremental.AlterableConfig | replacing.AlterableConfig,
    present: str,
    *,
    is_list: bool,
) -> None:
    """Change one of the values that were set, which is `present` now. Raises RefusedError."""
    value = config.value or ""
    operation = getattr(config, "config_operation", _SET)
    if operation == _DELETE:
        values.pop(config.name, None)
        return
    if operation in {_APPEND, _SUBTRACT}:
        if not is_list:
            raise RefusedError(
                ErrorCode.INVALID_CONFIG, f"{config.name} is not a list: set or delete it"
            )
        items = [item for item in present.split(",") if item]
        others = [item for item in value.split(",") if item]
        if operation == _APPEND:
            items += [item for item in others if item not in items]
        else:
            items = [item for item in items if item not in others]
        value = ",".join(items)
    elif operation != _SET:
        # Kafka has no specific error for this.
        raise RefusedError(ErrorCode.UNKNOWN_SERVER_ERROR, f"unknown operation {operation}")
    values[config.name] = value
