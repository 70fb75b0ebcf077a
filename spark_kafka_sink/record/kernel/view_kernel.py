"""The compiled loop that checks Arrow's views before Arrow follows them.

A view of up to 12 bytes contains them. A longer one consists of its size, 4 bytes of prefix, the
index of a buffer and an offset, all int32. Arrow's own full validation does the same and compares
the prefixes, but takes ten times as long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from spark_kafka_sink.record.kernel.kernel_support import Items, kernel, load_int64, load_uint8

if TYPE_CHECKING:
    from spark_kafka_sink.record.columns import Int64Array

VIEW_BYTES: Final = 16
_MOST_INLINE_BYTES: Final = 12
_PLACE: Final = 8
_UINT32: Final = 0xFFFFFFFF
_MAX_INT32: Final = 0x7FFFFFFF


@kernel(1, Items(np.dtype(np.int64)), int, int, int, int)
def first_bad_view(
    buffer_sizes: Int64Array, views: int, rows: int, validity: int, validity_offset: int
) -> int:
    """Return the first row whose view is not within its buffer, -1 if there is none.

    `views` is the address of the first row's view, and `validity` that of the bitmap, 0 if no row
    is null. `buffer_sizes` are in bytes. Null rows are ignored, as nothing follows their views.
    """
    buffers = buffer_sizes.size
    for row in range(rows):
        view = views + VIEW_BYTES * row
        # Half a view at a time; what is negative becomes larger than any buffer.
        size = load_int64(view) & _UINT32
        if size <= _MOST_INLINE_BYTES:
            continue
        place = load_int64(view + _PLACE)
        index, offset = place & _UINT32, place >> 32
        if (
            index < buffers
            and offset >= 0
            and size <= _MAX_INT32
            and offset + size <= buffer_sizes[index]
        ):
            continue
        bit = validity_offset + row
        if validity == 0 or (load_uint8(validity + (bit >> 3)) >> (bit & 7)) & 1:
            return row
    return -1
