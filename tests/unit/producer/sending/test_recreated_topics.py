"""Sequence numbers of a topic that is deleted and recreated during the life of a producer."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest

from spark_kafka_sink.errors import BrokerError, DeliveryError
from spark_kafka_sink.network.metadata import MetadataSnapshot
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.producer.producer_batches import NODES, snapshot
from tests.support.producer.sender_harness import LATER, SenderHarness, numbers
from tests.support.producer.transactions_over_mock import TRANSACTIONAL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spark_kafka_sink.producer.batch.producer_batch import ProducerBatch

OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
OLD, NEW = 1, 2


def describe(harness: SenderHarness, topic_id: int) -> None:
    """Set the id of topic `t` in the harness's metadata."""
    harness.network.metadata.snapshot = snapshot({0: 0, 1: 1}, topic_id)


@pytest.fixture
def idempotent() -> Iterator[SenderHarness]:
    """Yield an idempotent producer with a batch of partition 0 in the log of the old topic."""
    with SenderHarness() as harness:
        describe(harness, OLD)
        harness.add()
        harness.initialize()
        harness.produce()
        yield harness


@pytest.fixture(params=[1, 2], ids=["tv1", "tv2"])
def transactional(request: pytest.FixtureRequest) -> Iterator[SenderHarness]:
    """Yield a producer with a batch of its open transaction in the log of the old topic."""
    with SenderHarness(transaction_version=request.param, **TRANSACTIONAL) as harness:
        describe(harness, OLD)
        harness.begin(0)
        harness.produce()
        yield harness


def lose(harness: SenderHarness, *batches: ProducerBatch) -> None:
    """Drop the connection of some batches, which are resent after the new topic is known."""
    for _ in batches:
        harness.take().disconnect()
    describe(harness, NEW)
    harness.step()
    harness.step(LATER)


