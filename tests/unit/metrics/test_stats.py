from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.metrics.kafka_metric import MetricConfig
from spark_kafka_sink.metrics.sensor import (
    Avg,
    CountRate,
    CumulativeCount,
    CumulativeSum,
    Max,
    Rate,
    SampledWindows,
)

GOLDENS = json.loads((Path(__file__).parent / "golden" / "java_metrics.json").read_text())
#: The statistics, by their names in MetricsGoldens.java.
STATS = {
    "avg": Avg(),
    "max": Max(),
    "rate": Rate(),
    "total": CumulativeSum(),
    "ns-rate": Rate(units_per_second=1e9),
    "ns-total": CumulativeSum(),
    "count-rate": CountRate(),
    "count-total": CumulativeCount(),
}


def windows_with(*events: tuple[float, float], samples: int = 2, window: float = 30.0):
    """Return windows with the given events, which are pairs of (now, value)."""
    windows = SampledWindows(MetricConfig(samples=samples, window=window))
    for now, value in events:
        windows.record(value, now)
    return windows


@pytest.mark.parametrize("series", GOLDENS["series"])
def test_every_statistic_equals_javas(series):
    """Every statistic yields the same numbers as Kafka's own classes."""
    windows = SampledWindows(
        MetricConfig(samples=series["samples"], window=series["window_ms"] / 1000)
    )
    for step in series["steps"]:
        now = step["ms"] / 1000
        if "record" in step:
            windows.record(step["record"], now)
            continue
        for name, stat in STATS.items():
            expected = step["read"][name]
            actual = stat.measure(windows, now)
            if expected is None:
                assert math.isnan(actual)
            else:
                assert pytest.approx(expected, rel=1e-12) == actual


def test_without_events_there_is_no_average_or_maximum():
    """Without events, averages and maxima are NaN, and rates and sums are zero."""
    windows = windows_with()
    assert math.isnan(Avg().measure(windows, 0.0))
    assert math.isnan(Max().measure(windows, 0.0))
    for stat in (Rate(), CountRate(), CumulativeSum(), CumulativeCount()):
        assert 0.0 == stat.measure(windows, 0.0)


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        # One of the two windows always counts as full.
        (0.0, 90 / 30),
        (15.0, 90 / 45),
        (30.0, 90 / 30),
        (45.0, 90 / 45),
        # After two windows without an event, the value has expired.
        (60.0, 0.0),
    ],
)
def test_a_rate_covers_at_least_all_windows_except_the_last(now, expected):
    """A rate covers the elapsed time, but at least all windows except the last."""
    assert pytest.approx(expected) == Rate().measure(windows_with((0.0, 90.0)), now)


def test_a_rate_over_a_single_window_covers_at_least_1_ms():
    """A rate over a single window covers at least 1 ms, so that it is finite."""
    assert 5000.0 == Rate().measure(windows_with((7.0, 5.0), samples=1), 7.0)


def test_a_window_counts_until_its_last_event_expires():
    """A window with all its events counts until its last event expires."""
    windows = windows_with((0.0, 10.0), (29.0, 2.0))
    assert 6.0 == Avg().measure(windows, 88.0)
    assert 10.0 == Max().measure(windows, 88.0)
    assert math.isnan(Avg().measure(windows, 89.0))


def test_the_newest_window_replaces_the_oldest():
    """With two samples, the fourth window replaces the first."""
    windows = windows_with((0.0, 1.0), (30.0, 2.0), (59.0, 2.0), (60.0, 3.0), (90.0, 4.0))
    recent = windows.recent(90.0)
    assert 4 == recent.events
    assert 11.0 == recent.total


def test_the_maximum_of_negative_values_is_negative():
    """The maximum of negative values is negative."""
    assert -3.0 == Max().measure(windows_with((0.0, -3.0), (1.0, -5.0)), 1.0)


def test_totals_count_all_events():
    """Totals count every event since the beginning."""
    windows = windows_with((0.0, 2.0), (1000.0, 3.0))
    assert 5.0 == CumulativeSum().measure(windows, 5000.0)
    assert 2.0 == CumulativeCount().measure(windows, 5000.0)
    assert 3.0 == windows.maximum


def test_a_rate_of_nanoseconds_is_a_fraction_of_time():
    """A rate of nanoseconds is a fraction of the time: 15 s within 30 s is one half."""
    assert 0.5 == Rate(units_per_second=1e9).measure(windows_with((0.0, 15e9)), 0.0)


def test_a_steady_stream_has_a_steady_rate():
    """A steady stream of events has a steady rate."""
    windows = windows_with(*((tick / 10, 3.0) for tick in range(10_000)), window=1.0)
    assert pytest.approx(30.0, rel=0.1) == Rate().measure(windows, 1000.0)
    assert pytest.approx(10.0, rel=0.1) == CountRate().measure(windows, 1000.0)


EVENTS = st.lists(st.tuples(st.floats(0.0, 20.0), st.integers(0, 10**6)), min_size=1, max_size=60)


@given(EVENTS, st.integers(1, 5), st.sampled_from([0.5, 3.0, 30.0]), st.floats(0.0, 200.0))
def test_events_count_until_they_expire(gaps, samples, window, idle):
    """Events count until they expire, and at most one window longer."""
    windows = SampledWindows(MetricConfig(samples=samples, window=window))
    now, events = 0.0, []
    for gap, value in gaps:
        now += gap
        events.append((now, value))
        windows.record(value, now)
    now += idle
    slack = 1e-6
    young = [value for at, value in events if now - at < samples * window - slack]
    eligible = [value for at, value in events if now - at < (samples + 1) * window + slack]
    recent = windows.recent(now)
    assert len(young) <= recent.events <= len(eligible)
    assert sum(young) * (1 - slack) <= recent.total <= sum(eligible) * (1 + slack)
    assert max(young, default=-math.inf) <= recent.maximum <= max(eligible, default=-math.inf)
    if recent.events:
        average = Avg().measure(windows, now)
        assert min(eligible) * (1 - slack) <= average <= max(eligible) * (1 + slack)
    rate = Rate().measure(windows, now)
    assert rate * (samples + 1) * window >= sum(young) * (1 - slack)
    if samples > 1:
        assert rate * (samples - 1) * window <= sum(eligible) * (1 + slack)
    assert pytest.approx(sum(value for _, value in events)) == CumulativeSum().measure(windows, now)


@given(EVENTS, st.floats(0.0, 60.0))
def test_reading_twice_at_the_same_time_returns_the_same_value(gaps, idle):
    """Reading twice at the same time yields the same value."""
    windows = SampledWindows(MetricConfig(samples=2, window=5.0))
    now = 0.0
    for gap, value in gaps:
        now += gap
        windows.record(value, now)
    assert windows.recent(now + idle) == windows.recent(now + idle)


@pytest.mark.parametrize("settings", [{"samples": 0}, {"window": 0.0}, {"window": 0.0001}])
def test_windows_without_samples_or_duration_are_rejected(settings):
    """No samples, or samples without duration, are an error."""
    with pytest.raises(ValueError, match="must be at least 1"):
        MetricConfig(**settings)
