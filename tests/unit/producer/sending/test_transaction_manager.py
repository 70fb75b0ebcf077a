import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.model import PreparedTransaction, ProducerIdAndEpoch
from spark_kafka_sink.producer.sending.partition_sequences import increment_sequence
from spark_kafka_sink.producer.sending.transaction_manager import TransactionManager
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.producer.producer_batches import batch
from tests.support.producer.sender_harness import SenderHarness
from tests.support.producer.transaction_managers import manager_with_id

PRODUCER = ProducerIdAndEpoch(1000, 0)


@pytest.fixture
def manager() -> TransactionManager:
    return manager_with_id(PRODUCER)


def _acknowledge_first(manager: TransactionManager) -> None:
    first = batch()
    manager.sequences.assign(first)
    manager.sequences.acknowledge(first)


def test_nothing_is_sent_without_a_producer_id():
    """Without a producer id no batch may be drained."""
    assert not TransactionManager().may_drain(batch())


def test_a_producer_with_its_id_is_settled_until_a_partition_must_restart(manager):
    """Nothing has to be done or requested before batches are sent."""
    assert not TransactionManager().is_settled
    assert not TransactionManager(transactional_id="t").is_settled
    failed = batch()
    manager.sequences.assign(failed)
    assert manager.is_settled
    manager.handle_failed_batch(failed, KafkaError("refused"), outcome_known=True)
    assert not manager.is_settled
    manager.bump_idempotent_epoch_and_reset_id_if_needed()
    assert manager.is_settled
    manager.transition_to_fatal_error(KafkaError("ended"))
    assert not manager.is_settled


def test_sequence_numbers_follow_each_other_within_a_partition(manager):
    """Each batch starts where the last one ended, and each partition counts on its own."""
    first, second, other = batch(0, records=3), batch(0, records=2), batch(1)
    for each in (first, second, other):
        manager.sequences.assign(each)
    assert [0, 3, 0] == [b.base_sequence for b in (first, second, other)]
    assert PRODUCER == first.producer_id_and_epoch


def test_a_retried_batch_keeps_its_sequence_number(manager):
    """Draining a batch again does not renumber it."""
    first, second = batch(records=3), batch()
    manager.sequences.assign(first)
    manager.sequences.assign(first)
    manager.sequences.assign(second)
    assert [0, 3] == [first.base_sequence, second.base_sequence]


def test_sequence_numbers_wrap_to_zero(manager):
    """0 follows 2**31 - 1, never a negative number."""
    big, next_one, last = batch(records=2**31 - 2), batch(records=4), batch()
    for each in (big, next_one, last):
        manager.sequences.assign(each)
    assert [0, 2**31 - 2, 2] == [b.base_sequence for b in (big, next_one, last)]


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_a_sequence_number_is_never_negative(sequence, increment):
    """Incrementing a sequence number stays within 31 bits."""
    assert 0 <= increment_sequence(sequence, increment) < 2**31


def test_several_new_batches_of_a_partition_can_be_in_flight(manager):
    """A new batch need not wait for those before it."""
    _acknowledge_first(manager)
    first, second = batch(), batch()
    manager.sequences.assign(first)
    assert manager.may_drain(second)


def test_no_batch_is_sent_before_the_first_is_acknowledged(manager):
    """A broker accepts any number from an unknown producer, so the first batch must be alone."""
    first, second, other = batch(0), batch(0), batch(1)
    assert manager.may_drain(first)
    manager.sequences.assign(first)
    assert not manager.may_drain(second)
    assert manager.may_drain(other)
    manager.sequences.acknowledge(first)
    assert manager.may_drain(second)


def test_only_the_oldest_retried_batch_is_sent(manager):
    """Retried batches are sent one by one, oldest first."""
    first, second = batch(), batch()
    manager.sequences.assign(first)
    manager.sequences.assign(second)
    assert manager.may_drain(first)
    assert not manager.may_drain(second)
    manager.sequences.acknowledge(first)
    assert manager.may_drain(second)


def test_no_new_batch_is_sent_during_a_retry(manager):
    """No new batch overtakes a retry, because a broker remembers only five batches."""
    retried, new = batch(), batch()
    manager.sequences.assign(retried)
    retried.attempts = 1
    assert not manager.may_drain(new)
    manager.sequences.acknowledge(retried)
    assert manager.may_drain(new)


def test_no_more_batches_are_in_flight_than_a_broker_remembers(manager):
    """The sixth batch of a partition waits until the first of five has been acknowledged."""
    _acknowledge_first(manager)
    batches = [batch() for _ in range(5)]
    for each in batches:
        assert manager.may_drain(each)
        manager.sequences.assign(each)
    assert not manager.may_drain(batch())
    manager.sequences.acknowledge(batches[0])
    assert manager.may_drain(batch())


def test_new_batches_wait_for_the_response_of_a_moved_leader(manager):
    """With five more acknowledged batches the new leader would not recognize the waiting one."""
    _acknowledge_first(manager)
    unanswered, behind = batch(), batch()
    manager.sequences.assign(unanswered)
    manager.sequences.assign(behind)
    manager.sequences.acknowledge(behind)
    assert not manager.may_drain(batch())
    manager.sequences.acknowledge(unanswered)
    assert manager.may_drain(batch())


def test_retried_batches_are_sorted_by_their_sequence_numbers(manager):
    """Retries follow the sequence numbers, whatever the order of the responses."""
    batches = [batch() for _ in range(5)]
    for each in batches:
        manager.sequences.assign(each)
    shuffled = [batches[i] for i in (3, 0, 4, 2, 1)]
    assert batches == manager.sequences.in_retry_order(shuffled)


def test_an_out_of_order_error_behind_an_unacknowledged_batch_is_retried(manager):
    """A batch that overtook a failed one is retried in its turn."""
    first, second = batch(), batch()
    manager.sequences.assign(first)
    manager.sequences.assign(second)
    assert manager.sequences.can_retry(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)


def test_an_unexplained_out_of_order_error_restarts_the_partition_once(manager):
    """Acknowledged records were lost, so the batch is retried once, in a new epoch (KIP-360)."""
    first, second = batch(records=2), batch()
    manager.sequences.assign(first)
    manager.sequences.acknowledge(first)
    manager.sequences.assign(second)
    assert manager.sequences.can_retry(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert not manager.may_drain(second)
    manager.bump_idempotent_epoch_and_reset_id_if_needed()
    assert (ProducerIdAndEpoch(1000, 1), 0) == (second.producer_id_and_epoch, second.base_sequence)
    assert manager.may_drain(second)
    assert not manager.sequences.can_retry(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)


def test_the_parts_of_a_split_batch_share_its_sequence_numbers(manager):
    """A split changes no numbers: the parts cover those of the whole batch, in its place."""
    first, whole, last = batch(records=2), batch(records=5), batch()
    for each in (first, whole, last):
        manager.sequences.assign(each)
    parts = [batch(records=3), batch(records=2)]
    manager.sequences.split(whole, parts)
    assert [2, 5] == [part.base_sequence for part in parts]
    assert [first, *parts, last] == manager.sequences.in_retry_order(
        [last, parts[1], parts[0], first]
    )


@pytest.mark.parametrize("version", [1, 2])
def test_a_prepared_transaction_has_its_transaction_version(version):
    """A prepared transaction has its transaction version, which its end must use (KIP-890)."""
    with SenderHarness(transaction_version=version, transactional_id="x") as harness:
        harness.begin()
        prepared = harness.manager.prepare_transaction()
        assert PreparedTransaction(ProducerIdAndEpoch(1_000, 0), version) == prepared
