"""The consumer's settings, and the configuration parsed from them: consistent and immutable.

`ConsumerConfig.from_mapping` is the only entry point: it parses settings by `CONSUMER_CONFIG_DEF`
and `REFUSED_CONSUMER`. If two given settings contradict each other, that is an error; a default
gives way to a given setting.
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
    OneOf,
    Range,
    RefusedSetting,
    RequestText,
)
from spark_kafka_sink.config.plugin_reference import TOKEN_SOURCES
from spark_kafka_sink.config.producer_config import PRODUCER_CONFIG_DEF, REFUSED
from spark_kafka_sink.config.security_table import SECURITY_CONFIG_DEF
from spark_kafka_sink.model import DEFAULT_MAX_UNCOMPRESSED_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_kafka_sink.config.client_config import GivenSettings

_BOOLEAN, _STRING, _INT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT
_HIGH, _MEDIUM, _LOW = Importance.HIGH, Importance.MEDIUM, Importance.LOW

#: A row for each supported setting. Names, types and ranges are those of Kafka's `ConsumerConfig`
#: (4.3), and so are the defaults, except for max.partition.fetch.bytes, receive.buffer.bytes,
#: allow.auto.create.topics and client.id; only max.uncompressed.batch.bytes is not one of Kafka's.
#: The rows that all clients have in common are in `client_config`.
CONSUMER_CONFIG_DEF: Final = (
    ConfigDef()
    .include(CLIENT_CONFIG_DEF, "bootstrap.servers")
    .define(
        "isolation.level",
        _STRING,
        "read_uncommitted",
        OneOf(("read_committed", "read_uncommitted")),
        _MEDIUM,
        "Whether to read only what committed transactions have written, up to the first "
        "transaction that is still open (read_committed), or everything (read_uncommitted).",
    )
    .define(
        "max.partition.fetch.bytes",
        _INT,
        8_388_608,
        Range(0),
        _HIGH,
        "The maximum size of the data of one partition in a response, in bytes. A larger record "
        "batch is returned anyway, alone. Java's default is 1048576.",
    )
    .define(
        "fetch.max.bytes",
        _INT,
        52_428_800,
        Range(0),
        _MEDIUM,
        "The maximum size of a response in bytes. A larger record batch is returned anyway, "
        "alone. The broker's own limit is its fetch.max.bytes.",
    )
    .define(
        "fetch.min.bytes",
        _INT,
        1,
        Range(0),
        _HIGH,
        "The size in bytes that a response should have: the broker waits up to fetch.max.wait.ms "
        "for that much data.",
    )
    .define(
        "fetch.max.wait.ms",
        _INT,
        500,
        Range(0),
        _LOW,
        "How long the broker may wait for fetch.min.bytes. Must be less than request.timeout.ms.",
    )
    .define(
        "check.crcs",
        _BOOLEAN,
        True,
        None,
        _LOW,
        "Whether to check that record batches arrived as they were written.",
    )
    .define(
        "max.uncompressed.batch.bytes",
        _INT,
        DEFAULT_MAX_UNCOMPRESSED_BYTES,
        Range(1),
        _LOW,
        "The maximum size in bytes to which a record batch may be decompressed; a larger one is an "
        "error. It also limits records in memory, unless it is lower than the default: once they "
        "take that much, the others come with the next poll, and a record with too many headers, "
        "at 200 bytes each, is an error. Java's consumer has no such limits.",
    )
    .define(
        "client.rack",
        _STRING,
        "",
        RequestText(),
        _LOW,
        "The rack of this client: brokers with replica.selector.class then name the replica to "
        "read from, such as one in the same rack (KIP-392).",
    )
    .define(
        "default.api.timeout.ms",
        _INT,
        60_000,
        Range(0),
        _MEDIUM,
        "How long a look-up of partitions or offsets may take, including retries.",
    )
    .include(
        CLIENT_CONFIG_DEF,
        *TIMES_OF_CLIENTS,
        *METADATA_RECOVERY,
        "connections.max.idle.ms",
        "client.dns.lookup",
        "send.buffer.bytes",
    )
    .define(
        "receive.buffer.bytes",
        _INT,
        -1,
        Range(-1),
        _MEDIUM,
        "The size of the socket's receive buffer (SO_RCVBUF); -1 leaves it to the operating "
        "system, which lets it grow with the connection's speed. Java's default is 65536.",
    )
    .define(
        "client.id",
        _STRING,
        "spark-kafka-sink",
        RequestText(),
        _LOW,
        "The client's name in the brokers' logs and quotas.",
    )
    .include(SECURITY_CONFIG_DEF)
)

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

#: The settings that Kafka's producer does not have, but its consumer.
CONSUMER_ONLY: Final = tuple(
    sorted({*CONSUMER_CONFIG_DEF.names, *REFUSED_CONSUMER} - {*PRODUCER_CONFIG_DEF.names, *REFUSED})
)
#: The settings that Kafka's consumer does not have, but its producer.
PRODUCER_ONLY: Final = tuple(
    sorted({*PRODUCER_CONFIG_DEF.names, *REFUSED} - {*CONSUMER_CONFIG_DEF.names, *REFUSED_CONSUMER})
)

_TABLE: Final = SettingsTable(
    CONSUMER_CONFIG_DEF, REFUSED_CONSUMER, {"sasl.login.callback.handler.class": TOKEN_SOURCES}
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ConsumerConfig(ClientConfig):
    """The validated settings of a consumer, made by `from_mapping`.

    Its attributes are named as the settings, with underscores for dots.

    >>> config = ConsumerConfig.from_mapping({"bootstrap.servers": "localhost:9092"})
    >>> config.fetch_max_wait_ms
    500
    """

    isolation_level: str
    max_partition_fetch_bytes: int
    fetch_max_bytes: int
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    check_crcs: bool
    max_uncompressed_batch_bytes: int
    client_rack: str
    default_api_timeout_ms: int
    #: Not a setting: a mistyped name must not create a topic.
    allow_auto_create_topics: bool = False
    #: Not a setting: Java's consumer has the same constant.
    max_in_flight_requests_per_connection: int = 100
    #: Not a setting, and of no consequence: the topics that are read are asked for again and again.
    metadata_max_idle_ms: int = 300_000

    _table: ClassVar = _TABLE

    @property
    def is_read_committed(self) -> bool:
        """Whether records of transactions are only read when these are committed."""
        return self.isolation_level == "read_committed"

    @classmethod
    def _settle(cls, values: dict[str, Any], given: GivenSettings) -> None:
        settle_fetch_wait(values, given)


def settle_fetch_wait(values: dict[str, Any], given: GivenSettings) -> None:
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
