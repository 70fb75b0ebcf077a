"""Topics by name and by id: what each version supports, and which response is whose."""

from __future__ import annotations

import uuid

import pytest

from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.codec import decode, encode_bytes
from spark_kafka_sink.protocol.messages.produce import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
    partition_responses,
)
from spark_kafka_sink.protocol.primitives import ZERO_UUID

ID_OF_T, ID_OF_U = uuid.UUID(int=1), uuid.UUID(int=2)


def _request(*topics: tuple[str, uuid.UUID]) -> ProduceRequest:
    return ProduceRequest(
        acks=-1,
        timeout_ms=1,
        topic_data=tuple(
            TopicProduceData(
                name=name,
                topic_id=topic_id,
                partition_data=(PartitionProduceData(index=0, records=b""),),
            )
            for name, topic_id in topics
        ),
    )


def _answer(base_offset: int, **topic: object) -> TopicProduceResponse:
    partition = PartitionProduceResponse(index=0, base_offset=base_offset)
    return TopicProduceResponse(partition_responses=(partition,), **topic)


@pytest.mark.parametrize(
    ("topics", "highest"),
    [
        ([("t", ID_OF_T), ("u", ID_OF_U)], 13),
        ([("t", ID_OF_T), ("u", ZERO_UUID)], 12),
        ([("t", ZERO_UUID)], 12),
    ],
    ids=["all ids", "one without", "none"],
)
def test_version_13_requires_the_ids_of_all_topics(topics, highest):
    """One topic without a known id limits the whole request to the last version with names."""
    assert highest == _request(*topics).highest_version


@pytest.mark.parametrize(("version", "name", "topic_id"), [(12, "t", 0), (13, "", 1)])
def test_topics_are_sent_by_name_or_by_id(version, name, topic_id):
    """The same request has the name in version 12, and only the id in version 13."""
    encoded = encode_bytes(_request(("t", ID_OF_T)), version)
    [topic] = decode(ProduceRequest, encoded, version).topic_data
    assert (name, uuid.UUID(int=topic_id)) == (topic.name, topic.topic_id)


def test_responses_are_mapped_to_the_requested_topics():
    """Responses by name and by id are mapped to names, and unrelated ones are ignored."""
    request = _request(("t", ID_OF_T), ("u", ID_OF_U))
    response = ProduceResponse(
        responses=(
            _answer(10, topic_id=ID_OF_U),
            _answer(20, name="t"),
            _answer(30, topic_id=uuid.UUID(int=9)),
        )
    )
    answers = partition_responses(request, response)
    expected = {TopicPartition("u", 0): 10, TopicPartition("t", 0): 20}
    assert expected == {where: answer.base_offset for where, answer in answers.items()}


@pytest.mark.parametrize("version", range(10, 14))
def test_an_error_response_names_the_new_leader(version):
    """The error has the leader, epoch and address of a partition that has moved (KIP-951)."""
    leader = LeaderIdAndEpoch(leader_id=2, leader_epoch=7)
    response = ProduceResponse(
        responses=(
            TopicProduceResponse(
                partition_responses=(
                    PartitionProduceResponse(
                        index=0, error_code=6, base_offset=-1, current_leader=leader
                    ),
                )
            ),
        ),
        node_endpoints=(NodeEndpoint(node_id=2, host="h", port=9094),),
    )
    read = decode(ProduceResponse, encode_bytes(response, version), version)
    assert leader == read.responses[0].partition_responses[0].current_leader
    assert (NodeEndpoint(node_id=2, host="h", port=9094),) == read.node_endpoints
