"""Encode arrays of Arrow as batches of Avro payloads, with the compiled kernel.

The kernel reads Arrow's buffers where they are. Only what is stored in another layout is converted
before: dictionaries, runs, views, narrower numbers, symbols.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.errors import PayloadError
from spark_kafka_sink.formats.avro.encode_kernel import (
    ENCODE_TASK_DTYPE,
    ROOM,
    EncodeStatus,
    SourceSlot,
    encode_rows,
)
from spark_kafka_sink.formats.avro.encode_plan import is_any_binary, is_any_string, value_type
from spark_kafka_sink.record.arrow.record_columns import first_bad_offset, first_bad_row
from spark_kafka_sink.record.kernel.decode_state import COPY_SLACK

if TYPE_CHECKING:
    import numpy.typing as npt

    from spark_kafka_sink.formats.avro.encode_plan import EncodePlan, Source

#: The most bytes of an output, whose offsets have 32 bits.
MOST_BYTES: Final = 2**31 - 1
_NO_MEMORY: Final = np.zeros(COPY_SLACK, np.uint8)
_OFFSET_BYTES: Final = 4
_MALFORMED: Final = "the column refers to data outside of its buffers"
_MALFORMED_ADVICE: Final = (
    "Correct the buffers that the Arrow array was made from; its method validate(full=True) says "
    "what is wrong with them"
)
_MOST_SYMBOLS: Final = 10
_DOES_NOT_FIT: Final = (
    "the value of {type} does not fit into {target}",
    "Correct it, or use a schema with a wider type",
)
#: What is wrong with a value, and what to do.
_EXPLANATIONS: Final = {
    EncodeStatus.NULL: (
        "the value is null, but the schema has {target} without null",
        "Fill the nulls, or use a schema in which the field is optional",
    ),
    EncodeStatus.NOT_UTF8: ("the string is not UTF-8", "Correct it, or write bytes"),
    EncodeStatus.WRONG_SIZE: (
        "the value has {detail} bytes, unlike {target}",
        "Correct its length, or use a schema with bytes",
    ),
    EncodeStatus.UNKNOWN_SYMBOL: (
        "the string is not a symbol of {target}",
        "Use one of {symbols}, or a schema that has it",
    ),
    EncodeStatus.TOO_MANY_DIGITS: _DOES_NOT_FIT,
    EncodeStatus.OUT_OF_RANGE: _DOES_NOT_FIT,
    EncodeStatus.NO_MEMBER: (
        "no member of the struct is set, but the schema has a {target} without null",
        "Set one of the members, or use a schema in which the field is optional",
    ),
    EncodeStatus.BAD_OFFSETS: (_MALFORMED, _MALFORMED_ADVICE),
}


class Encoder:
    """Encodes arrays by one plan. Any thread may use it, also several at once."""

    def __init__(self, plan: EncodePlan, most_bytes: int = MOST_BYTES) -> None:
        self._plan = plan
        self._most_bytes = most_bytes
        self._program = np.array(plan.program, np.int32)
        # With bytes behind it, so that it has an address.
        self._constants = np.frombuffer(plan.constants + bytes(COPY_SLACK), np.uint8)

    def encode(self, array: Any, prefix: bytes = b"") -> Any:
        """Encode a `pyarrow.Array` of the plan's type; return a `pyarrow.BinaryArray`.

        `prefix` is put before each payload. Rows that are null as a whole remain null. Raises
        `PayloadError` for the first row that the schema does not have, with its index in the array
        and the path of the field; TypeError for an array of another type.
        """
        if not isinstance(array, pa.Array) or array.type != self._plan.type:
            raise TypeError(f"the plan is for arrays of {self._plan.type}, not {_type_of(array)}")
        _check(array)
        source = self._plan.source
        if not len(array) or source.storage == "null":
            return pa.nulls(len(array), pa.binary())
        inputs = _Inputs(len(self._plan.sources), array)
        array = inputs.add(source, array)
        return self._encoded(inputs, array, prefix)

    def _encoded(self, inputs: _Inputs, array: Any, prefix: bytes) -> Any:
        rows = len(array)
        framing = np.frombuffer(prefix + bytes(COPY_SLACK), np.uint8)
        lists = np.zeros(2 * self._plan.lists + 1, np.int64)
        offsets = np.zeros(rows + 1, np.int32)
        usual = rows * (len(prefix) + self._plan.row_bytes) + inputs.text_bytes
        output = pa.allocate_buffer(min(usual, self._most_bytes) + ROOM, None, resizable=True)
        task = np.zeros(1, ENCODE_TASK_DTYPE)
        task["rows"], task["offsets"] = rows, offsets.ctypes.data
        task["prefix"], task["prefix_size"] = framing.ctypes.data, len(prefix)
        task["program"], task["slots"] = self._program.ctypes.data, inputs.slots.ctypes.data
        task["lists"] = lists.ctypes.data
        task["constants"] = self._constants.ctypes.data
        task["constants_end"] = self._constants.ctypes.data + self._constants.size
        while True:
            task["data"], task["capacity"] = output.address, output.size - ROOM
            status = encode_rows(task)
            if status == EncodeStatus.DONE:
                break
            if status != EncodeStatus.GROW:
                raise self._error(status, task)
            if output.size - ROOM >= self._most_bytes:
                raise PayloadError(
                    f"the payloads of the batch have more than {self._most_bytes} bytes",
                    row=int(task["row"][0]),
                    advice="Write fewer rows at once",
                )
            wanted = 2 * (output.size + int(task["detail"][0]))
            output.resize(min(wanted, self._most_bytes) + ROOM)
        output.resize(int(task["used"][0]), shrink_to_fit=True)
        return pa.Array.from_buffers(
            pa.binary(), rows, [_validity(array), pa.py_buffer(offsets.data), output]
        )

    def _error(self, status: EncodeStatus, task: npt.NDArray[np.void]) -> PayloadError:
        source = self._plan.sources[int(task["slot"][0])]
        known = {
            "type": source.type,
            "target": source.target,
            "detail": int(task["detail"][0]),
            "symbols": _some(source.symbols),
        }
        cause, advice = (text.format(**known) for text in _EXPLANATIONS[status])
        return PayloadError(cause, row=int(task["row"][0]), field=source.path, advice=advice)


def _some(symbols: tuple[str, ...]) -> str:
    rest = len(symbols) - _MOST_SYMBOLS
    return ", ".join(symbols[:_MOST_SYMBOLS]) + (f" and {rest} more" if rest > 0 else "")


def _type_of(array: Any) -> str:
    return str(array.type) if isinstance(array, pa.Array) else type(array).__name__


def _check(array: Any) -> None:
    """Raise `PayloadError` unless lengths, and sizes of buffers, allow to read an array."""
    try:
        array.validate()
    except pa.ArrowException as error:
        row = first_bad_offset(array)
        raise PayloadError(_MALFORMED, row=row, advice=_MALFORMED_ADVICE) from error


def _validity(array: Any) -> Any:
    """Return the bitmap of an array, beginning with the first row; None without nulls."""
    if not array.null_count:
        return None
    flags = array.is_valid().to_numpy(zero_copy_only=False)
    return pa.py_buffer(np.packbits(flags, bitorder="little").data)


class _Inputs:
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
            array = array.cast(source.cast)
        return array

    def _check(self, array: Any) -> None:
        """Raise `PayloadError` if Arrow would follow a reference beyond an array's data."""
        try:
            if first_bad_row(array) is None:
                return
            row = first_bad_row(self._root)
        except pa.ArrowException as error:
            raise PayloadError(
                "the Arrow data of the column is malformed", advice=_MALFORMED_ADVICE
            ) from error
        raise PayloadError(_MALFORMED, row=row, advice=_MALFORMED_ADVICE)

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
            self.text_bytes += max(min(int(ends[-1]) - int(ends[0]), MOST_BYTES), 0)

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
    if pa.types.is_run_end_encoded(array.type):
        rows = np.arange(array.offset, array.offset + len(array))
        indices = pa.array(np.searchsorted(array.run_ends.to_numpy(), rows, side="right"))
        values = array.values
    else:
        indices, values = array.indices, array.dictionary
    while value_type(values.type) != values.type:
        values = _values(values)
    kind = values.type
    if is_any_string(kind):
        # Arrow cannot take views by index, and what is taken may have more bytes than offsets of
        # 32 bits can count.
        values = values.cast(pa.large_string())
    elif is_any_binary(kind):
        values = values.cast(pa.large_binary())
    return values.take(indices)


def _address(buffer: Any) -> int:
    return 0 if buffer is None else int(buffer.address)
