"""The producer's configuration: parsed, checked for consistency, and immutable.

`ProducerConfig.from_mapping` is the only entry point: it parses settings by the tables of
`producer_settings`, then applies the rules between settings as Kafka's
`ProducerConfig.postProcessParsedConfig` (4.x) does. If two given settings contradict each other,
that is an error; a default gives way to a given setting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from spark_kafka_sink.config.client_config import ClientConfig, SettingsTable
from spark_kafka_sink.config.config_def import INT_MAX
from spark_kafka_sink.config.plugin_reference import (
    INTERCEPTORS,
    PARTITIONERS,
    REPORTERS,
    SERIALIZERS,
    TOKEN_SOURCES,
)
from spark_kafka_sink.config.producer_settings import PRODUCER_CONFIG_DEF, REFUSED

if TYPE_CHECKING:
    from spark_kafka_sink.config.client_config import GivenSettings
    from spark_kafka_sink.config.plugin_reference import PluginReference

ACKS_ALL: Final = -1
#: The most in-flight requests that a broker can keep in order: it remembers the last five batches.
MAX_IN_FLIGHT_FOR_IDEMPOTENCE: Final = 5

_TABLE: Final = SettingsTable(
    PRODUCER_CONFIG_DEF,
    REFUSED,
    {
        "partitioner.class": PARTITIONERS,
        "key.serializer": SERIALIZERS,
        "value.serializer": SERIALIZERS,
        "interceptor.classes": INTERCEPTORS,
        "metric.reporters": REPORTERS,
        "sasl.login.callback.handler.class": TOKEN_SOURCES,
    },
)


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
    retries: int
    delivery_timeout_ms: int
    #: None for the default partitioner.
    partitioner_class: PluginReference | None
    partitioner_ignore_keys: bool
    partitioner_adaptive_partitioning_enable: bool
    partitioner_availability_timeout_ms: int
    #: None for bytes, which need no serializer.
    key_serializer: PluginReference | None
    value_serializer: PluginReference | None
    interceptor_classes: tuple[PluginReference, ...]
    transactional_id: str | None
    transaction_timeout_ms: int
    metric_reporters: tuple[PluginReference, ...]
    metrics_num_samples: int
    metrics_recording_level: str
    metrics_sample_window_ms: int
    #: Whether brokers may create a topic when this client requests its metadata. Not a setting:
    #: Java's producer always allows it, its admin client never does.
    allow_auto_create_topics: bool = True

    _table: ClassVar = _TABLE

    @classmethod
    def _settle(cls, values: dict[str, Any], given: GivenSettings) -> None:
        values["acks"] = ACKS_ALL if values["acks"] == "all" else int(values["acks"])
        _settle_idempotence(values, given)
        _check_transactional_id(values, given)
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
