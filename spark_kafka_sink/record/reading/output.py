"""The output of a decoder: reused buffers that the kernel writes to, and their record batches."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

import numpy as np
import pyarrow as pa

from spark_kafka_sink.record.kernel.decode_state import COPY_SLACK, FIELD

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

_FIRST_DATA_BYTES: Final = 64 * 1024
_FIRST_HEADERS: Final = 1024
_FIRST_CONSTANTS: Final = 1024
#: How many times as large an array becomes when it has to grow.
_GROWTH: Final = 4
#: More arenas than this are not kept for later use.
_MOST_IDLE: Final = 2
#: A record batch that uses less than this part of its arena is copied, so that it does not hold it.
_SMALLEST_PART: Final = 1 / 8
#: Of a row, beside its bytes: its offsets, timestamp and so on.
_BYTES_PER_ROW: Final = 24

#: The arrays of numbers for a column, one for each row.
_NUMBERS: Final = {"offset": "offsets", "timestamp": "timestamps"}
_CONSTANTS: Final = ("topic", "partition", "timestampType")


class Arena:
    """Arrays of a decoder, by name, whose sizes can grow."""

    def __init__(self, sizes: Mapping[str, tuple[int, npt.DTypeLike]]) -> None:
        self.arrays: dict[str, npt.NDArray[Any]] = {}
        self.addresses: dict[str, int] = {}
        #: The most bytes that an output has used.
        self.touched = 0
        for name, (size, dtype) in sizes.items():
            self._set(name, np.empty(size, dtype))

    def grow(self, name: str, needed: int, used: int, largest: int) -> None:
        """Make room for `needed` entries of an array; keep the `used` ones.

        So that an array seldom grows, it becomes larger than needed, up to `largest` bytes.
        """
        before = self.arrays[name]
        if needed > before.size:
            roomy = min(_GROWTH * before.size, largest // before.itemsize)
            grown = np.empty(max(needed, roomy), before.dtype)
            grown[:used] = before[:used]
            self._set(name, grown)

    def _set(self, name: str, array: npt.NDArray[Any]) -> None:
        self.arrays[name] = array
        self.addresses[name] = array.ctypes.data


class ArenaPool:
    """The arenas of one decoder that are free; arenas may return in any thread.

    The memory of an output is used again as soon as its record batch is released: to touch new
    memory for the first time costs more than to decode into it. Capacities grow with what the
    records need, so only the first outputs of a partition are copied, and memory that is not needed
    is never touched.

    `sizes` has the first sizes of the arrays, and their types. `largest` is the size in bytes of
    the largest array that is kept: only a single huge record needs more.
    """

    def __init__(self, sizes: Mapping[str, tuple[int, npt.DTypeLike]], largest: int) -> None:
        self._sizes = dict(sizes)
        self._largest = largest
        #: A full deque forgets its oldest item.
        self._idle: deque[_Return] = deque(maxlen=_MOST_IDLE)

    def take(self) -> Arena:
        """Return an idle arena, or a new one as large as those that were returned."""
        try:
            return self._idle.pop().arena
        except IndexError:
            return Arena(self._sizes)

    def lease(self, arena: Arena) -> Lease:
        """Return an object that returns the arena when it is freed; remember the arena's sizes.

        An arena that is too large is not returned.
        """
        for name, array in arena.arrays.items():
            size, dtype = self._sizes[name]
            if size < array.size and array.nbytes <= self._largest:
                self._sizes[name] = array.size, dtype
        lease = Lease(arena)
        if all(array.nbytes <= self._largest for array in arena.arrays.values()):
            lease.arena_return = _Return(lease, self._idle.append)
            lease.arena_return.arena = arena
        return lease


class Lease:
    """The use of an arena by the buffers of a record batch, which all refer to this object.

    The buffers point into the arena. When the last of them is freed, in whatever thread, the arena
    returns to its pool. No code in Python runs then: in the main thread it would take the
    KeyboardInterrupt of a Ctrl-C, which cannot be raised from there, away from whoever waits for
    the next batch (DuckDB, for instance).
    """

    __slots__ = ("__weakref__", "arena", "arena_return")

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        #: Alive as long as the lease is, whose end makes it call the pool.
        self.arena_return: _Return | None = None


class _Return(ref[Lease]):
    """An arena that is passed to a pool when its lease is freed."""

    __slots__ = ("arena",)

    arena: Arena


class Output:
    """The current output of one decoder; `task` has the fields of its kernel's state."""

    def __init__(  # noqa: PLR0917  as the decoder that makes it
        self,
        schema: pa.Schema,
        task: memoryview[int],
        topic: str,
        partition: int,
        max_rows: int,
        max_bytes: int,
    ) -> None:
        self._schema = schema
        self._task = task
        self.assign(topic, partition)
        names = schema.names
        task[FIELD["max_rows"]], task[FIELD["max_bytes"]] = max_rows, max_bytes
        task[FIELD["separates_types"]] = "timestampType" in names
        is_in_micros = "timestamp" in names and schema.field("timestamp").type.unit == "us"
        task[FIELD["timestamp_factor"]] = 1000 if is_in_micros else 1
        sizes: dict[str, tuple[int, Any]] = {
            array: (max_rows, np.int64) for name, array in _NUMBERS.items() if name in names
        }
        self._strings: list[str] = [name for name in ("key", "value") if name in names]
        for name in self._strings:
            sizes |= _string_sizes(name, max_rows)
        self._has_headers = "headers" in names
        if self._has_headers:
            self._strings += ["header_key", "header_value"]
            sizes["header_offsets"] = (max_rows + 1, np.int32)
            sizes["header_validity"] = (_bitmap_bytes(max_rows), np.uint8)
            sizes |= _string_sizes("header_key", _FIRST_HEADERS)
            sizes |= _string_sizes("header_value", _FIRST_HEADERS)
        self._offsets_names = [name for name in sizes if name.endswith("_offsets")]
        self._largest = max(max_bytes + COPY_SLACK, 8 * (max_rows + 1))
        self._pool = ArenaPool(sizes, self._largest)
        self._arena = self._pool.take()
        #: What the rows of the last record batch count, in bytes.
        self.finished_bytes = 0
        self._begin()

    def assign(self, topic: str, partition: int) -> None:
        """Set the topic and the partition of all rows from now on."""
        self._constants: dict[tuple[str, object], pa.Array[Any]] = {}
        self._constant_values: dict[str, object] = {"topic": topic, "partition": partition}

    def grow(self) -> None:
        """Make room for the next row; the table says how much it needs."""
        task, arena, largest = self._task, self._arena, self._largest
        for name in self._strings:
            needed, used = task[FIELD[f"{name}_needed"]], task[FIELD[f"{name}_used"]]
            arena.grow(f"{name}_data", needed + COPY_SLACK, used, largest)
        if self._has_headers:
            needed, used = task[FIELD["headers_needed"]], task[FIELD["headers_used"]]
            for name in ("header_key", "header_value"):
                arena.grow(f"{name}_offsets", needed + 1, used + 1, largest)
                bits, used_bits = _bitmap_bytes(needed), _bitmap_bytes(used)
                arena.grow(f"{name}_validity", bits, used_bits, largest)
        self._enter_arrays()

    def finish(self) -> pa.RecordBatch | None:
        """Return the rows as a record batch, if there are any, and begin the next output."""
        task, arena = self._task, self._arena
        rows = task[FIELD["rows"]]
        if not rows:
            return None
        self.finished_bytes = used = task[FIELD["bytes"]] + _BYTES_PER_ROW * rows
        # Halved again and again, so that a single huge output is forgotten.
        arena.touched = max((arena.touched + used) // 2, used)
        lease = self._pool.lease(arena) if used >= _SMALLEST_PART * arena.touched else None
        columns = [self._column(field, rows, lease) for field in self._schema]
        if lease is not None:
            self._arena = self._pool.take()
        self._begin()
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _begin(self) -> None:
        task = self._task
        for counter in ("rows", "bytes", "headerless", "headers_used"):
            task[FIELD[counter]] = 0
        for name in self._strings:
            task[FIELD[f"{name}_used"]] = task[FIELD[f"{name}_nulls"]] = 0
        self._enter_arrays()

    def _enter_arrays(self) -> None:
        """Write the addresses and sizes of the current arrays to the table."""
        task, arrays = self._task, self._arena.arrays
        for name, address in self._arena.addresses.items():
            task[FIELD[name]] = address
        for name in self._offsets_names:
            arrays[name][0] = 0
        for name in self._strings:
            task[FIELD[f"{name}_capacity"]] = arrays[f"{name}_data"].size - COPY_SLACK
        if self._has_headers:
            task[FIELD["headers_capacity"]] = min(
                arrays["header_key_offsets"].size - 1,
                arrays["header_value_offsets"].size - 1,
                8 * arrays["header_value_validity"].size,
            )

    def _column(self, field: Any, rows: int, lease: Lease | None) -> pa.Array[Any]:
        name, kind = field.name, field.type
        if name in _CONSTANTS:
            return self._constant(name, kind, rows)
        if name in _NUMBERS:
            numbers = self._buffer(_NUMBERS[name], 8 * rows, lease)
            return pa.Array.from_buffers(kind, rows, [None, numbers], 0)
        if name == "headers":
            return self._headers(kind, rows, lease)
        return self._strings_column(name, kind, rows, lease)

    def _strings_column(
        self, name: str, kind: Any, rows: int, lease: Lease | None
    ) -> pa.Array[Any]:
        nulls = self._task[FIELD[f"{name}_nulls"]]
        is_large = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
        return pa.Array.from_buffers(
            kind,
            rows,
            [
                self._validity(name, rows, nulls, lease),
                self._offsets(name, rows, lease, is_large=is_large),
                self._buffer(f"{name}_data", self._task[FIELD[f"{name}_used"]], lease),
            ],
            nulls,
        )

    def _headers(self, kind: Any, rows: int, lease: Lease | None) -> pa.Array[Any]:
        task = self._task
        count, nulls = task[FIELD["headers_used"]], task[FIELD["headerless"]]
        struct = kind.value_type
        parts = [
            self._strings_column(name, field.type, count, lease)
            for name, field in zip(("header_key", "header_value"), struct, strict=True)
        ]
        elements = pa.Array.from_buffers(struct, count, [None], 0, children=parts)
        offsets = self._offsets("header", rows, lease, is_large=pa.types.is_large_list(kind))
        validity = self._validity("header", rows, nulls, lease)
        return pa.Array.from_buffers(kind, rows, [validity, offsets], nulls, children=[elements])

    def _validity(self, name: str, rows: int, nulls: int, lease: Lease | None) -> Any:
        return self._buffer(f"{name}_validity", _bitmap_bytes(rows), lease) if nulls else None

    def _offsets(self, name: str, rows: int, lease: Lease | None, *, is_large: bool) -> Any:
        if is_large:
            offsets: Any = self._arena.arrays[f"{name}_offsets"][: rows + 1].astype(np.int64)
            return pa.py_buffer(offsets)
        return self._buffer(f"{name}_offsets", 4 * (rows + 1), lease)

    def _buffer(self, name: str, size: int, lease: Lease | None) -> Any:
        if lease is None:
            return pa.py_buffer(self._arena.arrays[name].view(np.uint8)[:size].tobytes())
        return pa.foreign_buffer(self._arena.addresses[name], size, lease)

    def _constant(self, name: str, kind: Any, rows: int) -> pa.Array[Any]:
        value = self._constant_values.get(name, self._task[FIELD["timestamp_type"]])
        array = self._constants.get((name, value))
        if array is None or len(array) < rows:
            size = max(_FIRST_CONSTANTS, 1 << (rows - 1).bit_length())
            array = self._constants[name, value] = pa.repeat(pa.scalar(value, kind), size)
        return array[:rows]


def _string_sizes(name: str, entries: int) -> dict[str, tuple[int, Any]]:
    return {
        f"{name}_offsets": (entries + 1, np.int32),
        f"{name}_validity": (_bitmap_bytes(entries), np.uint8),
        f"{name}_data": (_FIRST_DATA_BYTES + COPY_SLACK, np.uint8),
    }


def _bitmap_bytes(bits: int) -> int:
    return (bits + 7) // 8
