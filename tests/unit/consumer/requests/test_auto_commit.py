"""When a consumer commits by itself."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.consumer.requests.auto_commit import AutoCommit, LastCommit
from spark_kafka_sink.consumer.requests.commit_rules import OffsetAction, Verdict
from spark_kafka_sink.network.base.exponential_backoff import ExponentialBackoff
from spark_kafka_sink.protocol.error_codes import ErrorCode

DONE = Verdict(OffsetAction.DONE)
RETRY = Verdict(OffsetAction.RETRY, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


class WithoutJitter:
    """A source of random numbers that returns the middle."""

    def uniform(self, low, high):
        """Return the mean."""
        return (low + high) / 2


def last_commit(now=100.0, deadline=110.0, **keywords):
    """Return a commit before a rebalance, with back-offs of 1, 2 and at most 4 s."""
    return LastCommit(now, deadline, ExponentialBackoff(1, 4, WithoutJitter()), **keywords)


def test_a_commit_is_due_once_per_interval():
    """The first one is due an interval after the start, the next one after the last was sent."""
    auto = AutoCommit(5.0, 100.0)
    assert [False, True] == [auto.is_due(104.9), auto.is_due(105.0)]
    auto.begin(106.0)
    auto.end(106.5)
    assert [False, True] == [auto.is_due(110.9), auto.is_due(111.0)]
    assert 111.0 == auto.wake_up_at


def test_no_commit_is_due_without_auto_commit():
    """The user commits."""
    auto = AutoCommit(5.0, 100.0, is_enabled=False)
    assert not auto.is_due(1e9)
    assert inf == auto.wake_up_at


def test_no_two_commits_are_in_flight():
    """A late answer delays the next commit, which is then due at once."""
    auto = AutoCommit(5.0, 100.0)
    auto.begin(105.0)
    assert not auto.is_due(1000.0)
    assert inf == auto.wake_up_at
    auto.end(1000.0)
    assert auto.is_due(1000.0)


def test_an_interval_passes_also_if_there_is_nothing_to_commit():
    """Nothing is in flight then, and no answer is waited for."""
    auto = AutoCommit(5.0, 100.0)
    auto.begin(105.0, is_sent=False)
    assert [False, True] == [auto.is_due(109.9), auto.is_due(110.0)]


def test_a_failure_that_may_pass_is_retried_after_the_back_off():
    """Other failures wait for the next interval."""
    auto = AutoCommit(5.0, 100.0)
    auto.begin(105.0)
    auto.end(105.5, retry_after=0.1)
    assert [False, True] == [auto.is_due(105.59), auto.is_due(105.61)]


def test_a_new_assignment_starts_a_new_interval():
    """There is nothing consumed of it yet."""
    auto = AutoCommit(5.0, 100.0)
    auto.restart(103.0)
    assert [False, True] == [auto.is_due(107.9), auto.is_due(108.0)]


@given(events=st.lists(st.tuples(st.floats(0, 10), st.sampled_from(["end", "retry", "restart"]))))
def test_commits_never_overlap(events):
    """Whatever happens in between, a commit is due only after the answer to the last one."""
    now, in_flight = 100.0, False
    auto = AutoCommit(5.0, now)
    for seconds, event in events:
        now += seconds
        if auto.is_due(now):
            assert not in_flight
            auto.begin(now)
            in_flight = True
        if event == "restart":
            auto.restart(now)
        elif in_flight:
            auto.end(now, retry_after=0.1 if event == "retry" else None)
            in_flight = False
        assert in_flight is (auto.wake_up_at == inf)


# --- before a rebalance


def test_a_last_commit_is_sent_at_once():
    """The rebalance waits for its answer."""
    last = last_commit()
    assert last.is_due(100.0)
    assert not last.is_done(100.0)
    assert 100.0 == last.wake_up_at
    last.sent()
    assert not last.is_due(105.0)
    assert 110.0 == last.wake_up_at
    last.answered(DONE, 100.5)
    assert last.is_done(100.5)
    assert not last.is_due(100.5)
    assert last.failure is None
    assert inf == last.wake_up_at


def test_nothing_is_committed_before_a_rebalance_without_auto_commit():
    """The user commits in on_partitions_revoked."""
    last = last_commit(is_enabled=False)
    assert last.is_done(100.0)
    assert not last.is_due(100.0)


def test_a_consumer_without_positions_commits_nothing():
    """It does not wait for an answer."""
    last = last_commit()
    last.nothing_to_commit()
    assert last.is_done(100.0)


def test_a_last_commit_is_retried_with_longer_back_offs():
    """Until it succeeds."""
    last, waits, now = last_commit(deadline=200.0), [], 100.0
    for _ in range(4):
        assert last.is_due(now)
        last.sent()
        last.answered(RETRY, now)
        assert RETRY == last.failure
        assert not last.is_due(now)
        waits.append(last.wake_up_at - now)
        now = last.wake_up_at
    assert [1, 2, 4, 4] == waits
    last.sent()
    last.answered(DONE, now)
    assert last.is_done(now)
    assert last.failure is None


def test_a_lost_connection_is_retried_too():
    """There is no code then."""
    last = last_commit()
    last.sent()
    last.not_answered(101.0)
    assert [False, True] == [last.is_due(101.9), last.is_due(102.0)]
    assert last.failure is None


def test_a_last_commit_ends_at_its_deadline():
    """The member would be removed from the group if it came too late to the rebalance."""
    last = last_commit(deadline=100.5)
    last.sent()
    last.answered(RETRY, 100.1)
    assert 100.5 == last.wake_up_at
    assert not last.is_done(100.4)
    assert last.is_done(100.5)
    assert not last.is_due(101.1)


@pytest.mark.parametrize(
    ("verdict", "has_new_epoch", "is_done"),
    [
        (Verdict(OffsetAction.RETRY, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), False, False),
        (Verdict(OffsetAction.FIND_COORDINATOR, ErrorCode.NOT_COORDINATOR), False, False),
        (Verdict(OffsetAction.RETRY, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), True, True),
        (Verdict(OffsetAction.RETRY, ErrorCode.UNKNOWN_TOPIC_ID), True, True),
        (Verdict(OffsetAction.NEW_EPOCH, ErrorCode.STALE_MEMBER_EPOCH), True, False),
        (Verdict(OffsetAction.NEW_EPOCH, ErrorCode.STALE_MEMBER_EPOCH), False, True),
        (Verdict(OffsetAction.REFUSED, ErrorCode.UNKNOWN_MEMBER_ID), True, True),
        (Verdict(OffsetAction.FATAL, ErrorCode.GROUP_AUTHORIZATION_FAILED), True, True),
    ],
)
def test_only_what_may_pass_soon_delays_a_rebalance(verdict, has_new_epoch, is_done):
    """A deleted topic does not come back, and a member that was removed has no epoch."""
    last = last_commit()
    last.sent()
    last.answered(verdict, 101.0, has_new_epoch=has_new_epoch)
    assert is_done is last.is_done(101.0)
    assert verdict == last.failure


def test_a_commit_with_a_stale_epoch_is_not_resent_by_default():
    """A member of a classic group has no epoch."""
    last = last_commit()
    last.sent()
    last.answered(Verdict(OffsetAction.NEW_EPOCH, ErrorCode.STALE_MEMBER_EPOCH), 101.0)
    assert last.is_done(101.0)
