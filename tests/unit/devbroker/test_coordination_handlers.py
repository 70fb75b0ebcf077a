"""InitProducerId, and the coordinators that this broker does not have."""

from __future__ import annotations

import pytest

from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.find_coordinator import FindCoordinatorRequest
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from tests.support.broker_requests import ask, broker_with


def init(**fields):
    return InitProducerIdRequest(**{"transactional_id": None, "transaction_timeout_ms": 0} | fields)


@pytest.mark.parametrize("version", range(6))
def test_every_idempotent_producer_gets_an_id_of_its_own(version):
    """Each request is answered by a new id, with epoch 0."""
    broker = broker_with()

    answers = [ask(broker, init(), version) for _ in range(2)]

    assert [(0, 0, 0), (0, 1, 0)] == [
        (a.error_code, a.producer_id, a.producer_epoch) for a in answers
    ]


def test_a_producer_that_has_an_id_gets_a_new_one():
    """Without a transactional id the id that a producer brings does not matter."""
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
        ({"transactional_id": "x"}, ErrorCode.NOT_COORDINATOR),
    ],
)
def test_what_is_not_an_idempotent_producers_request_is_refused(fields, expected):
    """Half an identity, and transactional ids, get no producer id."""
    answer = ask(broker_with(), init(**fields))

    assert (expected, -1, -1) == (answer.error_code, answer.producer_id, answer.producer_epoch)


@pytest.mark.parametrize("version", range(4))
@pytest.mark.parametrize("key_type", [0, 1])
def test_no_coordinator_is_found(version, key_type):
    """Groups and transactions have no coordinator here, and the message says so."""
    request = FindCoordinatorRequest(key="k", key_type=key_type if version else 0)

    answer = ask(broker_with(), request, version)

    expected = (
        ErrorCode.INVALID_REQUEST
        if version and key_type == 1
        else ErrorCode.COORDINATOR_NOT_AVAILABLE
    )
    assert (expected, -1) == (answer.error_code, answer.node_id)
    if version:
        assert "coordinates no" in answer.error_message


@pytest.mark.parametrize("version", [4, 5, 6])
def test_no_coordinator_is_found_for_any_of_many_keys(version):
    """From version 4 on every key is answered by itself."""
    request = FindCoordinatorRequest(key_type=1, coordinator_keys=("a", "b"))

    answer = ask(broker_with(), request, version)

    assert [("a", ErrorCode.INVALID_REQUEST), ("b", ErrorCode.INVALID_REQUEST)] == [
        (coordinator.key, coordinator.error_code) for coordinator in answer.coordinators
    ]
    assert "transactions" in answer.coordinators[0].error_message
