"""The Sender between a real accumulator and a network in memory; time is given.

The scenarios are those of Kafka's SenderTest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spark_kafka_sink.errors import (
    BrokerError,
    DeliveryError,
    DeliveryTimeoutError,
    FatalProducerError,
    NetworkError,
)
from spark_kafka_sink.model import ProducerIdAndEpoch
from spark_kafka_sink.network.metadata import PartitionMetadata
from spark_kafka_sink.producer import sender
from spark_kafka_sink.producer.record_accumulator import NEVER
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
)
from tests.support.producer_batches import NODES, batch
from tests.support.sender_harness import (
    BACKOFF,
    PRODUCER_ID,
    SenderHarness,
    place,
    produce_response,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spark_kafka_sink.producer.producer_batch import ProducerBatch

PLAIN = {"enable_idempotence": False}
#: Past any back-off of the harness.
LATER = BACKOFF * 2


@pytest.fixture
def plain() -> Iterator[SenderHarness]:
    """Give a producer without idempotence."""
    with SenderHarness(**PLAIN) as harness:
        yield harness


@pytest.fixture
def idempotent() -> Iterator[SenderHarness]:
    """Give an idempotent producer that has its id, with the first batch of partition 0 in."""
    with SenderHarness() as harness:
        harness.add()
        harness.initialize()
        harness.produce()
        yield harness


def _numbers(batch: ProducerBatch) -> tuple[int, int]:
    return batch.producer_id_and_epoch.epoch, batch.base_sequence


def test_a_batch_is_sent_and_acknowledged(plain):
    """One batch, one request, one offset, and the loop has no reason to look again soon."""
    added = plain.add()
    plain.step()
    plain.produce(offset=7)
    assert added.is_done
    assert 7 == added.result.base_offset
    assert 7 == plain.sender.acks[place()].first_offset
    assert plain.step() > plain.now + 60


def test_batches_for_partitions_of_one_node_share_a_request():
    """What one broker leads goes in one request."""
    with SenderHarness(leaders={0: 0, 1: 0}, **PLAIN) as harness:
        harness.add(0)
        harness.add(1)
        harness.step()
        [sent] = harness.network.sent
        assert [0, 1] == [data.index for data in sent.request.topic_data[0].partition_data]


def test_a_node_that_is_not_ready_is_not_spun_upon(plain):
    """Nothing is sent to a broker that is down, and the loop waits until it may be tried again."""
    plain.network.down.add(0)
    plain.network.retry_at[0] = plain.now + 5
    plain.add()
    assert plain.now + 5 == plain.step()
    assert [] == plain.network.sent


def test_a_partition_without_a_leader_has_the_metadata_asked_for():
    """Batches whose leader is not known wait, and the topic is asked for."""
    with SenderHarness(leaders={0: None}, **PLAIN) as harness:
        harness.add()
        harness.step()
        assert [] == harness.network.sent
        assert 1 == harness.network.metadata_updates
        assert ("t",) == harness.network.metadata.topics


@pytest.mark.parametrize(
    ("code", "refreshes"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, 0),
        (ErrorCode.REQUEST_TIMED_OUT, 0),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, 1),
        (ErrorCode.KAFKA_STORAGE_ERROR, 1),
    ],
)
def test_a_retriable_answer_has_the_batch_sent_again_after_the_backoff(plain, code, refreshes):
    """It goes again with the same bytes; where the leader is in doubt, the metadata are too."""
    asked = []
    plain.network.metadata.request_update = lambda: asked.append(code)
    added = plain.add()
    plain.step()
    first = plain.produce(code)
    assert [] == plain.network.sent
    assert refreshes == len(asked)
    plain.step(LATER)
    again = plain.produce()
    assert first.request == again.request
    assert added.result.error is None
    assert [added] == [each for each, _ in plain.events.retried]


def test_no_more_retries_than_allowed():
    """With `retries` used up the last answer is the batch's error, and other batches go on."""
    with SenderHarness(retries=1, **PLAIN) as harness:
        lost, other = harness.add(0), harness.add(1)
        harness.step()
        harness.produce(ErrorCode.NOT_ENOUGH_REPLICAS)
        harness.produce()
        harness.step(LATER)
        harness.produce(ErrorCode.NOT_ENOUGH_REPLICAS)
        assert isinstance(lost.result.error, DeliveryError)
        assert lost.result.error.__cause__.code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert other.result.error is None
        assert other.is_done


def test_a_lost_connection_has_the_batch_sent_again(plain):
    """Nobody knows what the broker did: the batch goes again."""
    plain.add()
    plain.step()
    plain.take(ApiKey.PRODUCE).disconnect()
    plain.step(LATER)
    plain.step(LATER)
    plain.produce()
    assert not plain.accumulator.has_incomplete


