"""What a listener learns of a stream, as plain values: no Spark, no exporter, no clock.

An event is made of the JSON of Spark's progress, which has the numbers of the source and the times
of a micro-batch, and of the report of the sink for that micro-batch, which has the rest. Either may
lack a number, which is then None or absent: an unknown number is never 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The phase of a micro-batch in which Spark runs its job; a trigger without it wrote nothing.
_ADD_BATCH: Final = "addBatch"
_WHOLE_TRIGGER: Final = "triggerExecution"
_MS: Final = 1000


class EventKind(Enum):
    """What happened to a query.

    >>> EventKind("idle") is EventKind.IDLE
    True
    """

    STARTED = "started"
    PROGRESS = "progress"
    IDLE = "idle"
    TERMINATED = "terminated"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEvent:
    """An event of a query.

    >>> event = StreamEvent(kind=EventKind.STARTED, query="orders", query_id="5e", run_id="9a")
    >>> event.as_dict()
    {'event': 'started', 'query': 'orders', 'query_id': '5e', 'run_id': '9a'}
    """

    kind: EventKind
    #: The name of the query, or its id if it has no name.
    query: str
    #: The id that stays the same when the query restarts from its checkpoint.
    query_id: str
    #: The id of this run of the query.
    run_id: str
    #: Spark's time of the event, in ISO 8601; None if Spark does not tell.
    timestamp: str | None = None
    #: The number of the micro-batch; None if this event is not about one.
    batch_id: int | None = None
    #: The rows that the micro-batch read; None if this event is not about a micro-batch.
    input_rows: int | None = None
    #: The rows that the micro-batch wrote; None if Spark does not tell.
    output_rows: int | None = None
    #: How long the micro-batch took, in seconds.
    batch_seconds: float | None = None
    #: How long each phase of the trigger took, in seconds, by Spark's names.
    phase_seconds: Mapping[str, float] = field(default_factory=dict)
    #: The records of each partition that were not read yet, by topic and partition.
    lag: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    #: The sink's report of the micro-batch, as in the file of `reportPath`.
    report: Mapping[str, Any] | None = None
    #: Whether it is the end of a run after which the query has already been started again.
    is_replaced: bool = False
    #: Whether the query ended with an error.
    is_failed: bool = False
    #: Spark's class of the error, if it has one.
    error_class: str | None = None

    @property
    def wrote_batch(self) -> bool:
        """Whether this is the progress of a trigger that ran a micro-batch."""
        return _ADD_BATCH in self.phase_seconds

    @property
    def trigger_seconds(self) -> float:
        """How long the trigger took, 0 if this event is not about one."""
        return self.batch_seconds or self.phase_seconds.get(_WHOLE_TRIGGER, 0.0)

    def as_dict(self) -> dict[str, Any]:
        """Return what is known, ready for JSON; the keys are those of the log lines."""
        values: dict[str, Any] = {
            "event": self.kind.value,
            "timestamp": self.timestamp,
            "query": self.query,
            "query_id": self.query_id,
            "run_id": self.run_id,
            "batch_id": self.batch_id,
            "input_rows": self.input_rows,
            "output_rows": self.output_rows,
            "batch_seconds": self.batch_seconds,
            "phase_seconds": dict(self.phase_seconds) or None,
            "lag_records": {
                topic: sum(partitions.values()) for topic, partitions in self.lag.items()
            }
            or None,
            "sink": None if self.report is None else sink_numbers(self.report),
        }
        if self.kind is EventKind.TERMINATED:
            values |= {"failed": self.is_failed, "error_class": self.error_class}
        return {key: value for key, value in values.items() if value is not None}


class StreamExporter(Protocol):
    """A destination of events. A listener logs the exceptions that it raises, and goes on.

    >>> class Print:
    ...     def export(self, event):
    ...         print(event.query, event.kind.value)
    >>> listener = KafkaStreamListener(Print())
    """

    def export(self, event: StreamEvent) -> None:
        """Handle an `event`, from one thread at a time.

        The events of a run are in the order in which they happened. The end of a run may come after
        the start of the next one, and then has `is_replaced`.
        """


def progress_event(
    progress: Mapping[str, Any], report: Mapping[str, Any] | None = None
) -> StreamEvent:
    """Return the event of a progress, which is the JSON that Spark makes of it."""
    phases = {phase: ms / _MS for phase, ms in (progress.get("durationMs") or {}).items()}
    query_id = str(progress["id"])
    has_batch = _ADD_BATCH in phases
    sources = progress.get("sources") or []
    return StreamEvent(
        kind=EventKind.PROGRESS,
        timestamp=progress.get("timestamp"),
        query=progress.get("name") or query_id,
        query_id=query_id,
        run_id=str(progress["runId"]),
        batch_id=progress["batchId"],
        input_rows=_input_rows(progress, sources) if has_batch else None,
        output_rows=_output_rows(progress) if has_batch else None,
        batch_seconds=phases.pop(_WHOLE_TRIGGER, None) if has_batch else None,
        phase_seconds=phases,
        lag=_lag(sources),
        report=report,
    )


def sink_numbers(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of a sink's report that are worth a log line; times are in seconds."""
    metrics = report.get("metrics") or {}
    topics = report.get("topics") or {}
    # 0 if there are no keys, or with keyOrder=off: then nothing is known of their order.
    sampled = report.get("sampled_keys") or None
    numbers = {
        "rows": report.get("rows"),
        "bytes": report.get("bytes"),
        "records_by_topic": {
            topic: sum(partition["records"] for partition in partitions)
            for topic, partitions in topics.items()
        },
        "requests": metrics.get("request-total"),
        "retries": metrics.get("record-retry-total"),
        "errors": metrics.get("record-error-total"),
        "bad_rows": (report.get("bad_rows") or {}).get("counts"),
        "sampled_keys": sampled,
        "spread_keys": None if sampled is None else report.get("spread_keys"),
        "request_latency_avg_seconds": _seconds(metrics.get("request-latency-avg"), _MS),
        "request_latency_max_seconds": _seconds(metrics.get("request-latency-max"), _MS),
        "queue_time_max_seconds": _seconds(metrics.get("record-queue-time-max"), _MS),
        "throttle_seconds": _seconds(metrics.get("produce-throttle-time-total"), _MS),
        "paced_seconds": report.get("paced_seconds"),
        "buffer_wait_seconds": _seconds(metrics.get("bufferpool-wait-time-ns-total"), 10**9),
        "replayed": report.get("replayed"),
    }
    return {name: value for name, value in numbers.items() if value is not None}


