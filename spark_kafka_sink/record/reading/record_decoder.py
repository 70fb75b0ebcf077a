"""Decoding of a partition's record batches into Arrow (Kafka's `CompletedFetch`).

Malformed bytes raise nothing but CorruptRecordError, which names the topic, the partition and the
offset. The checks are those of `record.decode`. Rows are gathered over batches and answers, and
returned as record batches of bounded size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.model import DEFAULT_MAX_UNCOMPRESSED_BYTES
from spark_kafka_sink.record.compression import (
    CompressionType,
    DecompressedTooLargeError,
    decompress,
)
from spark_kafka_sink.record.kernel.decode_kernel import decode_batches, index_batches
from spark_kafka_sink.record.kernel.decode_state import (
    BYTES_PER_HEADER,
    DECODER_DTYPE,
    FIELD,
    SCRATCH_BYTES,
    DecodeStatus,
    Stage,
)
from spark_kafka_sink.record.kernel.kernel_unpack import UNPACK_SLACK
from spark_kafka_sink.record.reading.output import Output
from spark_kafka_sink.record.reading.schema import check_schema
from spark_kafka_sink.record.record_batch import RECORD_BATCH_OVERHEAD, check_crc

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from typing_extensions import Buffer

    from spark_kafka_sink.record.columns import UInt8Array

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

    `schema` selects the columns: see `record.reading.schema`. A record batch has at most `max_rows`
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
