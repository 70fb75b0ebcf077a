"""The timers of a member of a classic group."""

from __future__ import annotations

import pytest

from spark_kafka_sink.consumer.group.classic_membership import HeartbeatTimer
from spark_kafka_sink.errors import ConfigError
from tests.support.consumer.classic_script import (
    BACKOFF,
    INTERVAL,
    REBALANCE,
    SESSION,
    group_settings,
)


@pytest.fixture
def timer() -> HeartbeatTimer:
    return HeartbeatTimer(group_settings(), 0.0)


@pytest.mark.parametrize("interval", [SESSION, SESSION + 1])
def test_heartbeats_have_to_be_due_within_the_session(interval):
    """An interval that is not less than the session timeout is refused by name."""
    with pytest.raises(ConfigError, match=r"heartbeat\.interval\.ms"):
        group_settings(heartbeat_interval=interval)


def test_a_heartbeat_is_due_an_interval_after_the_last(timer):
    """The time to the next heartbeat counts down to 0, and stays there."""
    timer.sent(100.0)
    times = [100.0, 100 + INTERVAL / 2, 100 + INTERVAL, 100 + 2 * INTERVAL]
    assert [INTERVAL, INTERVAL / 2, 0, 0] == [max(timer.heartbeat_at - it, 0) for it in times]
    assert [False, False, True, True] == [timer.should_heartbeat(it) for it in times]


def test_a_session_ends_without_an_answer(timer):
    """A heartbeat that is sent does not extend the session; its answer does."""
    timer.sent(SESSION - 1)
    assert not timer.has_session_expired(SESSION - 0.001)
    assert timer.has_session_expired(SESSION)
    timer.received(SESSION)
    assert not timer.has_session_expired(2 * SESSION - 0.001)
    assert timer.has_session_expired(2 * SESSION)


def test_a_new_session_does_not_restart_the_time_for_poll(timer):
    """The session and the time for `poll` are independent of each other."""
    timer.reset_session(SESSION + 5)
    assert not timer.has_session_expired(SESSION + 5)
    timer.reset_session(REBALANCE + 1)
    assert not timer.has_session_expired(REBALANCE + 1)
    assert timer.has_poll_expired(REBALANCE + 1)


def test_all_timers_can_be_restarted(timer):
    """After a restart neither the session nor the time for `poll` has ended."""
    now = REBALANCE
    assert timer.has_session_expired(now)
    assert timer.has_poll_expired(now)
    assert 0 == max(timer.heartbeat_at - now, 0)
    timer.reset_timeouts(now)
    assert not timer.has_session_expired(now)
    assert not timer.has_poll_expired(now)
    assert INTERVAL == max(timer.heartbeat_at - now, 0)
    assert now + SESSION == timer.next_deadline


def test_the_time_for_poll_ends(timer):
    """The time for `poll` starts anew with each call of it."""
    assert not timer.has_poll_expired(REBALANCE - 0.001)
    assert timer.has_poll_expired(REBALANCE)
    timer.poll(REBALANCE)
    assert not timer.has_poll_expired(2 * REBALANCE - 0.001)
    assert timer.has_poll_expired(2 * REBALANCE)


def test_failed_heartbeats_are_repeated_after_a_growing_back_off(timer):
    """The back-off doubles with each failure up to its maximum, and restarts after an answer."""
    delays = []
    for _ in range(5):
        timer.failed(0.0)
        delays.append(timer.heartbeat_at)
    assert [BACKOFF, 2 * BACKOFF, 4 * BACKOFF, 8 * BACKOFF, 1.0] == pytest.approx(delays)
    timer.received(0.0)
    timer.failed(0.0)
    assert BACKOFF == pytest.approx(timer.heartbeat_at)
