"""Fetch: what is read, when a fetch waits, and each reason for a refusal."""

from __future__ import annotations

import uuid

import pytest

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.cluster.partition import Leadership
from spark_kafka_sink.devbroker.handlers import fetch as fetch_handler
from spark_kafka_sink.devbroker.handlers.handler import Delayed
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ReplicaState,
)
from spark_kafka_sink.record.decode import decode_records
from spark_kafka_sink.record.record_batch import decode_header
from tests.support.devbroker.broker_requests import NOW, ask, broker_with
from tests.support.record.plain_batches import PlainRecord, plain_batch

BATCH = plain_batch([PlainRecord(b"x" * 40)])
SIZE = len(BATCH)
ANY = 10**8


def broker_with_records(counts=(4, 2)):
    """Return a broker whose topic t has partitions with the given numbers of one-record batches."""
    broker = broker_with({"t": len(counts)})
    for partition, count in zip(broker.cluster.topic("t").partitions, counts, strict=True):
        for _ in range(count):
            partition.log.append(memoryview(bytearray(BATCH)), decode_header(BATCH))
    return broker


def fetch(
    broker,
    offsets,
    version=None,
    *,
    topic="t",
    now=NOW,
    partition_max_bytes=ANY,
    last_fetched_epoch=-1,
    current_leader_epoch=-1,
    **fields,
):
    """Fetch partitions 0, 1, ... of a topic from these offsets."""
    known = broker.cluster.topic(topic)
    version = 17 if version is None else version
    by_id = {"topic_id": known.topic_id if known else uuid.UUID(int=5)}
    request = FetchRequest(
        **{
            "max_wait_ms": 0,
            "min_bytes": 1,
            "max_bytes": ANY,
            "topics": (
                FetchTopic(
                    **({"topic": topic} if version < 13 else by_id),
                    partitions=tuple(
                        FetchPartition(
                            partition=index,
                            fetch_offset=offset,
                            partition_max_bytes=partition_max_bytes,
                            last_fetched_epoch=last_fetched_epoch,
                            current_leader_epoch=current_leader_epoch,
                        )
                        for index, offset in enumerate(offsets)
                    ),
                ),
            ),
        }
        | fields
    )
    return ask(broker, request, version, now=now, arrived=NOW)


def partitions(response):
    return [partition for topic in response.responses for partition in topic.partitions]


def offsets_read(response):
    return [
        [record.offset for record in decode_records(partition.records)]
        for partition in partitions(response)
    ]


def errors(response):
    return [partition.error_code for partition in partitions(response)]


@pytest.mark.parametrize("version", range(4, 18))
def test_records_are_read_from_an_offset_on(version):
    """Every version returns the records, the high watermark and the last stable offset."""
    response = fetch(broker_with_records(), [1, 2], version)

    assert [[1, 2, 3], []] == offsets_read(response)
    assert [(0, 4, 4), (0, 2, 2)] == [
        (p.error_code, p.high_watermark, p.last_stable_offset) for p in partitions(response)
    ]
    assert 0 == response.error_code


def test_topics_are_identified_as_they_were_requested():
    """Topics are identified by name up to version 12, and by id in later versions."""
    broker = broker_with_records()

    assert ["t"] == [topic.topic for topic in fetch(broker, [0], 12).responses]
    assert [broker.cluster.topic("t").topic_id] == [
        topic.topic_id for topic in fetch(broker, [0], 13).responses
    ]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, [4, 2]),
        ({"partition_max_bytes": 2 * SIZE}, [2, 2]),
        ({"max_bytes": 5 * SIZE}, [4, 1]),
        ({"max_bytes": 5 * SIZE - 1}, [4, 0]),
        ({"max_bytes": 2 * SIZE}, [2, 0]),
        ({"max_bytes": 1}, [1, 0]),
        ({"partition_max_bytes": 1}, [1, 0]),
        ({"partition_max_bytes": 0, "max_bytes": 0}, [1, 0]),
    ],
)
def test_limits_are_kept_but_for_the_first_batch(limits, expected):
    """max_bytes limits the response and partition_max_bytes a partition, except for one batch."""
    response = fetch(broker_with_records(), [0, 0], **limits)

    assert expected == [len(offsets) for offsets in offsets_read(response)]


def test_the_one_batch_comes_from_the_first_partition_that_has_any():
    """A partition without new records does not use up the batch that is always returned."""
    response = fetch(broker_with_records(), [4, 0], max_bytes=1)

    assert [[], [0]] == offsets_read(response)


