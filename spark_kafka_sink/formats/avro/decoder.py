"""Decode batches of Avro payloads into Arrow arrays, with the compiled kernel."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from spark_kafka_sink.formats.avro.decode_kernel import (
    FAILURE_NUMBERS,
    TASK_DTYPE,
    Failure,
    decode_payloads,
)
from spark_kafka_sink.formats.avro.plan import WIDTH
from spark_kafka_sink.formats.avro.problems import Problem, worded
from spark_kafka_sink.formats.columnar.batch_decoder import MOST_BYTES, Batch, BatchDecoder
from spark_kafka_sink.formats.columnar.reasons import Words, put_together
from spark_kafka_sink.record.kernel.decode_state import COPY_SLACK

if TYPE_CHECKING:
    import numpy.typing as npt

    from spark_kafka_sink.formats.avro.plan import Plan
    from spark_kafka_sink.formats.columnar.output_kernel import Status


class Decoder(BatchDecoder):
    """Decodes batches by one plan; `value` is what errors call the value.

    The path of the field in it follows.
    """

    failure_numbers = FAILURE_NUMBERS

    def __init__(self, plan: Plan, most_bytes: int = MOST_BYTES, value: str = "") -> None:
        super().__init__(plan.column, most_bytes, value)
        self._plan = plan
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

    def _reasons(self, batch: Batch, rows: npt.NDArray[np.int64]) -> Any:
        failures = batch.failures[rows]
        skipped = int(batch.task["skipped"][0])
        # The details take up two numbers.
        details = pa.array(failures.view(np.int64)[:, Failure.DETAIL // 2]).cast(pa.string())
        operations, problems = failures[:, Failure.OPERATION], failures[:, Failure.PROBLEM]
        numbers = operations.astype(np.int64) * len(Problem) + problems
        return put_together(numbers, partial(self._words, skipped), details)

    def _words(self, skipped: int, number: int) -> Words:
        """Return the text of a problem at an operation."""
        operation, problem = number // len(Problem) - 1, Problem(number % len(Problem))
        argument = self._plan.program[operation * WIDTH + 1]
        match problem:
            case Problem.TOO_SHORT:
                return Words(f"it has fewer than {skipped} bytes")
            case Problem.NOTHING:
                raise RuntimeError(
                    "the compiled decoder refused a payload for no reason; please report it"
                )
            case Problem.PLANNED:
                words = Words(self._plan.problems[argument])
            case Problem.TOO_MANY_DIGITS:
                words = Words(worded(problem, self._slots.columns[argument].type.precision))
            case _:
                before, is_detailed, after = worded(problem, "{}").partition("{}")
                words = Words(before, after if is_detailed else None)
        return words._replace(before=self._plan.problem_at(operation, words.before, self._value))
