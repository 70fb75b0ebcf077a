"""A broker registers, sends heartbeats, and asks to be let go."""

from __future__ import annotations

import uuid

import pytest

from spark_kafka_sink.devbroker.lifecycle.broker_lifecycle import (
    BrokerIdentity,
    BrokerLifecycle,
    BrokerState,
)
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from spark_kafka_sink.protocol.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    Listener,
)

LISTENERS = (Listener(name="L", host="h", port=9, security_protocol=0),)
IDENTITY = BrokerIdentity(
    node_id=3,
    cluster_id="c",
    incarnation_id=uuid.UUID(int=1),
    listeners=LISTENERS,
    rack="r",
    previous_epoch=5,
)
FENCED = BrokerHeartbeatResponse(is_caught_up=False, is_fenced=True)
CAUGHT_UP = BrokerHeartbeatResponse(is_caught_up=True, is_fenced=True)
UNFENCED = BrokerHeartbeatResponse(is_caught_up=True, is_fenced=False)
LET_GO = BrokerHeartbeatResponse(is_caught_up=True, is_fenced=True, should_shut_down=True)


def registered(epoch=7):
    """Return a process that the controller has just registered, at time 0."""
    lifecycle = BrokerLifecycle(IDENTITY)
    assert isinstance(lifecycle.next_request(-1, 0.0), BrokerRegistrationRequest)
    lifecycle.handle(BrokerRegistrationResponse(broker_epoch=epoch), 0.0)
    return lifecycle


def running():
    """Return a process that runs, and sends its next heartbeat at 2.01."""
    lifecycle = registered()
    lifecycle.ready(0.0)
    answer(lifecycle, 0.0, UNFENCED)
    answer(lifecycle, 0.01, UNFENCED)
    assert BrokerState.RUNNING is lifecycle.state
    return lifecycle


def answer(lifecycle, now, response):
    """Return the heartbeat that is due now, and answer it."""
    request = lifecycle.next_request(9, now)
    assert isinstance(request, BrokerHeartbeatRequest)
    assert lifecycle.next_request(9, now) is None
    lifecycle.handle(response, now)
    return request


def test_a_process_registers_with_what_it_is():
    """The first request says everything of the broker, and the next one has its epoch."""
    lifecycle = BrokerLifecycle(IDENTITY)
    assert lifecycle.next_request(-1, 0.0) == BrokerRegistrationRequest(
        broker_id=3,
        cluster_id="c",
        incarnation_id=uuid.UUID(int=1),
        listeners=LISTENERS,
        rack="r",
        previous_broker_epoch=5,
    )
    assert not lifecycle.is_registered
    lifecycle.handle(BrokerRegistrationResponse(broker_epoch=7), 0.0)
    assert lifecycle.is_registered
    assert lifecycle.next_request(-1, 0.0) == BrokerHeartbeatRequest(
        broker_id=3, broker_epoch=7, current_metadata_offset=-1, want_fence=True
    )


def test_a_broker_wants_to_be_fenced_until_it_has_its_roles():
    """It hurries while it starts, and then keeps to the interval of heartbeats."""
    lifecycle = registered()
    assert answer(lifecycle, 0.0, FENCED).want_fence
    assert 0.01 == lifecycle.deadline
    assert answer(lifecycle, 0.01, CAUGHT_UP).want_fence
    assert BrokerState.RECOVERY is lifecycle.state
    lifecycle.ready(0.015)
    assert 0.015 == lifecycle.deadline
    assert not answer(lifecycle, 0.015, CAUGHT_UP).want_fence
    assert BrokerState.RECOVERY is lifecycle.state
    assert 2.015 == lifecycle.deadline
    lifecycle.ready(0.02)
    assert 2.015 == lifecycle.deadline
    answer(lifecycle, 2.015, UNFENCED)
    assert BrokerState.RUNNING is lifecycle.state


