"""The producer's configuration: settings read, reconciled and frozen.

`ProducerConfig.from_mapping` is the only way in: it parses by the tables of `producer_settings`,
then applies the rules between settings as Kafka's `ProducerConfig.postProcessParsedConfig` (4.x)
does. Where two settings disagree and both were given, that is an error; where one is only a
default, the default gives way.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spark_kafka_sink.config.config_def import INT_MAX
from spark_kafka_sink.config.producer_settings import PRODUCER_CONFIG_DEF, REFUSED
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.model import SecurityProtocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ACKS_ALL: Final = -1
#: How many requests in flight a broker can put in order: it remembers the last five batches.
MAX_IN_FLIGHT_FOR_IDEMPOTENCE: Final = 5
_HIGHEST_PORT: Final = 65_535
#: host:port, protocol://host:port or [IPv6 address]:port (as `Utils.HOST_PORT_PATTERN`).
_ADDRESS: Final = re.compile(r"(?:[0-9a-zA-Z\-%._]*://)?\[?([0-9a-zA-Z\-%._:]+?)\]?:([0-9]{1,5})")


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
