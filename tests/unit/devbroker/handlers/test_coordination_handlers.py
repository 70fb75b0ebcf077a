"""InitProducerId without transactions, and FindCoordinator."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker.base.topic_names import coordinator_partition
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.find_coordinator import FindCoordinatorRequest
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from tests.support.devbroker.broker_requests import ask, broker_with


def init(**fields):
    return InitProducerIdRequest(**{"transactional_id": None, "transaction_timeout_ms": 0} | fields)


@pytest.mark.parametrize("version", range(6))
def test_every_idempotent_producer_gets_an_id_of_its_own(version):
    """Each request gets a new producer id with epoch 0."""
    broker = broker_with()

    answers = [ask(broker, init(), version) for _ in range(2)]

    assert [(0, 0, 0), (0, 1, 0)] == [
        (a.error_code, a.producer_id, a.producer_epoch) for a in answers
    ]


def test_a_producer_that_has_an_id_gets_a_new_one():
    """Without a transactional id, the producer id in the request is ignored."""
    broker = broker_with()
    ask(broker, init())

    answer = ask(broker, init(producer_id=0, producer_epoch=3), 4)

    assert (0, 1, 0) == (answer.error_code, answer.producer_id, answer.producer_epoch)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"producer_id": 5}, ErrorCode.INVALID_REQUEST),
        ({"producer_epoch": 5}, ErrorCode.INVALID_REQUEST),
        ({"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"transactional_id": "x"}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
    ],
)
def test_invalid_requests_for_a_producer_id_are_refused(fields, expected):
    """Incomplete producer identities and invalid transactional ids get no producer id."""
    answer = ask(broker_with(), init(**fields))

    assert (expected, -1, -1) == (answer.error_code, answer.producer_id, answer.producer_epoch)


@pytest.mark.parametrize("version", range(1, 4))
def test_the_coordinator_of_a_key_is_found(version):
    """The only broker is the coordinator of every transactional id."""
    request = FindCoordinatorRequest(key="k", key_type=1)

    answer = ask(broker_with(), request, version)

    assert (0, 1, "127.0.0.1", 9092) == (
        answer.error_code,
        answer.node_id,
        answer.host,
        answer.port,
    )


@pytest.mark.parametrize("version", [4, 5, 6])
def test_the_coordinators_of_many_keys_are_found(version):
    """Since version 4 each key gets a result of its own."""
    request = FindCoordinatorRequest(key_type=1, coordinator_keys=("a", "b"))

    answer = ask(broker_with(), request, version)

    assert [("a", 0, 1), ("b", 0, 1)] == [
        (coordinator.key, coordinator.error_code, coordinator.node_id)
        for coordinator in answer.coordinators
    ]


@pytest.mark.parametrize("version", [3, 6])
@pytest.mark.parametrize("key_type", [2, 77])
def test_keys_without_a_coordinator_are_refused(version, key_type):
    """Share groups and unknown key types have no coordinator, and the error message says so."""
    key = {"coordinator_keys": ("k",)} if version > 3 else {"key": "k"}

    answer = ask(broker_with(), FindCoordinatorRequest(key_type=key_type, **key), version)

    if version > 3:
        (answer,) = answer.coordinators
    assert (ErrorCode.INVALID_REQUEST, -1) == (answer.error_code, answer.node_id)
    assert "does not support coordinator key type" in answer.error_message


@pytest.mark.parametrize(
    ("key", "partition"),
    [("", 0), ("a", 47), ("my-group", 12), ("polygenelubricants", 0), ("\u00e9\U0001f600", 12)],
)
def test_keys_belong_to_partitions_as_in_java(key, partition):
    """The partition is computed from String.hashCode, made positive as Kafka does."""
    assert partition == coordinator_partition(key)
