"""Consumer group offsets committed with a transaction, over an in-memory network."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import (
    BrokerError,
    KafkaError,
    KafkaTimeoutError,
    TransactionAbortableError,
    TransactionAbortedError,
)
from spark_kafka_sink.model import ConsumerGroupMetadata, OffsetAndMetadata
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.find_coordinator import (
    CoordinatorType,
)
from tests.support.producer.producer_batches import NODES
from tests.support.producer.sender_harness import (
    LATER,
    place,
)
from tests.support.producer.transactions_over_mock import GROUP, OFFSETS, S, answer_end, is_ready

# --- offsets


def test_offsets_are_sent_in_the_transaction_under_tv1(tv1):
    """The transaction coordinator adds the group, and the group coordinator gets the offsets."""
    tv1.begin()
    result = tv1.manager.send_offsets_to_transaction(OFFSETS, GROUP)
    assert "readers" == tv1.add_offsets().request.group_id
    lookup = tv1.find_coordinator(node_id=2)
    assert (CoordinatorType.GROUP, ("readers",)) == (
        lookup.request.key_type,
        lookup.request.coordinator_keys,
    )
    sent = tv1.offset_commit()
    assert (NODES[2], 4) == (sent.node, sent.version)
    assert (4, "member-1", None) == (
        sent.request.generation_id_or_member_epoch,
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


def test_offsets_are_sent_in_the_transaction_under_tv2(tv2):
    """Under TV2 TxnOffsetCommit 5 adds the group implicitly."""
    tv2.begin()
    result = tv2.manager.send_offsets_to_transaction(OFFSETS, GROUP)
    tv2.find_coordinator(node_id=2)
    assert 5 == tv2.offset_commit().version
    result.wait(0)
    commit = tv2.manager.begin_commit()
    tv2.end_txn(epoch=1)
    commit.wait(0)


def test_only_offsets_with_a_retriable_error_are_resent(tv2):
    """Each partition is retried until its offset is accepted."""
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
def test_a_group_coordinator_that_has_moved_is_looked_up_again(tv2, code):
    """The offsets are sent again to the coordinator that a new lookup returns."""
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
def test_rejected_offsets_fail_only_the_transaction(either, code):
    """A consumer that has lost its partitions (KIP-447) must abort, and may then continue."""
    either.begin()
    result = either.manager.send_offsets_to_transaction(OFFSETS, GROUP)
    if not either.manager.epochs.is_transaction_v2:
        either.add_offsets()
    either.find_coordinator()
    either.offset_commit(code)
    with pytest.raises(BrokerError, match=code.name):
        result.wait(0)
    with pytest.raises(TransactionAbortableError, match=code.name):
        either.manager.begin_commit()
    abort = either.manager.begin_abort()
    answer_end(either, epoch=1)
    abort.wait(0)
    assert is_ready(either)


def test_a_missing_permission_for_the_group_fails_its_coordinator_lookup(tv2):
    """Without permission for the group the response does not name its coordinator."""
    tv2.begin()
    result = tv2.manager.send_offsets_to_transaction(OFFSETS, GROUP)
    tv2.find_coordinator(code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    assert S.ABORTABLE_ERROR is tv2.manager.state.current
    tv2.step()
    with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
        result.wait(0)


def test_a_repeated_call_waits_for_the_same_offsets(either):
    """A call with equal arguments resumes the pending request, and other calls come after it."""
    either.begin()
    first = either.manager.send_offsets_to_transaction(OFFSETS, GROUP)
    with pytest.raises(KafkaTimeoutError, match="call send_offsets_to_transaction again"):
        first.wait(0)
    assert first is either.manager.send_offsets_to_transaction(
        dict(OFFSETS), ConsumerGroupMetadata(*GROUP)
    )
    other = either.manager.send_offsets_to_transaction({place(0): OffsetAndMetadata(71)}, GROUP)
    assert first is not other
    if not either.manager.epochs.is_transaction_v2:
        either.add_offsets()
        either.add_offsets()
    either.find_coordinator()
    either.offset_commit()
    assert first is either.manager.send_offsets_to_transaction(OFFSETS, GROUP)
    first.wait(0)
    either.offset_commit()
    other.wait(0)
    assert first is not either.manager.send_offsets_to_transaction(OFFSETS, GROUP)


def test_the_same_offsets_are_sent_again_in_the_next_transaction(tv2):
    """The same offsets are sent again in the next transaction."""
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
    """Offsets that no broker has received are dropped, and the call that waits for them fails."""
    either.begin()
    offsets = either.manager.send_offsets_to_transaction(OFFSETS, GROUP)
    if not either.manager.epochs.is_transaction_v2:
        either.add_offsets()
    either.network.down.add(2)
    either.network.retry_at[2] = either.now + 1_000
    code = 0 if is_lost else ErrorCode.COORDINATOR_NOT_AVAILABLE
    either.find_coordinator(node_id=2, code=code)
    abort = either.manager.begin_abort()
    either.step(LATER)
    either.find_coordinator(node_id=2, code=code)
    answer_end(either, epoch=1)
    abort.wait(0)
    with pytest.raises(TransactionAbortedError, match="offsets were not sent"):
        offsets.wait(0)
    assert is_ready(either)


def test_an_abort_waits_for_offsets_that_a_broker_may_have_received(tv1):
    """An abort waits for offsets that could otherwise be written after its end."""
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


def test_a_timeout_names_the_last_network_error(tv2):
    """The timeout of a group coordinator that cannot be reached names the cause."""
    tv2.begin()
    offsets = tv2.manager.send_offsets_to_transaction(OFFSETS, GROUP)
    cause = KafkaError("127.0.0.1:9094 refused the connection")
    with pytest.raises(KafkaTimeoutError, match=r"last network error was: 127\.0\.0\.1:9094"):
        offsets.wait(0, lambda: cause)


# --- responses of the group coordinator


def _offsets_after_response(harness, code):
    """Send a transaction's offsets, and answer the request with an error code."""
    harness.begin()
    result = harness.manager.send_offsets_to_transaction(OFFSETS, GROUP)
    if not harness.manager.epochs.is_transaction_v2:
        harness.add_offsets()
    harness.find_coordinator(node_id=2)
    harness.offset_commit(code)
    return result


