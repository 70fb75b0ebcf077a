"""The definition and parsing of settings: Kafka's `ConfigDef`, in Python.

A setting is a typed field of a dataclass, with the other columns of its row:

    linger_ms: int = setting(LONG, 5, MEDIUM, Range(0)).doc("How long a batch waits.")

`ConfigDef.of` makes the table of such a class, with one `ConfigKey` per row: name, type, default,
validator, importance and doc. The same row parses a value, suggests a name for a mistyped one, and
renders the documentation.

Values are parsed as by Java's `ConfigDef.parseType`: text is trimmed, numbers are decimal without a
unit, booleans are true or false in any case, lists are comma-separated. Python values of the right
type are accepted as they are. An invalid value raises ConfigError, which names the setting as the
user wrote it (`prefix`), and shows the value only if it is not a secret.

The modules with tables import all of `__all__`: it is the language that settings are written in.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from enum import Enum, StrEnum
from functools import cache
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self

from spark_kafka_sink.display import shortened
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.model import LONGEST_TEXT, utf8_size

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from spark_kafka_sink.config.plugin_reference import PluginKind

__all__ = [
    "BOOLEAN",
    "CLASS",
    "CLASSES",
    "DOUBLE",
    "HIGH",
    "INT",
    "LIST",
    "LONG",
    "LOW",
    "MEDIUM",
    "PASSWORD",
    "REQUIRED",
    "SHORT",
    "STRING",
    "ConfigDef",
    "NotEmpty",
    "OneOf",
    "OneOfAnyCase",
    "Password",
    "Range",
    "RangeOr",
    "RefusedSetting",
    "RequestName",
    "RequestText",
    "declared_in",
    "setting",
]

SHORT_MAX: Final = 2**15 - 1
INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
_INTEGER: Final = re.compile(r"[+-]?0*[0-9]{1,19}")
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_COMMA: Final = re.compile(r"\s*,\s*", re.ASCII)
#: The characters that Java's `String.trim` removes: it keeps a no-break space after a password.
_TRIMMED: Final = "".join(map(chr, range(0x21)))
#: How similar two names must be for one to be suggested for the other (1 means equal).
_SIMILARITY: Final = 0.6


class ConfigType(StrEnum):
    """The types of settings, as Kafka's documentation names them."""

    BOOLEAN = "boolean"
    STRING = "string"
    SHORT = "short"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    LIST = "list"
    PASSWORD = "password"  # noqa: S105 -- the name of a type
    #: A name, or the object itself; `plugin_reference` explains both.
    CLASS = "class"
    CLASSES = "list of classes"


BOOLEAN, STRING, SHORT, INT, LONG, DOUBLE, LIST, PASSWORD, CLASS, CLASSES = ConfigType


class Importance(StrEnum):
    """The importance of a setting to most users."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


HIGH, MEDIUM, LOW = Importance


class NoDefault(Enum):
    """The marker, in place of a default, for a required setting."""

    REQUIRED = "required"


REQUIRED: Final = NoDefault.REQUIRED
#: The text shown in place of a secret.
HIDDEN: Final = "[hidden]"
_EMPTY: Final = "must not be empty"
#: In the metadata of a dataclass's field: the rows of its settings, and the row that they follow.
_ROWS: Final = "rows"
_AFTER: Final = "after"


class Password:
    """A secret: printing, logging or formatting it shows `[hidden]`; `value` is the secret."""

    __slots__ = ("value",)

    def __init__(self, value: str) -> None:
        self.value = value

    def __repr__(self) -> str:
        """Hide the secret; `str` and `format` use this method too."""
        return HIDDEN

    def __bool__(self) -> bool:
        return bool(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Password) and self.value == other.value

    def __hash__(self) -> int:
        return hash((Password, self.value))


def plain_text(password: Password | None) -> str | None:
    """Return the secret itself; None if it is not set."""
    return None if password is None else password.value


class Validator(Protocol):
    """A check of the values of a setting; its `str()` appears in docs, in the form of Kafka's."""

    def problem(self, value: Any) -> str | None:
        """Return what is wrong with the value, as the end of a sentence; None if it is valid."""


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from `low` to `high`, both included; None for `high` means no upper bound."""

    low: float
    high: float | None = None

    def __str__(self) -> str:
        return f"[{self.low},...]" if self.high is None else f"[{self.low},...,{self.high}]"

    def problem(self, value: float) -> str | None:
        """Check both bounds."""
        if value < self.low:
            return f"must be at least {self.low}"
        if self.high is not None and value > self.high:
            return f"must be at most {self.high}"
        return None


@dataclass(frozen=True, slots=True)
class RangeOr:
    """Numbers in a range, or one number outside it that stands for the default."""

    range: Range
    other: int

    def __str__(self) -> str:
        return f"{self.range} or {self.other}"

    def problem(self, value: int) -> str | None:
        """Check the bounds, unless the value is the other number."""
        if value == self.other or self.range.problem(value) is None:
            return None
        return f"must be between {self.range.low} and {self.range.high}, or {self.other}"


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of several words, case-sensitive as in Java."""

    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"[{', '.join(self.words)}]"

    def problem(self, value: str) -> str | None:
        """Look up the word."""
        return None if value in self.words else f"must be one of: {', '.join(self.words)}"


