"""Faults of requests that read, over real sockets: which partitions they affect, and how."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.base.partition_faults import (
    AlterRecords,
    OmitPartitions,
    PartitionError,
)
from spark_kafka_sink.devbroker.net.faults import AlterResponse, Faults, Throttle
from spark_kafka_sink.errors import ConfigError, CorruptRecordError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from spark_kafka_sink.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest
from spark_kafka_sink.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from spark_kafka_sink.record.decode import decode_records
from tests.support.devbroker.broker_asker import produce_request
from tests.support.network.raw_client import RawClient
from tests.support.record.plain_batches import plain_batch

LONG_MS = 600_000
FIRST = [("t", 0)]
LIST_OFFSETS = ListOffsetsRequest(
    replica_id=-1,
    topics=(
        ListOffsetsTopic(
            name="t",
            partitions=tuple(ListOffsetsPartition(partition_index=i, timestamp=-1) for i in (0, 1)),
        ),
    ),
)
EPOCH_ENDS = OffsetForLeaderEpochRequest(
    replica_id=-1,
    topics=(
        OffsetForLeaderTopic(
            topic="t",
            partitions=tuple(
                OffsetForLeaderPartition(partition=i, current_leader_epoch=-1, leader_epoch=0)
                for i in (0, 1)
            ),
        ),
    ),
)


def fetch_request(*, offset=0, max_wait_ms=0, version=12, topic_id=None):
    topic = {"topic": "t"} if version < 13 else {"topic_id": topic_id}
    partitions = tuple(
        FetchPartition(partition=i, fetch_offset=offset, partition_max_bytes=10**6) for i in (0, 1)
    )
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        topics=(FetchTopic(**topic, partitions=partitions),),
    )


def codes(answer):
    topics = answer.responses if hasattr(answer, "responses") else answer.topics
    return [partition.error_code for topic in topics for partition in topic.partitions]


def offsets_read(answer):
    return [
        [record.offset for record in decode_records(b"".join([partition.records]))]
        for topic in answer.responses
        for partition in topic.partitions
    ]


@pytest.fixture
def broker():
    """Yield a broker whose topic has two partitions with two records each."""
    with DevBroker(topics={"t": 2}) as broker, RawClient(broker.port) as client:
        client.ask(produce_request("t", plain_batch(2), plain_batch(2)), 9)
        yield broker


@pytest.fixture
def client(broker):
    with RawClient(broker.port) as client:
        yield client


@pytest.mark.parametrize(
    ("api_key", "request_", "version"),
    [
        (ApiKey.FETCH, fetch_request(), 12),
        (ApiKey.LIST_OFFSETS, LIST_OFFSETS, 7),
        (ApiKey.OFFSET_FOR_LEADER_EPOCH, EPOCH_ENDS, 4),
    ],
)
def test_a_partition_can_fail(broker, client, api_key, request_, version):
    """An error code for one partition leaves the others as they are, and ends after its times."""
    code = ErrorCode.KAFKA_STORAGE_ERROR
    hook = broker.on(api_key, PartitionError(code, FIRST), times=2)

    answers = [codes(client.ask(request_, version)) for _ in range(3)]

    assert [[code, 0], [code, 0], [0, 0]] == answers
    assert 2 == hook.fired


@pytest.mark.parametrize(
    ("api_key", "request_", "version"),
    [
        (ApiKey.FETCH, fetch_request(), 12),
        (ApiKey.LIST_OFFSETS, LIST_OFFSETS, 7),
        (ApiKey.OFFSET_FOR_LEADER_EPOCH, EPOCH_ENDS, 4),
    ],
)
def test_a_partition_can_be_missing(broker, client, api_key, request_, version):
    """The response lacks the partitions that a fault omits."""
    broker.on(api_key, OmitPartitions(FIRST), times=1)

    assert [[0], [0, 0]] == [codes(client.ask(request_, version)) for _ in range(2)]


def test_all_partitions_can_fail(broker, client):
    """Without partitions of its own, a fault affects each partition of the request."""
    broker.on(ApiKey.FETCH, PartitionError(ErrorCode.LEADER_NOT_AVAILABLE), times=1)
    topic_id = broker.call(lambda b: b.cluster.topic("t").topic_id)
    request = fetch_request(version=13, topic_id=topic_id)

    assert [ErrorCode.LEADER_NOT_AVAILABLE] * 2 == codes(client.ask(request, 13))


def test_the_error_of_a_partition_does_not_wait(broker, client):
    """As in Kafka, a fetch with a partition that cannot be read is answered at once."""
    broker.on(ApiKey.FETCH, PartitionError(ErrorCode.KAFKA_STORAGE_ERROR, FIRST))

    answer = client.ask(fetch_request(offset=2, max_wait_ms=LONG_MS), 12)

    assert [ErrorCode.KAFKA_STORAGE_ERROR, 0] == codes(answer)


def test_records_are_damaged_in_the_answer_alone(broker, client):
    """A batch with a wrong checksum is sent once; the log still has the right one."""
    broker.on(ApiKey.FETCH, AlterRecords(partitions=FIRST), times=1)
    damaged = client.ask(fetch_request(), 12)

    with pytest.raises(CorruptRecordError):
        offsets_read(damaged)
    assert [0, 1] == [r.offset for r in decode_records(damaged.responses[0].partitions[1].records)]
    assert [[0, 1], [0, 1]] == offsets_read(client.ask(fetch_request(), 12))


def test_records_can_be_replaced(broker, client):
    """A function returns the records that are sent in place of those in the log."""
    other = plain_batch(3, base_offset=7)
    broker.on(ApiKey.FETCH, AlterRecords(lambda _: other, FIRST), times=1)

    assert [[7, 8, 9], [0, 1]] == offsets_read(client.ask(fetch_request(), 12))


def test_a_throttled_fetch_has_no_partitions(broker, client):
    """As in Kafka, a client that exceeds a quota has to fetch the same again later."""
    broker.on(ApiKey.FETCH, Throttle(0.01), times=1)
    answers = [client.ask(fetch_request(), 12) for _ in range(2)]

    assert [(10, []), (0, [0, 0])] == [(a.throttle_time_ms, codes(a)) for a in answers]


def test_an_answer_can_be_changed(broker, client):
    """A function receives the message of a response and returns what is sent."""
    broker.on(ApiKey.METADATA, AlterResponse(lambda answer: replace(answer, topics=())), times=1)

    answers = [client.ask(MetadataRequest(topics=None), 9) for _ in range(2)]

    assert [0, 1] == [len(answer.topics) for answer in answers]


def test_one_of_the_brokers_can_fail():
    """A function chooses the action by the broker that received the request."""
    error = PartitionError(ErrorCode.OFFSET_OUT_OF_RANGE)
    with DevBroker(brokers=2, topics={"t": 2}) as cluster:
        cluster.on(
            ApiKey.FETCH, lambda _, context: error if context.node_id == 2 else None, expect=True
        )
        ports = [int(address.rpartition(":")[2]) for address in cluster.addresses.values()]
        with RawClient(ports[0]) as one, RawClient(ports[1]) as two:
            answers = [codes(client.ask(fetch_request(), 12)) for client in (one, two)]

    assert [[0, 0], [ErrorCode.OFFSET_OUT_OF_RANGE] * 2] == answers


@pytest.mark.parametrize(
    ("api_key", "fault"),
    [
        (ApiKey.PRODUCE, PartitionError(ErrorCode.KAFKA_STORAGE_ERROR)),
        (ApiKey.METADATA, OmitPartitions()),
        (ApiKey.LIST_OFFSETS, AlterRecords()),
    ],
)
def test_a_fault_that_would_do_nothing_is_refused(api_key, fault):
    """A fault of an API whose responses it cannot affect is a mistake in the test."""
    with pytest.raises(ConfigError, match=f"{type(fault).__name__} affects .*, not {api_key.name}"):
        Faults().on(api_key, fault)
