"""The producer's configuration: parsed, checked for consistency, and immutable.

`ProducerConfig.from_mapping` is the only entry point: it parses settings by the tables of
`producer_settings`, then applies the rules between settings as Kafka's
`ProducerConfig.postProcessParsedConfig` (4.x) does. If two given settings contradict each other,
that is an error; a default gives way to a given setting.

A configuration with values from references (`${env:NAME}`, see `references`) is pickled with the
references, and resolves them again where it is unpickled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spark_kafka_sink.config.allow_lists import NotAllowedError
from spark_kafka_sink.config.config_def import INT_MAX, nearest_name, unknown_option
from spark_kafka_sink.config.plugin_reference import (
    INTERCEPTORS,
    PARTITIONERS,
    REPORTERS,
    SERIALIZERS,
    TOKEN_SOURCES,
    PluginKind,
    PluginReference,
)
from spark_kafka_sink.config.producer_settings import KAFKA_PREFIX, PRODUCER_CONFIG_DEF, REFUSED
from spark_kafka_sink.config.references import has_reference, resolve_references
from spark_kafka_sink.config.security_settings import (
    SecuritySettings,
    security_settings,
    setting_without_effect,
)
from spark_kafka_sink.config.security_table import REFERENCE_SETTINGS
from spark_kafka_sink.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ACKS_ALL: Final = -1
#: The most in-flight requests that a broker can keep in order: it remembers the last five batches.
MAX_IN_FLIGHT_FOR_IDEMPOTENCE: Final = 5
_HIGHEST_PORT: Final = 65_535
#: host:port, protocol://host:port or [IPv6 address]:port (like `Utils.HOST_PORT_PATTERN`).
_ADDRESS: Final = re.compile(r"(?:[0-9a-zA-Z\-%._]*://)?\[?([0-9a-zA-Z\-%._:]+?)\]?:([0-9]{1,5})")

#: The values that mean no plug-in: nothing has to be done for each record.
_NO_PLUGIN: Final = (PluginReference("default"), PluginReference("bytes"))
_PLUGINS: Final = {
    "partitioner.class": PARTITIONERS,
    "key.serializer": SERIALIZERS,
    "value.serializer": SERIALIZERS,
    "interceptor.classes": INTERCEPTORS,
    "metric.reporters": REPORTERS,
    "sasl.login.callback.handler.class": TOKEN_SOURCES,
}


class _Origin(NamedTuple):
    """The original settings of a configuration that contains references."""

    settings: dict[str, object]
    prefix: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ProducerConfig:
    """The validated settings of a producer, made by `from_mapping`.

    Its attributes are named as the settings, with underscores for dots.

    >>> config = ProducerConfig.from_mapping({"bootstrap.servers": "localhost:9092"})
    >>> config.linger_ms
    5
    >>> with KafkaProducer(config) as producer:
    ...     producer.send("orders", b"a book").result(timeout=30).offset
    0
    """

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
    metadata_max_idle_ms: int
    metadata_recovery_strategy: str
    metadata_recovery_rebootstrap_trigger_ms: int
    connections_max_idle_ms: int
    client_dns_lookup: str
    send_buffer_bytes: int
    receive_buffer_bytes: int
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
    client_id: str
    #: security.protocol, ssl.* and sasl.*.
    security: SecuritySettings
    #: Whether brokers may create a topic when this client requests its metadata. Not a setting:
    #: Java's producer always allows it, its admin client never does.
    allow_auto_create_topics: bool = True
    _origin: _Origin | None = field(default=None, compare=False)

    @classmethod
    def from_mapping(cls, settings: Mapping[str, object], *, prefix: str = "") -> ProducerConfig:
        """Parse `settings` by their Kafka names; values are text or Python values.

        Errors put `prefix` before the names, for callers whose options have one ("kafka."). Raises
        ConfigError; no error shows the value of a secret.
        """
        if not isinstance(settings, Mapping):
            raise ConfigError(
                f"settings must be a mapping of names to values, not {type(settings).__name__}"
            )
        given = _Given.resolve(settings, prefix)
        _refuse_unsupported(given)
        supported = {n: value for n, value in given.settings.items() if n not in REFUSED}
        values = PRODUCER_CONFIG_DEF.parse(supported, prefix=prefix, secret=given.secret)
        values["bootstrap.servers"] = tuple(_addresses(values["bootstrap.servers"], given))
        values["acks"] = ACKS_ALL if values["acks"] == "all" else int(values["acks"])
        values["metadata.recovery.strategy"] = values["metadata.recovery.strategy"].lower()
        for name, kind in _PLUGINS.items():
            if name in given or values[name] is not None:
                values[name] = _plugins(name, kind, values[name], prefix)
        _settle_idempotence(values, given)
        _check_transactional_id(values, given)
        _settle_delivery_timeout(values, given)
        _settle_batch_size(values, given)
        if given.only("reconnect.backoff.ms", "reconnect.backoff.max.ms"):
            # As CommonClientConfigs.postProcessReconnectBackoffConfigs: the backoff is constant.
            values["reconnect.backoff.max.ms"] = values["reconnect.backoff.ms"]
        security = security_settings(
            values, prefix=prefix, secret=given.secret, secret_texts=given.secret_texts
        )
        _check_security(security, given)
        return cls(
            **{_attribute(name): value for name, value in values.items()},
            security=security,
            _origin=_Origin(dict(settings), prefix) if given.secret else None,
        )

    def __repr__(self) -> str:
        """Show all settings; secrets are hidden by the objects that hold them."""
        shown = (f"{name}={value!r}" for name, value in self._values().items())
        return f"ProducerConfig({', '.join(shown)})"

    def __reduce__(self) -> tuple[Callable[..., ProducerConfig], tuple[object, ...]]:
        """Pickle the references, not their values."""
        if self._origin is None:
            return _restore, (self._values(),)
        origin = self._origin
        return _configure, (origin.settings, origin.prefix, self.allow_auto_create_topics)

    def _values(self) -> dict[str, Any]:
        return {
            each.name: getattr(self, each.name) for each in fields(self) if each.name != "_origin"
        }

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


def _restore(values: dict[str, Any]) -> ProducerConfig:
    return ProducerConfig(**values)


def _configure(
    settings: dict[str, object],
    prefix: str,
    allow_auto_create_topics: bool,  # noqa: FBT001 -- pickle passes arguments by position
) -> ProducerConfig:
    config = ProducerConfig.from_mapping(settings, prefix=prefix)
    return replace(config, allow_auto_create_topics=allow_auto_create_topics)


def _attribute(name: str) -> str:
    return name.replace(".", "_")


class _Given(NamedTuple):
    """The user's settings with references resolved, and how errors show them."""

    settings: dict[str, object]
    #: The settings whose values are not shown, since they came from references.
    secret: frozenset[str]
    #: The values of the references.
    secret_texts: frozenset[str]
    #: The prefix of the settings' names in errors.
    prefix: str

    @classmethod
    def resolve(cls, settings: Mapping[str, object], prefix: str) -> _Given:
        for name, value in settings.items():
            if not isinstance(name, str):
                raise ConfigError(f"the name of a setting must be a string, not {name!r}")
            rejects_references = name in PRODUCER_CONFIG_DEF and name not in REFERENCE_SETTINGS
            if rejects_references and has_reference(value):
                raise ConfigError(
                    f"{prefix}{name} does not accept ${{}} references, which are for secrets and "
                    "for files with secrets: set the value itself"
                )
        # References in unsupported settings are not resolved: the useful error is the one that
        # says that the setting is not supported.
        known = {name: settings[name] for name in settings if name in PRODUCER_CONFIG_DEF}
        resolved = resolve_references(known, prefix)
        return cls({**settings, **resolved.settings}, resolved.secret, resolved.texts, prefix)

    def __contains__(self, name: object) -> bool:
        return name in self.settings

    def only(self, name: str, other: str) -> bool:
        return name in self.settings and other not in self.settings

    def error(self, sentence: str) -> ConfigError:
        """Return an error whose message is a sentence that begins with a setting's name."""
        return ConfigError(f"{self.prefix}{sentence}")