def test_the_second_batch_waits_until_the_new_log_has_the_first(idempotent):
    """A leader that refuses the first batch while it starts must not get the second one first."""
    describe(idempotent, NEW)
    first, second = idempotent.add(records=2), idempotent.add()
    idempotent.step()
    idempotent.produce(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert [] == idempotent.network.sent
    idempotent.step(LATER)
    idempotent.produce()
    idempotent.produce()
    assert [(1, 0), (1, 2)] == [numbers(first), numbers(second)]
    assert not idempotent.accumulator.has_incomplete


def test_batches_rejected_by_the_deleted_topic_start_the_new_log_at_0(idempotent):
    """Batches wait until all requests to the old topic are answered; the first is sent alone."""
    first, second = idempotent.add(), idempotent.add()
    idempotent.step()
    assert [(0, 1), (0, 2)] == [numbers(first), numbers(second)]
    describe(idempotent, NEW)
    idempotent.produce(ErrorCode.UNKNOWN_TOPIC_ID)
    idempotent.step(LATER)
    assert 1 == len(idempotent.network.sent)
    idempotent.produce(ErrorCode.UNKNOWN_TOPIC_ID)
    idempotent.step(LATER)
    assert 1 == len(idempotent.network.sent)
    idempotent.produce()
    idempotent.produce()
    assert [(1, 0), (1, 1)] == [numbers(first), numbers(second)]
    assert not idempotent.accumulator.has_incomplete


def test_a_late_acknowledgement_of_the_deleted_log_does_not_count(idempotent):
    """If the old leader's response follows the new metadata, the second batch still waits."""
    in_old_log = idempotent.add()
    idempotent.step()
    describe(idempotent, NEW)
    first, second = idempotent.add(), idempotent.add()
    idempotent.step()
    idempotent.produce(offset=1)
    assert in_old_log.result.error is None
    assert 1 == len(idempotent.network.sent)
    idempotent.produce()
    idempotent.produce()
    assert [(1, 0), (1, 1)] == [numbers(first), numbers(second)]


def test_a_batch_overtaken_before_the_topic_id_was_known_is_renumbered(idempotent):
    """Without topic ids the broker took the second batch for the first, which is renumbered."""
    first, second = idempotent.add(), idempotent.add()
    idempotent.step()
    idempotent.produce(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    idempotent.produce()
    assert second.result.error is None
    idempotent.step(LATER)
    idempotent.produce(OUT_OF_ORDER)
    describe(idempotent, NEW)
    idempotent.step(LATER)
    idempotent.produce()
    assert (1, 0) == numbers(first)
    assert first.result.error is None


def test_a_rejection_after_the_new_topic_id_loses_no_batch(idempotent):
    """After OUT_OF_ORDER_SEQUENCE_NUMBER for the old number the batch is sent with the new one."""
    only = idempotent.add()
    idempotent.step()
    describe(idempotent, NEW)
    idempotent.step()
    idempotent.produce(OUT_OF_ORDER)
    idempotent.step(LATER)
    idempotent.produce()
    assert (1, 0) == numbers(only)
    assert only.result.error is None


def test_a_batch_that_may_be_in_the_new_log_keeps_its_sequence_number(idempotent):
    """Requests without an id may have reached the new topic, so the batch is resent unchanged."""
    unanswered, behind = idempotent.add(), idempotent.add()
    idempotent.step()
    lose(idempotent, unanswered, behind)
    later = idempotent.add()
    idempotent.step()
    assert 1 == len(idempotent.network.sent)
    idempotent.produce()
    assert (0, 1) == numbers(unanswered)
    idempotent.produce()
    assert (0, 2) == numbers(behind)
    idempotent.produce()
    assert (1, 0) == numbers(later)
    assert not idempotent.accumulator.has_incomplete


def test_a_batch_that_may_have_been_appended_keeps_its_number_after_a_failed_one(idempotent):
    """A batch keeps its number, as the new log may have taken it and refuse the one before it."""
    idempotent.add()
    idempotent.step()
    idempotent.produce()
    refused, unanswered = idempotent.add(), idempotent.add()
    idempotent.step()
    number = numbers(unanswered)
    idempotent.produce(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    lose(idempotent, unanswered)
    later = idempotent.add()
    idempotent.produce(OUT_OF_ORDER)
    assert isinstance(refused.result.error, DeliveryError)
    idempotent.step(LATER)
    assert number == numbers(unanswered)
    idempotent.produce(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
    assert unanswered.result.error is None
    idempotent.produce()
    assert (1, 0) == numbers(later)
    assert not idempotent.accumulator.has_incomplete


def test_a_batch_that_may_have_been_appended_fails_if_the_new_log_rejects_it(idempotent):
    """A batch that may have been appended fails rather than risk a duplicate under a new number."""
    unanswered = idempotent.add()
    idempotent.step()
    lose(idempotent, unanswered)
    later = idempotent.add()
    idempotent.produce(OUT_OF_ORDER)
    idempotent.step(LATER)
    idempotent.produce()
    error = unanswered.result.error
    assert isinstance(error, DeliveryError)
    assert isinstance(error.__cause__, BrokerError)
    assert OUT_OF_ORDER == error.__cause__.code
    assert (1, 0) == numbers(later)


def deliver_after_a_rejection(harness: SenderHarness, refused: ProducerBatch) -> None:
    """Fail the refused batch, answer that the next one is a duplicate, and send another one."""
    harness.produce(OUT_OF_ORDER)
    assert isinstance(refused.result.error, DeliveryError)
    harness.step(LATER)
    harness.produce(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
    later = harness.add()
    harness.step()
    harness.produce()
    assert (1, 0) == numbers(later)
    assert not harness.accumulator.has_incomplete


def test_a_batch_that_may_have_been_appended_keeps_its_number_until_the_new_id_is_known(idempotent):
    """The new log may have started with this batch, so only the one before it fails."""
    refused, unanswered = idempotent.add(), idempotent.add()
    idempotent.step()
    idempotent.produce(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    idempotent.take().disconnect()
    idempotent.step()
    idempotent.step(LATER)
    deliver_after_a_rejection(idempotent, refused)
    assert ((0, 2), None) == (numbers(unanswered), unanswered.result.error)


def test_a_lost_batch_behind_a_rejected_one_keeps_its_number(idempotent):
    """Without a response the old number of a batch is tried first, before any new number."""
    refused, unanswered = idempotent.add(), idempotent.add()
    idempotent.step()
    idempotent.produce(OUT_OF_ORDER)
    idempotent.take().disconnect()
    idempotent.step()
    idempotent.step(LATER)
    deliver_after_a_rejection(idempotent, refused)
    assert ((0, 2), None) == (numbers(unanswered), unanswered.result.error)


def test_a_batch_keeps_its_number_if_the_new_id_arrives_before_renumbering(idempotent):
    """A batch may have been appended, although the one before it was rejected permanently."""
    refused, unanswered = idempotent.add(), idempotent.add()
    idempotent.step()
    idempotent.produce(ErrorCode.INVALID_RECORD)
    assert isinstance(refused.result.error, DeliveryError)
    lose(idempotent, unanswered)
    idempotent.produce(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
    assert ((0, 2), None) == (numbers(unanswered), unanswered.result.error)
    later = idempotent.add()
    idempotent.step()
    idempotent.produce()
    assert (1, 0) == numbers(later)
    assert not idempotent.accumulator.has_incomplete


def test_a_topic_dropped_from_the_metadata_is_recognized_by_its_id(idempotent):
    """Metadata drops idle topics, but the producer remembers the id of the log it wrote to."""
    idempotent.network.metadata.snapshot = MetadataSnapshot(nodes=MappingProxyType(NODES))
    idempotent.step()
    describe(idempotent, NEW)
    following = idempotent.add()
    idempotent.step()
    idempotent.produce()
    assert (1, 0) == numbers(following)


@pytest.mark.parametrize("topic_id", [OLD, 0])
def test_an_unchanged_or_missing_topic_id_keeps_the_sequence_numbers(idempotent, topic_id):
    """Neither a new snapshot nor a missing topic id makes a topic another one."""
    describe(idempotent, topic_id)
    idempotent.step()
    describe(idempotent, OLD)
    first, second = idempotent.add(), idempotent.add()
    idempotent.step()
    idempotent.produce()
    idempotent.produce()
    assert [(0, 1), (0, 2)] == [numbers(first), numbers(second)]


def test_all_partitions_of_the_new_topic_share_one_epoch(idempotent):
    """A partition that was never written starts at 0 in the epoch of those that restart."""
    describe(idempotent, NEW)
    batches = [idempotent.add(0), idempotent.add(1)]
    idempotent.step()
    idempotent.produce()
    idempotent.produce()
    assert [(1, 0), (1, 0)] == [numbers(each) for each in batches]


def test_a_transaction_keeps_its_numbers_and_waits_for_the_first_acknowledgement(transactional):
    """A transaction keeps its numbers, because 0 would look like a duplicate in its epoch."""
    describe(transactional, NEW)
    first, second = transactional.add(), transactional.add()
    transactional.step()
    transactional.produce(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert [] == transactional.network.sent
    transactional.step(LATER)
    transactional.produce()
    transactional.produce()
    assert [(0, 1), (0, 2)] == [numbers(first), numbers(second)]
    assert not transactional.manager.state.has_abortable_error


def test_a_transaction_is_abortable_if_the_new_log_rejects_its_number(transactional):
    """A transaction is abortable at once if the new log accepts only 0."""
    describe(transactional, NEW)
    refused = transactional.add()
    transactional.step()
    transactional.produce(OUT_OF_ORDER)
    assert isinstance(refused.result.error, DeliveryError)
    assert transactional.manager.state.has_abortable_error
