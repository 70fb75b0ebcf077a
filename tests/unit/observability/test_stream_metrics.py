"""The pure core: from Spark's progress and the sink's report to events and samples."""

from __future__ import annotations

import pytest

from spark_kafka_sink.observability.stream_event import EventKind, StreamEvent, progress_event
from spark_kafka_sink.observability.stream_metrics import STREAM_METRICS, MetricKind, samples_of

PROGRESS = {
    "id": "b3cf",
    "runId": "329d",
    "name": "copy",
    "timestamp": "2026-11-25T12:39:25.693Z",
    "batchId": 7,
    "numInputRows": 400,
    "durationMs": {"addBatch": 1900, "latestOffset": 250, "triggerExecution": 2400},
    "sources": [
        {
            "description": "a table of Python",
            "startOffset": None,
            "endOffset": {"in": {"0": 400, "1": 5}},
            "latestOffset": {"in": {"0": 1000, "1": 5, "2": 9}},
            "numInputRows": 400,
        }
    ],
    "sink": {"description": "a table of Python", "numOutputRows": 390},
}
REPORT = {
    "query_id": "b3cf",
    "batch_id": 7,
    "rows": 390,
    "bytes": 3000,
    "topics": {
        "out": [
            {"partition": 0, "records": 190, "bytes": 1000},
            {"partition": 1, "records": 200, "bytes": 2000},
        ]
    },
    "paced_seconds": 6.5,
    "sampled_keys": 50,
    "spread_keys": 7,
    "bad_rows": {"count": 5, "counts": {"size": 2, "topic": 3}, "dlq_topic": None, "first": []},
    "metrics": {
        "record-retry-total": 3,
        "record-error-total": 0,
        "request-total": 4,
        "request-latency-avg": 12.5,
        "request-latency-max": 40.0,
        "record-queue-time-max": 2.0,
        "produce-throttle-time-total": 1500.0,
        "bufferpool-wait-time-ns-total": 500_000_000,
    },
}


def values_of(event, **options):
    return {(metric.name, *labels): value for metric, value, labels in samples_of(event, **options)}


def test_progress_alone_has_rows_times_and_lag():
    """Rows, durations and the lag of partitions that were read before come from the progress."""
    assert {
        ("spark_kafka_stream_active", "copy"): 1,
        ("spark_kafka_stream_last_event_timestamp_seconds", "copy"): pytest.approx(
            1795610365.693 + 2.4
        ),
        ("spark_kafka_stream_batches_total", "copy"): 1,
        ("spark_kafka_stream_input_rows_total", "copy"): 400,
        ("spark_kafka_stream_output_rows_total", "copy"): 390,
        ("spark_kafka_stream_batch_duration_seconds", "copy"): 2.4,
        ("spark_kafka_stream_phase_seconds_total", "copy", "addBatch"): 1.9,
        ("spark_kafka_stream_phase_seconds_total", "copy", "latestOffset"): 0.25,
        ("spark_kafka_source_lag_records", "copy", "in"): 600,
    } == values_of(progress_event(PROGRESS))


def test_a_report_adds_what_only_the_sink_knows():
    """With the sink's report there are records, bytes, retries, latency and waits, in seconds."""
    added = values_of(progress_event(PROGRESS, REPORT)).items() - (
        values_of(progress_event(PROGRESS)).items()
    )

    assert {
        ("spark_kafka_sink_records_total", "copy", "out"): 390,
        ("spark_kafka_sink_bytes_total", "copy", "out"): 3000,
        ("spark_kafka_sink_requests_total", "copy"): 4,
        ("spark_kafka_sink_record_retries_total", "copy"): 3,
        ("spark_kafka_sink_record_errors_total", "copy"): 0,
        ("spark_kafka_sink_bad_rows_total", "copy", "size"): 2,
        ("spark_kafka_sink_bad_rows_total", "copy", "topic"): 3,
        ("spark_kafka_sink_sampled_keys_total", "copy"): 50,
        ("spark_kafka_sink_spread_keys_total", "copy"): 7,
        ("spark_kafka_sink_request_latency_avg_seconds", "copy"): 0.0125,
        ("spark_kafka_sink_request_latency_max_seconds", "copy"): 0.04,
        ("spark_kafka_sink_throttle_seconds_total", "copy"): 1.5,
        ("spark_kafka_sink_paced_seconds_total", "copy"): 6.5,
        ("spark_kafka_sink_buffer_wait_seconds_total", "copy"): 0.5,
    } == dict(added)


