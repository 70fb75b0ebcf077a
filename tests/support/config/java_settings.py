"""Settings of our clients beside those of Kafka's Java clients; see golden/ConfigGoldens.java."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from spark_kafka_sink.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from spark_kafka_sink.config.config_def import ConfigKey, RefusedSetting

_GOLDENS = Path(__file__).parents[2] / "unit" / "config" / "golden"
#: Values that the Java clients accept and ours reject, and why.
STRICTER = {
    # Java accepts negative times here, and then fails each connection.
    "socket.connection.setup.timeout.ms": {"-1", "-2", "-2147483649"},
    "socket.connection.setup.timeout.max.ms": {"-1", "-2", "-2147483649"},
    # Likewise.
    "sasl.login.connect.timeout.ms": {"0", "-1", "-2"},
    "sasl.login.read.timeout.ms": {"0", "-1", "-2"},
    "sasl.login.retry.backoff.ms": {"-1", "-2", "-2147483649"},
    "sasl.login.retry.backoff.max.ms": {"-1", "-2", "-2147483649"},
}


class Config(Protocol):
    """The settings of a client of ours."""

    @classmethod
    def from_mapping(cls, config: Mapping[str, object]) -> object:
        """Return the settings; raise ConfigError for invalid ones."""


def java_settings(client: str) -> dict[str, Any]:
    """Return what a Java client says about its settings, and about values of them."""
    golden: dict[str, Any] = json.loads((_GOLDENS / f"java_{client}.json").read_text())
    return golden


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The settings of a client of ours, and of the Java client."""

    java: dict[str, Any]
    definitions: Iterable[ConfigKey]
    #: The settings of Java's client that ours does not support.
    refused: Mapping[str, RefusedSetting]
    config: type[Config]
    #: The settings that a configuration must have.
    required: Mapping[str, object] = field(
        default_factory=lambda: {"bootstrap.servers": "127.0.0.1:9"}
    )
    #: Java's defaults where ours differ.
    other_defaults: Mapping[str, str | None]
    #: Values that Java accepts and we reject.
    stricter: Mapping[str, set[str]] = field(default_factory=lambda: STRICTER)
    #: Other settings that are needed to satisfy rules between settings, which Java checks later.
    related: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    #: Settings that Java does not have.
    ours: frozenset[str] | set[str] = frozenset()
    #: Settings of ours that are not those of Java's client itself.
    others: frozenset[str] | set[str] = frozenset()

    @property
    def keys(self) -> dict[str, ConfigKey]:
        """Our settings by their names."""
        return {key.name: key for key in self.definitions}

    @property
    def tried(self) -> list[str]:
        """The settings of ours of which Java has judged values."""
        return [name for name in self.java["single"] if name in self.keys]

    def java_definition(self, name: str) -> tuple[str, str, str]:
        """Return the type, the importance and the default of a setting in Java."""
        java = self.java["settings"][name]
        return java["type"], java["importance"], java["default"] or ""

    def own_definition(self, key: ConfigKey) -> tuple[str, str, str]:
        """Return those of a setting of ours; for a default that may differ, Java's."""
        kind = "list" if key.type == "list of classes" else key.type.value
        default = self.other_defaults.get(key.name, key.default_text())
        return kind, key.importance.value, default or ""

    def has_other_default(self, key: ConfigKey) -> bool:
        """Return whether the default of a setting differs from Java's."""
        return (self.java["settings"][key.name]["default"] or "") != key.default_text()

    def accepts(self, settings: Mapping[str, object]) -> bool:
        """Return whether our client accepts settings."""
        try:
            self.config.from_mapping({**self.required, **settings})
        except ConfigError:
            return False
        return True

    def accepted(self, name: str) -> set[str]:
        """Return those values of a setting that we accept, of all that Java has judged."""
        values = self.java["single"][name]
        others: dict[str, object] = dict(self.related.get(name, {}))
        if name.startswith(("sasl", "ssl")):
            others["security.protocol"] = "SASL_SSL"
        given = [*values["accepted"], *values["refused"]]
        return {value for value in given if self.accepts({**others, name: value})}

    def expected(self, name: str) -> set[str]:
        """Return those values of a setting that we are to accept."""
        stricter = self.stricter.get(name, set())
        return {value for value in self.accepted_by_java(name) if value.strip() not in stricter}

    def accepted_by_java(self, name: str) -> set[str]:
        """Return those values of a setting that Java accepts."""
        return set(self.java["single"][name]["accepted"])
