"""Decode batches of payloads of JSON into Arrow arrays, with the compiled kernel."""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from spark_kafka_sink.formats.columnar.batch_decoder import MOST_BYTES, Batch, BatchDecoder
from spark_kafka_sink.formats.columnar.output_kernel import Status
from spark_kafka_sink.formats.json.decode_kernel import (
    FRAME_WIDTH,
    ROUND,
    ROUNDED,
    SCRATCH,
    TASK_DTYPE,
    TOO_LARGE,
    decode_json,
)
from spark_kafka_sink.formats.json.interpreter import Interpreter, single
from spark_kafka_sink.formats.json.number_kernel import TABLES
from spark_kafka_sink.formats.json.plan import COLUMN_WIDTH, MOST_DEPTH, JsonOp
from spark_kafka_sink.record.kernel.decode_state import COPY_SLACK

if TYPE_CHECKING:
    import numpy.typing as npt

    from spark_kafka_sink.formats.json.plan import Plan


class Decoder(BatchDecoder):
    """Decodes batches by one plan; `value` is what errors call the value."""

    failure_numbers = 1

    def __init__(self, plan: Plan, most_bytes: int = MOST_BYTES, value: str = "") -> None:
        super().__init__(plan.column, most_bytes)
        self._interpreter = Interpreter(plan, value)
        # Each with a number behind it, so that it has an address.
        self._columns, self._fields, self._places = (
            np.array([*numbers, 0], np.int32)
            for numbers in (plan.columns, plan.fields, plan.places)
        )
        self._constants = np.frombuffer(plan.constants + bytes(COPY_SLACK), np.uint8)

    def _task(self) -> tuple[npt.NDArray[np.void], npt.NDArray[np.int64]]:
        task = np.zeros(1, TASK_DTYPE)
        task["constants"] = self._constants.ctypes.data
        task["tables"] = TABLES.ctypes.data
        return task, np.empty((MOST_DEPTH, FRAME_WIDTH), np.int64)

    def _run(self, batch: Batch, slots: npt.NDArray[np.int64]) -> Status:
        scratch = np.empty(0, np.uint8)
        task = batch.task
        task["scratch_size"] = 0
        while True:
            status = decode_json(
                task, self._columns, self._fields, self._places, slots, batch.stack, self._kept
            )
            if status == ROUND:
                self._round(task)
            elif status == SCRATCH:
                scratch = np.empty(2 * int(task["needed"][0]), np.uint8)
                task["scratch"], task["scratch_size"] = scratch.ctypes.data, scratch.size
            else:
                return Status(status)

    def _round(self, task: npt.NDArray[np.void]) -> None:
        """Round a number that the kernel cannot."""
        begin, end = int(task["number"][0]), int(task["number_end"][0])
        text = ctypes.string_at(begin, end - begin).decode()
        op = self._columns[int(task["value_slot"][0]) * COLUMN_WIDTH]
        is_single = op == JsonOp.FLOAT32
        number = single(text) if is_single else float(text)
        if number in {float("inf"), float("-inf")}:
            task["number_state"] = TOO_LARGE
            return
        packed = struct.pack(
            "<fi" if is_single else "<d", *((number, 0) if is_single else (number,))
        )
        task["number_bits"], task["number_state"] = struct.unpack("<q", packed)[0], ROUNDED

    def _reasons(self, batch: Batch, rows: npt.NDArray[np.int64]) -> Any:
        return pa.array([self._problem(batch, int(row)) for row in rows], pa.string())

    def _problem(self, batch: Batch, row: int) -> str:
        payload, skipped = batch.payloads[row].as_py(), int(batch.task["skipped"][0])
        if len(payload) < skipped:
            return f"it has fewer than {skipped} bytes"
        return self._interpreter.problem(payload[skipped:])
