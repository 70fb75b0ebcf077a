"""The order within a partition when a broker has forgotten batches that it may have appended."""

from __future__ import annotations

import threading

import pytest

from spark_kafka_sink.model import NO_PRODUCER_ID_AND_EPOCH, ProducerIdAndEpoch
from spark_kafka_sink.producer.sending.partition_sequences import PartitionSequences
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.producer.producer_batches import batch, snapshot

OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.fixture
def sequences():
    """Return an idempotent producer's sequences after one acknowledged batch of one record."""
    made = PartitionSequences(threading.RLock(), is_transactional=False)
    made.producer_id_and_epoch = ProducerIdAndEpoch(1, 0)
    first = batch()
    made.assign(first)
    made.acknowledge(first)
    return made


def assigned(sequences: PartitionSequences, count: int):
    """Return batches of one record that have sequence numbers."""
    batches = [batch() for _ in range(count)]
    for each in batches:
        sequences.assign(each)
    return batches


@pytest.mark.parametrize("code", [OUT_OF_ORDER, ErrorCode.UNKNOWN_PRODUCER_ID])
def test_a_batch_that_may_have_been_appended_is_not_renumbered(sequences, code):
    """An unexplained gap does not renumber a batch that the broker may have appended."""
    (unanswered,) = assigned(sequences, 1)
    unanswered.may_be_appended = True
    assert not sequences.can_retry(unanswered, code, log_start_offset=0)


def test_a_batch_that_cannot_have_been_appended_is_renumbered(sequences):
    """The same gap renumbers a batch that cannot have been appended (KIP-360)."""
    (refused,) = assigned(sequences, 1)
    assert sequences.can_retry(refused, OUT_OF_ORDER, log_start_offset=0)


@pytest.mark.parametrize("is_transactional", [False, True])
def test_a_batch_of_a_moved_partition_is_retried(is_transactional):
    """A batch is retried until the new leader reports its log start offset."""
    sequences = PartitionSequences(threading.RLock(), is_transactional=is_transactional)
    sequences.producer_id_and_epoch = ProducerIdAndEpoch(1, 0)
    (unanswered,) = assigned(sequences, 1)
    unanswered.may_be_appended = True
    unknown = ErrorCode.UNKNOWN_PRODUCER_ID
    assert sequences.can_retry(unanswered, unknown, log_start_offset=-1)
    assert not sequences.can_retry(unanswered, unknown, log_start_offset=0)


def test_no_batch_behind_one_that_may_have_been_appended_is_renumbered(sequences):
    """Batches behind one that may have been appended fail too, and none is renumbered."""
    unanswered = assigned(sequences, 3)
    for each in unanswered:
        each.may_be_appended = True
        each.attempts = 1
    numbers = [each.base_sequence for each in unanswered]
    for each in unanswered:
        assert not sequences.can_retry(each, OUT_OF_ORDER, log_start_offset=0)
        sequences.fail(each, outcome_known=True)
        assert sequences.restart_quiet_partitions()
    assert numbers == [each.base_sequence for each in unanswered]
    assert ProducerIdAndEpoch(1, 0) == sequences.producer_id_and_epoch


def test_a_new_epoch_starts_after_batches_that_may_have_been_appended_have_failed(sequences):
    """After such a failure later records continue at sequence 0 of the next epoch."""
    (unanswered,) = assigned(sequences, 1)
    unanswered.may_be_appended = True
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
def test_the_parts_of_a_split_batch_share_its_numbers_across_the_wrap(sequences, counts, numbers):
    """0 follows 2^31 - 1, in the middle of a batch as well."""
    whole = batch(records=4)
    entry = sequences._partitions[whole.topic_partition]
    entry.next_sequence = 2**31 - 2
    sequences.assign(whole)
    parts = [batch(records=count) for count in counts]
    sequences.split(whole, parts)
    assert numbers == [part.base_sequence for part in parts]
    assert {ProducerIdAndEpoch(1, 0)} == {part.producer_id_and_epoch for part in parts}
    assert parts == entry.in_flight
    assert 2 == entry.next_sequence


