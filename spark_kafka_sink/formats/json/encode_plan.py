"""Plans for encoding: how rows of Arrow become JSON, as a program of small integers.

The texts are those of Spark's `to_json` with its default options. What has no such text, or one
that says something else, is refused: intervals, times of the day, and maps whose keys are neither
strings nor integers nor booleans (`to_json` writes a date as the number of its day).

Each operation has five numbers:

| operation | numbers | effect |
|---|---|---|
| `OPEN` `CLOSE` | | write a brace |
| `FIELD` | slot, target, offset, length | write a comma and a name; or go to `target` for a null |
| `CONSTANT` | offset, length | write a constant |
| `ITEMS` | slot, end, whether it is a map | write a bracket; go behind the list if it is empty |
| `ITEM` | slot, target, offset, length | go on; or for a null write a constant, go to `target` |
| `KEY` | slot | fail for a null |
| `ITEMS_END` | slot, begin, whether it is a map | write a comma and go to `begin`, or a bracket |
| `INT32` `INT64` `BOOLEAN` `FLOAT32` `FLOAT64` | slot | write a value |
| `DECIMAL` | slot, scale | write a number |
| `TEXT` `BINARY` | slot | write a string |
| `DATE` | slot | write a date |
| `TIMESTAMP` | slot, units of a second, whether it has a time zone | write a timestamp |
| `END` | | the payload is complete |
"""

from __future__ import annotations

import json
import re
from enum import IntEnum
from typing import Any, Final, NamedTuple

import pyarrow as pa

from spark_kafka_sink.display import shortened
from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.columnar.columns import MOST_COLUMNS
from spark_kafka_sink.formats.columnar.sources import (
    EncodePlan,
    PlanBuilder,
    Source,
    Storage,
    is_any_binary,
    is_any_list,
    is_any_string,
    is_direct,
    stored_bytes,
    value_type,
)
from spark_kafka_sink.formats.json.types import MOST_LEVELS

#: How many numbers an operation has.
WIDTH: Final = 5


class EncodeOp(IntEnum):
    """What an operation does; see the table of this module."""

    END = 0
    OPEN = 1
    CLOSE = 2
    FIELD = 3
    CONSTANT = 4
    ITEMS = 5
    ITEM = 6
    KEY = 7
    ITEMS_END = 8
    INT32 = 9
    INT64 = 10
    BOOLEAN = 11
    FLOAT32 = 12
    FLOAT64 = 13
    DECIMAL = 14
    TEXT = 15
    BINARY = 16
    DATE = 17
    TIMESTAMP = 18


#: What an operation writes, in bytes: only the memory at first allocated depends on it.
_USUAL_BYTES: Final = {
    EncodeOp.OPEN: 1,
    EncodeOp.CLOSE: 1,
    EncodeOp.ITEMS: 8,
    EncodeOp.INT32: 6,
    EncodeOp.INT64: 10,
    EncodeOp.BOOLEAN: 5,
    EncodeOp.FLOAT32: 10,
    EncodeOp.FLOAT64: 18,
    EncodeOp.DECIMAL: 10,
    EncodeOp.TEXT: 2,
    EncodeOp.BINARY: 12,
    EncodeOp.DATE: 12,
    EncodeOp.TIMESTAMP: 26,
}
_UNITS: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_NULL: Final = b"null"


class _Leaf(NamedTuple):
    """How values without parts are written: the operation, and the type that the kernel reads."""

    op: EncodeOp
    storage: Storage
    stored: Any
    second: int = 0
    third: int = 0


def make_encode_plan(arrow_type: Any, column: str = "value") -> EncodePlan:
    """Return the plan for arrays of a `pyarrow.DataType`; `column` is their name in errors.

    Raises `SchemaError` if `to_json` does not have all values of the type.
    """
    compiler = _Compiler()
    kind = value_type(arrow_type)
    if not (pa.types.is_struct(kind) or pa.types.is_map(kind) or is_any_list(kind)):
        raise SchemaError(
            f"JSON: column {column!r} is {arrow_type}; to_json takes a struct, an array or a map"
        )
    source = compiler.value(arrow_type, column, 0)
    compiler.emit(EncodeOp.END)
    return compiler.plan(arrow_type, source)


