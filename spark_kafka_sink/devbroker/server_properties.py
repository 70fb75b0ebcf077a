"""The settings of the command line that have Kafka's names: `--config FILE` and `--set NAME=VALUE`.

A stock server.properties should start a broker. So names in a file that mean nothing here are
warnings, and those that only describe a cluster of Kafka's own are skipped. A name that `--set` was
given on purpose is an error.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.config.properties import parse_properties
from spark_kafka_sink.devbroker.base.server_config import (
    SERVER_CONFIGS,
    supports,
    with_server_configs,
)
from spark_kafka_sink.devbroker.net.listener import LOOPBACK
from spark_kafka_sink.errors import ConfigError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Mapping, Sequence

    from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings
    from spark_kafka_sink.devbroker.net.listener import Listener

_NODE_IDS: Final = ("node.id", "broker.id")
_DIRECTORIES: Final = ("log.dirs", "log.dir")
_LISTENERS: Final = "listeners"
_ADVERTISED: Final = "advertised.listeners"
_PROTOCOLS: Final = "listener.security.protocol.map"
_CONTROLLERS: Final = "controller.listener.names"
_RACK: Final = "broker.rack"
_SELECTOR: Final = "replica.selector.class"
#: Whether a leader sends consumers to a replica in their rack, by the class.
_SELECTORS: Final = {
    "": False,
    "org.apache.kafka.common.replica.LeaderSelector": False,
    "org.apache.kafka.common.replica.RackAwareReplicaSelector": True,
}
_AUTHORIZER: Final = "authorizer.class.name"
_SUPER_USERS: Final = "super.users"
_ALLOW_EVERYONE: Final = "allow.everyone.if.no.acl.found"
#: The only authorizer.
_STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
#: The names with a meaning of their own, apart from the fields of `BrokerSettings`.
_OTHER_NAMES: Final = (
    *_NODE_IDS,
    *_DIRECTORIES,
    *(_LISTENERS, _ADVERTISED, _PROTOCOLS, _RACK, _SELECTOR),
    *(_AUTHORIZER, _SUPER_USERS, _ALLOW_EVERYONE),
)
#: What a server.properties must have for Kafka, and is not needed here.
_OF_KAFKA: Final = frozenset(
    {
        _CONTROLLERS,
        "controller.quorum.bootstrap.servers",
        "controller.quorum.voters",
        "inter.broker.listener.name",
        "process.roles",
        "security.inter.broker.protocol",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProperties:
    """What a file and the command line say, by Kafka's names."""

    values: Mapping[str, str]
    #: The names in the file that have no effect.
    ignored: Sequence[str] = field(default=())

    @classmethod
    def of(cls, options: Namespace) -> ServerProperties:
        """Read the file and the settings of the command line, which take precedence.

        Raises OSError, and ConfigError for a file that is not of this form and for names that the
        broker does not have.
        """
        values: dict[str, str] = {}
        if options.config is not None:
            try:
                text = options.config.read_text(encoding="utf-8", errors="replace")
                values = parse_properties(text)
            except ValueError as error:
                raise ConfigError(f"{options.config} is not a .properties file: {error}") from error
        ignored = sorted(name for name in values if not _has_effect(name) and name not in _OF_KAFKA)
        for name, value in options.set:
            if not _has_effect(name):
                raise ConfigError(f"--set {name}: {_unknown(name)}")
            values[name] = value
        return cls(values=values, ignored=ignored)

    @property
    def warnings(self) -> list[str]:
        """A sentence for the names that have no effect, if there are any."""
        if not self.ignored:
            return []
        return [f"settings that this broker does not have: {', '.join(self.ignored)}"]

    def settings(self, settings: BrokerSettings, brokers: int) -> BrokerSettings:
        """Return settings with those values replaced. Raises ConfigError."""
        known = {name: value for name, value in self.values.items() if supports(name)}
        settings = with_server_configs(settings, known)
        node_ids = {self.values[name] for name in _NODE_IDS if name in self.values}
        if len(node_ids) > 1:
            raise ConfigError("node.id and broker.id are the same setting: give one of them")
        for text in node_ids:
            if not text.strip().isdecimal():
                raise ConfigError(f"node.id must be a number from 0, not {text!r}")
            settings = replace(settings, node_id=int(text))
        rack = self.values.get(_RACK)
        if rack and not settings.racks:
            if brokers > 1:
                raise ConfigError("broker.rack is that of one broker: use --racks for several")
            settings = replace(settings, racks=(rack,))
        settings = replace(settings, rack_aware_replica_selector=self._is_rack_aware(settings))
        return self._with_authorizer(settings)

    def _is_rack_aware(self, settings: BrokerSettings) -> bool:
        """Return whether leaders send consumers to their racks: by default if there are racks."""
        selector = self.values.get(_SELECTOR)
        if selector is None:
            return bool(settings.racks)
        if selector not in _SELECTORS:
            classes = " or ".join(filter(None, _SELECTORS))
            raise ConfigError(f"{_SELECTOR} must be {classes}, not {selector!r}")
        return _SELECTORS[selector]

    def _with_authorizer(self, settings: BrokerSettings) -> BrokerSettings:
        name = self.values.get(_AUTHORIZER)
        if name:
            if name != _STANDARD_AUTHORIZER:
                raise ConfigError(f"{_AUTHORIZER} must be {_STANDARD_AUTHORIZER}, not {name!r}")
            settings = replace(settings, authorizer=True)
        users = tuple(filter(None, map(str.strip, self.values.get(_SUPER_USERS, "").split(";"))))
        if users and not settings.super_users:
            settings = replace(settings, super_users=users)
        if self.values.get(_ALLOW_EVERYONE, "").strip().lower() == "true":
            settings = replace(settings, allow_everyone_if_no_acl_found=True)
        return settings

    @property
    def data_dir(self) -> Path | None:
        """The directory for topics and records. Raises ConfigError if there are several."""
        for name in _DIRECTORIES:
            if self.values.get(name):
                if "," in self.values[name]:
                    raise ConfigError(f"{name} must be one directory, not {self.values[name]!r}")
                return Path(self.values[name])
        return None

    def apply_listeners(self, options: Namespace) -> list[str]:
        """Use the addresses of the file, unless options name others; return the listeners' names.

        Raises ConfigError for addresses that are not of Kafka's form.
        """
        chosen = options.listener or options.host != LOOPBACK or options.port != _DEFAULT_PORT
        if _LISTENERS not in self.values or chosen:
            return []
        protocols = _pairs(self.values.get(_PROTOCOLS, ""))
        controllers = self.values.get(_CONTROLLERS, "").split(",")
        names = []
        for name, host, port in _addresses(_LISTENERS, self.values[_LISTENERS]):
            if name not in controllers:
                names.append(name)
                # Without a host, Kafka listens on every address; that must be said here.
                options.listener.append(f"{protocols.get(name, name)}://{host or LOOPBACK}:{port}")
        return names

    def named(self, listeners: Sequence[Listener], names: Sequence[str]) -> list[Listener]:
        """Return listeners with the names of the file, and the addresses that it advertises."""
        if not names:
            return list(listeners)
        text = self.values.get(_ADVERTISED, "")
        advertised = {name: (host, port) for name, host, port in _addresses(_ADVERTISED, text)}
        named = []
        for name, listener in zip(names, listeners, strict=True):
            host, port = advertised.get(name, (None, listener.port))
            named.append(
                replace(
                    listener,
                    name=name,
                    advertised_host=host or listener.advertised_host,
                    advertised_port=None if port == listener.port else port,
                )
            )
        return named


