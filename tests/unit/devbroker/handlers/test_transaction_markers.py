"""Markers that a client writes end transactions, as those of the coordinator do."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker.base.topic_names import (
    GROUP_METADATA_TOPIC,
)
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages import write_txn_markers as wire
from tests.support.devbroker.broker_requests import ask, broker_with
from tests.support.devbroker.transactional_client import TransactionalClient

TOPIC = "t"


def write(broker, *partitions, producer=(7, 0), committed=False, version=2, **fields):
    """Write markers of a producer; return the error code of each partition."""
    topics = [
        wire.WritableTxnMarkerTopic(name=name, partition_indexes=indexes)
        for name, indexes in partitions or ((TOPIC, (0,)),)
    ]
    marker = wire.WritableTxnMarker(
        producer_id=producer[0],
        producer_epoch=producer[1],
        transaction_result=committed,
        topics=tuple(topics),
        **{"coordinator_epoch": 0, **fields},
    )
    response = ask(broker, wire.WriteTxnMarkersRequest(markers=(marker,)), version)
    (result,) = response.markers
    assert producer[0] == result.producer_id
    return {
        (topic.name, each.partition_index): each.error_code
        for topic in result.topics
        for each in topic.partitions
    }


def log_of(broker, index=0):
    return broker.cluster.partition(TopicPartition(TOPIC, index)).log


@pytest.mark.parametrize("version", [1, 2])
def test_a_marker_ends_an_open_transaction(version):
    """Consumers that read committed records are not held up any more."""
    client = TransactionalClient(broker_with({TOPIC: 1}))
    _, producer = client.init()
    client.produce(producer, 0)
    assert 0 == client.log().last_stable_offset
    assert {(TOPIC, 0): ErrorCode.NONE} == write(client.broker, producer=producer, version=version)
    assert 2 == client.log().last_stable_offset
    assert [] == client.read_committed()


def test_the_version_of_a_transaction_counts():
    """In version 2 each end of a transaction has a new epoch (KIP-1228)."""
    client = TransactionalClient(broker_with({TOPIC: 1}))
    _, (producer_id, epoch) = client.init()
    client.produce((producer_id, epoch), 0)
    codes = [
        write(client.broker, producer=(producer_id, number), committed=True, transaction_version=2)
        for number in (epoch, epoch + 1)
    ]
    assert [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.NONE] == [c[TOPIC, 0] for c in codes]
    assert [b"v"] == client.read_committed()


def test_markers_of_partitions_that_are_not_there():
    """Each partition has a result of its own, and one that is repeated gets one marker."""
    broker = broker_with({TOPIC: 1})
    assert {
        (TOPIC, 0): ErrorCode.NONE,
        (TOPIC, 3): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("other", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        (GROUP_METADATA_TOPIC, 50): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    } == write(broker, (TOPIC, (0, 3, 0)), ("other", (0,)), (GROUP_METADATA_TOPIC, (50,)))
    assert 1 == log_of(broker).log_end_offset


@pytest.mark.parametrize(
    ("producer", "fields", "code"),
    [
        ((7, 0), {}, ErrorCode.INVALID_PRODUCER_EPOCH),
        ((7, 1), {"coordinator_epoch": 3}, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
        ((7, 1), {}, ErrorCode.NONE),
    ],
)
def test_markers_of_former_producers_and_coordinators(producer, fields, code):
    """They are refused, and nothing is written."""
    broker = broker_with({TOPIC: 1})
    write(broker, producer=(7, 1), coordinator_epoch=4)
    assert {(TOPIC, 0): code} == write(
        broker, producer=producer, **{"coordinator_epoch": 4, **fields}
    )
    assert (2 if code is ErrorCode.NONE else 1) == log_of(broker).log_end_offset


def test_only_administrators_and_brokers_may_write_markers():
    """The response to anyone else has the error for each partition."""
    broker = broker_with({TOPIC: 1}, authorizer=True)
    assert {(TOPIC, 0): ErrorCode.CLUSTER_AUTHORIZATION_FAILED} == write(broker)
