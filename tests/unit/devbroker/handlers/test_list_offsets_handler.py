"""ListOffsets: special offsets and offsets by timestamp."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker.cluster.partition import Leadership
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from spark_kafka_sink.record.record_batch import decode_header
from tests.support.devbroker.broker_requests import ask, broker_with
from tests.support.record.plain_batches import PlainRecord, plain_batch

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5


def broker_with_records():
    broker = broker_with({"t": 2})
    log = broker.cluster.topic("t").partitions[0].log
    for times in ((10, 30, 20), (15, 40)):
        batch = plain_batch([PlainRecord(timestamp=time) for time in times])
        log.append(memoryview(batch), decode_header(batch))
    return broker


def request(*partitions):
    """Build a request for (topic, partition, timestamp[, leader epoch])."""
    return ListOffsetsRequest(
        replica_id=-1,
        topics=tuple(
            ListOffsetsTopic(
                name=topic,
                partitions=(
                    ListOffsetsPartition(
                        partition_index=index,
                        timestamp=timestamp,
                        current_leader_epoch=epoch[0] if epoch else -1,
                    ),
                ),
            )
            for topic, index, timestamp, *epoch in partitions
        ),
    )


def found(broker, asked, version=None):
    return [
        (partition.error_code, partition.timestamp, partition.offset, partition.leader_epoch)
        for topic in ask(broker, asked, version).topics
        for partition in topic.partitions
    ]


@pytest.mark.parametrize("version", range(1, 11))
def test_earliest_and_latest_are_the_ends_of_the_log(version):
    """The log's ends have no timestamp, and have the leader epoch since version 4."""
    asked = request(("t", 0, EARLIEST), ("t", 1, LATEST))
    epoch = 0 if version >= 4 else -1

    assert [(0, -1, 0, epoch), (0, -1, 0, epoch)] == found(broker_with_records(), asked, version)
    assert [(0, -1, 5, epoch)] == found(broker_with_records(), request(("t", 0, LATEST)), version)


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        (0, (0, 10, 0, 0)),
        (11, (0, 30, 1, 0)),
        (31, (0, 40, 4, 0)),
        (41, (0, -1, -1, -1)),
        (MAX_TIMESTAMP, (0, 40, 4, 0)),
        (EARLIEST_LOCAL, (0, -1, 0, 0)),
        (LATEST_TIERED, (0, -1, -1, -1)),
    ],
)
def test_offsets_are_found_by_time(timestamp, expected):
    """A lookup returns the first record with at least that timestamp, or -1 if there is none."""
    assert [expected] == found(broker_with_records(), request(("t", 0, timestamp)))


def test_an_empty_log_has_no_largest_timestamp():
    """The largest timestamp of an empty log is not found, which is not an error."""
    assert [(0, -1, -1, -1)] == found(broker_with_records(), request(("t", 1, MAX_TIMESTAMP)))


@pytest.mark.parametrize(
    ("timestamp", "version"),
    [(MAX_TIMESTAMP, 6), (EARLIEST_LOCAL, 7), (LATEST_TIERED, 8), (-6, 10)],
)
def test_a_question_that_the_version_does_not_have_is_refused(timestamp, version):
    """Each negative timestamp is a special query that requires a minimum version."""
    assert [(ErrorCode.UNSUPPORTED_VERSION, -1, -1, -1)] == found(
        broker_with_records(), request(("t", 0, timestamp)), version
    )


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (("t", 2, LATEST), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (("u", 0, LATEST), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (("t", 0, LATEST, 1), ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_partitions_are_refused_one_by_one(asked, expected):
    """An unknown partition or leader epoch is an error of that partition only."""
    results = found(broker_with_records(), request(asked, ("t", 1, LATEST)))

    assert [expected, 0] == [result[0] for result in results]


def test_an_older_leader_epoch_is_fenced():
    """A client with an older leader epoch must refresh its metadata."""
    broker = broker_with_records()
    broker.cluster.topic("t").partitions[0].leadership = Leadership.of_only(1, leader_epoch=3)

    assert [(ErrorCode.FENCED_LEADER_EPOCH, -1, -1, -1)] == found(
        broker, request(("t", 0, LATEST, 2))
    )


def test_a_duplicate_partition_is_refused_once():
    """The result of a duplicate partition is INVALID_REQUEST, at its first position."""
    asked = request(("t", 0, LATEST), ("t", 1, LATEST), ("t", 0, EARLIEST))

    assert [ErrorCode.INVALID_REQUEST, 0] == [
        result[0] for result in found(broker_with_records(), asked)
    ]


def test_records_that_cannot_be_decoded_are_corrupt():
    """A lookup by timestamp that meets undecodable records is CORRUPT_MESSAGE."""
    broker = broker_with({"t": 1})
    batch = plain_batch(2, payload=b"\x7f no records", max_timestamp=50)
    broker.cluster.topic("t").partitions[0].log.append(memoryview(batch), decode_header(batch))

    assert [(ErrorCode.CORRUPT_MESSAGE, -1, -1, -1)] == found(broker, request(("t", 0, 20)))


@pytest.mark.parametrize("timestamp", [20, MAX_TIMESTAMP])
@pytest.mark.parametrize(
    "limits", [{"request_max_decoded_elements": 4}, {"request_max_decompressed_bytes": 40}]
)
def test_the_lookups_of_one_request_share_a_decode_budget(timestamp, limits):
    """Lookups beyond the limit are refused, and succeed in another request."""
    broker = broker_with({"t": 2}, **limits)
    for partition in broker.cluster.topic("t").partitions:
        batch = plain_batch([PlainRecord(timestamp=time) for time in (10, 20, 20)])
        partition.log.append(memoryview(batch), decode_header(batch))

    one = (ErrorCode.NONE, 20, 1, 0)
    refused = (ErrorCode.CORRUPT_MESSAGE, -1, -1, -1)
    assert [one, refused] == found(broker, request(("t", 0, timestamp), ("t", 1, timestamp)))
    assert [one] == found(broker, request(("t", 1, timestamp)))
