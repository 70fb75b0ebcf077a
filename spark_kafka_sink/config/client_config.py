"""The part of the configuration that Kafka's clients have in common: its settings, and its parsing.

`ClientConfig` is the base of the producer's and the consumer's configuration, and all that the
network and the admin calls need to know of either. A subclass adds its settings, each as one field,
and the rules between settings (`_settle`).

A configuration with values from references (`${env:NAME}`, see `config.references`) is pickled with
the references, and resolves them again where it is unpickled.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Final, NamedTuple, Self, TypeVar

from spark_kafka_sink.config.allow_lists import NotAllowedError
from spark_kafka_sink.config.config_def import *
from spark_kafka_sink.config.config_def import HIDDEN, attribute_name, nearest_name, unknown_option
from spark_kafka_sink.config.plugin_reference import PluginKind, PluginReference
from spark_kafka_sink.config.references import has_reference, resolve_references
from spark_kafka_sink.config.security_settings import (
    REFERENCE_SETTINGS,
    REFUSED_SECURITY,
    SECURITY_CONFIG_DEF,
    SecuritySettings,
    security_settings,
    setting_without_effect,
)
from spark_kafka_sink.errors import ConfigError

_C = TypeVar("_C", bound="ClientConfig")

#: The prefix of the settings' names in the options of Spark.
KAFKA_PREFIX: Final = "kafka."

_HIGHEST_PORT: Final = 65_535
#: host:port, protocol://host:port or [IPv6 address]:port (like `Utils.HOST_PORT_PATTERN`).
_ADDRESS: Final = re.compile(r"(?:[0-9a-zA-Z\-%._]*://)?\[?([0-9a-zA-Z\-%._:]+?)\]?:([0-9]{1,5})")

#: The values that mean no plug-in: nothing has to be done for each record.
_NO_PLUGIN: Final = (PluginReference("default"), PluginReference("bytes"))

#: The unsupported settings of all clients.
REFUSED_CLIENT: Final[Mapping[str, RefusedSetting]] = {
    "bootstrap.resolve.timeout.ms": RefusedSetting(
        "names are looked up when the client connects, and again until the time-out of the call "
        "(max.block.ms, default.api.timeout.ms)",
        ("0",),
    ),
    "auto.include.jmx.reporter": RefusedSetting("there is no JMX in Python", ("false",)),
    "config.providers": RefusedSetting(
        "Java classes cannot be used here; ${env:NAME}, ${file:/path:key} and ${dir:/path:file} "
        "work without it",
        ("",),
    ),
    "enable.metrics.push": RefusedSetting("metrics are not pushed to brokers", ("false",)),
    **REFUSED_SECURITY,
}


class Origin(NamedTuple):
    """The original settings of a configuration that contains references."""

    settings: dict[str, object]
    prefix: str


class GivenSettings(NamedTuple):
    """The user's settings with references resolved, and how errors show them."""

    settings: dict[str, object]
    #: The settings whose values are not shown, since they came from references.
    secret: frozenset[str]
    #: The values of the references.
    secret_texts: frozenset[str]
    #: The prefix of the settings' names in errors.
    prefix: str
    supported: ConfigDef
    refused: Mapping[str, RefusedSetting]

    @classmethod
    def resolve(
        cls,
        settings: Mapping[str, object],
        prefix: str,
        supported: ConfigDef,
        refused: Mapping[str, RefusedSetting],
    ) -> Self:
        """Resolve the references of the settings that accept them."""
        for name, value in settings.items():
            if not isinstance(name, str):
                raise ConfigError(f"the name of a setting must be a string, not {name!r}")
            rejects_references = name in supported and name not in REFERENCE_SETTINGS
            if rejects_references and has_reference(value):
                raise ConfigError(
                    f"{prefix}{name} does not accept ${{}} references, which are for secrets and "
                    "for files with secrets: set the value itself"
                )
        # References in unsupported settings are not resolved: the useful error is the one that
        # says that the setting is not supported.
        known = {name: settings[name] for name in settings if name in supported}
        resolved = resolve_references(known, prefix)
        return cls(
            {**settings, **resolved.settings},
            resolved.secret,
            resolved.texts,
            prefix,
            supported,
            refused,
        )

    def parse(self) -> dict[str, Any]:
        """Return the values of all supported settings by name, each checked by itself."""
        self._refuse_unsupported()
        supported = {n: value for n, value in self.settings.items() if n not in self.refused}
        values = self.supported.parse(supported, prefix=self.prefix, secret=self.secret)
        values["bootstrap.servers"] = tuple(_addresses(values["bootstrap.servers"], self))
        values["metadata.recovery.strategy"] = values["metadata.recovery.strategy"].lower()
        for key in self.supported:
            name, kind = key.name, key.plugins
            if kind is not None and (name in self or values[name] is not None):
                values[name] = _plugins(name, kind, values[name], self.prefix)
        return values

    def _refuse_unsupported(self) -> None:
        for name, value in self.settings.items():
            # Some of these hold secrets, so no value is shown.
            refused = self.refused.get(name)
            if refused is not None and str(value).strip().lower() not in refused.accepted:
                raise self.error(f"{name} is not supported: {refused.reason}")
            if refused is None and name not in self.supported:
                raise self._unknown(name)

    def _unknown(self, name: str) -> ConfigError:
        # The prefix of Spark's options is removed: with it, a name could resemble no known name, or
        # the wrong one.
        bare = name.lower().removeprefix(KAFKA_PREFIX)
        known = (*self.supported.names, *(self.refused if bare in self.refused else ()))
        nearest = nearest_name(bare, known)
        return unknown_option(
            f"{self.prefix}{name}", None if nearest is None else f"{self.prefix}{nearest}"
        )

    def __contains__(self, name: object) -> bool:
        return name in self.settings

    def error(self, sentence: str) -> ConfigError:
        """Return an error whose message is a sentence that begins with a setting's name."""
        return ConfigError(f"{self.prefix}{sentence}")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ClientConfig(ABC):
    """The validated settings that all clients have in common.

    Its attributes are named as the settings, with underscores for dots.
    """

    bootstrap_servers: tuple[tuple[str, int], ...] = setting(LIST, REQUIRED, HIGH).doc(
        "The addresses (host:port, separated by commas) from which the client discovers the "
        "cluster."
    )
    max_in_flight_requests_per_connection: int
    request_timeout_ms: int = setting(INT, 30_000, MEDIUM, Range(0)).doc(
        "How long to wait for the response to a request."
    )
    retry_backoff_ms: int = setting(LONG, 100, LOW, Range(0)).doc(
        "How long to wait before the first retry; doubles with each further retry, with jitter."
    )
    retry_backoff_max_ms: int = setting(LONG, 1_000, LOW, Range(0)).doc(
        "The maximum wait before a retry."
    )
    reconnect_backoff_ms: int = setting(LONG, 50, LOW, Range(0)).doc(
        "How long to wait before reconnecting to a broker; doubles with each failure."
    )
    reconnect_backoff_max_ms: int = setting(LONG, 1_000, LOW, Range(0)).doc(
        "The maximum wait before reconnecting."
    )
    socket_connection_setup_timeout_ms: int = setting(LONG, 10_000, MEDIUM, Range(0)).doc(
        "How long to wait for a connection to open; doubles with each failure."
    )
    socket_connection_setup_timeout_max_ms: int = setting(LONG, 30_000, MEDIUM, Range(0)).doc(
        "The maximum time to wait for a connection to open."
    )
    metadata_max_age_ms: int = setting(LONG, 300_000, LOW, Range(0)).doc(
        "The age at which cluster metadata is refreshed."
    )
    metadata_recovery_strategy: str = setting(
        STRING, "rebootstrap", LOW, OneOfAnyCase(("none", "rebootstrap"))
    ).doc(
        "What to do when no known broker can be reached: rebootstrap contacts "
        "bootstrap.servers again (KIP-899), none keeps trying the known brokers."
    )
    metadata_recovery_rebootstrap_trigger_ms: int = setting(LONG, 300_000, LOW, Range(0)).doc(
        "How long brokers that can be reached may fail to return metadata before the client "
        "contacts bootstrap.servers again (KIP-1102)."
    )
    metadata_cluster_check_enable: bool = setting(BOOLEAN, True, LOW).doc(
        "Whether to ask each broker (from Kafka 4.4 on) if it is the one that the client means to "
        "have connected to, and to contact bootstrap.servers again if it is not (KIP-1242). Has no "
        "effect with metadata.recovery.strategy=none."
    )
    connections_max_idle_ms: int = setting(LONG, 540_000, MEDIUM).doc(
        "The idle time after which a connection is closed; below 0, it is never closed."
    )
    client_dns_lookup: str = setting(
        STRING,
        "use_all_dns_ips",
        MEDIUM,
        OneOf(("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only")),
    ).doc(
        "Whether to try all addresses of a host name one after the other, or to replace each "
        "of bootstrap.servers by the canonical names of its addresses."
    )
    send_buffer_bytes: int = setting(INT, -1, MEDIUM, Range(-1)).doc(
        "The size of the socket's send buffer (SO_SNDBUF); -1 leaves it to the operating system, "
        "which lets it grow with the connection's speed. Java's default is 131072."
    )
    #: Not settings of all clients, or with a default of each.
    metadata_max_idle_ms: int
    receive_buffer_bytes: int
    client_id: str
    #: security.protocol, ssl.* and sasl.*.
    security: SecuritySettings = declared_in(SECURITY_CONFIG_DEF)
    #: Whether brokers may create a topic when this client requests its metadata.
    allow_auto_create_topics: bool
    _origin: Origin | None = field(default=None, compare=False)

    #: Every other setting of Kafka's client: why it is not supported, and the values that request
    #: what happens anyway.
    _refused: ClassVar[Mapping[str, RefusedSetting]]

    @classmethod
    def from_mapping(cls, settings: Mapping[str, object], *, prefix: str = "") -> Self:
        """Parse `settings` by their Kafka names; values are text or Python values.

        Errors put `prefix` before the names, for callers whose options have one ("kafka."). Raises
        ConfigError; no error shows the value of a secret.
        """
        if not isinstance(settings, Mapping):
            raise ConfigError(
                f"settings must be a mapping of names to values, not {type(settings).__name__}"
            )
        given = GivenSettings.resolve(settings, prefix, ConfigDef.of(cls), cls._refused)
        values = given.parse()
        cls._settle(values, given)
        if "reconnect.backoff.ms" in given and "reconnect.backoff.max.ms" not in given:
            # As CommonClientConfigs.postProcessReconnectBackoffConfigs: the backoff is constant.
            values["reconnect.backoff.max.ms"] = values["reconnect.backoff.ms"]
        security = security_settings(
            values, prefix=prefix, secret=given.secret, secret_texts=given.secret_texts
        )
        problem = setting_without_effect(security.security_protocol, given.settings)
        if problem is not None:
            raise given.error(problem)
        return cls(
            **{attribute_name(name): value for name, value in values.items()},
            security=security,
            _origin=Origin(dict(settings), prefix) if given.secret else None,
        )

    @classmethod
    @abstractmethod
    def _settle(cls, values: dict[str, Any], given: GivenSettings) -> None:
        """Apply the rules between the settings to their parsed values."""

    def __repr__(self) -> str:
        """Show all settings; secrets are hidden by the objects that hold them."""
        shown = (f"{name}={value!r}" for name, value in self._values().items())
        return f"{type(self).__name__}({', '.join(shown)})"

    def __reduce__(self) -> tuple[Callable[..., Self], tuple[object, ...]]:
        """Pickle the references, not their values."""
        if self._origin is None:
            return _restore, (type(self), self._values())
        return _configure, (type(self), *self._origin, self.allow_auto_create_topics)

    def _values(self) -> dict[str, Any]:
        """Return the values of all fields, first the settings in the order of their table."""
        own = [field.name for field in fields(self) if field.name != "_origin"]
        table = [
            name for row in ConfigDef.of(type(self)) if (name := attribute_name(row.name)) in own
        ]
        return {name: getattr(self, name) for name in dict.fromkeys([*table, *own])}


