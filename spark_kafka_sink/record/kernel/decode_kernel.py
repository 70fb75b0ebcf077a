"""The compiled loops that read v2 record batches into Arrow buffers (Kafka's `CompletedFetch`).

`index_batches` walks over the headers of an answer; `decode_batches` then appends the records of
its batches to the buffers of one output, and returns whenever Python has to do something: to
decompress a batch, to take a full output away, or to make room. It is then called again and goes on
where it stopped, which may be between any two records.

Nothing in the bytes of an answer is trusted: `decode_headers` and `decode_records` check all of it
before they follow it. The state is in one row of `DECODER_DTYPE`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spark_kafka_sink.record.kernel.decode_headers import (
    LAST_OFFSET_DELTA_OFFSET,
    LEADER_EPOCH_OFFSET,
    LENGTH_OFFSET,
    LOG_OVERHEAD,
    MAGIC_OFFSET,
    check_header,
    open_batch,
)
from spark_kafka_sink.record.kernel.decode_records import decode_records
from spark_kafka_sink.record.kernel.decode_state import (
    DECODER_DTYPE,
    LOG_APPEND_TIME_FLAG,
    DecodeStatus,
    Stage,
)
from spark_kafka_sink.record.kernel.kernel_support import (
    Items,
    kernel,
    kernel_part,
    load_big_int32,
    load_big_int64,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class Index(NamedTuple):
    """The result of `index_batches`."""

    #: DONE, or why the batch at `size` is corrupt.
    status: DecodeStatus
    batch_count: int
    #: The number of bytes of complete batches.
    size: int
    #: Of the last complete batch; undefined if there is none.
    last_offset: int
    leader_epoch: int


# As plain integers, which compile to constants.
_NOTHING: Final = int(Stage.NOTHING)
_HEADER: Final = int(Stage.HEADER)
_DONE: Final = int(DecodeStatus.DONE)
_PREPARE: Final = int(DecodeStatus.PREPARE)
_FULL: Final = int(DecodeStatus.FULL)


@kernel(5, int, int)
def _index_batches(data: int, size: int) -> tuple[int, int, int, int, int]:
    position, count, last_offset, leader_epoch = 0, 0, -1, -1
    while size - position > MAGIC_OFFSET:
        batch = data + position
        status = check_header(batch, size - position)
        if status != _DONE:
            return status, count, position, last_offset, leader_epoch
        batch_size = load_big_int32(batch + LENGTH_OFFSET) + LOG_OVERHEAD
        if batch_size > size - position:
            break
        last_offset = load_big_int64(batch) + load_big_int32(batch + LAST_OFFSET_DELTA_OFFSET)
        leader_epoch = load_big_int32(batch + LEADER_EPOCH_OFFSET)
        position += batch_size
        count += 1
    return _DONE, count, position, last_offset, leader_epoch


@kernel_part
def _set_timestamp_type(task: Any) -> bool:
    """Set the type of an output's timestamps; return whether the next batch has the same."""
    timestamp_type = (task.attributes & LOG_APPEND_TIME_FLAG) != 0
    if task.rows == 0:
        task.timestamp_type = timestamp_type
    return not task.separates_types or task.timestamp_type == timestamp_type


@kernel(1, Items(DECODER_DTYPE))
def _decode_batches(table: npt.NDArray[np.void]) -> int:
    task = table[0]
    while True:
        if task.stage == _NOTHING:
            if task.position >= task.size:
                return _DONE
            status = open_batch(task)
            if status != _DONE:
                return status
            if task.position >= task.size:
                return _DONE
        if task.stage == _HEADER:
            return _PREPARE
        if not task.skipped:
            status = decode_records(task) if _set_timestamp_type(task) else _FULL
            if status != _DONE:
                return status
        task.position += task.batch_size
        task.stage = _NOTHING


def index_batches(data: npt.NDArray[np.uint8]) -> Index:
    """Check the headers of all complete batches in `data`; stop at the first corrupt one."""
    status, *numbers = _index_batches(data.ctypes.data, data.size)
    return Index(DecodeStatus(status), *numbers)


def decode_batches(table: npt.NDArray[np.void]) -> DecodeStatus:
    """Append rows until Python has to do something; `table` has one row of `DECODER_DTYPE`.

    The memory at all its addresses must remain allocated. After an error, the record is the first
    one after `last_delta` in the batch at `base_offset`.
    """
    return DecodeStatus(_decode_batches(table))