def quoted(text: str) -> bytes:
    """Return a string as Jackson writes it."""
    return (
        re.sub(
            r"\\u[0-9a-f]{4}",
            lambda found: "\\u" + found[0][2:].upper(),
            # A backslash before the letter u is itself escaped, so that this finds controls only.
            json.dumps(text, ensure_ascii=False).replace("\\\\", "\0"),
        )
        .replace("\0", "\\\\")
        .encode()
    )


class _Compiler(PlanBuilder):
    def __init__(self) -> None:
        super().__init__(WIDTH)

    def emit(self, op: EncodeOp, *numbers: int) -> int:
        """Append an operation; return its number."""
        if not self._lists:
            self.row_bytes += _USUAL_BYTES.get(op, 0)
            if op in {EncodeOp.FIELD, EncodeOp.ITEM}:
                self.row_bytes += numbers[3] + 1
            elif op == EncodeOp.CONSTANT:
                self.row_bytes += numbers[1]
        self.program += (op, *numbers, *(0,) * (WIDTH - 1 - len(numbers)))
        return self._next() - 1

    def value(self, arrow_type: Any, path: str, levels: int) -> Source:
        """Add what writes the values of a column that are not null."""
        if self._slots >= MOST_COLUMNS:
            raise SchemaError(f"JSON: the type of {path!r} has more than {MOST_COLUMNS} columns")
        if levels > MOST_LEVELS:
            raise SchemaError(f"JSON: {shortened(path)!r} is in more than {MOST_LEVELS} types")
        slot = self._slots
        self._slots += 1
        kind = value_type(arrow_type)
        if pa.types.is_struct(kind):
            source = self._struct(slot, arrow_type, path, levels)
        elif is_any_list(kind):
            source = self._list(slot, arrow_type, path, levels)
        elif pa.types.is_map(kind):
            source = self._map(slot, arrow_type, path, levels)
        else:
            leaf = _leaf(kind)
            if leaf is None:
                raise SchemaError(
                    f"JSON: column {path!r} is {arrow_type}, which is not written as JSON: cast "
                    "it, to a string for example"
                )
            self.emit(leaf.op, slot, leaf.second, leaf.third)
            source = self._source(slot, path, arrow_type, leaf.storage, leaf.stored)
        return source

    def _aim(self, operation: int) -> None:
        """Set the target of an operation: the next one."""
        self.program[operation * WIDTH + 2] = self._next()

    def _constant(self, data: bytes) -> tuple[int, int]:
        self.constants += data
        return len(self.constants) - len(data), len(data)

    def _source(  # noqa: PLR0917  as the fields of a source
        self,
        slot: int,
        path: str,
        arrow_type: Any,
        storage: Storage,
        stored: Any = None,
        children: tuple[Source, ...] = (),
        positions: tuple[int, ...] = (),
    ) -> Source:
        cast = None if stored is None or stored == value_type(arrow_type) else stored
        source = Source(
            slot,
            path,
            arrow_type,
            "JSON",
            storage,
            cast=cast,
            needs_check=not is_direct(arrow_type, storage, cast),
            children=children,
            positions=positions,
        )
        self.sources.append(source)
        return source

    def _struct(self, slot: int, arrow_type: Any, path: str, levels: int) -> Source:
        kind = value_type(arrow_type)
        self.emit(EncodeOp.OPEN)
        children: dict[int, Source] = {}
        seen: set[str] = set()
        for position, field in enumerate(kind):
            if field.name in seen:
                raise SchemaError(
                    f"JSON: column {path!r} has two columns {field.name!r}: drop or rename one of "
                    "them"
                )
            seen.add(field.name)
            if pa.types.is_null(value_type(field.type)):
                continue  # Nulls are left out.
            name = self._constant(quoted(field.name) + b":")
            begin = self.emit(EncodeOp.FIELD, self._slots, 0, *name)
            children[position] = self.value(field.type, f"{path}.{field.name}", levels + 1)
            self._aim(begin)
        self.emit(EncodeOp.CLOSE)
        return self._source(
            slot,
            path,
            arrow_type,
            "struct",
            children=tuple(children.values()),
            positions=tuple(children),
        )

    def _item(self, arrow_type: Any, path: str, levels: int) -> Source:
        """Add what writes an item of a list, or a value of a map, which may be null."""
        if pa.types.is_null(value_type(arrow_type)):
            self.emit(EncodeOp.CONSTANT, *self._constant(_NULL))
            source = self._source(self._slots, path, arrow_type, "null")
            self._slots += 1
            return source
        begin = self.emit(EncodeOp.ITEM, self._slots, 0, *self._constant(_NULL))
        source = self.value(arrow_type, path, levels + 1)
        self._aim(begin)
        return source

    def _list(self, slot: int, arrow_type: Any, path: str, levels: int) -> Source:
        begin = self._begin(slot, is_map=False)
        item = self._item(value_type(arrow_type).value_type, f"{path}[]", levels)
        self._end(slot, begin, is_map=False)
        return self._source(slot, path, arrow_type, "list", children=(item,))

    def _map(self, slot: int, arrow_type: Any, path: str, levels: int) -> Source:
        kind = value_type(arrow_type)
        key_kind = value_type(kind.key_type)
        is_text = is_any_string(key_kind)
        if not (is_text or pa.types.is_integer(key_kind) or pa.types.is_boolean(key_kind)):
            raise SchemaError(
                f"JSON: column {path!r} is a map with keys of {kind.key_type}, which are not "
                "written as names: cast them to strings"
            )
        begin = self._begin(slot, is_map=True)
        self.emit(EncodeOp.KEY, self._slots)
        if not is_text:
            self.emit(EncodeOp.CONSTANT, *self._constant(b'"'))
        key = self.value(kind.key_type, f"{path}{{}}", levels + 1)
        self.emit(EncodeOp.CONSTANT, *self._constant(b":" if is_text else b'":'))
        item = self._item(kind.item_type, f"{path}{{}}", levels)
        self._end(slot, begin, is_map=True)
        return self._source(slot, path, arrow_type, "list", children=(key, item))

    def _begin(self, slot: int, *, is_map: bool) -> int:
        begin = self.emit(EncodeOp.ITEMS, slot, 0, is_map)
        self._lists += 1
        self.most_lists = max(self.most_lists, self._lists)
        return begin

    def _end(self, slot: int, begin: int, *, is_map: bool) -> None:
        self.emit(EncodeOp.ITEMS_END, slot, begin + 1, is_map)
        self._lists -= 1
        self._aim(begin)