def _restore(cls: type[_C], values: dict[str, Any]) -> _C:
    return cls(**values)


def _configure(
    cls: type[_C],
    settings: dict[str, object],
    prefix: str,
    allow_auto_create_topics: bool,  # noqa: FBT001 -- pickle passes arguments by position
) -> _C:
    config = cls.from_mapping(settings, prefix=prefix)
    return replace(config, allow_auto_create_topics=allow_auto_create_topics)


def _plugins(
    name: str, kind: PluginKind, value: object, prefix: str
) -> PluginReference | tuple[PluginReference, ...] | None:
    entries = value if isinstance(value, tuple) else (value,)
    read = []
    for entry in entries:
        try:
            read.append(kind.read(entry))
        except NotAllowedError as error:
            raise ConfigError(f"{prefix}{name} {entry!r} cannot be imported: {error}") from None
        except ValueError as error:
            raise ConfigError(f"{prefix}{name} {error}, not {entry!r}") from None
    if isinstance(value, tuple):
        return tuple(read)
    return None if read[0] in _NO_PLUGIN else read[0]


def _addresses(entries: tuple[str, ...], given: GivenSettings) -> Iterator[tuple[str, int]]:
    """Yield each address once; entries between commas may be empty, as in Kafka before 4.0."""
    seen = set()
    for number, entry in enumerate(entries):
        if not entry:
            continue
        match = _ADDRESS.fullmatch(entry)
        if match is None or not 1 <= int(match[2]) <= _HIGHEST_PORT:
            raise given.error(f"bootstrap.servers: {_not_an_address(entries[number:])}")
        address = match[1], int(match[2])
        if address not in seen:
            seen.add(address)
            yield address
    if not seen:
        raise given.error("bootstrap.servers contains no address: set host:port, or several")


def _not_an_address(entries: tuple[str, ...]) -> str:
    """Return what is wrong with the first entry."""
    # What precedes an @ is probably a password, which may have commas, too.
    with_user = [entry for entry in entries if "@" in entry]
    shown = f"{HIDDEN}@{with_user[-1].rpartition('@')[2]}" if with_user else entries[0]
    advice = "; user and password belong in sasl.jaas.config" if with_user else ""
    return f"{shown!r} is not host:port, such as localhost:9092{advice}"
