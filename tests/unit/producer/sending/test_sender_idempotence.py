"""Sequence numbers: how the Sender restores the order of an idempotent producer.

The scenarios are those of Kafka's SenderTest; time is an argument.
"""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import (
    BrokerError,
    DeliveryError,
    FatalProducerError,
)
from spark_kafka_sink.model import ProducerIdAndEpoch
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.producer.sender_harness import (
    LATER,
    PLAIN,
    PRODUCER_ID,
    SenderHarness,
    numbers,
)

# --- idempotence


def test_an_idempotent_producer_requests_its_id_before_the_first_batch():
    """No id is requested before the first batch, and nothing is sent before it arrives."""
    with SenderHarness() as harness:
        harness.step()
        assert [] == harness.network.sent
        harness.add()
        harness.step()
        assert None is harness.network.sent[0].request.transactional_id
        harness.init_producer_id()
        assert ApiKey.PRODUCE == harness.take().request.api_key


def test_a_producer_id_request_is_retried_after_a_transient_error():
    """COORDINATOR_LOAD_IN_PROGRESS, which a broker returns right after its start, is retried."""
    with SenderHarness() as harness:
        harness.add()
        harness.init_producer_id(code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        assert [] == harness.network.sent
        harness.step(LATER)
        harness.init_producer_id()
        harness.produce()
        assert not harness.accumulator.has_incomplete


def test_the_error_of_a_batch_names_why_there_is_no_producer_id():
    """A broker has answered, which "no broker answered" would deny."""
    with SenderHarness() as harness:
        batch = harness.add()
        harness.init_producer_id(code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        harness.step(120)
        cause = str(batch.result.error.__cause__)
        assert "last cause: could not get a producer id, which enable.idempotence=true" in cause
        assert "COORDINATOR_LOAD_IN_PROGRESS" in cause


def test_the_error_of_a_batch_does_not_name_what_is_over():
    """An id that came at the second attempt is no reason why nothing is sent an hour later."""
    with SenderHarness() as harness:
        harness.add()
        harness.init_producer_id(code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        harness.step(LATER)
        harness.init_producer_id()
        harness.produce()
        harness.network.down = {0}
        batch = harness.add()
        harness.step(LATER + 120)
        assert str(batch.result.error.__cause__).endswith("last cause: no broker answered")


def test_a_missing_permission_for_an_id_fails_queued_batches_and_is_retried():
    """CLUSTER_AUTHORIZATION_FAILED fails the batches; after it is granted, later ones are sent."""
    with SenderHarness() as harness:
        refused = harness.add()
        harness.init_producer_id(code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        assert isinstance(refused.result.error, BrokerError)
        harness.step()
        assert [] == harness.network.sent
        harness.add()
        harness.init_producer_id()
        harness.produce()
        assert not harness.accumulator.has_incomplete


def test_several_batches_of_a_partition_can_be_in_flight(idempotent):
    """Up to five requests are in flight, each continuing the sequence numbers of the last."""
    batches = [idempotent.add(records=2) for _ in range(6)]
    idempotent.step()
    assert [1, 3, 5, 7, 9] == [each.base_sequence for each in batches[:5]]
    assert not batches[5].has_sequence
    idempotent.produce()
    assert 11 == batches[5].base_sequence


def test_an_out_of_order_batch_is_resent_in_order(idempotent):
    """A retriable error of the first makes the second out of order; both are resent in order."""
    first, second = idempotent.add(), idempotent.add()
    idempotent.step()
    idempotent.produce(ErrorCode.NOT_ENOUGH_REPLICAS)
    idempotent.produce(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    idempotent.step(LATER)
    [sent] = idempotent.network.sent
    assert [first] == idempotent.events.drained[-1][0]
    idempotent.network.sent.remove(sent)
    idempotent.answer_produce(sent)
    assert [second] == idempotent.events.drained[-1][0]
    assert [(0, 1), (0, 2)] == [numbers(first), numbers(second)]


def test_an_unexplained_gap_restarts_the_partition(idempotent):
    """With all earlier batches acknowledged, a gap restarts at 0 in a new epoch (KIP-360)."""
    first, second = idempotent.add(records=2), idempotent.add()
    idempotent.step()
    idempotent.produce(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    idempotent.step(LATER)
    assert (0, 1) == numbers(first)
    idempotent.produce(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    idempotent.step(LATER)
    assert [(1, 0), (1, 2)] == [numbers(first), numbers(second)]
    idempotent.produce()
    idempotent.produce()
    assert not idempotent.accumulator.has_incomplete


def test_a_gap_after_the_last_acknowledged_batch_bumps_the_epoch(idempotent):
    """The broker lost acknowledged records, so this batch restarts at 0 and the next follows."""
    idempotent.add(records=2)
    idempotent.step()
    idempotent.produce()
    gap = idempotent.add()
    idempotent.step()
    assert (0, 3) == numbers(gap)
    idempotent.produce(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    idempotent.step(LATER)
    assert ProducerIdAndEpoch(PRODUCER_ID, 1) == idempotent.manager.sequences.producer_id_and_epoch
    following = idempotent.add()
    idempotent.step()
    idempotent.produce()
    assert [(1, 0), (1, 1)] == [numbers(gap), numbers(following)]


def test_an_idle_partition_starts_the_new_epoch_with_its_next_batch(idempotent):
    """A partition without a gap keeps its numbers until it has a batch in the new epoch."""
    before = idempotent.add(1)
    idempotent.step()
    idempotent.produce()
    gap = idempotent.add(0)
    idempotent.step()
    idempotent.produce(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    idempotent.step(LATER)
    idempotent.produce()
    following = idempotent.add(1)
    idempotent.step()
    idempotent.produce()
    assert [(0, 0), (1, 0), (1, 0)] == [numbers(each) for each in (before, gap, following)]
    assert not idempotent.accumulator.has_incomplete


def test_batches_behind_a_failed_retry_start_in_the_new_epoch():
    """A retry keeps the old numbers, and the batch after a failed retry starts in the new epoch."""
    with SenderHarness(retries=1) as harness:
        for partition in (0, 1):
            harness.add(partition)
        harness.initialize()
        harness.produce()
        harness.produce()
        gap, failing = harness.add(0), harness.add(1)
        harness.step()
        sent_to_0, sent_to_1 = harness.take(ApiKey.PRODUCE), harness.take(ApiKey.PRODUCE)
        harness.answer_produce(sent_to_0, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        harness.answer_produce(sent_to_1, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        harness.step(LATER)
        assert [(1, 0), (0, 1)] == [numbers(gap), numbers(failing)]
        for code in (ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER):
            harness.produce(code)
        assert isinstance(failing.result.error, DeliveryError)
        following, behind_gap = harness.add(1), harness.add(0)
        harness.step()
        assert [(1, 0), (1, 1)] == [numbers(following), numbers(behind_gap)]


def test_with_one_request_in_flight_batches_follow_the_producer_id():
    """With max.in.flight.requests.per.connection=1 no request overtakes InitProducerId."""
    with SenderHarness(max_in_flight_requests_per_connection=1) as harness:
        harness.network.max_in_flight = 1
        batches = [harness.add(), harness.add()]
        harness.step()
        assert [ApiKey.INIT_PRODUCER_ID] == [s.request.api_key for s in harness.network.sent]
        harness.init_producer_id()
        assert [True, False] == [each.has_sequence for each in batches]
        harness.produce()
        assert [(0, 0), (0, 1)] == [numbers(each) for each in batches]
        harness.produce()
        assert not harness.accumulator.has_incomplete


def test_other_partitions_adopt_a_new_epoch_once_nothing_is_in_flight(idempotent):
    """A partition without a gap keeps its numbers until nothing is in flight."""
    other = idempotent.add(1)
    idempotent.step()
    sent_to_other = idempotent.take()
    idempotent.add(0)
    idempotent.step()
    idempotent.produce(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    idempotent.step(LATER)
    following = idempotent.add(1)
    idempotent.step()
    assert ((0, 0), False) == (numbers(other), following.has_sequence)
    idempotent.answer_produce(sent_to_other)
    assert (1, 0) == numbers(following)


def test_a_batch_rejected_as_the_first_of_an_epoch_fails(idempotent):
    """A batch that is out of order even as the first of an epoch fails."""
    added = idempotent.add()
    idempotent.step()
    idempotent.produce(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    idempotent.step(LATER)
    idempotent.produce(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert "has lost records" in str(added.result.error)


def test_a_batch_that_fails_permanently_leaves_no_gap(idempotent):
    """Batches behind a refused one get new numbers as soon as they have been answered."""
    refused, behind = idempotent.add(records=3), idempotent.add(records=2)
    idempotent.step()
    idempotent.produce(ErrorCode.INVALID_RECORD)
    later = idempotent.add()
    idempotent.step()
    assert isinstance(refused.result.error, DeliveryError)
    assert not later.has_sequence
    idempotent.produce(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    idempotent.step(LATER)
    assert (1, 0) == numbers(behind)
    idempotent.produce()
    assert (1, 2) == numbers(later)


def _sent_behind_an_expired_batch(idempotent):
    expired = idempotent.add()
    idempotent.step()
    idempotent.take()
    idempotent.now += 60
    behind = idempotent.add()
    idempotent.step()
    sent = idempotent.take()
    idempotent.step(61)
    assert expired.is_done
    return behind, sent


def test_new_batches_wait_while_an_expired_batch_is_unresolved(idempotent):
    """After an expiry new batches wait until a later response settles the expired one."""
    behind, sent = _sent_behind_an_expired_batch(idempotent)
    later = idempotent.add()
    idempotent.step()
    assert not later.has_sequence
    idempotent.answer_produce(sent)
    assert behind.result.error is None
    assert (0, 3) == numbers(later)


def test_an_expired_batch_that_was_not_appended_restarts_the_partition(idempotent):
    """An out-of-order response for the next batch shows that the expired one was not appended."""
    behind, sent = _sent_behind_an_expired_batch(idempotent)
    idempotent.answer_produce(sent, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    idempotent.step(LATER)
    assert (1, 0) == numbers(behind)


def test_an_expired_batch_with_nothing_behind_it_restarts_the_partition(idempotent):
    """The outcome of the expired batch is unknown, so the next batch begins a new epoch."""
    idempotent.add()
    idempotent.step()
    idempotent.take()
    idempotent.step(121)
    later = idempotent.add()
    idempotent.step()
    assert (1, 0) == numbers(later)


def test_a_batch_that_expires_unsent_does_not_bump_the_epoch(idempotent):
    """A batch without sequence numbers leaves no gap."""
    idempotent.network.down.add(0)
    expired = idempotent.add()
    idempotent.step(121)
    assert expired.is_done
    idempotent.network.down.clear()
    later = idempotent.add()
    idempotent.step()
    assert (0, 1) == numbers(later)


def test_a_producer_forgotten_because_of_retention_continues(idempotent):
    """UNKNOWN_PRODUCER_ID with a log start past our last offset restarts without a loss."""
    added = idempotent.add()
    idempotent.step()
    idempotent.produce(ErrorCode.UNKNOWN_PRODUCER_ID, log_start_offset=10)
    idempotent.step(LATER)
    assert (1, 0) == numbers(added)
    idempotent.produce()
    assert added.result.error is None


def test_unknown_producer_id_without_a_log_start_is_retried(idempotent):
    """A partition that has just moved has no log start yet, so the numbers are kept."""
    added = idempotent.add()
    idempotent.step()
    idempotent.produce(ErrorCode.UNKNOWN_PRODUCER_ID, log_start_offset=-1)
    idempotent.step(LATER)
    assert (0, 1) == numbers(added)


def test_an_exhausted_epoch_requests_a_new_producer_id():
    """After epoch 32767 there is a new producer id, and numbers start at 0."""
    with SenderHarness() as harness:
        harness.add()
        harness.initialize(epoch=2**15 - 1)
        harness.produce()
        added = harness.add()
        harness.step()
        harness.produce(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        harness.init_producer_id()
        harness.step(LATER)
        assert (0, 0) == numbers(added)
        harness.produce()
        assert not harness.accumulator.has_incomplete


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ],
)
def test_after_a_fatal_error_every_later_call_raises_it(idempotent, code):
    """After a fatal error all batches fail, and later calls raise that error."""
    batches = [idempotent.add(0), idempotent.add(1)]
    idempotent.step()
    idempotent.produce(code)
    assert all(each.is_done for each in batches)
    with pytest.raises(FatalProducerError, match=code.name):
        idempotent.manager.fail_if_not_ready_for_send()
    with pytest.raises(DeliveryError, match=code.name):
        idempotent.accumulator.raise_if_failed()


def test_an_unexpected_error_ends_the_producer(plain):
    """An unexpected error ends the producer."""
    added = plain.add()

    async def broken(deadline: float) -> None:
        raise ZeroDivisionError(deadline)

    plain.network.update_metadata = broken
    plain.network.metadata.request_update()
    plain.step()
    plain.step()
    assert isinstance(added.result.error, ZeroDivisionError)


def test_a_retried_batch_of_another_partition_keeps_its_epoch(idempotent):
    """Only partitions with a gap restart, and batches retried elsewhere stay as they were sent."""
    healthy = idempotent.add(1)
    idempotent.step()
    idempotent.produce(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    broken = idempotent.add(0)
    idempotent.step()
    idempotent.produce(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    idempotent.step(LATER)
    assert [(0, 0), (1, 0)] == [numbers(healthy), numbers(broken)]
    idempotent.produce()
    idempotent.produce()
    assert not idempotent.accumulator.has_incomplete
    following = idempotent.add(1)
    idempotent.step()
    assert (1, 0) == numbers(following)


def test_an_acknowledgement_under_an_old_epoch_counts(idempotent):
    """An acknowledgement counts although another partition has raised the epoch meanwhile."""
    pending = idempotent.add(1)
    idempotent.step()
    sent = idempotent.take()
    idempotent.add(0)
    idempotent.step()
    idempotent.produce(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    idempotent.step(LATER)
    idempotent.produce()
    idempotent.answer_produce(sent)
    assert pending.result.error is None
    assert not idempotent.accumulator.has_incomplete


def test_batches_are_not_renumbered_while_a_response_is_pending(idempotent):
    """A batch behind a gap may have been appended; it completes, and later batches follow it."""
    idempotent.add()
    behind, last = idempotent.add(), idempotent.add()
    idempotent.step()
    idempotent.produce(ErrorCode.INVALID_RECORD)
    idempotent.step(LATER)
    assert [(0, 2), (0, 3)] == [numbers(behind), numbers(last)]
    idempotent.produce()
    idempotent.produce(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    idempotent.step(LATER)
    assert behind.result.error is None
    assert (1, 0) == numbers(last)


def test_a_second_batch_does_not_overtake_an_expired_first_one():
    """Without idempotence and with one request in flight, waiting preserves the order."""
    with SenderHarness(max_in_flight_requests_per_connection=1, **PLAIN) as harness:
        harness.network.max_in_flight = 1
        first = harness.add()
        harness.step()
        harness.now += 60
        second = harness.add()
        harness.step(61)
        assert first.is_done
        [sent] = harness.network.sent
        harness.answer_produce(sent)
        assert sent is harness.take()
        harness.produce()
        assert second.result.error is None
