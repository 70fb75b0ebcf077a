"""Plans: how payloads of JSON become a column, as tables of small integers.

A plan is data: a compiled loop reads by it, and so does `interpreter`, its oracle in Python. Each
column has a row of numbers:

| `JsonOp` | numbers |
|---|---|
| `STRUCT` | its first field, how many there are, the first place of its names, their mask |
| `LIST` `MAP` | |
| `BOOLEAN` `FLOAT32` `FLOAT64` `TEXT` `BINARY` `DATE` | |
| `INTEGER` | its bits |
| `DECIMAL` | the digits, and those behind the point |
| `TIMESTAMP` | whether it has a time zone |

A field has the slot of its column, the offset and the length of its name among the constants, and
whether the name is the same between quotation marks. The fields of a struct are found by the hashes
of their names, in a table with a place for each hash behind the mask and -1 in places without a
field; a place that is taken sends to the next one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_kafka_sink.formats.json.types import column_of

if TYPE_CHECKING:
    from spark_kafka_sink.formats.columnar.columns import Column

#: Deeper objects and arrays are refused, and numbers of more characters, as by Spark's parser.
MOST_DEPTH: Final = 1000
MOST_CHARACTERS: Final = 1000
#: What `from_json` and `to_json` have for numbers that are not finite, and Spark's other words.
NOT_FINITE: Final = {
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "+Infinity": float("inf"),
    "INF": float("inf"),
    "+INF": float("inf"),
    "-Infinity": float("-inf"),
    "-INF": float("-inf"),
}
#: How many numbers a column has, and a field.
COLUMN_WIDTH: Final = 5
FIELD_WIDTH: Final = 4
#: For the hashes of names, which begin with the first number.
HASH_START: Final = 0x811C9DC5
HASH_FACTOR: Final = 0x01000193
HASH_MASK: Final = 0xFFFFFFFF


class JsonOp(IntEnum):
    """What the value of a column is in JSON; see the table of this module."""

    STRUCT = 0
    LIST = 1
    MAP = 2
    BOOLEAN = 3
    INTEGER = 4
    FLOAT32 = 5
    FLOAT64 = 6
    DECIMAL = 7
    TEXT = 8
    BINARY = 9
    DATE = 10
    TIMESTAMP = 11


@dataclass(frozen=True, slots=True)
class Plan:
    """How to decode payloads of one type."""

    column: Column
    #: `COLUMN_WIDTH` numbers for each column, by their slots.
    columns: tuple[int, ...]
    #: `FIELD_WIDTH` numbers for each field.
    fields: tuple[int, ...]
    #: The fields by the hashes of their names.
    places: tuple[int, ...]
    #: The names.
    constants: bytes


def make_plan(kind: Any) -> Plan:
    """Return the plan for payloads that are read as a type; raises SchemaError."""
    column = column_of(kind)
    columns: list[int] = []
    fields: list[int] = []
    places: list[int] = []
    constants = bytearray()
    for part in column.all():
        numbers = [0, 0, 0, 0]
        if part.kind == "struct":
            names = [field.name.encode() for field in part.type]
            numbers = [len(fields) // FIELD_WIDTH, len(names), len(places), 0]
            hashed = _places(names, numbers[0])
            numbers[3] = len(hashed) - 1
            places += hashed
            for child, name in zip(part.children, names, strict=True):
                fields += (child.slot, len(constants), len(name), _is_plain(name))
                constants += name
        elif pa.types.is_integer(part.type):
            numbers[0] = part.type.bit_width
        elif part.kind == "decimal":
            numbers[:2] = part.type.precision, part.type.scale
        elif pa.types.is_timestamp(part.type):
            numbers[0] = part.type.tz is not None
        columns += (_op(part), *numbers)
    return Plan(column, tuple(columns), tuple(fields), tuple(places), bytes(constants))


def _op(column: Column) -> JsonOp:
    kind = column.type
    if column.kind in {"struct", "list", "map", "boolean", "decimal"}:
        return JsonOp[column.kind.upper()]
    if pa.types.is_integer(kind):
        return JsonOp.INTEGER
    if pa.types.is_floating(kind):
        return JsonOp.FLOAT32 if kind == pa.float32() else JsonOp.FLOAT64
    if pa.types.is_timestamp(kind):
        return JsonOp.TIMESTAMP
    if pa.types.is_date(kind):
        return JsonOp.DATE
    return JsonOp.TEXT if kind == pa.string() else JsonOp.BINARY


def _is_plain(name: bytes) -> bool:
    """Return whether a name is the same between quotation marks."""
    return not any(byte < 0x20 or byte in b'"\\' for byte in name)  # noqa: PLR2004  the controls


def name_hash(name: bytes) -> int:
    """Return the hash of a name (FNV-1a)."""
    value = HASH_START
    for byte in name:
        value = ((value ^ byte) * HASH_FACTOR) & HASH_MASK
    return value


def _places(names: list[bytes], first: int) -> list[int]:
    size = 1
    while size < 2 * len(names):
        size *= 2
    places = [-1] * size
    for number, name in enumerate(names):
        place = name_hash(name) & (size - 1)
        while places[place] >= 0:
            place = (place + 1) & (size - 1)
        places[place] = first + number
    return places
