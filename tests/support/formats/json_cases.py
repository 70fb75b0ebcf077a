"""Random types, and texts of JSON for them: right ones, and ones that are damaged."""

from __future__ import annotations

import base64
import json
import string
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    import random

_LEAVES = (
    pa.bool_(),
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.binary(),
    pa.date32(),
    pa.timestamp("us", tz="UTC"),
    pa.timestamp("us"),
)
_NAMES = (
    "a",
    "b",
    "id",
    "name",
    "a b",
    "é",
    'q"',
    "back\\slash",
    "x" * 9,
    "",
    "long_name_of_a_field",
)
_SPACES = ("", "", "", " ", "\n", "\t \r")
_TEXTS = ("", "a", "ab\ncd", 'q"\\', "é", "\U0001f600", "x" * 40, "tab\t", "\x01", "/", "NaN")
_NUMBERS = (
    "0",
    "-0",
    "1",
    "-1",
    "127",
    "128",
    "-128",
    "-129",
    "32767",
    "32768",
    "2147483647",
    "-2147483649",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "18446744073709551616",
    "99999999999999999999",
    "1.0",
    "1e3",
    "-1E-3",
    "0.1",
    "1e400",
    "1e-400",
    "2.2250738585072011e-308",
    "4.9e-324",
    "2.4e-324",
    "1.7976931348623158e308",
    "1.7976931348623159e308",
    "9007199254740993",
    "9007199254740992.5",
    "3.4028235e38",
    "3.4028236e38",
    "1.00000017881393432617187499",
    "1.000000178813934326171875",
    "1e-46",
    "7e-46",
    "0.005",
    "-1.005",
    "999.995",
    "12345678901234567890123456789012345678",
    "0e999999999999999999",
    "1e-999999999999999999",
    "0.000000000000000000000000000000000000001",
    "1e38",
    "01",
    "1.",
    ".5",
    "+1",
    "-",
    "1e",
    "1e+",
    "0x10",
    "1_0",
)
_MOMENTS = (
    "2024-02-29", "2023-02-29", "0000-01-01", "-0001-12-31", "+10000-01-01", "999999-12-31",
    "2024-1-2", "2024-13-01", "1970-01-01T00:00:00Z", "2024-01-02T03:04:05.123456789-18:00",
    "2024-01-02 03:04:05.1+00:30", "2024-01-02T03:04", "2024-01-02T03:04:05",
    "1969-12-31T23:59:59.9Z", "294247-01-10T04:00:54.775807Z", "294247-01-10T04:00:54.775808Z",
    "-290308-12-21T19:59:05.224192Z", "-290308-12-21T19:59:05.224191Z", "2024-01-02T24:00:00Z",
    "2024-01-02T03:04:05+18:01", "2024-01-02T03:04:05.Z", "2024-01-02T03:04:05.1234567890Z",
    "9999-12-31T23:59:59.999999",
)  # fmt: skip
_PIECES = (
    b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\\u0041", b"\\ud83d", b"\\ude00", b"null",
    b"true", b"false", b"NaN", b"0", b"-", b".", b"e", b"\x00", b"\x1f", b"\x7f", b"\x80", b"\xc3",
    b"\xed\xa0\x80", b"\xef\xbb\xbf", b" ", b"\n", b"\\n", b"\\/", b'"a":', b',"a":1', b"9" * 20,
)  # fmt: skip


def make_type(rng: random.Random, depth: int = 3) -> pa.DataType:
    """Return a struct, an array or a map of random types."""
    choice = rng.randrange(8)
    if choice == 0:
        return pa.list_(pa.field("element", _part(rng, depth)))
    if choice == 1:
        return pa.map_(pa.string(), pa.field("value", _part(rng, depth)))
    names = rng.sample(_NAMES, rng.randrange(0 if depth < 3 else 1, 6))
    return pa.struct([pa.field(name, _part(rng, depth)) for name in names])


def _part(rng: random.Random, depth: int) -> pa.DataType:
    if depth and rng.random() < 0.35:
        return make_type(rng, depth - 1)
    if rng.random() < 0.15:
        precision = rng.choice((1, 5, 18, 19, 38))
        return pa.decimal128(precision, rng.choice((0, 2, precision)) if precision > 2 else 0)
    return rng.choice(_LEAVES)


def make_text(rng: random.Random, kind: pa.DataType, *, strict: bool = False) -> str:
    """Return a text of JSON for a type, which is mostly right, or with `strict` always."""
    return "".join(_pieces(rng, kind, 0, strict=strict))