def test_the_brokers_own_limit_bounds_the_answer():
    """fetch.max.bytes applies even if a client requests more."""
    broker = broker_with({"t": 1}, fetch_max_bytes=2 * SIZE)
    log = broker.cluster.topic("t").partitions[0].log
    for _ in range(4):
        log.append(memoryview(bytearray(BATCH)), decode_header(BATCH))

    assert [[0, 1]] == offsets_read(fetch(broker, [0], min_bytes=ANY, max_wait_ms=1000))


def test_a_fetch_with_too_little_to_read_waits():
    """With fewer than min_bytes available, the response is delayed for max_wait_ms."""
    outcome = fetch(broker_with_records(), [4, 2], max_wait_ms=500)

    assert NOW + 0.5 == outcome.until
    assert {TopicPartition("t", 0), TopicPartition("t", 1)} == outcome.watched


@pytest.mark.parametrize(
    ("fields", "waits"),
    [
        ({"max_wait_ms": 500, "min_bytes": SIZE}, False),
        ({"max_wait_ms": 500, "min_bytes": SIZE + 1}, True),
        ({"max_wait_ms": 500, "min_bytes": SIZE + 1, "now": NOW + 0.4}, True),
        ({"max_wait_ms": 500, "min_bytes": SIZE + 1, "now": NOW + 0.5}, False),
        ({"max_wait_ms": 0, "min_bytes": SIZE + 1}, False),
        ({"max_wait_ms": -1, "min_bytes": SIZE + 1}, False),
        ({"max_wait_ms": 500, "min_bytes": 0}, False),
        # Kafka would fill max_bytes with part of a batch, and so has enough.
        ({"max_wait_ms": 500, "min_bytes": ANY, "max_bytes": SIZE}, False),
    ],
)
def test_waiting_ends_when_there_is_enough_or_time_is_up(fields, waits):
    """A fetch waits for min_bytes until max_wait_ms after its arrival."""
    assert waits == isinstance(fetch(broker_with_records(), [3], **fields), Delayed)


def test_a_fetch_from_a_complete_segment_does_not_wait():
    """As in Kafka, records of a segment that does not grow any more are returned at once."""
    broker = broker_with_records((2,))
    log = broker.cluster.topic("t").partitions[0].log
    log.roll(0)
    waits = fetch(broker, [1], max_wait_ms=500, min_bytes=ANY, max_bytes=ANY)
    log.append(memoryview(bytearray(BATCH)), decode_header(BATCH))

    assert [[1]] == offsets_read(waits)
    assert isinstance(fetch(broker, [2], max_wait_ms=500, min_bytes=ANY), Delayed)


def test_a_fetch_of_nothing_does_not_wait():
    """Without partitions there is nothing to wait for."""
    assert () == fetch(broker_with_records(), [], max_wait_ms=500).responses


@pytest.mark.parametrize("offset", [5, -1])
def test_an_offset_outside_of_the_log_is_refused_at_once(offset):
    """OFFSET_OUT_OF_RANGE does not wait for the other partitions."""
    response = fetch(broker_with_records(), [offset, 2], max_wait_ms=500)

    assert [ErrorCode.OFFSET_OUT_OF_RANGE, 0] == errors(response)
    refused, read = partitions(response)
    assert (-1, 2) == (refused.high_watermark, read.high_watermark)


def test_an_unknown_partition_is_refused():
    """A partition that does not exist is UNKNOWN_TOPIC_OR_PARTITION."""
    assert [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] == errors(
        fetch(broker_with_records((1,)), [0, 0])
    )


