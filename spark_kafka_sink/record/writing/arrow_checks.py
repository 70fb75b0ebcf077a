"""Checks that Arrow arrays refer only to their own data, before anything follows their references.

pyarrow creates arrays from buffers with the constant-time checks of `Array.validate`. The numbers
inside of the buffers may be anything: offsets that decrease, views beyond their buffers, indices
outside of their dictionary. Arrow's conversions follow them without a check, and would copy
whatever the process has in its memory into a record.

`first_bad_row` checks all such numbers and takes about a nanosecond for each. It accepts what
`Array.validate(full=True)` accepts, and more: content such as UTF-8 is not its subject.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    import numpy.typing as npt

    Numbers = npt.NDArray[np.signedinteger[Any]]

_INT32_OFFSETS: Final = (pa.types.is_string, pa.types.is_binary)
_INT64_OFFSETS: Final = (pa.types.is_large_string, pa.types.is_large_binary)
_PLAIN: Final = _INT32_OFFSETS + _INT64_OFFSETS
_VIEWS: Final = (pa.types.is_string_view, pa.types.is_binary_view)
_LISTS: Final = (pa.types.is_list, pa.types.is_large_list)
_LIST_VIEWS: Final = (pa.types.is_list_view, pa.types.is_large_list_view)


def is_plain(kind: pa.DataType) -> bool:
    """Return whether arrays of a type are strings or bytes in one buffer, with offsets."""
    return any(is_kind(kind) for is_kind in _PLAIN)


def first_bad_row(array: Any) -> int | None:
    """Return the first row that refers beyond the array's data, None if there is none.

    The array must have passed `Array.validate()`. Raises ArrowInvalid for a type that records
    cannot have, if its content is wrong.
    """
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return first_bad_row(array.storage)
    if not len(array) and not pa.types.is_dictionary(kind):
        return None  # The single offset of an empty array may be anything.
    for kinds, check in _CHECKS:
        if any(is_kind(kind) for is_kind in kinds):
            return check(array)
    if pa.types.is_nested(kind):
        array.validate(full=True)
    return None


def first_bad_offset(array: Any) -> int | None:
    """Return the first row of strings, bytes or lists whose offsets are not within the data.

    The array need not be valid. Returns None if this is not what is wrong with it.
    """
    try:
        if is_plain(array.type):
            return _first_bad_string(array)
        if any(is_kind(array.type) for is_kind in _LISTS):
            return _first_bad_offset(_offsets(array), len(array.values))
    except ValueError:
        # The buffer is too small for the offsets.
        pass
    return None


def _first_true(invalid: npt.NDArray[np.bool_]) -> int | None:
    return int(invalid.argmax()) if invalid.any() else None


def _first_valid(invalid: Any) -> int | None:
    return _first_true(invalid.fill_null(False).to_numpy(zero_copy_only=False))


def _size(buffer: pa.Buffer | None) -> int:
    return 0 if buffer is None else buffer.size


def _offsets(array: Any) -> Numbers:
    """Return the offsets of a slice; an empty array may have none at all."""
    buffer = array.buffers()[1]
    if not _size(buffer):
        return np.zeros(1, np.int32)
    wide = pa.types.is_large_list(array.type) or any(is_(array.type) for is_ in _INT64_OFFSETS)
    dtype = np.dtype(np.int64 if wide else np.int32)
    return np.frombuffer(buffer, dtype, len(array) + 1, array.offset * dtype.itemsize)


def _first_bad_offset(offsets: Numbers, end: int) -> int | None:
    # If offsets do not decrease, all of them are between the first and the last.
    if offsets[0] >= 0 and offsets[-1] <= end and bool((offsets[1:] >= offsets[:-1]).all()):
        return None
    starts, ends = offsets[:-1], offsets[1:]
    return _first_true((starts < 0) | (ends < starts) | (ends > end))


def _first_bad_string(array: Any) -> int | None:
    return _first_bad_offset(_offsets(array), _size(array.buffers()[2]))


def _first_bad_view(array: Any) -> int | None:
    # Most tables have no views.
    from spark_kafka_sink.record.kernel.view_kernel import (  # noqa: PLC0415
        VIEW_BYTES,
        first_bad_view,
    )

    validity, views, *data = array.buffers()
    sizes = np.array([_size(buffer) for buffer in data], np.int64)
    address = views.address + VIEW_BYTES * array.offset
    bitmap = validity.address if validity is not None and array.null_count else 0
    row = first_bad_view(sizes, address, len(array), bitmap, array.offset)
    return None if row < 0 else row


def _first_bad_index(array: Any) -> int | None:
    indices, dictionary = array.indices, array.dictionary
    bounds = pc.call_function("min_max", [indices])
    smallest, largest = bounds["min"].as_py(), bounds["max"].as_py()
    if smallest is not None and (smallest < 0 or largest >= len(dictionary)):
        unsigned = indices.cast(pa.uint64(), safe=False)  # negative numbers become large ones
        return _first_valid(pc.greater_equal(unsigned, pa.scalar(len(dictionary), pa.uint64())))
    entry = first_bad_row(dictionary)
    if entry is None:
        return None
    # Arrow converts the dictionary as a whole, even if no row has this entry.
    return _first_valid(pc.equal(indices.cast(pa.int64(), safe=False), pa.scalar(entry))) or 0


def _first_bad_run(array: Any) -> int | None:
    ends, values = array.run_ends.to_numpy(), array.values
    before = np.concatenate((np.zeros(1, ends.dtype), ends[:-1]))
    run = _first_true(ends <= before)
    if run is None:
        # There may be more values than runs.
        run = first_bad_row(values.slice(0, len(ends)))
    return None if run is None else max(0, min(int(before[run]) - array.offset, len(array) - 1))


def _first_bad_list(array: Any) -> int | None:
    offsets = _offsets(array)
    row = _first_bad_offset(offsets, len(array.values))
    if row is not None:
        return row
    first, last = int(offsets[0]), int(offsets[-1])
    element = first_bad_row(array.values.slice(first, last - first))
    if element is None:
        return None
    return int(np.searchsorted(offsets, first + element, side="right")) - 1


def _first_bad_list_view(array: Any) -> int | None:
    wide = pa.types.is_large_list_view(array.type)
    dtype = np.dtype(np.int64 if wide else np.int32)
    starts, sizes = (
        np.frombuffer(buffer, dtype, len(array), array.offset * dtype.itemsize).astype(np.int64)
        for buffer in array.buffers()[1:3]
    )
    # The last of these cannot overflow unless one of the others holds.
    row = _first_true((starts < 0) | (sizes < 0) | (starts > len(array.values) - sizes))
    if row is not None:
        return row
    first, last = int(starts.min()), int((starts + sizes).max())
    element = first_bad_row(array.values.slice(first, last - first))
    if element is None:
        return None
    element += first
    return _first_true((starts <= element) & (element < starts + sizes)) or 0


def _first_bad_fixed_list(array: Any) -> int | None:
    length = array.type.list_size
    if (array.offset + len(array)) * length > len(array.values):
        # Arrow's own validation ignores the offset.
        return int(max(len(array.values) // length - array.offset, 0))
    element = first_bad_row(array.values.slice(array.offset * length, len(array) * length))
    return None if element is None else element // length


def _first_bad_struct(array: Any) -> int | None:
    fields = (first_bad_row(array.field(index)) for index in range(array.type.num_fields))
    return min((row for row in fields if row is not None), default=None)


#: The kinds of arrays with references, and what finds the first row with a wrong one.
_CHECKS: Final = (
    (_PLAIN, _first_bad_string),
    (_VIEWS, _first_bad_view),
    ((pa.types.is_dictionary,), _first_bad_index),
    ((pa.types.is_run_end_encoded,), _first_bad_run),
    (_LISTS, _first_bad_list),
    (_LIST_VIEWS, _first_bad_list_view),
    ((pa.types.is_fixed_size_list,), _first_bad_fixed_list),
    ((pa.types.is_struct,), _first_bad_struct),
)
