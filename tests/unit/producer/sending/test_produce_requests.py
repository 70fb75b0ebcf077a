"""What a Produce response contains besides its error code, and how errors report it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from spark_kafka_sink.model import Node, TopicPartition
from spark_kafka_sink.producer.sending.batch_completion import (
    hinted_nodes,
    leader_hints,
    produce_request,
    record_errors,
    refusal,
)
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
)
from tests.support.producer.producer_batches import batch, snapshot

PLACE = TopicPartition("t", 0)
NODE = Node(1, "127.0.0.1", 9093)
MOVED = ErrorCode.NOT_LEADER_OR_FOLLOWER


def _answer(code: int = ErrorCode.INVALID_RECORD, **fields: object) -> PartitionProduceResponse:
    return PartitionProduceResponse(index=0, error_code=code, base_offset=-1, **fields)


@pytest.mark.parametrize(
    ("code", "leader_id", "epoch", "is_hint"),
    [
        (MOVED, 0, 0, True),
        (MOVED, 7, 9, True),
        (ErrorCode.FENCED_LEADER_EPOCH, 0, 0, True),
        (MOVED, -1, 0, False),
        (MOVED, 0, -1, False),
        (MOVED, -1, -1, False),
        (ErrorCode.NOT_ENOUGH_REPLICAS, 0, 0, False),
        (ErrorCode.NONE, 0, 0, False),
    ],
)
def test_a_broker_that_is_not_the_leader_may_name_the_leader(code, leader_id, epoch, is_hint):
    """The hint includes the leader epoch (KIP-951), and -1 means that either is unknown."""
    leader = LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=epoch)
    hints = leader_hints({PLACE: _answer(code, current_leader=leader)})
    assert ({PLACE: (leader_id, epoch)} if is_hint else {}) == hints


def test_a_response_has_the_addresses_of_new_leaders():
    """A response names the addresses of leaders, which may be nodes that were unknown before."""
    response = SimpleNamespace(
        node_endpoints=(
            NodeEndpoint(node_id=3, host="a", port=1),
            NodeEndpoint(node_id=4, host="b", port=2),
        )
    )
    assert [Node(3, "a", 1), Node(4, "b", 2)] == hinted_nodes(response)


def test_batches_are_grouped_by_topic():
    """Batches are grouped by topic with their partitions, in order."""
    batches = [batch(2), batch(0), batch(1)]
    batches[1].topic_partition = TopicPartition("u", 0)
    request = produce_request(
        batches, snapshot({0: 0}, topic_id=7), transactional_id="x", acks=-1, timeout_ms=5
    )
    assert [("t", [2, 1]), ("u", [0])] == [
        (topic.name, [data.index for data in topic.partition_data]) for topic in request.topic_data
    ]
    assert [7, 0] == [topic.topic_id.int for topic in request.topic_data]
    assert ("x", -1, 5) == (request.transactional_id, request.acks, request.timeout_ms)


@pytest.mark.parametrize(
    ("of_record", "of_batch", "message"),
    [
        ("too old", "bad", "too old"),
        (None, "bad", "bad"),
        ("", "bad", "bad"),
        (None, None, "INVALID_RECORD"),
    ],
)
def test_a_rejected_record_has_the_brokers_message(of_record, of_batch, message):
    """A record's error is its own message, the batch's, or the name of the code (KIP-467)."""
    error = BatchIndexAndErrorMessage(batch_index=3, batch_index_error_message=of_record)
    assert {3: message} == record_errors(_answer(error_message=of_batch, record_errors=(error,)))


@pytest.mark.parametrize(
    ("fields", "suffix"),
    [
        (
            {
                "error_message": "bad",
                "record_errors": tuple(
                    BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=message)
                    for index, message in ((3, "too old"), (5, "no key"))
                ),
            },
            " (record 3: too old)",
        ),
        ({"error_message": "bad"}, " (bad)"),
        ({}, ""),
    ],
    ids=["records", "batch", "nothing"],
)
def test_the_error_of_a_rejected_batch_names_the_broker_and_its_message(fields, suffix):
    """A refusal names the broker and the first of several refused records."""
    assert f"{NODE} rejected the batch{suffix}" == refusal(NODE, _answer(**fields))
