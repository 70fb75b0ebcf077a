"""The requests for a producer's id and transactions, one by one, and their verdicts."""

from __future__ import annotations

from types import SimpleNamespace
from uuid import UUID

import pytest

from spark_kafka_sink.model import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    ProducerIdAndEpoch,
    TopicPartition,
)
from spark_kafka_sink.producer.batch.error_rules import TxnAction
from spark_kafka_sink.producer.sending.transaction_state import (
    TransactionalRequestResult,
)
from spark_kafka_sink.producer.sending.txn_request_handlers import (
    AddOffsetsToTxnHandler,
    AddPartitionsToTxnHandler,
    EndTxnHandler,
    FindCoordinatorHandler,
    InitProducerIdHandler,
    TransactionRequestQueue,
    TxnOffsetCommitHandler,
    TxnRequestPriority,
)
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.find_coordinator import (
    Coordinator,
    CoordinatorType,
    FindCoordinatorResponse,
)
from spark_kafka_sink.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from spark_kafka_sink.protocol.primitives import ZERO_UUID

PRODUCER = ProducerIdAndEpoch(7, 3)
GROUP = ConsumerGroupMetadata("readers", 4, "member-1")
OFFSETS = {TopicPartition("t", n): OffsetAndMetadata(10 + n) for n in range(3)}


def _result() -> TransactionalRequestResult:
    return TransactionalRequestResult("test")


def _of_transaction(kind: type, **fields: object):
    return kind(result=_result(), transactional_id="x", producer=PRODUCER, **fields)


def _all() -> dict[str, object]:
    """Build a handler of each kind."""
    find = FindCoordinatorHandler(result=_result(), key_type=CoordinatorType.GROUP, key="readers")
    return {
        "find": find,
        "init": InitProducerIdHandler(result=_result(), transactional_id="x"),
        "init plain": InitProducerIdHandler(result=_result(), transactional_id=None),
        "bump": InitProducerIdHandler(result=_result(), transactional_id="x", producer=PRODUCER),
        "partitions": _of_transaction(AddPartitionsToTxnHandler, partitions=frozenset(OFFSETS)),
        "offsets": _of_transaction(AddOffsetsToTxnHandler, offsets=OFFSETS, group_metadata=GROUP),
        "commit offsets": _of_transaction(
            TxnOffsetCommitHandler,
            group_metadata=GROUP,
            is_transaction_v2=False,
            offsets=dict(OFFSETS),
        ),
        "commit offsets tv2": _of_transaction(
            TxnOffsetCommitHandler, group_metadata=GROUP, is_transaction_v2=True
        ),
        "end": _of_transaction(EndTxnHandler, committed=True, is_transaction_v2=False),
        "end tv2": _of_transaction(EndTxnHandler, committed=True, is_transaction_v2=True),
    }


_P = TxnRequestPriority


_T, _G = CoordinatorType.TRANSACTION, CoordinatorType.GROUP
_BELONGS = _P.ADD_PARTITIONS_OR_OFFSETS


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("find", (_P.FIND_COORDINATOR, None, "readers", None, False)),
        ("init", (_P.INIT_PRODUCER_ID, _T, "x", None, False)),
        ("init plain", (_P.INIT_PRODUCER_ID, None, "", None, False)),
        ("bump", (_P.EPOCH_BUMP, _T, "x", None, False)),
        ("partitions", (_BELONGS, _T, "x", 3, False)),
        ("offsets", (_BELONGS, _T, "x", None, False)),
        ("commit offsets", (_BELONGS, _G, "readers", 4, False)),
        ("commit offsets tv2", (_BELONGS, _G, "readers", 5, False)),
        ("end", (_P.END_TXN, _T, "x", 4, True)),
        ("end tv2", (_P.END_TXN, _T, "x", None, True)),
    ],
)
def test_a_new_request_has_its_coordinator_and_priority(kind, expected):
    """A new request has its priority, coordinator and highest usable version, and no attempts."""
    handler = _all()[kind]
    assert expected == (
        handler.priority,
        handler.coordinator_type,
        handler.coordinator_key,
        handler.max_version,
        handler.is_end_txn,
    )
    assert (0, False, None, None) == (
        handler.attempts,
        handler.was_sent,
        handler.number,
        handler.retry_delay,
    )


def test_requests_are_returned_by_priority_and_then_in_order():
    """A request that is put back keeps its place."""
    queue = TransactionRequestQueue()
    kinds = ["bump", "end", "offsets", "partitions", "init", "find"]
    handlers = [_all()[kind] for kind in kinds]
    for handler in handlers:
        queue.put(handler)
    expected = [handlers[number] for number in (5, 4, 2, 3, 1, 0)]
    assert expected[0] is queue.peek()
    first_two = [queue.pop(), queue.pop()]
    late = _all()["offsets"]
    queue.put(late)
    for handler in first_two:
        queue.put(handler)
    assert [*expected[:4], late, *expected[4:]] == queue.drain()
    assert queue.peek() is None


def test_requests_can_be_removed_from_the_middle():
    """Removing requests leaves the others in order."""
    queue = TransactionRequestQueue()
    handlers = [_all()[kind] for kind in ("bump", "offsets", "find", "offsets", "end")]
    for handler in handlers:
        queue.put(handler)
    assert queue.holds(AddOffsetsToTxnHandler)
    removed = queue.remove(lambda handler: isinstance(handler, AddOffsetsToTxnHandler))
    assert {id(handlers[1]), id(handlers[3])} == {id(handler) for handler in removed}
    assert not queue.holds(AddOffsetsToTxnHandler)
    assert [] == queue.remove(lambda handler: isinstance(handler, AddOffsetsToTxnHandler))
    assert [handlers[2], handlers[4], handlers[0]] == queue.drain()


