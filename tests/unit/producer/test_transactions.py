"""Transactions, from the caller's calls to the requests on the wire; time is given.

The scenarios are those of Kafka's TransactionManagerTest. TV1 and TV2 are transaction.version 1 and
2 (KIP-890): requests that add partitions, or Produce that does it by itself and EndTxn that brings
a new epoch.
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from spark_kafka_sink.errors import (
    BrokerError,
    DeliveryError,
    FatalProducerError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionAbortedError,
)
from spark_kafka_sink.model import ConsumerGroupMetadata, OffsetAndMetadata, ProducerIdAndEpoch
from spark_kafka_sink.producer import sender
from spark_kafka_sink.producer.record_accumulator import RecordAccumulator
from spark_kafka_sink.producer.transaction_manager import TransactionManager
from spark_kafka_sink.producer.transaction_state import TRANSITIONS, TransactionState
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.find_coordinator import (
    CoordinatorType,
    FindCoordinatorResponse,
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

TRANSACTIONAL = {"transactional_id": "orders.7"}
GROUP = ConsumerGroupMetadata("readers", 4, "member-1")
OFFSETS = {place(0): OffsetAndMetadata(70, 3, "note"), place(1): OffsetAndMetadata(80)}
LATER = BACKOFF * 2
S = TransactionState


@pytest.fixture
def tv1() -> Iterator[SenderHarness]:
    """Give a transactional producer of a cluster with transaction.version 1."""
    with SenderHarness(transaction_version=1, **TRANSACTIONAL) as harness:
        yield harness


@pytest.fixture
def tv2() -> Iterator[SenderHarness]:
    """Give a transactional producer of a cluster with transaction.version 2."""
    with SenderHarness(transaction_version=2, **TRANSACTIONAL) as harness:
        yield harness


@pytest.fixture(params=[1, 2], ids=["tv1", "tv2"])
def either(request: pytest.FixtureRequest) -> Iterator[SenderHarness]:
    """Give a transactional producer under either set of rules."""
    with SenderHarness(transaction_version=request.param, **TRANSACTIONAL) as harness:
        yield harness


def _numbers(batch: ProducerBatch) -> tuple[int, int]:
    return batch.producer_id_and_epoch.epoch, batch.base_sequence


def _end(harness: SenderHarness, epoch: int) -> None:
    """Answer EndTxn as the cluster's transaction.version demands."""
    harness.end_txn(epoch=epoch if harness.manager.is_transaction_v2 else None)


def _is_ready(harness: SenderHarness) -> bool:
    """Whether a whole transaction goes through now."""
    harness.manager.begin_transaction()
    batch = harness.add()
    if not harness.manager.is_transaction_v2:
        harness.add_partitions()
    harness.step()
    harness.produce()
    result = harness.manager.begin_commit()
    _end(harness, epoch=batch.producer_id_and_epoch.epoch + 1)
    result.wait(0)
    return batch.result.error is None


# --- the way it should go


def test_initializing_finds_the_coordinator_and_fences_those_before(either):
    """InitProducerId goes to the coordinator of the transactional id, with the time-out."""
    result = either.manager.initialize_transactions()
    asked = either.find_coordinator(node_id=1)
    assert CoordinatorType.TRANSACTION == asked.request.key_type
    assert ("orders.7",) == asked.request.coordinator_keys
    assert not result.is_completed
    sent = either.init_producer_id(epoch=5)
    assert NODES[1] == sent.node
    assert ("orders.7", 60_000) == (
        sent.request.transactional_id,
        sent.request.transaction_timeout_ms,
    )
    result.wait(0)
    assert ProducerIdAndEpoch(PRODUCER_ID, 5) == either.manager.producer_id_and_epoch
    assert S.READY is either.manager.state


def test_a_coordinator_of_before_the_list_of_keys_is_found_too(tv1):
    """FindCoordinator 3 has one key, as a field of the message."""
    versions = {**tv1.network.api_versions.versions, ApiKey.FIND_COORDINATOR: (0, 3)}
    tv1.network.api_versions = replace(tv1.network.api_versions, versions=versions)
    tv1.manager.initialize_transactions()
    sent = tv1.answer(
        ApiKey.FIND_COORDINATOR, FindCoordinatorResponse(node_id=1, host="127.0.0.1", port=9093)
    )
    assert ("orders.7", 1) == (sent.request.key, sent.request.key_type)
    assert NODES[1] == tv1.init_producer_id().node


def test_a_transaction_under_tv1(tv1):
    """Partitions are added by a request of their own, and the epoch stays what it was."""
    tv1.initialize()
    tv1.manager.begin_transaction()
    batch = tv1.add()
    tv1.step()
    assert 3 == tv1.network.sent[0].version
    assert PRODUCER_ID == tv1.add_partitions().request.v3_and_below_producer_id
    sent = tv1.produce()
    assert (11, "orders.7") == (sent.version, sent.request.transactional_id)
    assert batch.is_transactional
    result = tv1.manager.begin_commit()
    ended = tv1.end_txn()
    assert (4, True, 0) == (ended.version, ended.request.committed, ended.request.producer_epoch)
    result.wait(0)
    assert ProducerIdAndEpoch(PRODUCER_ID, 0) == tv1.manager.producer_id_and_epoch
    tv1.manager.begin_transaction()
    following = tv1.add()
    tv1.add_partitions()
    assert (0, 1) == _numbers(following)


