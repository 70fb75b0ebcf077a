"""Calls that do not wait for the coordinator, as those of Java's consumer."""

from __future__ import annotations

import time
from contextlib import contextmanager

import pytest

from spark_kafka_sink.consumer.commits import Commits
from spark_kafka_sink.consumer.group import classic_coordinator
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.testing import AnswerError, ApiKey, Delay, ErrorCode, NeverAnswer
from tests.support.consumer.embedded_consuming import (
    GROUP,
    NEVER_MS,
    PATIENCE,
    consuming,
    poll_until,
    take,
    tp,
)
from tests.support.consumer.reading import fill, numbered

#: A call that waited for an answer would take as long as a request may take.
SETTINGS = {**GROUP, "request.timeout.ms": NEVER_MS, "auto.commit.interval.ms": NEVER_MS}
U = tp(0, "u")


@pytest.fixture
def broker():
    """Return a broker with topics `t`, of three records, and `u`, of none."""
    with DevBroker(topics={"t": 1, "u": 1}, auto_create_topics=False) as broker:
        fill(broker.bootstrap_servers, "t", numbered(3))
        yield broker


@contextmanager
def without_waiting():
    """Fail if the block takes a part of the time that a request may take."""
    begin = time.monotonic()
    yield
    assert time.monotonic() - begin < PATIENCE


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_poll_of_no_time_does_not_wait_for_a_commit(broker, protocol):
    """Nor does any later one, while the positions are committed before a revocation."""
    with consuming(broker, group_protocol=protocol, **settings_of(protocol)) as consumer:
        consumer.subscribe("t")
        take(consumer, 3)
        hook = broker.on(ApiKey.OFFSET_COMMIT, NeverAnswer())
        consumer.subscribe("u")
        with without_waiting():
            while not hook.seen:
                consumer.poll(0)
            for _ in range(3):
                consumer.poll(0)
        assert frozenset({tp()}) == consumer.assignment()
        consumer.close(0)


def settings_of(protocol):
    """Return the settings of a member, without those that the broker decides."""
    refused = set() if protocol == "classic" else {"heartbeat.interval.ms"}
    return {name: value for name, value in SETTINGS.items() if name not in refused}


def test_assigning_does_not_wait_for_the_commit_before_it(broker):
    """A commit without an answer delays neither the assignment nor what is read of it."""
    hook = broker.on(ApiKey.OFFSET_COMMIT, NeverAnswer())
    with consuming(broker, **SETTINGS) as consumer:
        consumer.assign([tp()])
        take(consumer, 3)
        with without_waiting():
            consumer.assign([U])
            assert frozenset({U}) == consumer.assignment()
            # The same connection would have to answer for its committed offset.
            consumer.seek(U, 0)
            fill(broker.bootstrap_servers, "u", [b"a"])
            take(consumer, 1)
        assert hook.seen
        consumer.close(0)


def test_what_was_read_before_an_assignment_is_committed(broker):
    """Close waits for the commit, which goes before the one of its own."""
    hook = broker.on(ApiKey.OFFSET_COMMIT, Delay(0.5), times=1)
    with consuming(broker, **SETTINGS) as consumer:
        consumer.assign([tp()])
        take(consumer, 3)
        consumer.assign([U])
    assert 1 == hook.fired
    with consuming(broker, **SETTINGS) as consumer:
        assert 3 == consumer.committed([tp()])[tp()].offset


def test_a_failed_commit_before_an_assignment_is_logged(broker, caplog):
    """The assignment has its effect, and the consumer can be used."""
    hook = broker.on(ApiKey.OFFSET_COMMIT, AnswerError(ErrorCode.GROUP_AUTHORIZATION_FAILED))
    with consuming(broker, **SETTINGS) as consumer:
        consumer.assign([tp()])
        take(consumer, 3)
        consumer.assign([U])
        fill(broker.bootstrap_servers, "u", [b"a"])
        poll_until(consumer, lambda: hook.fired)
        take(consumer, 1)
        hook.remove()
    assert "GROUP_AUTHORIZATION_FAILED" in caplog.text


def test_unsubscribing_does_not_wait_for_the_coordinator(broker):
    """The member has no partitions at once, and close waits no longer than it is told to."""
    hook = broker.on(ApiKey.LEAVE_GROUP, NeverAnswer())
    with consuming(broker, **SETTINGS) as consumer:
        consumer.subscribe("t")
        poll_until(consumer, consumer.assignment)
        with without_waiting():
            consumer.unsubscribe()
            assert frozenset() == consumer.assignment()
            consumer.close(0.5)
    assert 1 == hook.seen


def test_closing_waits_until_the_coordinator_has_been_left(broker):
    """Another member need not wait for the session of one that has unsubscribed and closed."""
    hook = broker.on(ApiKey.LEAVE_GROUP, Delay(0.5), times=1)
    with consuming(broker, **SETTINGS) as consumer:
        consumer.subscribe("t")
        poll_until(consumer, consumer.assignment)
        consumer.unsubscribe()
        consumer.close()
        assert not consumer._core.coordinator.is_leaving
    assert 1 == hook.fired


def test_closing_takes_no_longer_than_a_request(broker, monkeypatch):
    """The limit is request.timeout.ms to the millisecond, if `close` allows more."""
    limits = []

    def noted(_commits, limit):
        limits.append(limit)
        yield from ()

    monkeypatch.setattr(Commits, "commit_before_close", noted)
    for seconds in (20, 0.25):
        with consuming(broker, **SETTINGS, request_timeout_ms=1_999) as consumer:
            consumer.close(seconds)
    assert [1.999, 0.25] == limits


def test_an_error_while_leaving_is_logged(broker, monkeypatch, caplog):
    """The user has left all the same, and the error is raised by no later call."""
    caplog.set_level("INFO", "spark_kafka_sink.consumer")

    def broken(*_: object) -> None:
        raise KafkaError("broken")

    with consuming(broker, **SETTINGS) as consumer:
        consumer.subscribe("t")
        poll_until(consumer, consumer.assignment)
        with monkeypatch.context() as patch:
            patch.setattr(classic_coordinator, "leave_request", broken)
            consumer.unsubscribe()
            consumer.assign([tp()])
            take(consumer, 3)
    assert "left without its answer: broken" in caplog.text