@dataclass(frozen=True, slots=True)
class OneOfAnyCase:
    """One of several words, in any case (Java's `CaseInsensitiveValidString`)."""

    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"(case insensitive) [{self._list()}]"

    def problem(self, value: str) -> str | None:
        """Look up the word, ignoring its case."""
        words = [word.lower() for word in self.words]
        return None if value.lower() in words else f"must be one of: {self._list()}"

    def _list(self) -> str:
        return ", ".join(word or "''" for word in self.words)


class NotEmpty:
    """A text or a secret of at least one character (Java's `NonEmptyString`)."""

    def __str__(self) -> str:
        return "non-empty string"

    def problem(self, value: str | Password) -> str | None:
        """Check that the value is not empty."""
        return None if value else _EMPTY


class RequestText:
    """A text that a request can hold.

    Otherwise the first request would fail, which is to say every connection.
    """

    def __str__(self) -> str:
        """Return nothing: few users come near the limit."""
        return ""

    def problem(self, value: str) -> str | None:
        """Check that it can be encoded, and its length."""
        size = utf8_size(value)
        if size is None:
            return "must have only characters of UTF-8"
        return f"must be at most {LONGEST_TEXT} bytes of UTF-8" if size > LONGEST_TEXT else None


class RequestName(RequestText):
    """A text that a request can hold, of at least one character."""

    def __str__(self) -> str:
        return str(NotEmpty())

    def problem(self, value: str) -> str | None:
        """Check that it is not empty, too."""
        return NotEmpty().problem(value) or super().problem(value)


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One row of the table."""

    name: str
    type: ConfigType
    default: Any
    validator: Validator | None
    importance: Importance
    doc: str
    #: What a setting of type CLASS or CLASSES names.
    plugins: PluginKind | None = None

    def parse(self, value: object, prefix: str = "", *, secret: bool = False) -> Any:
        """Parse and check a value; raise ConfigError if it is invalid.

        The error shows the value, unless it is a `secret`.
        """
        problem: str | None
        try:
            parsed = _PARSERS[self.type](value)
        except ValueError as error:
            problem = str(error)
        else:
            problem = self.validator.problem(parsed) if self.validator is not None else None
        if problem is not None:
            ending = f", not {shortened(repr(value))}"
            if secret or self.type is ConfigType.PASSWORD:
                # Emptiness is not a secret, and "not [hidden]" would suggest a value.
                ending = "" if problem == _EMPTY else f", not {HIDDEN}"
            raise ConfigError(f"{prefix}{self.name} {problem}{ending}") from None
        return parsed

    def default_text(self) -> str:
        """Return the default as a user would write it."""
        if self.default is REQUIRED or self.default is None:
            return ""
        if isinstance(self.default, bool):
            return str(self.default).lower()
        if isinstance(self.default, tuple):
            return ",".join(self.default)
        return str(self.default)


class Setting(NamedTuple):
    """The declaration of a setting that still lacks its documentation."""

    key: ConfigKey
    after: str

    def doc(self, text: str) -> Any:
        """Return the field of a dataclass."""
        return field(metadata={_ROWS: [replace(self.key, doc=text)], _AFTER: self.after})


def setting(
    kind: ConfigType,
    default: object,
    importance: Importance,
    validator: Validator | None = None,
    *,
    plugins: PluginKind | None = None,
    after: str = "",
) -> Setting:
    """Begin the declaration of a setting.

    In the table it comes after the setting declared before it, unless `after` names another one.
    """
    return Setting(ConfigKey("", kind, default, validator, importance, "", plugins), after)


def attribute_name(name: str) -> str:
    """Return the attribute of a configuration for one of Kafka's settings."""
    return name.replace(".", "_")


