"""Decode batches of payloads into Arrow arrays, with the compiled loop of a format.

An output has `MOST_BYTES` at most, counted as the values that rows take in memory, and not what is
allocated for them. The buffers grow twofold as they fill, so twice as much is allocated at most,
and some hundred bytes for each column, besides the copy of a buffer while that grows; in the end
they shrink to what is used. A row that does not fit beside those before it begins the next output,
and only a row that is too large for an output of its own is refused. The texts that say why rows
are malformed are counted nowhere: whoever decodes a batch decides how many rows it has.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import numpy as np
import pyarrow as pa

from spark_kafka_sink.formats.columnar.output_kernel import (
    NOT_BEGUN,
    Shape,
    Slot,
    Status,
    find_repeated_keys,
    forget_row,
    kept_counters,
)
from spark_kafka_sink.formats.columnar.reasons import NONE, Malformed
from spark_kafka_sink.record.kernel.decode_state import COPY_SLACK, MAX_INT64

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from spark_kafka_sink.formats.columnar.columns import Column

#: The most bytes of an output; a batch that becomes more is given out as several.
MOST_BYTES: Final = 64 << 20
#: An output must be smaller than this: its offsets have 32 bits, and its buffers grow twofold.
_TOO_MANY_BYTES: Final = 1 << 30
#: The part of an output that is allocated for fixed sizes before it is used, and again for texts.
_EXPECTED_PART: Final = 4
#: Bytes that a buffer of texts has at first: beyond what is expected, and at least.
_MORE_BYTES: Final = 1024
_FEW_BYTES: Final = 64
_OFFSET_BYTES: Final = 4
#: What a key of a map costs beside its own bytes: its places in the table that finds repeated keys.
_KEY_COST: Final = 16
#: The hashes of keys depend on it, so that payloads cannot be made of keys that collide.
_SEED: Final = int.from_bytes(os.urandom(8), "little", signed=True)
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
    #: A `pyarrow.Array` of the type of the column.
    values: Any
    #: The malformed rows, by their positions in the batch; they are null in `values`.
    malformed: Malformed


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that is being decoded, and the memory whose addresses are in the task."""

    task: npt.NDArray[np.void]
    payloads: Any
    offsets: npt.NDArray[np.int32]
    nulls: npt.NDArray[np.uint8]
    failures: npt.NDArray[np.int32]
    #: What the loop remembers of the lists or objects that a value is in.
    stack: npt.NDArray[np.int64]

    @property
    def row(self) -> int:
        """The next row."""
        return int(self.task["row"][0])