def test_a_transaction_under_tv2(tv2):
    """Nothing is asked before Produce, and EndTxn brings the next epoch, with numbers from 0."""
    tv2.initialize()
    tv2.manager.begin_transaction()
    batch = tv2.add()
    tv2.step()
    sent = tv2.produce()
    assert sent.version >= 12
    assert (0, 0) == _numbers(batch)
    result = tv2.manager.begin_commit()
    ended = tv2.end_txn(epoch=1)
    assert (5, True) == (ended.version, ended.request.committed)
    result.wait(0)
    tv2.manager.begin_transaction()
    following = tv2.add()
    tv2.step()
    assert (1, 0) == _numbers(following)


def test_an_epoch_that_has_run_out_brings_another_producer_id(tv2):
    """The coordinator may answer EndTxn with a new id."""
    tv2.begin(0)
    tv2.produce()
    tv2.manager.begin_commit()
    tv2.step()
    sent = tv2.take(ApiKey.END_TXN)
    response = type("Response", (), {"error_code": 0, "producer_id": 2_000, "producer_epoch": 0})
    sent.answer(response())
    tv2.step()
    assert ProducerIdAndEpoch(2_000, 0) == tv2.manager.producer_id_and_epoch


def test_a_partition_is_added_once_per_transaction(tv1):
    """Further batches of a partition need no request."""
    tv1.begin(0)
    tv1.produce()
    tv1.add(0)
    tv1.step()
    assert ApiKey.PRODUCE == tv1.take().request.api_key


def test_partitions_are_added_together(tv1):
    """What was written meanwhile goes into one request."""
    tv1.initialize()
    tv1.manager.begin_transaction()
    tv1.add(1)
    tv1.add(0)
    [topic] = tv1.add_partitions().request.v3_and_below_topics
    assert (0, 1) == topic.partitions


def test_nothing_is_sent_to_a_partition_before_it_belongs_to_the_transaction(tv1):
    """Other partitions of the transaction go on meanwhile."""
    tv1.begin(0)
    tv1.produce()
    waiting, going = tv1.add(1), tv1.add(0)
    tv1.step()
    assert not waiting.has_sequence
    assert going.has_sequence


def test_a_commit_waits_for_what_was_written(either):
    """EndTxn goes when the last batch is acknowledged."""
    either.begin(0)
    result = either.manager.begin_commit()
    either.step()
    assert [ApiKey.PRODUCE] == [sent.request.api_key for sent in either.network.sent]
    either.produce()
    _end(either, epoch=1)
    result.wait(0)


@pytest.mark.parametrize("end", ["begin_commit", "begin_abort"])
def test_a_transaction_that_wrote_nothing_ends_without_a_word(either, end):
    """The coordinator knows of no such transaction."""
    either.begin()
    result = getattr(either.manager, end)()
    either.step()
    assert [] == either.network.sent
    result.wait(0)
    assert S.READY is either.manager.state
    assert _is_ready(either)


def test_an_abort_drops_what_was_not_sent_and_waits_for_what_was(either):
    """Dropped batches say so; EndTxn goes when the one on its way has its answer."""
    [sent] = either.begin(0)
    dropped = either.add(0)
    result = either.manager.begin_abort()
    either.step()
    assert isinstance(dropped.result.error, TransactionAbortedError)
    assert not sent.is_done
    either.produce()
    assert sent.result.error is None
    _end(either, epoch=1)
    result.wait(0)
    assert _is_ready(either)


def test_an_abort_takes_no_partition_into_the_transaction_any_more(tv1):
    """Partitions that were not asked for yet are forgotten."""
    tv1.begin(0)
    tv1.produce()
    tv1.add(1)
    result = tv1.manager.begin_abort()
    assert not tv1.end_txn().request.committed
    result.wait(0)


def test_rules_change_between_transactions_only(tv1):
    """A cluster that goes to TV2 in mid-transaction: it ends as it began, then the epoch rises."""
    tv1.begin(0)
    tv1.produce()
    tv1.network.use_transaction_version(2)
    result = tv1.manager.begin_commit()
    assert 4 == tv1.end_txn().version
    bump = tv1.init_producer_id(epoch=1)
    assert (PRODUCER_ID, 0) == (bump.request.producer_id, bump.request.producer_epoch)
    result.wait(0)
    assert tv1.manager.is_transaction_v2
    assert _is_ready(tv1)


def test_only_the_finalized_feature_decides_the_rules():
    """A service without transaction.version gets TV1, however new its Produce is."""
    with SenderHarness(transaction_version=0, **TRANSACTIONAL) as harness:
        harness.begin(0)
        assert 11 == harness.produce().version


# --- offsets


def test_offsets_go_with_the_transaction_under_tv1(tv1):
    """The group is added at the transaction's coordinator, then told its offsets at its own."""
    tv1.begin()
    result = tv1.manager.send_offsets_to_transaction(OFFSETS, GROUP)
    assert "readers" == tv1.add_offsets().request.group_id
    asked = tv1.find_coordinator(node_id=2)
    assert (CoordinatorType.GROUP, ("readers",)) == (
        asked.request.key_type,
        asked.request.coordinator_keys,
    )
    sent = tv1.offset_commit()
    assert (NODES[2], 4) == (sent.node, sent.version)
    assert (4, "member-1", None) == (
        sent.request.generation_id,
        sent.request.member_id,
        sent.request.group_instance_id,
    )
    [topic] = sent.request.topics
    assert [(0, 70, 3, "note"), (1, 80, -1, "")] == [
        (p.partition_index, p.committed_offset, p.committed_leader_epoch, p.committed_metadata)
        for p in topic.partitions
    ]
    result.wait(0)
    commit = tv1.manager.begin_commit()
    tv1.end_txn()
    commit.wait(0)


