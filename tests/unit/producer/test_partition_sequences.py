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
