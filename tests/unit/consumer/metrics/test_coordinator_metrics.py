from __future__ import annotations

import pytest

from spark_kafka_sink.consumer.consumer_metrics import CoordinatorMetrics

GROUP = "consumer-coordinator-metrics"


@pytest.fixture
def partitions():
    return []


@pytest.fixture
def member(metrics, partitions):
    return CoordinatorMetrics(metrics, is_classic=True, assigned_partitions=lambda: len(partitions))


def test_joins_and_syncs_are_timed(member, read):
    """Each has its own average, maximum and total, in ms."""
    member.joined(0.5, 100.0)
    member.joined(1.5, 101.0)
    member.synced(0.25, 102.0)
    expected = {
        "join-time-avg": 1000,
        "join-time-max": 1500,
        "join-total": 2,
        "sync-time-avg": 250,
        "sync-time-max": 250,
        "sync-total": 1,
    }
    assert expected == read.all(GROUP, *expected)


def test_a_rebalance_takes_from_its_first_attempt_to_its_success(member, clock, read):
    """A failed attempt counts as failed, and its time belongs to the rebalance that succeeds."""
    assert -1 == read(GROUP, "last-rebalance-seconds-ago")
    member.rebalance_started(100.0)
    member.rebalance_failed(101.0)
    member.rebalance_started(102.0)
    member.rebalance_ended(104.0)
    member.rebalance_started(200.0)
    member.rebalance_ended(201.0)
    clock.now = 205.5
    expected = {
        "rebalance-total": 2,
        "rebalance-latency-avg": 2500,
        "rebalance-latency-max": 4000,
        "rebalance-latency-total": 5000,
        "failed-rebalance-total": 1,
        "last-rebalance-seconds-ago": 4,
    }
    # The windows cover 60 s, so all attempts but the last are too old.
    del expected["rebalance-latency-avg"], expected["rebalance-latency-max"]
    assert expected == read.all(GROUP, *expected)
    assert 1000 == read(GROUP, "rebalance-latency-max")


def test_rates_are_per_hour(member, clock, read):
    """One rebalance in the 30 s that the windows cover at first is 120 in an hour."""
    member.rebalance_started(100.0)
    member.rebalance_failed(100.0)
    member.rebalance_ended(100.0)
    assert pytest.approx(120) == read(GROUP, "rebalance-rate-per-hour")
    assert pytest.approx(120) == read(GROUP, "failed-rebalance-rate-per-hour")


def test_only_a_rebalance_in_progress_ends_or_fails(member, read):
    """What ends or fails outside of a rebalance, or after it was given up, counts nothing."""
    member.rebalance_failed(100.0)
    member.rebalance_ended(100.0)
    member.rebalance_started(100.0)
    member.rebalance_given_up()
    member.rebalance_failed(101.0)
    member.rebalance_ended(101.0)
    expected = {
        "rebalance-total": 0,
        "failed-rebalance-total": 0,
        "last-rebalance-seconds-ago": -1,
    }
    assert expected == read.all(GROUP, *expected)


@pytest.mark.parametrize("event", ["revoked", "assigned", "lost"])
def test_each_method_of_the_listener_is_timed(member, read, event):
    """The time of a method is that of its own metric, in ms."""
    member.listener_called(f"on_partitions_{event}", 0.5, 100.0)
    member.listener_called(f"on_partitions_{event}", 1.0, 101.0)
    assert 750 == read(GROUP, f"partition-{event}-latency-avg")
    assert 1000 == read(GROUP, f"partition-{event}-latency-max")


def test_partitions_are_counted_when_the_metric_is_read(member, partitions, read):
    """The number follows the assignment."""
    assert 0 == read(GROUP, "assigned-partitions")
    partitions += [1, 2, 3]
    assert 3 == read(GROUP, "assigned-partitions")
