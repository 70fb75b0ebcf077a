"""Fetch requests in each version, and what their responses say."""

from __future__ import annotations

from uuid import UUID

import pytest

from spark_kafka_sink.consumer.fetch.fetch_sessions import (
    fetch_request,
    named_leader,
    named_nodes,
    partition_data,
)
from spark_kafka_sink.consumer.fetch.range_fetch import SendFetch
from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.model import Node, TopicPartition
from spark_kafka_sink.network.connection.node_api_versions import NodeApiVersions
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.codec import decode, encode_bytes
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from spark_kafka_sink.protocol.primitives import ZERO_UUID

PLACE = TopicPartition("t", 3)
ID = UUID(int=7)
FETCH = SendFetch(Node(1, "h", 9092), False, ID, 5, 4, 60, 40, True, True)


def build(
    fetch: SendFetch = FETCH, highest: int = 17, max_partition_bytes: int = 100
) -> tuple[FetchRequest, int]:
    """Build a request for a broker; return it as the broker decodes it, with its version."""
    request, version = fetch_request(
        PLACE,
        fetch,
        NodeApiVersions({ApiKey.FETCH: (4, highest)}, {}),
        is_committed=True,
        max_bytes=1000,
        max_partition_bytes=max_partition_bytes,
        min_bytes=1,
        max_wait_ms=500,
        rack="a",
    )
    return decode(FetchRequest, encode_bytes(request, version), version), version


def response_of(*data: PartitionData, **fields: object) -> FetchResponse:
    """Build a response about some partitions of a topic."""
    topic = FetchableTopicResponse(topic_id=ID, partitions=data)
    return FetchResponse(**{"responses": (topic,), **fields})


@pytest.mark.parametrize("highest", range(4, 18))
def test_a_request_says_all_that_its_version_can(highest):
    """A broker gets the newest version it has, with topic id, epochs and rack where they exist."""
    request, version = build(highest=highest)
    [topic] = request.topics
    [partition] = topic.partitions

    assert highest == version
    assert ("t" if version <= 12 else "", ID if version >= 13 else ZERO_UUID) == (
        topic.topic,
        topic.topic_id,
    )
    assert (3, 60, 100) == (
        partition.partition,
        partition.fetch_offset,
        partition.partition_max_bytes,
    )
    assert (5 if version >= 9 else -1) == partition.current_leader_epoch
    assert (4 if version >= 12 else -1) == partition.last_fetched_epoch
    assert ("a" if version >= 11 else "") == request.rack_id
    assert (1, 1000, 500) == (request.isolation_level, request.max_bytes, request.max_wait_ms)
    assert (0, -1) == (request.session_id, request.session_epoch)


@pytest.mark.parametrize(
    ("left", "limit", "expected"),
    [
        (1, 8 << 20, 1 << 20),
        (1024, 8 << 20, 1 << 20),
        (1025, 8 << 20, 1025 << 10),
        (8 << 10, 8 << 20, 8 << 20),
        (1 << 62, 8 << 20, 8 << 20),
        (1, 5000, 5000),
    ],
)
def test_a_short_range_asks_for_less(left, limit, expected):
    """A range asks for 1 KiB for each offset that is left: from 1 MiB to what is allowed."""
    request, _ = build(FETCH._replace(left=left), max_partition_bytes=limit)

    assert expected == request.topics[0].partitions[0].partition_max_bytes


def test_a_topic_without_an_id_is_named():
    """Without a topic id, the newest version with names is used."""
    request, version = build(FETCH._replace(topic_id=ZERO_UUID))

    assert (12, "t") == (version, request.topics[0].topic)


def test_a_request_may_neither_wait_nor_be_redirected():
    """To ask again at once, and to stay with the leader, wait time and rack are left out."""
    request, _ = build(FETCH._replace(may_wait=False, may_redirect=False))

    assert (0, "") == (request.max_wait_ms, request.rack_id)


def test_an_error_of_the_whole_response_is_that_of_the_partition():
    """A request that was refused as a whole follows the same rules."""
    data = partition_data(
        FetchResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR, responses=()), PLACE, "Fetch"
    )
    assert ErrorCode.UNKNOWN_SERVER_ERROR == data.error_code


def test_a_response_may_lack_the_partition():
    """A throttled response has no partitions."""
    assert partition_data(FetchResponse(responses=()), PLACE, "Fetch") is None
    assert partition_data(response_of(), PLACE, "Fetch") is None


@pytest.mark.parametrize("indexes", [(2,), (3, 3)])
def test_a_response_about_other_partitions_is_malformed(indexes):
    """What was not asked for is not taken for an answer."""
    data = [
        PartitionData(partition_index=index, high_watermark=0, records=None) for index in indexes
    ]
    with pytest.raises(DecodeError, match="about other partitions"):
        partition_data(response_of(*data), PLACE, "Fetch")


def test_an_error_may_name_the_new_leader():
    """The leader's id, epoch and address are taken from the response (KIP-951)."""
    data = PartitionData(
        partition_index=3,
        error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
        high_watermark=-1,
        records=None,
        current_leader=LeaderIdAndEpoch(leader_id=2, leader_epoch=6),
    )
    endpoint = NodeEndpoint(node_id=2, host="other", port=9093)
    response = response_of(data, node_endpoints=(endpoint,))

    assert (2, 6) == named_leader(data)
    assert [Node(2, "other", 9093)] == named_nodes(response)
    assert named_leader(PartitionData(partition_index=3, high_watermark=0, records=None)) is None
