from __future__ import annotations

import math
import pickle
import threading

import pytest

from spark_kafka_sink.metrics.kafka_metric import MetricConfig, MetricName, RecordingLevel
from spark_kafka_sink.metrics.metrics import Metrics
from spark_kafka_sink.metrics.sensor import Avg, Max
from spark_kafka_sink.metrics.snapshot import Summary


class _Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class _RecordingReporter:
    """A reporter that stores the names of the known metrics."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        self.closed = 0

    def init(self, metrics):
        for metric in metrics:
            self.metric_change(metric)

    def metric_change(self, metric):
        self.known.add(metric.metric_name.name)

    def metric_removal(self, metric):
        self.known.remove(metric.metric_name.name)

    def close(self):
        self.closed += 1


class _RaisingReporter:
    """A reporter that raises in each method except `init`."""

    def init(self, metrics):
        pass

    def metric_change(self, metric):
        raise RuntimeError("change")

    def metric_removal(self, metric):
        raise RuntimeError("removal")

    def close(self):
        raise RuntimeError("close")


@pytest.fixture
def clock():
    return _Clock()


@pytest.fixture
def metrics(clock):
    return Metrics(MetricConfig(tags={"client-id": "producer-1"}), clock=clock)


def average(metrics, sensor, name):
    """Add an average to a sensor, and return the metric."""
    metric_name = metrics.metric_name(name, "group")
    sensor.add(metric_name, Avg())
    return metrics.metric(metric_name)


# --- names


def test_names_are_compared_by_name_group_and_tags():
    """Names are compared without the description and the order of the tags."""
    one = MetricName("name", "group", "One.", {"a": "1", "b": "2"})
    assert one == MetricName("name", "group", "Another.", {"b": "2", "a": "1"})
    assert hash(one) == hash(MetricName("name", "group", "", {"b": "2", "a": "1"}))
    assert one != MetricName("name", "group", "One.", {"a": "1"})
    assert one != MetricName("name", "other", "One.", {"a": "1", "b": "2"})


def test_the_text_of_a_name_has_its_group_and_tags():
    """The text of a name consists of group, name and tags."""
    assert "group:name{a=1}" == str(MetricName("name", "group", tags={"a": "1"}))


def test_a_name_can_be_pickled():
    """A name equals itself after pickling."""
    name = MetricName("name", "group", "What.", {"a": "1"})
    assert name == pickle.loads(pickle.dumps(name))  # noqa: S301 -- our own bytes


def test_names_combine_the_registrys_tags_with_their_own(metrics):
    """Each name has the registry's tags and its own, in which underscores become dashes."""
    name = metrics.metric_name("name", "group", node_id="node-1")
    assert {"client-id": "producer-1", "node-id": "node-1"} == name.tags


# --- sensors


def test_a_sensor_updates_all_its_metrics(metrics):
    """A recorded value counts in every metric of the sensor."""
    sensor = metrics.sensor("sensor")
    mean = average(metrics, sensor, "mean")
    largest = metrics.metric_name("largest", "group")
    sensor.add(largest, Max())
    sensor.record(2.0, 1.0)
    sensor.record(4.0, 2.0)
    assert 3.0 == mean.measure(2.0)
    assert 4.0 == metrics.metric(largest).measure(2.0)


def test_a_metric_is_read_at_the_registrys_time_by_default(metrics, clock):
    """Without a time, a metric is read at the registry's current time."""
    sensor = metrics.sensor("sensor")
    metric = average(metrics, sensor, "mean")
    sensor.record(2.0, 0.0)
    assert 2.0 == metric.value()
    clock.now = 60.0
    assert math.isnan(metric.value())


def test_meters_have_a_rate_and_a_total(metrics):
    """A meter sums values, a count meter events, and a time meter yields a fraction."""
    sensor = metrics.sensor("sensor")
    names = [metrics.metric_name(str(number), "group") for number in range(6)]
    sensor.add_meter(names[0], names[1])
    sensor.add_count_meter(names[2], names[3])
    sensor.add_time_meter(names[4], names[5])
    sensor.record(6e9, 0.0)
    sensor.record(9e9, 0.0)
    values = [metrics.metric(name).measure(0.0) for name in names]
    assert [15e9 / 30, 15e9, 2 / 30, 2.0, 0.5, 15e9] == values


def test_a_sensor_is_created_only_once(metrics):
    """A sensor is created only once."""
    assert metrics.sensor("sensor") is metrics.sensor("sensor")
    assert metrics.sensor("sensor") is metrics.get_sensor("sensor")
    assert metrics.get_sensor("another") is None


def test_a_duplicate_metric_name_is_rejected(metrics):
    """Adding a second metric of a name is an error, which leaves the first one unchanged."""
    sensor = metrics.sensor("sensor")
    mean = average(metrics, sensor, "mean")
    with pytest.raises(ValueError, match=r"a metric named group:mean\{client-id=producer-1\}"):
        metrics.sensor("another").add(metrics.metric_name("mean", "group"), Max())
    sensor.record(1.0, 0.0)
    assert 1.0 == mean.measure(0.0)


