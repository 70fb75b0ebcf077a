"""The Sender between a real accumulator and an in-memory network; time is an argument.

The scenarios are those of Kafka's SenderTest.
"""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import (
    DeliveryError,
    DeliveryTimeoutError,
    KafkaError,
    NetworkError,
)
from spark_kafka_sink.network.exponential_backoff import NEVER
from spark_kafka_sink.network.metadata import PartitionMetadata
from spark_kafka_sink.producer.batch.batch_compression import BatchCompression
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
)
from tests.support.network.metadata_script import described
from tests.support.producer.mock_network import MAX_IDLE
from tests.support.producer.producer_batches import NODES, halves_of
from tests.support.producer.sender_harness import (
    LATER,
    PLAIN,
    SenderHarness,
    numbers,
    place,
    produce_response,
)


def test_a_batch_is_sent_and_acknowledged(plain):
    """A batch takes one request and gets an offset, and the loop need not run again soon."""
    added = plain.add()
    plain.step()
    plain.produce(offset=7)
    assert added.is_done
    assert 7 == added.result.base_offset
    assert 7 == plain.sender.completion.acks[place()].first_offset
    assert plain.step() > plain.now + 60


def test_batches_for_partitions_of_one_node_share_a_request():
    """All batches for one broker go into one request."""
    with SenderHarness(leaders={0: 0, 1: 0}, **PLAIN) as harness:
        harness.add(0)
        harness.add(1)
        harness.step()
        [sent] = harness.network.sent
        assert [0, 1] == [data.index for data in sent.request.topic_data[0].partition_data]


def test_an_unready_node_causes_no_busy_loop(plain):
    """Nothing is sent to a broker that is down, and the loop waits until its next attempt."""
    plain.network.down.add(0)
    plain.network.retry_at[0] = plain.now + 5
    plain.add()
    assert plain.now + 5 == plain.step()
    assert [] == plain.network.sent


def test_a_node_that_is_down_for_too_long_is_unavailable():
    """It is available while batches reach it, and again from the first that does."""
    with SenderHarness(partitioner_availability_timeout_ms=2_000, **PLAIN) as harness:
        seen = []

        def wait_with_a_batch(seconds: float, *, is_down: bool) -> None:
            (harness.network.down.add if is_down else harness.network.down.discard)(0)
            harness.add()
            harness.step(seconds)
            seen.append(harness.latencies.is_available(0))

        wait_with_a_batch(0.0, is_down=False)
        wait_with_a_batch(5.0, is_down=False)
        wait_with_a_batch(2.0, is_down=True)
        wait_with_a_batch(0.5, is_down=True)
        wait_with_a_batch(0.0, is_down=False)
    assert [True, True, True, False, True] == seen


def test_a_partition_without_a_leader_requests_metadata():
    """Batches without a known leader wait, and metadata of the topic is requested."""
    with SenderHarness(leaders={0: None}, **PLAIN) as harness:
        harness.add()
        harness.step()
        assert [] == harness.network.sent
        assert 1 == harness.network.metadata_updates
        assert ("t",) == harness.network.metadata.topics


def test_metadata_of_an_idle_topic_is_requested_for_its_next_batch(plain):
    """Idle topics are not queried (metadata.max.idle.ms) until their next batch."""
    metadata = plain.network.metadata
    answer = described(NODES[0], {"t": 1})
    metadata.add_topic("t", plain.now)
    metadata.update(answer, plain.now)
    plain.add()
    plain.step()
    plain.produce()
    plain.now += MAX_IDLE
    metadata.question(plain.now)
    assert () == metadata.topics
    later = plain.add()
    plain.step()
    assert (("t",), []) == (metadata.topics, plain.network.sent)
    metadata.update(answer, plain.now)
    plain.step()
    plain.produce(offset=1)
    assert 1 == later.result.base_offset


@pytest.mark.parametrize(
    ("code", "refreshes"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, 0),
        (ErrorCode.REQUEST_TIMED_OUT, 0),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, 1),
        (ErrorCode.KAFKA_STORAGE_ERROR, 1),
    ],
)
def test_a_batch_is_retried_after_a_retriable_error_and_a_backoff(plain, code, refreshes):
    """The batch is resent with the same bytes, and doubts about the leader refresh the metadata."""
    updates = []
    plain.network.metadata.request_update = lambda: updates.append(code)
    added = plain.add()
    plain.step()
    first = plain.produce(code)
    assert [] == plain.network.sent
    assert refreshes == len(updates)
    plain.step(LATER)
    again = plain.produce()
    assert first.request == again.request
    assert added.result.error is None
    assert [added] == [each for each, _ in plain.events.retried]


