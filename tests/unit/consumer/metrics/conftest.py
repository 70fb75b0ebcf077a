from __future__ import annotations

import pytest

from spark_kafka_sink.metrics.kafka_metric import MetricConfig
from spark_kafka_sink.metrics.metrics import Metrics


class Clock:
    """A clock that is set."""

    def __init__(self) -> None:
        """Start at 100 seconds."""
        self.now = 100.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


class Read:
    """A reader of metrics by group, name and tags, at the clock's time."""

    def __init__(self, metrics: Metrics) -> None:
        """Read the metrics of a registry."""
        self._metrics = metrics

    def __call__(self, group: str, name: str, **tags: str) -> float:
        """Return a value."""
        metric = self._metrics.metric(self._metrics.metric_name(name, group, **tags))
        assert metric is not None, f"no metric {name} in {group} {tags}"
        return metric.value()

    def all(self, group: str, *names: str, **tags: str) -> dict[str, float]:
        """Return several values by name."""
        return {name: self(group, name, **tags) for name in names}

    def names(self, group: str, **tags: str) -> set[str]:
        """Return the names of a group's metrics with exactly these tags, besides client-id."""
        return {
            name.name
            for name in self._metrics.metrics()
            if name.group == group and dict(name.tags) == {"client-id": "golden", **tags}
        }


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def metrics(clock):
    return Metrics(MetricConfig(tags={"client-id": "golden"}), clock=clock)


@pytest.fixture
def read(metrics):
    return Read(metrics)
