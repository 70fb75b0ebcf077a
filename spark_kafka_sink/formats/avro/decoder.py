"""Decode batches of Avro payloads into Arrow arrays, with the compiled kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from spark_kafka_sink.formats.avro.decode_kernel import (
    TASK_DTYPE,
    Shape,
    Slot,
    Status,
    decode_payloads,
)
from spark_kafka_sink.formats.avro.interpreter import Interpreter, MalformedError
from spark_kafka_sink.record.kernel.decode_state import COPY_SLACK

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from spark_kafka_sink.formats.avro.columns import Column
    from spark_kafka_sink.formats.avro.plan import Plan

#: The most bytes of an output; a batch that becomes more is given out as several.
MOST_BYTES: Final = 64 << 20
#: Bytes that a decoder adds to the buffers of texts at first.
_FEW_BYTES: Final = 1024
_OFFSET_BYTES: Final = 4
_GROWING: Final = {Status.GROW: Slot.CAPACITY, Status.GROW_BYTES: Slot.BYTES_CAPACITY}
_SHAPES: Final = {
    "null": Shape.STRUCT,
    "struct": Shape.STRUCT,
    "bytes": Shape.TEXT,
    "list": Shape.LIST,
    "map": Shape.LIST,
    "boolean": 1,
    "decimal": 16,
}


class Output(NamedTuple):
    """Rows of a batch."""

    #: The position of the first row in the batch.
    first: int
    #: A `pyarrow.Array` of the type of the plan's column.
    values: Any
    #: Why rows, by their positions in the batch, are malformed; they are null in `values`.
    malformed: dict[int, str]


class Decoder:
    """Decodes batches by one plan. Any thread may use it, also several at once."""

    def __init__(self, plan: Plan, most_bytes: int = MOST_BYTES) -> None:
        self._plan = plan
        self._most_bytes = most_bytes
        self._program = np.array(plan.program, np.int32)
        # With a byte behind it, so that it has an address.
        self._constants = np.frombuffer(plan.constants + b"\0" * COPY_SLACK, np.uint8)
        self._columns = list(_all(plan.column))
        #: What every row takes at least.
        self._row_bytes = sum(abs(_shape(column)) + column.nullable for column in self._columns) + 1

    def decode(self, payloads: Any, skipped: int = 0) -> Iterator[Output]:
        """Decode a `pyarrow.BinaryArray`, each payload behind its first `skipped` bytes.

        The outputs have all rows, in their order. Nulls remain null. Raises TypeError for an array
        of another type.
        """
        if payloads.type != pa.binary():
            raise TypeError(f"payloads are an array of binary, not {payloads.type}")
        if len(payloads) == 0:
            return
        nulls = np.ascontiguousarray(payloads.is_null().to_numpy(zero_copy_only=False), np.uint8)
        _, ends, data = payloads.buffers()
        offsets = np.frombuffer(ends, np.int32, len(nulls) + 1, payloads.offset * _OFFSET_BYTES)
        task = np.zeros(1, TASK_DTYPE)
        task["null_operation"] = self._plan.null_operation
        task["constants"] = self._constants.ctypes.data
        task["constants_end"] = self._constants.ctypes.data + self._constants.size
        task["data"], task["offsets"] = data.address, offsets.ctypes.data
        task["nulls"], task["skipped"] = nulls.ctypes.data, skipped
        task["row"], task["rows"] = 0, len(nulls)
        while task["row"][0] < len(nulls):
            yield self._output(task, payloads, offsets, nulls)

    def _output(
        self,
        task: npt.NDArray[np.void],
        payloads: Any,
        offsets: npt.NDArray[np.int32],
        nulls: npt.NDArray[np.uint8],
    ) -> Output:
        """Decode rows until they are an output, or none are left."""
        first = int(task["row"][0])
        lists = np.zeros((self._plan.lists + 1, 2), np.int64)
        rows = min(len(nulls) - first, self._most_bytes // self._row_bytes + 1)
        payload_bytes = int(offsets[first + rows] - offsets[first])
        columns = _Columns(self._columns, rows, payload_bytes)
        malformed: dict[int, str] = {}
        while status := decode_payloads(task, self._program, columns.slots, lists):
            row = int(task["row"][0])
            if status == Status.MALFORMED:
                malformed[row] = self._problem(payloads[row].as_py(), int(task["skipped"][0]))
            elif columns.grow(int(task["slot"][0]), _GROWING[status], self._most_bytes):
                continue
            elif row > first:
                break
            else:
                malformed[row] = f"it becomes more than {self._most_bytes} bytes"
            nulls[row] = 1
        return Output(first, columns.array(int(task["row"][0]) - first), malformed)

    def _problem(self, payload: bytes, skipped: int) -> str:
        """Return why a payload is malformed."""
        if len(payload) < skipped:
            return f"it has fewer than {skipped} bytes"
        try:
            Interpreter(self._plan).append(payload[skipped:])
        except MalformedError as error:
            return str(error)
        raise RuntimeError("the compiled decoder refused a payload that the interpreter accepts")


def _all(column: Column) -> Iterator[Column]:
    yield column
    for child in column.children:
        yield from _all(child)


def _shape(column: Column) -> int:
    if column.kind == "number":
        return int(column.type.bit_width // 8)
    return int(_SHAPES[column.kind])


class _Columns:
    """The buffers of an output, and the table of slots by which the kernel finds them."""

    def __init__(self, columns: list[Column], rows: int, payload_bytes: int) -> None:
        self._columns = columns
        self.slots = np.zeros((len(columns), len(Slot)), np.int64)
        texts = sum(column.kind == "bytes" for column in columns)
        self._buffers: list[dict[Slot, npt.NDArray[Any]]] = []
        for column, slot in zip(columns, self.slots, strict=True):
            slot[Slot.SHAPE] = _shape(column)
            self._buffers.append({})
            self._resize(column, Slot.CAPACITY, rows)
            if column.kind == "bytes":
                self._resize(column, Slot.BYTES_CAPACITY, payload_bytes // texts + _FEW_BYTES)

    def grow(self, slot: int, what: Slot, most_bytes: int) -> bool:
        """Extend a capacity twofold; return False if the output would become too large."""
        size = sum(len(buffer) for buffers in self._buffers for buffer in buffers.values())
        capacity = int(self.slots[slot, what])
        if size + capacity > most_bytes:
            return False
        self._resize(self._columns[slot], what, 2 * capacity + 1)
        return True

    def _resize(self, column: Column, what: Slot, capacity: int) -> None:
        row = self.slots[column.slot]
        row[what] = capacity
        sizes = {}
        if what == Slot.BYTES_CAPACITY:
            sizes[Slot.DATA] = capacity + COPY_SLACK
        else:
            if row[Slot.SHAPE] > 0:
                sizes[Slot.DATA] = capacity * int(row[Slot.SHAPE])
            if row[Slot.SHAPE] < 0:
                sizes[Slot.OFFSETS] = (capacity + 1) * _OFFSET_BYTES
            if column.nullable:
                sizes[Slot.VALIDITY] = capacity
        buffers = self._buffers[column.slot]
        for kind, size in sizes.items():
            # Offsets begin with a zero; nothing else is read before it is written.
            buffer = np.zeros(size, np.uint8) if kind == Slot.OFFSETS else np.empty(size, np.uint8)
            if kind in buffers:
                buffer[: len(buffers[kind])] = buffers[kind]
            buffers[kind] = buffer
            row[kind] = buffer.ctypes.data

    def array(self, rows: int) -> Any:
        """Return the rows as an array."""
        return self._array(self._columns[0], rows)

    def _array(self, column: Column, count: int) -> Any:
        buffers = self._buffers[column.slot]
        if column.kind == "null":
            return pa.nulls(count)
        validity = _bits(buffers[Slot.VALIDITY][:count]) if column.nullable else None
        children = [
            self._array(child, int(self.slots[child.slot, Slot.COUNT])) for child in column.children
        ]
        if column.kind == "struct":
            return pa.StructArray.from_buffers(column.type, count, [validity], children=children)
        if column.kind == "map":
            offsets = buffers[Slot.OFFSETS].view(np.int32)[: count + 1]
            buffers[Slot.OFFSETS], children = _without_repeated_keys(offsets, children)
            fields = [column.type.key_field, column.type.item_field]
            children = [pa.StructArray.from_arrays(children, fields=fields)]
        parts = [validity]
        if column.kind in {"bytes", "list", "map"}:
            parts.append(_buffer(buffers[Slot.OFFSETS]))
        if column.kind == "boolean":
            parts.append(_bits(buffers[Slot.DATA][:count]))
        elif Slot.DATA in buffers:
            parts.append(_buffer(buffers[Slot.DATA]))
        return pa.Array.from_buffers(column.type, count, parts, children=children)


def _without_repeated_keys(
    offsets: npt.NDArray[Any], entries: list[Any]
) -> tuple[npt.NDArray[Any], list[Any]]:
    """Return the offsets of maps, and their keys and values, with one entry for each key.

    As in Java's maps, the last value of a key counts. Arrow and Spark would keep all of them.
    """
    keys, values = entries
    names = keys.dictionary_encode()
    maps = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    ids = maps * max(len(names.dictionary), 1) + names.indices.to_numpy()
    _, first, last = *np.unique(ids, return_index=True), np.unique(ids[::-1], return_index=True)[1]
    if len(first) == len(ids):
        return offsets, entries
    order = np.argsort(first)
    first, last = first[order], (len(ids) - 1 - last)[order]
    counts = np.bincount(maps[first], minlength=len(offsets) - 1)
    ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return ends, [keys.take(first), values.take(last)]


def _buffer(memory: npt.NDArray[Any]) -> pa.Buffer:
    return pa.py_buffer(memory.data)


def _bits(flags: npt.NDArray[np.uint8]) -> Any:
    return _buffer(np.packbits(flags, bitorder="little"))