@pytest.mark.parametrize(("log_start_offset", "may_retry"), [(5, False), (6, True)])
def test_a_forgotten_transaction_continues_only_if_its_records_were_deleted(
    log_start_offset, may_retry
):
    """If the log still has our last record, a broker that forgot us has lost more records."""
    sequences = PartitionSequences(threading.RLock(), is_transactional=True)
    sequences.producer_id_and_epoch = ProducerIdAndEpoch(1, 0)
    (first,) = assigned(sequences, 1)
    sequences.acknowledge(first, 5)
    (second,) = assigned(sequences, 1)
    unknown = ErrorCode.UNKNOWN_PRODUCER_ID
    assert may_retry == sequences.can_retry(second, unknown, log_start_offset)


@pytest.mark.parametrize(("log_start_offset", "may_retry"), [(7, False), (8, True)])
@pytest.mark.parametrize("offsets", [(5, 0), (0, 5)], ids=str)
def test_the_highest_last_offset_of_all_batches_counts(offsets, log_start_offset, may_retry):
    """The highest last offset of all batches counts, in whatever order they were acknowledged."""
    sequences = PartitionSequences(threading.RLock(), is_transactional=True)
    sequences.producer_id_and_epoch = ProducerIdAndEpoch(1, 0)
    batches = [batch(records=3) for _ in offsets]
    for each, offset in zip(batches, offsets, strict=True):
        sequences.assign(each)
        sequences.acknowledge(each, offset)
    sequences.acknowledge(batches[0], -1)
    (later,) = assigned(sequences, 1)
    unknown = ErrorCode.UNKNOWN_PRODUCER_ID
    assert may_retry == sequences.can_retry(later, unknown, log_start_offset)


# --- draining


@pytest.mark.parametrize("in_flight", range(7))
def test_a_broker_is_sent_no_more_batches_than_it_remembers(sequences, in_flight):
    """A broker recognizes duplicates among the last five batches only (ProducerStateEntry)."""
    assigned(sequences, in_flight)
    assert (in_flight < 5) == sequences.may_drain(batch())


@pytest.mark.parametrize("in_flight", range(3))
def test_the_very_first_batch_is_sent_alone(in_flight):
    """The first batch is sent alone, because the broker could take a later one for the first."""
    sequences = PartitionSequences(threading.RLock(), is_transactional=False)
    sequences.producer_id_and_epoch = ProducerIdAndEpoch(1, 0)
    assigned(sequences, in_flight)
    assert (in_flight == 0) == sequences.may_drain(batch())


@pytest.mark.parametrize(("failed", "may_drain"), [(None, True), (0, False), (1, True), (2, True)])
def test_new_batches_wait_while_the_first_in_flight_is_retried(sequences, failed, may_drain):
    """During a retry new batches are not sent, as they would be refused as out of order."""
    batches = assigned(sequences, 3)
    if failed is not None:
        batches[failed].attempts = 1
    assert may_drain == sequences.may_drain(batch())


def test_only_the_first_batch_in_flight_is_resent(sequences):
    """Only the first batch in flight is resent, and those behind it follow in order."""
    batches = assigned(sequences, 3)
    assert [True, False, False] == [sequences.may_drain(each) for each in batches]
    sequences.acknowledge(batches[0])
    assert [True, False] == [sequences.may_drain(each) for each in batches[1:]]


def test_new_batches_wait_while_a_sequence_number_is_missing(sequences):
    """New batches wait while a number is missing, but the first in flight may be retried."""
    lost, *others = assigned(sequences, 3)
    sequences.fail(lost, outcome_known=False)
    assert not sequences.may_drain(batch())
    assert sequences.may_drain(others[0])
    entry = sequences._partitions[lost.topic_partition]
    entry.unresolved_sequence = None
    assert not sequences.may_drain(batch())


