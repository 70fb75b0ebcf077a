"""The producer's settings: Kafka's names, Kafka's meaning, and defaults for bulk writes.

`PRODUCER_CONFIG_DEF` has a row for each setting that works here. `REFUSED` has one for each setting
of Kafka's producer that does not, with the reason, and the values that ask for what is done anyway.
So a setting is never accepted and then ignored.

`ProducerConfig.from_mapping` is the only way in: it parses, then applies the rules between settings
as Kafka's `ProducerConfig.postProcessParsedConfig` (4.x) does. Where two settings disagree and both
were given, that is an error; where one is only a default, the default gives way.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spark_kafka_sink.config.config_def import (
    INT_MAX,
    REQUIRED,
    ConfigDef,
    ConfigType,
    Importance,
    OneOf,
    Range,
    RangeOr,
)
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.model import SecurityProtocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_BOOLEAN, _STRING, _INT, _LONG, _LIST = (
    ConfigType.BOOLEAN,
    ConfigType.STRING,
    ConfigType.INT,
    ConfigType.LONG,
    ConfigType.LIST,
)
_HIGH, _MEDIUM, _LOW = Importance.HIGH, Importance.MEDIUM, Importance.LOW

ACKS_ALL: Final = -1
#: How many requests in flight a broker can put in order: it remembers the last five batches.
MAX_IN_FLIGHT_FOR_IDEMPOTENCE: Final = 5
_HIGHEST_PORT: Final = 65_535
#: host:port, protocol://host:port or [IPv6 address]:port (as `Utils.HOST_PORT_PATTERN`).
_ADDRESS: Final = re.compile(r"(?:[0-9a-zA-Z\-%._]*://)?\[?([0-9a-zA-Z\-%._:]+?)\]?:([0-9]{1,5})")

PRODUCER_CONFIG_DEF: Final = (
    ConfigDef()
    .define(
        "bootstrap.servers",
        _LIST,
        REQUIRED,
        None,
        _HIGH,
        "Addresses (host:port, separated by commas) to find the cluster by.",
    )
    .define(
        "acks",
        _STRING,
        "all",
        OneOf(("all", "-1", "0", "1")),
        _LOW,
        "Who must have a batch before it counts as written: all in-sync replicas, the leader (1), "
        "or nobody (0: nothing is confirmed, and no offsets are known). 0 and 1 switch "
        "enable.idempotence off.",
    )
    .define(
        "enable.idempotence",
        _BOOLEAN,
        True,
        None,
        _LOW,
        "Keep the order, and write no record twice, when the producer sends a batch again.",
    )
    .define(
        "compression.type",
        _STRING,
        "lz4",
        OneOf(("none", "gzip", "snappy", "lz4", "zstd")),
        _HIGH,
        "The codec of record batches.",
    )
    .define(
        "compression.gzip.level",
        _INT,
        -1,
        RangeOr(Range(1, 9), -1),
        _MEDIUM,
        "gzip's level; -1 is zlib's own default.",
    )
    .define("compression.lz4.level", _INT, 9, Range(1, 17), _MEDIUM, "lz4's level.")
    .define("compression.zstd.level", _INT, 3, Range(-131_072, 22), _MEDIUM, "zstd's level.")
    .define(
        "batch.size",
        _INT,
        1_000_000,
        Range(0),
        _MEDIUM,
        "The most bytes of a record batch. Open batches are made smaller when many partitions are "
        "written at once, so that all of them fit in buffer.memory; unless set, it is never more "
        "than buffer.memory or max.request.size.",
    )
    .define(
        "buffer.memory",
        _LONG,
        33_554_432,
        Range(1),
        _HIGH,
        "Bytes of memory, per task, for records that are not acknowledged yet. When it is used up "
        "the task waits, up to max.block.ms.",
    )
    .define(
        "linger.ms",
        _LONG,
        5,
        Range(0),
        _MEDIUM,
        "How long a batch waits for more records. In a Spark write batches close when they are "
        "full, when the task's input ends, or when memory runs short, whatever this says.",
    )
    .define(
        "max.block.ms",
        _LONG,
        60_000,
        Range(0),
        _MEDIUM,
        "How long to wait for free memory, or for the metadata of a topic.",
    )
    .define(
        "max.request.size",
        _INT,
        1_048_576,
        Range(1),
        _MEDIUM,
        "The most bytes of a request, and so of a record before compression. The broker's own "
        "limit is message.max.bytes, or max.message.bytes of the topic.",
    )
    .define(
        "max.in.flight.requests.per.connection",
        _INT,
        5,
        Range(1),
        _LOW,
        "How many requests may wait for an answer on one connection; at most 5 with "
        "enable.idempotence.",
    )
    .define(
        "retries",
        _INT,
        INT_MAX,
        Range(0, INT_MAX),
        _HIGH,
        "How often a batch is sent again after an error that may pass; delivery.timeout.ms ends "
        "it in any case. 0 switches enable.idempotence off.",
    )
    .define(
        "delivery.timeout.ms",
        _INT,
        120_000,
        Range(0),
        _MEDIUM,
        "How long a batch may take from its closing to its acknowledgement, retries included; at "
        "least linger.ms + request.timeout.ms.",
    )
    .define(
        "request.timeout.ms",
        _INT,
        30_000,
        Range(0),
        _MEDIUM,
        "How long to wait for the answer to one request.",
    )
    .define(
        "retry.backoff.ms",
        _LONG,
        100,
        Range(0),
        _LOW,
        "How long to wait before the first retry; doubles with each further one, with jitter.",
    )
    .define("retry.backoff.max.ms", _LONG, 1_000, Range(0), _LOW, "The longest wait for a retry.")
    .define(
        "reconnect.backoff.ms",
        _LONG,
        50,
        Range(0),
        _LOW,
        "How long to wait before connecting to a broker again; doubles with each failure.",
    )
    .define(
        "reconnect.backoff.max.ms",
        _LONG,
        1_000,
        Range(0),
        _LOW,
        "The longest wait before connecting again.",
    )
    .define(
        "socket.connection.setup.timeout.ms",
        _LONG,
        10_000,
        Range(0),
        _MEDIUM,
        "How long a connection may take to open; doubles with each failure.",
    )
    .define(
        "socket.connection.setup.timeout.max.ms",
        _LONG,
        30_000,
        Range(0),
        _MEDIUM,
        "The longest time that a connection may take to open.",
    )
    .define(
        "metadata.max.age.ms",
        _LONG,
        300_000,
        Range(0),
        _LOW,
        "How old the picture of the cluster may get before it is asked for again.",
    )
    .define(
        "partitioner.ignore.keys",
        _BOOLEAN,
        False,
        None,
        _MEDIUM,
        "Place records that have a key as if they had none.",
    )
    .define(
        "client.id",
        _STRING,
        "spark-kafka-sink",
        None,
        _MEDIUM,
        "The name by which brokers know this client, in their logs and quotas.",
    )
    .define(
        "security.protocol",
        _STRING,
        SecurityProtocol.PLAINTEXT.value,
        None,
        _MEDIUM,
        "Only PLAINTEXT is supported yet.",
    )
)


class RefusedSetting(NamedTuple):
    """A setting of Kafka's producer that does not work here."""

    reason: str
    #: Values that are accepted all the same, since they ask for what is done anyway.
    accepted: tuple[str, ...] = ()


