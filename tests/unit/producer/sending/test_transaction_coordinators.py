"""Coordinators that move, disconnect, or still end the last transaction; time is an argument."""

from __future__ import annotations

from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.producer.producer_batches import NODES
from tests.support.producer.sender_harness import (
    BACKOFF,
    LATER,
    SenderHarness,
)
from tests.support.producer.transactions_over_mock import TRANSACTIONAL, answer_end

# --- coordinators


def test_a_coordinator_that_has_moved_is_looked_up_again(either):
    """After NOT_COORDINATOR the producer looks up the coordinator and sends to the new one."""
    either.manager.initialize_transactions()
    either.find_coordinator(node_id=0)
    either.init_producer_id(code=ErrorCode.NOT_COORDINATOR)
    either.find_coordinator(node_id=1)
    either.step(LATER)
    assert NODES[1] == either.init_producer_id().node


def test_a_coordinator_that_disconnects_is_looked_up_again(either):
    """A coordinator that disconnects is looked up again, and the request is resent to it."""
    either.begin(0)
    either.produce()
    result = either.manager.begin_commit()
    either.step()
    either.take(ApiKey.END_TXN).disconnect()
    either.step()
    either.find_coordinator(node_id=1)
    either.step(LATER)
    assert NODES[1] == either.network.sent[0].node
    answer_end(either, epoch=1)
    result.wait(0)


def test_an_unreachable_coordinator_is_looked_up_again(either):
    """A coordinator's broker may be down while another one has taken over, so it is looked up."""
    either.network.down.add(1)
    either.manager.initialize_transactions()
    either.find_coordinator(node_id=1)
    assert [] == either.network.sent
    either.network.retry_at[1] = either.now + 5
    either.step()
    either.find_coordinator(node_id=0)
    either.step(LATER)
    assert NODES[0] == either.init_producer_id().node


def test_a_coordinator_that_is_never_ready_is_looked_up_again(either):
    """A coordinator without a connection is looked up again after request.timeout.ms."""
    either.network.down.add(1)
    either.manager.initialize_transactions()
    either.find_coordinator(node_id=1)
    assert either.now + 30 == either.step()
    either.step(30)
    assert ApiKey.FIND_COORDINATOR == either.take().request.api_key


def test_the_throttle_of_a_coordinator_is_waited_out(either):
    """A throttled coordinator is still the right one, so the throttle is waited out (KIP-219)."""
    either.network.down.add(1)
    either.network.throttled[1] = either.now + 40
    either.manager.initialize_transactions()
    either.find_coordinator(node_id=1)
    assert either.now + 40 == either.step()
    either.network.down.clear()
    either.step(40)
    assert ApiKey.INIT_PRODUCER_ID == either.take().request.api_key


def test_the_end_of_a_throttle_restarts_the_request_timeout_of_a_coordinator(either):
    """After a throttle a coordinator again has request.timeout.ms before the next lookup."""
    either.network.down.add(1)
    either.network.throttled[1] = either.now + 40
    either.manager.initialize_transactions()
    either.find_coordinator(node_id=1)
    run_again_at = either.step(40)
    assert either.now + 30 == run_again_at
    assert [] == either.network.sent
    either.step(30)
    assert ApiKey.FIND_COORDINATOR == either.take().request.api_key


def test_a_coordinator_lookup_waits_for_an_available_broker(either):
    """Without an available broker the coordinator lookup is postponed, not dropped."""
    either.network.down |= {0, 1, 2}
    either.manager.initialize_transactions()
    either.step()
    run_again_at = either.step()
    assert either.now < run_again_at <= either.now + BACKOFF
    either.network.down.clear()
    either.step(LATER)
    either.find_coordinator()
    assert ApiKey.INIT_PRODUCER_ID == either.take().request.api_key


def test_the_backoff_of_a_request_doubles_with_each_failure():
    """The back-off starts at retry.backoff.ms, give or take 20 %, and stays within the limit."""
    with SenderHarness(
        retry_backoff_ms=100, retry_backoff_max_ms=1_000, **TRANSACTIONAL
    ) as harness:
        harness.manager.initialize_transactions()
        harness.find_coordinator()
        for expected in (0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
            harness.init_producer_id(code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            delay = harness.step() - harness.now
            assert 0.79 * expected < delay <= min(1.21 * expected, 1.0 + 1e-9)
            harness.step(delay)


def test_the_first_add_partitions_is_retried_soon_while_the_last_transaction_ends(tv1):
    """After CONCURRENT_TRANSACTIONS the first request waits 20 ms, and later ones a back-off."""
    tv1.initialize()
    tv1.manager.begin_transaction()
    tv1.add(0)
    tv1.add_partitions(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert tv1.now + 0.02 == tv1.step()
    tv1.step(0.02)
    tv1.add_partitions()
    tv1.produce()
    tv1.add(1)
    tv1.add_partitions(ErrorCode.CONCURRENT_TRANSACTIONS)
    tv1.step(0.03)
    assert [] == tv1.network.sent
    tv1.step(LATER)
    assert ApiKey.ADD_PARTITIONS_TO_TXN == tv1.take().request.api_key


def test_the_first_batch_is_retried_soon_while_the_last_transaction_ends(tv2):
    """Under TV2 Produce is retried 20 ms after CONCURRENT_TRANSACTIONS."""
    tv2.begin(0)
    tv2.produce(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert tv2.now + 0.02 == tv2.step()
    tv2.step(0.02)
    tv2.produce()
    assert not tv2.accumulator.has_incomplete
