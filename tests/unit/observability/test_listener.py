"""The listener: names, reports, and errors that stay where they are."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from threading import Lock, Thread
from uuid import UUID

import pytest
from prometheus_client import CollectorRegistry
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)

from spark_kafka_sink.observability import (
    EventKind,
    KafkaStreamListener,
    PrometheusExporter,
    ReportFile,
)
from tests.unit.observability.test_stream_metrics import PROGRESS

QUERY_ID, RUN_ID = UUID(int=1), UUID(int=2)


class Recorder:
    """An exporter that keeps its events."""

    def __init__(self):
        self.events = []

    def export(self, event):
        """Keep an event."""
        self.events.append(event)


class Broken:
    """An exporter that always fails."""

    def export(self, event):
        """Raise an error."""
        raise RuntimeError("the collector is down")


def started(name="copy"):
    return QueryStartedEvent(QUERY_ID, RUN_ID, name, "2026-11-25T12:39:25.693Z", set())


def progress(**changes):
    found = {**PROGRESS, "id": str(QUERY_ID), "runId": str(RUN_ID), **changes}
    return QueryProgressEvent(_Progress(found))


class _Progress(StreamingQueryProgress):
    """A progress of which the listener reads the JSON alone."""

    def __init__(self, found):
        self._found = found

    @property
    def json(self):
        return json.dumps(self._found)


def test_all_events_of_a_query_have_its_name():
    """Events that Spark gives only an id get the name of the query, until it ends."""
    recorder = Recorder()
    listener = KafkaStreamListener(recorder)
    listener.onQueryStarted(started())
    listener.onQueryProgress(progress())
    listener.onQueryIdle(QueryIdleEvent(QUERY_ID, RUN_ID, "2026-11-25T12:39:30.000Z"))
    listener.onQueryTerminated(QueryTerminatedEvent(QUERY_ID, RUN_ID, "boom", "STREAM_FAILED"))
    listener.onQueryTerminated(QueryTerminatedEvent(QUERY_ID, RUN_ID, None, None))

    assert [
        (EventKind.STARTED, "copy"),
        (EventKind.PROGRESS, "copy"),
        (EventKind.IDLE, "copy"),
        (EventKind.TERMINATED, "copy"),
        (EventKind.TERMINATED, str(QUERY_ID)),
    ] == [(event.kind, event.query) for event in recorder.events]
    assert [True, False] == [event.is_failed for event in recorder.events[-2:]]
    assert "STREAM_FAILED" == recorder.events[-2].error_class


def test_the_end_of_a_run_may_come_after_a_restart():
    """A query that runs again keeps its name, activity and times, and the failure is counted."""
    registry = CollectorRegistry()
    listener = KafkaStreamListener(PrometheusExporter(registry))
    again = UUID(int=3)
    of_query = {"query": "copy"}
    listener.onQueryStarted(started())
    listener.onQueryStarted(
        QueryStartedEvent(QUERY_ID, again, "copy", "2026-11-25T12:40:00.000Z", set())
    )
    listener.onQueryTerminated(QueryTerminatedEvent(QUERY_ID, RUN_ID, "boom", "STREAM_FAILED"))

    assert 1 == registry.get_sample_value("spark_kafka_stream_active", of_query)
    assert 1 == registry.get_sample_value("spark_kafka_stream_failures_total", of_query)
    assert registry.get_sample_value("spark_kafka_stream_last_event_timestamp_seconds", of_query)

    listener.onQueryTerminated(QueryTerminatedEvent(QUERY_ID, again, "boom", "STREAM_FAILED"))

    assert 0 == registry.get_sample_value("spark_kafka_stream_active", of_query)
    assert 2 == registry.get_sample_value("spark_kafka_stream_failures_total", of_query)


def test_a_report_is_looked_up_once_for_each_batch():
    """Only the progress of a trigger that ran a micro-batch has a report."""
    asked = []
    recorder = Recorder()
    listener = KafkaStreamListener(
        recorder, reports=lambda query_id, batch_id: asked.append((query_id, batch_id)) or {}
    )
    listener.onQueryProgress(progress())
    listener.onQueryProgress(progress(durationMs={"latestOffset": 3}))

    assert [(str(QUERY_ID), 7)] == asked
    assert [{}, None] == [event.report for event in recorder.events]


def test_a_failing_exporter_does_not_stop_the_others(caplog):
    """The error of an exporter is logged, and the next exporter gets the event."""
    recorder = Recorder()
    KafkaStreamListener(Broken(), recorder).onQueryStarted(started())

    assert 1 == len(recorder.events)
    assert ["Broken did not export that query copy is started"] == caplog.messages
    assert "the collector is down" in caplog.text


def test_an_exporter_may_start_a_query():
    """A start that is announced while an exporter runs does not wait for it, and is exported."""
    recorder = Recorder()

    class Restart:
        """An exporter that starts a query again when it ends, as `start()` in a listener does."""

        def export(self, event):
            """Announce a start in another thread, and wait until that is done."""
            if event.kind is EventKind.TERMINATED:
                thread = Thread(target=listener.onQueryStarted, args=[started()], daemon=True)
                thread.start()
                thread.join(120)
                assert not thread.is_alive()
                listener.onQueryStarted(started())

    listener = KafkaStreamListener(Restart(), recorder)
    listener.onQueryTerminated(QueryTerminatedEvent(QUERY_ID, RUN_ID, "boom", "STREAM_FAILED"))

    assert [EventKind.TERMINATED, EventKind.STARTED, EventKind.STARTED] == [
        event.kind for event in recorder.events
    ]


def test_events_of_many_threads_are_exported_one_at_a_time():
    """Each event is exported exactly once, by one thread at a time."""
    busy = Lock()
    recorder = Recorder()

    class Alone:
        """An exporter that fails where another thread is in it."""

        def export(self, event):
            """Keep the event."""
            assert busy.acquire(blocking=False)
            recorder.export(event)
            busy.release()

    listener = KafkaStreamListener(Alone())
    with ThreadPoolExecutor(8) as threads:
        for name in range(400):
            threads.submit(listener.onQueryStarted, started(str(name)))

    assert set(map(str, range(400))) == {event.query for event in recorder.events}
    assert 400 == len(recorder.events)


def test_a_report_that_cannot_be_read_is_left_out(tmp_path, caplog):
    """A progress is exported without a report that cannot be read, and the reason is logged."""
    path = tmp_path / "report.jsonl"
    path.write_text("no report\n")
    recorder = Recorder()
    KafkaStreamListener(recorder, reports=ReportFile(path)).onQueryProgress(progress())

    assert [None] == [event.report for event in recorder.events]
    assert ["batch 7 of query copy is exported without the sink's report"] == caplog.messages


@pytest.mark.parametrize(
    ("exporters", "reports", "message"),
    [
        ((), None, "needs an exporter"),
        ((PrometheusExporter,), None, "is not an exporter"),
        (("prometheus",), None, "'prometheus' is not an exporter"),
        ((Recorder(),), "/tmp/report", r"such as SessionReports\(spark\)"),  # noqa: S108 - never opened
    ],
)
def test_a_wrong_argument_is_refused(exporters, reports, message):
    """A listener without exporters, or with something else in their place, is an error at once."""
    with pytest.raises(TypeError, match=message):
        KafkaStreamListener(*exporters, reports=reports)


def line(query_id, batch_id, rows=1):
    return json.dumps({"query_id": query_id, "batch_id": batch_id, "rows": rows}) + "\n"


def test_a_report_is_found_from_the_end_of_a_long_file(tmp_path):
    """Any micro-batch of a file is found, and one that it does not have is None."""
    path = tmp_path / "report.jsonl"
    path.write_text("".join(line("copy", batch, rows=batch) for batch in range(10_000)))
    reports = ReportFile(path)

    assert [9_999, 9_000, 0] == [reports("copy", batch)["rows"] for batch in (9_999, 9_000, 0)]
    assert reports("copy", 10_000) is None
    assert reports("other", 3) is None


def test_a_report_far_from_the_end_is_not_searched(tmp_path):
    """Only the last megabytes of a file are read, which have the report that was just written."""
    path = tmp_path / "report.jsonl"
    path.write_text("".join(line("copy", batch, rows="x" * 100_000) for batch in range(60)))
    reports = ReportFile(path)

    assert 40 == reports("copy", 40)["batch_id"]
    assert reports("copy", 3) is None


def test_a_partial_line_is_not_a_report_yet(tmp_path):
    """A line counts once it ends with a newline, and a file that is missing has none."""
    path = tmp_path / "report.jsonl"
    assert ReportFile(path)("copy", 0) is None
    path.write_text(line("copy", 0) + line("copy", 1).rstrip("\n"))

    assert ReportFile(path)("copy", 1) is None
    assert 0 == ReportFile(path)("copy", 0)["batch_id"]


@pytest.mark.parametrize("text", ["[]\n", '{"rows": 1}\n', "no JSON\n"])
def test_a_file_of_something_else_is_an_error(text, tmp_path):
    """A line that is not a report of a micro-batch is a ValueError."""
    path = tmp_path / "report.jsonl"
    path.write_text(text)

    with pytest.raises(ValueError, match=r"micro-batch|Expecting"):
        ReportFile(path)("copy", 0)
