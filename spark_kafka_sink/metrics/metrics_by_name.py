"""The metrics of a client by their names, as `KafkaProducer.metrics` returns them."""

from __future__ import annotations

import math
from collections import Counter

from spark_kafka_sink import display
from spark_kafka_sink.metrics.kafka_metric import KafkaMetric, MetricName


class MetricsByName(dict[MetricName, KafkaMetric]):
    """Metrics by their names: a dict that shows itself as a table of values.

    `repr` reads no values, which would take locks; `print` does.
    """

    def __repr__(self) -> str:
        """Show the number of metrics in each group."""
        groups = Counter(name.group for name in self)
        counts = ", ".join(f"{count} of {group}" for group, count in sorted(groups.items()))
        return f"<{display.counted(len(self), 'metric')}{': ' if counts else ''}{counts}>"

    def __str__(self) -> str:
        """List the current values, a metric to a line; those that have none are left out."""
        values = self._values()
        width = max((len(str(name)) for name, _ in values), default=0)
        lines = [f"{str(name).ljust(width)}  {value:,.10g}" for name, value in values]
        return "\n".join(lines) if lines else "no metric has a value yet"

    def _repr_html_(self) -> str:
        """Show the current values, with a table for each group."""
        groups: dict[str, list[tuple[MetricName, float]]] = {}
        for name, value in self._values():
            groups.setdefault(name.group, []).append((name, value))
        parts: list[str] = []
        for group, values in groups.items():
            is_open = " open" if group in {"producer-metrics", "consumer-metrics"} else ""
            parts += [
                f"<details{is_open}><summary>{display.text(group)}</summary>",
                display.table(
                    ("metric", "value", "of"),
                    ((name.name, value, _tags(name)) for name, value in values),
                    count=len(values),
                    things=("metric", "metrics"),
                    most=_MAX_METRICS,
                ),
                "</details>",
            ]
        return display.block(
            display.counted(len(self), "metric"),
            *parts,
            notes=("metrics without a value are left out",),
        )

    def _values(self) -> list[tuple[MetricName, float]]:
        """Return the metrics that have a value, in order."""
        order = sorted(self, key=lambda name: (name.group, name.name, sorted(name.tags.items())))
        values = ((name, self[name].value()) for name in order)
        return [(name, value) for name, value in values if not math.isnan(value)]


#: A group has that many metrics at most, unless it has some for each topic or broker.
_MAX_METRICS = 100


def _tags(name: MetricName) -> str:
    return ", ".join(text for tag, text in name.tags.items() if tag != "client-id")
