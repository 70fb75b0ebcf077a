"""Encode single Python values as Avro: dicts as records, and so on.

A schema is translated into functions once, one for each part. The values that a schema takes:

| schema | values |
|---|---|
| null | None |
| boolean | bool |
| int, long | int, and all that Python can use as an index, but bool |
| float, double | float, and numbers that it has exactly |
| string | str; also `uuid.UUID` for uuid |
| bytes, fixed | bytes, bytearray, memoryview; for a fixed uuid also `uuid.UUID` |
| decimal | `decimal.Decimal`, int |
| date | `datetime.date` |
| time-millis, time-micros | `datetime.time` without a time zone |
| timestamp-millis, -micros, -nanos | `datetime.datetime` with a time zone |
| local-timestamp-millis, -micros, -nanos | `datetime.datetime` without one |
| interval of Spark | `datetime.timedelta` |
| enum | str |
| array | list, tuple, other sequences |
| map, record | dict, other mappings |
| union | a value of one of its types, or a pair of the type's name and the value |

Dates, times, timestamps and intervals may also be the int that Avro writes. What the unit of one
cannot hold is cut off, towards the past.

A union takes the first type that has the value, but double before float: as fastavro does, which
Confluent's serializers use. It is stricter here in all else: a field that the record does not have
is an error, a number is not cut, a time zone is neither ignored nor guessed. An error names the
path of the field, and never shows a value.
"""

from __future__ import annotations

import datetime as dt
import difflib
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from numbers import Real
from operator import index
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias
from uuid import UUID

from spark_kafka_sink.display import listed
from spark_kafka_sink.errors import PayloadError
from spark_kafka_sink.formats.avro.defaults import DefaultEncoder
from spark_kafka_sink.formats.avro.schema import (
    ABSENT,
    SPARK_TYPE,
    Array,
    DecimalType,
    Enum,
    Field,
    Fixed,
    Map,
    Primitive,
    Record,
    Schema,
    Union,
    describe,
    shortened,
)
from spark_kafka_sink.formats.columnar.python_values import EPOCH, EPOCH_DAY, LOCAL_EPOCH
from spark_kafka_sink.record.default_record import encode_varint

#: Appends a value to the bytes; raises `WrongValueError`.
_Write: TypeAlias = Callable[[Any, bytearray], None]
#: Returns the int of a value; raises `WrongValueError`.
_Number: TypeAlias = Callable[[Any], int]

_BITS: Final = {"int": 32, "long": 64}
_NANOS_PER_MICRO: Final = 1000
#: What microseconds are divided by, for the units of times and timestamps.
_MICROS: Final = {"millis": 1000, "micros": 1}
_MISSING: Final = object()
_UUID_SIZE: Final = 16
_MOST_NAMED: Final = 10
_PAIR: Final = 2
_NOT_SEQUENCES: Final = (str, bytes, bytearray, memoryview)
_BYTES: Final = (bytes, bytearray, memoryview)


class WrongValueError(Exception):
    """A value that its schema does not have; `path` grows on the way out."""

    def __init__(self, cause: str, advice: str) -> None:
        """Describe it without the value."""
        super().__init__(cause)
        self.cause = cause
        self.advice = advice
        self.path = ""

    def within(self, name: str) -> WrongValueError:
        """Return the error, of a part of a value; the part is called `name`."""
        self.path = f"{name}{self.path}"
        return self