def _leaf(kind: Any) -> _Leaf | None:  # noqa: C901, PLR0911  one for each kind of type
    """Return how values of a type are written; None if they cannot."""
    if pa.types.is_boolean(kind):
        return _Leaf(EncodeOp.BOOLEAN, "bits", kind)
    if kind == pa.int32():
        return _Leaf(EncodeOp.INT32, "numbers", kind)
    if pa.types.is_integer(kind) and kind != pa.uint64():
        return _Leaf(EncodeOp.INT64, "numbers", pa.int64())
    if pa.types.is_floating(kind):
        if kind == pa.float64():
            return _Leaf(EncodeOp.FLOAT64, "numbers", kind)
        return _Leaf(EncodeOp.FLOAT32, "numbers", pa.float32())
    if pa.types.is_decimal(kind) and not pa.types.is_decimal256(kind) and kind.scale >= 0:
        stored = pa.decimal128(kind.precision, kind.scale)
        return _Leaf(EncodeOp.DECIMAL, "numbers", stored, kind.scale)
    if is_any_string(kind):
        return _Leaf(EncodeOp.TEXT, "bytes", stored_bytes(kind))
    if is_any_binary(kind):
        return _Leaf(EncodeOp.BINARY, "bytes", stored_bytes(kind))
    if pa.types.is_date(kind):
        return _Leaf(EncodeOp.DATE, "numbers", pa.date32())
    if pa.types.is_timestamp(kind):
        return _Leaf(EncodeOp.TIMESTAMP, "numbers", kind, _UNITS[kind.unit], kind.tz is not None)
    return None
