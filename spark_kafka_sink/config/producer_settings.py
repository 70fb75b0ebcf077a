"""The tables of the producer's settings: those that work here, and those that do not.

`PRODUCER_CONFIG_DEF` has a row for each setting that works; names, types and ranges are those of
Kafka's `ProducerConfig` (4.3), and so are the defaults but for compression.type, batch.size and
client.id. `REFUSED` has one for each other setting of Kafka's producer, with the reason, and the
values that ask for what is done anyway. So no setting is accepted and then ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

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
from spark_kafka_sink.model import SecurityProtocol

if TYPE_CHECKING:
    from collections.abc import Mapping

_BOOLEAN, _STRING, _INT, _LONG, _LIST = (
    ConfigType.BOOLEAN,
    ConfigType.STRING,
    ConfigType.INT,
    ConfigType.LONG,
    ConfigType.LIST,
)
_HIGH, _MEDIUM, _LOW = Importance.HIGH, Importance.MEDIUM, Importance.LOW

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
