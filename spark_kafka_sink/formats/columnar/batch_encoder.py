"""Encode arrays of Arrow as batches of payloads, with the compiled loop of a format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import numpy as np
import pyarrow as pa

from spark_kafka_sink.errors import PayloadError
from spark_kafka_sink.formats.columnar.inputs import (
    MALFORMED,
    MALFORMED_ADVICE,
    MOST_BYTES,
    Inputs,
    check_buffers,
)
from spark_kafka_sink.formats.columnar.source_kernel import FAILURE_WIDTH, ROOM
from spark_kafka_sink.record.kernel.decode_state import COPY_SLACK
from spark_kafka_sink.record.refused_rows import groups

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt

    from spark_kafka_sink.formats.columnar.sources import EncodePlan, Source

#: What the loops of all formats return: all is encoded; the output needs room for `detail` bytes.
ENCODED: Final = 0
NO_ROOM: Final = 1
#: What is wrong with a column whose offsets lead out of its buffers, and what to do.
BAD_OFFSETS: Final = (MALFORMED, MALFORMED_ADVICE)


class Failure(NamedTuple):
    """Rows of an array that cannot be encoded for the same reason."""

    rows: npt.NDArray[np.int64]
    #: Without the number of a row.
    error: PayloadError


class BatchEncoder(ABC):
    """Encodes arrays by one plan. Any thread may use it, also several at once."""

    #: The type of a task; it has the `ENCODE_TASK_FIELDS`.
    task_dtype: ClassVar[np.dtype[np.void]]
    #: For each status, what is wrong with a value, and what to do.
    explanations: ClassVar[Mapping[int, tuple[str, str]]]

    def __init__(self, plan: EncodePlan, most_bytes: int = MOST_BYTES) -> None:
        self._plan = plan
        self._most_bytes = most_bytes
        self._program = np.array(plan.program, np.int32)
        # With bytes behind it, so that it has an address.
        self._constants = np.frombuffer(plan.constants + bytes(COPY_SLACK), np.uint8)

    @abstractmethod
    def _run(self, task: npt.NDArray[np.void]) -> int:
        """Append payloads to the output until something has to be done."""

    def _known(self, source: Source, detail: int) -> dict[str, Any]:
        """Return what the explanation of an error may name."""
        return {"type": source.type, "target": source.target, "detail": detail}

    def encode(self, array: Any, prefix: bytes = b"") -> Any:
        """Encode a `pyarrow.Array` of the plan's type; return a `pyarrow.BinaryArray`.

        `prefix` is put before each payload. Rows that are null as a whole remain null. Raises
        `PayloadError` for the first row that cannot be encoded, with its index in the array
        and the path of the field; TypeError for an array of another type.
        """
        return self._encoded(array, prefix, [], collects=False)

    def encode_good(self, array: Any, prefix: bytes = b"") -> tuple[Any, list[Failure]]:
        """Encode an array as `encode` does; rows that cannot be encoded are null.

        Returns what is wrong with those as well. Raises `PayloadError` only for a column that
        refers to data outside of its buffers, or that becomes too large.
        """
        failures: list[Failure] = []
        return self._encoded(array, prefix, failures, collects=True), failures

    def _encoded(
        self,
        array: Any,
        prefix: bytes,
        failures: list[Failure],
        *,
        collects: bool,
        chosen: npt.NDArray[np.int64] | None = None,
    ) -> Any:
        """Encode an array, or its `chosen` rows, and add what is wrong with rows to `failures`."""
        if not isinstance(array, pa.Array) or array.type != self._plan.type:
            raise TypeError(f"the plan is for arrays of {self._plan.type}, not {_type_of(array)}")
        check_buffers(array)
        source = self._plan.source
        rows = len(array) if chosen is None else chosen.size
        if not rows or source.storage == "null":
            return pa.nulls(rows, pa.binary())
        inputs = Inputs(len(self._plan.sources), array)
        array = inputs.add(source, array)
        framing = np.frombuffer(prefix + bytes(COPY_SLACK), np.uint8)
        lists = np.zeros(2 * self._plan.lists + 1, np.int64)
        offsets = np.zeros(rows + 1, np.int32)
        texts = inputs.text_bytes * rows // len(array)
        usual = rows * (len(prefix) + self._plan.row_bytes) + texts
        output = pa.allocate_buffer(min(usual, self._most_bytes) + ROOM, None, resizable=True)
        task = np.zeros(1, self.task_dtype)
        task["rows"], task["offsets"] = rows, offsets.ctypes.data
        task["prefix"], task["prefix_size"] = framing.ctypes.data, len(prefix)
        task["program"], task["slots"] = self._program.ctypes.data, inputs.slots.ctypes.data
        task["lists"] = lists.ctypes.data
        # Only the part that is written takes memory.
        failed = np.empty((rows if collects else 0, FAILURE_WIDTH), np.int64)
        task["failures"], task["most_failed"] = failed.ctypes.data, len(failed)
        task["constants"] = self._constants.ctypes.data
        task["constants_end"] = self._constants.ctypes.data + self._constants.size
        if chosen is not None:
            task["chosen"] = chosen.ctypes.data
        while True:
            task["data"], task["capacity"] = output.address, output.size - ROOM
            status = self._run(task)
            if status == ENCODED:
                break
            if status != NO_ROOM:
                raise self._error(status, int(task["slot"][0]), int(task["detail"][0])).about(
                    row=int(task["row"][0])
                )
            if output.size - ROOM >= self._most_bytes:
                raise PayloadError(
                    f"the payloads of the batch have more than {self._most_bytes} bytes",
                    row=int(task["row"][0]),
                    advice="Write fewer rows at once",
                )
            wanted = 2 * (output.size + int(task["detail"][0]))
            output.resize(min(wanted, self._most_bytes) + ROOM)
        output.resize(int(task["used"][0]), shrink_to_fit=True)
        found = failed[: int(task["failed"][0])]
        if found.size:
            failures += self._failures(found)
        return pa.Array.from_buffers(
            pa.binary(),
            rows,
            [_validity(array, chosen, found[:, 0]), pa.py_buffer(offsets.data), output],
        )

    def _failures(self, found: npt.NDArray[np.int64]) -> Iterator[Failure]:
        """Yield the rows that could not be encoded, by what is wrong with them."""
        rows, statuses, slots, details = np.ascontiguousarray(found.T)
        for group in groups(statuses, slots):
            status, slot = int(statuses[group[0]]), int(slots[group[0]])
            # Only then do the errors of the rows differ.
            if "{detail}" in "".join(self.explanations[status]):
                parts = [group[part] for part in groups(details[group])]
            else:
                parts = [group]
            for part in parts:
                yield Failure(rows[part], self._error(status, slot, int(details[part[0]])))

    def _error(self, status: int, slot: int, detail: int) -> PayloadError:
        """Return what is wrong with a value, without its row."""
        source = self._plan.sources[slot]
        known = self._known(source, detail)
        cause, advice = (text.format(**known) for text in self.explanations[status])
        return PayloadError(cause, field=source.path, advice=advice)


def _type_of(array: Any) -> str:
    return str(array.type) if isinstance(array, pa.Array) else type(array).__name__


def _validity(
    array: Any, chosen: npt.NDArray[np.int64] | None, failed: npt.NDArray[np.int64]
) -> Any:
    """Return a bitmap without nulls, and without the rows that failed; None for all rows."""
    if array.null_count:
        flags = array.is_valid().to_numpy(zero_copy_only=False)
        flags = flags.copy() if chosen is None else flags[chosen]
    elif failed.size:
        flags = np.ones(len(array) if chosen is None else chosen.size, np.bool_)
    else:
        return None
    flags[failed] = False
    return pa.py_buffer(np.packbits(flags, bitorder="little").data)