class BatchDecoder(ABC):
    """Decodes batches into one column. Any thread may use it, also several at once.

    An output has `most_bytes` at most, a number below 2^30.
    """

    #: How many numbers say where and why a payload is malformed; the first is 0 if it is not.
    failure_numbers: ClassVar[int]

    def __init__(self, column: Column, most_bytes: int = MOST_BYTES, value: str = "") -> None:
        if not 0 < most_bytes < _TOO_MANY_BYTES:
            raise ValueError(f"most_bytes is a number from 1 to 2^30 - 1, not {most_bytes}")
        self._most_bytes = most_bytes
        #: What errors call the value.
        self._value = value
        self._slots = _Slots(column)
        #: Where the counters are that are kept before each row.
        self._kept = self._slots.kept

    @abstractmethod
    def _task(self) -> tuple[npt.NDArray[np.void], npt.NDArray[np.int64]]:
        """Return a task that has the `TASK_FIELDS`, and a stack, for a batch."""

    @abstractmethod
    def _run(self, batch: Batch, slots: npt.NDArray[np.int64]) -> Status:
        """Append rows to the columns of a table until something has to be done."""

    @abstractmethod
    def _reasons(self, batch: Batch, rows: npt.NDArray[np.int64]) -> Any:
        """Return why payloads are malformed, as a `pyarrow.StringArray`."""

    def decode(
        self, payloads: Any, skipped: int = 0, *, most_reasons: int | None = None
    ) -> Iterator[Output]:
        """Decode a `pyarrow.BinaryArray`, each payload behind its first `skipped` bytes.

        The outputs have all rows, in their order. Nulls remain null. With `most_reasons`, only so
        many of the malformed rows of an output are in `malformed`, the first ones. Raises TypeError
        for an array of another type.
        """
        if payloads.type != pa.binary():
            raise TypeError(f"payloads are an array of binary, not {payloads.type}")
        if len(payloads) == 0:
            return
        nulls = np.ascontiguousarray(payloads.is_null().to_numpy(zero_copy_only=False), np.uint8)
        _, ends, data = payloads.buffers()
        offsets = np.frombuffer(ends, np.int32, len(nulls) + 1, payloads.offset * _OFFSET_BYTES)
        failures = np.zeros((len(nulls), self.failure_numbers), np.int32)
        task, stack = self._task()
        task["data"], task["offsets"] = data.address, offsets.ctypes.data
        task["nulls"], task["failures"] = nulls.ctypes.data, failures.ctypes.data
        task["skipped"], task["operation"] = skipped, NOT_BEGUN
        batch = Batch(task, payloads, offsets, nulls, failures, stack)
        while batch.row < len(nulls):
            yield self._output(batch, most_reasons)

    def _output(self, batch: Batch, most_reasons: int | None) -> Output:
        """Decode rows until they are an output, or none are left."""
        first = batch.row
        columns = self._expected_columns(batch)
        self._fill(batch, columns, len(batch.nulls), 2 * self._most_bytes)
        if batch.row == first:
            # With nothing allocated for other rows.
            columns = _Columns(self._slots, 1, _FEW_BYTES)
            self._fill(batch, columns, first + 1, MAX_INT64)
        is_too_large = False
        if batch.row == first:
            # A null, or what has become one since it is malformed, may have many columns.
            is_too_large = not batch.nulls[first]
            batch.nulls[first] = 1
            columns = _Columns(self._slots, 1, _FEW_BYTES)
            self._fill(batch, columns, first + 1, MAX_INT64, room=MAX_INT64)
        rows = np.flatnonzero(batch.failures[first : batch.row, 0])[:most_reasons] + first
        if is_too_large:
            what = f"it becomes more than {self._most_bytes} bytes"
            reason = f"{self._value}: {what}" if self._value else what
            malformed = Malformed.of(np.array([first]), reason)
        else:
            malformed = Malformed(rows, self._reasons(batch, rows)) if len(rows) else NONE
        return Output(first, columns.array(batch.row - first), malformed)

    def _expected_columns(self, batch: Batch) -> _Columns:
        """Return columns for the rest of a batch, or its beginning, if each value has one item."""
        first, part = batch.row, self._most_bytes // _EXPECTED_PART
        rows = max(1, min(len(batch.nulls) - first, part // self._slots.row_cost))
        payload_bytes = int(batch.offsets[first + rows] - batch.offsets[first])
        texts = max(1, self._slots.texts)
        text_bytes = min(payload_bytes // texts + _MORE_BYTES, part // texts)
        return _Columns(self._slots, rows, max(_FEW_BYTES, text_bytes))

    def _fill(
        self,
        batch: Batch,
        columns: _Columns,
        rows: int,
        most_allocated: int,
        room: int | None = None,
    ) -> None:
        """Decode rows until one does not fit, or none are left of so many of the batch."""
        task = batch.task
        task["rows"], task["room"] = rows, self._most_bytes if room is None else room
        task["slots"] = columns.slots.ctypes.data
        while status := self._run(batch, columns.slots):
            if status == Status.FULL:
                return
            slot, needed = int(task["slot"][0]), int(task["needed"][0])
            left = int(task["row_room"][0])
            if status == Status.GROW_BYTES:
                left -= needed - int(columns.slots[slot, Slot.BYTES])
            if left < 0 or not columns.grow(slot, _GROWING[status], needed, most_allocated):
                forget_row(columns.slots)
                task["operation"] = NOT_BEGUN
                return


class _Slots:
    """The columns of a plan by their slots, and what is the same in the slots of all outputs."""

    def __init__(self, column: Column) -> None:
        self.columns = list(column.all())
        self.table = np.zeros((len(self.columns), len(Slot)), np.int64)
        for part, slot in zip(self.columns, self.table, strict=True):
            shape = _shape(part)
            item_bytes = shape if shape >= 0 else _OFFSET_BYTES
            slot[Slot.SHAPE], slot[Slot.END] = shape, part.end
            # An item that takes no memory is counted, too: offsets count it.
            slot[Slot.COST] = max(1, item_bytes + part.nullable)
        for part in self.columns:
            if part.kind in {"list", "map"}:
                self.table[part.slot + 1 : part.end, Slot.IN_LIST] = 1
            if part.kind == "map":
                self.table[part.children[0].slot, Slot.COST] += _KEY_COST
        self.kept = kept_counters(self.table)
        self.row_cost = int(self.table[:, Slot.COST].sum())
        self.texts = sum(part.kind == "bytes" for part in self.columns)


def _shape(column: Column) -> int:
    if column.kind == "number":
        return int(column.type.bit_width // 8)
    return int(_SHAPES[column.kind])


class _Columns:
    """The buffers of an output, and the table of slots by which the kernel finds them."""

    def __init__(self, slots: _Slots, rows: int, text_bytes: int) -> None:
        self._columns = slots.columns
        self.slots = slots.table.copy()
        self._buffers: list[dict[Slot, Any]] = []
        self._allocated = 0
        for column in self._columns:
            self._buffers.append({})
            self._resize(column, Slot.CAPACITY, rows)
            if column.kind == "bytes":
                self._resize(column, Slot.BYTES_CAPACITY, text_bytes)

    def grow(self, slot: int, what: Slot, needed: int, most_allocated: int) -> bool:
        """Extend a capacity twofold or more; return False if too much would be allocated."""
        column = self._columns[slot]
        capacity = max(2 * int(self.slots[slot, what]), needed)
        sizes = self._sizes(column, what, capacity)
        added = sum(sizes.values()) - sum(self._buffers[slot][kind].size for kind in sizes)
        if self._allocated + added > most_allocated:
            return False
        self._resize(column, what, capacity)
        return True

    def _sizes(self, column: Column, what: Slot, capacity: int) -> dict[Slot, int]:
        """Return how many bytes each buffer needs for a capacity."""
        if what == Slot.BYTES_CAPACITY:
            return {Slot.DATA: capacity + COPY_SLACK}
        shape = int(self.slots[column.slot, Slot.SHAPE])
        sizes = {}
        if shape > 0:
            sizes[Slot.DATA] = capacity * shape
        if shape < 0:
            sizes[Slot.OFFSETS] = (capacity + 1) * _OFFSET_BYTES
        if column.nullable:
            sizes[Slot.VALIDITY] = capacity
        return sizes

    def _resize(self, column: Column, what: Slot, capacity: int) -> None:
        row, buffers = self.slots[column.slot], self._buffers[column.slot]
        row[what] = capacity
        for kind, size in self._sizes(column, what, capacity).items():
            if kind in buffers:
                self._allocated -= buffers[kind].size
                buffers[kind].resize(size)
            else:
                buffers[kind] = pa.allocate_buffer(size, None, resizable=True)
                if kind == Slot.OFFSETS:
                    np.frombuffer(buffers[kind], np.int32)[0] = 0
            self._allocated += size
            row[kind] = buffers[kind].address

    def array(self, rows: int) -> Any:
        """Return the rows as an array. The buffers are its own, so this can be done once."""
        return self._array(self._columns[0], rows)

    def _array(self, column: Column, count: int) -> Any:
        if column.kind == "null":
            return pa.nulls(count)
        buffers = self._buffers[column.slot]
        parts = [_bits(buffers[Slot.VALIDITY], count) if column.nullable else None]
        if column.kind == "map":
            ends, entries = self._entries(column, count)
            parts.append(ends)
            return pa.Array.from_buffers(column.type, count, parts, children=[entries])
        children = [self._array(child, self._count(child)) for child in column.children]
        if column.kind == "struct":
            return pa.StructArray.from_buffers(column.type, count, parts, children=children)
        if column.kind in {"bytes", "list"}:
            parts.append(_trimmed(buffers[Slot.OFFSETS], (count + 1) * _OFFSET_BYTES))
        if column.kind == "bytes":
            size = int(self.slots[column.slot, Slot.BYTES])
            parts.append(_trimmed(buffers[Slot.DATA], size))
        elif column.kind == "boolean":
            parts.append(_bits(buffers[Slot.DATA], count))
        elif column.kind != "list":
            size = count * int(self.slots[column.slot, Slot.SHAPE])
            parts.append(_trimmed(buffers[Slot.DATA], size))
        return pa.Array.from_buffers(column.type, count, parts, children=children)

    def _count(self, column: Column) -> int:
        return int(self.slots[column.slot, Slot.COUNT])

    def _entries(self, column: Column, count: int) -> tuple[Any, Any]:
        """Return the ends of maps, and their keys and values, with one entry for each key.

        As in Java's maps, the last value of a key counts. Arrow and Spark would keep all of them.
        """
        keys = column.children[0]
        ends = _trimmed(self._buffers[column.slot][Slot.OFFSETS], (count + 1) * _OFFSET_BYTES)
        largest = int(np.diff(np.frombuffer(ends, np.int32)).max(initial=0))
        table = np.empty(1 << (2 * largest).bit_length(), np.int32)
        # While there is slack behind the keys.
        key_slot = self.slots[keys.slot]
        where = (ends.address, count, int(key_slot[Slot.OFFSETS]), int(key_slot[Slot.DATA]), _SEED)
        distinct = None
        if find_repeated_keys(*where, table, np.empty((1, 2), np.int32), 0):
            distinct = np.empty((self._count(keys), 2), np.int32)
            ends = pa.py_buffer(np.zeros(count + 1, np.int32).data)
            distinct = distinct[: find_repeated_keys(*where, table, distinct, ends.address)]
        children = [self._array(child, self._count(child)) for child in column.children]
        if distinct is not None:
            rows = np.ascontiguousarray(distinct.T)
            children = [
                child.take(pa.array(part)) for child, part in zip(children, rows, strict=True)
            ]
        fields = [column.type.key_field, column.type.item_field]
        return ends, pa.StructArray.from_arrays(children, fields=fields)


def _trimmed(buffer: Any, size: int) -> Any:
    """Return a buffer that holds no more memory than it needs."""
    buffer.resize(size, shrink_to_fit=True)
    return buffer


def _bits(flags: Any, count: int) -> Any:
    bits = np.packbits(np.frombuffer(flags, np.uint8, count), bitorder="little")
    return pa.py_buffer(bits.data)
