"""Leaders that lack records, and topics that are made again: what readers are told."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from spark_kafka_sink.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.support.devbroker.broker_asker import produce_request
from tests.support.network.raw_client import RawClient
from tests.support.record.plain_batches import plain_batch

LONG_MS = 600_000


def topic_id(cluster):
    return cluster.call(lambda broker: broker.cluster.topic("t").topic_id)


def fetch_request(cluster, offset, *, epoch=-1, last_epoch=-1, max_wait_ms=0):
    partition = FetchPartition(
        partition=0,
        fetch_offset=offset,
        partition_max_bytes=10**6,
        current_leader_epoch=epoch,
        last_fetched_epoch=last_epoch,
    )
    topic = FetchTopic(topic_id=topic_id(cluster), partitions=(partition,))
    return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, topics=(topic,))


def fetched(answer):
    (partition,) = answer.responses[0].partitions
    return partition


@pytest.fixture
def cluster():
    """Yield three brokers; broker 1 leads a topic that has two batches of two records."""
    with DevBroker(brokers=3, topics={"t": 1}) as cluster, client_of(cluster) as client:
        for _ in range(2):
            client.ask(produce_request("t", plain_batch(2)), 9)
        yield cluster


def client_of(cluster, node_id=1):
    return RawClient(int(cluster.addresses[node_id].rpartition(":")[2]))


def test_an_unclean_leader_has_lost_the_tail_of_the_log(cluster):
    """The new leader's log is shorter, and its next records are in another epoch."""
    cluster.elect_unclean_leader("t", 0, 2, node_id=2)

    assert 2 == cluster.leader("t")
    assert [0, 1] == [record.offset for record in cluster.records("t")[0]]
    with client_of(cluster, 2) as client:
        client.ask(produce_request("t", plain_batch(1)), 9)
        partition = fetched(client.ask(fetch_request(cluster, 0, epoch=1), 17))
    assert (0, 3) == (partition.error_code, partition.high_watermark)


def test_readers_of_the_old_epoch_are_told_so(cluster):
    """A reader with the old epoch is fenced, and one with a newer epoch is ahead of the broker."""
    cluster.elect_unclean_leader("t", 0, 2)

    with client_of(cluster) as client:
        codes = [
            fetched(client.ask(fetch_request(cluster, 0, epoch=epoch), 17)).error_code
            for epoch in (0, 1, 2)
        ]

    assert [ErrorCode.FENCED_LEADER_EPOCH, 0, ErrorCode.UNKNOWN_LEADER_EPOCH] == codes


def test_a_reader_of_lost_records_learns_where_the_logs_part(cluster):
    """A fetch behind lost records has a diverging epoch, or an offset that is out of range."""
    cluster.elect_unclean_leader("t", 0, 2)

    with client_of(cluster) as client:
        parted = fetched(client.ask(fetch_request(cluster, 4, epoch=1, last_epoch=0), 17))
        beyond = fetched(client.ask(fetch_request(cluster, 4, epoch=1), 17))

    assert (0, 0, 2) == (
        parted.error_code,
        parted.diverging_epoch.epoch,
        parted.diverging_epoch.end_offset,
    )
    assert ErrorCode.OFFSET_OUT_OF_RANGE == beyond.error_code


def test_the_end_of_an_epoch_moves_with_the_log(cluster):
    """OffsetForLeaderEpoch returns where the old epoch ends in the log of the new leader."""
    cluster.elect_unclean_leader("t", 0, 2)
    request = OffsetForLeaderEpochRequest(
        replica_id=-1,
        topics=(
            OffsetForLeaderTopic(
                topic="t",
                partitions=(
                    OffsetForLeaderPartition(partition=0, current_leader_epoch=1, leader_epoch=0),
                ),
            ),
        ),
    )

    with client_of(cluster) as client:
        (end,) = client.ask(request, 4).topics[0].partitions

    assert (0, 0, 2) == (end.error_code, end.leader_epoch, end.end_offset)


def test_an_unclean_election_ends_a_wait(cluster):
    """A fetch that waits for records is answered when the partition has another leader."""
    with client_of(cluster) as client:
        client.send(fetch_request(cluster, 4, epoch=0, max_wait_ms=LONG_MS), 17)
        assert client.is_silent_for(0.05)

        cluster.elect_unclean_leader("t", 0, 2, node_id=2)

        answer = fetched(client.receive()[1])
    assert (ErrorCode.FENCED_LEADER_EPOCH, 2, 1) == (
        answer.error_code,
        answer.current_leader.leader_id,
        answer.current_leader.leader_epoch,
    )


def test_only_a_running_replica_can_be_an_unclean_leader(cluster):
    """A broker that is unknown or down cannot lead, and nothing is lost."""
    cluster.stop(3)

    for node_id in (3, 7):
        with pytest.raises(RefusedError) as caught:
            cluster.elect_unclean_leader("t", 0, 2, node_id=node_id)
        assert ErrorCode.INVALID_REPLICA_ASSIGNMENT == caught.value.error_code
    assert 4 == len(cluster.records("t")[0])


def test_a_topic_that_is_made_again_is_another_topic(cluster):
    """Its old id is unknown, and its records are gone."""
    old = fetch_request(cluster, 0)
    cluster.delete_topic("t")
    cluster.create_topic("t")

    with client_of(cluster) as client:
        answers = [fetched(client.ask(each, 17)) for each in (old, fetch_request(cluster, 0))]

    assert [(ErrorCode.UNKNOWN_TOPIC_ID, -1), (0, 0)] == [
        (answer.error_code, answer.high_watermark) for answer in answers
    ]


def test_only_an_existing_topic_can_be_deleted(cluster):
    """The error names the topic."""
    with pytest.raises(RefusedError, match="'no' does not exist"):
        cluster.delete_topic("no")