@pytest.mark.parametrize(
    ("level", "configured", "recorded"),
    [
        ("INFO", "INFO", True),
        ("DEBUG", "INFO", False),
        ("TRACE", "INFO", False),
        ("INFO", "DEBUG", True),
        ("DEBUG", "DEBUG", True),
        ("TRACE", "DEBUG", False),
        ("INFO", "TRACE", True),
        ("DEBUG", "TRACE", True),
        ("TRACE", "TRACE", True),
    ],
)
def test_a_sensor_above_the_recording_level_records_nothing(level, configured, recorded):
    """Only sensors up to the configured level record values."""
    config = MetricConfig(recording_level=RecordingLevel[configured])
    metrics = Metrics(config, clock=_Clock())
    sensor = metrics.sensor("sensor", level=RecordingLevel[level])
    sensor.record(1.0, 0.0)
    assert (1 if recorded else 0) == sensor.summary().count


def test_a_summary_contains_all_values_since_creation(metrics):
    """A summary contains all values since creation, independent of the windows."""
    sensor = metrics.sensor("sensor")
    assert Summary() == sensor.summary()
    sensor.record(5.0, 0.0)
    sensor.record(1.0, 1000.0)
    assert Summary(count=2, total=6.0, maximum=5.0) == sensor.summary()


def test_a_summary_has_the_maximum_since_the_last_one_was_forgotten(metrics):
    """A new maximum is of later values, however small; count and total go on."""
    sensor = metrics.sensor("s")
    sensor.record(5.0, 0.0)
    sensor.forget_maximum()
    assert Summary(count=1, total=5.0, maximum=None) == sensor.summary()
    sensor.record(-2.0, 0.0)
    sensor.record(-3.0, 0.0)
    assert Summary(count=3, total=0.0, maximum=-2.0) == sensor.summary()


def test_concurrent_recordings_are_not_lost(metrics):
    """No value is lost when several threads record at the same time."""
    sensor = metrics.sensor("sensor")
    threads = [
        threading.Thread(
            target=lambda: [sensor.record(1.0, 0.0) for _ in range(5_000)], daemon=True
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Summary(count=20_000, total=20_000.0, maximum=1.0) == sensor.summary()


# --- the registry


def test_metrics_are_counted(metrics):
    """The registry has a metric for the number of metrics, including itself."""
    count = metrics.metric(metrics.metric_name("count", "kafka-metrics-count"))
    assert 1 == count.value()
    average(metrics, metrics.sensor("sensor"), "mean")
    assert 2 == count.value()


def test_a_gauge_returns_the_current_value(metrics):
    """A gauge returns the value of its function at the given time."""
    name = metrics.metric_name("gauge", "group")
    metrics.add_gauge(name, lambda now: now * 2)
    assert 6.0 == metrics.metric(name).measure(3.0)


def test_removing_a_sensor_removes_its_metrics(metrics):
    """Removing a sensor removes its metrics, and its name can be used again."""
    sensor = metrics.sensor("sensor")
    name = average(metrics, sensor, "mean").metric_name
    metrics.remove_sensor("sensor")
    metrics.remove_sensor("sensor")
    assert metrics.get_sensor("sensor") is None
    assert metrics.metric(name) is None
    assert metrics.remove_metric(name) is None
    average(metrics, metrics.sensor("sensor"), "mean")


def test_the_returned_metrics_are_a_copy(metrics):
    """The returned dictionary of metrics does not change when metrics are added."""
    before = metrics.metrics()
    average(metrics, metrics.sensor("sensor"), "mean")
    assert 1 == len(before)
    assert 2 == len(metrics.metrics())


# --- reporters


def test_a_reporter_is_notified_of_added_and_removed_metrics(metrics):
    """A reporter is notified of all existing, added and removed metrics until it is closed."""
    reporter = _RecordingReporter()
    metrics.add_reporter(reporter)
    assert {"count"} == reporter.known
    average(metrics, metrics.sensor("sensor"), "mean")
    assert {"count", "mean"} == reporter.known
    metrics.remove_sensor("sensor")
    assert {"count"} == reporter.known
    metrics.close()
    metrics.close()
    average(metrics, metrics.sensor("sensor"), "mean")
    assert 1 == reporter.closed
    assert {"count"} == reporter.known


def test_an_exception_in_a_reporter_is_only_logged(clock, caplog):
    """An exception in a reporter is logged, and affects neither other reporters nor metrics."""
    healthy = _RecordingReporter()
    metrics = Metrics(MetricConfig(), clock=clock, reporters=[_RaisingReporter(), healthy])
    sensor = metrics.sensor("sensor")
    metric = average(metrics, sensor, "mean")
    sensor.record(1.0, 0.0)
    assert 1.0 == metric.value()
    assert {"count", "mean"} == healthy.known
    metrics.remove_sensor("sensor")
    metrics.close()
    assert 1 == healthy.closed
    expected = ["metric_change", "metric_change", "metric_removal", "close"]
    logged = [record.message for record in caplog.records]
    assert len(expected) == len(logged)
    for event, message in zip(expected, logged, strict=True):
        assert message.startswith(
            f"metrics reporter _RaisingReporter raised an exception in {event}()"
        )
    assert all(record.exc_info for record in caplog.records)


def test_a_reporter_may_read_the_registry(metrics):
    """A reporter may read the registry while it is notified."""
    seen = []

    class _Curious(_RecordingReporter):
        def metric_change(self, metric):
            seen.append(len(metrics.metrics()))

    metrics.add_reporter(_Curious())
    average(metrics, metrics.sensor("sensor"), "mean")
    assert [1, 2] == seen
