"""Decode batches of Avro payloads into Arrow arrays, with the compiled kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from spark_kafka_sink.formats.avro.decode_kernel import (
    TASK_DTYPE,
    TOO_SHORT,
    Failure,
    decode_payloads,
)
from spark_kafka_sink.formats.avro.interpreter import Interpreter, Stop
from spark_kafka_sink.formats.columnar.batch_decoder import MOST_BYTES, Batch, BatchDecoder
from spark_kafka_sink.record.kernel.decode_state import COPY_SLACK

if TYPE_CHECKING:
    import numpy.typing as npt

    from spark_kafka_sink.formats.avro.plan import Plan
    from spark_kafka_sink.formats.columnar.output_kernel import Status


class Decoder(BatchDecoder):
    """Decodes batches by one plan; `value` is what errors call the value.

    The path of the field in it follows.
    """

    failure_numbers = len(Failure)

    def __init__(self, plan: Plan, most_bytes: int = MOST_BYTES, value: str = "") -> None:
        super().__init__(plan.column, most_bytes)
        self._plan = plan
        self._interpreter = Interpreter(plan, value)
        self._program = np.array(plan.program, np.int32)
        # With bytes behind it, so that it has an address, and short constants are copied at once.
        self._constants = np.frombuffer(plan.constants + b"\0" * COPY_SLACK, np.uint8)

    def _task(self) -> tuple[npt.NDArray[np.void], npt.NDArray[np.int64]]:
        task = np.zeros(1, TASK_DTYPE)
        task["null_operation"] = self._plan.null_operation
        task["constants"] = self._constants.ctypes.data
        task["constants_end"] = self._constants.ctypes.data + self._constants.size
        return task, np.zeros((self._plan.lists + 1, 2), np.int64)

    def _run(self, batch: Batch, slots: npt.NDArray[np.int64]) -> Status:
        return decode_payloads(batch.task, self._program, slots, batch.stack, self._kept)

    def _problem(self, batch: Batch, row: int) -> str:
        """Return why a payload is malformed."""
        operation, position, empty_items = map(int, batch.failures[row])
        skipped = int(batch.task["skipped"][0])
        if operation == TOO_SHORT:
            return f"it has fewer than {skipped} bytes"
        stop = Stop(operation - 1, max(position, -1 - position), position < 0, empty_items)
        return self._interpreter.problem(batch.payloads[row].as_py()[skipped:], stop)
