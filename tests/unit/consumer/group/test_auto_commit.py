"""When a consumer commits by itself."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.consumer.group.commit_rules import AutoCommit


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
