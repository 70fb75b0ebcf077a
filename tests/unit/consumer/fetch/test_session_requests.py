"""Fetch requests of sessions in each version, and what their responses say."""

from __future__ import annotations

from uuid import UUID

import pytest

from spark_kafka_sink.consumer.fetch.fetch_sessions import (
    PartitionToFetch,
    SessionRequest,
    build_fetch,
    has_topic_ids,
    named_leaders,
    read_fetch,
)
from spark_kafka_sink.errors import DecodeError, UnsupportedVersionError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.network.connection.node_api_versions import NodeApiVersions
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.codec import decode, encode_bytes
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
)
from spark_kafka_sink.protocol.primitives import ZERO_UUID

FOO0, FOO1, BAR0 = TopicPartition("foo", 0), TopicPartition("foo", 1), TopicPartition("bar", 0)
FOO_ID, BAR_ID, OLD_ID = UUID(int=1), UUID(int=2), UUID(int=3)
WANTED = {
    FOO0: PartitionToFetch(FOO_ID, 10, 4, 3, 200),
    FOO1: PartitionToFetch(FOO_ID, 11, 5, 2, 201),
    BAR0: PartitionToFetch(BAR_ID, 12, 6, 1, 202),
}


def broker(highest: int = 17) -> NodeApiVersions:
    return NodeApiVersions({ApiKey.FETCH: (4, highest)}, {})


def build(
    session_request: SessionRequest, highest: int = 17, *, is_committed: bool = True
) -> tuple[FetchRequest, int]:
    """Build a request for a broker; return it as the broker decodes it, with its version."""
    request, version = build_fetch(
        session_request,
        broker(highest),
        is_committed=is_committed,
        max_bytes=1000,
        min_bytes=1,
        max_wait_ms=500,
        rack="a",
    )
    return decode(FetchRequest, encode_bytes(request, version), version), version


def data(index: int, error: int = 0, leader: tuple[int, int] = (-1, -1)) -> PartitionData:
    return PartitionData(
        partition_index=index,
        error_code=error,
        high_watermark=10,
        current_leader=LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1]),
        records=None,
    )


@pytest.mark.parametrize("highest", range(4, 18))
def test_a_request_says_all_that_its_version_can(highest):
    """A broker gets the newest version it has, with ids, epochs and rack where they exist."""
    request, version = build(
        SessionRequest(0, 0, WANTED, uses_topic_ids=has_topic_ids(broker(highest))), highest
    )

    assert highest == version
    assert (["foo", "bar"] if version <= 12 else ["", ""]) == [
        topic.topic for topic in request.topics
    ]
    assert ([FOO_ID, BAR_ID] if version >= 13 else [ZERO_UUID] * 2) == [
        topic.topic_id for topic in request.topics
    ]
    assert [
        (
            index,
            each.offset,
            each.leader_epoch if version >= 9 else -1,
            each.last_fetched_epoch if version >= 12 else -1,
            each.max_bytes,
        )
        for (_, index), each in WANTED.items()
    ] == [
        (
            each.partition,
            each.fetch_offset,
            each.current_leader_epoch,
            each.last_fetched_epoch,
            each.partition_max_bytes,
        )
        for topic in request.topics
        for each in topic.partitions
    ]
    assert (1000, 1, 500) == (request.max_bytes, request.min_bytes, request.max_wait_ms)
    assert ("a" if version >= 11 else "") == request.rack_id
    assert -1 == request.replica_id == request.replica_state.replica_id


@pytest.mark.parametrize(("is_committed", "level"), [(False, 0), (True, 1)])
def test_the_isolation_level_is_part_of_the_request(is_committed, level):
    """A broker sends records of open transactions unless the level is read_committed."""
    request, _ = build(SessionRequest(0, 0, WANTED), is_committed=is_committed)

    assert level == request.isolation_level


def test_topics_without_ids_are_named():
    """If the session uses no ids, the request has the last version with names."""
    request, version = build(SessionRequest(0, 0, {FOO0: WANTED[FOO0]}, {BAR0: BAR_ID}))

    assert 12 == version
    assert ["foo"] == [topic.topic for topic in request.topics]
    assert [("bar", (0,))] == [
        (topic.topic, topic.partitions) for topic in request.forgotten_topics_data
    ]