@pytest.mark.parametrize(("version", "is_list"), [(0, False), (3, False), (4, True), (6, True)])
def test_a_coordinator_is_looked_up_with_one_key_or_a_list(version, is_list):
    """From version 4 on the request has a list of keys (KIP-699)."""
    request = _all()["find"].request(version)
    assert is_list == (("readers",) == request.coordinator_keys)
    assert is_list != ("readers" == request.key)
    assert CoordinatorType.GROUP == request.key_type


def _found(*node_ids: int, code: int = 0) -> FindCoordinatorResponse:
    return FindCoordinatorResponse(
        coordinators=tuple(
            Coordinator(key="readers", node_id=node_id, host="h", port=1, error_code=code)
            for node_id in node_ids
        )
    )


def test_a_response_must_have_exactly_one_coordinator():
    """The old form has one in the response itself, and two coordinators are ambiguous."""
    handler = _all()["find"]
    old = SimpleNamespace(coordinators=(), node_id=5, host="h", port=1, error_code=0)
    assert old is handler.coordinator(old)
    assert 5 == handler.coordinator(_found(5)).node_id
    assert [TxnAction.DONE, TxnAction.DONE, TxnAction.FATAL] == [
        handler.verdict(response).action for response in (old, _found(5), _found(5, 6))
    ]


@pytest.mark.parametrize(
    ("key_type", "description"),
    [
        (CoordinatorType.GROUP, "could not find the coordinator of group 'k'"),
        (CoordinatorType.TRANSACTION, "could not find the coordinator of transactional.id 'k'"),
    ],
)
def test_a_verdict_describes_its_request(key_type, description):
    """A verdict describes its request for the error that may follow."""
    handler = FindCoordinatorHandler(result=_result(), key_type=key_type, key="k")
    verdict = handler.verdict(_found(5, code=ErrorCode.COORDINATOR_NOT_AVAILABLE))
    assert (TxnAction.RETRY, ErrorCode.COORDINATOR_NOT_AVAILABLE, description) == verdict


@pytest.mark.parametrize(
    ("committed", "action", "description"),
    [
        (True, TxnAction.FENCED, "could not commit the transaction of 'x'"),
        (False, TxnAction.REINITIALIZE, "could not abort the transaction of 'x'"),
    ],
)
def test_an_error_code_can_mean_something_else_for_an_abort(committed, action, description):
    """PRODUCER_FENCED on an abort may mean that the coordinator has aborted it first."""
    handler = _of_transaction(EndTxnHandler, committed=committed, is_transaction_v2=False)
    code = ErrorCode.PRODUCER_FENCED
    assert (action, code, description) == handler.verdict(SimpleNamespace(error_code=code))
    assert committed == handler.request(0).committed


def test_accepted_offsets_are_not_sent_again():
    """Only offsets that were not accepted are retried, and a missing partition was refused."""
    handler = _all()["commit offsets"]
    partitions = tuple(
        SimpleNamespace(partition_index=number, error_code=code)
        for number, code in ((0, 0), (1, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), (2, 0))
    )
    answer = SimpleNamespace(topics=(SimpleNamespace(name="t", partitions=partitions),))
    assert TxnAction.RETRY is handler.verdict(answer).action
    assert [TopicPartition("t", 1)] == list(handler.offsets)
    assert TxnAction.FATAL is handler.verdict(SimpleNamespace(topics=())).action
    handler.offsets.clear()
    assert TxnAction.DONE is handler.verdict(answer).action


T_ID = UUID(int=5)


def _commit_of_known_topics(**ids: UUID) -> TxnOffsetCommitHandler:
    handler = _of_transaction(
        TxnOffsetCommitHandler,
        group_metadata=GROUP,
        is_transaction_v2=True,
        offsets={
            TopicPartition("t", 0): OffsetAndMetadata(1),
            TopicPartition("u", 0): OffsetAndMetadata(2),
        },
    )
    handler.prepare(lambda topic: ids.get(topic, ZERO_UUID))
    return handler


@pytest.mark.parametrize(
    ("ids", "max_version"), [({"t": T_ID, "u": UUID(int=6)}, None), ({"t": T_ID}, 5), ({}, 5)]
)
def test_offsets_are_committed_by_topic_ids_if_all_are_known(ids, max_version):
    """Version 6 has no names, so one topic whose id is not known needs version 5 (KIP-1319)."""
    assert max_version == _commit_of_known_topics(**ids).max_version


def test_the_answer_to_a_commit_by_topic_ids_is_matched_by_them():
    """What was accepted is not sent again; an unknown id is asked for again."""
    handler = _commit_of_known_topics(t=T_ID, u=UUID(int=6))
    assert [("t", T_ID), ("u", UUID(int=6))] == [
        (topic.name, topic.topic_id) for topic in handler.request(6).topics
    ]
    response = TxnOffsetCommitResponse(
        topics=tuple(
            TxnOffsetCommitResponseTopic(
                topic_id=topic_id,
                partitions=(TxnOffsetCommitResponsePartition(partition_index=0, error_code=code),),
            )
            for topic_id, code in ((T_ID, 0), (UUID(int=6), ErrorCode.UNKNOWN_TOPIC_ID))
        )
    )
    verdict = handler.verdict(response)
    assert (TxnAction.RETRY, ErrorCode.UNKNOWN_TOPIC_ID) == (verdict.action, verdict.code)
    assert [TopicPartition("u", 0)] == list(handler.offsets)
