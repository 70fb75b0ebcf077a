"""The sequence numbers of a partition: counted, compared, assigned and restarted."""

from __future__ import annotations

import pytest

from spark_kafka_sink.model import NO_PRODUCER_ID_AND_EPOCH, ProducerIdAndEpoch
from spark_kafka_sink.producer.sending.partition_sequences import (
    TxnPartitionEntry,
    increment_sequence,
    is_older_sequence,
)
from tests.support.producer.producer_batches import batch

PRODUCER = ProducerIdAndEpoch(1, 0)
LAST = 2_147_483_647


def _entry(*record_counts: int, producer: ProducerIdAndEpoch = PRODUCER) -> TxnPartitionEntry:
    """Build an entry whose batches in flight have the given record counts."""
    entry = TxnPartitionEntry()
    for records in record_counts:
        entry.assign(batch(records=records), producer, is_transactional=False)
    return entry


def _numbers(entry: TxnPartitionEntry) -> list[int]:
    return [each.base_sequence for each in entry.in_flight]


def test_a_partition_starts_at_0_without_a_history():
    """A new entry has no producer, no numbers and nothing to wait for."""
    entry = TxnPartitionEntry()
    assert (0, 0) == (entry.next_sequence, entry.first_sequence)
    assert (-1, -1) == (entry.last_acked_sequence, entry.last_acked_offset)
    assert NO_PRODUCER_ID_AND_EPOCH == entry.producer_id_and_epoch
    assert (entry.unresolved_sequence, entry.restarted_for) == (None, None)
    assert [False] * 3 == [entry.restart_requested, entry.has_gap, entry.log_replaced]


@pytest.mark.parametrize(
    ("sequence", "increment", "following"),
    [(0, 1, 1), (5, 3, 8), (LAST - 1, 1, LAST), (LAST, 1, 0), (LAST, 5, 4), (3, -5, LAST - 1)],
)
def test_sequence_numbers_wrap_to_0(sequence, increment, following):
    """0 follows the last number, 2^31 - 1."""
    assert following == increment_sequence(sequence, increment)


@pytest.mark.parametrize(
    ("sequence", "than", "is_older"),
    [
        (0, 0, False),
        (int("1000"), int("1000"), False),
        (0, 1, True),
        (1, 0, False),
        (LAST, 0, True),
        (0, LAST, False),
        (0, 2**30 - 1, True),
        (0, 2**30, False),
        (2**30 + 5, 5, False),
        (2**30 + 6, 5, True),
    ],
)
def test_a_sequence_number_is_older_than_the_next_half_of_all_numbers(sequence, than, is_older):
    """No more than half of all numbers can be in flight."""
    assert is_older == is_older_sequence(sequence, than)


# --- assigning numbers


def test_sequence_numbers_continue_from_batch_to_batch():
    """A batch takes as many numbers as it has records."""
    entry = _entry(3, 1, 2)
    assert [0, 3, 4] == _numbers(entry)
    assert (6, PRODUCER) == (entry.next_sequence, entry.producer_id_and_epoch)


def test_a_new_producer_id_starts_at_0_once_nothing_is_in_flight():
    """While batches are in flight, new ones keep the producer id and epoch of the first."""
    entry = _entry(3)
    newer = ProducerIdAndEpoch(1, 1)
    second, third = batch(), batch()
    entry.assign(second, newer, is_transactional=True)
    assert (PRODUCER, 3, True) == (
        second.producer_id_and_epoch,
        second.base_sequence,
        second.is_transactional,
    )
    for each in list(entry.in_flight):
        assert entry.remove(each)
    entry.assign(third, newer, is_transactional=False)
    assert (newer, 0, False) == (
        third.producer_id_and_epoch,
        third.base_sequence,
        third.is_transactional,
    )
    assert 1 == entry.next_sequence


def test_a_new_producer_id_can_have_a_lower_epoch():
    """A new producer id begins with epoch 0."""
    entry = _entry(3, producer=ProducerIdAndEpoch(2, 5))
    entry.remove(entry.in_flight[0])
    later = batch()
    entry.assign(later, ProducerIdAndEpoch(1, 9), is_transactional=False)
    assert (0, ProducerIdAndEpoch(1, 9)) == (later.base_sequence, later.producer_id_and_epoch)