def test_offsets_go_with_the_transaction_under_tv2(tv2):
    """TxnOffsetCommit 5 adds the group by itself."""
    tv2.begin()
    result = tv2.manager.send_offsets_to_transaction(OFFSETS, GROUP)
    tv2.find_coordinator(node_id=2)
    assert 5 == tv2.offset_commit().version
    result.wait(0)
    commit = tv2.manager.begin_commit()
    tv2.end_txn(epoch=1)
    commit.wait(0)


def test_offsets_that_were_refused_for_now_are_sent_again_without_the_others(tv2):
    """Each partition is asked for until it is taken."""
    tv2.begin()
    result = tv2.manager.send_offsets_to_transaction(OFFSETS, GROUP)
    tv2.find_coordinator()
    tv2.offset_commit(codes={1: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})
    assert not result.is_completed
    tv2.step(LATER)
    [topic] = tv2.offset_commit().request.topics
    assert [1] == [partition.partition_index for partition in topic.partitions]
    result.wait(0)


def test_each_group_has_its_own_coordinator(tv2):
    """Offsets of another group go to another broker."""
    tv2.begin()
    tv2.manager.send_offsets_to_transaction(OFFSETS, GROUP)
    tv2.find_coordinator(node_id=1)
    tv2.offset_commit()
    tv2.manager.send_offsets_to_transaction(OFFSETS, ConsumerGroupMetadata("others"))
    tv2.find_coordinator(node_id=2)
    assert NODES[2] == tv2.offset_commit().node


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
    ],
)
def test_a_group_coordinator_that_has_moved_is_found_again(tv2, code):
    """Then the offsets are sent there."""
    tv2.begin()
    result = tv2.manager.send_offsets_to_transaction(OFFSETS, GROUP)
    tv2.find_coordinator(node_id=1)
    tv2.offset_commit(code)
    tv2.find_coordinator(node_id=2)
    tv2.step(LATER)
    assert NODES[2] == tv2.offset_commit().node
    result.wait(0)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.TRANSACTION_ABORTABLE,
    ],
)
def test_offsets_that_are_refused_fail_the_transaction_alone(either, code):
    """A consumer that has lost its partitions (KIP-447) must abort, and may go on."""
    either.begin()
    result = either.manager.send_offsets_to_transaction(OFFSETS, GROUP)
    if not either.manager.is_transaction_v2:
        either.add_offsets()
    either.find_coordinator()
    either.offset_commit(code)
    with pytest.raises(BrokerError, match=code.name):
        result.wait(0)
    with pytest.raises(TransactionAbortableError, match=code.name):
        either.manager.begin_commit()
    abort = either.manager.begin_abort()
    _end(either, epoch=1)
    abort.wait(0)
    assert _is_ready(either)


