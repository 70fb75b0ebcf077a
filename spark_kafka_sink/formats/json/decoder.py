"""Decode batches of payloads of JSON into Arrow arrays, with the compiled kernel."""

from __future__ import annotations

import ctypes
import struct
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from spark_kafka_sink.formats.columnar.batch_decoder import MOST_BYTES, Batch, BatchDecoder
from spark_kafka_sink.formats.columnar.output_kernel import Status
from spark_kafka_sink.formats.columnar.reasons import Words, put_together
from spark_kafka_sink.formats.json.decode_kernel import (
    FRAME_WIDTH,
    ROUND,
    ROUNDED,
    SCRATCH,
    TASK_DTYPE,
    TOO_LARGE,
    Failure,
    decode_json,
)
from spark_kafka_sink.formats.json.interpreter import (
    described,
    expected,
    named_path,
    other_zone,
    single,
)
from spark_kafka_sink.formats.json.number_kernel import TABLES
from spark_kafka_sink.formats.json.plan import COLUMN_WIDTH, MOST_DEPTH, JsonOp
from spark_kafka_sink.formats.json.problems import TEXTS, Problem
from spark_kafka_sink.formats.json.shown_parts import FORMS, Form, shown_parts
from spark_kafka_sink.record.kernel.decode_state import COPY_SLACK

if TYPE_CHECKING:
    import numpy.typing as npt

    from spark_kafka_sink.formats.columnar.columns import Column
    from spark_kafka_sink.formats.json.plan import Plan

#: The form in which each problem shows a part of the payload.
_FORMS: Final = np.array([FORMS.get(problem, Form.NONE) for problem in Problem], np.int64)


class Decoder(BatchDecoder):
    """Decodes batches by one plan; `value` is what errors call the value."""

    failure_numbers = len(Failure)

    def __init__(self, plan: Plan, most_bytes: int = MOST_BYTES, value: str = "") -> None:
        super().__init__(plan.column, most_bytes, value)
        self._paths = _paths(plan.column)
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
        failures = batch.failures[rows].astype(np.int64)
        problems = failures[:, Failure.PROBLEM]
        begins, ends = failures[:, Failure.BEGIN], failures[:, Failure.END]
        data = batch.payloads.buffers()[2]
        details = shown_parts(data, begins, ends, _FORMS[problems])
        numbers = (failures[:, Failure.PLACE] - 1) * len(Problem) + problems
        return put_together(numbers, partial(self._words, int(batch.task["skipped"][0])), details)

    def _words(self, skipped: int, number: int) -> Words:
        """Return the text of a problem with the value of a slot."""
        slot, problem = number // len(Problem), Problem(number % len(Problem))
        if problem == Problem.TOO_SHORT:
            return Words(f"it has fewer than {skipped} bytes")
        if problem == Problem.NOTHING:
            raise RuntimeError(
                "the compiled decoder refused a payload for no reason; please report it"
            )
        before, after = TEXTS[problem]
        column = self._slots.columns[slot]
        match problem:
            case Problem.NULL | Problem.DOES_NOT_FIT | Problem.NOT_A_TIMESTAMP:
                after += described(column)
            case Problem.OTHER_TYPE:
                after += expected(column, self._columns[slot * COLUMN_WIDTH])
            case Problem.OTHER_ZONE:
                after += other_zone(column)
        where = named_path(self._value, self._paths[slot])
        text = f"{where}: {before}" if where else before
        return Words(text, after if problem in FORMS else None)


def _paths(column: Column) -> dict[int, str]:
    """Return the paths of a column and of those below it, by their slots."""
    paths = {column.slot: ""}
    for part in column.all():
        path = paths[part.slot]
        for number, child in enumerate(part.children):
            inner = {"list": "[]", "map": "{}"}.get(part.kind)
            paths[child.slot] = path + (inner or f".{part.type.field(number).name}")
    return paths
