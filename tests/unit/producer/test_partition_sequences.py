"""The order of a partition when a broker has forgotten what it may have appended."""

from __future__ import annotations

import pytest

from spark_kafka_sink.model import ProducerIdAndEpoch
from spark_kafka_sink.producer.partition_sequences import PartitionSequences
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.producer_batches import batch

OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.fixture
def sequences():
    """Give an idempotent producer with an id, of which one batch of a record is acknowledged."""
    made = PartitionSequences(is_transactional=False)
    made.producer_id_and_epoch = ProducerIdAndEpoch(1, 0)
    first = batch()
    made.assign(first)
    made.acknowledge(first)
    return made


def assigned(sequences: PartitionSequences, count: int):
    """Give batches of one record, numbered and on their way."""
    batches = [batch() for _ in range(count)]
    for each in batches:
        sequences.assign(each)
    return batches


@pytest.mark.parametrize("code", [OUT_OF_ORDER, ErrorCode.UNKNOWN_PRODUCER_ID])
def test_a_batch_that_may_be_in_gets_no_new_number(sequences, code):
    """An unexplained gap does not restart the numbers of a batch that was not answered before."""
    (unanswered,) = assigned(sequences, 1)
    unanswered.may_be_in = True
    assert not sequences.can_retry(unanswered, code, log_start_offset=0)


def test_a_batch_that_was_never_sent_in_vain_gets_a_new_number(sequences):
    """The same gap restarts the numbers of a batch that cannot be in (KIP-360)."""
    (refused,) = assigned(sequences, 1)
    assert sequences.can_retry(refused, OUT_OF_ORDER, log_start_offset=0)


@pytest.mark.parametrize("is_transactional", [False, True])
def test_a_partition_that_has_just_moved_is_asked_again(is_transactional):
    """Where its log begins is unknown until its new leader says so: nothing is decided before."""
    sequences = PartitionSequences(is_transactional=is_transactional)
    sequences.producer_id_and_epoch = ProducerIdAndEpoch(1, 0)
    (unanswered,) = assigned(sequences, 1)
    unanswered.may_be_in = True
    unknown = ErrorCode.UNKNOWN_PRODUCER_ID
    assert sequences.can_retry(unanswered, unknown, log_start_offset=-1)
    assert not sequences.can_retry(unanswered, unknown, log_start_offset=0)


def test_no_batch_behind_one_that_may_be_in_gets_a_new_number(sequences):
    """What follows a failed batch that may be in may be in, too: each fails, none is renumbered."""
    unanswered = assigned(sequences, 3)
    for each in unanswered:
        each.may_be_in = True
        each.attempts = 1
    numbers = [each.base_sequence for each in unanswered]
    for each in unanswered:
        assert not sequences.can_retry(each, OUT_OF_ORDER, log_start_offset=0)
        sequences.fail(each, outcome_known=True)
        assert sequences.restart_quiet_partitions()
    assert numbers == [each.base_sequence for each in unanswered]
    assert ProducerIdAndEpoch(1, 0) == sequences.producer_id_and_epoch


def test_after_all_that_may_be_in_has_failed_a_new_epoch_begins(sequences):
    """Later records go on from 0 under the next epoch, so nothing stands still."""
    (unanswered,) = assigned(sequences, 1)
    unanswered.may_be_in = True
    sequences.fail(unanswered, outcome_known=True)
    sequences.resolve()
    assert sequences.restart_quiet_partitions()
    (later,) = assigned(sequences, 1)
    assert (ProducerIdAndEpoch(1, 1), 0) == (later.producer_id_and_epoch, later.base_sequence)


@pytest.mark.parametrize(
    ("counts", "numbers"),
    [
        ((2, 2), [2**31 - 2, 0]),
        ((1, 2, 1), [2**31 - 2, 2**31 - 1, 1]),
        ((3, 1), [2**31 - 2, 1]),
    ],
    ids=str,
)
def test_the_parts_of_a_batch_take_over_its_numbers_also_where_they_wrap(
    sequences, counts, numbers
):
    """Behind 2^31 - 1 comes 0, in the middle of a batch as well."""
    whole = batch(records=4)
    entry = sequences._partitions.entry(whole.topic_partition)
    entry.next_sequence = 2**31 - 2
    sequences.assign(whole)
    parts = [batch(records=count) for count in counts]
    sequences.split(whole, parts)
    assert numbers == [part.base_sequence for part in parts]
    assert {ProducerIdAndEpoch(1, 0)} == {part.producer_id_and_epoch for part in parts}
    assert parts == entry.in_flight
    assert 2 == entry.next_sequence


@pytest.mark.parametrize(("log_start_offset", "may_retry"), [(5, False), (6, True)])
def test_a_transaction_goes_on_only_if_all_of_its_records_were_deleted(log_start_offset, may_retry):
    """While the log still has our last record, a broker that has forgotten us has lost more."""
    sequences = PartitionSequences(is_transactional=True)
    sequences.producer_id_and_epoch = ProducerIdAndEpoch(1, 0)
    (first,) = assigned(sequences, 1)
    sequences.acknowledge(first)
    sequences.note_offset(first, 5)
    (second,) = assigned(sequences, 1)
    unknown = ErrorCode.UNKNOWN_PRODUCER_ID
    assert may_retry == sequences.can_retry(second, unknown, log_start_offset)
