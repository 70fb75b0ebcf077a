"""References to secrets in the values of settings (KIP-297).

A value may contain, once or several times:

- `${env:NAME}`: the environment variable (Kafka's `EnvVarConfigProvider`);
- `${file:/path:key}`: the value of the key in a .properties file (`FileConfigProvider`);
- `${file:/path}`: the whole file, without the newline at its end;
- `${dir:/path:name}`: likewise the file of that name in the directory (`DirectoryConfigProvider`).

Only the settings in `REFERENCE_SETTINGS` accept references, and the environment may restrict which
providers, files and variables they use (`allow_lists`).

The value of a reference is not searched for further references. A reference that cannot be resolved
is an error; Java leaves it in place, so that its text becomes the password. A reference to one of
these providers without a closing brace is an error too; any other `${` is plain text.

Each process that needs the values resolves the references itself: the driver, which queries the
cluster before a write, and every task. A `ProducerConfig` is pickled with its references, so that
no query plan or executor log contains the secret; the variables and files must therefore exist
where the tasks run, too. (In SQL text Spark itself replaces `${env:NAME}` while parsing, unless
spark.sql.variable.substitute is false.)

The value of a reference is treated as a secret: neither errors of this layer nor the repr of the
configuration show it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from spark_kafka_sink.config.allow_lists import NotAllowedError, allow_lists, read_named_file
from spark_kafka_sink.config.config_def import Password
from spark_kafka_sink.config.properties import parse_properties
from spark_kafka_sink.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_BEGIN: Final = "${"
_END: Final = "}"
#: The syntax of references, by their first characters.
_FORMS: Final = {
    "${env:": "${env:NAME}",
    "${file:": "${file:/path} or ${file:/path:key}",
    "${dir:": "${dir:/path:file}",
}


class _Reference(NamedTuple):
    """A reference in a text, split as by Kafka's `ConfigTransformer`."""

    start: int
    end: int
    provider: str
    path: str | None
    key: str


class Resolved(NamedTuple):
    """Settings with their references replaced, and the names of those that had any."""

    settings: dict[str, object]
    secret: frozenset[str]
    #: The values of the references, which no error and no repr shows.
    texts: frozenset[str]


class _UnresolvableError(Exception):
    """A reference has no value, for the reason in the message."""


def has_reference(value: object) -> bool:
    """Return whether a value, or an item of a list, contains a reference, closed or not."""
    if isinstance(value, list | tuple):
        return any(has_reference(item) for item in value)
    text = value.value if isinstance(value, Password) else value
    return isinstance(text, str) and (
        next(_references(text), None) is not None or _unclosed(text) is not None
    )


def _unclosed(text: str) -> str | None:
    """Return the beginning of a reference that has no closing brace; None if all have one."""
    rest = text[text.rfind(_END) + 1 :]
    return next((begin for begin in _FORMS if begin in rest), None)


def _references(text: str) -> Iterator[_Reference]:
    """Yield the references in a text from left to right, in one pass."""
    position = 0
    while (start := text.find(_BEGIN, position)) >= 0:
        end = text.find(_END, start)
        if end < 0:
            return
        position = end + len(_END)
        provider, colon, rest = text[start + len(_BEGIN) : end].partition(":")
        if colon:
            path, has_path, key = rest.partition(":")
            if has_path:
                yield _Reference(start, position, provider, path, key)
            else:
                yield _Reference(start, position, provider, None, rest)


def resolve_references(settings: Mapping[str, object], prefix: str = "") -> Resolved:
    """Replace all references by their values in this process.

    Errors put `prefix` before a setting's name. Raises ConfigError for a reference without a value;
    the message names the setting and the reference, but shows nothing that was read.
    """
    secret = frozenset(name for name, value in settings.items() if has_reference(value))
    texts: set[str] = set()
    resolved = {
        name: _resolve(value, f"{prefix}{name}", texts) if name in secret else value
        for name, value in settings.items()
    }
    return Resolved(resolved, secret, frozenset(texts))


def _resolve(value: object, setting: str, texts: set[str]) -> object:
    if isinstance(value, list | tuple):
        return [_resolve(item, setting, texts) for item in value]
    if isinstance(value, Password):
        return Password(_replace_all(value.value, setting, texts))
    return _replace_all(value, setting, texts) if isinstance(value, str) else value


def _replace_all(text: str, setting: str, texts: set[str]) -> str:
    begin = _unclosed(text)
    if begin is not None:
        # The text after it may be a secret.
        raise ConfigError(
            f"{setting}: the reference that begins with {begin} has no closing brace; write "
            f"{_FORMS[begin]}"
        )
    parts = []
    position = 0
    for reference in _references(text):
        try:
            value = _look_up(reference.provider, reference.path, reference.key)
        except (_UnresolvableError, NotAllowedError) as error:
            written = text[reference.start : reference.end]
            raise ConfigError(
                f"{setting}: {written} cannot be resolved in this process: {error}"
            ) from None
        texts.add(value)
        parts += [text[position : reference.start], value]
        position = reference.end
    return "".join([*parts, text[position:]])


def _look_up(provider: str, path: str | None, key: str) -> str:
    allow_lists().check_provider(provider)
    match provider:
        case "env":
            return _environment_variable(path, key)
        case "file":
            return _whole_file(Path(key)) if path is None else _property(Path(path), key)
        case "dir":
            return _file_in_directory(path, key)
    raise _UnresolvableError(
        f"there is no provider {provider!r}; use ${{env:NAME}}, ${{file:/path}}, "
        "${file:/path:key} or ${dir:/path:file}"
    )


def _environment_variable(path: str | None, name: str) -> str:
    if path is not None:
        raise _UnresolvableError("write ${env:NAME}, without a path")
    allow_lists().check_variable(name)
    value = os.environ.get(name)
    if value is None:
        raise _UnresolvableError(
            "the environment variable is not set. Under Spark, set it before Spark starts: Python "
            "processes on the driver inherit the environment of its JVM and do not see later "
            f"changes to os.environ. For executors, set spark.executorEnv.{name}"
        )
    return value


def _property(path: Path, key: str) -> str:
    try:
        properties = parse_properties(_read(path))
    except ValueError as error:
        raise _UnresolvableError(f"the file is not a valid .properties file: {error}") from None
    if key not in properties:
        raise _UnresolvableError("the file has no such key")
    return properties[key]


def _file_in_directory(directory: str | None, name: str) -> str:
    if directory is None:
        raise _UnresolvableError("write ${dir:/path:file}")
    # A reference must not lead outside the directory.
    if name != Path(name).name:
        raise _UnresolvableError(
            "the part after the colon must be the name of a file, without a directory"
        )
    return _whole_file(Path(directory) / name)


def _whole_file(path: Path) -> str:
    return _read(path).removesuffix("\n").removesuffix("\r")


def _read(path: Path) -> str:
    try:
        return read_named_file(path).decode("utf-8")
    except UnicodeDecodeError:
        raise _UnresolvableError("the file is not text in UTF-8") from None
    except OSError as error:
        raise _UnresolvableError(f"the file cannot be read: {error.strerror}") from None


# --- .properties files