def test_partitions_of_a_topic_are_listed_together_where_they_follow_each_other():
    """The order of the partitions is kept, even if a topic is then listed twice."""
    order = (FOO1, FOO0, BAR0)
    request, _ = build(SessionRequest(1, 2, {each: WANTED[each] for each in order}))
    other, _ = build(SessionRequest(1, 2, {each: WANTED[each] for each in (FOO1, BAR0, FOO0)}))

    assert [("foo", [1, 0]), ("bar", [0])] == [
        (topic.topic, [each.partition for each in topic.partitions]) for topic in request.topics
    ]
    assert ["foo", "bar", "foo"] == [topic.topic for topic in other.topics]
    assert (1, 2) == (request.session_id, request.session_epoch)


def test_forgotten_and_replaced_partitions_are_named_by_topic():
    """A session forgets removed partitions, and the old ids of topics that were recreated."""
    request, version = build(
        SessionRequest(
            1,
            2,
            {},
            to_forget={FOO0: FOO_ID, BAR0: BAR_ID},
            to_replace={FOO1: OLD_ID, TopicPartition("foo", 2): FOO_ID},
            uses_topic_ids=True,
        )
    )

    assert 17 == version
    assert [(FOO_ID, (0, 2)), (BAR_ID, (0,)), (OLD_ID, (1,))] == [
        (topic.topic_id, topic.partitions) for topic in request.forgotten_topics_data
    ]
    assert () == request.topics


@pytest.mark.parametrize("highest", [7, 12, 17])
def test_a_request_that_closes_a_session_exists_in_all_versions(highest):
    """A request without partitions has the version of the broker."""
    request, version = build(SessionRequest(9, -1, {}, uses_topic_ids=True), highest)

    assert highest == version
    assert (9, -1, ()) == (request.session_id, request.session_epoch, request.topics)


@pytest.mark.parametrize("highest", [12, 13])
def test_topic_ids_begin_with_version_13(highest):
    """The caller learns from the broker's versions whether topic ids can be used."""
    assert (highest == 13) == has_topic_ids(broker(highest))


def test_a_broker_needs_a_version_in_common():
    """A broker without a common version is refused before anything is sent."""
    with pytest.raises(UnsupportedVersionError):
        build(SessionRequest(0, 0, WANTED), highest=3)


@pytest.mark.parametrize("with_ids", [False, True])
def test_a_response_is_read_by_ids_or_by_names(with_ids):
    """The partitions of a response are found in its order, whichever way topics are named."""
    first, second, third = data(1), data(0), data(0)
    response = FetchResponse(
        session_id=1,
        responses=tuple(
            FetchableTopicResponse(
                topic="" if with_ids else name,
                topic_id=topic_id if with_ids else ZERO_UUID,
                partitions=partitions,
            )
            for name, topic_id, partitions in (
                ("foo", FOO_ID, (first, second)),
                ("bar", BAR_ID, (third,)),
            )
        ),
    )

    found = read_fetch(response, {FOO_ID: "foo", BAR_ID: "bar"} if with_ids else {})

    assert [(FOO1, first), (FOO0, second), (BAR0, third)] == list(found.items())


def test_a_response_with_an_unknown_id_is_malformed():
    """The error names the topic id."""
    topic = FetchableTopicResponse(topic_id=OLD_ID, partitions=(data(0),))

    with pytest.raises(DecodeError, match=str(OLD_ID)):
        read_fetch(FetchResponse(responses=(topic,)), {FOO_ID: "foo"})


def test_a_response_with_a_partition_twice_is_malformed():
    """The error names the partition."""
    topic = FetchableTopicResponse(topic="foo", partitions=(data(1),))

    with pytest.raises(DecodeError, match="foo-1 twice"):
        read_fetch(FetchResponse(responses=(topic, topic)), {})


def test_leaders_are_named_by_brokers_that_are_not_the_leader():
    """Only the two errors about leaders name one, and only with both its id and its epoch."""
    answers = {
        FOO0: data(0, ErrorCode.NOT_LEADER_OR_FOLLOWER, (2, 8)),
        FOO1: data(1, ErrorCode.FENCED_LEADER_EPOCH, (0, 0)),
        BAR0: data(0, ErrorCode.UNKNOWN_LEADER_EPOCH, (2, 8)),
        TopicPartition("bar", 1): data(1, ErrorCode.NOT_LEADER_OR_FOLLOWER, (-1, 8)),
        TopicPartition("bar", 2): data(2, ErrorCode.NOT_LEADER_OR_FOLLOWER, (2, -1)),
        TopicPartition("bar", 3): data(3, ErrorCode.NONE, (2, 8)),
    }

    assert {FOO0: (2, 8), FOO1: (0, 0)} == named_leaders(answers)
