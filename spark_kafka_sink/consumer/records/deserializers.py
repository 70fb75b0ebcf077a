"""The conversion of bytes to keys and values (Kafka's `org.apache.kafka.common.serialization`).

The built-in deserializers read what Java's write, and what the producer's serializers of the same
names write. They are as strict: a number of another size is an error, and so is text that is not
UTF-8, in which Java replaces the invalid bytes. None is a missing key or a tombstone, and is never
passed to a deserializer (CompletedFetch.parseRecord).

A custom deserializer is any callable that takes the bytes; parameters named `topic` or `headers`
are passed by keyword. An object that is not callable may have Java's method instead,
`deserialize(topic, headers, data)`. A class is instantiated first, without arguments; see
`config.plug_ins` for its life cycle.
"""

from __future__ import annotations

import json
import struct
from abc import abstractmethod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias
from uuid import UUID

from spark_kafka_sink.config.plug_ins import PlugIns, check_signature, takes
from spark_kafka_sink.display import counted
from spark_kafka_sink.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from spark_kafka_sink.config.consumer_config import KafkaConsumerConfig
    from spark_kafka_sink.config.plugin_reference import PluginReference

    #: The headers of a record: names and values.
    Headers: TypeAlias = Sequence[tuple[str, bytes | None]]

#: The conversion of bytes by a built-in deserializer; it may raise any error.
_Conversion: TypeAlias = "Callable[[bytes], Any]"


class SizeError(ValueError):
    """Bytes that are not as many as a number has; the text quotes none of them."""


def _number(layout: str) -> _Conversion:
    number = struct.Struct(layout)
    unpack = number.unpack

    def convert(data: bytes) -> Any:
        try:
            return unpack(data)[0]
        except struct.error:
            raise SizeError(f"{counted(len(data), 'byte')} instead of {number.size}") from None

    return convert


def _boolean(data: bytes) -> bool:
    if data not in {b"\x00", b"\x01"}:
        raise ValueError("expected one byte that is 0 or 1")
    return data == b"\x01"


def _json(data: bytes) -> Any:
    # Given bytes, `json.loads` would guess their encoding.
    return json.loads(data.decode())


def _uuid(data: bytes) -> UUID:
    text = data.decode()
    value = UUID(text)
    # Python also takes other forms, such as one in braces.
    if str(value) != text.lower():
        raise ValueError("expected the 36 characters of a UUID")
    return value


def _void(_data: bytes) -> Any:
    raise ValueError("expected null")


#: Matches Short-, Integer-, Long-, Float-, Double-, Boolean-, Void-, String- and UUIDDeserializer;
#: numbers are big-endian, text is UTF-8. Bytes need no conversion.
_CONVERSIONS: Final[Mapping[str, _Conversion]] = MappingProxyType(
    {
        "int16": _number(">h"),
        "int32": _number(">i"),
        "int64": _number(">q"),
        "int": _number(">q"),
        "float32": _number(">f"),
        "float64": _number(">d"),
        "float": _number(">d"),
        "boolean": _boolean,
        "json": _json,
        "void": _void,
        "string": bytes.decode,
        "uuid": _uuid,
    }
)


class Deserializer(Protocol):
    """A plug-in that converts bytes to keys or values (`key.deserializer`, `value.deserializer`).

    A function `(data) -> value` works too, and may also have parameters named `topic` and
    `headers`. An object with the method below, which has Java's signature, may also have
    `configure(settings, *, is_key)` and `close()`.

    >>> class VersionedText:
    ...     def deserialize(self, topic, headers, data):
    ...         return dict(headers).get("version"), data.decode()
    >>> VersionedText().deserialize("orders", [("version", b"2")], b"12.5")
    (b'2', '12.5')
    """

    @abstractmethod
    def deserialize(
        self, topic: str, headers: Sequence[tuple[str, bytes | None]], data: bytes
    ) -> Any:
        """Return the object for `data`, which is never None, of a record of `topic`.

        `headers` are those of the record. Any exception becomes the cause of the
        SerializationError that `poll` raises.
        """


class ResolvedDeserializer(NamedTuple):
    """The deserializer of keys or of values.

    `deserialize` is called with the bytes, which are never None; if `takes_place`, also with the
    topic and the headers: `deserialize(data, topic, headers)`. It may raise any error.
    """

    deserialize: Callable[..., Any]
    takes_place: bool = False

    def __call__(self, topic: str, data: bytes | None, headers: Headers = ()) -> Any:
        """Return the object for the bytes of one record; None for None."""
        if data is None:
            return None
        if self.takes_place:
            return self.deserialize(data, topic, headers)
        return self.deserialize(data)


class Deserializers(NamedTuple):
    """The key and value deserializers of one consumer; None leaves bytes as they are."""

    key: ResolvedDeserializer | None = None
    value: ResolvedDeserializer | None = None


NO_DESERIALIZERS: Final = Deserializers()


def resolve_deserializers(
    config: KafkaConsumerConfig, plug_ins: PlugIns | None = None
) -> Deserializers:
    """Create both deserializers; raise ConfigError.

    `plug_ins` configures and closes them; without it, they are configured without settings and
    never closed.
    """
    plug_ins = plug_ins or PlugIns()
    return Deserializers(
        deserializer_for(config.key_deserializer, is_key=True, plug_ins=plug_ins),
        deserializer_for(config.value_deserializer, is_key=False, plug_ins=plug_ins),
    )


def deserializer_for(
    reference: PluginReference | None, *, is_key: bool, plug_ins: PlugIns | None = None
) -> ResolvedDeserializer | None:
    """Create the deserializer of `key.deserializer` or `value.deserializer`; None for bytes.

    Raises ConfigError for an object that cannot be called, or not with the arguments it will get.
    """
    if reference is None or reference.built_in == "bytes":
        return None
    if reference.built_in is not None:
        return ResolvedDeserializer(_CONVERSIONS[reference.built_in])
    setting = _setting(is_key=is_key)
    target = (plug_ins or PlugIns()).load(reference, setting, is_key=is_key)
    if callable(target):
        return _function_deserializer(target, f"{setting}: {reference}")
    method = getattr(target, "deserialize", None)
    if callable(method):
        return _java_style_deserializer(method, f"{setting}: deserialize of {reference}")
    raise ConfigError(
        f"{setting}: {reference} is not a deserializer: pass a function (data) -> value, which "
        "may also have parameters named topic and headers, or an object with a method "
        "deserialize(topic, headers, data)"
    )


def _setting(*, is_key: bool) -> str:
    return "key.deserializer" if is_key else "value.deserializer"


def _function_deserializer(target: Callable[..., Any], setting: str) -> ResolvedDeserializer:
    by_name = [name for name in ("topic", "headers") if takes(target, name)]
    check_signature(target, "(data)", setting, by_name=by_name)
    if not by_name:
        return ResolvedDeserializer(target)

    def deserialize(data: bytes, topic: str, headers: Headers) -> Any:
        arguments = {"topic": topic, "headers": headers}
        return target(data, **{name: arguments[name] for name in by_name})

    return ResolvedDeserializer(deserialize, takes_place=True)


def _java_style_deserializer(method: Callable[..., Any], setting: str) -> ResolvedDeserializer:
    check_signature(method, "(topic, headers, data)", setting)

    def deserialize(data: bytes, topic: str, headers: Headers) -> Any:
        return method(topic, headers, data)

    return ResolvedDeserializer(deserialize, takes_place=True)
