"""The dashboard and the alert rules use the metrics that the exporters have, and no others."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from spark_kafka_sink.observability.stream_metrics import STREAM_METRICS, MetricKind

EXAMPLES = Path(__file__).parents[3] / "examples"
DASHBOARD = json.loads((EXAMPLES / "grafana" / "streams.json").read_text())
ALERTS = (EXAMPLES / "prometheus" / "alerts.yml").read_text()
GUIDE = (EXAMPLES.parent / "docs" / "guides" / "observability.md").read_text()
#: The names of all series with their labels; a histogram has buckets.
SERIES = {
    f"{metric.name}_bucket" if metric.kind is MetricKind.HISTOGRAM else metric.name: metric
    for metric in STREAM_METRICS
}
NAME = re.compile(r"\bspark_kafka_(?:stream|source|sink)_\w+")
EXPRESSIONS = [
    (panel["title"], target) for panel in DASHBOARD["panels"] for target in panel["targets"]
]


@pytest.mark.parametrize("title", dict.fromkeys(title for title, _ in EXPRESSIONS))
def test_a_panel_uses_metrics_and_labels_that_exist(title):
    """Each expression of a panel names known metrics, and its legend their labels."""
    for _, target in (each for each in EXPRESSIONS if each[0] == title):
        names = NAME.findall(target["expr"])
        assert names
        assert set() == set(names) - set(SERIES)
        labels = {label for name in names for label in SERIES[name].labels}
        legend = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        grouped = {
            label
            for group in re.findall(r"by \(([\w, ]+)\)", target["expr"])
            for label in group.split(", ")
        }
        assert set() == legend - labels
        assert set() == grouped - labels - {"le"}
        assert not grouped or legend <= grouped


def test_the_dashboard_shows_every_metric():
    """Each metric is on the dashboard, except some counts and single partitions."""
    shown = {name for _, target in EXPRESSIONS for name in NAME.findall(target["expr"])}

    assert {
        "spark_kafka_stream_batches_total",
        "spark_kafka_sink_requests_total",
        "spark_kafka_source_partition_lag_records",
    } == set(SERIES) - shown


def test_counters_are_shown_as_rates():
    """No panel shows the bare value of a counter, which depends on when its process started."""
    for _, target in EXPRESSIONS:
        for name in NAME.findall(target["expr"]):
            if name.endswith(("_total", "_bucket")):
                assert re.search(rf"(?:rate|increase)\({name}", target["expr"])


def test_panels_have_ids_and_places_of_their_own():
    """Panels do not overlap, are as wide as the page, and use the data source that is chosen."""
    panels = DASHBOARD["panels"]
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]

    assert len(panels) == len({panel["id"] for panel in panels})
    assert len(cells) == len(set(cells))
    assert set(range(24)) == {x for x, _ in cells}
    assert {"${datasource}"} == {panel["datasource"]["uid"] for panel in panels}
    assert ["datasource", "query"] == [each["name"] for each in DASHBOARD["templating"]["list"]]


def test_alert_rules_use_metrics_that_exist():
    """The rules name known metrics only."""
    names = NAME.findall(ALERTS)

    assert names
    assert set() == set(names) - set(SERIES)


def test_the_guide_lists_every_metric():
    """The table of the guide has each metric once, with its kind and its labels."""
    rows = re.findall(r"^\| `(spark_kafka_\w+)` \| (\w+) \| ([^|]+) \|", GUIDE, re.MULTILINE)

    assert [
        (metric.name, metric.kind.value, ", ".join(f"`{label}`" for label in metric.labels))
        for metric in STREAM_METRICS
    ] == rows
