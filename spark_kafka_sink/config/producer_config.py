"""The producer's settings, and the configuration parsed from them: consistent and immutable.

`ProducerConfig.from_mapping` is the only entry point: it parses settings by `PRODUCER_CONFIG_DEF`
and `REFUSED`, then applies the rules between settings as Kafka's
`ProducerConfig.postProcessParsedConfig` (4.x) does. No setting is accepted and then ignored. If two
given settings contradict each other, that is an error; a default gives way to a given setting.

Names, types and ranges are those of Kafka's `ProducerConfig` (4.3), and so are the defaults, except
for compression.type, batch.size and client.id.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from spark_kafka_sink.config.client_config import REFUSED_CLIENT, ClientConfig, GivenSettings
from spark_kafka_sink.config.config_def import *
from spark_kafka_sink.config.config_def import INT_MAX
from spark_kafka_sink.config.plugin_reference import (
    INTERCEPTORS,
    PARTITIONERS,
    REPORTERS,
    SERIALIZERS,
    PluginReference,
)
from spark_kafka_sink.model import COMPRESSION_LEVELS

if TYPE_CHECKING:
    from collections.abc import Mapping


ACKS_ALL: Final = -1
#: The most in-flight requests that a broker can keep in order: it remembers the last five batches.
MAX_IN_FLIGHT_FOR_IDEMPOTENCE: Final = 5

_GZIP, _LZ4, _ZSTD = (COMPRESSION_LEVELS[codec] for codec in ("gzip", "lz4", "zstd"))

#: Java's StringSerializer and UUIDSerializer read three settings of this kind.
_ENCODING: Final = RefusedSetting(
    "text is written as UTF-8; for another encoding set a function, such as "
    "lambda text: text.encode('latin-1'), as key.serializer or value.serializer",
    ("utf-8", "utf8"),
)

#: Every other setting of Kafka's producer: why it is not supported, and the values that request
#: what happens anyway.
REFUSED: Final[Mapping[str, RefusedSetting]] = {
    "key.serializer.encoding": _ENCODING,
    "value.serializer.encoding": _ENCODING,
    "serializer.encoding": _ENCODING,
    **REFUSED_CLIENT,
    "buffer.memory.allocation.strategy": RefusedSetting(
        "open batches become smaller where many partitions share buffer.memory, which is what "
        "incremental is for",
        ("full",),
    ),
    "transaction.two.phase.commit.enable": RefusedSetting(
        "transactions that never time out (KIP-939) require version 6 of InitProducerId, which is "
        "not stable in Kafka 4.4; prepare_transaction() and exactly-once writes leave transactions "
        "open without it, for at most transaction.timeout.ms",
        ("false",),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ProducerConfig(ClientConfig):
    """The validated settings of a producer, made by `from_mapping`.

    Its attributes are named as the settings, with underscores for dots.

    >>> config = ProducerConfig.from_mapping({"bootstrap.servers": "localhost:9092"})
    >>> config.linger_ms
    5
    >>> with KafkaProducer(config) as producer:
    ...     producer.send("orders", b"a book").result(timeout=30).offset
    0
    """

    acks: int = setting(STRING, "all", LOW, OneOf(("all", "-1", "0", "1"))).doc(
        "Which replicas must have a batch before it counts as written: all in-sync replicas "
        "(all or -1), the leader (1), or none (0: nothing is confirmed, and offsets are "
        "unknown). 0 and 1 disable enable.idempotence."
    )
    enable_idempotence: bool = setting(BOOLEAN, True, LOW).doc(
        "Whether retries preserve the order of records and never write a record twice."
    )
    compression_type: str = setting(
        STRING, "lz4", HIGH, OneOf(("none", "gzip", "snappy", "lz4", "zstd"))
    ).doc("The codec of record batches.")
    compression_gzip_level: int = setting(
        INT, _GZIP.default, MEDIUM, RangeOr(Range(_GZIP.lowest, _GZIP.highest), _GZIP.default)
    ).doc("The level of gzip; -1 is zlib's own default.")
    compression_lz4_level: int = setting(
        INT, _LZ4.default, MEDIUM, Range(_LZ4.lowest, _LZ4.highest)
    ).doc("The level of lz4.")
    compression_zstd_level: int = setting(
        INT, _ZSTD.default, MEDIUM, Range(_ZSTD.lowest, _ZSTD.highest)
    ).doc(
        "The level of zstd. At level 3, batches of more than 128 KB before compression have "
        "smaller tables than zstd's own, which takes 5 to 20 % less time; the size differs by up "
        "to 3 %."
    )
    batch_size: int = setting(INT, 1_000_000, MEDIUM, Range(0)).doc(
        "The maximum size of a record batch in bytes. Open batches are smaller if many "
        "partitions are written at the same time, so that all of them fit in buffer.memory; "
        "unless set, it never exceeds buffer.memory or max.request.size."
    )
    buffer_memory: int = setting(LONG, 33_554_432, HIGH, Range(1)).doc(
        "The memory in bytes, per task, for records that are not acknowledged yet. When it is"
        " exhausted, the task waits for up to max.block.ms."
    )
    linger_ms: int = setting(LONG, 5, MEDIUM, Range(0)).doc(
        "How long a batch waits for more records; it continues to fill if it cannot be sent "
        "then. Does not apply to a Spark write, where batches close when they are full, when "
        "the task's input ends, or when memory runs short."
    )
    max_block_ms: int = setting(LONG, 60_000, MEDIUM, Range(0)).doc(
        "How long to wait for free memory, or for the metadata of a topic."
    )
    max_request_size: int = setting(INT, 1_048_576, MEDIUM, Range(1)).doc(
        "The maximum size of a request in bytes, and thus of a record before compression. The"
        " broker's own limit is message.max.bytes, or max.message.bytes of the topic."
    )
    max_in_flight_requests_per_connection: int = setting(INT, 5, LOW, Range(1)).doc(
        "The maximum number of unanswered requests on a connection; at most 5 with "
        "enable.idempotence."
    )
    retries: int = setting(INT, INT_MAX, HIGH, Range(0, INT_MAX)).doc(
        "How often a batch is retried after a transient error; delivery.timeout.ms limits "
        "the retries in any case. 0 disables enable.idempotence."
    )
    delivery_timeout_ms: int = setting(INT, 120_000, MEDIUM, Range(0)).doc(
        "The maximum time from the opening of a batch (in a Spark write: from its closing) to "
        "its acknowledgement, including retries. Must be at least linger.ms + "
        "request.timeout.ms. A batch does not expire while its broker throttles this client."
    )
    metadata_max_idle_ms: int = setting(
        LONG, 300_000, LOW, Range(5_000), after="metadata.max.age.ms"
    ).doc("How long metadata of a topic is kept up to date after the last write to it.")
    receive_buffer_bytes: int = setting(
        INT, 32_768, MEDIUM, Range(-1), after="send.buffer.bytes"
    ).doc(
        "The size of the socket's receive buffer (SO_RCVBUF); -1 leaves it to the operating system."
    )
    #: None for the default partitioner.
    partitioner_class: PluginReference | None = setting(
        CLASS, "default", MEDIUM, plugins=PARTITIONERS
    ).doc(
        "The partitioner of records that specify no partition: `default` (murmur2 of the key;"
        " records without a key go to all partitions in turn, for 16 KiB at first and up to "
        "`batch.size` in the end), "
        "`round_robin`, `murmur2` or `murmur2_random`, `crc32` or `consistent_random` "
        "(librdkafka's default), `fnv1a` or `fnv1a_random` (as in Sarama). "
        "`murmur2_consistent`, `consistent` and `fnv1a_consistent` place keys in these three "
        "ways, and all records without a key on one partition (as librdkafka's murmur2, "
        "consistent and fnv1a). Outside Spark writes, also a partitioner of your own."
    )
    partitioner_ignore_keys: bool = setting(BOOLEAN, False, MEDIUM).doc(
        "Whether to place records that have a key as if they had none."
    )
    partitioner_adaptive_partitioning_enable: bool = setting(BOOLEAN, True, LOW).doc(
        "Whether partitions with short queues receive more of the records without a key. Only "
        "for the default partitioner."
    )
    partitioner_availability_timeout_ms: int = setting(LONG, 0, LOW, Range(0)).doc(
        "The time after which records without a key avoid a partition whose leader accepts "
        "nothing; 0 never avoids any. Only with partitioner.adaptive.partitioning.enable."
    )
    partitioner_rack_aware: bool = setting(BOOLEAN, False, LOW).doc(
        "Whether records without a key go to partitions whose leader is in the rack of "
        "client.rack, as long as there are any (KIP-1123). Only for the default partitioner."
    )
    client_rack: str = setting(STRING, "", LOW, RequestText()).doc(
        "The rack of this client, for partitioner.rack.aware."
    )
    #: None for bytes, which need no serializer.
    key_serializer: PluginReference | None = setting(CLASS, "bytes", HIGH, plugins=SERIALIZERS).doc(
        "The serializer of keys: `bytes`, `string`, `int`, `float`, `json`, or one of your "
        "own. Not in a Spark write."
    )
    value_serializer: PluginReference | None = setting(
        CLASS, "bytes", HIGH, plugins=SERIALIZERS
    ).doc("The serializer of values, like key.serializer. Not in a Spark write.")
    interceptor_classes: tuple[PluginReference, ...] = setting(
        CLASSES, (), LOW, plugins=INTERCEPTORS
    ).doc(
        "Interceptors that see each record before it is sent and after it was acknowledged, "
        "in this order. Not in a Spark write."
    )
    transactional_id: str | None = setting(STRING, None, LOW, RequestName()).doc(
        "The name under which the producer writes in transactions; it fences an older "
        "producer with the same name, and needs enable.idempotence. Not in a Spark write."
    )
    transaction_timeout_ms: int = setting(INT, 60_000, LOW, Range(1)).doc(
        "How long a transaction may stay open before its coordinator aborts it; the broker's "
        "own limit is transaction.max.timeout.ms. In a Spark write only with exactly_once, "
        "where the default is 900000."
    )
    metric_reporters: tuple[PluginReference, ...] = setting(
        CLASSES, (), LOW, plugins=REPORTERS
    ).doc(
        "Reporters that are notified when metrics are added, changed or removed: `logging`, "
        "or reporters of your own."
    )
    metrics_num_samples: int = setting(INT, 2, LOW, Range(1)).doc(
        "The number of samples that a metric is computed from."
    )
    metrics_recording_level: str = setting(
        STRING, "INFO", LOW, OneOf(("INFO", "DEBUG", "TRACE"))
    ).doc("The most detailed level of metrics to record.")
    metrics_sample_window_ms: int = setting(LONG, 30_000, LOW, Range(0)).doc(
        "The duration of one sample of a metric."
    )
    client_id: str = setting(STRING, "spark-kafka-sink", MEDIUM, RequestText()).doc(
        "The client's name in the brokers' logs and quotas."
    )
    #: Whether brokers may create a topic when this client requests its metadata. Not a setting:
    #: Java's producer always allows it, its admin client never does.
    allow_auto_create_topics: bool = True

    _refused: ClassVar = REFUSED

    @classmethod
    def _settle(cls, values: dict[str, Any], given: GivenSettings) -> None:
        values["acks"] = ACKS_ALL if values["acks"] == "all" else int(values["acks"])
        _settle_idempotence(values, given)
        _check_transactional_id(values, given)
        _check_rack(values, given)
        _settle_delivery_timeout(values, given)
        _settle_batch_size(values, given)

    @property
    def compression_level(self) -> int | None:
        """The level of the configured codec; None if it has no levels."""
        match self.compression_type:
            case "gzip":
                return self.compression_gzip_level
            case "lz4":
                return self.compression_lz4_level
            case "zstd":
                return self.compression_zstd_level
            case _:
                return None


def _settle_idempotence(values: dict[str, Any], given: GivenSettings) -> None:
    if not values["enable.idempotence"]:
        return
    if values["max.in.flight.requests.per.connection"] > MAX_IN_FLIGHT_FOR_IDEMPOTENCE:
        raise given.error(
            "max.in.flight.requests.per.connection must be at most "
            f"{MAX_IN_FLIGHT_FOR_IDEMPOTENCE} with enable.idempotence; lower it, or set "
            "enable.idempotence=false"
        )
    conflicts = [
        requirement
        for is_conflict, requirement in (
            (values["acks"] != ACKS_ALL, "acks must be all"),
            (values["retries"] == 0, "retries must be greater than 0"),
        )
        if is_conflict
    ]
    if conflicts and "enable.idempotence" in given:
        raise given.error(f"{conflicts[0]} with enable.idempotence=true")
    values["enable.idempotence"] = not conflicts


def _check_transactional_id(values: dict[str, Any], given: GivenSettings) -> None:
    if values["transactional.id"] is not None and not values["enable.idempotence"]:
        raise given.error(
            "transactional.id requires enable.idempotence=true, which requires acks=all and "
            "retries greater than 0"
        )


def _check_rack(values: dict[str, Any], given: GivenSettings) -> None:
    if values["partitioner.rack.aware"] and not values["client.rack"].strip():
        raise given.error("partitioner.rack.aware=true requires client.rack")


def _settle_delivery_timeout(values: dict[str, Any], given: GivenSettings) -> None:
    """Apply `KafkaProducer.configureDeliveryTimeout`."""
    least = min(values["linger.ms"] + values["request.timeout.ms"], INT_MAX)
    if values["delivery.timeout.ms"] >= least:
        return
    if "delivery.timeout.ms" in given:
        raise given.error(
            f"delivery.timeout.ms is {values['delivery.timeout.ms']}, but must be at least "
            f"linger.ms + request.timeout.ms, which is {least}"
        )
    values["delivery.timeout.ms"] = least


def _settle_batch_size(values: dict[str, Any], given: GivenSettings) -> None:
    if "batch.size" not in given:
        values["batch.size"] = min(
            values["batch.size"], values["buffer.memory"], values["max.request.size"]
        )
    elif values["batch.size"] > values["buffer.memory"]:
        raise given.error(
            f"batch.size is {values['batch.size']}, but must not exceed buffer.memory, which is "
            f"{values['buffer.memory']}"
        )


PRODUCER_CONFIG_DEF: Final = ConfigDef.of(ProducerConfig)