def test_a_broker_that_forgets_a_partition_is_asked_again(plain):
    """An answer that leaves a batch out is no acknowledgement."""
    added = plain.add()
    plain.step()
    sent = plain.take(ApiKey.PRODUCE)
    sent.answer(type("Empty", (), {"responses": (), "node_endpoints": ()})())
    plain.step()
    assert not added.is_done
    assert "did not answer for t-0" in str(added.last_error)


def test_a_refusal_fails_the_batch_alone(plain):
    """A batch that is refused for good is the only one that fails."""
    refused, other = plain.add(0), plain.add(1)
    plain.step()
    plain.produce(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    plain.produce()
    assert "Grant this user WRITE" in str(refused.result.error)
    assert other.result.error is None
    assert [refused] == [each for each, _ in plain.events.failed]


def test_refused_records_are_told_one_by_one(plain):
    """KIP-467: the records that the broker blames get its words, the others hear of them."""
    added = plain.add(records=3)
    plain.step()
    plain.produce(
        ErrorCode.INVALID_RECORD,
        error_message="one is bad",
        record_errors=(
            BatchIndexAndErrorMessage(batch_index=1, batch_index_error_message="no key"),
            BatchIndexAndErrorMessage(batch_index=2),
        ),
    )
    assert {1: ("no key", None), 2: ("one is bad", None)} == added.result.refused
    assert "other records" in str(added.result.error_of(0))


def test_a_duplicate_is_a_success_without_an_offset(idempotent):
    """DUPLICATE_SEQUENCE_NUMBER: the broker has the batch, and has forgotten where."""
    added = idempotent.add()
    idempotent.step()
    idempotent.produce(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
    assert added.is_done
    assert added.result.error is None
    assert -1 == added.result.base_offset


def test_a_batch_that_was_appended_to_too_few_replicas_keeps_its_numbers(idempotent):
    """NOT_ENOUGH_REPLICAS_AFTER_APPEND means written: only the same numbers do not double it."""
    added = idempotent.add()
    idempotent.step()
    first = _numbers(added)
    idempotent.produce(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    idempotent.step(LATER)
    assert first == _numbers(added)
    assert added in idempotent.events.drained[-1][0]


def test_a_batch_too_large_for_its_broker_goes_again_in_halves(idempotent, monkeypatch):
    """MESSAGE_TOO_LARGE: the halves take the batch's place and its numbers, at once."""
    whole = idempotent.add(records=5)
    halves = [batch(records=count, created_at=idempotent.now) for count in (3, 2)]
    monkeypatch.setattr(sender, "split_refused_batch", lambda *_: halves)
    idempotent.step()
    idempotent.produce(ErrorCode.MESSAGE_TOO_LARGE)
    assert [("t", whole.size_bytes)] == idempotent.too_large
    assert 1 == idempotent.events.split
    assert [(0, 1), (0, 4)] == [_numbers(half) for half in halves]
    idempotent.produce()
    idempotent.produce()
    assert not idempotent.accumulator.has_incomplete


def test_a_single_record_too_large_for_its_broker_fails(idempotent):
    """What cannot be split is refused for good."""
    refused = idempotent.add(records=1)
    idempotent.step()
    idempotent.produce(ErrorCode.MESSAGE_TOO_LARGE)
    assert "MESSAGE_TOO_LARGE" in str(refused.result.error)
    assert 0 == idempotent.events.split


def test_a_leader_named_in_the_refusal_is_written_to_at_once(plain):
    """KIP-951: a hint with a newer epoch spares the back-off and the question for metadata."""
    plain.add(0)
    plain.step()
    plain.produce(
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        current_leader=LeaderIdAndEpoch(leader_id=2, leader_epoch=5),
        node_endpoints=(NodeEndpoint(node_id=2, host="127.0.0.1", port=9094),),
    )
    assert NODES[2] == plain.take(ApiKey.PRODUCE).node


def test_a_leader_that_is_known_already_is_written_to_after_the_backoff(plain):
    """A hint that is no news changes nothing."""
    plain.network.metadata.update_leaders({place(): (0, 7)}, [])
    assert PartitionMetadata(0, 7) == plain.network.metadata.snapshot.partition(place())
    plain.add(0)
    plain.step()
    plain.produce(
        ErrorCode.FENCED_LEADER_EPOCH,
        current_leader=LeaderIdAndEpoch(leader_id=2, leader_epoch=6),
    )
    assert [] == plain.network.sent


def test_without_acks_a_batch_is_done_when_it_is_written():
    """acks=0 has no answer, and no offsets."""
    with SenderHarness(acks=0, **PLAIN) as harness:
        added = harness.add()
        harness.step()
        harness.take(ApiKey.PRODUCE).answer(None)
        harness.step()
        assert added.is_done
        assert -1 == added.result.base_offset


# --- expiry


def test_a_batch_that_is_not_acknowledged_in_time_fails(plain):
    """delivery.timeout.ms: the error names the attempts and the last cause."""
    added = plain.add()
    plain.step()
    plain.produce(ErrorCode.NOT_ENOUGH_REPLICAS)
    plain.network.down.add(0)
    plain.step(121)
    cause = added.result.error.__cause__
    assert isinstance(cause, DeliveryTimeoutError)
    assert "1 failed attempts" in str(cause)
    assert "NOT_ENOUGH_REPLICAS" in str(cause)


def test_a_batch_that_expires_while_it_is_sent_stays_failed(plain):
    """An acknowledgement that comes too late changes nothing."""
    added = plain.add()
    plain.step()
    sent = plain.take(ApiKey.PRODUCE)
    plain.step(121)
    assert isinstance(added.result.error, DeliveryError)
    plain.answer_produce(sent)
    assert {} == plain.sender.acks


def test_the_loop_wakes_up_for_the_next_expiry(plain):
    """With nothing else to do the loop sleeps until the oldest batch expires."""
    plain.add()
    plain.step()
    assert plain.now + 120 == plain.step()


def test_a_throttled_broker_expires_nothing(plain):
    """KIP-219: a batch held back by a quota gets request.timeout.ms after the throttle's end."""
    plain.network.down.add(0)
    plain.network.throttled[0] = plain.now + 130
    added = plain.add()
    plain.step()
    assert plain.now < plain.step(121)
    assert not added.is_done
    plain.step(130 + 30 - 121 - 1)
    assert not added.is_done
    plain.step(2)
    assert isinstance(added.result.error, DeliveryError)


def test_a_throttle_that_is_over_in_time_postpones_nothing(plain):
    """A batch that could have been sent in its time expires in its time."""
    plain.network.down.add(0)
    plain.network.throttled[0] = plain.now + 110
    added = plain.add()
    plain.step()
    plain.step(121)
    assert isinstance(added.result.error, DeliveryError)


# --- idempotence


def test_an_idempotent_producer_asks_for_its_id_when_it_has_something_to_send():
    """No id is asked for before the first batch, and nothing is sent before it is there."""
    with SenderHarness() as harness:
        harness.step()
        assert [] == harness.network.sent
        harness.add()
        harness.step()
        assert None is harness.network.sent[0].request.transactional_id
        harness.init_producer_id()
        assert ApiKey.PRODUCE == harness.take().request.api_key


def test_a_producer_id_that_is_refused_for_now_is_asked_for_again():
    """COORDINATOR_LOAD_IN_PROGRESS, as a broker answers right after its start, is retried."""
    with SenderHarness() as harness:
        harness.add()
        harness.init_producer_id(code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        assert [] == harness.network.sent
        harness.step(LATER)
        harness.init_producer_id()
        harness.produce()
        assert not harness.accumulator.has_incomplete


def test_a_missing_right_to_an_id_fails_what_waits_and_is_tried_again_for_the_next():
    """CLUSTER_AUTHORIZATION_FAILED: the batches fail; with the right granted the next go."""
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


def test_several_batches_of_a_partition_are_in_flight_and_done_in_order(idempotent):
    """Five requests go one after another, each following the one before by its numbers."""
    batches = [idempotent.add(records=2) for _ in range(6)]
    idempotent.step()
    assert [1, 3, 5, 7, 9] == [each.base_sequence for each in batches[:5]]
    assert not batches[5].has_sequence
    idempotent.produce()
    assert 11 == batches[5].base_sequence


def test_a_batch_that_came_too_early_goes_again_in_its_turn(idempotent):
    """A retriable answer to the first makes the second out of order: both go again, in order."""
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
    assert [(0, 1), (0, 2)] == [_numbers(first), _numbers(second)]


def test_an_unexplained_gap_starts_the_partition_anew(idempotent):
    """KIP-360: with everything before acknowledged, a new epoch goes on from 0."""
    first, second = idempotent.add(records=2), idempotent.add()
    idempotent.step()
    idempotent.produce(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    idempotent.step(LATER)
    assert (0, 1) == _numbers(first)
    idempotent.produce(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    idempotent.step(LATER)
    assert [(1, 0), (1, 2)] == [_numbers(first), _numbers(second)]
    idempotent.produce()
    idempotent.produce()
    assert not idempotent.accumulator.has_incomplete


def test_other_partitions_take_over_a_new_epoch_when_nothing_of_theirs_is_in_flight(idempotent):
    """A partition that had no trouble goes on with its numbers until it is idle."""
    other = idempotent.add(1)
    idempotent.step()
    sent_to_other = idempotent.take()
    idempotent.add(0)
    idempotent.step()
    idempotent.produce(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    idempotent.step(LATER)
    following = idempotent.add(1)
    idempotent.step()
    assert ((0, 0), False) == (_numbers(other), following.has_sequence)
    idempotent.answer_produce(sent_to_other)
    assert (1, 0) == _numbers(following)


def test_a_broker_that_refuses_the_beginning_of_an_epoch_is_not_asked_for_ever(idempotent):
    """A batch that is out of order even as the first of an epoch fails."""
    added = idempotent.add()
    idempotent.step()
    idempotent.produce(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    idempotent.step(LATER)
    idempotent.produce(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert "has lost records" in str(added.result.error)


def test_a_batch_refused_for_good_leaves_no_gap(idempotent):
    """What was sent behind it gets new numbers, as soon as it has been answered."""
    refused, behind = idempotent.add(records=3), idempotent.add(records=2)
    idempotent.step()
    idempotent.produce(ErrorCode.INVALID_RECORD)
    later = idempotent.add()
    idempotent.step()
    assert isinstance(refused.result.error, DeliveryError)
    assert not later.has_sequence
    idempotent.produce(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    idempotent.step(LATER)
    assert (1, 0) == _numbers(behind)
    idempotent.produce()
    assert (1, 2) == _numbers(later)


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


def test_nothing_new_goes_while_the_fate_of_an_expired_batch_is_unknown(idempotent):
    """Those behind it tell: acknowledged, they show that it is in, and the numbers go on."""
    behind, sent = _sent_behind_an_expired_batch(idempotent)
    later = idempotent.add()
    idempotent.step()
    assert not later.has_sequence
    idempotent.answer_produce(sent)
    assert behind.result.error is None
    assert (0, 3) == _numbers(later)


def test_an_expired_batch_that_was_not_appended_starts_the_partition_anew(idempotent):
    """The one right behind it is out of order: so it is not in, and a new epoch goes on."""
    behind, sent = _sent_behind_an_expired_batch(idempotent)
    idempotent.answer_produce(sent, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    idempotent.step(LATER)
    assert (1, 0) == _numbers(behind)


def test_an_expired_batch_with_nothing_behind_it_starts_the_partition_anew(idempotent):
    """Nobody will ever tell whether it is in: the next one begins a new epoch."""
    idempotent.add()
    idempotent.step()
    idempotent.take()
    idempotent.step(121)
    later = idempotent.add()
    idempotent.step()
    assert (1, 0) == _numbers(later)


def test_a_batch_that_expires_before_it_was_sent_costs_no_epoch(idempotent):
    """Without numbers it leaves no gap."""
    idempotent.network.down.add(0)
    expired = idempotent.add()
    idempotent.step(121)
    assert expired.is_done
    idempotent.network.down.clear()
    later = idempotent.add()
    idempotent.step()
    assert (0, 1) == _numbers(later)


def test_a_producer_that_retention_made_forgotten_goes_on(idempotent):
    """UNKNOWN_PRODUCER_ID with the log's start past our last offset: start anew, lose nothing."""
    added = idempotent.add()
    idempotent.step()
    idempotent.produce(ErrorCode.UNKNOWN_PRODUCER_ID, log_start_offset=10)
    idempotent.step(LATER)
    assert (1, 0) == _numbers(added)
    idempotent.produce()
    assert added.result.error is None


def test_an_unknown_producer_without_a_log_start_is_just_sent_again(idempotent):
    """A partition that has just moved cannot tell: the numbers stay until it can."""
    added = idempotent.add()
    idempotent.step()
    idempotent.produce(ErrorCode.UNKNOWN_PRODUCER_ID, log_start_offset=-1)
    idempotent.step(LATER)
    assert (0, 1) == _numbers(added)


def test_a_used_up_epoch_has_a_new_id_asked_for(idempotent):
    """After epoch 32767 comes another producer id, and numbers from 0."""
    idempotent.manager.producer_id_and_epoch = ProducerIdAndEpoch(PRODUCER_ID, 2**15 - 1)
    added = idempotent.add()
    idempotent.step()
    idempotent.produce(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    idempotent.init_producer_id()
    idempotent.step(LATER)
    assert (0, 0) == _numbers(added)
    idempotent.produce()
    assert not idempotent.accumulator.has_incomplete


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ],
)
def test_a_fatal_answer_ends_the_producer_and_every_later_call_says_of_what(idempotent, code):
    """All batches fail, and nothing is taken any more."""
    batches = [idempotent.add(0), idempotent.add(1)]
    idempotent.step()
    idempotent.produce(code)
    assert all(each.is_done for each in batches)
    with pytest.raises(FatalProducerError, match=code.name):
        idempotent.manager.fail_if_not_ready_for_send()
    with pytest.raises(DeliveryError, match=code.name):
        idempotent.accumulator.raise_if_failed()


def test_an_unexpected_failure_ends_the_producer(plain):
    """What nobody expected is never passed over."""
    added = plain.add()

    async def broken(deadline: float) -> None:
        raise ZeroDivisionError(deadline)

    plain.network.update_metadata = broken
    plain.network.metadata.request_update()
    plain.step()
    plain.step()
    assert isinstance(added.result.error, ZeroDivisionError)


def test_a_retried_batch_of_another_partition_keeps_its_epoch(idempotent):
    """Only partitions with a gap start anew: what is retried elsewhere stays as it was sent."""
    healthy = idempotent.add(1)
    idempotent.step()
    idempotent.produce(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    broken = idempotent.add(0)
    idempotent.step()
    idempotent.produce(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    idempotent.step(LATER)
    assert [(0, 0), (1, 0)] == [_numbers(healthy), _numbers(broken)]
    idempotent.produce()
    idempotent.produce()
    assert not idempotent.accumulator.has_incomplete
    following = idempotent.add(1)
    idempotent.step()
    assert (1, 0) == _numbers(following)


def test_an_acknowledgement_under_an_old_epoch_counts(idempotent):
    """A batch that is with its broker while another partition's trouble raises the epoch."""
    on_its_way = idempotent.add(1)
    idempotent.step()
    sent = idempotent.take()
    idempotent.add(0)
    idempotent.step()
    idempotent.produce(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    idempotent.step(LATER)
    idempotent.produce()
    idempotent.answer_produce(sent)
    assert on_its_way.result.error is None
    assert not idempotent.accumulator.has_incomplete


def test_numbers_are_not_given_anew_while_an_answer_to_the_old_ones_may_come(idempotent):
    """A batch behind a gap that turns out to be in is done, and those behind it follow it."""
    idempotent.add()
    behind, last = idempotent.add(), idempotent.add()
    idempotent.step()
    idempotent.produce(ErrorCode.INVALID_RECORD)
    idempotent.step(LATER)
    assert [(0, 2), (0, 3)] == [_numbers(behind), _numbers(last)]
    idempotent.produce()
    idempotent.produce(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    idempotent.step(LATER)
    assert behind.result.error is None
    assert (1, 0) == _numbers(last)


def test_a_second_batch_does_not_overtake_an_expired_first_one():
    """Without idempotence and with one request at a time, order is kept by waiting."""
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


# --- closing


def test_closing_waits_for_what_is_on_its_way_and_no_longer(plain):
    """The loop ends when the last batch has its answer."""
    last = plain.add()
    plain.step()
    plain.sender.initiate_close(timeout=60)
    sent = plain.take()
    plain.run_to_the_end(lambda: sent.answer(produce_response(sent)))
    assert last.result.error is None
    assert last.is_done


def test_closing_by_force_ends_at_once(plain):
    """What is not acknowledged by then is given up."""
    added = plain.add()
    plain.step()
    plain.sender.initiate_close()
    plain.run_to_the_end()
    assert not added.is_done


def test_closing_ends_when_its_time_is_up(plain):
    """A broker that never answers does not hold up the end."""
    plain.add()
    plain.step()
    plain.sender.initiate_close(timeout=5)
    plain.now += 5
    plain.run_to_the_end()
    assert plain.accumulator.has_incomplete


def test_an_idle_loop_has_nothing_to_wake_up_for():
    """Without work the loop sleeps until the metadata are due."""
    with SenderHarness(**PLAIN) as harness:
        harness.network.metadata.failed(1e9)
        assert harness.step() in {NEVER, harness.network.metadata.next_update_at()}


def test_a_connection_that_has_just_ended_takes_nothing(plain):
    """A batch that could not even be handed over goes again."""
    added = plain.add()

    def refuse(*_: object, **__: object) -> None:
        raise NetworkError("closed")

    connection = plain.network.ready_connection(NODES[0])
    connection.send = refuse
    plain.network.ready_connection = lambda _: connection
    plain.step()
    assert [added] == [each for each, _ in plain.events.retried]
