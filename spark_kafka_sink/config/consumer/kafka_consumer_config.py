"""The group consumer's configuration: parsed, checked for consistency, and immutable.

`KafkaConsumerConfig.from_mapping` is the only entry point: it parses settings by the tables of
`kafka_consumer_settings`, then applies the rules between settings as Kafka's
`ConsumerConfig.postProcessParsedConfig` (4.3) does, and those that Java checks when a consumer is
created. If two given settings contradict each other, that is an error; a default gives way to a
given setting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from spark_kafka_sink.config.client_config import ClientConfig, SettingsTable
from spark_kafka_sink.config.consumer.kafka_consumer_settings import (
    KAFKA_CONSUMER_CONFIG_DEF,
    REFUSED_KAFKA_CONSUMER,
)
from spark_kafka_sink.config.consumer_config import settle_fetch_wait
from spark_kafka_sink.config.plugin_reference import (
    ASSIGNORS,
    DESERIALIZERS,
    INTERCEPTORS,
    REPORTERS,
    TOKEN_SOURCES,
)
from spark_kafka_sink.model import is_topic_name

if TYPE_CHECKING:
    from spark_kafka_sink.config.client_config import GivenSettings
    from spark_kafka_sink.config.plugin_reference import PluginReference

#: The values of `group.protocol`.
CLASSIC_PROTOCOL: Final = "classic"
CONSUMER_PROTOCOL: Final = "consumer"

_TABLE: Final = SettingsTable(
    KAFKA_CONSUMER_CONFIG_DEF,
    REFUSED_KAFKA_CONSUMER,
    {
        "partition.assignment.strategy": ASSIGNORS,
        "key.deserializer": DESERIALIZERS,
        "value.deserializer": DESERIALIZERS,
        "interceptor.classes": INTERCEPTORS,
        "metric.reporters": REPORTERS,
        "sasl.login.callback.handler.class": TOKEN_SOURCES,
    },
)
#: The settings without a meaning in the protocol `consumer`, and what to do instead
#: (ConsumerConfig.CONSUMER_PROTOCOL_UNSUPPORTED_CONFIGS).
_CLASSIC_ONLY: Final = {
    "session.timeout.ms": "the broker's group.consumer.session.timeout.ms applies, or "
    "consumer.session.timeout.ms of the group",
    "heartbeat.interval.ms": "the broker's group.consumer.heartbeat.interval.ms applies, or "
    "consumer.heartbeat.interval.ms of the group",
    "partition.assignment.strategy": "the broker assigns the partitions; set group.remote.assignor",
}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class KafkaConsumerConfig(ClientConfig):
    """The validated settings of a group consumer, made by `from_mapping`.

    Its attributes are named as the settings, with underscores for dots.

    >>> config = KafkaConsumerConfig.from_mapping(
    ...     {"bootstrap.servers": "localhost:9092", "group.id": "billing"}
    ... )
    >>> config.max_poll_records
    500
    >>> config.enable_auto_commit
    True
    """

    #: None for a consumer without a group, which can neither subscribe nor commit.
    group_id: str | None
    #: None for a dynamic member.
    group_instance_id: str | None
    #: `classic` or `consumer`.
    group_protocol: str
    #: None if the broker chooses.
    group_remote_assignor: str | None
    #: Without effect in the protocol `consumer`, as are the two other settings of classic groups.
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    max_poll_records: int
    #: In order of preference.
    partition_assignment_strategy: tuple[PluginReference, ...]
    #: False without a group.
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    #: `latest`, `earliest`, `none` or `by_duration:` with a duration.
    auto_offset_reset: str
    isolation_level: str
    max_partition_fetch_bytes: int
    fetch_max_bytes: int
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    check_crcs: bool
    max_uncompressed_batch_bytes: int
    client_rack: str
    #: None for bytes, which need no deserializer.
    key_deserializer: PluginReference | None
    value_deserializer: PluginReference | None
    interceptor_classes: tuple[PluginReference, ...]
    exclude_internal_topics: bool
    default_api_timeout_ms: int
    metric_reporters: tuple[PluginReference, ...]
    metrics_num_samples: int
    metrics_recording_level: str
    metrics_sample_window_ms: int
    #: Not a setting: Java's consumer has the same constant.
    max_in_flight_requests_per_connection: int = 100
    #: Not a setting, and of no consequence: subscribed topics are asked for again and again.
    metadata_max_idle_ms: int = 300_000

    _table: ClassVar = _TABLE

    @property
    def is_read_committed(self) -> bool:
        """Whether records of transactions are only read when these are committed."""
        return self.isolation_level == "read_committed"

    @classmethod
    def _settle(cls, values: dict[str, Any], given: GivenSettings) -> None:
        values["group.protocol"] = values["group.protocol"].lower()
        values["group.remote.assignor"] = values["group.remote.assignor"] or None
        if values["group.protocol"] == CONSUMER_PROTOCOL:
            _refuse_classic_settings(given)
        else:
            _refuse_remote_assignor(values, given)
            _settle_heartbeat(values, given)
        _check_strategy(values["partition.assignment.strategy"], given)
        _check_group_instance_id(values, given)
        _settle_auto_commit(values, given)
        settle_fetch_wait(values, given)


def _refuse_classic_settings(given: GivenSettings) -> None:
    for name, instead in _CLASSIC_ONLY.items():
        # As in Java, an empty text is as good as none.
        if name in given and str(given.settings[name]).strip():
            raise given.error(f"{name} cannot be set with group.protocol=consumer: {instead}")


def _refuse_remote_assignor(values: dict[str, Any], given: GivenSettings) -> None:
    if values["group.remote.assignor"] is not None:
        raise given.error(
            "group.remote.assignor requires group.protocol=consumer; in a classic group set "
            "partition.assignment.strategy"
        )


def _settle_heartbeat(values: dict[str, Any], given: GivenSettings) -> None:
    """Make a heartbeat due within the session (Kafka's `Heartbeat`)."""
    interval, session = values["heartbeat.interval.ms"], values["session.timeout.ms"]
    if interval < session:
        return
    if "heartbeat.interval.ms" in given or session == 1:
        raise given.error(
            f"heartbeat.interval.ms is {interval}, but must be less than session.timeout.ms, which "
            f"is {session}: set it to a third of that"
        )
    values["heartbeat.interval.ms"] = max(session // 3, 1)


def _check_strategy(assignors: tuple[PluginReference, ...], given: GivenSettings) -> None:
    for index, assignor in enumerate(assignors):
        if assignor in assignors[:index]:
            raise given.error(
                f"partition.assignment.strategy has the assignor {assignor} twice; name each only "
                "once"
            )


def _check_group_instance_id(values: dict[str, Any], given: GivenSettings) -> None:
    """Check the name (`JoinGroupRequest.validateGroupInstanceId`), and that there is a group."""
    name = values["group.instance.id"]
    if name is None:
        return
    if not is_topic_name(name):
        raise given.error(
            f"group.instance.id {name!r} is invalid: use up to 249 letters, digits, '.', '_' and "
            "'-', and neither '.' nor '..'"
        )
    if values["group.id"] is None:
        raise given.error("group.instance.id requires group.id: it names a member of that group")


def _settle_auto_commit(values: dict[str, Any], given: GivenSettings) -> None:
    """Apply `ConsumerConfig.maybeOverrideEnableAutoCommit`."""
    if values["group.id"] is not None or not values["enable.auto.commit"]:
        return
    if "enable.auto.commit" in given:
        raise given.error(
            "enable.auto.commit=true requires group.id: offsets are committed to a consumer group"
        )
    values["enable.auto.commit"] = False
