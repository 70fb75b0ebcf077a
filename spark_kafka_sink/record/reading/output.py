"""The output of a decoder: the buffers that the kernel writes to, and their record batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from spark_kafka_sink.record.kernel.decode_state import COPY_SLACK, FIELD
from spark_kafka_sink.record.reading.arena import ArenaPool

if TYPE_CHECKING:
    from spark_kafka_sink.record.reading.arena import Lease

_FIRST_DATA_BYTES: Final = 64 * 1024
_FIRST_HEADERS: Final = 1024
_FIRST_CONSTANTS: Final = 1024
#: A record batch that uses less than this part of its arena is copied, so that it does not hold it.
_SMALLEST_PART: Final = 1 / 8
#: Of a row, beside its bytes: its offsets, timestamp and so on.
_BYTES_PER_ROW: Final = 24

#: The arrays of numbers for a column, one for each row.
_NUMBERS: Final = {"offset": "offsets", "timestamp": "timestamps"}
_CONSTANTS: Final = ("topic", "partition", "timestampType")


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