def test_news_during_a_request_are_told_in_the_next_one_at_once():
    """Two requests are never in flight."""
    lifecycle = registered()
    lifecycle.next_request(9, 0.0)
    lifecycle.ready(0.001)
    assert lifecycle.next_request(9, 0.001) is None
    lifecycle.handle(FENCED, 0.002)
    assert 0.002 == lifecycle.deadline


def test_failures_double_the_wait():
    """Up to the session timeout; a success begins again with the shortest one."""
    lifecycle = BrokerLifecycle(IDENTITY)
    now, waits = 0.0, []
    for _ in range(9):
        assert lifecycle.next_request(-1, now) is not None
        lifecycle.fail(now)
        waits.append(round(lifecycle.deadline - now, 6))
        now = lifecycle.deadline
    assert [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 9.0, 9.0] == waits
    lifecycle.next_request(-1, now)
    lifecycle.handle(BrokerRegistrationResponse(broker_epoch=7), now)
    lifecycle.next_request(-1, now)
    lifecycle.handle(BrokerHeartbeatResponse(error_code=ErrorCode.NOT_CONTROLLER), now)
    assert pytest.approx(now + 0.1) == lifecycle.deadline
    assert lifecycle.is_registered


def test_a_request_without_a_response_fails_after_half_a_session():
    """So a second one can be in time."""
    lifecycle = running()
    lifecycle.next_request(9, 2.01)
    assert 6.51 == lifecycle.deadline
    assert lifecycle.next_request(9, 6.51) is None
    assert lifecycle.next_request(9, lifecycle.deadline) is not None


def test_a_new_controller_hears_of_the_broker_at_once():
    """However long the broker waits after the failures of the last one."""
    lifecycle = running()
    for _ in range(9):
        lifecycle.next_request(9, lifecycle.deadline)
        lifecycle.fail(lifecycle.deadline)
    lifecycle.controller_changed(50.0)
    assert lifecycle.next_request(9, 50.0) is not None
    lifecycle.fail(50.0)
    assert 50.1 == lifecycle.deadline


def test_a_process_that_cannot_register_gives_up():
    """As Kafka does after initial.broker.registration.timeout.ms."""
    lifecycle = BrokerLifecycle(IDENTITY)
    now = 100.0
    while lifecycle.state is not BrokerState.SHUTTING_DOWN:
        if lifecycle.next_request(-1, now) is not None:
            lifecycle.handle(
                BrokerRegistrationResponse(error_code=ErrorCode.DUPLICATE_BROKER_REGISTRATION), now
            )
        now = lifecycle.deadline
    assert float("inf") == now
    assert lifecycle.next_request(-1, 161.0) is None


def test_a_registered_process_does_not_give_up():
    """It goes on to ask, however long no controller answers."""
    lifecycle = registered()
    assert lifecycle.next_request(9, 1000.0) is not None


def test_a_controlled_shutdown_waits_until_the_controller_lets_the_broker_go():
    """It asks at once, soon again, and then with every heartbeat."""
    lifecycle = running()
    lifecycle.begin_controlled_shutdown(1.0)
    assert lifecycle.is_shutting_down
    assert answer(lifecycle, 1.0, UNFENCED).want_shut_down
    assert 1.05 == lifecycle.deadline
    lifecycle.begin_controlled_shutdown(1.01)
    assert answer(lifecycle, 1.05, UNFENCED).want_shut_down
    assert 3.05 == lifecycle.deadline
    assert BrokerState.PENDING_CONTROLLED_SHUTDOWN is lifecycle.state
    answer(lifecycle, 3.05, LET_GO)
    assert BrokerState.SHUTTING_DOWN is lifecycle.state
    assert lifecycle.next_request(9, 10.0) is None
    assert float("inf") == lifecycle.deadline


def test_a_broker_that_was_never_unfenced_stops_at_once():
    """It leads nothing that would have to move."""
    lifecycle = registered()
    lifecycle.begin_controlled_shutdown(0.0)
    assert BrokerState.SHUTTING_DOWN is lifecycle.state
