"""The lineage events of writes, on the driver.

A batch has START when its tasks begin, and COMPLETE or FAIL. A stream has START and RUNNING with
its first micro-batch, RUNNING at most once a minute, and FAIL; Spark does not tell a sink that a
stream has ended. Its run is that of Spark, whose id only tasks know; so events are sent when they
have finished.

The inputs of a write are the reads with the same `lineageJob` that Spark has planned for it, as far
as that can be known (`LineageStore`): for a batch those that no earlier write has taken, for a
stream those that have planned a micro-batch just now. If several streams run side by side under one
name, it cannot be known which of them reads what, and they have no inputs.
"""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyspark

from spark_kafka_sink.model import known_offset
from spark_kafka_sink.spark.lineage import (
    WAIT_SECONDS,
    LineageStore,
    best_effort,
    is_process_alive,
    send,
)
from spark_kafka_sink.spark.lineage_events import (
    COMPLETE,
    FAIL,
    RUNNING,
    START,
    LineageRun,
    OffsetRange,
    SparkApplication,
    dataset,
    merged_inputs,
    namespace_of,
    output_dataset,
    schema_fields,
)
from spark_kafka_sink.spark.sink.write_report import WriteReport

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql.types import StructType

    from spark_kafka_sink.config.sink_options import SinkOptions
    from spark_kafka_sink.spark.sink.partition_writer import KafkaCommitMessage

#: The seconds between two events of a stream.
EVERY_SECONDS: Final = 60.0
#: How long ago another stream may have finished a micro-batch if it is still running, in seconds.
_ACTIVE_SECONDS: Final = 60.0
#: The local properties by which tasks know their application and their query's run.
_APPLICATION_NAME: Final = "spark.app.name"
_APPLICATION_ID: Final = "spark.app.id"
_JOB_GROUP: Final = "spark.jobGroup.id"


class Target(NamedTuple):
    """Where a write goes."""

    namespace: str
    #: None if a column names it.
    topic: str | None
    #: Those of the schema facet.
    fields: list[dict[str, Any]]

    @classmethod
    def of(cls, options: SinkOptions, columns: StructType, topic: str | None) -> Target:
        """Return the target of a write with these columns."""
        servers = options.producer.bootstrap_servers
        return cls(namespace_of(servers), topic, schema_fields(columns))

    def planned(self) -> list[dict[str, Any]]:
        """Return the output datasets as far as they are known before a row is written."""
        return [] if self.topic is None else [dataset(self.namespace, self.topic, self.fields)]

    def written(self, report: WriteReport) -> list[dict[str, Any]]:
        """Return the output datasets of a report."""
        letters = None if report.bad_rows is None else report.bad_rows.dlq_topic
        outputs = []
        for topic in report.topics:
            acks = [
                (written.partition, acks)
                for written, acks in report.partitions
                if written.topic == topic
            ]
            outputs.append(
                output_dataset(
                    self.namespace,
                    topic,
                    # Dead letters have columns of their own.
                    None if topic == letters else self.fields,
                    (
                        OffsetRange(partition, of_partition.first_offset, last + 1)
                        for partition, of_partition in acks
                        if (last := known_offset(of_partition.last_offset)) is not None
                    ),
                    rows=sum(of_partition.records for _, of_partition in acks),
                    size=sum(of_partition.bytes for _, of_partition in acks),
                )
            )
        return outputs or self.planned()


class BatchLineage(NamedTuple):
    """What the events of a batch have in common; pickled with its writer."""

    run: LineageRun
    target: Target
    inputs: list[dict[str, Any]]

    @classmethod
    def begin(
        cls, options: SinkOptions, columns: StructType, topic: str | None, *, at: float
    ) -> BatchLineage | None:
        """Send START, and return what later events need; never raises.

        `at` is in seconds since 1970. None without the option, or if there will be no events.
        """
        if options.lineage is None:
            return None
        with best_effort():
            job = options.lineage.job
            store = LineageStore.of_driver()
            reads = [] if store is None else store.take_reads(job)
            lineage = cls(
                LineageRun(str(uuid.uuid4()), job or _with_topic("pykafka_write", topic)),
                Target.of(options, columns, topic),
                merged_inputs(one for read in reads for one in read.inputs),
            )
            send(lineage._event(START, at=at, outputs=lineage.target.planned()))
            return lineage
        return None

    def complete(
        self, report: WriteReport, messages: Sequence[KafkaCommitMessage], *, at: float
    ) -> None:
        """Send COMPLETE, and wait a moment, as the application may end now; never raises."""
        with best_effort():
            outputs = self.target.written(report)
            application = _application(messages)
            send(
                self._event(COMPLETE, at=at, outputs=outputs, application=application), WAIT_SECONDS
            )

    def fail(self, messages: Sequence[KafkaCommitMessage], *, at: float) -> None:
        """Send FAIL, and wait a moment; never raises."""
        with best_effort():
            outputs = self.target.planned()
            application = _application(messages)
            send(self._event(FAIL, at=at, outputs=outputs, application=application), WAIT_SECONDS)

    def _event(
        self,
        kind: str,
        *,
        at: float,
        outputs: list[dict[str, Any]],
        application: SparkApplication | None = None,
    ) -> dict[str, Any]:
        return self.run.event(
            kind,
            at=at,
            environ=os.environ,
            inputs=self.inputs,
            outputs=outputs,
            application=application,
            spark_version=pyspark.__version__,
        )


