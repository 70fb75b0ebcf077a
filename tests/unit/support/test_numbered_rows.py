"""The check for lost, duplicated and reordered rows."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.record.numbered_rows import RowCheck, check_rows, parse_numbers


def partitions(*numbers):
    return {i: np.array(part, dtype=np.int64) for i, part in enumerate(numbers)}


def test_numbers_are_read_from_ten_digits():
    """Concatenated texts of ten digits are parsed to their numbers in order."""
    assert [0, 12, 9_876_543_210] == parse_numbers(b"000000000000000000129876543210").tolist()


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (partitions([0, 2, 4], [1, 3, 5]), RowCheck()),
        (partitions([0, 2, 3, 1, 4, 5]), RowCheck(out_of_order=1)),
        (partitions([0, 1, 2], [4, 5]), RowCheck(lost=1)),
        (partitions([0, 1, 2], [3, 4, 5, 5, 5]), RowCheck(duplicated=2)),
        (partitions([0, 1, 2], [3, 4, 5, 6]), RowCheck(foreign=1)),
        (partitions(), RowCheck(lost=6)),
    ],
)
def test_each_fault_is_counted(read, expected):
    """Lost, duplicated, reordered and foreign rows are counted separately."""
    assert expected == check_rows(read, 6)


def test_writers_can_interleave_but_each_keeps_its_order():
    """Rows of different writers may interleave in a partition, but not change their own order."""
    assert RowCheck() == check_rows(partitions([3, 0, 4, 1, 5, 2]), 6, rows_per_writer=3)
    expected = RowCheck(out_of_order=1)
    assert expected == check_rows(partitions([3, 1, 4, 0, 5, 2]), 6, rows_per_writer=3)
