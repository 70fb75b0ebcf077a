"""What the Sender records about acknowledgements and about the attempts before them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_kafka_sink.errors import DeliveryError
from spark_kafka_sink.model import PartitionAcks
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.producer.sender_harness import (
    BACKOFF,
    LATER,
    PLAIN,
    SenderHarness,
    place,
    produce_response,
)


def _acks(first: int, last: int, records: int, size: int, *, by_broker: bool) -> PartitionAcks:
    return PartitionAcks(
        first_offset=first,
        last_offset=last,
        records=records,
        bytes=size,
        log_append_time=by_broker,
    )


@pytest.mark.parametrize(("returned", "reported"), [(-1, -1), (0, -1), (99, 99)])
def test_a_timestamp_set_by_the_broker_is_reported(plain, returned, reported):
    """A log append time that equals the batch's latest timestamp, here 0, is not reported."""
    added = plain.add(records=3)
    plain.step()
    plain.produce(offset=7, log_append_time_ms=returned)
    assert (7, reported) == (added.result.base_offset, added.result.log_append_time_ms)
    expected = _acks(7, 9, 3, added.size_bytes, by_broker=reported != -1)
    assert {place(): expected} == plain.sender.completion.acks


def test_the_acks_of_a_partition_are_combined_until_taken(plain):
    """Acknowledged batches of a partition add up to one range until `take_acks` resets it."""
    sizes = []
    for offset, records in ((7, 3), (20, 2)):
        sizes.append(plain.add(records=records).size_bytes)
        plain.step()
        plain.produce(offset=offset)
    expected = {place(): _acks(7, 21, 5, sum(sizes), by_broker=False)}
    assert expected == plain.sender.completion.acks
    assert expected == plain.sender.completion.take_acks()
    assert {} == plain.sender.completion.acks
    last = plain.add()
    plain.step()
    plain.produce(offset=22)
    assert {
        place(): _acks(22, 22, 1, last.size_bytes, by_broker=False)
    } == plain.sender.completion.acks


def test_the_offset_of_a_duplicate_is_unknown(plain):
    """Records of a duplicate batch are counted without an offset, even if the response has one."""
    added = plain.add(records=3)
    plain.step()
    sent = plain.take(ApiKey.PRODUCE)
    response = produce_response(sent, offset=5)
    [topic] = response.responses
    [answer] = topic.partition_responses
    duplicate = replace(answer, error_code=ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
    topic = replace(topic, partition_responses=(duplicate,))
    sent.answer(replace(response, responses=(topic,)))
    plain.step()
    assert {
        place(): _acks(-1, -1, 3, added.size_bytes, by_broker=False)
    } == plain.sender.completion.acks


# --- attempts


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_a_batch_is_retried_as_often_as_allowed(retries):
    """A batch is retried exactly `retries` times, and every attempt is counted."""
    with SenderHarness(retries=retries, **PLAIN) as harness:
        added = harness.add()
        harness.step()
        for attempt in range(retries):
            harness.produce(ErrorCode.NOT_ENOUGH_REPLICAS)
            assert (attempt + 1, harness.now + BACKOFF) == (added.attempts, added.retry_at)
            harness.step(LATER)
        assert not added.is_done
        harness.produce(ErrorCode.NOT_ENOUGH_REPLICAS)
        assert isinstance(added.result.error, DeliveryError)
        assert retries == len(harness.events.retried)


@pytest.mark.parametrize(
    ("code", "may_be_appended"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, False),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, True),
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, True),
        (ErrorCode.REQUEST_TIMED_OUT, True),
    ],
)
def test_a_batch_may_have_been_appended_after_some_errors(plain, code, may_be_appended):
    """A batch may have been appended if the error is one that a leader returns after the write."""
    added = plain.add()
    plain.step()
    plain.produce(code)
    assert may_be_appended == added.may_be_appended


def test_a_batch_without_a_response_may_have_been_appended(plain):
    """A lost connection leaves open whether the broker appended the batch."""
    added = plain.add()
    plain.step()
    plain.take(ApiKey.PRODUCE).disconnect()
    plain.step()
    assert (True, 1) == (added.may_be_appended, added.attempts)


@pytest.mark.parametrize(
    ("code", "delay"),
    [(ErrorCode.CONCURRENT_TRANSACTIONS, 0.02), (ErrorCode.NOT_ENOUGH_REPLICAS, BACKOFF)],
)
def test_concurrent_transactions_is_retried_after_a_short_delay(tv2, code, delay):
    """CONCURRENT_TRANSACTIONS is retried after less than a back-off: only markers are pending."""
    [added] = tv2.begin(0)
    tv2.produce(code)
    assert tv2.now + delay == added.retry_at


@pytest.mark.parametrize(("records", "splits"), [(1, 0), (2, 1), (5, 1)])
def test_an_oversized_batch_of_several_records_is_split(plain, records, splits):
    """A batch that is too large is split, but a single record that is too large fails."""
    plain.is_busy = True
    added = plain.add(records=records)
    plain.step()
    plain.produce(ErrorCode.MESSAGE_TOO_LARGE)
    assert (splits, splits) == (plain.events.split, len(plain.jobs))
    assert (splits == 0) == added.is_done
    assert [("t", added.size_bytes)] * splits == plain.too_large
    assert (splits == 1) == added.is_with_worker