@pytest.mark.parametrize(
    ("version", "expected"),
    [(12, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (13, ErrorCode.UNKNOWN_TOPIC_ID)],
)
def test_an_unknown_topic_is_refused(version, expected):
    """An unknown name and an unknown id have different codes; alone, neither waits."""
    response = fetch(broker_with_records(), [0], version, topic="u", max_wait_ms=500)

    assert [expected] == errors(response)


def test_an_unknown_topic_does_not_keep_others_from_waiting():
    """As in Kafka, only errors while reading the log end the wait early."""
    assert isinstance(fetch(broker_with_records((1,)), [1, 0], max_wait_ms=500), Delayed)


@pytest.mark.parametrize(("isolation_level", "expected"), [(0, None), (1, ())])
def test_read_committed_reads_the_same_with_a_list_of_aborted_transactions(
    isolation_level, expected
):
    """There are no transactions, so the list of aborted ones is empty."""
    response = fetch(broker_with_records(), [0], isolation_level=isolation_level)

    assert [[0, 1, 2, 3]] == offsets_read(response)
    assert [expected] == [p.aborted_transactions for p in partitions(response)]


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [(2, ErrorCode.FENCED_LEADER_EPOCH), (4, ErrorCode.UNKNOWN_LEADER_EPOCH), (3, 0), (-1, 0)],
)
def test_the_leader_epoch_is_checked(epoch, expected):
    """A client with another leader epoch must refresh its metadata (KIP-320)."""
    broker = broker_with_records((1,))
    broker.cluster.topic("t").partitions[0].leadership = Leadership.of_only(1, leader_epoch=3)

    response = fetch(broker, [0], current_leader_epoch=epoch)

    assert [expected] == errors(response)
    if expected == ErrorCode.FENCED_LEADER_EPOCH:
        (partition,) = partitions(response)
        assert (1, 3) == (partition.current_leader.leader_id, partition.current_leader.leader_epoch)
        assert [(1, "127.0.0.1", 9092)] == [
            (node.node_id, node.host, node.port) for node in response.node_endpoints
        ]


@pytest.mark.parametrize(
    ("version", "partition_errors", "error"),
    [
        (4, [ErrorCode.INVALID_REQUEST], 0),
        (12, [ErrorCode.INVALID_REQUEST], ErrorCode.INVALID_REQUEST),
        (13, [], ErrorCode.INVALID_REQUEST),
    ],
)
def test_each_partition_of_an_old_request_that_failed_has_the_error(
    monkeypatch, version, partition_errors, error
):
    """Versions before 7 have no other place for it; with topic ids, no partition is named."""
    monkeypatch.setattr(fetch_handler, "_begin", refuse)
    response = fetch(broker_with_records((1,)), [0], version)
    assert (partition_errors, error) == (errors(response), response.error_code)


def refuse(*_):
    raise RefusedError(ErrorCode.INVALID_REQUEST, "why")


@pytest.mark.parametrize(("version", "nodes"), [(15, ()), (16, (1,)), (17, (1,))])
def test_the_leader_has_an_address_from_version_16_on(version, nodes):
    """Before that, a response has no field for the addresses of nodes (KIP-951)."""
    broker = broker_with_records((1,))
    broker.cluster.topic("t").partitions[0].leadership = Leadership.of_only(1, leader_epoch=3)
    response = fetch(broker, [0], version, current_leader_epoch=2)
    assert [ErrorCode.FENCED_LEADER_EPOCH] == errors(response)
    assert nodes == tuple(node.node_id for node in response.node_endpoints)


def test_a_reader_that_is_ahead_learns_where_its_log_has_parted():
    """A fetch with the last fetched epoch gets the end offset of that epoch (KIP-595)."""
    (partition,) = partitions(fetch(broker_with_records((4,)), [9], last_fetched_epoch=0))

    assert (0, 0, 4) == (
        partition.error_code,
        partition.diverging_epoch.epoch,
        partition.diverging_epoch.end_offset,
    )


def test_a_reader_that_is_not_ahead_is_given_records():
    """A last fetched epoch that agrees with the log has no effect."""
    response = fetch(broker_with_records((4,)), [2], last_fetched_epoch=0)

    assert [[2, 3]] == offsets_read(response)


def test_an_offset_before_the_log_start_is_out_of_range_whatever_the_epoch():
    """As in Kafka, the log start is checked before the logs are compared."""
    broker = broker_with_records((4,))
    broker.cluster.topic("t").partitions[0].log.delete_records(2)

    assert [ErrorCode.OFFSET_OUT_OF_RANGE] == errors(fetch(broker, [1], last_fetched_epoch=0))


def test_an_epoch_that_the_log_does_not_know_is_out_of_range():
    """A consumer with an unknown epoch has to reset its position."""
    assert [ErrorCode.OFFSET_OUT_OF_RANGE] == errors(
        fetch(broker_with_records((4,)), [0], last_fetched_epoch=1)
    )


@pytest.mark.parametrize(
    ("version", "follower"),
    [(14, {"replica_id": 2}), (15, {"replica_state": ReplicaState(replica_id=2)})],
)
def test_followers_are_refused(version, follower):
    """This broker has no followers."""
    assert [ErrorCode.NOT_LEADER_OR_FOLLOWER] == errors(
        fetch(broker_with_records((1,)), [0], version, **follower)
    )
