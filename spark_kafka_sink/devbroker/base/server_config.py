"""The broker's settings by Kafka's names, as in server.properties.

One row for each setting of `BrokerSettings` that Kafka has too: its type, Kafka's default, and the
field. Those that are defaults of topics can be changed while the broker runs (KIP-226); they then
apply to all topics that do not have a value of their own.

Values are in Kafka's notation. A value that is Kafka's default counts as not set.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.topic_config import TOPIC_CONFIG_TYPES, ConfigType, TopicConfig
from spark_kafka_sink.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings

_MAX_INT32 = 2**31 - 1
_HOUR_MS = 3_600_000
_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """A setting of brokers."""

    #: Kafka's name.
    name: str
    type: ConfigType
    #: Kafka's default; None if it has none, since another setting has the value then.
    default: str | None
    #: The field of `BrokerSettings`, or of its `connection_limits`; empty for a default of topics.
    field: str = ""
    #: The setting of topics whose default it is; empty for any other setting.
    topic_config: str = ""

    @property
    def is_dynamic(self) -> bool:
        """Whether it can be changed while the broker runs."""
        return bool(self.topic_config)

    def value(self, settings: BrokerSettings, topic_defaults: TopicConfig) -> str | None:
        """Return the value of a broker; None if another setting has it."""
        if self.topic_config:
            value = topic_defaults.effective_values()[self.topic_config]
            return None if self.default is None and value == _DEFAULTS[self.topic_config] else value
        value = getattr(_owner(settings, self.field), self.field)
        return str(value).lower() if self.type is ConfigType.BOOLEAN else str(value)


def _owner(settings: BrokerSettings, field: str) -> Any:
    return settings if hasattr(settings, field) else settings.connection_limits


#: Kafka's defaults of topics.
_DEFAULTS: Final = TopicConfig().effective_values()


def _rows(type_: ConfigType, rows: Mapping[str, tuple[str, str]]) -> list[ServerConfig]:
    return [ServerConfig(name, type_, default, field) for name, (field, default) in rows.items()]


#: The names that the defaults of topics have for brokers (ServerTopicConfigSynonyms), where a
#: setting in hours or minutes takes part without a default in milliseconds.
_OF_TOPICS: Final = {
    "cleanup.policy": "log.cleanup.policy",
    "compression.type": "compression.type",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "index.interval.bytes": "log.index.interval.bytes",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.type": "log.message.timestamp.type",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "min.insync.replicas": "min.insync.replicas",
    "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms",
    "segment.bytes": "log.segment.bytes",
    "segment.index.bytes": "log.index.size.max.bytes",
    "segment.ms": "log.roll.ms",
}
_WITHOUT_DEFAULT: Final = frozenset({"flush.ms", "retention.ms", "segment.ms"})

#: All settings, by name.
SERVER_CONFIGS: Final[dict[str, ServerConfig]] = {
    row.name: row
    for row in sorted(
        [
            *_rows(
                ConfigType.BOOLEAN,
                {"auto.create.topics.enable": ("auto_create_topics", "true")},
            ),
            *_rows(
                ConfigType.INT,
                {
                    "broker.heartbeat.interval.ms": ("broker_heartbeat_interval_ms", "2000"),
                    "broker.session.timeout.ms": ("broker_session_timeout_ms", "9000"),
                    "controller.quorum.fetch.timeout.ms": (
                        "controller_quorum_fetch_timeout_ms",
                        "2000",
                    ),
                    "default.replication.factor": ("default_replication_factor", "1"),
                    "fetch.max.bytes": ("fetch_max_bytes", "57671680"),
                    "group.consumer.assignment.interval.ms": (
                        "group_consumer_assignment_interval_ms",
                        "1000",
                    ),
                    "group.consumer.heartbeat.interval.ms": (
                        "group_consumer_heartbeat_interval_ms",
                        "5000",
                    ),
                    "group.consumer.max.size": ("group_consumer_max_size", str(_MAX_INT32)),
                    "group.consumer.regex.refresh.interval.ms": (
                        "group_consumer_regex_refresh_interval_ms",
                        "600000",
                    ),
                    "group.consumer.session.timeout.ms": (
                        "group_consumer_session_timeout_ms",
                        "45000",
                    ),
                    "group.initial.rebalance.delay.ms": (
                        "group_initial_rebalance_delay_ms",
                        "3000",
                    ),
                    "group.max.session.timeout.ms": ("group_max_session_timeout_ms", "1800000"),
                    "group.max.size": ("group_max_size", str(_MAX_INT32)),
                    "group.min.session.timeout.ms": ("group_min_session_timeout_ms", "6000"),
                    "max.connections": ("max_connections", str(_MAX_INT32)),
                    "max.connections.per.ip": ("max_connections_per_ip", str(_MAX_INT32)),
                    "max.incremental.fetch.session.cache.slots": (
                        "max_incremental_fetch_session_cache_slots",
                        "1000",
                    ),
                    "num.partitions": ("num_partitions", "1"),
                    "offset.metadata.max.bytes": ("offset_metadata_max_bytes", "4096"),
                    "producer.id.expiration.ms": ("producer_id_expiration_ms", "86400000"),
                    "socket.request.max.bytes": ("socket_request_max_bytes", "104857600"),
                    "transaction.abort.timed.out.transaction.cleanup.interval.ms": (
                        "transaction_abort_interval_ms",
                        "10000",
                    ),
                    "transaction.max.timeout.ms": ("transaction_max_timeout_ms", "900000"),
                    "transactional.id.expiration.ms": (
                        "transactional_id_expiration_ms",
                        "604800000",
                    ),
                },
            ),
            *_rows(
                ConfigType.LONG,
                {
                    "connections.max.idle.ms": ("connections_max_idle_ms", "600000"),
                    "replica.lag.time.max.ms": ("replica_lag_time_max_ms", "30000"),
                },
            ),
            *(
                ServerConfig(
                    name,
                    TOPIC_CONFIG_TYPES[topic_config],
                    None if topic_config in _WITHOUT_DEFAULT else _DEFAULTS[topic_config],
                    topic_config=topic_config,
                )
                for topic_config, name in _OF_TOPICS.items()
            ),
        ],
        key=lambda row: row.name,
    )
}
#: The brokers' settings that are defaults of topics, by the names that topics have for them.
OF_TOPIC_CONFIG: Final = {
    row.topic_config: row for row in SERVER_CONFIGS.values() if row.topic_config
}
#: The same values in other units, in order of precedence after milliseconds, and Kafka's default.
_UNITS: Final = {
    "log.retention.minutes": ("log.retention.ms", _MINUTE_MS),
    "log.retention.hours": ("log.retention.ms", _HOUR_MS),
    "log.roll.hours": ("log.roll.ms", _HOUR_MS),
}
#: Those of them that have a default, which applies if the one in milliseconds is not set.
HOURS: Final = {"log.retention.hours": "168", "log.roll.hours": "168"}


def with_server_configs(settings: BrokerSettings, values: Mapping[str, str]) -> BrokerSettings:
    """Return settings with some values replaced; raise ConfigError for an invalid one.

    The names must be those that `supports` accepts.
    """
    values = _in_milliseconds(values)
    changes: dict[str, Any] = {}
    limits: dict[str, int] = {}
    for name, text in values.items():
        row = SERVER_CONFIGS[name]
        if row.topic_config:
            continue
        value: bool | int = (
            _boolean(row, text) if row.type is ConfigType.BOOLEAN else _number(row, text)
        )
        (changes if hasattr(settings, row.field) else limits)[row.field] = value
    if limits:
        changes["connection_limits"] = replace(settings.connection_limits, **limits)
    try:
        topic_defaults = settings.topic_defaults.with_values(topic_values(values))
    except RefusedError as refused:
        raise ConfigError(refused.message) from refused
    return replace(settings, topic_defaults=topic_defaults, **changes)


def supports(name: str) -> bool:
    """Return whether the broker has a setting."""
    return name in SERVER_CONFIGS or name in _UNITS


def topic_values(values: Mapping[str, str]) -> dict[str, str]:
    """Return the defaults of topics among the values of a broker, by the names of topics."""
    return {
        SERVER_CONFIGS[name].topic_config: value
        for name, value in values.items()
        if SERVER_CONFIGS[name].topic_config
    }


def _in_milliseconds(values: Mapping[str, str]) -> dict[str, str]:
    converted = {name: value for name, value in values.items() if name not in _UNITS}
    for name, (target, factor) in _UNITS.items():
        if name in values and target not in converted:
            number = _integer(name, values[name])
            # All negative values mean without a limit.
            converted[target] = str(number * factor if number >= 0 else -1)
    return converted


def _boolean(row: ServerConfig, text: str) -> bool:
    value = text.strip().lower()
    if value not in {"true", "false"}:
        raise ConfigError(f"{row.name} must be true or false, not {text!r}")
    return value == "true"


def _number(row: ServerConfig, text: str) -> int:
    number = _integer(row.name, text)
    if not 0 <= number <= (_MAX_INT32 if row.type is ConfigType.INT else 2**63 - 1):
        raise ConfigError(f"{row.name} is out of range: {text}")
    return number


def _integer(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name} must be a number, not {text!r}") from None


def unsupported(names: Iterable[str]) -> list[str]:
    """Return those of the names that the broker does not have."""
    return [name for name in names if not supports(name)]
