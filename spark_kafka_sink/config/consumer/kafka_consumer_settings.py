"""The tables of the group consumer's settings: the supported and the unsupported ones.

`KAFKA_CONSUMER_CONFIG_DEF` has a row for each supported setting. Names, types and ranges are those
of Kafka's `ConsumerConfig` (4.3), except that a session and the interval of its heartbeats must be
positive, and that a group id must not be empty, which Java checks later. So are the defaults,
except for allow.auto.create.topics, receive.buffer.bytes, send.buffer.bytes, metric.reporters,
client.id and the deserializers, which Java requires; only max.uncompressed.batch.bytes is not one
of Kafka's. `REFUSED_KAFKA_CONSUMER` has an entry for every other setting of Kafka's consumer, with
the reason and the values that request what happens anyway. The rows that reads have in common with
this consumer are in `consumer_settings`, and those of all clients in `client_settings`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark_kafka_sink.config.client_settings import CLIENT_CONFIG_DEF, REFUSED_CLIENT
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
from spark_kafka_sink.config.consumer.iso_durations import duration_ns
from spark_kafka_sink.config.consumer_settings import CONSUMER_CONFIG_DEF
from spark_kafka_sink.config.producer_settings import PRODUCER_CONFIG_DEF
from spark_kafka_sink.config.security_table import SECURITY_CONFIG_DEF

if TYPE_CHECKING:
    from collections.abc import Mapping

_BOOLEAN, _STRING, _INT, _CLASS, _CLASSES = (
    ConfigType.BOOLEAN,
    ConfigType.STRING,
    ConfigType.INT,
    ConfigType.CLASS,
    ConfigType.CLASSES,
)
_HIGH, _MEDIUM, _LOW = Importance.HIGH, Importance.MEDIUM, Importance.LOW
_BY_DURATION: Final = "by_duration:"


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
        "request.timeout.ms",
        "retry.backoff.ms",
        "retry.backoff.max.ms",
        "reconnect.backoff.ms",
        "reconnect.backoff.max.ms",
        "socket.connection.setup.timeout.ms",
        "socket.connection.setup.timeout.max.ms",
        "metadata.max.age.ms",
        "metadata.recovery.strategy",
        "metadata.recovery.rebootstrap.trigger.ms",
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