def _pieces(rng: random.Random, kind: Any, depth: int, *, strict: bool) -> list[str]:
    space = rng.choice(_SPACES)
    if depth and rng.random() < 0.1:
        return [space, "null"]
    if not strict and rng.random() < 0.01:
        kind = make_type(rng, 1)
    if pa.types.is_struct(kind):
        fields = list(kind)
        if rng.random() < 0.3:
            rng.shuffle(fields)
        members = [
            (field.name, _pieces(rng, field.type, depth + 1, strict=strict))
            for field in fields
            if rng.random() < 0.8
        ]
        if rng.random() < 0.3:
            unknown = make_type(rng, 1)
            members.append(("unknown", _pieces(rng, unknown, depth + 1, strict=True)))
        if members and rng.random() < 0.1:
            name = rng.choice(members)[0]
            again = kind.field(name).type if name in kind.names else pa.int64()
            members.append((name, _pieces(rng, again, depth + 1, strict=strict)))
        return _object(rng, members)
    if pa.types.is_list(kind):
        items = [
            _pieces(rng, kind.value_type, depth + 1, strict=strict)
            for _ in range(rng.choice((0, 1, 2, 5)))
        ]
        return [space, "[", ",".join("".join(item) for item in items), rng.choice(_SPACES), "]"]
    if pa.types.is_map(kind):
        members = [
            (rng.choice(_TEXTS), _pieces(rng, kind.item_type, depth + 1, strict=strict))
            for _ in range(rng.choice((0, 1, 2, 5)))
        ]
        return _object(rng, members)
    return [space, _leaf(rng, kind, strict=strict), rng.choice(_SPACES)]


def _object(rng: random.Random, members: list[tuple[str, list[str]]]) -> list[str]:
    texts = [
        f"{_quoted(rng, name)}{rng.choice(_SPACES)}:{''.join(value)}" for name, value in members
    ]
    return [
        "{",
        rng.choice(_SPACES),
        f"{rng.choice(_SPACES)},{rng.choice(_SPACES)}".join(texts),
        "}",
    ]


def _quoted(rng: random.Random, text: str) -> str:
    return json.dumps(text, ensure_ascii=rng.random() < 0.3)


def _leaf(  # noqa: PLR0911  one for each type
    rng: random.Random, kind: Any, *, strict: bool
) -> str:
    if not strict and rng.random() < 0.1:
        word = rng.choice((*_NUMBERS, *_MOMENTS))
        return word if rng.random() < 0.5 else _quoted(rng, word)
    if pa.types.is_boolean(kind):
        return rng.choice(("true", "false"))
    if pa.types.is_integer(kind):
        return str(rng.getrandbits(kind.bit_width) - (1 << (kind.bit_width - 1)))
    if pa.types.is_floating(kind):
        if rng.random() < 0.1:
            return f'"{rng.choice(("NaN", "Infinity", "-Infinity"))}"'
        digits = "".join(rng.choices(string.digits, k=rng.choice((1, 5, 17, 25))))
        exponent = rng.randrange(-40, 36) if kind == pa.float32() else rng.randrange(-330, 300)
        return f"{rng.choice(('', '-'))}{rng.randrange(10)}.{digits}e{exponent}"
    if pa.types.is_decimal(kind):
        number = rng.randrange(10 ** rng.randrange(1, kind.precision + 1))
        text = str(number).rjust(kind.scale + 1, "0")
        text = (
            f"{text[: len(text) - kind.scale]}.{text[len(text) - kind.scale :]}"
            if kind.scale
            else text
        )
        text = f"{rng.choice(('', '-'))}{text}"
        return text if rng.random() < 0.8 else f'"{text}"'
    if pa.types.is_date(kind):
        return f'"{_day(rng)}"'
    if pa.types.is_timestamp(kind):
        zone = rng.choice(("Z", "+01:30", "-18:00")) if kind.tz else ""
        clock = f"{rng.randrange(24):02}:{rng.randrange(60):02}:{rng.randrange(60):02}"
        fraction = rng.choice(("", ".5", ".123", ".123456", ".123456789"))
        return f'"{_day(rng)}{rng.choice("T ")}{clock}{fraction}{zone}"'
    if pa.types.is_binary(kind):
        return json.dumps(base64.b64encode(rng.randbytes(rng.randrange(8))).decode())
    return _quoted(rng, rng.choice(_TEXTS))


def _day(rng: random.Random) -> str:
    return f"{rng.randrange(1, 10000):04}-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}"


def damage(rng: random.Random, payload: bytes) -> bytes:
    """Return a payload with other bytes in some places, or without a part."""
    data = bytearray(payload)
    for _ in range(rng.randint(1, 3)):
        position = rng.randrange(len(data) + 1)
        match rng.randrange(6):
            case 0:
                del data[position:]
            case 1:
                data[position:position] = rng.choice(_PIECES)
            case 2:
                del data[position : position + rng.randint(1, 4)]
            case 3 if position < len(data):
                data[position] ^= 1 << rng.randrange(8)
            case 4:
                data[position : position + 1] = rng.choice(_PIECES)
            case 5:
                begin = rng.randrange(len(data) + 1)
                data[position:position] = data[begin : begin + rng.randrange(20)]
    return bytes(data)
