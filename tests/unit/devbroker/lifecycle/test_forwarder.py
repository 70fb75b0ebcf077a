"""A broker asks the controller for its clients, until there is an answer or the time is up."""

from __future__ import annotations

import itertools

import pytest

from spark_kafka_sink.devbroker.lifecycle.forwarder import Forwarder
from spark_kafka_sink.devbroker.metadata.envelope import (
    CONTROLLER,
    Envelope,
    ForwardedRequest,
    ForwardedResponse,
)
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.create_topics import (
    CreateTopicsRequest,
    CreateTopicsResponse,
)

REQUEST = ForwardedRequest(request=CreateTopicsRequest(topics=()), version=7)
#: From a client, to broker 1.
ENVELOPE = Envelope(-2, 1, 77, REQUEST)
ANSWER = ForwardedResponse(response=CreateTopicsResponse(topics=()))
NOT_CONTROLLER = ForwardedResponse(response=None, error_code=ErrorCode.NOT_CONTROLLER)
TIMED_OUT = ForwardedResponse(response=None, error_code=ErrorCode.REQUEST_TIMED_OUT)


@pytest.fixture
def forwarder():
    """Return the forwarder of broker 1, with one request to send."""
    forwarder = Forwarder(1, itertools.count(5))
    forwarder.forward(ENVELOPE, REQUEST, 0.0)
    return forwarder


def test_a_request_is_sent_and_its_response_passed_on(forwarder):
    """The client gets it with the number of its own request."""
    assert 0.0 == forwarder.deadline
    assert [Envelope(1, CONTROLLER, 5, REQUEST)] == forwarder.outgoing(0.0)
    assert 30.0 == forwarder.deadline
    assert [] == forwarder.outgoing(0.0)
    assert [Envelope(1, -2, 77, ANSWER)] == forwarder.handle(5, ANSWER, 0.1)
    assert float("inf") == forwarder.deadline


def test_another_error_is_passed_on(forwarder):
    """Only the search for the controller is this broker's part."""
    forwarder.outgoing(0.0)
    failed = ForwardedResponse(response=None, error_code=ErrorCode.KAFKA_STORAGE_ERROR)
    assert [failed] == [each.message for each in forwarder.handle(5, failed, 0.1)]


@pytest.mark.parametrize("how", ["refused", "not the controller"])
def test_a_request_without_the_controller_is_sent_again(forwarder, how):
    """After a moment, with a new number."""
    forwarder.outgoing(0.0)
    if how == "refused":
        forwarder.fail(5, 1.0)
    else:
        assert [] == forwarder.handle(5, NOT_CONTROLLER, 1.0)
    assert 1.1 == forwarder.deadline
    assert [] == forwarder.outgoing(1.05)
    assert [Envelope(1, CONTROLLER, 6, REQUEST)] == forwarder.outgoing(1.1)


def test_a_new_controller_is_asked_at_once(forwarder):
    """The wait was for the last one."""
    forwarder.outgoing(0.0)
    forwarder.fail(5, 1.0)
    forwarder.controller_changed(1.01)
    assert [CONTROLLER] == [each.receiver for each in forwarder.outgoing(1.01)]


def test_a_client_does_not_wait_longer_than_the_request_timeout(forwarder):
    """Whether the request is in flight or waits to be sent again."""
    forwarder.outgoing(0.0)
    assert [] == forwarder.outgoing(29.9)
    assert [Envelope(1, -2, 77, TIMED_OUT)] == forwarder.outgoing(30.0)
    forwarder.forward(ENVELOPE, REQUEST, 40.0)
    forwarder.outgoing(40.0)
    forwarder.fail(6, 69.95)
    assert 70.0 == forwarder.deadline
    assert [Envelope(1, -2, 77, TIMED_OUT)] == forwarder.outgoing(70.0)


def test_a_late_response_is_ignored(forwarder):
    """The client has its answer already."""
    forwarder.outgoing(0.0)
    forwarder.outgoing(30.0)
    assert [] == forwarder.handle(5, ANSWER, 31.0)
    forwarder.fail(5, 31.0)
    assert [] == forwarder.outgoing(40.0)
