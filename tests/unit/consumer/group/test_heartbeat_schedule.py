"""When heartbeats of a KIP-848 group are due."""

from __future__ import annotations

import pytest

from spark_kafka_sink.consumer.group.consumer_membership import HeartbeatSchedule
from tests.support.consumer.member_script import BACKOFF, INTERVAL, POLL_INTERVAL, member_settings

START = 100.0


@pytest.fixture
def schedule() -> HeartbeatSchedule:
    return HeartbeatSchedule(member_settings(), START)


def due(schedule: HeartbeatSchedule) -> tuple[float, float]:
    """Return when a usual heartbeat and an urgent one are due."""
    return schedule.next_at(is_urgent=False), schedule.next_at(is_urgent=True)


def test_the_first_heartbeat_is_due_at_once(schedule):
    """The interval is not known before its answer."""
    assert (START, START) == due(schedule)
    assert 0 == schedule.interval


def test_the_interval_starts_with_the_answer_that_changes_it(schedule):
    """After that it starts with each heartbeat; what is urgent does not wait."""
    schedule.sent(START)
    schedule.answered(INTERVAL, START + 1)
    assert INTERVAL == schedule.interval
    assert (START + 1 + INTERVAL, START + 1) == due(schedule)
    schedule.sent(START + 6)
    schedule.answered(INTERVAL, START + 7)
    assert (START + 6 + INTERVAL, START + 7) == due(schedule)
    schedule.answered(2 * INTERVAL, START + 7)
    assert START + 7 + 2 * INTERVAL == schedule.next_at(is_urgent=False)


def test_an_interval_of_0_is_no_busy_loop(schedule):
    """A heartbeat that is not urgent waits for the back-off at least."""
    schedule.sent(START)
    schedule.answered(0.0, START + 1)
    assert (START + 1 + BACKOFF, START + 1) == due(schedule)


def test_a_failure_has_a_growing_back_off_also_for_urgent_heartbeats(schedule):
    """A failed heartbeat does not wait for the interval; an answer ends the back-off."""
    schedule.answered(INTERVAL, START)
    delays = []
    for _ in range(5):
        schedule.sent(START)
        schedule.failed(START + 1)
        usual, urgent = due(schedule)
        assert usual == urgent
        delays.append(usual - START - 1)
    assert [0.1, 0.2, 0.4, 0.8, 1.0] == pytest.approx(delays)
    schedule.answered(INTERVAL, START + 2)
    schedule.failed(START + 3)
    assert START + 3 + BACKOFF == schedule.next_at(is_urgent=True)


def test_only_the_first_failure_may_skip_its_back_off(schedule):
    """A second one in a row waits, and counts the first."""
    schedule.answered(INTERVAL, START)
    schedule.failed(START + 1, may_skip=True)
    assert (START + 1, START + 1) == due(schedule)
    schedule.failed(START + 1, may_skip=True)
    assert START + 1 + 2 * BACKOFF == schedule.next_at(is_urgent=True)
    schedule.reset(START + 2)
    assert (START + 2, START + 2) == due(schedule)
    schedule.failed(START + 3, may_skip=True)
    assert (START + 3, START + 3) == due(schedule)


def test_the_time_for_poll_ends_after_the_last_call(schedule):
    """The end itself is too late."""
    assert START + POLL_INTERVAL == schedule.poll_until
    assert not schedule.has_poll_expired(START + POLL_INTERVAL - 0.1)
    assert schedule.has_poll_expired(START + POLL_INTERVAL)
    schedule.poll(START + POLL_INTERVAL)
    assert not schedule.has_poll_expired(START + 2 * POLL_INTERVAL - 0.1)
