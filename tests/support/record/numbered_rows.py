"""Millions of numbered rows: created, read back, and checked for loss, duplicates and order.

The value of row n begins with n, as ten digits. Writers (Spark tasks, or one producer) write
consecutive runs of `rows_per_writer` rows. The rows from one writer to one partition must remain in
order; rows of different writers may be interleaved.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tests.support.kafka.readers import confluent_batches

DIGITS = 10
POWERS = 10 ** np.arange(DIGITS - 1, -1, -1, dtype=np.int64)

RowNumbers = npt.NDArray[np.int64]


class RowCheck(NamedTuple):
    """The result of a check; a correct writer yields only zeros."""

    lost: int = 0
    duplicated: int = 0
    #: Rows that come after a higher number of the same writer in the same partition.
    out_of_order: int = 0
    #: Numbers that were never written.
    foreign: int = 0


def parse_numbers(values: bytes) -> RowNumbers:
    """Parse the numbers in concatenated ten-digit texts."""
    digits = np.frombuffer(values, dtype=np.uint8).reshape(-1, DIGITS).astype(np.int64)
    return (digits - ord("0")) @ POWERS


def read_numbers(bootstrap_servers: str, topic: str) -> dict[int, RowNumbers]:
    """Read a topic's row numbers with confluent-kafka, by partition, in the order of offsets."""
    parts: dict[int, list[RowNumbers]] = {}
    for messages in confluent_batches(bootstrap_servers, topic):
        if not messages:
            continue
        numbers = parse_numbers(b"".join([message.value()[:DIGITS] for message in messages]))
        partitions = np.array([message.partition() for message in messages])
        for partition in np.unique(partitions):
            parts.setdefault(int(partition), []).append(numbers[partitions == partition])
    return {partition: np.concatenate(arrays) for partition, arrays in parts.items()}


def check_rows(
    partitions: dict[int, RowNumbers], rows: int, *, rows_per_writer: int | None = None
) -> RowCheck:
    """Compare what was read with the rows 0 to `rows` - 1, each written once."""
    numbers = np.concatenate([np.empty(0, np.int64), *partitions.values()])
    known = numbers[numbers < rows]
    counts = np.bincount(known, minlength=rows)
    return RowCheck(
        lost=int((counts == 0).sum()),
        duplicated=int((counts[counts > 1] - 1).sum()),
        out_of_order=sum(
            _out_of_order(part, rows_per_writer or rows) for part in partitions.values()
        ),
        foreign=len(numbers) - len(known),
    )


def _out_of_order(numbers: RowNumbers, rows_per_writer: int) -> int:
    """Count the rows with a lower number than their writer's previous row."""
    writers = numbers // rows_per_writer
    by_writer = np.argsort(writers, kind="stable")
    same_writer = np.diff(writers[by_writer]) == 0
    return int((np.diff(numbers[by_writer])[same_writer] < 0).sum())