class ValueEncoder:
    """Encodes values of one schema. Any thread may use it, also several at once."""

    def __init__(self, schema: Schema, name: str = "value", *, bare_bytes: bool = False) -> None:
        """Set what errors call the value.

        With `bare_bytes`, the payloads of the schema "bytes" have no length before the bytes, as
        Confluent's serializers write them behind their framing.
        """
        self._schema = schema
        self._name = name
        self._defaults = DefaultEncoder()
        #: By the identity of a schema; all of its parts are kept.
        self._writers: dict[int, _Write] = {}
        if bare_bytes and isinstance(schema, Primitive) and schema.type == "bytes":
            self._write = _bytes(schema, has_length=False)
        else:
            self._write = self._writer(schema)

    def encode(self, value: Any, prefix: bytes = b"") -> bytes:
        """Return the payload of a value, behind a prefix; raises PayloadError."""
        out = bytearray(prefix)
        try:
            self._write(value, out)
        except WrongValueError as error:
            path = f"{self._name}{error.path}"
            raise PayloadError(error.cause, field=path, advice=error.advice) from None
        return bytes(out)

    def _writer(self, schema: Schema) -> _Write:
        known = self._writers.get(id(schema))
        if known is None:
            known = self._writers[id(schema)] = self._MAKERS[type(schema)](self, schema)
        return known

    def _primitive(self, schema: Primitive) -> _Write:
        match schema.type:
            case "null":
                return _null
            case "boolean":
                return _boolean
            case "int" | "long":
                return _integer(schema)
            case "float" | "double":
                return _floating(schema)
            case "string":
                return _string(schema)
        return _bytes(schema)

    def _fixed(self, schema: Fixed) -> _Write:
        return _fixed(schema)

    def _enum(self, schema: Enum) -> _Write:
        symbols = {symbol: encode_varint(number) for number, symbol in enumerate(schema.symbols)}

        def write(value: Any, out: bytearray) -> None:
            if not isinstance(value, str):
                raise _wrong(value, schema, "a str that is one of its symbols")
            symbol = symbols.get(value)
            if symbol is None:
                raise WrongValueError(
                    f"the str is not a symbol of {describe(schema)}",
                    f"Pass one of {listed(list(schema.symbols), _MOST_NAMED)}",
                )
            out += symbol

        return write

    def _array(self, schema: Array) -> _Write:
        write_item = self._writer(schema.items)

        def write(value: Any, out: bytearray) -> None:
            if isinstance(value, _NOT_SEQUENCES) or not isinstance(value, Sequence):
                raise _wrong(value, schema, "a list")
            if value:
                out += encode_varint(len(value))
                try:
                    for item in value:
                        write_item(item, out)
                except WrongValueError as error:
                    raise error.within("[]") from None
            out.append(0)

        return write

    def _map(self, schema: Map) -> _Write:
        write_item = self._writer(schema.values)

        def write(value: Any, out: bytearray) -> None:
            if not isinstance(value, Mapping):
                raise _wrong(value, schema, "a dict")
            if value:
                out += encode_varint(len(value))
                try:
                    for key, item in value.items():
                        _write_text(key, "a key of the map", out)
                        write_item(item, out)
                except WrongValueError as error:
                    raise error.within("{}") from None
            out.append(0)

        return write

    def _record(self, schema: Record) -> _Write:
        fields = [(field.name, self._writer(field.schema), field) for field in schema.fields]
        absent: dict[str, bytes] = {}

        def write(value: Any, out: bytearray) -> None:
            if not isinstance(value, Mapping):
                raise _wrong(value, schema, "a dict")
            found = 0
            for name, write_field, field in fields:
                item = value.get(name, _MISSING)
                try:
                    if item is not _MISSING:
                        found += 1
                        write_field(item, out)
                    elif name in absent:
                        out += absent[name]
                    else:
                        out += absent.setdefault(name, self._absent(field))
                except WrongValueError as error:
                    raise error.within(f".{name}") from None
            if found != len(value):
                raise _unknown_field(value, schema)

        return write

    def _absent(self, field: Field) -> bytes:
        """Return what is written for a field that a dict lacks: its default, else null."""
        if field.default is not ABSENT:
            return self._defaults.default_bytes(field)
        if field.schema.type == "null":
            return b""
        null = _null_branch(field.schema) if isinstance(field.schema, Union) else None
        if null is None:
            raise WrongValueError(
                f"the field is missing, and the schema has {_named(field.schema)} without a "
                "default",
                "Pass the field, or use a schema in which it has a default",
            )
        return null

    def _union(self, schema: Union) -> _Write:
        null = _null_branch(schema)
        branches = [
            _Branch(describe(branch), encode_varint(number), self._writer(branch), _takes(branch))
            for number, branch in enumerate(schema.branches)
            if branch.type != "null"
        ]
        names = [branch.name for branch in branches]
        # A Python float is a double: a float would cut it.
        ordered = branches
        if "float" in names and "double" in names[names.index("float") :]:
            ordered = list(branches)
            ordered.insert(names.index("float"), ordered.pop(names.index("double")))

        def write(value: Any, out: bytearray) -> None:
            if value is None:
                if null is None:
                    raise _wrong(value, schema, "a value of one of its types")
                out += null
                return
            if isinstance(value, tuple):
                branch, value = _named_branch(value, branches, names)
                out += branch.number
                branch.write(value, out)
                return
            possible = [branch for branch in ordered if branch.takes(value)]
            if len(possible) == 1:
                out += possible[0].number
                possible[0].write(value, out)
                return
            size = len(out)
            for branch in possible:
                try:
                    out += branch.number
                    branch.write(value, out)
                except WrongValueError:
                    del out[size:]
                else:
                    return
            raise WrongValueError(
                f"the value is {_type_name(value)}, but the schema has a union of "
                f"{listed(names, _MOST_NAMED)}"
                + (", none of which has the value" if possible else ""),
                "Pass a value of one of these types, or a pair of the type's name and the value, "
                "which shows what is wrong",
            )

        return write

    _MAKERS: ClassVar[dict[type, Callable[[Any, Any], _Write]]] = {
        Primitive: _primitive,
        Fixed: _fixed,
        Enum: _enum,
        Array: _array,
        Map: _map,
        Record: _record,
        Union: _union,
    }


