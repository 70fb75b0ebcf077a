"""The input row of a record that a broker blames by its index in a batch (KIP-467)."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.producer.batch.producer_batch import (
    MAX_PIECES,
    BatchRows,
    KnownRows,
    RowHistory,
)
from tests.support.producer.gatherer_harness import GathererHarness
from tests.support.record.record_columns import columns


def _slots(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=20), min_size=1, max_size=5),
    st.data(),
)
def test_every_record_of_every_batch_is_found(pieces, data):
    """The index of a record in its slot leads back to its row, however rows were distributed."""
    history = RowHistory()
    first_row = data.draw(st.integers(0, 1_000))
    row = first_row
    for piece in pieces:
        history.add(row, _slots(*piece))
        row += len(piece)
    slots = [slot for piece in pieces for slot in piece]
    begin = data.draw(st.integers(0, len(slots) - 1))
    for slot in range(4):
        rows = [first_row + n for n in range(begin, len(slots)) if slots[n] == slot]
        found = [history.row_of(slot, begin, index) for index in range(len(rows) + 1)]
        assert [*rows, None] == found


@given(
    st.lists(st.lists(st.integers(-1, 2), min_size=1, max_size=9), min_size=1, max_size=5),
    st.data(),
)
def test_all_rows_of_a_batch_are_found(pieces, data):
    """They are the ones that are found one by one, even while the last call is still writing."""
    history = RowHistory(max_rows=data.draw(st.sampled_from([10, 100])))
    for number, piece in enumerate(pieces):
        history.begin(history.position, _slots(*piece))
        if number < len(pieces) - 1 or data.draw(st.booleans()):
            history.add(history.position, _slots(*piece))
    position = data.draw(st.integers(0, sum(map(len, pieces)) - 1))
    whole = BatchRows(history, slot=1, position=position)
    rows = [row for row in map(whole.row_of, range(45)) if row is not None]
    for skipped in range(len(rows) + 1):
        part = whole.behind(skipped)
        for count in range(1, len(rows) - skipped + 1):
            assert rows[skipped : skipped + count] == part.numbers(count).tolist()
        assert part.numbers(len(rows) - skipped + 1) is None


def test_rows_without_numbers_are_not_known_as_rows():
    """Records of `send` have none, and a batch of both kinds has no list of rows."""
    history = RowHistory()
    history.add(5, _slots(0, 0))
    history.add(None, _slots(0))
    assert [5, 6] == BatchRows(history, 0, 0).numbers(2).tolist()
    assert BatchRows(history, 0, 0).numbers(3) is None


def test_rows_that_are_left_of_a_batch_are_known_by_their_numbers():
    """They may be split, too."""
    rows = KnownRows(np.array([3, 7, 8]))
    assert [3, 7] == rows.numbers(2).tolist()
    assert (7, 8) == (rows.row_of(1), rows.behind(2).row_of(0))
    assert rows.is_part


def test_rows_of_a_split_batch_are_found_through_its_parts():
    """Rows of a split batch are looked up through its parts."""
    history = RowHistory()
    history.add(10, _slots(0, 1, 0, 0, 1, 0))
    whole = BatchRows(history, slot=0, position=0)
    assert [10, 12, 13, 15] == [whole.row_of(index) for index in range(4)]
    part = whole.behind(1).behind(2)
    assert 15 == part.row_of(0)
    assert part.row_of(1) is None
    assert 13 == whole.behind(1).behind(1).row_of(0)


def test_only_the_most_recent_rows_are_remembered():
    """Memory is bounded, so an old row is reported as unknown rather than wrong."""
    history = RowHistory(max_rows=10)
    for first_row in range(0, 40, 5):
        history.add(first_row, _slots(*[0] * 5))
    assert 30 == history.row_of(0, 30, 0)
    assert 39 == history.row_of(0, 30, 9)
    assert history.row_of(0, 29, 0) is None


def test_a_single_append_beyond_the_limit_is_forgotten():
    """The bound also holds for a single append of many rows."""
    history = RowHistory(max_rows=10)
    history.add(0, _slots(*[0] * 11))
    assert history.row_of(0, 0, 0) is None


def test_rows_of_two_tables_keep_their_own_numbers():
    """Rows of two tables in one batch keep the numbers of their own callers."""
    history = RowHistory()
    history.add(0, _slots(0, 0, 0))
    history.add(0, _slots(1, 0))
    assert [0, 1, 2, 1] == [history.row_of(0, 0, index) for index in range(4)]
    assert [1, None] == [history.row_of(0, 3, index) for index in range(2)]


def test_records_without_a_row_number_are_skipped():
    """Records sent one by one have no number, and rejected ones are not counted."""
    history = RowHistory()
    history.add(70, _slots(0, 0))
    history.add(None, _slots(0, -1, 1, 0))
    history.add(72, _slots(0))
    assert [70, 71, None, None, 72] == [history.row_of(0, 0, index) for index in range(5)]


def test_gaps_between_rows_do_no_harm():
    """Gaps between the rows of two appends do no harm."""
    history = RowHistory()
    history.add(0, _slots(0))
    history.add(100, _slots(0))
    assert [0, 100] == [history.row_of(0, 0, index) for index in range(2)]


def test_cleared_rows_are_forgotten():
    """After `clear` no earlier row is known, because slots have new numbers."""
    history = RowHistory(max_rows=4)
    history.add(0, _slots(0, 0, 0, 0))
    history.clear()
    assert history.row_of(0, 0, 0) is None
    history.add(4, _slots(0, 0, 0, 0))
    assert 7 == history.row_of(0, 4, 3)
    assert history.row_of(0, 3, 0) is None


def test_rows_are_unknown_after_their_topic_has_grown():
    """Slots are renumbered when a topic grows, so earlier rows are unknown."""
    harness = GathererHarness(lingers=False)
    harness.gatherer.write_columns(columns([b"0", b"1"], partitions=[0, 0]), [1], 0)
    harness.gatherer.write_columns(columns([b"2", b"3"], partitions=[0, 1]), [2], 2)
    harness.gatherer.close_batches()
    found = {
        batch.topic_partition.partition: [batch.rows.row_of(n) for n in range(batch.record_count)]
        for batch in harness.batches
    }
    assert {0: [None, None, None], 1: [3]} == found


def _rows_of(harness: GathererHarness) -> list[int | None]:
    harness.gatherer.close_batches()
    [batch] = harness.batches
    return [batch.rows.row_of(index) for index in range(batch.record_count)]


def test_rows_and_single_records_of_one_batch_are_distinguished():
    """Sent records have no row, and rows of a table and of a task have their own."""
    harness = GathererHarness(lingers=False)
    harness.gatherer.write_columns(columns([b"70", b"71"]), [1], 70)
    harness.stage(b"a")
    harness.gatherer.write_table(columns([b"0", b"1"]), [1], 0)
    harness.stage(b"b")
    assert [70, 71, None, 0, 1, None] == _rows_of(harness)
    assert "6 records for t-0, from row 70 on" == str(harness.batches[0])


def test_a_batch_of_single_records_names_no_rows():
    """Single records have no numbers, nor does a batch that starts with them."""
    harness = GathererHarness(lingers=False)
    harness.stage(b"a")
    assert [None] == _rows_of(harness)
    assert "1 record for t-0" == str(harness.batches.pop())
    harness.stage(b"a")
    harness.gatherer.write_columns(columns([b"70", b"71"]), [1], 70)
    assert [None, 70, 71] == _rows_of(harness)
    assert "3 records for t-0" == str(harness.batches[0])


def test_single_records_do_not_change_the_range_of_rows():
    """The range of a batch that mixes both covers its rows only."""
    harness = GathererHarness(lingers=False, **{"batch.size": 200})
    harness.gatherer.write_columns(columns([b"70", b"71"]), [1], 70)
    for _ in range(10):
        harness.stage(bytes(40))
    harness.gatherer.close_batches()
    assert str(harness.batches[0]).endswith("among rows 70 to 71")
    assert {None} == {batch.first_row for batch in harness.batches[1:]}


def test_a_rejected_record_does_not_shift_the_others():
    """A record that is too large is in no batch, and those behind it are still found."""
    harness = GathererHarness(lingers=False, **{"max.request.size": 1_000})
    for value in (b"a", bytes(2_000), b"b"):
        harness.stage(value)
    harness.gatherer.write_columns(columns([b"70"]), [1], 70)
    assert [None, None, 70] == _rows_of(harness)


def test_records_that_are_sent_alone_do_not_fill_the_memory():
    """Each of them takes a piece of its own, of which only the latest are kept."""
    history = RowHistory()
    for row in range(MAX_PIECES + 1):
        history.add(row, _slots(0))
    assert MAX_PIECES == len(history._pieces)
    assert (None, 1) == (history.row_of(0, 0, 0), history.row_of(0, 1, 0))