_NO_METRICS = RefusedSetting("metrics are not supported yet")
_NO_TRANSACTIONS = "transactions are not supported yet"
_OS_BUFFERS = RefusedSetting("socket buffers are sized by the operating system", ("-1",))
_BYTES_AS_THEY_ARE = RefusedSetting(
    "keys and values are written as the bytes of their columns: convert the columns instead"
)

REFUSED: Final[Mapping[str, RefusedSetting]] = {
    "client.dns.lookup": RefusedSetting(
        "all addresses of a name are tried, and no other way is supported", ("use_all_dns_ips",)
    ),
    "config.providers": RefusedSetting("Java classes cannot be used here", ("",)),
    "connections.max.idle.ms": RefusedSetting("connections stay open until the task ends"),
    "enable.metrics.push": RefusedSetting("metrics are not pushed to brokers", ("false",)),
    "interceptor.classes": RefusedSetting("Java classes cannot be used here", ("",)),
    "key.serializer": _BYTES_AS_THEY_ARE,
    "metadata.max.idle.ms": RefusedSetting("a task keeps the metadata of its topics"),
    "metadata.recovery.rebootstrap.trigger.ms": RefusedSetting(
        "bootstrap.servers are tried whenever no known broker answers"
    ),
    "metadata.recovery.strategy": RefusedSetting(
        "bootstrap.servers are tried whenever no known broker answers", ("rebootstrap",)
    ),
    "metric.reporters": RefusedSetting(_NO_METRICS.reason, ("",)),
    "metrics.num.samples": _NO_METRICS,
    "metrics.recording.level": _NO_METRICS,
    "metrics.sample.window.ms": _NO_METRICS,
    "auto.include.jmx.reporter": RefusedSetting(_NO_METRICS.reason, ("false",)),
    "partitioner.adaptive.partitioning.enable": RefusedSetting(
        "records without a key are spread evenly over the partitions that have a leader", ("false",)
    ),
    "partitioner.availability.timeout.ms": RefusedSetting(
        "records without a key are spread evenly over the partitions that have a leader", ("0",)
    ),
    "partitioner.class": RefusedSetting(
        "Java classes cannot be used here; records are placed as Kafka's default partitioner "
        "places them, and a partition column decides otherwise row by row",
        ("",),
    ),
    "receive.buffer.bytes": _OS_BUFFERS,
    "send.buffer.bytes": _OS_BUFFERS,
    "security.providers": RefusedSetting("Java classes cannot be used here", ("",)),
    "transaction.timeout.ms": RefusedSetting(_NO_TRANSACTIONS),
    "transaction.two.phase.commit.enable": RefusedSetting(_NO_TRANSACTIONS, ("false",)),
    "transactional.id": RefusedSetting(_NO_TRANSACTIONS),
    "value.serializer": _BYTES_AS_THEY_ARE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """The settings, validated. Names are Kafka's; `PRODUCER_CONFIG_DEF` documents each."""

    bootstrap_servers: tuple[tuple[str, int], ...]
    acks: int
    enable_idempotence: bool
    compression_type: str
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    batch_size: int
    buffer_memory: int
    linger_ms: int
    max_block_ms: int
    max_request_size: int
    max_in_flight_requests_per_connection: int
    retries: int
    delivery_timeout_ms: int
    request_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int
    socket_connection_setup_timeout_ms: int
    socket_connection_setup_timeout_max_ms: int
    metadata_max_age_ms: int
    partitioner_ignore_keys: bool
    client_id: str
    security_protocol: SecurityProtocol

    @classmethod
    def from_mapping(cls, settings: Mapping[str, object], *, prefix: str = "") -> ProducerConfig:
        """Read settings by their Kafka names; values are text or Python values.

        `prefix` goes before the names in errors, for callers who have another name for them
        ("kafka."). Raises ConfigError; no error shows the value of a secret.
        """
        _refuse_unsupported(settings, prefix)
        supported = {name: value for name, value in settings.items() if name not in REFUSED}
        values = PRODUCER_CONFIG_DEF.parse(supported, prefix=prefix)
        given = _Given(frozenset(supported), prefix)
        values["bootstrap.servers"] = tuple(_addresses(values["bootstrap.servers"], prefix))
        values["security.protocol"] = SecurityProtocol.PLAINTEXT
        values["acks"] = ACKS_ALL if values["acks"] == "all" else int(values["acks"])
        _settle_idempotence(values, given)
        _settle_delivery_timeout(values, given)
        _settle_batch_size(values, given)
        if given.only("reconnect.backoff.ms", "reconnect.backoff.max.ms"):
            # As CommonClientConfigs.postProcessReconnectBackoffConfigs: one wait, always.
            values["reconnect.backoff.max.ms"] = values["reconnect.backoff.ms"]
        return cls(**{name.replace(".", "_"): value for name, value in values.items()})

    @property
    def compression_level(self) -> int | None:
        """The level of the codec in use; None where it has no levels."""
        match self.compression_type:
            case "gzip":
                return self.compression_gzip_level
            case "lz4":
                return self.compression_lz4_level
            case "zstd":
                return self.compression_zstd_level
            case _:
                return None


class _Given(NamedTuple):
    """Which settings the user gave, and what stands before their names."""

    names: frozenset[str]
    prefix: str

    def only(self, name: str, other: str) -> bool:
        return name in self.names and other not in self.names

    def contradiction(self, sentence: str) -> ConfigError:
        return ConfigError(f"{self.prefix}{sentence}")


def _refuse_unsupported(settings: Mapping[str, object], prefix: str) -> None:
    # The protocol first: who set ten sasl.* options should read about the protocol.
    given = settings.get("security.protocol", SecurityProtocol.PLAINTEXT.value)
    protocol = str(given).strip().upper()
    words = [known.value for known in SecurityProtocol]
    if protocol not in words:
        known = ", ".join(words)
        raise ConfigError(f"{prefix}security.protocol must be one of: {known}, not {given!r}")
    if protocol != SecurityProtocol.PLAINTEXT:
        raise ConfigError(
            f"{prefix}security.protocol {protocol} is not supported yet: only "
            f"{SecurityProtocol.PLAINTEXT.value} is"
        )
    for name, value in settings.items():
        # Some of these hold secrets, so no value is shown.
        if name.startswith(("sasl.", "ssl.")):
            layer = "TLS" if name.startswith("ssl.") else "SASL"
            raise ConfigError(f"{prefix}{name}: {layer} is not supported yet; remove this setting")
        refused = REFUSED.get(name)
        if refused is not None and str(value).strip().lower() not in refused.accepted:
            raise ConfigError(f"{prefix}{name} is not supported: {refused.reason}")
        if refused is None and name not in PRODUCER_CONFIG_DEF:
            raise PRODUCER_CONFIG_DEF.unknown(name, prefix)


def _addresses(entries: tuple[str, ...], prefix: str) -> Iterator[tuple[str, int]]:
    """Read each address once; what stands between two commas may be nothing, as before 4.0."""
    seen = set()
    for entry in filter(None, entries):
        match = _ADDRESS.fullmatch(entry)
        if match is None or not 1 <= int(match[2]) <= _HIGHEST_PORT:
            raise ConfigError(f"{prefix}bootstrap.servers: {entry!r} is not host:port")
        address = match[1], int(match[2])
        if address not in seen:
            seen.add(address)
            yield address
    if not seen:
        raise ConfigError(f"{prefix}bootstrap.servers names no broker: give host:port, or several")


def _settle_idempotence(values: dict[str, Any], given: _Given) -> None:
    if not values["enable.idempotence"]:
        return
    if values["max.in.flight.requests.per.connection"] > MAX_IN_FLIGHT_FOR_IDEMPOTENCE:
        raise given.contradiction(
            "max.in.flight.requests.per.connection must be at most "
            f"{MAX_IN_FLIGHT_FOR_IDEMPOTENCE} with enable.idempotence; lower it, or set "
            "enable.idempotence=false"
        )
    obstacles = [
        requirement
        for obstructed, requirement in (
            (values["acks"] != ACKS_ALL, "acks must be all"),
            (values["retries"] == 0, "retries must be greater than 0"),
        )
        if obstructed
    ]
    if obstacles and "enable.idempotence" in given.names:
        raise given.contradiction(f"{obstacles[0]} with enable.idempotence=true")
    values["enable.idempotence"] = not obstacles


def _settle_delivery_timeout(values: dict[str, Any], given: _Given) -> None:
    """Apply `KafkaProducer.configureDeliveryTimeout`."""
    least = min(values["linger.ms"] + values["request.timeout.ms"], INT_MAX)
    if values["delivery.timeout.ms"] >= least:
        return
    if "delivery.timeout.ms" in given.names:
        raise given.contradiction(
            f"delivery.timeout.ms is {values['delivery.timeout.ms']}, and must be at least "
            f"linger.ms + request.timeout.ms, which is {least}"
        )
    values["delivery.timeout.ms"] = least


def _settle_batch_size(values: dict[str, Any], given: _Given) -> None:
    if "batch.size" not in given.names:
        values["batch.size"] = min(
            values["batch.size"], values["buffer.memory"], values["max.request.size"]
        )
    elif values["batch.size"] > values["buffer.memory"]:
        raise given.contradiction(
            f"batch.size is {values['batch.size']}, and must not exceed buffer.memory, which is "
            f"{values['buffer.memory']}"
        )