def test_a_restart_renumbers_batches_in_flight_from_0():
    """A restart renumbers the batches in flight from 0, in order, and resets everything else."""
    entry = _entry(3, 1, 2)
    first, second, third = entry.in_flight
    entry.acknowledge(first)
    entry.mark_unresolved(second)
    entry.restart_requested = entry.has_gap = True
    entry.first_sequence = 3
    newer = ProducerIdAndEpoch(1, 1)
    entry.restart(newer)
    assert [(0, newer), (1, newer)] == [
        (each.base_sequence, each.producer_id_and_epoch) for each in (second, third)
    ]
    assert (3, 0, -1) == (entry.next_sequence, entry.first_sequence, entry.last_acked_sequence)
    assert (None, False, False) == (
        entry.unresolved_sequence,
        entry.restart_requested,
        entry.has_gap,
    )


# --- acknowledgements


def test_a_sequence_number_is_next_if_all_before_it_are_acknowledged():
    """A number is next if it follows the last acknowledged one, or is the first in an empty log."""
    entry = _entry(3, 1)
    assert [True, False] == [entry.is_next_sequence(number) for number in (0, 3)]
    entry.acknowledge(entry.in_flight[0])
    assert [False, True, False, False] == [entry.is_next_sequence(n) for n in (2, 3, 4, 0)]


def test_0_is_next_after_the_last_sequence_number():
    """A batch may span the last number and 0."""
    entry = TxnPartitionEntry(producer_id_and_epoch=PRODUCER, next_sequence=LAST)
    batches = [batch(records=records) for records in (1, 2)]
    for each in batches:
        entry.assign(each, PRODUCER, is_transactional=False)
    assert [LAST, 0] == [each.base_sequence for each in batches]
    entry.acknowledge(batches[0])
    assert entry.is_next_sequence(0)
    entry.acknowledge(batches[1])
    assert (1, True) == (entry.last_acked_sequence, entry.is_next_sequence(2))


def test_a_late_acknowledgement_does_not_undo_later_ones():
    """A late acknowledgement does not undo later ones, and is ignored after a removal."""
    entry = _entry(2, 2, 2)
    first, second, third = entry.in_flight
    entry.acknowledge(second)
    assert 3 == entry.last_acked_sequence
    entry.acknowledge(first)
    assert 3 == entry.last_acked_sequence
    assert entry.remove(third)
    assert not entry.remove(third)
    entry.acknowledge(third)
    assert (3, []) == (entry.last_acked_sequence, entry.in_flight)


def test_a_new_log_starts_with_the_first_batch_in_flight():
    """A new log begins with the first batch in flight, or with the next batch if there is none."""
    entry = _entry(3, 1, 2)
    first, second, third = entry.in_flight
    entry.acknowledge(first)
    entry.last_acked_offset = 7
    entry.forget_acknowledged()
    assert (3, -1, -1) == (entry.first_sequence, entry.last_acked_sequence, entry.last_acked_offset)
    assert [True, False] == [entry.is_next_sequence(each.base_sequence) for each in (second, third)]
    entry.remove(second)
    entry.remove(third)
    entry.forget_acknowledged()
    assert 6 == entry.first_sequence


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=str)
def test_the_highest_unresolved_sequence_number_counts(order):
    """The highest unresolved number counts, in whichever order batches were given up."""
    entry = _entry(2, 3)
    batches = list(entry.in_flight)
    for number in order:
        entry.mark_unresolved(batches[number])
    assert 5 == entry.unresolved_sequence


def test_a_partition_is_quiet_while_no_broker_has_a_batch_of_it():
    """A partition is quiet if no broker holds a batch, even if one may have been appended."""
    entry = _entry(1, 1)
    assert (True, False) == (entry.is_quiet, entry.may_have_unanswered)
    entry.in_flight[1].is_in_flight = True
    assert (False, False) == (entry.is_quiet, entry.may_have_unanswered)
    entry.in_flight[1].is_in_flight = False
    entry.in_flight[1].may_be_appended = True
    assert (True, True) == (entry.is_quiet, entry.may_have_unanswered)
