"""Requests about offsets, grouped by leader, and their responses."""

from __future__ import annotations

from types import MappingProxyType
from uuid import UUID

import pytest

from spark_kafka_sink.config.offset_specs import Assign, Subscribe, SubscribePattern
from spark_kafka_sink.consumer.offsets.offset_calls import (
    read_topics,
    selected_partitions,
    wanted_topics,
)
from spark_kafka_sink.consumer.offsets.offset_requests import (
    by_leader,
    find_coordinator_request,
    found_coordinator,
    list_offsets_request,
    read_offsets,
    refused_commits,
)
from spark_kafka_sink.errors import BrokerError
from spark_kafka_sink.model import Node, TopicPartition
from spark_kafka_sink.network.metadata import (
    MetadataSnapshot,
    PartitionMetadata,
    TopicMetadata,
)
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.find_coordinator import FindCoordinatorResponse
from spark_kafka_sink.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from spark_kafka_sink.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from spark_kafka_sink.protocol.messages.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

ONE, TWO = Node(1, "one", 9092), Node(2, "two", 9092)
T = [TopicPartition("t", number) for number in range(4)]


def snapshot() -> MetadataSnapshot:
    """Return metadata in which 0 and 2 are led by 1, 1 by 2, and 3 by nobody that is known."""
    leaders = [PartitionMetadata(leader_id, 5) for leader_id in (1, 2, 1, 9)]
    topic = TopicMetadata("t", UUID(int=1), 0, tuple(leaders))
    return MetadataSnapshot(
        nodes=MappingProxyType({1: ONE, 2: TWO}), topics=MappingProxyType({"t": topic})
    )


def topic(name: str, partitions: int = 1, **fields: object) -> MetadataResponseTopic:
    """Build the description of a topic."""
    described = tuple(
        MetadataResponsePartition(
            partition_index=number, leader_id=1, replica_nodes=(1,), isr_nodes=(1,)
        )
        for number in range(partitions)
    )
    return MetadataResponseTopic(name=name, partitions=described, **fields)


def response(*topics: MetadataResponseTopic) -> MetadataResponse:
    """Build a metadata response."""
    return MetadataResponse(brokers=(), topics=topics)


def question(partition, timestamp=-1, leader_epoch=5):
    """Return what a leader is asked about a partition."""
    return ListOffsetsPartition(
        partition_index=partition, current_leader_epoch=leader_epoch, timestamp=timestamp
    )


def test_partitions_are_grouped_by_leader():
    """Each leader gets one group, by topic, with leader epochs; the rest has no leader."""
    groups, leaderless = by_leader({**dict.fromkeys(T, -1), TopicPartition("u", 0): -1}, snapshot())

    assert {ONE: {"t": [question(0), question(2)]}, TWO: {"t": [question(1)]}} == groups
    assert [T[3], TopicPartition("u", 0)] == leaderless


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_request_has_the_partitions_of_a_leader(is_committed):
    """The isolation level selects what "latest" means."""
    questions = {"t": [question(0), question(2, 9)], "u": [question(0, -2)]}
    request = list_offsets_request(questions, is_committed=is_committed, timeout_ms=100)

    assert is_committed == request.isolation_level
    assert questions == {each.name: list(each.partitions) for each in request.topics}


def test_a_response_has_offsets_and_errors():
    """An error of one partition leaves the others alone; offset -1 is no offset."""
    partitions = (
        ListOffsetsPartitionResponse(partition_index=0, offset=7),
        ListOffsetsPartitionResponse(partition_index=1, offset=-1),
        ListOffsetsPartitionResponse(
            partition_index=2, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED
        ),
    )
    answers = read_offsets(
        ListOffsetsResponse(topics=(ListOffsetsTopicResponse(name="t", partitions=partitions),)),
        ONE,
        T,
    )

    assert {T[0]: 7, T[1]: None} == answers.found
    assert [T[2]] == list(answers.failed)
    assert "t-2: ListOffsets at one:9092 (id 1)" in str(answers.failed[T[2]])
    assert "Grant this user DESCRIBE and READ" in str(answers.failed[T[2]])