class _Branch(NamedTuple):
    """A type of a union that is not null."""

    name: str
    #: The number of the branch, encoded.
    number: bytes
    write: _Write
    #: Whether a value has a type of Python that it can take.
    takes: Callable[[Any], bool]


def _null_branch(schema: Union) -> bytes | None:
    for number, branch in enumerate(schema.branches):
        if branch.type == "null":
            return encode_varint(number)
    return None


def _named_branch(
    value: tuple[Any, ...], branches: list[_Branch], names: list[str]
) -> tuple[_Branch, Any]:
    """Return the branch that a pair names, and its value; a tuple is nothing else in a union."""
    if len(value) == _PAIR and value[0] in names:
        return branches[names.index(value[0])], value[1]
    raise WrongValueError(
        "the tuple is not the name of a type of the union and a value",
        f"Name one of {listed(names, _MOST_NAMED)}; for an array, pass a list",
    )


def _takes(schema: Schema) -> Callable[[Any], bool]:  # noqa: PLR0911  one for each kind of type
    """Return whether a value may be one of a union's type; whether it is, shows when it is written.

    An int is no decimal here: another type of the union may be meant.
    """
    match schema:
        case Record() | Map():
            return lambda value: isinstance(value, Mapping)
        case Array():
            return lambda value: (
                isinstance(value, Sequence) and not isinstance(value, _NOT_SEQUENCES)
            )
        case Enum():
            return lambda value: isinstance(value, str)
        case Primitive() | Fixed() if isinstance(schema.logical, DecimalType):
            return lambda value: isinstance(value, Decimal)
    match schema.type:
        case "boolean":
            return lambda value: isinstance(value, bool)
        case "float" | "double":
            return lambda value: isinstance(value, Real) and not isinstance(value, bool)
        case "string":
            return lambda value: isinstance(value, str | UUID)
        case "bytes" | "fixed":
            return lambda value: isinstance(value, (*_BYTES, UUID))
    return lambda value: (
        not isinstance(value, bool)
        and (hasattr(value, "__index__") or isinstance(value, dt.date | dt.time | dt.timedelta))
    )


# --- errors


def _type_name(value: Any) -> str:
    return "null" if value is None else type(value).__name__


def _named(schema: Schema) -> str:
    """Return what an error calls a schema, with its logical type."""
    logical = getattr(schema, "logical", None)
    if logical is None:
        return describe(schema)
    if isinstance(logical, DecimalType):
        return f"{describe(schema)} (decimal({logical.precision}, {logical.scale}))"
    return f"{describe(schema)} ({shortened(logical.removeprefix(SPARK_TYPE))})"


def _wrong(value: Any, schema: Schema, expected: str) -> WrongValueError:
    if value is None:
        return WrongValueError(
            f"the value is null, but the schema has {_named(schema)} without null",
            f"Pass {expected}, or use a schema in which it is optional",
        )
    return WrongValueError(
        f"the value is {_type_name(value)}, but the schema has {_named(schema)}",
        f"Pass {expected}",
    )


