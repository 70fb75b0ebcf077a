"""The conversion of keys and values to bytes (Kafka's `org.apache.kafka.common.serialization`).

The built-in serializers write what Java's write, and accept only what their name says: a number
passed to the string serializer is an error, and is not formatted as text. None is a missing key or
a tombstone, and is never passed to a serializer.

A custom serializer is any callable that takes the value; parameters named `topic` or `headers` are
passed by keyword. An object that is not callable may have Java's method instead, `serialize(topic,
headers, data)`. The headers are a list of pairs that a serializer may change; the changed list is
sent. A class is instantiated first, without arguments; see `config.plug_ins` for its life
cycle.
"""

from __future__ import annotations

import json
import struct
from abc import abstractmethod
from operator import index
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias
from uuid import UUID

from spark_kafka_sink.config.plug_ins import PlugIns, check_signature, takes
from spark_kafka_sink.errors import (
    ConfigError,
    KafkaError,
    PayloadError,
    SchemaError,
    SchemaRegistryError,
    SerializationError,
    shown_reason,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spark_kafka_sink.config.plugin_reference import PluginReference
    from spark_kafka_sink.config.producer_config import ProducerConfig

    #: The headers that a serializer may change; None if neither serializer takes headers.
    MutableHeaders: TypeAlias = list[tuple[str, bytes | None]] | None

#: Converts value, topic and headers to bytes; None stays None. Raises SerializationError.
_Serialize: TypeAlias = "Callable[[Any, str, MutableHeaders], bytes | None]"
#: The conversion by a built-in serializer of a value that is not None; it may raise any error.
_Conversion: TypeAlias = "Callable[[Any], bytes | None]"


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError("expected bytes")


def _string(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError("expected a str")
    return value.encode()


def _integer(layout: str) -> _Conversion:
    pack = struct.Struct(layout).pack

    def convert(value: Any) -> bytes:
        # In Python True is an int; here it is a mistake.
        if isinstance(value, bool):
            raise TypeError("expected an int")
        try:
            return pack(index(value))
        except struct.error as error:
            raise OverflowError(str(error)) from None

    return convert


def _float(layout: str) -> _Conversion:
    pack = struct.Struct(layout).pack

    def convert(value: Any) -> bytes:
        if isinstance(value, bool):
            raise TypeError("expected a float")
        try:
            return pack(value)
        except struct.error as error:
            kind = OverflowError if isinstance(value, int) else TypeError
            raise kind(str(error)) from None

    return convert


def _boolean(value: Any) -> bytes:
    if not isinstance(value, bool):
        raise TypeError("expected a bool")
    return b"\x01" if value else b"\x00"


def _json(value: Any) -> bytes:
    # NaN and the infinities are not valid JSON: other consumers would reject the whole record.
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode()


def _void(_value: Any) -> bytes:
    raise TypeError("expected None")


def _uuid(value: Any) -> bytes:
    if not isinstance(value, UUID):
        raise TypeError("expected a uuid.UUID")
    return str(value).encode()


#: Matches ByteArray-, Short-, Integer-, Long-, Float-, Double-, Boolean-, Void-, String- and
#: UUIDSerializer; numbers are big-endian, text is UTF-8.
_CONVERSIONS: Final[Mapping[str, _Conversion]] = MappingProxyType(
    {
        "bytes": _bytes,
        "int16": _integer(">h"),
        "int32": _integer(">i"),
        "int64": _integer(">q"),
        "int": _integer(">q"),
        "float32": _float(">f"),
        "float64": _float(">d"),
        "float": _float(">d"),
        "boolean": _boolean,
        "json": _json,
        "void": _void,
        "string": _string,
        "uuid": _uuid,
    }
)


class Serializer(Protocol):
    """A plug-in that converts keys or values to bytes (`key.serializer`, `value.serializer`).

    A function `(value) -> bytes` works too, and may also have parameters named `topic` and
    `headers`. An object with the method below, which has Java's signature, may also have
    `configure(settings, *, is_key)` and `close()`.

    >>> class VersionedText:
    ...     def serialize(self, topic, headers, data):
    ...         headers.append(("version", b"2"))
    ...         return str(data).encode()
    >>> settings = {"bootstrap.servers": "localhost:9092", "value.serializer": VersionedText}
    >>> with KafkaProducer(settings) as producer:
    ...     producer.send("orders", 12.5).result(timeout=30).serialized_value_size
    4
    """

    @abstractmethod
    def serialize(
        self, topic: str, headers: list[tuple[str, bytes | None]], data: Any
    ) -> bytes | None:
        """Return the bytes of `data`, which is never None, for a record of `topic`.

        `headers` are those of the record; the method may change the list, and the changed list is
        sent. Any exception becomes the cause of the SerializationError that `send` raises, but a
        SchemaRegistryError remains one: the record may be fine.
        """


class ResolvedSerializer(NamedTuple):
    """The serializer of keys or of values."""

    serialize: _Serialize
    #: Whether it needs the headers of each record.
    takes_headers: bool = False


class Serializers(NamedTuple):
    """The key and value serializers of one producer."""

    key: ResolvedSerializer
    value: ResolvedSerializer


def resolve_serializers(config: ProducerConfig, plug_ins: PlugIns) -> Serializers:
    """Create both serializers; raise ConfigError."""
    return Serializers(
        resolve_serializer(config.key_serializer, is_key=True, plug_ins=plug_ins),
        resolve_serializer(config.value_serializer, is_key=False, plug_ins=plug_ins),
    )


def resolve_serializer(
    reference: PluginReference | None, *, is_key: bool, plug_ins: PlugIns | None = None
) -> ResolvedSerializer:
    """Create the serializer of `key.serializer` or `value.serializer`; None takes raw bytes.

    Raises ConfigError for an object that cannot be called, or not with the arguments it will get.
    """
    part = "key" if is_key else "value"
    if reference is None:
        return _built_in("bytes", part)
    if reference.built_in is not None:
        return _built_in(reference.built_in, part)
    target = (plug_ins or PlugIns()).load(reference, f"{part}.serializer", is_key=is_key)
    if callable(target):
        return _function_serializer(target, str(reference), part)
    method = getattr(target, "serialize", None)
    if callable(method):
        return _java_style_serializer(method, str(reference), part)
    raise ConfigError(
        f"{part}.serializer: {reference} is not a serializer: pass a function (value) -> bytes, "
        "which may also have parameters named topic and headers, or an object with a method "
        "serialize(topic, headers, data)"
    )


def _function_serializer(target: Callable[..., Any], name: str, part: str) -> ResolvedSerializer:
    by_name = [argument for argument in ("topic", "headers") if takes(target, argument)]
    takes_topic, takes_headers = "topic" in by_name, "headers" in by_name
    check_signature(target, "(value)", f"{part}.serializer: {name}", by_name=by_name)

    def serialize(value: Any, topic: str, headers: MutableHeaders = None) -> bytes | None:
        if value is None:
            return None
        try:
            if takes_headers:
                about = {"topic": topic} if takes_topic else {}
                data = target(value, headers=headers, **about)
            else:
                data = target(value, topic=topic) if takes_topic else target(value)
        except Exception as error:
            raise _refused(name, part, topic, value, error) from error
        return data if data is None or type(data) is bytes else _returned(data, name, part, topic)

    return ResolvedSerializer(serialize, takes_headers)


def _java_style_serializer(method: Callable[..., Any], name: str, part: str) -> ResolvedSerializer:
    setting = f"{part}.serializer: serialize of {name}"
    check_signature(method, "(topic, headers, data)", setting)

    def serialize(value: Any, topic: str, headers: MutableHeaders = None) -> bytes | None:
        if value is None:
            return None
        try:
            data = method(topic, headers, value)
        except Exception as error:
            raise _refused(name, part, topic, value, error) from error
        return data if data is None or type(data) is bytes else _returned(data, name, part, topic)

    return ResolvedSerializer(serialize, takes_headers=True)


def _returned(data: object, name: str, part: str, topic: str) -> bytes:
    """Return the result of a custom serializer as bytes."""
    try:
        return _bytes(data)
    except TypeError:
        # The serializer is at fault, not the record or the caller.
        advice = "text.encode()" if isinstance(data, str) else "bytes(...)"
        raise SerializationError(
            f"topic {topic!r}: the serializer {name} ({part}.serializer) returned "
            f"{type(data).__qualname__}, not bytes or None. Make it return bytes, for example with "
            f"{advice}"
        ) from None


def _built_in(name: str, part: str) -> ResolvedSerializer:
    convert = _CONVERSIONS[name]

    def serialize(value: Any, topic: str, _headers: MutableHeaders = None) -> bytes | None:
        if value is None:
            return None
        try:
            return convert(value)
        except Exception as error:
            raise _refused(repr(name), part, topic, value, error) from error

    return ResolvedSerializer(serialize)


def _refused(name: str, part: str, topic: str, value: object, error: Exception) -> KafkaError:
    """Return the error of a serializer, about the record or about what it needs for all records."""
    if isinstance(error, SchemaRegistryError):
        # The record may be fine: it must not look like one to drop.
        return error.with_message(f"topic {topic!r}: there is no schema for the {part}: {error}")
    if isinstance(error, SchemaError | ConfigError):
        return SerializationError(
            f"topic {topic!r}: the serializer {name} has no schema for a {part}: {error}"
        )
    advice = f"Pass a {part} that it accepts, or change {part}.serializer"
    if isinstance(error, PayloadError):
        advice = error.advice
    return SerializationError(
        f"topic {topic!r}: the serializer {name} cannot convert a {part} of type "
        f"{type(value).__qualname__} ({shown_reason(error)}). {advice}"
    )