def test_answers_that_nobody_asked_for_are_dropped():
    """They would be taken for those of other partitions, or not be found among the questions."""
    asked = (T[0],)
    response = ListOffsetsResponse(
        topics=tuple(
            ListOffsetsTopicResponse(
                name=name,
                partitions=tuple(
                    ListOffsetsPartitionResponse(partition_index=it, offset=7, error_code=code)
                    for it, code in ((-1, 0), (0, 0), (1, 0), (2, ErrorCode.INVALID_REQUEST))
                ),
            )
            for name in ("t", "u")
        )
    )
    commit = OffsetCommitResponse(
        topics=(
            OffsetCommitResponseTopic(
                name="t",
                partitions=tuple(
                    OffsetCommitResponsePartition(partition_index=it, error_code=28)
                    for it in (0, 1)
                ),
            ),
        )
    )
    assert ({T[0]: 7}, {}, {T[0]: -1}) == read_offsets(response, ONE, asked)
    assert asked == tuple(refused_commits(commit, "g", asked))


def test_a_commit_without_an_answer_is_refused():
    """A response that lacks partitions does not count as a commit of them."""
    response = OffsetCommitResponse(
        topics=(
            OffsetCommitResponseTopic(
                name="t", partitions=(OffsetCommitResponsePartition(partition_index=1),)
            ),
        )
    )
    refused = refused_commits(response, "g", T[:3])

    assert {T[0], T[2]} == refused.keys()
    assert "group 'g': the coordinator's answer lacks t-0 and 1 more" in str(refused[T[2]])


def test_a_coordinator_is_found_in_the_old_and_in_the_new_format():
    """Brokers before 3.0 know one key only."""
    assert ("g", ()) == (
        find_coordinator_request("g", 3).key,
        find_coordinator_request("g", 3).coordinator_keys,
    )
    assert ("g",) == find_coordinator_request("g", 4).coordinator_keys
    old = FindCoordinatorResponse(node_id=1, host="one", port=9092)
    assert (0, ONE) == found_coordinator(old)


# --- topics


def test_a_pattern_sees_topics_that_are_not_internal():
    """Internal topics, and those that cannot be described, match no pattern."""
    answers = read_topics(
        response(
            topic("a", 2),
            topic("__consumer_offsets", 50, is_internal=True),
            topic("refused", 0, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        ),
        wanted_topics(SubscribePattern(".")),
    )
    found = selected_partitions(SubscribePattern("."), answers.topics)

    assert (TopicPartition("a", 0), TopicPartition("a", 1)) == found


def test_an_internal_topic_may_be_named():
    """A topic that is named is read, internal or not."""
    selection = Subscribe(("__consumer_offsets",))
    answers = read_topics(
        response(topic("__consumer_offsets", is_internal=True)), wanted_topics(selection)
    )
    assert 1 == len(selected_partitions(selection, answers.topics))


def test_missing_and_unready_topics_are_told_apart():
    """A topic may not exist, or not be ready yet; the first of each kind is returned."""
    selection = Assign((TopicPartition("a", 0), TopicPartition("b", 0), TopicPartition("c", 0)))
    answers = read_topics(
        response(
            topic("a", 0, error_code=ErrorCode.LEADER_NOT_AVAILABLE),
            topic("b", 0, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ),
        wanted_topics(selection),
    )

    assert ("b", ErrorCode.LEADER_NOT_AVAILABLE) == (answers.missing, answers.retriable.code)
    assert () == answers.topics


def test_a_topic_that_may_not_be_described_is_an_error():
    """The error names the topic and the missing right."""
    refused = topic("a", 0, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(BrokerError, match=r"topic 'a' cannot be read: .* DESCRIBE and READ"):
        read_topics(response(refused), ["a"])