def _refuse_unsupported(given: _Given) -> None:
    for name, value in given.settings.items():
        # Some of these hold secrets, so no value is shown.
        refused = REFUSED.get(name)
        if refused is not None and str(value).strip().lower() not in refused.accepted:
            raise given.error(f"{name} is not supported: {refused.reason}")
        if refused is None and name not in PRODUCER_CONFIG_DEF:
            raise _unknown(name, given.prefix)


def _unknown(name: str, prefix: str) -> ConfigError:
    # The prefix of Spark's options is removed: with it, a name could resemble no known name, or the
    # wrong one.
    bare = name.lower().removeprefix(KAFKA_PREFIX)
    known = (*PRODUCER_CONFIG_DEF.names, *(REFUSED if bare in REFUSED else ()))
    nearest = nearest_name(bare, known)
    return unknown_option(f"{prefix}{name}", None if nearest is None else f"{prefix}{nearest}")


def _check_security(security: SecuritySettings, given: _Given) -> None:
    problem = setting_without_effect(security.security_protocol, given.settings)
    if problem is not None:
        raise given.error(problem)


def _plugins(
    name: str, kind: PluginKind, value: object, prefix: str
) -> PluginReference | tuple[PluginReference, ...] | None:
    several = value if isinstance(value, tuple) else (value,)
    read = []
    for one in several:
        try:
            read.append(kind.read(one))
        except NotAllowedError as error:
            raise ConfigError(f"{prefix}{name} {one!r} cannot be imported: {error}") from None
        except ValueError as error:
            raise ConfigError(f"{prefix}{name} {error}, not {one!r}") from None
    if isinstance(value, tuple):
        return tuple(read)
    return None if read[0] in _NO_PLUGIN else read[0]


def _addresses(entries: tuple[str, ...], given: _Given) -> Iterator[tuple[str, int]]:
    """Yield each address once; entries between commas may be empty, as in Kafka before 4.0."""
    seen = set()
    for entry in filter(None, entries):
        match = _ADDRESS.fullmatch(entry)
        if match is None or not 1 <= int(match[2]) <= _HIGHEST_PORT:
            raise given.error(
                f"bootstrap.servers: {entry!r} is not host:port, such as localhost:9092"
            )
        address = match[1], int(match[2])
        if address not in seen:
            seen.add(address)
            yield address
    if not seen:
        raise given.error("bootstrap.servers contains no address: set host:port, or several")


def _settle_idempotence(values: dict[str, Any], given: _Given) -> None:
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


def _check_transactional_id(values: dict[str, Any], given: _Given) -> None:
    if values["transactional.id"] is not None and not values["enable.idempotence"]:
        raise given.error(
            "transactional.id requires enable.idempotence=true, which requires acks=all and "
            "retries greater than 0"
        )


def _settle_delivery_timeout(values: dict[str, Any], given: _Given) -> None:
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


def _settle_batch_size(values: dict[str, Any], given: _Given) -> None:
    if "batch.size" not in given:
        values["batch.size"] = min(
            values["batch.size"], values["buffer.memory"], values["max.request.size"]
        )
    elif values["batch.size"] > values["buffer.memory"]:
        raise given.error(
            f"batch.size is {values['batch.size']}, but must not exceed buffer.memory, which is "
            f"{values['buffer.memory']}"
        )
