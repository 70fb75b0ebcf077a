"""The metrics of single topics end when the topics are no longer used."""

from __future__ import annotations

import math
import sys
from functools import partial
from itertools import count

import pytest

from spark_kafka_sink.metrics import client_metrics
from spark_kafka_sink.metrics.client_metrics import TopicSeries
from spark_kafka_sink.metrics.kafka_metric import MetricConfig
from spark_kafka_sink.metrics.metrics import Metrics
from spark_kafka_sink.metrics.sensor import Avg
from spark_kafka_sink.spark.worker import without_collector


@pytest.fixture
def metrics():
    return Metrics(MetricConfig(), clock=lambda: 0.0)


@pytest.fixture
def series(metrics):
    """Return series that expire after ten seconds, of two sensors with a metric each."""
    return TopicSeries(metrics, lambda topic: sensors(metrics, topic), expiration=10.0)


def sensors(metrics, topic):
    parts = ("bytes", "records")
    made = tuple(metrics.sensor(f"{topic}.{part}", replaces=True) for part in parts)
    for sensor in made:
        sensor.add(metrics.metric_name(f"{sensor.name}-avg", "group"), Avg())
    return made


def topics(metrics):
    """Return the topics that have metrics."""
    names = [name.name for name in metrics.metrics() if name.group == "group"]
    found = {name.partition(".")[0] for name in names}
    assert 2 * len(found) == len(names)
    return found


def test_a_topic_keeps_its_sensors_while_it_is_used(series, metrics):
    """Each use counts, however many other topics appear in between."""
    first = series.use("busy", 0.0)
    for second in range(1, 100):
        assert first is series.use("busy", float(second))
        series.use(f"t{second % 3}", float(second))
    assert first is series.get("busy")
    assert {"busy", "t0", "t1", "t2"} == topics(metrics)


def test_idle_topics_make_room_for_a_new_one(series, metrics):
    """A topic ends when it was not used for longer than the expiration, and another appears."""
    series.use("a", 0.0)
    series.use("b", 1.0)
    series.use("a", 2.0)
    series.use("c", 11.0)
    assert {"a", "b", "c"} == topics(metrics)
    series.use("d", 11.5)
    assert {"a", "c", "d"} == topics(metrics)
    assert series.get("b") is None


def test_asking_for_the_sensors_of_a_topic_is_no_use_of_it(series):
    """`get` neither creates sensors nor keeps them."""
    assert series.get("a") is None
    series.use("a", 0.0)
    assert series.get("a") is not None
    series.use("b", 10.5)
    assert series.get("a") is None


def test_a_topic_that_returns_begins_with_new_sensors(series):
    """Its totals begin at zero again."""
    before = series.use("a", 0.0)
    series.use("b", 20.0)
    assert before is not series.use("a", 21.0)


def test_an_interrupt_at_any_call_does_not_keep_a_topic_from_being_used():
    """Ctrl-C may strike while sensors are created or removed; the next use creates them again."""
    is_struck, calls = True, 0
    while is_struck:
        calls += 1
        metrics = Metrics(MetricConfig(), clock=lambda: 0.0)
        series = TopicSeries(metrics, partial(sensors, metrics), expiration=10.0)
        is_struck = strike_at(calls, partial(use, series, {"a": 0.0, "b": 20.0}))
        use(series, {"a": 21.0, "b": 22.0, "c": 23.0})
        assert {"a", "b", "c"} == topics(metrics)
    assert calls > 50


def use(series, times):
    """Use topics at these times."""
    for topic, now in times.items():
        series.use(topic, now)


def strike_at(call, run):
    """Raise KeyboardInterrupt at the n-th call within a function; return whether there is one."""
    calls = count(1)

    def strike(_frame, event, _argument):
        if event == "call" and next(calls) == call:
            raise KeyboardInterrupt

    # The finalizers of what other tests have left would be calls, too.
    with without_collector():
        sys.setprofile(strike)
        try:
            run()
        except KeyboardInterrupt:
            return True
        finally:
            sys.setprofile(None)
    return False


def test_the_topic_used_least_recently_gives_way_when_there_are_too_many(metrics, monkeypatch):
    """Without an expiration, too, the number of topics is bounded."""
    monkeypatch.setattr(client_metrics, "MAX_TOPICS", 3)
    series = TopicSeries(metrics, lambda topic: sensors(metrics, topic), expiration=math.inf)
    for topic in ("a", "b", "c", "a", "d", "e"):
        series.use(topic, 0.0)
    assert {"a", "d", "e"} == topics(metrics)


def test_the_bound_has_its_value():
    """A change of the limit has to be deliberate."""
    assert 5000 == client_metrics.MAX_TOPICS