def test_a_write_without_limits_or_keys_has_no_metrics_of_them():
    """Neither pauses nor keys are exported as 0 if there is no limit, and no key was sampled."""
    report = {**REPORT, "paced_seconds": None, "sampled_keys": 0, "spread_keys": 0}
    missing = values_of(progress_event(PROGRESS, REPORT)).keys() - (
        values_of(progress_event(PROGRESS, report)).keys()
    )

    assert {
        ("spark_kafka_sink_sampled_keys_total", "copy"),
        ("spark_kafka_sink_spread_keys_total", "copy"),
        ("spark_kafka_sink_paced_seconds_total", "copy"),
    } == missing


def test_the_lag_of_partitions_is_added_on_request():
    """With per_partition there is a sample for each partition, beside that of the topic."""
    name = "spark_kafka_source_partition_lag_records"
    values = values_of(progress_event(PROGRESS), per_partition=True)

    assert {("0",): 600, ("1",): 0} == {
        key[3:]: value for key, value in values.items() if key[0] == name
    }


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"sink": {"numOutputRows": -1}}, "spark_kafka_stream_output_rows_total"),
        ({"sink": None}, "spark_kafka_stream_output_rows_total"),
        ({"sources": [{"endOffset": 7, "latestOffset": 9}]}, "spark_kafka_source_lag_records"),
        (
            {"sources": [{"endOffset": {"in": {"0": 1}}, "latestOffset": None}]},
            "spark_kafka_source_lag_records",
        ),
        ({"sources": None}, "spark_kafka_source_lag_records"),
        ({"durationMs": {"latestOffset": 3}}, "spark_kafka_stream_batches_total"),
    ],
)
def test_an_unknown_number_is_left_out(changes, missing):
    """What Spark does not know, or what is no number of Kafka, has no sample instead of a 0."""
    names = {metric.name for metric, _, _ in samples_of(progress_event({**PROGRESS, **changes}))}

    assert missing not in names
    assert "spark_kafka_stream_active" in names


def test_a_trigger_without_a_batch_counts_nothing():
    """A trigger that found no data reports the time and the lag, and adds to no counter."""
    idle = {**PROGRESS, "durationMs": {"latestOffset": 3, "triggerExecution": 4}}

    assert set() == {
        metric.name
        for metric, _, _ in samples_of(progress_event(idle))
        if metric.kind is not MetricKind.GAUGE
    }


def test_the_end_of_a_query_is_counted_as_a_failure_only_with_an_error():
    """A query that ended is not active, and a failure if it had an error."""
    for is_failed in (False, True):
        event = StreamEvent(
            kind=EventKind.TERMINATED, query="copy", query_id="b", run_id="r", is_failed=is_failed
        )
        assert {
            ("spark_kafka_stream_active", "copy"): 0,
            ("spark_kafka_stream_failures_total", "copy"): int(is_failed),
        } == values_of(event)


def test_a_query_without_a_name_is_labelled_with_its_id():
    """The id stays the same when the query restarts, so it names the series."""
    event = progress_event({**PROGRESS, "name": None})

    assert "b3cf" == event.query


def test_names_follow_the_conventions_of_prometheus():
    """Counters, and only they, end with _total, and each metric is bounded by the query."""
    assert [] == [
        metric.name
        for metric in STREAM_METRICS
        if (metric.kind is MetricKind.COUNTER) != metric.name.endswith("_total")
        or metric.labels[0] != "query"
        or not metric.help.endswith(".")
    ]
    assert {"s", "By", ""} == {metric.unit for metric in STREAM_METRICS}


def test_an_event_as_a_dict_has_only_what_is_known():
    """The keys of a log line are those of the event, and the report in seconds."""
    line = progress_event(PROGRESS, REPORT).as_dict()

    assert {"in": 600} == line["lag_records"]
    assert {"out": 390} == line["sink"]["records_by_topic"]
    assert 0.04 == line["sink"]["request_latency_max_seconds"]
    assert {"event", "timestamp", "query", "query_id", "run_id", "batch_id"} | {
        *("input_rows", "output_rows", "batch_seconds", "phase_seconds", "lag_records", "sink")
    } == set(line)