def _unknown_field(value: Mapping[Any, Any], schema: Record) -> WrongValueError:
    names = [field.name for field in schema.fields]
    unknown = next(name for name in value if name not in names)
    near = difflib.get_close_matches(str(unknown), names[:1000], 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return WrongValueError(
        f"the record {schema.name} has no field {shortened(repr(unknown))}{hint}",
        "Remove it from the dict, or use a schema that has it",
    )


def _too_large(schema: Schema) -> WrongValueError:
    return WrongValueError(
        f"the value does not fit into {_named(schema)}", "Correct it, or use a wider type"
    )


# --- leaves


def _null(value: Any, _: bytearray) -> None:
    if value is not None:
        raise _wrong(value, Primitive("null"), "None")


def _boolean(value: Any, out: bytearray) -> None:
    if not isinstance(value, bool):
        raise _wrong(value, Primitive("boolean"), "True or False")
    out.append(value)


def _integer(schema: Primitive) -> _Write:
    convert = _conversion(schema)
    limit = 1 << _BITS[schema.type] - 1

    def write(value: Any, out: bytearray) -> None:
        number = value if type(value) is int else convert(value)
        if not -limit <= number < limit:
            raise _too_large(schema)
        out += encode_varint(number)

    return write


def _conversion(schema: Primitive) -> _Number:
    """Return how the int of a value is found that is not an int itself."""
    logical = str(schema.logical)
    if logical == "date":
        return _days(schema)
    if logical.startswith("time-"):
        return _time(schema, _MICROS[logical.removeprefix("time-")])
    if logical.startswith(("timestamp-", "local-timestamp-")):
        return _timestamp(schema, logical)
    if logical == f"{SPARK_TYPE}interval day to second":
        return _interval(schema)
    return lambda value: _index(value, schema, "an int")


def _index(value: Any, schema: Schema, expected: str) -> int:
    # In Python True is an int; here it is a mistake.
    if not isinstance(value, bool):
        try:
            return index(value)
        except TypeError:
            pass
    raise _wrong(value, schema, expected)


def _days(schema: Primitive) -> _Number:
    def convert(value: Any) -> int:
        if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
            return value.toordinal() - EPOCH_DAY
        return _index(value, schema, "a datetime.date")

    return convert


def _time(schema: Primitive, divisor: int) -> _Number:
    def convert(value: Any) -> int:
        if isinstance(value, dt.time) and value.tzinfo is None:
            seconds = (value.hour * 60 + value.minute) * 60 + value.second
            return (seconds * 1_000_000 + value.microsecond) // divisor
        return _index(value, schema, "a datetime.time without a time zone")

    return convert


def _timestamp(schema: Primitive, logical: str) -> _Number:
    is_local = logical.startswith("local-")
    unit = logical.rpartition("-")[2]
    expected = f"a datetime.datetime {'without' if is_local else 'with'} a time zone"

    def convert(value: Any) -> int:
        if not isinstance(value, dt.datetime):
            return _index(value, schema, expected)
        if (value.tzinfo is None) is not is_local:
            zone = "no time zone" if value.tzinfo is None else "a time zone"
            raise WrongValueError(
                f"the datetime has {zone}, but the schema has {_named(schema)}", f"Pass {expected}"
            )
        micros = _micros(value - (LOCAL_EPOCH if is_local else EPOCH))
        return micros * _NANOS_PER_MICRO if unit == "nanos" else micros // _MICROS[unit]

    return convert


def _interval(schema: Primitive) -> _Number:
    def convert(value: Any) -> int:
        if isinstance(value, dt.timedelta):
            return _micros(value)
        return _index(value, schema, "a datetime.timedelta")

    return convert


def _micros(value: dt.timedelta) -> int:
    return value // dt.timedelta(microseconds=1)


def _floating(schema: Primitive) -> _Write:
    number = struct.Struct("<f" if schema.type == "float" else "<d")

    def write(value: Any, out: bytearray) -> None:
        if type(value) is not float and (isinstance(value, bool) or not isinstance(value, Real)):
            raise _wrong(value, schema, "a float")
        try:
            data = number.pack(float(value))
        except OverflowError:
            raise _too_large(schema) from None
        [written] = number.unpack(data)
        # Floats are rounded to a float, but an int that is none is not a measured value. NumPy's
        # may be NaN, which equals nothing.
        if not (isinstance(value, float) or written == value or math.isnan(written)):
            raise WrongValueError(
                f"the {_type_name(value)} has more digits than {_named(schema)}",
                "Convert it to float if it may be rounded, or use another type",
            )
        out += data

    return write


def _string(schema: Primitive) -> _Write:
    is_uuid = schema.logical == "uuid"

    def write(value: Any, out: bytearray) -> None:
        if is_uuid and isinstance(value, UUID):
            value = str(value)
        if not isinstance(value, str):
            raise _wrong(value, schema, "a str or a uuid.UUID" if is_uuid else "a str")
        _write_text(value, "the str", out)

    return write


def _write_text(value: Any, what: str, out: bytearray) -> None:
    if not isinstance(value, str):
        raise WrongValueError(
            f"{what} is {_type_name(value)}, but the schema has string", "Pass a str"
        )
    try:
        data = value.encode()
    except UnicodeEncodeError:
        raise WrongValueError(
            f"{what} has surrogates, which UTF-8 cannot encode", "Correct it, or write bytes"
        ) from None
    out += encode_varint(len(data))
    out += data


def _bytes(schema: Primitive, *, has_length: bool = True) -> _Write:
    decimal = schema.logical if isinstance(schema.logical, DecimalType) else None

    def write(value: Any, out: bytearray) -> None:
        if decimal is not None:
            number = _unscaled(value, schema, decimal)
            # The fewest bytes, as in Java.
            size = ((number if number >= 0 else ~number).bit_length() >> 3) + 1
            data = number.to_bytes(size, "big", signed=True)
        elif isinstance(value, _BYTES):
            data = bytes(value)
        else:
            raise _wrong(value, schema, "bytes")
        if has_length:
            out += encode_varint(len(data))
        out += data

    return write


def _fixed(schema: Fixed) -> _Write:
    decimal = schema.logical if isinstance(schema.logical, DecimalType) else None
    is_uuid = schema.logical == "uuid"

    def write(value: Any, out: bytearray) -> None:
        if decimal is not None:
            try:
                out += _unscaled(value, schema, decimal).to_bytes(schema.size, "big", signed=True)
            except OverflowError:
                raise _too_large(schema) from None
            return
        if is_uuid and isinstance(value, UUID):
            value = value.bytes
        if not isinstance(value, _BYTES):
            raise _wrong(value, schema, "bytes or a uuid.UUID" if is_uuid else "bytes")
        data = bytes(value)
        if len(data) != schema.size:
            raise WrongValueError(
                f"the value has {len(data)} bytes, but the schema has {describe(schema)} of "
                f"{schema.size}",
                "Correct its length, or use a schema with bytes",
            )
        out += data

    return write


def _unscaled(value: Any, schema: Schema, kind: DecimalType) -> int:
    """Return the number of units of the last digit of a decimal."""
    if isinstance(value, bool) or not isinstance(value, Decimal | int):
        raise _wrong(value, schema, "a decimal.Decimal")
    sign, digits, exponent = Decimal(value).as_tuple()
    if not isinstance(exponent, int):
        raise WrongValueError("the decimal is not a finite number", "Correct it")
    if not any(digits):
        return 0
    # Before any power of ten: an exponent may be as large as a long.
    if len(digits) + exponent + kind.scale > kind.precision + _leading_zeros(digits):
        raise _too_large(schema)
    shift = exponent + kind.scale
    # The digits that the schema lacks must be zeros, however many there are.
    kept = max(len(digits) + min(shift, 0), 0)
    if any(digits[kept:]):
        raise WrongValueError(
            f"the decimal has more than {kind.scale} digits behind the point, which the schema has",
            "Round it, or use a schema with a larger scale",
        )
    number = int("".join(map(str, digits[:kept])) + "0" * shift)
    return -number if sign else number


def _leading_zeros(digits: tuple[int, ...]) -> int:
    return next(number for number, digit in enumerate(digits) if digit)