def declared_in(table: ConfigDef, *names: str, after: str = "") -> Any:
    """Return the field of a dataclass for settings of another class: these, or all of them."""
    rows = [table[name] for name in names or table.names]
    return field(metadata={_ROWS: rows, _AFTER: after})


class ConfigDef:
    """A table of settings, in the order of the documentation."""

    def __init__(self, keys: Iterable[ConfigKey]) -> None:
        """Check each default like a given value."""
        self._keys: dict[str, ConfigKey] = {}
        for key in keys:
            if key.name in self._keys:
                raise ValueError(f"{key.name} is defined twice")
            if key.default is not REQUIRED and key.default is not None:
                key.parse(key.default)
            self._keys[key.name] = key

    @classmethod
    def named(cls, options: Mapping[str, Field[Any]]) -> Self:
        """Return the table of options that are not the fields of one dataclass."""
        return cls(
            replace(row, name=name)
            for name, declared in options.items()
            for row in declared.metadata[_ROWS]
        )

    @classmethod
    @cache
    def of(cls, settings: type) -> Self:
        """Return the table of a dataclass, whose fields are named as settings of Kafka.

        Its own settings come after the first one of its base class, which is required, unless
        `after` names another one. One that replaces a setting of the base class keeps its place.
        """
        base = settings.__base__
        rows = {key.name: key for key in cls.of(base)} if is_dataclass(base) else {}
        names = list(rows)
        place = min(1, len(names))
        declared = {each.name: each.metadata for each in fields(settings)}
        for attribute in settings.__annotations__:
            metadata: Mapping[str, Any] = declared.get(attribute, {})
            for row in metadata.get(_ROWS, ()):
                key = replace(row, name=row.name or attribute.replace("_", "."))
                if key.name not in rows:
                    if metadata[_AFTER]:
                        place = names.index(metadata[_AFTER]) + 1
                    names.insert(place, key.name)
                    place += 1
                rows[key.name] = key
        return cls(rows[name] for name in names)

    def __iter__(self) -> Iterator[ConfigKey]:
        return iter(self._keys.values())

    def __getitem__(self, name: str) -> ConfigKey:
        return self._keys[name]

    def __contains__(self, name: object) -> bool:
        return name in self._keys

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all settings."""
        return tuple(self._keys)

    def parse(
        self, values: Mapping[str, object], *, prefix: str = "", secret: Collection[str] = ()
    ) -> dict[str, Any]:
        """Parse the given values, and return all settings with defaults for the missing ones.

        Errors put `prefix` before each name and do not show the values of settings in `secret`.
        Raises ConfigError for an unknown name (suggesting the nearest known one), for a missing
        setting without a default, and for a value that is malformed or out of range.
        """
        for name in values:
            if name not in self._keys:
                raise self.unknown(name, prefix)
        parsed = {}
        for name, key in self._keys.items():
            if name in values:
                parsed[name] = key.parse(values[name], prefix, secret=name in secret)
            elif key.default is REQUIRED:
                raise ConfigError(f"{prefix}{name} is required: {key.doc}")
            else:
                parsed[name] = key.default
        return parsed

    def unknown(self, name: str, prefix: str = "") -> ConfigError:
        """Return the error for a name that is not in the table."""
        nearest = nearest_name(name, self._keys)
        return unknown_option(f"{prefix}{name}", None if nearest is None else f"{prefix}{nearest}")

    def to_markdown(self, *, prefix: str = "") -> str:
        """Return the table in Markdown, one row per setting."""
        lines = [
            "| setting | type | default | valid values | importance | meaning |",
            "|---|---|---|---|---|---|",
        ]
        for key in self:
            default = "required" if key.default is REQUIRED else f"`{key.default_text()}`"
            cells = (
                f"`{prefix}{key.name}`",
                key.type.value,
                "" if default == "``" else default,
                "" if key.validator is None else str(key.validator),
                key.importance.value,
                key.doc,
            )
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        return "\n".join(lines) + "\n"


class RefusedSetting(NamedTuple):
    """A setting of Kafka's clients that is not supported here."""

    reason: str
    #: Values that are accepted nevertheless, since they request what happens anyway.
    accepted: tuple[str, ...] = ()

    def said(self, prefix: str = "") -> str:
        """Return the reason; `prefix` stands in front of the settings that it names in braces."""
        return self.reason.replace("{prefix}", prefix)


