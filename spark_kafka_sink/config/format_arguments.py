"""The arguments by which calls outside of Spark give keys and values a format.

`read_arrow`, `poll_arrow` and `send_arrow` have the same six. The options of a side that users need
often are arguments of their own, `schema_registry` has the settings of the registry's client, and
`format_options` all other options by the names that they have in Spark. Errors use these names,
too, and are the same as there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spark_kafka_sink.config.client_config import KAFKA_PREFIX
from spark_kafka_sink.config.config_def import (
    ConfigDef,
    Password,
    nearest_name,
    unknown_option,
)
from spark_kafka_sink.config.format_options import (
    FORMAT_OPTIONS,
    READ_FORMAT_OPTIONS,
    WRITE_FORMAT_OPTIONS,
    FormatOptions,
    renamed_option,
)
from spark_kafka_sink.config.registry_settings import (
    REGISTRY_NAMES,
    REGISTRY_PREFIX,
    RegistrySettings,
    registry_options,
)
from spark_kafka_sink.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

#: Only a stream of Spark is started again.
_OF_STREAMS: Final = "schemaEvolutionMode"
_READ: Final = ConfigDef.named(
    FORMAT_OPTIONS | {name: row for name, row in READ_FORMAT_OPTIONS.items() if name != _OF_STREAMS}
)
_WRITE: Final = ConfigDef.named(FORMAT_OPTIONS | WRITE_FORMAT_OPTIONS)
#: Of the arguments that are mappings.
_EXAMPLES: Final = {
    "schema_registry": "{'url': 'http://host:8081'}",
    "format_options": "{'autoRegisterSchemas': True}",
}
_ARGUMENTS: Final = {
    "key_format": "keyFormat",
    "value_format": "valueFormat",
    "key_schema": "keySchema",
    "value_schema": "valueSchema",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFormats:
    """The formats of keys and values in one call, and the registry with their schemas."""

    formats: FormatOptions
    #: None without schema.registry.url.
    registry: RegistrySettings | None


class FormatArguments(NamedTuple):
    """The arguments as they are given; None for those that are not."""

    key_format: str | None = None
    value_format: str | None = None
    key_schema: str | None = None
    value_schema: str | None = None
    schema_registry: Mapping[str, object] | None = None
    format_options: Mapping[str, object] | None = None

    @property
    def are_given(self) -> bool:
        """Whether there are any; otherwise keys and values are bytes."""
        return any(argument is not None for argument in self)

    def key(self) -> Hashable:
        """Return the same for the same arguments; raises TypeError for a wrong one."""
        self._check()
        mappings = (
            None if mapping is None else frozenset(map(_hashable, mapping.items()))
            for mapping in (self.schema_registry, self.format_options)
        )
        return (*self[: len(_ARGUMENTS)], *mappings)

    def of_read(self) -> CallFormats:
        """Parse the arguments of a read; raises TypeError or ConfigError."""
        return self._parsed(_READ, WRITE_FORMAT_OPTIONS, "writes")

    def of_write(self) -> CallFormats:
        """Parse the arguments of a write; raises TypeError or ConfigError."""
        return self._parsed(_WRITE, READ_FORMAT_OPTIONS, "reads")

    def _check(self) -> None:
        for name in _ARGUMENTS:
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise TypeError(f"{name} must be a str, not {type(value).__name__}")
        for name, example in _EXAMPLES.items():
            value = getattr(self, name)
            if value is None:
                continue
            expected = f"{name} must be a mapping of names to values such as {example}"
            if not isinstance(value, Mapping):
                raise TypeError(f"{expected}, not {type(value).__name__}")
            for each in value:
                if not isinstance(each, str):
                    raise TypeError(f"{expected}, not with {type(each).__name__} as a name")

    def _parsed(self, known: ConfigDef, others: Mapping[str, Any], of: str) -> CallFormats:
        self._check()
        given = {
            option: getattr(self, name)
            for name, option in _ARGUMENTS.items()
            if getattr(self, name) is not None
        }
        names = {name.lower(): name for name in known.names}
        for name, value in (self.format_options or {}).items():
            option = names.get(name.lower())
            if option is None:
                raise _unknown(name, names, others, of)
            if option in given:
                raise ConfigError(f"{option} is given twice: remove one of them")
            given[option] = value
        settings = _registry_settings(self.schema_registry or {})
        values = known.parse(given)
        formats = FormatOptions.parse(
            values, frozenset(given), has_registry=bool(settings), is_read=known is _READ
        )
        return CallFormats(formats=formats, registry=RegistrySettings.of_options(settings))


def refuse_options(names: Iterable[str]) -> None:
    """Raise ConfigError for an option of Spark that was passed as an argument."""
    arguments = {option: argument for argument, option in _ARGUMENTS.items()}
    for name in names:
        if name in arguments:
            raise ConfigError(f"unknown argument {name!r}; did you mean {arguments[name]!r}?")
        if name in _READ.names:
            raise ConfigError(f"{name} is not an argument: set it in format_options")


def _hashable(item: tuple[str, object]) -> Hashable:
    name, value = item
    return name, value if isinstance(value, str | int | Password) else repr(value)


def _unknown(
    name: str, names: Mapping[str, str], others: Mapping[str, Any], of: str
) -> ConfigError:
    """Return the error for a name that is none of the `format_options`."""
    key = name.lower()
    if key.startswith(REGISTRY_NAMES):
        return ConfigError(
            f"{name} is a setting of the registry, not a format option: set it in schema_registry"
        )
    if key == _OF_STREAMS.lower():
        return ConfigError(f"{_OF_STREAMS} is an option of Spark's streams; remove it")
    for other in others:
        if key == other.lower():
            return ConfigError(f"{other} is an option of {of}; remove it")
    renamed = renamed_option(name, is_read=others is WRITE_FORMAT_OPTIONS)
    if renamed is not None and renamed.startswith(REGISTRY_PREFIX):
        return ConfigError(
            f"unknown option {name!r}; did you mean {renamed.removeprefix(REGISTRY_PREFIX)!r} in "
            "schema_registry?"
        )
    if renamed is not None:
        return unknown_option(name, renamed)
    nearest = nearest_name(key.removeprefix(KAFKA_PREFIX), names)
    return unknown_option(name, None if nearest is None else names[nearest])


def _registry_settings(given: Mapping[str, object]) -> dict[str, object]:
    """Return the settings of the registry; each may be named with its prefix or without."""
    prefixed: dict[str, object] = {}
    for name, value in given.items():
        has_prefix = name.lower().startswith(REGISTRY_NAMES)
        full = name.lower() if has_prefix else f"{REGISTRY_PREFIX}{name.lower()}"
        if full in prefixed:
            raise ConfigError(f"{full} is given twice: remove one of them")
        prefixed[full] = value
    return registry_options(prefixed)
