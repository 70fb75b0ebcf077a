"""The listener that Spark calls, in the process of the user.

It never fails a query. Spark calls it in a thread of its own after each micro-batch, so it delays
none; only the start of a query may wait for exporters, because Spark announces a start in the
thread that calls `start()`. A restart may therefore be announced before the end of the run before.
A number that cannot be had is left out, and the reason is logged.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from pyspark.sql.streaming.listener import StreamingQueryListener

from spark_kafka_sink.observability.stream_event import EventKind, StreamEvent, progress_event

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

    from spark_kafka_sink.observability.stream_event import StreamExporter

    #: Returns the report of a query's micro-batch, or None.
    Reports: TypeAlias = Callable[[str, int], Mapping[str, Any] | None]

logger = logging.getLogger(__name__)


class _Run(NamedTuple):
    """The latest run of a query, and the query's name."""

    name: str
    run_id: str


class KafkaStreamListener(StreamingQueryListener):
    """A listener for `spark.streams.addListener` that passes events to `exporters`.

    It observes all queries of the session. Spark's progress has the rows that were read, times and
    lag. `reports` adds what only the sink knows, such as bytes, retries and the latency of
    requests: it is called with the id of a query and the number of a micro-batch, and returns the
    report of the sink or None. `SessionReports` asks the driver for them, and `ReportFile` reads
    the file of `reportPath`.

    >>> listener = KafkaStreamListener(JsonLogExporter(), reports=SessionReports(spark))
    """

    def __init__(self, *exporters: StreamExporter, reports: Reports | None = None) -> None:
        """Raise TypeError if an exporter has no method `export`, or `reports` is not callable."""
        for exporter in exporters:
            if isinstance(exporter, type) or not callable(getattr(exporter, "export", None)):
                raise TypeError(f"{exporter!r} is not an exporter: it needs a method export(event)")
        if not exporters:
            raise TypeError("a listener needs an exporter, such as PrometheusExporter()")
        if reports is not None and not callable(reports):
            raise TypeError(
                f"reports must be callable, such as SessionReports(spark), not {reports!r}"
            )
        self._exporters = exporters
        self._reports = reports
        #: The queries that run, by their ids, since only some events have the name.
        self._runs: dict[str, _Run] = {}
        #: The events that are not exported yet, in order.
        self._pending: deque[StreamEvent] = deque()
        self._export_lock = Lock()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 -- Spark's name
        """Pass on the start of a query; `event` is Spark's."""
        query_id = str(event.id)
        run = _Run(event.name or query_id, str(event.runId))
        self._runs[query_id] = run
        self._export(
            StreamEvent(
                kind=EventKind.STARTED,
                timestamp=event.timestamp,
                query=run.name,
                query_id=query_id,
                run_id=run.run_id,
            )
        )

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 -- Spark's name
        """Pass on the progress of a query; `event` is Spark's."""
        progress = json.loads(event.progress.json)
        stream_event = progress_event(progress)
        # The listener may have been added after the start.
        self._runs.setdefault(stream_event.query_id, _Run(stream_event.query, stream_event.run_id))
        if stream_event.wrote_batch:
            stream_event = progress_event(progress, self._report(stream_event))
        self._export(stream_event)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 -- Spark's name
        """Pass on that a query waits for data; `event` is Spark's."""
        query_id = str(event.id)
        self._export(
            StreamEvent(
                kind=EventKind.IDLE,
                timestamp=event.timestamp,
                query=self._name(query_id),
                query_id=query_id,
                run_id=str(event.runId),
            )
        )

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 -- Spark's name
        """Pass on the end of a query; `event` is Spark's."""
        query_id, run_id = str(event.id), str(event.runId)
        name, latest = self._runs.get(query_id, (query_id, run_id))
        if latest == run_id:
            self._runs.pop(query_id, None)
        self._export(
            StreamEvent(
                kind=EventKind.TERMINATED,
                query=name,
                query_id=query_id,
                run_id=run_id,
                is_replaced=latest != run_id,
                is_failed=event.exception is not None,
                error_class=event.errorClassOnException,
            )
        )

    def _name(self, query_id: str) -> str:
        run = self._runs.get(query_id)
        return query_id if run is None else run.name

    def _report(self, event: StreamEvent) -> Mapping[str, Any] | None:
        if self._reports is None or event.batch_id is None:
            return None
        try:
            return self._reports(event.query_id, event.batch_id)
        except Exception:  # any reason is one of the user's own code or files
            logger.warning(
                "batch %d of query %s is exported without the sink's report",
                event.batch_id,
                event.query,
                exc_info=True,
            )
            return None

    def _export(self, event: StreamEvent) -> None:
        """Pass on an event, or leave it to the thread that exports one now.

        Nothing waits for that thread: its exporter may itself be starting a query, which announces
        the start in another thread.
        """
        self._pending.append(event)
        # Looked at again after each release: an event may have been left to this thread before it.
        while self._pending and self._export_lock.acquire(blocking=False):
            try:
                while self._pending:
                    self._pass_on(self._pending.popleft())
            finally:
                self._export_lock.release()

    def _pass_on(self, event: StreamEvent) -> None:
        for exporter in self._exporters:
            try:
                exporter.export(event)
            except Exception:  # one exporter must not hide an event from the others
                logger.warning(
                    "%s did not export that query %s is %s",
                    type(exporter).__name__,
                    event.query,
                    event.kind.value,
                    exc_info=True,
                )
