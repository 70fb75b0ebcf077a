"""The compiled loops alone, on one core: assigning partitions and appending to open batches."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.measuring import heading, progress, table, verdict
from benchmarks.payloads import BATCH_ROWS, record_batch
from spark_kafka_sink.record.arrow.record_columns import record_columns
from spark_kafka_sink.record.kernel.kernel import (
    SLOT_DTYPE,
    STICKY_DTYPE,
    AppendStatus,
    append_rows,
    assign_slots,
)
from spark_kafka_sink.record.record_batch import RECORD_BATCH_OVERHEAD

if TYPE_CHECKING:
    from benchmarks.setting import Setting
    from spark_kafka_sink.record.columns import RecordColumns

PARTITIONS = 6
BUFFER_BYTES = 1_000_000
REPEATS = 100
HEADERS = 5
TARGET_NS = 40.0
HEADER_TARGET_NS = 5.0


def run(setting: Setting) -> None:
    """Measure rows with keys, without keys, and with headers."""
    rounds = 3 * setting.rounds
    progress("compiling the kernel, or loading it from the cache")
    shapes = {
        "keyed (murmur2)": {"key": True},
        "without key (sticky)": {"key": False},
        f"keyed, {HEADERS} headers": {"key": True, "headers": HEADERS},
    }
    columns = {
        name: record_columns(record_batch(**shape), topic="t") for name, shape in shapes.items()
    }
    best = dict.fromkeys(columns, float("inf"))
    for number in range(rounds + 1):
        for name, batch in columns.items():
            nanoseconds = _nanoseconds_per_record(batch)
            if number:
                best[name] = min(best[name], nanoseconds)
    heading(f"Kernel, one core, records of 119 bytes, best of {rounds} rounds, ns per record")
    keyed, _, with_headers = best.values()
    per_header = (with_headers - keyed) / HEADERS
    rows = [
        [
            name,
            f"{nanoseconds:.1f}",
            "" if "header" in name else verdict(nanoseconds, at_most=TARGET_NS),
        ]
        for name, nanoseconds in best.items()
    ]
    rows.append(["each header", f"{per_header:.1f}", verdict(per_header, at_most=HEADER_TARGET_NS)])
    table(["rows", "ns", "target"], rows)


def _nanoseconds_per_record(columns: RecordColumns) -> float:
    """Partition and append the same batch repeatedly, and reset full buffers."""
    buffers = [np.empty(BUFFER_BYTES, np.uint8) for _ in range(PARTITIONS)]
    slots = np.zeros(PARTITIONS, SLOT_DTYPE)
    slots["address"] = [buffer.ctypes.data for buffer in buffers]
    slots["position"] = RECORD_BATCH_OVERHEAD
    slots["limit"] = BUFFER_BYTES
    sticky = np.zeros(1, STICKY_DTYPE)
    sticky["limit"] = 2**62
    first_slots, counts = np.zeros(1, np.int32), np.full(1, PARTITIONS, np.int32)
    started = time.perf_counter_ns()
    for _ in range(REPEATS):
        row_slots = assign_slots(columns, first_slots, counts).row_slots
        row = 0
        while True:
            row, status, slot, _ = append_rows(
                columns, row_slots, row, slots, sticky, 0, BUFFER_BYTES
            )
            if status == AppendStatus.ALL_APPENDED:
                break
            if status != AppendStatus.BATCH_FULL:
                raise RuntimeError(f"the kernel stopped with {status!r}")
            slots[slot]["position"] = RECORD_BATCH_OVERHEAD
            slots[slot]["record_count"] = 0
    return (time.perf_counter_ns() - started) / (REPEATS * BATCH_ROWS)
