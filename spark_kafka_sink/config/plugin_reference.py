"""The plug-ins that settings of type `class` name: serializers, partitioners, assignors, ...

Java takes the name of a class. Here a plug-in is one of

- the short name (`"string"`, `"round_robin"`) of a built-in plug-in,
- the name of one of Kafka's own Java classes, which is an alias of its built-in counterpart,
- `"package.module:attribute"`, which is imported where the client is created,
- in Python, the object or class itself.

Importing runs code, which the environment may restrict (`allow_lists`).

This module only handles names. The client creates the plug-ins: by the `built_in` name of a
`PluginReference` if it has one, otherwise with `config.plug_ins`.
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.config.allow_lists import NotAllowedError, allow_lists
from spark_kafka_sink.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

_IMPORT_PATH: Final = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_JAVA_CLASS: Final = re.compile(r"[^\W\d]\w*(?:\.[^\W\d][\w$]*)+")
_JAVA_SERIALIZERS: Final = "org.apache.kafka.common.serialization."
_JAVA_PRODUCER: Final = "org.apache.kafka.clients.producer."
_JAVA_CONSUMER: Final = "org.apache.kafka.clients.consumer."


@dataclass(frozen=True, slots=True, repr=False)
class PluginReference:
    """A configured plug-in; exactly one of the three fields is set."""

    #: A name of the `PluginKind`, for a built-in plug-in.
    built_in: str | None = None
    #: `package.module:attribute`.
    import_path: str | None = None
    #: A Python object: a callable, an instance or a class.
    target: object = None

    def __str__(self) -> str:
        """Return the plug-in's name, or an object's type, since an object may hold secrets."""
        named = self.built_in or self.import_path
        if named is not None:
            return repr(named)
        shown = self.target if hasattr(self.target, "__qualname__") else type(self.target)
        return f"{getattr(shown, '__module__', '?')}.{getattr(shown, '__qualname__', '?')}"

    def __repr__(self) -> str:
        """Show the same name as `str`."""
        return f"PluginReference({self})"

    def load(self, setting: str) -> object:
        """Return the plug-in's object, imported if there is an import path; not for built-in ones.

        Raises ConfigError, which names the `setting`, if the import fails; its cause is the
        imported module's exception.
        """
        if self.import_path is None:
            return self.target
        module, _, attribute = self.import_path.partition(":")
        refused = f"{setting}: {self.import_path!r} cannot be imported"
        try:
            allow_lists().check_plugin(self.import_path)
            return reduce(getattr, attribute.split("."), importlib.import_module(module))
        except NotAllowedError as error:
            raise ConfigError(f"{refused}: {error}") from None
        except Exception as error:
            # Importing runs the module, which may raise anything.
            raise ConfigError(f"{refused}: {type(error).__name__}: {error}") from error


def check_importable(
    setting: str, reference: PluginReference | None, kind: PluginKind, operation: str
) -> None:
    """Raise ConfigError for a plug-in that is an object: tasks have to import theirs.

    `operation` says what of, with its article: "a Spark write".
    """
    if reference is not None and reference.target is not None:
        raise ConfigError(
            f"{setting} must be {', '.join(kind.names)} or 'package.module:attribute' in "
            f"{operation}, so that tasks can import it, not {reference}"
        )


@dataclass(frozen=True, slots=True)
class PluginKind:
    """The names of the plug-ins of one kind."""

    #: With its article: "a serializer".
    noun: str
    #: The names of the built-in plug-ins.
    names: tuple[str, ...]
    #: Other names for the built-in plug-ins: of Java classes, and of other clients.
    aliases: Mapping[str, str]

    def read(self, value: object) -> PluginReference:
        """Parse a value.

        Raises ValueError, whose message is the end of a sentence, if it is invalid, and
        NotAllowedError for a plug-in that must not be imported in this process.
        """
        if isinstance(value, PluginReference):
            return value
        if not isinstance(value, str):
            if value is None or isinstance(value, bool | int | float | bytes):
                raise ValueError(f"must be {self._choice()}")
            return PluginReference(target=value)
        name = self.aliases.get(value.strip(), value.strip())
        if name in self.names:
            return PluginReference(built_in=name)
        if _IMPORT_PATH.fullmatch(name):
            allow_lists().check_plugin(name)
            return PluginReference(import_path=name)
        if _JAVA_CLASS.fullmatch(name):
            raise ValueError(
                "names a Java class, which is not supported, or has no ':' before its attribute: "
                f"use {self._choice()}"
            )
        raise ValueError(f"must be {self._choice()}")

    def _choice(self) -> str:
        built_in = f"one of {', '.join(self.names)}, " if self.names else ""
        return f"{built_in}'package.module:attribute' of {self.noun}, or the object itself"


#: `int` is `int64` (8 bytes, big-endian), and `float` is `float64`.
_SERIAL_FORMS: Final = (
    *("bytes", "string", "int", "float", "json"),
    *("int16", "int32", "int64", "float32", "float64", "boolean", "uuid", "void"),
)
#: The names of Java's (de)serializers, without their endings.
_JAVA_SERIAL_FORMS: Final = {
    "ByteArray": "bytes",
    "ByteBuffer": "bytes",
    "Bytes": "bytes",
    "String": "string",
    "Short": "int16",
    "Integer": "int32",
    "Long": "int64",
    "Float": "float32",
    "Double": "float64",
    "Boolean": "boolean",
    "UUID": "uuid",
    "Void": "void",
}
SERIALIZERS: Final = PluginKind(
    "a serializer",
    _SERIAL_FORMS,
    {f"{_JAVA_SERIALIZERS}{java}Serializer": name for java, name in _JAVA_SERIAL_FORMS.items()},
)
DESERIALIZERS: Final = PluginKind(
    "a deserializer",
    _SERIAL_FORMS,
    {f"{_JAVA_SERIALIZERS}{java}Deserializer": name for java, name in _JAVA_SERIAL_FORMS.items()},
)
#: The built-in ones have the names that they have in JoinGroup requests.
ASSIGNORS: Final = PluginKind(
    "an assignor",
    ("range", "roundrobin", "sticky", "cooperative-sticky"),
    {
        f"{_JAVA_CONSUMER}RangeAssignor": "range",
        f"{_JAVA_CONSUMER}RoundRobinAssignor": "roundrobin",
        f"{_JAVA_CONSUMER}StickyAssignor": "sticky",
        f"{_JAVA_CONSUMER}CooperativeStickyAssignor": "cooperative-sticky",
    },
)
#: For the names that come from librdkafka, see `record.key_hashes.KEY_RULES`.
PARTITIONERS: Final = PluginKind(
    "a partitioner",
    (
        *("default", "round_robin", "murmur2", "murmur2_random", "murmur2_consistent"),
        *("crc32", "consistent"),
        *("fnv1a", "fnv1a_random", "fnv1a_consistent"),
    ),
    {
        "": "default",
        "consistent_random": "crc32",
        f"{_JAVA_PRODUCER}RoundRobinPartitioner": "round_robin",
        f"{_JAVA_PRODUCER}internals.DefaultPartitioner": "default",
    },
)
INTERCEPTORS: Final = PluginKind("an interceptor", (), {})
REPORTERS: Final = PluginKind("a reporter", ("logging",), {})
_JAVA_OAUTH: Final = "org.apache.kafka.common.security.oauthbearer."
TOKEN_SOURCES: Final = PluginKind(
    "a function that returns tokens",
    ("token_endpoint", "unsecured", "msk_iam"),
    {
        f"{_JAVA_OAUTH}OAuthBearerLoginCallbackHandler": "token_endpoint",
        f"{_JAVA_OAUTH}secured.OAuthBearerLoginCallbackHandler": "token_endpoint",
        f"{_JAVA_OAUTH}internals.unsecured.OAuthBearerUnsecuredLoginCallbackHandler": "unsecured",
        "software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler": "msk_iam",
        "software.amazon.msk.auth.iam.IAMClientCallbackHandler": "msk_iam",
    },
)