def _seconds(value: float | None, per_second: int) -> float | None:
    return None if value is None else value / per_second


def _input_rows(progress: Mapping[str, Any], sources: list[Mapping[str, Any]]) -> int:
    rows = progress.get("numInputRows")
    return int(sum(source["numInputRows"] for source in sources) if rows is None else rows)


def _output_rows(progress: Mapping[str, Any]) -> int | None:
    rows = (progress.get("sink") or {}).get("numOutputRows")
    # -1 stands for a sink that does not count.
    return None if rows is None or rows < 0 else int(rows)


def _lag(sources: list[Mapping[str, Any]]) -> dict[str, dict[int, int]]:
    """Return the records that are not read yet, of all sources with offsets like Kafka's."""
    lag: dict[str, dict[int, int]] = {}
    for source in sources:
        end: Any = source.get("endOffset")
        latest: Any = source.get("latestOffset")
        if not _is_of_kafka(end) or not _is_of_kafka(latest):
            continue
        for topic, partitions in latest.items():
            reached = end.get(topic, {})
            for partition, offset in partitions.items():
                # A partition that no micro-batch has reached is new, and is read from its start,
                # which Spark does not tell.
                if partition in reached:
                    of_topic = lag.setdefault(topic, {})
                    behind = max(offset - reached[partition], 0)
                    of_topic[int(partition)] = of_topic.get(int(partition), 0) + behind
    return lag


def _is_of_kafka(offsets: Any) -> bool:
    return isinstance(offsets, dict) and all(
        isinstance(partitions, dict)
        and all(key.isdecimal() and type(offset) is int for key, offset in partitions.items())
        for partitions in offsets.values()
    )