def _are_resent_to_the_same_coordinator(harness, code) -> bool:
    result = _offsets_after_response(harness, code)
    assert not result.is_completed
    assert [] == harness.network.sent
    harness.step(LATER)
    assert NODES[2] == harness.offset_commit().node
    result.wait(0)
    return harness.manager.state.current is S.IN_TRANSACTION


def _end_the_producer(harness, code, *, by: str) -> bool:
    result = _offsets_after_response(harness, code)
    with pytest.raises(BrokerError, match=by):
        result.wait(0)
    with pytest.raises(KafkaError, match=by):
        harness.manager.begin_abort()
    return harness.manager.state.has_fatal_error


def test_offsets_of_an_unknown_partition_are_retried(either):
    """After UNKNOWN_TOPIC_OR_PARTITION the group coordinator may still learn of the partition."""
    assert _are_resent_to_the_same_coordinator(either, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def test_offsets_wait_for_a_coordinator_that_is_loading(either):
    """After COORDINATOR_LOAD_IN_PROGRESS the same coordinator is tried again."""
    assert _are_resent_to_the_same_coordinator(either, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


def test_offsets_are_retried_after_a_network_exception(either):
    """NETWORK_EXCEPTION, which a broker gets from another broker, is retriable."""
    assert _are_resent_to_the_same_coordinator(either, ErrorCode.NETWORK_EXCEPTION)


def test_producer_fenced_for_offsets_ends_the_producer(either):
    """PRODUCER_FENCED means that another producer has the transactional id."""
    assert _end_the_producer(either, ErrorCode.PRODUCER_FENCED, by="newer producer has taken over")


def test_invalid_producer_epoch_for_offsets_means_fencing(either):
    """Brokers before 2.7 return INVALID_PRODUCER_EPOCH for a fenced producer."""
    fenced = "newer producer has taken over"
    assert _end_the_producer(either, ErrorCode.INVALID_PRODUCER_EPOCH, by=fenced)


def test_a_missing_permission_for_the_transactional_id_ends_the_producer(either):
    """After TRANSACTIONAL_ID_AUTHORIZATION_FAILED an abort would be refused as well."""
    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert _end_the_producer(either, code, by=f"{code.name}.*Close this producer")


def test_an_unsupported_message_format_for_offsets_ends_the_producer(either):
    """After UNSUPPORTED_FOR_MESSAGE_FORMAT no retry can succeed."""
    code = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    assert _end_the_producer(either, code, by=code.name)