class StreamLineage:
    """The events of a stream; a new one is created for each micro-batch, commit and abort."""

    def __init__(self, options: SinkOptions, target: Target, token: str) -> None:
        """Set what events need; `token` is the same for all micro-batches of a run."""
        self._job = None if options.lineage is None else options.lineage.job
        self._name = self._job or options.query_name or _with_topic("pykafka_stream", target.topic)
        self._target = target
        self._token = token
        self._store = LineageStore.of_driver()

    def written(
        self, report: WriteReport, messages: Sequence[KafkaCommitMessage], *, at: float
    ) -> None:
        """Send the events that are due after a micro-batch; never raises."""
        with best_effort():
            self._written(report, messages, at=at)

    def _written(
        self, report: WriteReport, messages: Sequence[KafkaCommitMessage], *, at: float
    ) -> None:
        application = _application(messages)
        if application is None:
            # A micro-batch without tasks: not even its run is known.
            return
        run = LineageRun(_run_id(application, report.query_id), self._name, is_stream=True)
        state = {} if self._store is None else self._store.run_state(run.run_id)
        started_at = next((one.started_at for one in messages if one.started_at is not None), at)
        inputs = self._inputs(run, started_at)
        if not state:
            event = self._event(run, START, application, at=started_at, inputs=inputs)
            send(event, WAIT_SECONDS)
        total, state = due_report(state, report, now=at)
        if total is not None:
            outputs = self._target.written(total)
            event = self._event(run, RUNNING, application, at=at, inputs=inputs, outputs=outputs)
            send(event)
        if self._store is not None:
            of_run = {"token": self._token, "job": self._job, "written_at": at}
            self._store.set_run_state(run.run_id, {**state, **of_run})

    def fail(self, messages: Sequence[KafkaCommitMessage], *, at: float) -> None:
        """Send FAIL, if the run is known, and wait a moment; never raises."""
        with best_effort():
            application = _application(messages)
            run_id = self._known_run(application, messages)
            if run_id is None:
                return
            run = LineageRun(run_id, self._name, is_stream=True)
            send(self._event(run, FAIL, application, at=at), WAIT_SECONDS)
            if self._store is not None:
                self._store.remove_run(run_id)

    def _known_run(
        self, application: SparkApplication | None, messages: Sequence[KafkaCommitMessage]
    ) -> str | None:
        if application is not None:
            return _run_id(application, messages[0].query_id)
        runs = {} if self._store is None else self._store.runs()
        return next((key for key, run in runs.items() if run.get("token") == self._token), None)

    def _inputs(self, run: LineageRun, started_at: float) -> list[dict[str, Any]]:
        if self._store is None:
            return []
        for other, state in self._store.runs().items():
            is_active = state.get("written_at", 0.0) > started_at - _ACTIVE_SECONDS
            if other != run.run_id and state.get("job") == self._job and is_active:
                return []
        reads = self._store.streams(self._job, at=started_at, is_alive=is_process_alive)
        return merged_inputs(one for read in reads for one in read.inputs)

    def _event(
        self,
        run: LineageRun,
        kind: str,
        application: SparkApplication | None,
        *,
        at: float,
        inputs: Sequence[Mapping[str, Any]] = (),
        outputs: Sequence[Mapping[str, Any]] | None = None,
    ) -> dict[str, Any]:
        return run.event(
            kind,
            at=at,
            environ=os.environ,
            inputs=inputs,
            outputs=self._target.planned() if outputs is None else outputs,
            application=application,
            spark_version=pyspark.__version__,
        )


def due_report(
    state: Mapping[str, Any], report: WriteReport, *, now: float
) -> tuple[WriteReport | None, dict[str, Any]]:
    """Return what to send after a micro-batch, or None; and the state for the next one.

    The state, which is empty at first, can be stored as JSON. `now` is in seconds since 1970; a
    clock that was set back does not silence a stream.
    """
    waiting = state.get("waiting")
    total = report if waiting is None else WriteReport.from_record(waiting).merged(report)
    sent_at = state.get("sent_at")
    if sent_at is not None and 0 <= now - sent_at < EVERY_SECONDS:
        return None, {"sent_at": sent_at, "waiting": total.to_record()}
    return total, {"sent_at": now}


def application_of(local_property: Callable[[str], str | None]) -> SparkApplication:
    """Return what a task knows of its application."""
    return SparkApplication(
        local_property(_APPLICATION_NAME),
        local_property(_APPLICATION_ID),
        local_property(_JOB_GROUP),
    )


def _application(messages: Sequence[KafkaCommitMessage]) -> SparkApplication | None:
    return next((one.application for one in messages if one.application is not None), None)


def _run_id(application: SparkApplication, query_id: str | None) -> str:
    """Return Spark's id of the run; one that follows from the query if that is no UUID."""
    try:
        return str(uuid.UUID(application.run_id))
    except (TypeError, ValueError):
        return str(uuid.uuid5(uuid.NAMESPACE_OID, query_id or ""))


def _with_topic(kind: str, topic: str | None) -> str:
    return kind if topic is None else f"{kind}.{topic}"