#: The port of the option --port.
_DEFAULT_PORT: Final = 9092


def add_property_arguments(parser: ArgumentParser) -> None:
    """Add the options of this module to a parser."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="read settings from a server.properties file: those that the broker has, and its "
        "listeners and log.dirs, unless other options say otherwise",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=_setting,
        metavar="NAME=VALUE",
        help="set a setting of Kafka's brokers, such as num.partitions=6, log.dirs, node.id or "
        "min.insync.replicas; may be given several times, and takes precedence over --config",
    )


def _setting(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r} must be NAME=VALUE")
    return name.strip(), value.strip()


def _has_effect(name: str) -> bool:
    return supports(name) or name in _OTHER_NAMES


def _unknown(name: str) -> str:
    close = get_close_matches(name, [*SERVER_CONFIGS, *_OTHER_NAMES], n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"this broker does not have such a setting{hint}"


def _pairs(text: str) -> dict[str, str]:
    return dict(part.strip().split(":", 1) for part in text.split(",") if ":" in part)


def _addresses(setting: str, text: str) -> list[tuple[str, str, int]]:
    """Return the names, hosts and ports of listeners. Raises ConfigError."""
    found = []
    for part in filter(None, map(str.strip, text.split(","))):
        name, separator, address = part.partition("://")
        host, colon, port = address.rpartition(":")
        if not separator or not colon or not port.isdecimal():
            raise ConfigError(f"{setting}: {part!r} must be NAME://HOST:PORT")
        found.append((name, host, int(port)))
    return found
