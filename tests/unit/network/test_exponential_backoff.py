import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.network.exponential_backoff import ExponentialBackoff


class _NoJitter(random.Random):
    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


def test_each_failure_doubles_the_delay_up_to_the_maximum():
    """Each failure doubles the delay, and none exceeds the maximum."""
    backoff = ExponentialBackoff(0.1, 1.0, _NoJitter())
    assert [0.1, 0.2, 0.4, 0.8, 1.0, 1.0] == [backoff.delay(n) for n in range(6)]


@pytest.mark.parametrize("initial", [0.5, 0.7])
def test_a_maximum_equal_to_the_initial_delay_is_the_delay(initial):
    """Without room for jitter, retry.backoff.ms = retry.backoff.max.ms is a fixed delay."""
    backoff = ExponentialBackoff(initial, 0.5)
    assert {0.5} == {backoff.delay(attempts) for attempts in range(20)}


def test_the_longest_setting_is_reached():
    """It takes 63 doublings to get from a millisecond to the largest setting, and no more."""
    longest = (2**63 - 1) / 1000
    backoff = ExponentialBackoff(0.001, longest, _NoJitter())
    assert [longest / 2, longest, longest] == [backoff.delay(n) for n in (62, 63, 10_000)]


@given(st.integers(0, 10_000), st.integers())
def test_jitter_changes_a_delay_by_at_most_a_fifth(attempts: int, seed: int):
    """The jitter changes a delay by at most a fifth, and never beyond the maximum."""
    delay = ExponentialBackoff(0.1, 1.0, random.Random(seed)).delay(attempts)
    term = min(0.1 * 2 ** min(attempts, 10), 1.0)
    assert 0.8 * term <= delay <= min(1.2 * term, 1.0)


def test_backoffs_are_compared_by_their_times_only():
    """The random source of the jitter is neither compared nor shown."""
    assert ExponentialBackoff(0.05, 1.0) == ExponentialBackoff(0.05, 1.0)
    assert "ExponentialBackoff(initial=0.05, maximum=1.0)" == repr(ExponentialBackoff(0.05, 1.0))
