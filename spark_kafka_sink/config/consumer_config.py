"""The settings of reads and of group consumers, and the configurations parsed from them.

`ConsumerConfig.from_mapping` and `KafkaConsumerConfig.from_mapping` are the only entry points: they
parse settings by their tables and `REFUSED_CONSUMER` or `REFUSED_KAFKA_CONSUMER`. The group
consumer's then applies the rules between settings as Kafka's
`ConsumerConfig.postProcessParsedConfig` (4.3) does, and those that Java checks when a consumer is
created. If two given settings contradict each other, that is an error; a default gives way to a
given setting.

Names, types and ranges are those of Kafka's `ConsumerConfig` (4.3), except that a session and the
interval of its heartbeats must be positive, and that a group id must not be empty, which Java
checks later. So are the defaults, except for allow.auto.create.topics, receive.buffer.bytes,
send.buffer.bytes, metric.reporters, client.id and the deserializers, which Java requires, and in
reads for max.partition.fetch.bytes; only max.uncompressed.batch.bytes is not one of Kafka's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from spark_kafka_sink.config.client_config import REFUSED_CLIENT, ClientConfig, GivenSettings
from spark_kafka_sink.config.config_def import *
from spark_kafka_sink.config.durations import duration_ns
from spark_kafka_sink.config.plugin_reference import (
    ASSIGNORS,
    DESERIALIZERS,
    INTERCEPTORS,
    PluginReference,
)
from spark_kafka_sink.config.producer_config import PRODUCER_CONFIG_DEF, REFUSED
from spark_kafka_sink.model import DEFAULT_MAX_UNCOMPRESSED_BYTES, is_topic_name

if TYPE_CHECKING:
    from collections.abc import Mapping


_OF_SHARE_GROUPS: Final = RefusedSetting("it is a setting of share groups, which are not supported")
_OF_METRICS: Final = RefusedSetting("a read has none of the metrics of Kafka's consumer")
_BYTES_AS_THEY_ARE: Final = RefusedSetting(
    "keys and values are read as bytes: convert the columns instead"
)

#: Settings of Kafka's consumer that change nothing in a read, whatever their value: Spark's own
#: source accepts them, but its consumers poll, and belong to a group.
WITHOUT_EFFECT: Final[Mapping[str, RefusedSetting]] = {
    **dict.fromkeys(
        (
            "group.id",
            "group.instance.id",
            "group.protocol",
            "group.remote.assignor",
            "heartbeat.interval.ms",
            "max.poll.interval.ms",
            "partition.assignment.strategy",
            "session.timeout.ms",
        ),
        RefusedSetting("a read joins no consumer group"),
    ),
    "auto.commit.interval.ms": RefusedSetting("a read commits no offsets to a consumer group"),
    "max.poll.records": RefusedSetting(
        "a read has no polls; its batches are limited by rows and bytes"
    ),
}

#: Every other setting of Kafka's consumer: why it is not supported, and the values that request
#: what happens anyway.
REFUSED_CONSUMER: Final[Mapping[str, RefusedSetting]] = {
    "allow.auto.create.topics": RefusedSetting("a read creates no topics", ("false",)),
    "auto.offset.reset": RefusedSetting(
        "set where a read starts (in Spark with startingOffsets): every later position follows "
        "from that, so that no record is missed"
    ),
    "enable.auto.commit": RefusedSetting(
        "a read commits no offsets to a consumer group; in a stream, commitGroup commits them for "
        "lag monitors",
        ("false",),
    ),
    "exclude.internal.topics": RefusedSetting(
        "a pattern never matches internal topics: name them instead", ("true",)
    ),
    "interceptor.classes": RefusedSetting(
        "records are read as columns, not one by one: change the columns instead", ("",)
    ),
    "internal.throw.on.fetch.stable.offset.unsupported": RefusedSetting(
        "it is an internal setting of Kafka's own clients", ("false",)
    ),
    "key.deserializer": _BYTES_AS_THEY_ARE,
    "metric.reporters": _OF_METRICS._replace(accepted=("",)),
    "metrics.num.samples": _OF_METRICS,
    "metrics.recording.level": _OF_METRICS,
    "metrics.sample.window.ms": _OF_METRICS,
    "share.acknowledgement.mode": _OF_SHARE_GROUPS,
    "share.acquire.mode": _OF_SHARE_GROUPS,
    "value.deserializer": _BYTES_AS_THEY_ARE,
    **WITHOUT_EFFECT,
    **REFUSED_CLIENT,
}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ConsumerConfig(ClientConfig):
    """The validated settings of a consumer, made by `from_mapping`.

    Its attributes are named as the settings, with underscores for dots.

    >>> config = ConsumerConfig.from_mapping({"bootstrap.servers": "localhost:9092"})
    >>> config.fetch_max_wait_ms
    500
    """

    isolation_level: str = setting(
        STRING, "read_uncommitted", MEDIUM, OneOf(("read_committed", "read_uncommitted"))
    ).doc(
        "Whether to read only what committed transactions have written, up to the first "
        "transaction that is still open (read_committed), or everything (read_uncommitted)."
    )
    max_partition_fetch_bytes: int = setting(INT, 8_388_608, HIGH, Range(0)).doc(
        "The maximum size of the data of one partition in a response, in bytes. A larger record "
        "batch is returned anyway, alone. Java's default is 1048576."
    )
    fetch_max_bytes: int = setting(INT, 52_428_800, MEDIUM, Range(0)).doc(
        "The maximum size of a response in bytes. A larger record batch is returned anyway, "
        "alone. The broker's own limit is its fetch.max.bytes."
    )
    fetch_min_bytes: int = setting(INT, 1, HIGH, Range(0)).doc(
        "The size in bytes that a response should have: the broker waits up to fetch.max.wait.ms "
        "for that much data."
    )
    fetch_max_wait_ms: int = setting(INT, 500, LOW, Range(0)).doc(
        "How long the broker may wait for fetch.min.bytes. Must be less than request.timeout.ms."
    )
    check_crcs: bool = setting(BOOLEAN, True, LOW).doc(
        "Whether to check that record batches arrived as they were written."
    )
    max_uncompressed_batch_bytes: int = setting(
        INT, DEFAULT_MAX_UNCOMPRESSED_BYTES, LOW, Range(1)
    ).doc(
        "The maximum size in bytes to which a record batch may be decompressed; a larger one is an "
        "error. It also limits records in memory, unless it is lower than the default: once they "
        "take that much, the others come with the next poll, and a record with too many headers, "
        "at 200 bytes each, is an error. Java's consumer has no such limits."
    )
    client_rack: str = setting(STRING, "", LOW, RequestText()).doc(
        "The rack of this client: brokers with replica.selector.class then name the replica to "
        "read from, such as one in the same rack (KIP-392)."
    )
    default_api_timeout_ms: int = setting(INT, 60_000, MEDIUM, Range(0)).doc(
        "How long a look-up of partitions or offsets may take, including retries."
    )
    receive_buffer_bytes: int = setting(INT, -1, MEDIUM, Range(-1), after="send.buffer.bytes").doc(
        "The size of the socket's receive buffer (SO_RCVBUF); -1 leaves it to the operating "
        "system, which lets it grow with the connection's speed. Java's default is 65536."
    )
    client_id: str = setting(STRING, "spark-kafka-sink", LOW, RequestText()).doc(
        "The client's name in the brokers' logs and quotas."
    )
    #: Not a setting: a mistyped name must not create a topic.
    allow_auto_create_topics: bool = False
    #: Not a setting: Java's consumer has the same constant.
    max_in_flight_requests_per_connection: int = 100
    #: Not a setting, and of no consequence: the topics that are read are asked for again and again.
    metadata_max_idle_ms: int = 300_000

    _refused: ClassVar = REFUSED_CONSUMER

    @property
    def is_read_committed(self) -> bool:
        """Whether records of transactions are only read when these are committed."""
        return self.isolation_level == "read_committed"

    @classmethod
    def _settle(cls, values: dict[str, Any], given: GivenSettings) -> None:
        _settle_fetch_wait(values, given)


def _settle_fetch_wait(values: dict[str, Any], given: GivenSettings) -> None:
    """Make brokers answer before the request times out; Java leaves this to its users."""
    wait, timeout = values["fetch.max.wait.ms"], values["request.timeout.ms"]
    if wait < timeout:
        return
    if "fetch.max.wait.ms" in given:
        raise given.error(
            f"fetch.max.wait.ms is {wait}, but must be less than request.timeout.ms, which is "
            f"{timeout}: a broker may wait so long before it answers"
        )
    values["fetch.max.wait.ms"] = timeout // 2


CONSUMER_CONFIG_DEF: Final = ConfigDef.of(ConsumerConfig)
#: The settings that Kafka's producer does not have, but its consumer.
CONSUMER_ONLY: Final = tuple(
    sorted({*CONSUMER_CONFIG_DEF.names, *REFUSED_CONSUMER} - {*PRODUCER_CONFIG_DEF.names, *REFUSED})
)
#: The settings that Kafka's consumer does not have, but its producer.
PRODUCER_ONLY: Final = tuple(
    sorted({*PRODUCER_CONFIG_DEF.names, *REFUSED} - {*CONSUMER_CONFIG_DEF.names, *REFUSED_CONSUMER})
)


#: The value of group.protocol with which the broker assigns the partitions (KIP-848).
CONSUMER_PROTOCOL: Final = "consumer"

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


#: Java's StringDeserializer and UUIDDeserializer read three settings of this kind.
_ENCODING: Final = RefusedSetting(
    "text is read as UTF-8; for another encoding set a function, such as "
    "lambda data: data.decode('latin-1'), as key.deserializer or value.deserializer",
    ("utf-8", "utf8"),
)

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


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class KafkaConsumerConfig(ConsumerConfig):
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
    group_id: str | None = setting(STRING, None, HIGH, RequestName()).doc(
        "The consumer group, whose members share the partitions of their topics. Required to "
        "subscribe to topics and to commit offsets; without it, partitions can only be assigned."
    )
    #: None for a dynamic member.
    group_instance_id: str | None = setting(STRING, None, MEDIUM, NotEmpty()).doc(
        "The name of a static member (KIP-345): a consumer that restarts under the same name within"
        " session.timeout.ms gets its partitions back without a rebalance. Each name may be in use "
        "only once in a group. Same characters as in names of topics."
    )
    group_protocol: str = setting(
        STRING, "classic", HIGH, OneOfAnyCase(("classic", "consumer"))
    ).doc(
        "The rebalance protocol: with classic a member of the group assigns the partitions, with "
        "consumer the broker does (KIP-848)."
    )
    #: None if the broker chooses.
    group_remote_assignor: str | None = setting(STRING, None, MEDIUM, RequestText()).doc(
        "The name of the broker's assignor, such as uniform or range; unless set, the broker "
        "chooses it. Only with group.protocol=consumer."
    )
    #: Without effect in the protocol `consumer`, as are the two other settings of classic groups.
    session_timeout_ms: int = setting(INT, 45_000, HIGH, Range(1)).doc(
        "The time without a heartbeat after which the coordinator removes a member from its group. "
        "The broker's limits are group.min.session.timeout.ms and group.max.session.timeout.ms. "
        "Only with group.protocol=classic; otherwise the broker's "
        "group.consumer.session.timeout.ms applies."
    )
    heartbeat_interval_ms: int = setting(INT, 3_000, HIGH, Range(1)).doc(
        "The time between heartbeats to the coordinator. Must be less than session.timeout.ms, and "
        "should be at most a third of it. Only with group.protocol=classic; otherwise the broker's "
        "group.consumer.heartbeat.interval.ms applies."
    )
    max_poll_interval_ms: int = setting(INT, 300_000, MEDIUM, Range(1)).doc(
        "The maximum time between two calls of `poll`. A consumer that exceeds it leaves its "
        "group, so that other members get its partitions; a static member leaves only when its "
        "session times out."
    )
    max_poll_records: int = setting(INT, 500, MEDIUM, Range(1)).doc(
        "The maximum number of records that one call of `poll` returns. Does not change what is "
        "fetched: the remaining records are returned by the next calls."
    )
    partition_assignment_strategy: tuple[PluginReference, ...] = setting(
        CLASSES, ("range", "cooperative-sticky"), MEDIUM, plugins=ASSIGNORS
    ).doc(
        "The assignors that this member supports, in order of preference: `range`, `roundrobin`, "
        "`sticky`, `cooperative-sticky`, the names of Java's classes for these, or assignors of "
        "your own. The group uses one that all members support. Only with group.protocol=classic; "
        "otherwise set group.remote.assignor."
    )
    #: False without a group.
    enable_auto_commit: bool = setting(BOOLEAN, True, MEDIUM).doc(
        "Whether to commit the offsets of the records that `poll` has returned, every "
        "auto.commit.interval.ms. Requires group.id; without one, the default is false."
    )
    auto_commit_interval_ms: int = setting(INT, 5_000, LOW, Range(0)).doc(
        "The time between two commits of enable.auto.commit."
    )
    auto_offset_reset: str = setting(STRING, "latest", MEDIUM, _Reset()).doc(
        "Where to start in a partition without a committed offset, or whose offset no longer "
        "exists: with the earliest or latest record, or with the first one of a duration before "
        "now (by_duration:P1D is a day, KIP-1106). none raises an error instead."
    )
    max_partition_fetch_bytes: int = setting(INT, 1_048_576, HIGH, Range(0)).doc(
        "The maximum size of the data of one partition in a response, in bytes. A larger record "
        "batch is returned anyway, alone."
    )
    #: None for bytes, which need no deserializer.
    key_deserializer: PluginReference | None = setting(
        CLASS, "bytes", HIGH, plugins=DESERIALIZERS, after="client.rack"
    ).doc(
        "The deserializer of keys: `bytes`, `string`, `int`, `float`, `json`, or one of your own."
    )
    value_deserializer: PluginReference | None = setting(
        CLASS, "bytes", HIGH, plugins=DESERIALIZERS
    ).doc("The deserializer of values, like key.deserializer.")
    interceptor_classes: tuple[PluginReference, ...] = setting(
        CLASSES, (), LOW, plugins=INTERCEPTORS
    ).doc(
        "Interceptors that see the records before `poll` returns them, and the offsets that were "
        "committed, in this order."
    )
    allow_auto_create_topics: bool = setting(BOOLEAN, False, MEDIUM).doc(
        "Whether brokers with auto.create.topics.enable may create a topic that is subscribed to "
        "or assigned. Java's default is true, with which a mistyped name creates a topic."
    )
    exclude_internal_topics: bool = setting(BOOLEAN, True, MEDIUM).doc(
        "Whether a subscription to a pattern excludes internal topics, such as "
        "__consumer_offsets. They can be subscribed to by name in any case."
    )
    default_api_timeout_ms: int = setting(INT, 60_000, MEDIUM, Range(0)).doc(
        "How long a call without a `timeout` may take, including retries. `poll` has its own."
    )
    metric_reporters: tuple[PluginReference, ...] = declared_in(
        PRODUCER_CONFIG_DEF, "metric.reporters", after="receive.buffer.bytes"
    )
    metrics_num_samples: int = declared_in(PRODUCER_CONFIG_DEF, "metrics.num.samples")
    metrics_recording_level: str = declared_in(PRODUCER_CONFIG_DEF, "metrics.recording.level")
    metrics_sample_window_ms: int = declared_in(PRODUCER_CONFIG_DEF, "metrics.sample.window.ms")
    client_id: str = setting(STRING, "spark-kafka-sink-consumer", LOW).doc(
        "The client's name in the brokers' logs and quotas, with which its member ids begin in a "
        "classic group."
    )

    _refused: ClassVar = REFUSED_KAFKA_CONSUMER

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
        _settle_fetch_wait(values, given)


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


KAFKA_CONSUMER_CONFIG_DEF: Final = ConfigDef.of(KafkaConsumerConfig)
