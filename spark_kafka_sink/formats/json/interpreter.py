"""Read payloads of JSON by a plan, in Python: the oracle of the compiled loop.

It also says what is wrong with a payload, and where; the decoder of columns has its words from here
and from `problems`.
"""

from __future__ import annotations

import base64
import json
import math
import re
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from spark_kafka_sink.display import shortened
from spark_kafka_sink.formats.json.plan import (
    COLUMN_WIDTH,
    MOST_CHARACTERS,
    MOST_DEPTH,
    NOT_FINITE,
    JsonOp,
)

if TYPE_CHECKING:
    from spark_kafka_sink.formats.columnar.columns import Column
    from spark_kafka_sink.formats.json.plan import Plan

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_STRING: Final = re.compile(r'"((?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4}))*)"', re.ASCII)
_NUMBER: Final = re.compile(r"(-?)(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORD: Final = re.compile(r"true|false|null")
_BASE64: Final = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
_DAY: Final = re.compile(r"([+-]?)([0-9]{4,6})-([0-9]{2})-([0-9]{2})")
_TIME: Final = re.compile(
    r"[ T]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,9}))?)?(Z|[+-][0-9]{2}:[0-9]{2})?"
)
_CLOSING: Final = {"{": "}", "[": "]"}
_DAYS_OF_400_YEARS: Final = 146_097
_EPOCH: Final = date(1970, 1, 1).toordinal()
_DAY_SECONDS: Final = 86_400
_MOST_OFFSET: Final = 18 * 60
_LONG: Final = range(-(2**63), 2**63)
_MOST_EXPONENT: Final = 10_000
#: The characters of a path that an error shows, from its end.
_SHOWN_PATH: Final = 200


class MalformedError(Exception):
    """A payload is not JSON, or not of the type that is read."""


class Interpreter:
    """Reads payloads by a plan; `value` is what errors call the value."""

    def __init__(self, plan: Plan, value: str = "") -> None:
        self._plan = plan
        self._value = value

    def read(self, payload: bytes) -> Any:
        """Return the value of a payload: structs are dicts, maps lists of pairs, times numbers.

        Raises `MalformedError`.
        """
        path: list[str] = []
        try:
            try:
                text = payload.decode()
            except UnicodeDecodeError:
                raise MalformedError("it is not UTF-8") from None
            return _Run(self._plan, text, path).read()
        except MalformedError as error:
            where = named_path(self._value, "".join(path))
            raise MalformedError(f"{where}: {error}" if where else str(error)) from None


class _Run:
    """Reads one payload; `path` has the names of what is being read."""

    def __init__(self, plan: Plan, text: str, path: list[str]) -> None:
        self._plan = plan
        self._text = text
        self._path = path
        self._position = 0
        self._depth = 0

    def read(self) -> Any:
        column = self._plan.column
        if self._peek() == "n":
            raise self._expected(f"{described(column)}")
        value = self._read(column)
        self._peek()
        if self._position < len(self._text):
            raise MalformedError(f"{self._shown()} is left behind the value")
        return value

    def _peek(self) -> str:
        """Return the next character that is not a space, and go there; "" at the end."""
        space = _SPACE.match(self._text, self._position)
        self._position = self._position if space is None else space.end()
        return self._text[self._position : self._position + 1]

    def _expected(self, what: str) -> MalformedError:
        return MalformedError(f"{self._shown()} instead of {what}")

    def _shown(self) -> str:
        rest = self._text[self._position :]
        return repr(shortened(rest, 20)) if rest else "the end"

    def _sign(self, sign: str) -> None:
        if self._peek() != sign:
            raise self._expected(repr(sign))
        self._position += 1

    def _open(self, sign: str) -> None:
        self._sign(sign)
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise MalformedError(f"objects and arrays are in more than {MOST_DEPTH} others")

    def _is_closed(self, sign: str, *, is_first: bool) -> bool:
        """Return whether an object or an array ends; else go to its next item."""
        if self._peek() == sign:
            self._position += 1
            self._depth -= 1
            return True
        if not is_first:
            if self._peek() != ",":
                raise self._expected(f"',' or {sign!r}")
            self._position += 1
        return False

    def _read(self, column: Column) -> Any:  # noqa: C901, PLR0911  one for each type
        op = self._plan.columns[column.slot * COLUMN_WIDTH]
        sign = self._peek()
        if sign == "n":
            self._word()
            return None
        match op:
            case JsonOp.STRUCT:
                return self._struct(column)
            case JsonOp.LIST:
                return self._list(column)
            case JsonOp.MAP:
                return self._map(column)
            case JsonOp.BOOLEAN:
                if sign not in {"t", "f"}:
                    raise self._expected(expected(column, op))
                return self._word() == "true"
            case JsonOp.INTEGER:
                return self._integer(column)
            case JsonOp.FLOAT32 | JsonOp.FLOAT64:
                return self._float(is_single=op == JsonOp.FLOAT32)
            case JsonOp.DECIMAL:
                return self._decimal(column)
        if sign != '"':
            raise self._expected(expected(column, op))
        if op == JsonOp.TEXT:
            return self._string()
        if op == JsonOp.BINARY:
            return self._binary()
        raw = self._raw()
        return self._moment(raw, column) if op == JsonOp.TIMESTAMP else self._date(raw)

    def _struct(self, column: Column) -> dict[str, Any]:
        children = {
            field.name: child for field, child in zip(column.type, column.children, strict=True)
        }
        row: dict[str, Any] = dict.fromkeys(children)
        if self._peek() != "{":
            raise self._expected("an object")
        self._open("{")
        is_first = True
        while not self._is_closed("}", is_first=is_first):
            is_first = False
            name = self._key()
            if name in children:
                self._path.append(f".{name}")
                row[name] = self._read(children[name])
                self._path.pop()
            else:
                self._skip()
        return row

    def _list(self, column: Column) -> list[Any]:
        if self._peek() != "[":
            raise self._expected("an array")
        self._open("[")
        items: list[Any] = []
        self._path.append("[]")
        while not self._is_closed("]", is_first=not items):
            items.append(self._read(column.children[0]))
        self._path.pop()
        return items

    def _map(self, column: Column) -> list[tuple[str, Any]]:
        if self._peek() != "{":
            raise self._expected("an object")
        self._open("{")
        items: dict[str, Any] = {}
        is_first = True
        self._path.append("{}")
        while not self._is_closed("}", is_first=is_first):
            is_first = False
            key = self._key()
            items[key] = self._read(column.children[1])
        self._path.pop()
        return list(items.items())

    def _key(self) -> str:
        if self._peek() != '"':
            raise self._expected("a name in quotation marks")
        name = self._string()
        self._sign(":")
        return name

    def _skip(self) -> None:
        """Read a value that is not wanted, and check that it is JSON."""
        closing: list[str] = []
        is_first = True
        while True:
            if closing and self._is_closed(closing[-1], is_first=is_first):
                closing.pop()
                is_first = False
            else:
                if closing and closing[-1] == "}":
                    self._key()
                sign = self._peek()
                is_first = sign in _CLOSING
                if is_first:
                    self._open(sign)
                    closing.append(_CLOSING[sign])
                elif sign == '"':
                    self._string()
                elif sign and sign in "tfn":
                    self._word()
                else:
                    self._number("a value")
            if not closing:
                return

    def _raw(self) -> str:
        """Return what is between quotation marks, with its escapes."""
        found = _STRING.match(self._text, self._position)
        if found is None:
            raise MalformedError(f"a string has no end, or a wrong escape: {self._shown()}")
        self._position = found.end()
        return found[1]

    def _string(self) -> str:
        raw = self._raw()
        if "\\" not in raw:
            return raw
        text: str = json.loads(f'"{raw}"')
        if any("\ud800" <= sign <= "\udfff" for sign in text):
            raise MalformedError("a string has half of a surrogate pair")
        return text

    def _word(self) -> str:
        found = _WORD.match(self._text, self._position)
        if found is None:
            raise self._expected("a value")
        self._position = found.end()
        return found[0]

    def _number(self, expected: str) -> re.Match[str]:
        found = _NUMBER.match(self._text, self._position)
        if found is None:
            raise self._expected(expected)
        if len(found[0]) > MOST_CHARACTERS:
            raise MalformedError(f"a number has more than {MOST_CHARACTERS} characters")
        self._position = found.end()
        return found

    def _integer(self, column: Column) -> int:
        found = self._number("an integer")
        text = found[0]
        if found[3] or found[4]:
            raise MalformedError(f"{shortened(text, 20)} is not written as an integer")
        number, limit = int(text), 1 << (column.type.bit_width - 1)
        if not -limit <= number < limit:
            raise MalformedError(f"{shortened(text, 20)} does not fit into {described(column)}")
        return number

    def _float(self, *, is_single: bool) -> float:
        if self._peek() == '"':
            word = self._raw()
            if word not in NOT_FINITE:
                raise MalformedError(f"the string {shortened(word, 20)!r} is not a number")
            return NOT_FINITE[word]
        text = self._number("a number")[0]
        value = single(text) if is_single else float(text)
        if value in {float("inf"), float("-inf")}:
            kind = "float" if is_single else "double"
            raise MalformedError(f"{shortened(text, 20)} does not fit into a {kind}")
        return value

    def _decimal(self, column: Column) -> Decimal:
        if self._peek() == '"':
            found = _NUMBER.fullmatch(self._raw())
            if found is None:
                raise MalformedError("a string is not a number")
        else:
            found = self._number("a number")
        if len(found[0]) > MOST_CHARACTERS:
            raise MalformedError(f"a number has more than {MOST_CHARACTERS} characters")
        unscaled = _unscaled(found, column.type.scale)
        if abs(unscaled) >= 10**column.type.precision:
            raise MalformedError(f"{shortened(found[0], 20)} does not fit into {described(column)}")
        digits = tuple(map(int, str(abs(unscaled))))
        return Decimal((int(unscaled < 0), digits, -column.type.scale))

    def _binary(self) -> bytes:
        text = self._string()
        if not _BASE64.fullmatch(text):
            raise MalformedError("a string is not base64")
        return base64.b64decode(text)

    def _date(self, raw: str) -> int:
        found = _DAY.fullmatch(raw)
        days = None if found is None else _days(found)
        if days is None:
            raise MalformedError(f"{shortened(raw, 40)!r} is not a date (2024-12-31)")
        return days

    def _moment(self, raw: str, column: Column) -> int:
        """Return the microseconds of a timestamp."""
        problem = MalformedError(f"{shortened(raw, 40)!r} is not {described(column)}")
        day = _DAY.match(raw)
        time = None if day is None else _TIME.fullmatch(raw, day.end())
        if day is None or time is None:
            raise problem
        days, hour, minute, second = _days(day), int(time[1]), int(time[2]), int(time[3] or 0)
        offset = _offset(time[5])
        if days is None or hour > 23 or minute > 59 or second > 59 or offset is None:  # noqa: PLR2004
            raise problem
        seconds = days * _DAY_SECONDS + hour * 3600 + (minute - offset) * 60 + second
        micros = seconds * 1_000_000 + int((time[4] or "").ljust(6, "0")[:6])
        if micros not in _LONG:
            raise problem
        if (time[5] is not None) != (column.type.tz is not None):
            raise MalformedError(f"{raw!r} has {other_zone(column)}")
        return micros


def _days(found: re.Match[str]) -> int | None:
    """Return the days since 1970 of a date; None if there is no such day."""
    year = int(found[1] + found[2])
    # Years of the same calendar that Python has.
    periods, rest = divmod(year - 2000, 400)
    try:
        ordinal = date(2000 + rest, int(found[3]), int(found[4])).toordinal()
    except ValueError:
        return None
    return ordinal - _EPOCH + periods * _DAYS_OF_400_YEARS


def _offset(zone: str | None) -> int | None:
    """Return the minutes by which a time zone is before UTC; None if there is no such zone."""
    if zone is None or zone == "Z":
        return 0
    minutes = int(zone[1:3]) * 60 + int(zone[4:6])
    if int(zone[4:6]) > 59 or minutes > _MOST_OFFSET:  # noqa: PLR2004  minutes of an hour
        return None
    return -minutes if zone[0] == "-" else minutes


def _unscaled(found: re.Match[str], scale: int) -> int:
    """Return a number times a power of ten, rounded half away from zero."""
    fraction = (found[3] or ".")[1:]
    digits = (found[2] + fraction).lstrip("0")
    shift = _exponent((found[4] or "e0")[1:]) - len(fraction) + scale
    if not digits or len(digits) + shift < 0:
        return 0
    number = int(digits)
    if shift >= 0:
        number *= 10**shift
    else:
        divisor: int = 10**-shift
        number = (2 * number + divisor) // (2 * divisor)
    return -number if found[1] else number


def _exponent(text: str) -> int:
    """Return an exponent, within bounds: those beyond them make any number zero or too large."""
    digits = text.lstrip("+-").lstrip("0") or "0"
    exponent = min(int(digits[:9]), _MOST_EXPONENT)
    return -exponent if text.startswith("-") else exponent


def single(text: str) -> float:
    """Return the nearest number of 32 bits to a number of JSON, in one step."""
    value = float(text)
    with np.errstate(all="ignore"):
        nearest = np.float32(value)
        others = [np.nextafter(nearest, np.float32(end)) for end in (-math.inf, math.inf)]
    for other in others:
        # By way of a double it would be rounded twice, which is only wrong in the middle of two.
        middle = (_finite(nearest) + _finite(other)) / 2
        if value == middle and math.isfinite(value):
            exact, tie = Decimal(text), Decimal(middle)
            if exact != tie:
                return float(min(nearest, other) if exact < tie else max(nearest, other))
    return float(nearest)


def _finite(number: np.float32) -> float:
    """Return a number, or for an infinite one the power of two that it stands for."""
    value = float(number)
    return value if math.isfinite(value) else math.copysign(2.0**128, value)


def named_path(value: str, names: str) -> str:
    """Return what errors call a part of a value, with the end of a long path."""
    if len(names) > _SHOWN_PATH:
        names = f"...{names[-_SHOWN_PATH:]}"
    return f"{value}{names}" if value else names.removeprefix(".")


def expected(column: Column, op: int) -> str:
    """Return what a value of a type begins with."""
    match op:
        case JsonOp.BOOLEAN:
            return "true or false"
        case JsonOp.INTEGER:
            return "an integer"
        case JsonOp.FLOAT32 | JsonOp.FLOAT64 | JsonOp.DECIMAL:
            return "a number"
        case JsonOp.STRUCT | JsonOp.LIST | JsonOp.MAP | JsonOp.TEXT:
            return described(column)
        case _:
            return f"{described(column)}, which is a string in JSON"


def other_zone(column: Column) -> str:
    """Return what a timestamp has that its type must not have, and what to do."""
    if column.type.tz is None:
        return "a time zone: read it as timestamp, or string"
    return "no time zone: read it as timestamp_ntz, or string"


def described(column: Column) -> str:
    """Return Spark's name of a type, with its article."""
    kind = column.type
    return {
        "struct": "an object",
        "list": "an array",
        "map": "an object",
        "decimal": f"a decimal({getattr(kind, 'precision', 0)},{getattr(kind, 'scale', 0)})",
    }.get(column.kind) or _SPARK_NAMES.get(str(kind), str(kind))


_SPARK_NAMES: Final = {
    "int8": "a tinyint",
    "int16": "a smallint",
    "int32": "an int",
    "int64": "a bigint",
    "float": "a float",
    "double": "a double",
    "string": "a string",
    "binary": "a binary",
    "date32[day]": "a date",
    "timestamp[us]": "a timestamp_ntz (2024-12-31T23:59:59.999999)",
    "timestamp[us, tz=UTC]": "a timestamp (2024-12-31T23:59:59.999999Z)",
}