def unknown_option(name: str, nearest: str | None) -> ConfigError:
    """Return the error for an unknown name, without its value, which may be a secret."""
    hint = "" if nearest is None else f"; did you mean {nearest!r}?"
    return ConfigError(f"unknown option {name!r}{hint}")


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name most similar to this one, ignoring case; None if there is none."""
    return next(iter(nearest_names(name, known, most=1)), None)


def nearest_names(name: str, known: Iterable[str], *, most: int) -> list[str]:
    """Return up to `most` known names similar to this one, ignoring case, the nearest first."""
    by_lower_case = {candidate.lower(): candidate for candidate in known}
    matches = difflib.get_close_matches(name.lower(), by_lower_case, n=most, cutoff=_SIMILARITY)
    return [by_lower_case[match] for match in matches]


def _trim(text: str) -> str:
    return text.strip(_TRIMMED)


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and _trim(value).lower() in ("true", "false"):
        return _trim(value).lower() == "true"
    raise ValueError("must be true or false")


def _string(value: object) -> str:
    if isinstance(value, str):
        return _trim(value)
    # Java accepts only text here; in Python, everybody writes `acks=1`.
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise ValueError("must be a string")


def _integer(value: object, most: int) -> int:
    if isinstance(value, str) and _INTEGER.fullmatch(_trim(value)):
        # Python limits the number of digits that it parses, and counts leading zeros.
        value = int(re.sub(r"^([+-]?)0+(?=[0-9])", r"\1", _trim(value)))
    # A bool is an int in Python, but not a valid number here.
    if isinstance(value, int) and not isinstance(value, bool) and -most - 1 <= value <= most:
        return value
    raise ValueError(f"must be a {most.bit_length() + 1}-bit integer without a unit")


def _double(value: object) -> float:
    if isinstance(value, str) and _NUMBER.fullmatch(_trim(value)):
        value = float(_trim(value))
    if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value):
        return float(value)
    raise ValueError("must be a number without a unit")


def _list(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(_COMMA.split(_trim(value))) if _trim(value) else ()
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return tuple(_trim(item) for item in value)
    raise ValueError("must be a comma-separated list")


def _password(value: object) -> Password:
    if isinstance(value, Password):
        return value
    if isinstance(value, str):
        return Password(_trim(value))
    raise ValueError("must be a string")


def _class(value: object) -> object:
    return _trim(value) if isinstance(value, str) else value


def _classes(value: object) -> tuple[object, ...]:
    if isinstance(value, str):
        return _list(value)
    if isinstance(value, list | tuple):
        return tuple(_class(item) for item in value)
    return (value,)


_PARSERS: Final = {
    ConfigType.BOOLEAN: _boolean,
    ConfigType.STRING: _string,
    ConfigType.SHORT: lambda value: _integer(value, SHORT_MAX),
    ConfigType.DOUBLE: _double,
    ConfigType.INT: lambda value: _integer(value, INT_MAX),
    ConfigType.LONG: lambda value: _integer(value, LONG_MAX),
    ConfigType.LIST: _list,
    ConfigType.PASSWORD: _password,
    ConfigType.CLASS: _class,
    ConfigType.CLASSES: _classes,
}
