"""How keys and values become bytes (Kafka's `org.apache.kafka.common.serialization`).

The built-in ones write what Java's write, and take what their name says and nothing like it: a
number given where text was meant is a mistake to be told, not to be printed. None is no key, or a
tombstone: it is never given to a serializer.

A serializer of the user's is anything that can be called with the value; if it has a parameter
named `topic`, it gets that by keyword. A class is made first, without arguments.
"""

from __future__ import annotations

import inspect
import json
import struct
from operator import index
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import UUID

from spark_kafka_sink.errors import ConfigError, SerializationError
from spark_kafka_sink.producer.plugins import load_plugin

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spark_kafka_sink.config.plugin_reference import PluginReference

#: Value and topic -> bytes; None stays None. Raises SerializationError.
Serializer: TypeAlias = "Callable[[Any, str], bytes | None]"
#: What a built-in one does with a value that is not None; it raises what it likes.
_Conversion: TypeAlias = "Callable[[Any], bytes | None]"


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError("bytes are needed")


def _string(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError("a str is needed")
    return value.encode()


def _integer(layout: str) -> _Conversion:
    pack = struct.Struct(layout).pack

    def convert(value: Any) -> bytes:
        # True is an int to Python, and a mistake here.
        if isinstance(value, bool):
            raise TypeError("an int is needed")
        return pack(index(value))

    return convert


def _float64(value: Any) -> bytes:
    if isinstance(value, bool | str):
        raise TypeError("a float is needed")
    return struct.pack(">d", value)


def _float32(value: Any) -> bytes:
    if isinstance(value, bool | str):
        raise TypeError("a float is needed")
    return struct.pack(">f", value)


def _boolean(value: Any) -> bytes:
    if not isinstance(value, bool):
        raise TypeError("a bool is needed")
    return b"\x01" if value else b"\x00"


def _json(value: Any) -> bytes:
    # NaN and the infinities are no JSON: other readers refuse the whole record.
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode()


def _void(_value: Any) -> bytes:
    raise TypeError("nothing but None is written")


def _uuid(value: Any) -> bytes:
    if not isinstance(value, UUID):
        raise TypeError("a uuid.UUID is needed")
    return str(value).encode()


#: As ByteArray-, Short-, Integer-, Long-, Float-, Double-, Boolean-, Void-, String- and
#: UUIDSerializer; big-endian, and text as UTF-8.
_CONVERSIONS: Final[Mapping[str, _Conversion]] = MappingProxyType(
    {
        "bytes": _bytes,
        "int16": _integer(">h"),
        "int32": _integer(">i"),
        "int64": _integer(">q"),
        "int": _integer(">q"),
        "float32": _float32,
        "float64": _float64,
        "float": _float64,
        "boolean": _boolean,
        "json": _json,
        "void": _void,
        "string": _string,
        "uuid": _uuid,
    }
)


def resolve_serializer(reference: PluginReference | None, *, is_key: bool) -> Serializer:
    """Make what `key.serializer` or `value.serializer` names; None takes bytes as they are.

    Raises ConfigError for what cannot be called.
    """
    part = "key" if is_key else "value"
    if reference is None:
        return _built_in("bytes", part)
    if reference.built_in is not None:
        return _built_in(reference.built_in, part)
    target = load_plugin(reference, f"{part}.serializer")
    if not callable(target):
        raise ConfigError(
            f"{part}.serializer: {reference} cannot be called: give a function (value) -> bytes, "
            "or one with a parameter named topic"
        )
    takes_topic = _takes_topic(target)
    name = str(reference)

    def serialize(value: Any, topic: str) -> bytes | None:
        if value is None:
            return None
        try:
            data = target(value, topic=topic) if takes_topic else target(value)
            return data if data is None or type(data) is bytes else _bytes(data)
        except Exception as error:
            raise _refused(name, part, topic, value, error) from error

    return serialize


def _built_in(name: str, part: str) -> Serializer:
    convert = _CONVERSIONS[name]

    def serialize(value: Any, topic: str) -> bytes | None:
        if value is None:
            return None
        try:
            return convert(value)
        except Exception as error:
            raise _refused(repr(name), part, topic, value, error) from error

    return serialize


def _takes_topic(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        # Some functions written in C do not tell; such were not written for Kafka's topics.
        return False
    return "topic" in parameters


def _refused(
    name: str, part: str, topic: str, value: object, error: Exception
) -> SerializationError:
    # The error may quote the value, which is the caller's data and stays out of logs: it is told
    # only as the cause.
    return SerializationError(
        f"topic {topic!r}: the {part}, of type {type(value).__qualname__}, cannot be written by "
        f"the serializer {name} ({type(error).__name__}). Give what it takes, or set "
        f"{part}.serializer"
    )