def test_new_batches_wait_for_the_old_epoch_to_be_answered(sequences):
    """The new epoch starts at 0 after every batch of the old epoch has been answered."""
    (older,) = assigned(sequences, 1)
    sequences.producer_id_and_epoch = ProducerIdAndEpoch(1, 1)
    assert [False, True] == [sequences.may_drain(each) for each in (batch(), older)]
    sequences.acknowledge(older)
    assert sequences.may_drain(batch())


def test_epochs_are_compared_by_value(sequences):
    """Epochs are compared by value, not by identity."""
    assigned(sequences, 1)
    sequences.producer_id_and_epoch = ProducerIdAndEpoch(1, 0)
    assert sequences.may_drain(batch())


def test_nothing_is_sent_before_a_pending_restart(sequences):
    """Neither batches with a sequence number nor new ones are drained until the restart."""
    refused, other = assigned(sequences, 2)
    sequences.fail(refused, outcome_known=True)
    assert [False, False] == [sequences.may_drain(each) for each in (other, batch())]
    assert sequences.restart_quiet_partitions()
    assert [True, False] == [sequences.may_drain(each) for each in (other, batch())]


# --- many partitions


def _with_batches(count: int) -> tuple[PartitionSequences, list]:
    """Build a numbered batch for each partition; those of odd partitions are in flight."""
    sequences = PartitionSequences(threading.RLock(), is_transactional=False)
    sequences.producer_id_and_epoch = ProducerIdAndEpoch(1, 0)
    sequences.follow_topics(snapshot({}, topic_id=2).topics)
    batches = [batch(partition) for partition in range(count)]
    for each in batches:
        sequences.assign(each)
        each.is_in_flight = each.topic_partition.partition % 2 == 1
    return sequences, batches


@pytest.mark.parametrize("topic_id", [1, 3])
def test_quiet_partitions_of_a_new_topic_restart_at_once(topic_id):
    """Quiet partitions restart at once, and others after their responses; ids are not ordered."""
    sequences, batches = _with_batches(40)
    nameless = snapshot({}, topic_id=0).topics["t"]
    topics = {"unknown": nameless, **snapshot({}, topic_id=topic_id).topics}
    sequences.follow_topics(topics)
    for epochs in ([1, 0] * 20, [1, 1] * 20):
        assert sequences.restart_quiet_partitions()
        assert epochs == [each.producer_id_and_epoch.epoch for each in batches]
        for each in batches:
            each.is_in_flight = False
    assert {0} == {each.base_sequence for each in batches}


def test_partitions_whose_batches_have_ended_are_resolved():
    """Partitions are resolved without waiting for others that have unanswered batches."""
    sequences, batches = _with_batches(40)
    behind = [batch(partition) for partition in range(1, 40, 2)]
    for each in behind:
        sequences.assign(each)
    for each in batches:
        each.is_in_flight = False
        sequences.fail(each, outcome_known=False)
    sequences.resolve()
    assert sequences.restart_quiet_partitions()
    later = [batch(partition) for partition in range(0, 40, 2)]
    for each in later:
        sequences.assign(each)
    assert {(0, 1)} == {(each.base_sequence, each.producer_id_and_epoch.epoch) for each in later}
    assert {(1, 0)} == {(each.base_sequence, each.producer_id_and_epoch.epoch) for each in behind}


# --- recreated topics


@pytest.fixture
def replaced():
    """Return sequences whose topic was recreated while two batches had numbers, and the batches."""
    sequences = PartitionSequences(threading.RLock(), is_transactional=False)
    sequences.producer_id_and_epoch = ProducerIdAndEpoch(1, 0)
    sequences.follow_topics(snapshot({}, topic_id=1).topics)
    batches = assigned(sequences, 2)
    batches[0].may_be_appended = True
    sequences.follow_topics(snapshot({}, topic_id=2).topics)
    return sequences, batches


