"""A broker gets blocks of producer ids from the controller before they are used up."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.lifecycle.producer_ids import ProducerIdBlocks
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.allocate_producer_ids import AllocateProducerIdsResponse

NEVER = float("inf")
EPOCH = 7


@pytest.fixture
def blocks():
    return ProducerIdBlocks(3)


def assert_waits(blocks):
    with pytest.raises(RefusedError, match="broker 3 waits") as raised:
        blocks.next_id()
    assert ErrorCode.COORDINATOR_LOAD_IN_PROGRESS == raised.value.error_code


def give(blocks, first, size=10, now=0.0, error_code=ErrorCode.NONE):
    response = AllocateProducerIdsResponse(
        error_code=error_code, producer_id_start=first, producer_id_len=size
    )
    blocks.handle(response, now)


def test_the_first_producer_waits_for_a_block(blocks):
    """Nothing is asked of the controller before one needs an id."""
    assert blocks.next_request(EPOCH, 0.0) is None
    assert NEVER == blocks.deadline
    assert_waits(blocks)
    request = blocks.next_request(EPOCH, 0.0)
    assert (3, EPOCH) == (request.broker_id, request.broker_epoch)
    assert_waits(blocks)
    assert blocks.next_request(EPOCH, 0.0) is None
    give(blocks, 100)
    assert 100 == blocks.next_id()


def test_the_next_block_is_asked_for_in_time(blocks):
    """When nine tenths are used; no producer waits then."""
    assert_waits(blocks)
    blocks.next_request(EPOCH, 0.0)
    give(blocks, 100)
    assert list(range(100, 109)) == [blocks.next_id() for _ in range(9)]
    assert blocks.next_request(EPOCH, 0.0) is None
    assert 109 == blocks.next_id()
    assert blocks.next_request(EPOCH, 0.0) is not None
    give(blocks, 500)
    assert [500, 501] == [blocks.next_id(), blocks.next_id()]
    assert blocks.next_request(EPOCH, 0.0) is None


@pytest.mark.parametrize("failure", ["refused", "not sent", "expired"])
def test_a_request_that_fails_is_sent_again(blocks, failure):
    """A moment later; ids are still needed."""
    assert_waits(blocks)
    blocks.next_request(EPOCH, 0.0)
    now = blocks.deadline
    if failure == "refused":
        give(blocks, -1, 0, now, ErrorCode.STALE_BROKER_EPOCH)
    elif failure == "not sent":
        blocks.fail(now)
    assert blocks.next_request(EPOCH, now) is None
    assert now < blocks.deadline < NEVER
    assert_waits(blocks)
    assert blocks.next_request(EPOCH, blocks.deadline) is not None
