"""The table by which a compiled loop finds the columns of an array that is encoded.

Arrow's buffers are read where they are. Only what is stored in another layout is converted before:
dictionaries, runs, views, narrower numbers, symbols.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.errors import PayloadError
from spark_kafka_sink.formats.columnar.source_kernel import SourceSlot
from spark_kafka_sink.formats.columnar.sources import is_any_binary, is_any_string, value_type
from spark_kafka_sink.record.arrow.record_columns import (
    cast_strings,
    first_bad_offset,
    first_bad_row,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from spark_kafka_sink.formats.columnar.sources import Source

#: The most bytes of an output, whose offsets have 32 bits.
MOST_BYTES: Final = 2**31 - 1
MALFORMED: Final = "the column refers to data outside of its buffers"
MALFORMED_ADVICE: Final = (
    "Correct the buffers that the Arrow array was made from; its method validate(full=True) says "
    "what is wrong with them"
)


def check_buffers(array: Any) -> None:
    """Raise `PayloadError` unless lengths, and sizes of buffers, allow to read an array."""
    try:
        array.validate()
    except pa.ArrowException as error:
        row = first_bad_offset(array)
        raise PayloadError(MALFORMED, row=row, advice=MALFORMED_ADVICE) from error


class Inputs:
    """The table of slots by which the kernel finds the columns of an array."""

    def __init__(self, slots: int, root: Any) -> None:
        self.slots = np.zeros((slots, len(SourceSlot)), np.int64)
        #: The bytes of all texts.
        self.text_bytes = 0
        self._root = root
        #: Arrays whose memory the kernel reads.
        self._kept: list[Any] = []

    def add(self, source: Source, array: Any) -> Any:
        """Add a column and those below it; return it as the kernel reads it."""
        if source.storage == "null":
            return array
        array = self._stored(source, array)
        self._kept.append(array)
        slot = self.slots[source.slot]
        if array.null_count:
            slot[SourceSlot.VALIDITY] = array.buffers()[0].address
        slot[SourceSlot.BIT] = array.offset
        match source.storage:
            case "struct":
                for child, position in zip(source.children, source.positions, strict=True):
                    self.add(child, array.field(position))
            case "list":
                self._add_list(source, array, slot)
            case "symbols":
                self._add_symbols(source, array, slot)
            case "bytes":
                self._add_bytes(array, slot)
            case "bits":
                slot[SourceSlot.DATA] = _address(array.buffers()[1])
            case _:
                self._add_numbers(array, slot)
        return array

    def _stored(self, source: Source, array: Any) -> Any:
        """Return an array in the layout that the kernel reads."""
        if source.needs_check:
            self._check(array)
            while value_type(array.type) != array.type:
                array = _values(array)
        if source.cast is not None and array.type != source.cast:
            if pa.types.is_time32(array.type):
                array = array.view(pa.int32())
            array = cast_strings(array, source.cast)
        return array

    def _check(self, array: Any) -> None:
        """Raise `PayloadError` if Arrow would follow a reference beyond an array's data."""
        try:
            if first_bad_row(array) is None:
                return
            row = first_bad_row(self._root)
        except pa.ArrowException as error:
            raise PayloadError(
                "the Arrow data of the column is malformed", advice=MALFORMED_ADVICE
            ) from error
        raise PayloadError(MALFORMED, row=row, advice=MALFORMED_ADVICE)

    def _add_numbers(self, array: Any, slot: npt.NDArray[np.int64]) -> None:
        width = array.type.bit_width // 8
        slot[SourceSlot.DATA] = _address(array.buffers()[1]) + width * array.offset

    def _add_bytes(self, array: Any, slot: npt.NDArray[np.int64]) -> None:
        _, offsets, data = array.buffers()
        width = _add_offsets(array, offsets, slot)
        if data is not None:
            slot[SourceSlot.DATA] = data.address
            slot[SourceSlot.DATA_SIZE] = data.size
        if len(array):
            ends = np.frombuffer(offsets, f"i{width}", len(array) + 1, array.offset * width)
            # Malformed offsets may claim more than there is.
            stored = int(slot[SourceSlot.DATA_SIZE])
            self.text_bytes += max(min(int(ends[-1]) - int(ends[0]), stored), 0)

    def _add_symbols(self, source: Source, array: Any, slot: npt.NDArray[np.int64]) -> None:
        symbols = pa.array(source.symbols, array.type)
        codes = pc.index_in(array, symbols, skip_nulls=True).fill_null(-1)
        self._kept.append(codes)
        self._add_numbers(codes, slot)

    def _add_list(self, source: Source, array: Any, slot: npt.NDArray[np.int64]) -> None:
        if pa.types.is_map(array.type):
            parts = [array.keys, array.items]
        elif pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
            parts = [array.values]
        else:
            lengths = array.value_lengths().fill_null(0).to_numpy()
            offsets = np.zeros(len(array) + 1, np.int64)
            np.cumsum(lengths, out=offsets[1:])
            self._kept.append(offsets)
            parts = [array.flatten()]
            slot[SourceSlot.OFFSETS], slot[SourceSlot.WIDE] = offsets.ctypes.data, 1
            slot[SourceSlot.COUNT] = len(parts[0])
            self.add(source.children[0], parts[0])
            return
        buffer = array.buffers()[1]
        width = _add_offsets(array, buffer, slot)
        count = len(parts[0])
        first, last = 0, 0
        if len(array):
            ends = np.frombuffer(buffer, f"i{width}", len(array) + 1, array.offset * width)
            first, last = int(ends[0]), int(ends[-1])
        if not 0 <= first <= last <= count:
            # The kernel finds the row.
            first, last = 0, count
        slot[SourceSlot.BASE], slot[SourceSlot.COUNT] = first, last - first
        for child, part in zip(source.children, parts, strict=True):
            self.add(child, part.slice(first, last - first))


def _add_offsets(array: Any, buffer: Any, slot: npt.NDArray[np.int64]) -> int:
    """Set the offsets of texts or lists; return how many bytes each has."""
    is_wide = (
        pa.types.is_large_list(array.type)
        or pa.types.is_large_string(array.type)
        or pa.types.is_large_binary(array.type)
    )
    width = 8 if is_wide else 4
    slot[SourceSlot.WIDE] = is_wide
    slot[SourceSlot.OFFSETS] = _address(buffer) + width * array.offset
    return width


def _values(array: Any) -> Any:
    """Return the values of an array that only stores them in another way."""
    if isinstance(array.type, pa.BaseExtensionType):
        return array.storage
    if not len(array):
        # What is stored for other rows has not been checked.
        return pa.nulls(0, array.type.value_type)
    if pa.types.is_run_end_encoded(array.type):
        rows = np.arange(array.offset, array.offset + len(array))
        indices = pa.array(np.searchsorted(array.run_ends.to_numpy(), rows, side="right"))
        # Neither have values without a run.
        values = array.values.slice(0, len(array.run_ends))
    else:
        indices, values = array.indices, array.dictionary
    while value_type(values.type) != values.type:
        values = _values(values)
    kind = values.type
    if is_any_string(kind):
        # Arrow cannot take views by index, and what is taken may have more bytes than offsets of
        # 32 bits can count.
        values = cast_strings(values, pa.large_string())
    elif is_any_binary(kind):
        values = cast_strings(values, pa.large_binary())
    return values.take(indices)


def _address(buffer: Any) -> int:
    return 0 if buffer is None else int(buffer.address)
