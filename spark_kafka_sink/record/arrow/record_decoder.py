"""Decoding of a partition's record batches into Arrow (Kafka's `CompletedFetch`).

Malformed bytes raise nothing but CorruptRecordError, which names the topic, the partition and the
offset. The checks are those of `record.decode`. Rows are gathered over batches and answers, and
returned as record batches of bounded size. The kernels write them to buffers that are used again
once nothing refers to them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

import numpy as np
import pyarrow as pa

from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.model import DEFAULT_MAX_UNCOMPRESSED_BYTES
from spark_kafka_sink.record.arrow.schema import check_schema
from spark_kafka_sink.record.compression import (
    CompressionType,
    DecompressedTooLargeError,
    decompress,
)
from spark_kafka_sink.record.kernel.decode_kernel import decode_batches, index_batches
from spark_kafka_sink.record.kernel.decode_state import (
    BYTES_PER_HEADER,
    COPY_SLACK,
    DECODER_DTYPE,
    FIELD,
    SCRATCH_BYTES,
    DecodeStatus,
    Stage,
)
from spark_kafka_sink.record.kernel.kernel_unpack import UNPACK_SLACK
from spark_kafka_sink.record.record_batch import RECORD_BATCH_OVERHEAD, check_crc

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    import numpy.typing as npt
    from typing_extensions import Buffer

    from spark_kafka_sink.record.columns import UInt8Array


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


DEFAULT_MAX_ROWS: Final = 16_384
DEFAULT_MAX_BYTES: Final = 32 * 1024 * 1024
#: Arrow's offsets within a record batch have 32 bits.
_MOST_BYTES: Final = 2**30
_COMPRESSION_CODEC_MASK: Final = 0x07
_MAGIC_OFFSET: Final = 16
_LAST_OLD_FORMAT: Final = 1
#: In messages; the reader's configuration defines it.
_LIMIT_SETTING: Final = "max.uncompressed.batch.bytes"

_CAUSES: Final = {
    DecodeStatus.BAD_LENGTH: "the length of the record batch is wrong",
    DecodeStatus.BAD_COMPRESSION: "the record batch has an unknown compression",
    DecodeStatus.BAD_RECORD_COUNT: "the records of the batch do not fit into its offsets",
    DecodeStatus.OFFSET_OVERFLOW: "the offsets of the record batch do not fit into 64 bits",
    DecodeStatus.BAD_CHECKSUM: "the record batch has a wrong checksum",
    DecodeStatus.BAD_VARINT: "a variable-length number is truncated or too large",
    DecodeStatus.BAD_RECORD_LENGTH: "a record does not fit into its batch",
    DecodeStatus.BAD_OFFSET_DELTA: "the offsets of the records do not rise within their batch",
    DecodeStatus.BAD_FIELD_LENGTH: "a field does not fit into its record",
    DecodeStatus.BAD_HEADER_COUNT: "the headers do not fit into their record",
    DecodeStatus.NULL_HEADER_KEY: "the key of a header is null",
    DecodeStatus.TRAILING_FIELD_BYTES: "a record is longer than its fields",
    DecodeStatus.TRAILING_BYTES: "there are bytes after the last record of a batch",
    DecodeStatus.BAD_MARKER: "the control record is not a transaction marker",
    DecodeStatus.TIMESTAMP_OVERFLOW: "the timestamp does not fit into 64 bits in its unit. To "
    "read the record nevertheless, leave the column 'timestamp' out",
    DecodeStatus.HEADERS_TOO_LARGE: "the keys of the record's headers are too large for Arrow. To "
    "read the record nevertheless, leave the column 'headers' out",
    DecodeStatus.TOO_MANY_HEADERS: "the record has too many headers to hold them in memory. To "
    f"read the record nevertheless, raise {_LIMIT_SETTING}, at {BYTES_PER_HEADER} bytes for each "
    "header, or leave the column 'headers' out",
}


@dataclass(frozen=True, slots=True)
class BatchIndex:
    """The complete batches at the start of an answer."""

    #: The offset after the last complete batch; without one, the position that was asked for.
    next_offset: int
    batch_count: int
    #: The number of bytes of the complete batches.
    size: int
    #: The leader epoch of the last complete batch; -1 if it is unknown.
    leader_epoch: int


def memory_limit(max_uncompressed_bytes: int) -> int:
    """Return how many bytes records may take in memory at once, unless a single one is larger.

    A lower setting limits the batches, not the records in memory.
    """
    return max(max_uncompressed_bytes, DEFAULT_MAX_UNCOMPRESSED_BYTES)


class RecordDecoder:
    """Decodes the records of one partition; not thread-safe.

    `schema` selects the columns: see `record.arrow.schema`. A record batch has at most `max_rows`
    rows and about `max_bytes` bytes, or a single row that is larger. A batch of Kafka's that
    decompresses to more than `max_uncompressed_bytes` is refused, and so is a record whose headers
    take more than `memory_limit`.
    """

    def __init__(
        self,
        schema: pa.Schema,
        topic: str,
        partition: int,
        *,
        check_crcs: bool = True,
        max_rows: int = DEFAULT_MAX_ROWS,
        max_bytes: int = DEFAULT_MAX_BYTES,
        max_uncompressed_bytes: int = DEFAULT_MAX_UNCOMPRESSED_BYTES,
    ) -> None:
        """Raise SchemaError if records do not have such columns."""
        check_schema(schema)
        if max_rows < 1 or not 0 < max_bytes <= _MOST_BYTES:
            raise ValueError(f"max_rows must be positive, and max_bytes from 1 to {_MOST_BYTES}")
        self._topic = topic
        self._partition = partition
        self._max_uncompressed_bytes = max_uncompressed_bytes
        self._table = np.zeros(1, DECODER_DTYPE)
        #: The same memory: numbers in the order of `FIELD`.
        numbers: Any = self._table.view(np.int64)
        self._task = memoryview(numbers)
        self._task[FIELD["check_crcs"]] = check_crcs
        capacity = min(SCRATCH_BYTES, max_uncompressed_bytes)
        self._scratch = np.empty(capacity + UNPACK_SLACK, np.uint8)
        self._task[FIELD["scratch"]] = self._scratch.ctypes.data
        self._task[FIELD["scratch_capacity"]] = capacity
        self._task[FIELD["max_header_bytes"]] = memory_limit(max_uncompressed_bytes)
        self._output = Output(schema, self._task, topic, partition, max_rows, max_bytes)

    def index(self, data: Buffer, position: int) -> BatchIndex:
        """Return the complete batches of an answer; a last one that is cut off is left out.

        `position` is the offset that was asked for. Raises CorruptRecordError if a batch has a
        wrong header; checksums are not checked yet.
        """
        index, error = self.index_intact(data, position)
        if error is not None:
            raise error
        return index

    def index_intact(
        self, data: Buffer, position: int
    ) -> tuple[BatchIndex, CorruptRecordError | None]:
        """Return the batches before the first one with a wrong header, and the error if any is."""
        array = _as_array(data)
        status, batch_count, size, last_offset, leader_epoch = index_batches(array)
        error = None
        if status is not DecodeStatus.DONE:
            offset = int.from_bytes(array[size : size + 8].tobytes(), "big", signed=True)
            is_format = status is DecodeStatus.BAD_FORMAT
            cause = _format(int(array[size + _MAGIC_OFFSET])) if is_format else _CAUSES[status]
            error = self._corrupt(offset, cause)
        next_offset = max(position, last_offset + 1) if batch_count else position
        return BatchIndex(next_offset, batch_count, size, leader_epoch), error

    def decode(
        self,
        data: Buffer,
        index: BatchIndex,
        *,
        start: int,
        end: int,
        aborted: Sequence[tuple[int, int]] = (),
    ) -> Generator[pa.RecordBatch]:
        """Decode the records from offset `start` to `end`, exclusive; yield full batches.

        Control batches are skipped. So are the batches of aborted transactions: with
        `read_committed`, `aborted` has the producer id and the first offset of each, as the answer
        lists them.

        Raises CorruptRecordError. The rows before the corrupt record remain, for `flush`.
        """
        view = memoryview(data).cast("B")
        array = _as_array(view)
        if index.size > array.size:
            raise ValueError("the index belongs to another answer")
        task = self._task
        task[FIELD["aborted_count"]] = task[FIELD["next_aborted"]] = 0
        transactions = _AbortedTransactions(task, aborted) if aborted else None
        task[FIELD["data"]], task[FIELD["size"]], task[FIELD["position"]] = (
            array.ctypes.data,
            index.size,
            0,
        )
        task[FIELD["start"]], task[FIELD["end"]] = start, end
        task[FIELD["stage"]] = Stage.NOTHING
        payload: pa.Buffer | None = None
        while (status := decode_batches(self._table)) is not DecodeStatus.DONE:
            if status is DecodeStatus.FULL:
                batch = self._output.finish()
                if batch is not None:
                    yield batch
            elif status is DecodeStatus.GROW:
                self._output.grow()
            elif status is DecodeStatus.PREPARE:
                payload = self._prepare(view)
            else:
                raise self._error(status, view)
        # Until here, their addresses are in the table.
        del payload, transactions

    @property
    def finished_bytes(self) -> int:
        """What the rows of the last record batch take as objects, roughly."""
        return self._output.finished_bytes

    @property
    def failed_offset(self) -> int:
        """The offset of the record or batch at which `decode` has raised an error."""
        task = self._task
        return int(task[FIELD["base_offset"]] + task[FIELD["last_delta"]] + 1)

    def assign(self, topic: str, partition: int) -> None:
        """Decode answers of another partition from now on; nothing may be left to flush."""
        if (topic, partition) != (self._topic, self._partition):
            self._topic, self._partition = topic, partition
            self._output.assign(topic, partition)

    def flush(self) -> pa.RecordBatch | None:
        """Return the rows gathered so far; None if there are none."""
        return self._output.finish()

    def _prepare(self, data: memoryview) -> pa.Buffer | None:
        """Check and decompress the batch at the position; return the payload if it is new."""
        task = self._task
        position = task[FIELD["position"]]
        batch = data[position : position + task[FIELD["batch_size"]]]
        payload = None
        try:
            if not task[FIELD["crc_checked"]]:
                check_crc(batch)
            compression = CompressionType(task[FIELD["attributes"]] & _COMPRESSION_CODEC_MASK)
            if compression is not CompressionType.NONE and not task[FIELD["skipped"]]:
                content = batch[RECORD_BATCH_OVERHEAD:]
                payload = pa.py_buffer(
                    decompress(compression, content, self._max_uncompressed_bytes)
                )
                task[FIELD["records"]] = payload.address
                task[FIELD["records_end"]] = payload.address + payload.size
        except DecompressedTooLargeError as error:
            raise self._corrupt(
                task[FIELD["base_offset"]], f"{error}: raise {_LIMIT_SETTING} to read it"
            ) from error
        except CorruptRecordError as error:
            raise self._corrupt(task[FIELD["base_offset"]], str(error)) from error
        task[FIELD["stage"]] = Stage.PREPARED
        return payload

    def _error(self, status: DecodeStatus, data: memoryview) -> CorruptRecordError:
        task = self._task
        if status is DecodeStatus.BAD_FORMAT:
            cause = _format(data[task[FIELD["position"]] + _MAGIC_OFFSET])
        else:
            cause = _CAUSES[status]
        return self._corrupt(self.failed_offset, cause)

    def _corrupt(self, offset: int, cause: str) -> CorruptRecordError:
        return CorruptRecordError(
            f"topic {self._topic!r}, partition {self._partition}, offset {offset}: {cause}"
        )


class _AbortedTransactions:
    """The aborted transactions of an answer, in arrays whose addresses are in the table."""

    def __init__(self, task: Any, aborted: Sequence[tuple[int, int]]) -> None:
        numbers = np.array(sorted(aborted, key=lambda entry: entry[1]), np.int64)
        self._offsets = np.ascontiguousarray(numbers[:, 1])
        self._producers, indexes = np.unique(numbers[:, 0], return_inverse=True)
        self._indexes = indexes.astype(np.int64)
        self._is_aborting = np.zeros(self._producers.size, np.uint8)
        task[FIELD["aborted_offsets"]] = self._offsets.ctypes.data
        task[FIELD["aborted_producers"]] = self._indexes.ctypes.data
        task[FIELD["aborted_count"]] = self._offsets.size
        task[FIELD["producers"]] = self._producers.ctypes.data
        task[FIELD["producer_count"]] = self._producers.size
        task[FIELD["is_aborting"]] = self._is_aborting.ctypes.data


def _as_array(data: Buffer) -> UInt8Array:
    return np.frombuffer(memoryview(data), np.uint8)


def _format(magic: int) -> str:
    if magic > _LAST_OLD_FORMAT:
        return f"the record batch has the unknown format {magic}"
    return (
        f"the records have format {magic}, which Kafka replaced by format 2 in version 0.11; it is "
        "not supported. Start at a later offset, or copy the topic with a client that reads it"
    )
