"""Some rows of a column of byte strings, copied."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.record.columns import BytesColumn, null_column
from spark_kafka_sink.record.kernel.take_kernel import ByteRows, joined, take_rows, write_numbers
from tests.support.record.record_columns import bytes_column


def cells(column):
    """Return the byte strings of a column."""
    bits = column.validity_offset + np.arange(column.offsets.size - 1)
    valid = np.unpackbits(column.validity, bitorder="little")[bits] if column.validity.size else 1
    return [
        column.data[start:end].tobytes() if is_valid else None
        for start, end, is_valid in zip(
            column.offsets[:-1], column.offsets[1:], np.broadcast_to(valid, bits.shape), strict=True
        )
    ]


@given(st.lists(st.none() | st.binary(max_size=600), min_size=1, max_size=20), st.data())
def test_any_rows_can_be_taken_in_any_order(values, data):
    """Nulls, and rows that are chosen several times, are as in the column, or in a part of it."""
    rows = data.draw(st.lists(st.integers(0, len(values) - 1)))
    column = bytes_column(values)
    taken = joined([take_rows(column, np.array(rows, np.int64))])
    assert [values[row] for row in rows] == cells(taken)
    skip = data.draw(st.integers(0, len(values) - 1))
    part = BytesColumn(
        np.ascontiguousarray(column.offsets[skip:]), column.data, column.validity, skip
    )
    assert values[skip:] == cells(joined([take_rows(part, np.arange(len(values) - skip))]))


def test_limits_cut_what_is_longer():
    """Each row has its own; nulls remain, and the limits are not changed."""
    column = bytes_column([b"abc", None, b"de", b"f"])
    limits = np.array([2, 2, 2, 0])
    taken = take_rows(column, np.arange(4), limits)
    assert [b"ab", None, b"de", b""] == cells(joined([taken]))
    assert [2, 2, 2, 0] == limits.tolist()


def test_parts_of_several_columns_are_joined():
    """A column has a bitmap only if a row is null."""
    parts = [
        take_rows(bytes_column([b"a", b"b"]), np.array([1])),
        ByteRows(np.zeros(0, np.int64), np.zeros(0, np.uint8)),
        take_rows(bytes_column([b"c" * 10_000]), np.array([0, 0])),
    ]
    column = joined(parts)
    assert ([b"b", b"c" * 10_000, b"c" * 10_000], 0) == (cells(column), column.validity.size)
    parts.append(take_rows(null_column(3), np.array([2])))
    assert [b"b", b"c" * 10_000, b"c" * 10_000, None] == cells(joined(parts))


@pytest.mark.parametrize("row", [-1, 2, 2**40])
def test_a_row_that_is_not_there_is_rejected(row):
    """Nothing beside the column is read."""
    with pytest.raises(ValueError, match="a row is not among the 2 of the column"):
        take_rows(bytes_column([b"a", b"b"]), np.array([0, row]))


def test_numbers_are_written_in_front_of_their_ends():
    """Each has as many digits as it needs, if there is room for them."""
    target = np.full(40, ord("."), np.uint8)
    numbers = [0, 7, 10, 2**63 - 1, 12345]
    write_numbers(np.array(numbers), np.array([1, 3, 6, 30, 2]), target)
    assert b"457.10....." + b"9223372036854775807" + b"." * 10 == target.tobytes()


def test_an_end_that_is_not_in_the_target_is_rejected():
    """Nothing beside the target is written."""
    for numbers, ends in (([1], [5]), ([1, 2], [3]), ([1], [])):
        with pytest.raises(ValueError, match="each number needs an end within the target"):
            write_numbers(np.array(numbers), np.array(ends, np.int64), np.zeros(4, np.uint8))