def test_only_a_batch_that_may_have_been_appended_keeps_its_number_in_a_new_log(replaced):
    """The batch is sent alone, because its response decides the numbers of those behind it."""
    sequences, (first, second) = replaced
    assert sequences.restart_quiet_partitions()
    assert [True, False, False] == [sequences.may_drain(b) for b in (first, second, batch())]
    second.is_in_flight = True
    assert not sequences.may_drain(first)
    sequences.remove(first)
    sequences.remove(second)
    assert not sequences.may_drain(batch())
    assert sequences.restart_quiet_partitions()
    assert sequences.may_drain(batch())


@pytest.mark.parametrize("code", [OUT_OF_ORDER, ErrorCode.UNKNOWN_PRODUCER_ID])
def test_a_response_to_the_old_numbers_does_not_reject_the_new_ones(replaced, code):
    """A batch that cannot have been appended is retried; one that may have been is not."""
    sequences, (first, second) = replaced
    assert not sequences.can_retry(first, code, log_start_offset=0)
    first.may_be_appended = False
    assert sequences.can_retry(first, code, log_start_offset=0)
    assert sequences.can_retry(second, code, log_start_offset=0)
    assert sequences.restart_quiet_partitions()
    assert [0, 1] == [each.base_sequence for each in (first, second)]


def test_a_batch_about_to_be_renumbered_is_retried_after_any_error(sequences):
    """A batch that is about to be renumbered is retried, whatever the broker's error is."""
    waiting, refused = assigned(sequences, 2)
    waiting.may_be_appended = True
    sequences.fail(refused, outcome_known=True)
    assert sequences.can_retry(waiting, OUT_OF_ORDER, log_start_offset=0)


@pytest.mark.parametrize("flag", ["is_in_flight", "may_be_appended"])
def test_a_waiting_partition_does_not_delay_the_restart_of_others(flag):
    """A waiting partition does not delay the restart of others."""
    sequences, batches = _with_batches(40)
    for each in batches:
        each.is_in_flight = False
        setattr(each, flag, each.topic_partition.partition % 2 == 1)
    sequences.follow_topics(snapshot({}, topic_id=3).topics)
    assert sequences.restart_quiet_partitions()
    assert [1, 0] * 20 == [each.producer_id_and_epoch.epoch for each in batches]
    for each in batches[::2]:
        sequences.acknowledge(each)
        assert sequences.may_drain(batch(each.topic_partition.partition))


def test_sequence_numbers_restart_once_the_producer_has_an_id(sequences):
    """After the last epoch nothing is numbered until there is a new producer id."""
    refused, waiting = assigned(sequences, 2)
    sequences.fail(refused, outcome_known=True)
    sequences.producer_id_and_epoch = NO_PRODUCER_ID_AND_EPOCH
    assert sequences.restart_quiet_partitions()
    assert (ProducerIdAndEpoch(1, 0), 2) == (waiting.producer_id_and_epoch, waiting.base_sequence)
    newer = sequences.producer_id_and_epoch = ProducerIdAndEpoch(2, 0)
    assert sequences.restart_quiet_partitions()
    assert (newer, 0) == (waiting.producer_id_and_epoch, waiting.base_sequence)
    assert newer == sequences.producer_id_and_epoch


@pytest.mark.parametrize(
    ("epoch", "next_epoch"), [(32_765, 32_766), (32_766, 32_767), (32_767, None)]
)
def test_a_new_producer_id_follows_the_last_epoch(sequences, epoch, next_epoch):
    """After the last epoch, 32767, a new producer id is needed."""
    sequences.producer_id_and_epoch = ProducerIdAndEpoch(1, epoch)
    refused, waiting = batch(1), batch(1)
    for each in (refused, waiting):
        sequences.assign(each)
    sequences.fail(refused, outcome_known=True)
    assert (next_epoch is not None) == sequences.restart_quiet_partitions()
    expected = NO_PRODUCER_ID_AND_EPOCH if next_epoch is None else (1, next_epoch)
    assert expected == sequences.producer_id_and_epoch
