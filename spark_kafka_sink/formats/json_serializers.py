"""Serializer and deserializer of single records as JSON, without a Schema Registry.

They are plug-ins of the clients (`value.serializer`, `key.deserializer` and so on). They hold
nothing but their arguments, so that there is nothing to close, and copies are as good.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NoReturn
from uuid import UUID

from spark_kafka_sink.config.format_arguments import FormatArguments
from spark_kafka_sink.config.format_options import LATEST
from spark_kafka_sink.errors import ConfigError, PayloadError
from spark_kafka_sink.formats.columnar.python_values import (
    MomentError,
    of_entries,
    of_items,
    of_leaf,
    of_record,
)
from spark_kafka_sink.formats.json.interpreter import Interpreter, MalformedError
from spark_kafka_sink.formats.json.plan import make_plan
from spark_kafka_sink.formats.json.types import parse_type

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from spark_kafka_sink.config.format_options import Side
    from spark_kafka_sink.formats.columnar.columns import Column
    from spark_kafka_sink.formats.columnar.python_values import Convert

_READ_BYTES: Final = "Read it as bytes, or write it again"
_NESTED_TOO_DEEP: Final = "the value has too many levels, or contains itself"
_MICROS_PER_MILLI: Final = 1000


class _OneSide:
    """A plug-in for keys or for values, which the client says before the first record."""

    _side: Side = "value"
    _is_configured = False

    def configure(self, settings: Mapping[str, object], *, is_key: bool) -> None:  # noqa: ARG002
        """Set whether it is for keys: `is_key` (a client calls this; `settings` are not used).

        Raises ConfigError if it was for the other side before.
        """
        side: Side = "key" if is_key else "value"
        if self._is_configured and side != self._side:
            raise ConfigError(
                f"it is in use for {self._side}s already: create one for keys and one for values"
            )
        self._side, self._is_configured = side, True


class JsonSerializer(_OneSide):
    """A serializer of keys or values as JSON (`key.serializer`, `value.serializer`). Thread-safe.

    Values are dicts, lists, strings, numbers, booleans and None, which is null wherever it is. A
    `Decimal` has all its digits; dates, datetimes, UUIDs and bytes (as base64) are strings, as a
    column of Spark has them; numbers that are not finite are strings such as `"NaN"`.

    >>> JsonSerializer().serialize("orders", [], {"id": 21, "tags": ["new"]})
    b'{"id":21,"tags":["new"]}'
    """

    def serialize(self, topic: str, headers: Any, data: Any) -> bytes:  # noqa: ARG002
        """Return the payload of `data`, which is not None; `topic` and `headers` are not used.

        Raises PayloadError for a value that JSON does not have, with its path.
        """
        path: list[str] = [self._side]
        try:
            return "".join(_parts(data, path)).encode()
        except RecursionError:
            _refuse([self._side], _NESTED_TOO_DEEP, "Write fewer levels")


class JsonDeserializer(_OneSide):
    """A deserializer of keys or values from JSON (`key.deserializer`, `value.deserializer`).

    Objects become dicts, arrays lists, numbers `int` or `float`. With a `schema`, payloads are read
    as a column of Spark is: it is DDL or the JSON of a type, names the fields of the dicts, and
    makes dates, datetimes, `Decimal`s and bytes of what JSON has as strings and numbers.

    >>> JsonDeserializer().deserialize("orders", [], b'{"id": 21}')
    {'id': 21}
    >>> JsonDeserializer("id bigint, at date").deserialize("orders", [], b'{"at": "2026-01-02"}')
    {'id': None, 'at': datetime.date(2026, 1, 2)}
    """

    def __init__(self, schema: str | None = None) -> None:
        """Parse the schema. Raises TypeError, ConfigError or SchemaError for a wrong one."""
        self._schema = schema
        self._column: Column | None = None
        if schema is None:
            return
        call = FormatArguments(value_format="json", value_schema=schema).of_read()
        [side] = call.formats.sides
        if side.schema == LATEST:
            raise ConfigError(
                "JSON has no schema in a Schema Registry: pass schema as DDL (id bigint, name "
                "string), or as the JSON of a type of Spark's"
            )
        self._plan = make_plan(parse_type(side.schema.text))
        self._column = self._plan.column
        self._convert = _conversion(self._column)

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process makes the same of."""
        return {"schema": self._schema, "side": self._side, "is_configured": self._is_configured}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Parse the schema again."""
        JsonDeserializer.__init__(self, state["schema"])
        self._side, self._is_configured = state["side"], state["is_configured"]

    def deserialize(
        self,
        topic: str,  # noqa: ARG002
        headers: Sequence[tuple[str, bytes | None]],  # noqa: ARG002
        data: bytes,
    ) -> Any:
        """Return the value of `data`, a payload; `topic` and `headers` are not used.

        Raises PayloadError for a malformed one, with the path of what is wrong.
        """
        data = bytes(data)
        if self._column is None:
            return _loaded(data, self._side)
        try:
            value = Interpreter(self._plan, self._side).read(data)
        except MalformedError as error:
            field, _, cause = str(error).partition(": ")
            raise PayloadError(cause, field=field, advice=_READ_BYTES) from None
        try:
            return value if self._convert is None else self._convert(value)
        except MomentError as error:
            raise PayloadError(
                str(error), field=f"{self._side}{error.path}", advice=_READ_BYTES
            ) from None


def _refuse(path: Sequence[str], cause: str, advice: str) -> NoReturn:
    raise PayloadError(cause, field="".join(path), advice=advice) from None


def _parts(value: Any, path: list[str]) -> Iterator[str]:  # noqa: C901, PLR0912  one for each type
    """Yield the parts of a text; `path` has the names of what is being written."""
    match value:
        case None:
            yield "null"
        case bool():
            yield "true" if value else "false"
        case int():
            yield int.__repr__(value)
        case float():
            yield float.__repr__(value) if math.isfinite(value) else f'"{_not_finite(value)}"'
        case Decimal():
            if not value.is_finite():
                _refuse(path, "the decimal is not finite", "Write a float, or None")
            yield str(value)
        case str():
            yield _string(value, path)
        case UUID():
            yield f'"{value}"'
        case bytes() | bytearray() | memoryview():
            yield f'"{base64.b64encode(value).decode()}"'
        case dt.datetime():
            yield f'"{_moment(value)}"'
        case dt.date():
            yield f'"{value.isoformat()}"'
        case dict():
            comma = "{"
            for key, item in value.items():
                yield f"{comma}{_key(key, path)}:"
                path.append(f".{key}")
                yield from _parts(item, path)
                path.pop()
                comma = ","
            yield "}" if value else "{}"
        case list() | tuple():
            comma = "["
            path.append("[]")
            for item in value:
                yield comma
                yield from _parts(item, path)
                comma = ","
            path.pop()
            yield "]" if value else "[]"
        case _:
            name = type(value).__name__
            _refuse(
                path, f"the value is {name}, which JSON does not have", "Convert it to a string"
            )


def _not_finite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _string(value: str, path: Sequence[str]) -> str:
    if any("\ud800" <= sign <= "\udfff" for sign in value):
        _refuse(path, "the string has half of a surrogate pair", "Correct it, or write bytes")
    return json.dumps(value, ensure_ascii=False)


def _key(key: Any, path: Sequence[str]) -> str:
    """Return the name of a field, or the key of a map."""
    match key:
        case str():
            return _string(key, path)
        case bool():
            return '"true"' if key else '"false"'
        case int():
            return f'"{int.__repr__(key)}"'
    _refuse(path, f"a key is {type(key).__name__}", "Convert it to a string")


def _moment(value: dt.datetime) -> str:
    """Return a timestamp as a column has it: in UTC, if it has a time zone."""
    zone = ""
    if value.tzinfo is not None:
        value, zone = value.astimezone(dt.UTC).replace(tzinfo=None), "Z"
    has_micros = value.microsecond % _MICROS_PER_MILLI
    return value.isoformat(timespec="microseconds" if has_micros else "milliseconds") + zone


def _loaded(data: bytes, side: Side) -> Any:
    """Return the value of any JSON."""
    try:
        text = data.decode()
        value = json.loads(text, parse_constant=_refuse_constant)
        if "\\u" in text:
            # Which is the only way to half of a surrogate pair.
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError:
        cause = "it is not UTF-8"
    except UnicodeEncodeError:
        cause = "a string has half of a surrogate pair"
    except RecursionError:
        cause = "objects and arrays are in too many others"
    except json.JSONDecodeError as error:
        cause = f"it is not JSON: {error.msg} at character {error.pos}"
    except ValueError as error:
        cause = f"it is not JSON: {error}"
    else:
        return value
    raise PayloadError(cause, field=side, advice=_READ_BYTES)


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number there")


def _conversion(column: Column) -> Convert | None:
    """Return how a value of the interpreter becomes Python's; None if it is that already."""
    children = [_conversion(child) for child in column.children]
    if column.kind == "struct":
        names = [field.name for field in column.type]
        return of_record(zip(names, children, strict=True))
    if column.kind == "list":
        return of_items(children[0])
    if column.kind == "map":
        return of_entries(children[1])
    return of_leaf(column.type)