def test_offsets_may_be_refused_for_the_group_while_it_is_looked_for(tv2):
    """Without the right to the group its coordinator is not told."""
    tv2.begin()
    result = tv2.manager.send_offsets_to_transaction(OFFSETS, GROUP)
    tv2.find_coordinator(code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    assert S.ABORTABLE_ERROR is tv2.manager.state
    tv2.step()
    with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
        result.wait(0)


def test_offsets_whose_wait_was_over_are_waited_for_not_sent_again(either):
    """Equal arguments are the same request until its end is known; others come after it."""
    either.begin()
    first = either.manager.send_offsets_to_transaction(OFFSETS, GROUP)
    with pytest.raises(KafkaTimeoutError, match="call send_offsets_to_transaction again"):
        first.wait(0)
    assert first is either.manager.send_offsets_to_transaction(
        dict(OFFSETS), ConsumerGroupMetadata(*GROUP)
    )
    other = either.manager.send_offsets_to_transaction({place(0): OffsetAndMetadata(71)}, GROUP)
    assert first is not other
    if not either.manager.is_transaction_v2:
        either.add_offsets()
        either.add_offsets()
    either.find_coordinator()
    either.offset_commit()
    assert first is either.manager.send_offsets_to_transaction(OFFSETS, GROUP)
    first.wait(0)
    either.offset_commit()
    other.wait(0)
    assert first is not either.manager.send_offsets_to_transaction(OFFSETS, GROUP)


def test_offsets_of_the_transaction_before_are_no_excuse(tv2):
    """The same offsets in the next transaction are sent again."""
    tv2.begin()
    first = tv2.manager.send_offsets_to_transaction(OFFSETS, GROUP)
    tv2.find_coordinator()
    tv2.offset_commit()
    commit = tv2.manager.begin_commit()
    tv2.end_txn(epoch=1)
    commit.wait(0)
    tv2.manager.begin_transaction()
    assert first is not tv2.manager.send_offsets_to_transaction(OFFSETS, GROUP)
    tv2.offset_commit()


@pytest.mark.parametrize("is_lost", [False, True], ids=["not found", "not reached"])
def test_an_abort_does_not_wait_for_a_group_without_a_coordinator(either, is_lost):
    """Offsets that no broker has seen are dropped, and whoever waits for them is told."""
    either.begin()
    offsets = either.manager.send_offsets_to_transaction(OFFSETS, GROUP)
    if not either.manager.is_transaction_v2:
        either.add_offsets()
    either.network.down.add(2)
    either.network.retry_at[2] = either.now + 1_000
    code = 0 if is_lost else ErrorCode.COORDINATOR_NOT_AVAILABLE
    either.find_coordinator(node_id=2, code=code)
    abort = either.manager.begin_abort()
    either.step(LATER)
    either.find_coordinator(node_id=2, code=code)
    _end(either, epoch=1)
    abort.wait(0)
    with pytest.raises(TransactionAbortedError, match="offsets were not sent"):
        offsets.wait(0)
    assert _is_ready(either)


def test_an_abort_waits_for_offsets_that_a_broker_may_have_seen(tv1):
    """Else they might be written after the end of their transaction."""
    tv1.begin()
    tv1.manager.send_offsets_to_transaction(OFFSETS, GROUP)
    tv1.add_offsets()
    tv1.find_coordinator()
    tv1.offset_commit(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    abort = tv1.manager.begin_abort()
    tv1.find_coordinator(code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    tv1.step(LATER)
    tv1.find_coordinator()
    tv1.step(LATER)
    tv1.offset_commit()
    tv1.end_txn()
    abort.wait(0)


def test_a_wait_in_vain_tells_the_last_error_of_the_network(tv2):
    """A group coordinator that cannot be reached is named to whoever waited for it."""
    tv2.begin()
    offsets = tv2.manager.send_offsets_to_transaction(OFFSETS, GROUP)
    cause = KafkaError("127.0.0.1:9094 refused the connection")
    with pytest.raises(KafkaTimeoutError, match=r"error of the network was: 127\.0\.0\.1:9094"):
        offsets.wait(0, lambda: cause)


# --- coordinators


def test_a_coordinator_that_has_moved_is_found_again(either):
    """NOT_COORDINATOR: ask who it is now, then ask that one."""
    either.manager.initialize_transactions()
    either.find_coordinator(node_id=0)
    either.init_producer_id(code=ErrorCode.NOT_COORDINATOR)
    either.find_coordinator(node_id=1)
    either.step(LATER)
    assert NODES[1] == either.init_producer_id().node


def test_a_coordinator_that_hangs_up_is_looked_for_again(either):
    """Whatever it did with the request, it is asked again, wherever it is now."""
    either.begin(0)
    either.produce()
    result = either.manager.begin_commit()
    either.step()
    either.take(ApiKey.END_TXN).disconnect()
    either.step()
    either.find_coordinator(node_id=1)
    either.step(LATER)
    assert NODES[1] == either.network.sent[0].node
    _end(either, epoch=1)
    result.wait(0)


def test_a_coordinator_that_cannot_be_connected_to_is_looked_for_again(either):
    """Its broker may be gone, and another one have its work."""
    either.network.down.add(1)
    either.manager.initialize_transactions()
    either.find_coordinator(node_id=1)
    assert [] == either.network.sent
    either.network.retry_at[1] = either.now + 5
    either.step()
    either.find_coordinator(node_id=0)
    either.step(LATER)
    assert NODES[0] == either.init_producer_id().node


def test_a_coordinator_that_never_gets_ready_is_looked_for_again(either):
    """After request.timeout.ms without a connection."""
    either.network.down.add(1)
    either.manager.initialize_transactions()
    either.find_coordinator(node_id=1)
    assert either.now + 30 == either.step()
    either.step(30)
    assert ApiKey.FIND_COORDINATOR == either.take().request.api_key


def test_a_throttled_coordinator_is_waited_for(either):
    """KIP-219: it is the right one, and will be there again when it has said."""
    either.network.down.add(1)
    either.network.throttled[1] = either.now + 40
    either.manager.initialize_transactions()
    either.find_coordinator(node_id=1)
    assert either.now + 40 == either.step()
    either.network.down.clear()
    either.step(40)
    assert ApiKey.INIT_PRODUCER_ID == either.take().request.api_key


def test_no_broker_at_all_is_waited_for(either):
    """Without anybody to ask the question is put off, and not dropped."""
    either.network.down |= {0, 1, 2}
    either.manager.initialize_transactions()
    either.step()
    look_again_at = either.step()
    assert either.now < look_again_at <= either.now + BACKOFF
    either.network.down.clear()
    either.step(LATER)
    either.find_coordinator()
    assert ApiKey.INIT_PRODUCER_ID == either.take().request.api_key


def test_the_first_partitions_are_asked_for_again_soon_while_the_last_transaction_ends(tv1):
    """CONCURRENT_TRANSACTIONS: 20 ms for the first request, the back-off for later ones."""
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


def test_the_first_batch_is_sent_again_soon_while_the_last_transaction_ends(tv2):
    """Under TV2 it is Produce that hears of it."""
    tv2.begin(0)
    tv2.produce(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert tv2.now + 0.02 == tv2.step()
    tv2.step(0.02)
    tv2.produce()
    assert not tv2.accumulator.has_incomplete


# --- errors that an abort gets over


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_a_refused_batch_fails_the_transaction_and_not_the_producer(either, code):
    """Sending and committing say which error it was; after the abort the producer goes on."""
    [refused] = either.begin(0)
    either.produce(code)
    assert isinstance(refused.result.error, DeliveryError)
    with pytest.raises(TransactionAbortableError, match=code.name):
        either.manager.fail_if_not_ready_for_send()
    with pytest.raises(TransactionAbortableError, match=code.name):
        either.manager.begin_commit()
    with pytest.raises(TransactionAbortableError, match=code.name):
        either.manager.begin_transaction()
    abort = either.manager.begin_abort()
    _end(either, epoch=1)
    if not either.manager.is_transaction_v2:
        bump = either.init_producer_id(epoch=1)
        assert (PRODUCER_ID, 0) == (bump.request.producer_id, bump.request.producer_epoch)
    abort.wait(0)
    assert ProducerIdAndEpoch(PRODUCER_ID, 1) == either.manager.producer_id_and_epoch
    assert _is_ready(either)


def test_a_commit_fails_when_a_batch_is_refused_meanwhile(either):
    """The commit says so, and is not sent."""
    either.begin(0)
    result = either.manager.begin_commit()
    either.produce(ErrorCode.INVALID_RECORD)
    with pytest.raises(BrokerError, match="INVALID_RECORD"):
        result.wait(0)
    assert [] == either.network.sent
    either.manager.begin_abort()
    either.step()
    assert ApiKey.END_TXN == either.take().request.api_key


def test_what_was_not_sent_when_the_transaction_failed_is_dropped(either):
    """It could only be aborted."""
    either.begin(0)
    waiting = either.add(0)
    either.produce(ErrorCode.INVALID_RECORD)
    assert isinstance(waiting.result.error, BrokerError)


def test_what_follows_a_refused_batch_is_not_sent_again_for_ever(either):
    """Behind a gap everything is out of order until the transaction has ended."""
    either.begin(0)
    either.produce()
    either.add(0)
    behind = either.add(0)
    either.step()
    either.produce(ErrorCode.INVALID_RECORD)
    either.produce(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert "OUT_OF_ORDER_SEQUENCE_NUMBER" in str(behind.result.error)
    either.manager.begin_abort()
    either.step()
    assert ApiKey.END_TXN == either.take().request.api_key


def test_an_unexplained_gap_fails_the_transaction(either):
    """In a transaction lost records are never passed over with a new epoch."""
    either.begin(0)
    either.produce()
    batch = either.add(0)
    either.step()
    either.produce(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert isinstance(batch.result.error, DeliveryError)
    assert S.ABORTABLE_ERROR is either.manager.state


def test_a_transaction_that_retention_made_forgotten_goes_on(either):
    """UNKNOWN_PRODUCER_ID with the log's start past our last offset: numbers from 0, same epoch."""
    either.begin(0)
    either.produce(offset=3)
    batch = either.add(0)
    either.step()
    either.produce(ErrorCode.UNKNOWN_PRODUCER_ID, log_start_offset=10)
    either.step(LATER)
    assert (0, 0) == _numbers(batch)
    either.produce(offset=10)
    assert batch.result.error is None


def test_a_broker_that_forgot_a_transaction_without_a_reason_fails_it(either):
    """UNKNOWN_PRODUCER_ID with our records still in the log."""
    either.begin(0)
    either.produce(offset=30)
    either.add(0)
    either.step()
    either.produce(ErrorCode.UNKNOWN_PRODUCER_ID, log_start_offset=10)
    assert S.ABORTABLE_ERROR is either.manager.state


def test_a_batch_that_expires_fails_the_transaction_and_not_the_producer(either):
    """KIP-654: a time-out says that it can be aborted; the next epoch keeps its number apart."""
    either.begin(0)
    either.take(ApiKey.PRODUCE)
    either.step(121)
    with pytest.raises(TransactionAbortableError, match=r"delivery\.timeout\.ms"):
        either.manager.fail_if_not_ready_for_send()
    abort = either.manager.begin_abort()
    _end(either, epoch=1)
    if not either.manager.is_transaction_v2:
        either.init_producer_id(epoch=1)
    abort.wait(0)
    assert _is_ready(either)


def test_a_batch_that_expires_during_an_abort_does_not_spoil_the_next_transaction(tv1):
    """Its number may be taken: the next transaction has another epoch."""
    tv1.begin(0)
    tv1.take(ApiKey.PRODUCE)
    abort = tv1.manager.begin_abort()
    tv1.step(121)
    tv1.end_txn()
    tv1.init_producer_id(epoch=1)
    abort.wait(0)
    assert _is_ready(tv1)


def test_a_batch_that_expires_before_it_was_sent_costs_no_epoch(tv1):
    """Without a number it leaves no gap."""
    tv1.network.down.add(1)
    tv1.begin(0)
    tv1.produce()
    tv1.add(1)
    tv1.add_partitions()
    tv1.step(121)
    abort = tv1.manager.begin_abort()
    tv1.end_txn()
    abort.wait(0)
    assert S.READY is tv1.manager.state


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        9_999,
    ],
)
def test_partitions_that_are_refused_fail_the_transaction(tv1, code):
    """Batches for them are dropped; after the abort the producer goes on."""
    tv1.begin()
    batch = tv1.add(0)
    tv1.add_partitions(code)
    assert isinstance(batch.result.error, BrokerError)
    abort = tv1.manager.begin_abort()
    tv1.step()
    abort.wait(0)
    assert _is_ready(tv1)


def test_the_worst_answer_for_a_partition_decides(tv1):
    """The one that was refused is named, not those that were not tried because of it."""
    tv1.begin()
    tv1.add(0)
    tv1.add(1)
    tv1.add_partitions(
        codes={0: ErrorCode.OPERATION_NOT_ATTEMPTED, 1: ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    )
    assert "t-1" in str(tv1.manager.last_error)


def test_partitions_that_are_refused_do_not_hold_up_those_that_were_added(tv1):
    """A batch that is being retried still ends before the abort does."""
    [retried] = tv1.begin(0)
    tv1.produce(ErrorCode.NOT_ENOUGH_REPLICAS)
    tv1.add(1)
    tv1.add_partitions(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    tv1.step(LATER)
    tv1.produce()
    assert retried.result.error is None
    abort = tv1.manager.begin_abort()
    tv1.end_txn()
    abort.wait(0)


def test_a_transaction_that_timed_out_before_its_commit_can_be_aborted(either):
    """KIP-588: INVALID_TXN_STATE says that nothing was committed; a new epoch goes on."""
    either.begin(0)
    either.produce()
    commit = either.manager.begin_commit()
    either.end_txn(ErrorCode.INVALID_TXN_STATE)
    with pytest.raises(BrokerError, match="INVALID_TXN_STATE"):
        commit.wait(0)
    abort = either.manager.begin_abort()
    either.end_txn(ErrorCode.INVALID_TXN_STATE)
    either.init_producer_id(epoch=2)
    abort.wait(0)
    assert _is_ready(either)


@pytest.mark.parametrize("code", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_an_abort_that_comes_after_the_coordinators_own_is_no_fencing(either, code):
    """The coordinator aborted it after its time-out: InitProducerId says that we may go on."""
    either.begin(0)
    either.produce(ErrorCode.INVALID_PRODUCER_EPOCH)
    abort = either.manager.begin_abort()
    either.end_txn(code)
    bump = either.init_producer_id(epoch=2)
    assert (PRODUCER_ID, 0) == (bump.request.producer_id, bump.request.producer_epoch)
    abort.wait(0)
    assert _is_ready(either)


def test_the_halves_of_a_split_batch_belong_to_the_transaction(either, monkeypatch):
    """MESSAGE_TOO_LARGE splits a transaction's batch like any other."""
    [whole] = either.begin(0)
    halves = [batch(created_at=either.now), batch(created_at=either.now)]
    monkeypatch.setattr(sender, "split_refused_batch", lambda *_: halves)
    whole.record_count = 2
    either.produce(ErrorCode.MESSAGE_TOO_LARGE)
    assert [(True, 0), (True, 1)] == [(h.is_transactional, h.base_sequence) for h in halves]
    either.produce()
    either.produce()
    assert S.IN_TRANSACTION is either.manager.state


# --- errors that end the producer


def test_an_abort_of_a_fenced_producer_says_so(either):
    """InitProducerId with the old epoch is refused: another producer has the transactional id."""
    either.begin(0)
    either.produce(ErrorCode.INVALID_PRODUCER_EPOCH)
    abort = either.manager.begin_abort()
    either.end_txn(ErrorCode.PRODUCER_FENCED)
    either.init_producer_id(code=ErrorCode.PRODUCER_FENCED)
    with pytest.raises(ProducerFencedError, match=r"orders\.7"):
        abort.wait(0)
    with pytest.raises(ProducerFencedError):
        either.manager.begin_transaction()


@pytest.mark.parametrize("code", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
@pytest.mark.parametrize("api", ["init", "partitions", "offsets", "offset_commit", "commit"])
def test_a_fenced_producer_is_ended_and_says_so(tv1, api, code):
    """Coordinators say it in either of two ways; every later call says it again."""
    if api == "init":
        result = tv1.manager.initialize_transactions()
        tv1.find_coordinator()
        tv1.init_producer_id(code=code)
    elif api == "partitions":
        tv1.begin()
        batch = tv1.add(0)
        result = None
        tv1.add_partitions(code)
        assert isinstance(batch.result.error, ProducerFencedError)
    elif api == "commit":
        tv1.begin(0)
        tv1.produce()
        result = tv1.manager.begin_commit()
        tv1.end_txn(code)
    else:
        tv1.begin()
        result = tv1.manager.send_offsets_to_transaction(OFFSETS, GROUP)
        tv1.add_offsets(code if api == "offsets" else 0)
        if api == "offset_commit":
            tv1.find_coordinator()
            tv1.offset_commit(code)
    if result is not None:
        with pytest.raises(ProducerFencedError):
            result.wait(0)
    for call in (
        tv1.manager.begin_transaction,
        tv1.manager.begin_commit,
        tv1.manager.begin_abort,
        tv1.manager.initialize_transactions,
        tv1.manager.fail_if_not_ready_for_send,
        lambda: tv1.manager.maybe_add_partition(place()),
    ):
        with pytest.raises(ProducerFencedError, match=r"orders\.7"):
            call()


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ],
)
def test_a_coordinator_that_disowns_the_transaction_ends_the_producer(tv1, code):
    """What was to be sent fails, and every later call says of what."""
    tv1.begin(0)
    on_its_way = tv1.take(ApiKey.PRODUCE)
    waiting = tv1.add(1)
    tv1.add_partitions(code)
    assert isinstance(waiting.result.error, BrokerError)
    with pytest.raises(FatalProducerError, match=code.name):
        tv1.manager.begin_abort()
    on_its_way.answer(produce_response(on_its_way))
    tv1.step()


def test_an_abort_that_can_only_be_aborted_ends_the_producer(either):
    """TRANSACTION_ABORTABLE to an abort would go round in a circle."""
    either.begin(0)
    either.produce()
    abort = either.manager.begin_abort()
    either.end_txn(ErrorCode.TRANSACTION_ABORTABLE)
    with pytest.raises(BrokerError, match="TRANSACTION_ABORTABLE"):
        abort.wait(0)
    assert S.FATAL_ERROR is either.manager.state


def test_a_broker_too_old_for_new_epochs_ends_a_producer_whose_batch_failed(tv1):
    """Before InitProducerId 3 (KIP-360) the gap cannot be closed."""
    versions = {**tv1.network.api_versions.versions, ApiKey.INIT_PRODUCER_ID: (0, 2)}
    tv1.network.api_versions = replace(tv1.network.api_versions, versions=versions)
    tv1.begin(0)
    tv1.produce(ErrorCode.INVALID_RECORD)
    abort = tv1.manager.begin_abort()
    tv1.end_txn()
    with pytest.raises(KafkaError, match=r"brokers before 2\.5"):
        abort.wait(0)
    assert S.FATAL_ERROR is tv1.manager.state


def test_a_broker_without_transactions_ends_the_producer(tv1):
    """An API that it lacks is told by name."""
    versions = dict(tv1.network.api_versions.versions)
    del versions[ApiKey.ADD_PARTITIONS_TO_TXN]
    tv1.network.api_versions = replace(tv1.network.api_versions, versions=versions)
    tv1.begin()
    tv1.add(0)
    tv1.step()
    tv1.step()
    with pytest.raises(FatalProducerError, match="ADD_PARTITIONS_TO_TXN"):
        tv1.manager.fail_if_not_ready_for_send()


def test_a_fatal_error_fails_the_request_on_its_way_too(tv2):
    """Nobody waits for an answer that nobody will look at."""
    tv2.begin(0)
    result = tv2.manager.send_offsets_to_transaction(OFFSETS, GROUP)
    tv2.step()
    tv2.produce(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    with pytest.raises(BrokerError, match="CLUSTER_AUTHORIZATION_FAILED"):
        result.wait(0)


def test_a_missing_right_to_the_transactional_id_may_be_granted_later(either):
    """init_transactions says so, and can be called again."""
    refused = either.manager.initialize_transactions()
    either.find_coordinator()
    either.init_producer_id(code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    with pytest.raises(BrokerError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        refused.wait(0)
    granted = either.manager.initialize_transactions()
    either.init_producer_id()
    granted.wait(0)
    assert _is_ready(either)


# --- calls that are not allowed


def test_calls_out_of_turn_are_refused_and_change_nothing(either):
    """Each state names itself and what is not possible in it."""
    manager = either.manager
    for call in (manager.begin_transaction, manager.begin_commit, manager.begin_abort):
        with pytest.raises(IllegalStateError, match="UNINITIALIZED"):
            call()
    with pytest.raises(IllegalStateError, match="call init_transactions"):
        manager.fail_if_not_ready_for_send()
    either.initialize()
    for call in (manager.begin_commit, manager.begin_abort, manager.initialize_transactions):
        with pytest.raises(IllegalStateError, match="READY"):
            call()
    with pytest.raises(IllegalStateError, match="begin a transaction first"):
        manager.maybe_add_partition(place())
    with pytest.raises(IllegalStateError, match="begin a transaction first"):
        manager.send_offsets_to_transaction(OFFSETS, GROUP)
    assert S.READY is manager.state
    manager.begin_transaction()
    for call in (manager.begin_transaction, manager.initialize_transactions):
        with pytest.raises(IllegalStateError, match="IN_TRANSACTION"):
            call()
    manager.begin_commit()
    either.step()
    assert S.READY is manager.state


def test_a_producer_without_a_transactional_id_has_no_transactions():
    """Each of the calls says which setting it needs."""
    manager = TransactionManager()
    for call in (
        manager.initialize_transactions,
        manager.begin_transaction,
        manager.begin_commit,
        manager.begin_abort,
        lambda: manager.send_offsets_to_transaction(OFFSETS, GROUP),
    ):
        with pytest.raises(IllegalStateError, match=r"needs transactional\.id"):
            call()
    manager.fail_if_not_ready_for_send()
    manager.maybe_add_partition(place())


@pytest.mark.parametrize("source", list(S), ids=lambda state: state.name)
@pytest.mark.parametrize("target", list(S), ids=lambda state: state.name)
def test_only_the_table_moves_the_state(source, target):
    """What is not in it is refused: by a caller without effect, in the Sender's hands for good."""
    for poison in (False, True):
        manager = TransactionManager(transactional_id="x")
        manager._state = source
        if target in TRANSITIONS[source]:
            manager._transition_to(target, poison=poison)
            assert target is manager.state
            continue
        with pytest.raises(
            IllegalStateError, match=f"{source.name} does not lead to {target.name}"
        ):
            manager._transition_to(target, poison=poison)
        assert (S.FATAL_ERROR if poison else source) is manager.state


def test_an_answer_that_does_not_fit_the_state_ends_the_producer(tv2):
    """KAFKA-14831: what cannot be is not gone on from."""
    tv2.begin(0)
    tv2.produce()
    result = tv2.manager.begin_commit()
    tv2.step()
    tv2.manager._state = S.READY
    tv2.end_txn(epoch=1)
    with pytest.raises(IllegalStateError, match="READY does not lead to READY"):
        result.wait(0)
    with pytest.raises(FatalProducerError, match="READY does not lead to READY"):
        tv2.manager.begin_transaction()


# --- waiting


def test_an_operation_that_timed_out_is_resumed_by_the_same_call(either):
    """It is done once, however often it is called; nothing else is allowed meanwhile."""
    either.begin(0)
    either.produce()
    first = either.manager.begin_commit()
    with pytest.raises(KafkaTimeoutError, match="call commit_transaction again"):
        first.wait(0)
    for call in (
        either.manager.begin_abort,
        either.manager.begin_transaction,
        either.manager.fail_if_not_ready_for_send,
    ):
        with pytest.raises(IllegalStateError, match="call commit_transaction again"):
            call()
    assert first is either.manager.begin_commit()
    _end(either, epoch=1)
    either.step()
    assert [] == either.network.sent
    first.wait(0)
    assert _is_ready(either)


def test_initializing_that_timed_out_is_resumed_by_the_same_call(either):
    """The id is asked for once."""
    first = either.manager.initialize_transactions()
    with pytest.raises(KafkaTimeoutError):
        first.wait(0)
    assert first is either.manager.initialize_transactions()
    either.find_coordinator()
    either.init_producer_id()
    first.wait(0)


def test_a_failure_that_nobody_heard_of_is_told_to_the_next_call(either):
    """A commit that failed after its wait timed out is still that commit."""
    either.begin(0)
    first = either.manager.begin_commit()
    either.produce(ErrorCode.INVALID_RECORD)
    with pytest.raises(BrokerError, match="INVALID_RECORD"):
        either.manager.begin_commit().wait(0)
    assert first.is_acked
    either.manager.begin_abort()


def test_a_thread_that_waits_is_woken_by_the_answer(either):
    """The caller's thread sleeps until the network thread has the answer."""
    result = either.manager.initialize_transactions()
    waiter = threading.Thread(target=result.wait, args=(10,), daemon=True)
    waiter.start()
    either.find_coordinator()
    either.init_producer_id()
    waiter.join(10)
    assert result.is_acked
    assert result.is_successful


# --- closing


def test_closing_finishes_a_commit(either):
    """What was asked for is done before the end."""
    either.begin(0)
    either.produce()
    result = either.manager.begin_commit()
    either.sender.initiate_close(timeout=60)

    def answer() -> None:
        sent = either.take(ApiKey.END_TXN)
        sent.answer(type("Answer", (), {"error_code": 0, "producer_id": -1, "producer_epoch": -1}))

    either.run_to_the_end(lambda: None, answer)
    result.wait(0)


def test_closing_aborts_an_open_transaction(either):
    """The next producer of this id need not wait for the time-out."""
    either.begin(0)
    either.produce()
    either.sender.initiate_close(timeout=60)

    def answer() -> None:
        sent = either.take(ApiKey.END_TXN)
        assert not sent.request.committed
        sent.answer(type("Answer", (), {"error_code": 0, "producer_id": -1, "producer_epoch": -1}))

    either.run_to_the_end(lambda: None, answer)
    assert not either.manager.has_ongoing_transaction


def test_closing_aborts_a_transaction_that_has_failed(either):
    """Its error does not keep the producer from ending it."""
    either.begin(0)
    either.produce(ErrorCode.INVALID_RECORD)
    either.sender.initiate_close(timeout=60)

    def answer() -> None:
        sent = either.take(ApiKey.END_TXN)
        assert not sent.request.committed
        sent.answer(type("Answer", (), {"error_code": 0, "producer_id": 1, "producer_epoch": 1}))

    either.run_to_the_end(lambda: None, answer)
    assert not either.manager.has_ongoing_transaction


def test_closing_after_a_fatal_error_ends_at_once(either):
    """Nobody is waited for any more."""
    batch = either.begin(0)[0]
    either.manager.transition_to_fatal_error(ValueError("lost"))
    either.step()
    either.sender.initiate_close(timeout=60)
    either.run_to_the_end()
    assert batch.is_done


def test_closing_by_force_fails_what_is_waited_for(either):
    """No call waits for ever for a producer that is gone."""
    either.begin(0)
    result = either.manager.begin_commit()
    either.sender.initiate_close()
    either.run_to_the_end()
    with pytest.raises(KafkaError, match="the producer was closed before"):
        result.wait(0)


@pytest.mark.parametrize("reads", range(4))
def test_a_commit_that_begins_while_the_sender_looks_waits_for_its_batches(
    either, monkeypatch, reads
):
    """However the threads interleave: the last batch of a transaction goes before its end."""
    either.begin(0)
    either.produce()
    asked = itertools.count()

    def has_incomplete(accumulator: RecordAccumulator) -> bool:
        seen = bool(accumulator._incomplete)
        if next(asked) == reads:
            either.add(0)
            assert either.manager is not None
            either.manager.begin_commit()
        return seen

    monkeypatch.setattr(RecordAccumulator, "has_incomplete", property(has_incomplete))
    for _ in range(4):
        either.step()
    assert [ApiKey.PRODUCE] == [sent.request.api_key for sent in either.network.sent]