def test_a_batch_fails_after_its_last_retry():
    """After the last of `retries` the batch fails with that error, and other batches continue."""
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


def test_a_batch_is_retried_after_a_lost_connection(plain):
    """A batch is resent after a lost connection, because the broker's outcome is unknown."""
    plain.add()
    plain.step()
    plain.take(ApiKey.PRODUCE).disconnect()
    plain.step(LATER)
    plain.step(LATER)
    plain.produce()
    assert not plain.accumulator.has_incomplete


def test_a_batch_missing_from_the_response_is_retried(plain):
    """A response that leaves a batch out does not acknowledge it."""
    added = plain.add()
    plain.step()
    sent = plain.take(ApiKey.PRODUCE)
    sent.answer(type("Empty", (), {"responses": (), "node_endpoints": ()})())
    plain.step()
    assert not added.is_done
    assert "does not include t-0" in str(added.last_error)


def test_a_rejection_fails_only_its_batch(plain):
    """Only the refused batch fails, and others are acknowledged as usual."""
    refused, other = plain.add(0), plain.add(1)
    plain.step()
    plain.produce(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    plain.produce()
    assert "Grant this user WRITE" in str(refused.result.error)
    assert other.result.error is None
    assert [refused] == [each for each, _ in plain.events.failed]


def test_rejected_records_are_reported_one_by_one(plain):
    """Blamed records get the broker's messages, and the others learn of them (KIP-467)."""
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
    """DUPLICATE_SEQUENCE_NUMBER means that the broker has the batch but not its offset."""
    added = idempotent.add()
    idempotent.step()
    idempotent.produce(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
    assert added.is_done
    assert added.result.error is None
    assert -1 == added.result.base_offset


def test_a_batch_appended_to_too_few_replicas_keeps_its_numbers(idempotent):
    """After NOT_ENOUGH_REPLICAS_AFTER_APPEND only the same numbers avoid a duplicate."""
    added = idempotent.add()
    idempotent.step()
    first = numbers(added)
    idempotent.produce(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    idempotent.step(LATER)
    assert first == numbers(added)
    assert added in idempotent.events.drained[-1][0]


def test_a_batch_too_large_for_its_broker_is_resent_in_halves(idempotent, monkeypatch):
    """After MESSAGE_TOO_LARGE the halves take the batch's place and its numbers at once."""
    whole = idempotent.add(records=5)
    monkeypatch.setattr(BatchCompression, "halves", halves_of(3, 2))
    idempotent.step()
    idempotent.produce(ErrorCode.MESSAGE_TOO_LARGE)
    halves = idempotent.accumulator._in_order()
    assert [("t", whole.size_bytes)] == idempotent.too_large
    assert 1 == idempotent.events.split
    assert [(0, 1), (0, 4)] == [numbers(half) for half in halves]
    idempotent.produce()
    idempotent.produce()
    assert not idempotent.accumulator.has_incomplete


def test_a_single_record_too_large_for_its_broker_fails(idempotent):
    """A batch that cannot be split fails permanently."""
    refused = idempotent.add(records=1)
    idempotent.step()
    idempotent.produce(ErrorCode.MESSAGE_TOO_LARGE)
    assert "MESSAGE_TOO_LARGE" in str(refused.result.error)
    assert 0 == idempotent.events.split


def test_a_retry_goes_to_the_leader_named_in_the_response_at_once(plain):
    """A hint with a newer epoch replaces the back-off and the metadata request (KIP-951)."""
    plain.add(0)
    plain.step()
    plain.produce(
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        current_leader=LeaderIdAndEpoch(leader_id=2, leader_epoch=5),
        node_endpoints=(NodeEndpoint(node_id=2, host="127.0.0.1", port=9094),),
    )
    assert NODES[2] == plain.take(ApiKey.PRODUCE).node


def test_a_retry_waits_for_the_backoff_if_the_leader_hint_is_not_new(plain):
    """A leader hint that is not newer changes nothing."""
    plain.network.metadata.update_leaders({place(): (0, 7)}, [])
    assert PartitionMetadata(0, 7) == plain.network.metadata.snapshot.partition(place())
    plain.add(0)
    plain.step()
    plain.produce(
        ErrorCode.FENCED_LEADER_EPOCH,
        current_leader=LeaderIdAndEpoch(leader_id=2, leader_epoch=6),
    )
    assert [] == plain.network.sent


def test_without_acks_a_batch_is_done_once_sent():
    """acks=0 has no response and no offsets."""
    with SenderHarness(acks=0, **PLAIN) as harness:
        added = harness.add()
        harness.step()
        harness.take(ApiKey.PRODUCE).answer(None)
        harness.step()
        assert added.is_done
        assert -1 == added.result.base_offset


# --- expiry


def test_a_batch_fails_after_the_delivery_timeout(plain):
    """After delivery.timeout.ms the error reports the attempts and the last cause."""
    added = plain.add()
    plain.step()
    plain.produce(ErrorCode.NOT_ENOUGH_REPLICAS)
    plain.network.down.add(0)
    plain.step(121)
    cause = added.result.error.__cause__
    assert isinstance(cause, DeliveryTimeoutError)
    assert "after 1 failed attempt; last cause" in str(cause)
    assert "NOT_ENOUGH_REPLICAS" in str(cause)


def test_a_batch_that_expires_in_flight_stays_failed(plain):
    """A late acknowledgement changes nothing."""
    added = plain.add()
    plain.step()
    sent = plain.take(ApiKey.PRODUCE)
    plain.step(121)
    assert isinstance(added.result.error, DeliveryError)
    plain.answer_produce(sent)
    assert {} == plain.sender.completion.acks


def test_the_loop_wakes_for_the_next_expiry(plain):
    """With nothing else to do, the loop sleeps until the oldest batch expires."""
    plain.add()
    plain.step()
    assert plain.now + 120 == plain.step()


def test_no_batch_expires_because_of_a_throttle(plain):
    """A batch held back by a quota gets request.timeout.ms after the throttle ends (KIP-219)."""
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


def test_a_throttle_that_ends_in_time_postpones_no_expiry(plain):
    """A batch that could have been sent in time expires in time."""
    plain.network.down.add(0)
    plain.network.throttled[0] = plain.now + 110
    added = plain.add()
    plain.step()
    plain.step(121)
    assert isinstance(added.result.error, DeliveryError)


# --- closing


def test_closing_waits_only_for_requests_in_flight(plain):
    """The loop ends when the last batch has its response."""
    last = plain.add()
    plain.step()
    plain.sender.initiate_close(timeout=60)
    sent = plain.take()
    plain.run_to_the_end(lambda: sent.answer(produce_response(sent)))
    assert last.result.error is None
    assert last.is_done


def test_closing_by_force_ends_at_once(plain):
    """Closing by force abandons unacknowledged batches at once."""
    added = plain.add()
    plain.step()
    plain.sender.initiate_close()
    plain.run_to_the_end()
    assert not added.is_done


def test_closing_ends_at_its_timeout(plain):
    """A broker that never responds does not delay the end."""
    plain.add()
    plain.step()
    plain.sender.initiate_close(timeout=5)
    plain.now += 5
    plain.run_to_the_end()
    assert plain.accumulator.has_incomplete


def test_an_idle_loop_sleeps_until_the_metadata_is_due():
    """Without work the loop sleeps until the metadata is due."""
    with SenderHarness(**PLAIN) as harness:
        harness.network.metadata.failed(1e9)
        assert harness.step() in {NEVER, harness.network.metadata.next_update_at()}


def test_a_batch_that_cannot_be_written_to_its_connection_is_retried(plain):
    """A batch that could not be written to the connection is retried."""
    added = plain.add()

    def refuse(*_: object, **__: object) -> None:
        raise NetworkError("closed")

    connection = plain.network.ready_connection(NODES[0])
    connection.send = refuse
    plain.network.ready_connection = lambda _: connection
    plain.step()
    assert [added] == [each for each, _ in plain.events.retried]


def test_expiry_skips_batches_that_have_ended(plain, monkeypatch):
    """If the first expiry ends the producer, no other batch is failed by expiry."""
    failed = []
    for partition in (0, 1):
        plain.add(partition)
    plain.network.down = {0, 1}

    def end_producer(batch, *_, **__) -> None:
        failed.append(batch)
        plain.sender.fail(KafkaError("ended"))

    monkeypatch.setattr(plain.sender.completion, "fail_batch", end_producer)
    plain.step(120)
    assert 1 == len(failed)
