"""Arrow batches of numbered rows (see `numbered_rows`), of about eighty bytes each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tests.support.record.numbered_rows import DIGITS, POWERS

if TYPE_CHECKING:
    from collections.abc import Iterator

_BATCH_ROWS = 10_000
_PADDING = np.frombuffer(
    b"the quick brown fox jumps over the lazy dog, again and again and again. ", "u1"
)


def numbered_batches(
    rows: int, *, first: int = 0, batch_rows: int = _BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Create batches of the rows `first` to `rows` - 1, with only a value column."""
    for start in range(first, rows, batch_rows):
        yield pa.record_batch({"value": numbered_values(start, min(start + batch_rows, rows))})


def numbered_values(start: int, stop: int) -> pa.Array:
    """Create the values of the rows `start` to `stop` - 1 without a Python object for each."""
    numbers = np.arange(start, stop, dtype=np.int64)
    digits = (numbers[:, None] // POWERS % 10 + ord("0")).astype(np.uint8)
    width = DIGITS + len(_PADDING)
    data = np.empty((len(numbers), width), np.uint8)
    data[:, :DIGITS] = digits
    data[:, DIGITS:] = _PADDING
    offsets = np.arange(len(numbers) + 1, dtype=np.int32) * np.int32(width)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(numbers), buffers)
