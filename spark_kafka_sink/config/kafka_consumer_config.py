"""The group consumer's settings, and the configuration parsed from them: consistent and immutable.

`KafkaConsumerConfig.from_mapping` is the only entry point: it parses settings by
`KAFKA_CONSUMER_CONFIG_DEF` and `REFUSED_KAFKA_CONSUMER`, then applies the rules between settings as
Kafka's `ConsumerConfig.postProcessParsedConfig` (4.3) does, and those that Java checks when a
consumer is created. If two given settings contradict each other, that is an error; a default gives
way to a given setting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from spark_kafka_sink.config.client_config import (
    CLIENT_CONFIG_DEF,
    METADATA_RECOVERY,
    REFUSED_CLIENT,
    TIMES_OF_CLIENTS,
    ClientConfig,
    SettingsTable,
)
from spark_kafka_sink.config.config_def import (
    ConfigDef,
    ConfigType,
    Importance,
    NotEmpty,
    OneOfAnyCase,
    Range,
    RefusedSetting,
    RequestName,
    RequestText,
)
from spark_kafka_sink.config.consumer_config import CONSUMER_CONFIG_DEF, settle_fetch_wait
from spark_kafka_sink.config.iso_durations import duration_ns
from spark_kafka_sink.config.plugin_reference import (
    ASSIGNORS,
    DESERIALIZERS,
    INTERCEPTORS,
    REPORTERS,
    TOKEN_SOURCES,
)
from spark_kafka_sink.config.producer_config import PRODUCER_CONFIG_DEF
from spark_kafka_sink.config.security_table import SECURITY_CONFIG_DEF
from spark_kafka_sink.model import is_topic_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_kafka_sink.config.client_config import GivenSettings
    from spark_kafka_sink.config.plugin_reference import PluginReference

#: The values of `group.protocol`.
CLASSIC_PROTOCOL: Final = "classic"
CONSUMER_PROTOCOL: Final = "consumer"

_BOOLEAN, _STRING, _INT, _CLASS, _CLASSES = (
    ConfigType.BOOLEAN,
    ConfigType.STRING,
    ConfigType.INT,
    ConfigType.CLASS,
    ConfigType.CLASSES,
)
_HIGH, _MEDIUM, _LOW = Importance.HIGH, Importance.MEDIUM, Importance.LOW
_BY_DURATION: Final = "by_duration:"
#: The settings without a meaning in the protocol `consumer`, and what to do instead
#: (ConsumerConfig.CONSUMER_PROTOCOL_UNSUPPORTED_CONFIGS).
_CLASSIC_ONLY: Final = {
    "session.timeout.ms": "the broker's group.consumer.session.timeout.ms applies, or "
    "consumer.session.timeout.ms of the group",
    "heartbeat.interval.ms": "the broker's group.consumer.heartbeat.interval.ms applies, or "
    "consumer.heartbeat.interval.ms of the group",
    "partition.assignment.strategy": "the broker assigns the partitions; set group.remote.assignor",
}


class _Reset:
    """The values of auto.offset.reset (Java's `AutoOffsetResetStrategy.Validator`)."""

    def __str__(self) -> str:
        """Format them as Kafka's documentation does."""
        return f"[latest, earliest, none, {_BY_DURATION}PnDTnHnMn.nS]"

    def problem(self, value: str) -> str | None:
        """Look up the word, or parse the duration, which must not be negative."""
        if value in {"latest", "earliest", "none"}:
            return None
        duration = duration_ns(value.removeprefix(_BY_DURATION))
        if value.startswith(_BY_DURATION) and duration is not None and duration >= 0:
            return None
        return (
            f"must be latest, earliest, none, or {_BY_DURATION} with an ISO 8601 duration that is "
            f"not negative, such as {_BY_DURATION}PT36H"
        )


#: A row for each supported setting. Names, types and ranges are those of Kafka's `ConsumerConfig`
#: (4.3), except that a session and the interval of its heartbeats must be positive, and that a
#: group id must not be empty, which Java checks later. So are the defaults, except for
#: allow.auto.create.topics, receive.buffer.bytes, send.buffer.bytes, metric.reporters, client.id
#: and the deserializers, which Java requires; only max.uncompressed.batch.bytes is not one of
#: Kafka's. The rows that reads have in common with this consumer are in `consumer_config`, and
#: those of all clients in `client_config`.
KAFKA_CONSUMER_CONFIG_DEF: Final = (
    ConfigDef()
    .include(CLIENT_CONFIG_DEF, "bootstrap.servers")
    .define(
        "group.id",
        _STRING,
        None,
        RequestName(),
        _HIGH,
        "The consumer group, whose members share the partitions of their topics. Required to "
        "subscribe to topics and to commit offsets; without it, partitions can only be assigned.",
    )
    .define(
        "group.instance.id",
        _STRING,
        None,
        NotEmpty(),
        _MEDIUM,
        "The name of a static member (KIP-345): a consumer that restarts under the same name within"
        " session.timeout.ms gets its partitions back without a rebalance. Each name may be in use "
        "only once in a group. Same characters as in names of topics.",
    )
    .define(
        "group.protocol",
        _STRING,
        "classic",
        OneOfAnyCase(("classic", "consumer")),
        _HIGH,
        "The rebalance protocol: with classic a member of the group assigns the partitions, with "
        "consumer the broker does (KIP-848).",
    )
    .define(
        "group.remote.assignor",
        _STRING,
        None,
        RequestText(),
        _MEDIUM,
        "The name of the broker's assignor, such as uniform or range; unless set, the broker "
        "chooses it. Only with group.protocol=consumer.",
    )
    .define(
        "session.timeout.ms",
        _INT,
        45_000,
        Range(1),
        _HIGH,
        "The time without a heartbeat after which the coordinator removes a member from its group. "
        "The broker's limits are group.min.session.timeout.ms and group.max.session.timeout.ms. "
        "Only with group.protocol=classic; otherwise the broker's "
        "group.consumer.session.timeout.ms applies.",
    )
    .define(
        "heartbeat.interval.ms",
        _INT,
        3_000,
        Range(1),
        _HIGH,
        "The time between heartbeats to the coordinator. Must be less than session.timeout.ms, and "
        "should be at most a third of it. Only with group.protocol=classic; otherwise the broker's "
        "group.consumer.heartbeat.interval.ms applies.",
    )
    .define(
        "max.poll.interval.ms",
        _INT,
        300_000,
        Range(1),
        _MEDIUM,
        "The maximum time between two calls of `poll`. A consumer that exceeds it leaves its "
        "group, so that other members get its partitions; a static member leaves only when its "
        "session times out.",
    )
    .define(
        "max.poll.records",
        _INT,
        500,
        Range(1),
        _MEDIUM,
        "The maximum number of records that one call of `poll` returns. Does not change what is "
        "fetched: the remaining records are returned by the next calls.",
    )
    .define(
        "partition.assignment.strategy",
        _CLASSES,
        ("range", "cooperative-sticky"),
        None,
        _MEDIUM,
        "The assignors that this member supports, in order of preference: `range`, `roundrobin`, "
        "`sticky`, `cooperative-sticky`, the names of Java's classes for these, or assignors of "
        "your own. The group uses one that all members support. Only with group.protocol=classic; "
        "otherwise set group.remote.assignor.",
    )
    .define(
        "enable.auto.commit",
        _BOOLEAN,
        True,
        None,
        _MEDIUM,
        "Whether to commit the offsets of the records that `poll` has returned, every "
        "auto.commit.interval.ms. Requires group.id; without one, the default is false.",
    )
    .define(
        "auto.commit.interval.ms",
        _INT,
        5_000,
        Range(0),
        _LOW,
        "The time between two commits of enable.auto.commit.",
    )
    .define(
        "auto.offset.reset",
        _STRING,
        "latest",
        _Reset(),
        _MEDIUM,
        "Where to start in a partition without a committed offset, or whose offset no longer "
        "exists: with the earliest or latest record, or with the first one of a duration before "
        "now (by_duration:P1D is a day, KIP-1106). none raises an error instead.",
    )
    .include(CONSUMER_CONFIG_DEF, "isolation.level")
    .define(
        "max.partition.fetch.bytes",
        _INT,
        1_048_576,
        Range(0),
        _HIGH,
        "The maximum size of the data of one partition in a response, in bytes. A larger record "
        "batch is returned anyway, alone.",
    )
    .include(
        CONSUMER_CONFIG_DEF,
        "fetch.max.bytes",
        "fetch.min.bytes",
        "fetch.max.wait.ms",
        "check.crcs",
        "max.uncompressed.batch.bytes",
        "client.rack",
    )
    .define(
        "key.deserializer",
        _CLASS,
        "bytes",
        None,
        _HIGH,
        "The deserializer of keys: `bytes`, `string`, `int`, `float`, `json`, or one of your own.",
    )
    .define(
        "value.deserializer",
        _CLASS,
        "bytes",
        None,
        _HIGH,
        "The deserializer of values, like key.deserializer.",
    )
    .define(
        "interceptor.classes",
        _CLASSES,
        (),
        None,
        _LOW,
        "Interceptors that see the records before `poll` returns them, and the offsets that were "
        "committed, in this order.",
    )
    .define(
        "allow.auto.create.topics",
        _BOOLEAN,
        False,
        None,
        _MEDIUM,
        "Whether brokers with auto.create.topics.enable may create a topic that is subscribed to "
        "or assigned. Java's default is true, with which a mistyped name creates a topic.",
    )
    .define(
        "exclude.internal.topics",
        _BOOLEAN,
        True,
        None,
        _MEDIUM,
        "Whether a subscription to a pattern excludes internal topics, such as "
        "__consumer_offsets. They can be subscribed to by name in any case.",
    )
    .define(
        "default.api.timeout.ms",
        _INT,
        60_000,
        Range(0),
        _MEDIUM,
        "How long a call without a `timeout` may take, including retries. `poll` has its own.",
    )
    .include(
        CLIENT_CONFIG_DEF,
        *TIMES_OF_CLIENTS,
        *METADATA_RECOVERY,
        "connections.max.idle.ms",
        "client.dns.lookup",
        "send.buffer.bytes",
    )
    .include(CONSUMER_CONFIG_DEF, "receive.buffer.bytes")
    .include(
        PRODUCER_CONFIG_DEF,
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
    )
    .define(
        "client.id",
        _STRING,
        "spark-kafka-sink-consumer",
        None,
        _LOW,
        "The client's name in the brokers' logs and quotas, with which its member ids begin in a "
        "classic group.",
    )
    .include(SECURITY_CONFIG_DEF)
)

#: Java's StringDeserializer and UUIDDeserializer read three settings of this kind.
_ENCODING: Final = RefusedSetting(
    "text is read as UTF-8; for another encoding set a function, such as "
    "lambda data: data.decode('latin-1'), as key.deserializer or value.deserializer",
    ("utf-8", "utf8"),
)
_OF_SHARE_GROUPS: Final = RefusedSetting("it is a setting of share groups, which are not supported")

#: Every other setting of Kafka's consumer: why it is not supported, and the values that request
#: what happens anyway.
REFUSED_KAFKA_CONSUMER: Final[Mapping[str, RefusedSetting]] = {
    "internal.throw.on.fetch.stable.offset.unsupported": RefusedSetting(
        "it is an internal setting of Kafka's own clients", ("false",)
    ),
    "key.deserializer.encoding": _ENCODING,
    "value.deserializer.encoding": _ENCODING,
    "deserializer.encoding": _ENCODING,
    "share.acknowledgement.mode": _OF_SHARE_GROUPS,
    "share.acquire.mode": _OF_SHARE_GROUPS,
    **REFUSED_CLIENT,
}

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
