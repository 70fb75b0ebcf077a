"""The sink with writers that follow the kill plan at each named point, and at some other places.

The other places are, in the tasks, before the first row is produced, after the last one, and after
the flush; and on the driver, after a commit.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from spark_kafka_sink.admin.driver_client import DriverClient
from spark_kafka_sink.exactly_once import recovery
from spark_kafka_sink.exactly_once.ledger import Budget, Ledger
from spark_kafka_sink.spark.data_source import KafkaSink
from spark_kafka_sink.spark.sink.stream_writer import KafkaStreamWriter
from spark_kafka_sink.spark.sink.writers import KafkaBatchWriter, SinkWriter
from tests.support.exactly_once.kill_plan import KillPlan
from tests.support.spark.source_groups import committed_offsets

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from spark_kafka_sink.config.sink_options import ExactlyOnceOptions, SinkOptions
    from spark_kafka_sink.exactly_once.two_phase_commit import Point

#: Places in a task; those of the driver are the values of `Point`.
BEFORE_PRODUCE = "task: before produce"
BEFORE_FLUSH = "task: before flush"
AFTER_FLUSH = "task: after flush"
#: On the driver, when the sink has committed, and Spark has recorded nothing yet.
BEFORE_SPARKS_COMMIT = "before Spark's commit log"
_PATIENCE_SECONDS = 120


class _Mortal(SinkWriter):
    """The behavior of both kinds of writers."""

    def _observe(self, point: Point) -> None:
        KillPlan.of_environment().reached(point.value, lambda: look(self._options))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
        """Write, and die on the way if that is planned."""
        plan = KillPlan.of_environment()

        def rows() -> Iterator[pa.RecordBatch]:
            has_rows = False
            for batch in iterator:
                plan.reached(BEFORE_PRODUCE)
                yield batch
                has_rows = True
            if has_rows:
                plan.reached(BEFORE_FLUSH)

        message = super().write(rows())
        if message.rows:
            plan.reached(AFTER_FLUSH)
        return message


class MortalStreamWriter(_Mortal, KafkaStreamWriter):
    """A stream's writer that dies as planned."""

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 -- Spark's name
        """Commit, and die right afterwards if that is planned."""
        super().commit(messages, batchId)
        KillPlan.of_environment().reached(BEFORE_SPARKS_COMMIT, lambda: look(self._options))


class MortalBatchWriter(_Mortal, KafkaBatchWriter):
    """A job's writer that dies as planned."""


class MortalSink(KafkaSink):
    """The sink with such writers; it has the same name in Spark."""

    def writer(self, schema: Any, overwrite: bool) -> MortalBatchWriter:  # noqa: FBT001
        """Create a job's writer, see KafkaSink."""
        made = super().writer(schema, overwrite)
        made.__class__ = MortalBatchWriter
        return made

    def streamWriter(self, schema: Any, overwrite: bool) -> MortalStreamWriter:  # noqa: N802, FBT001
        """Create a stream's writer, see KafkaSink."""
        made = super().streamWriter(schema, overwrite)
        made.__class__ = MortalStreamWriter
        return made


def look(options: SinkOptions) -> dict[str, Any]:
    """Return what the driver would leave behind if it died now, read over separate connections."""
    seen: dict[str, Any] = {}
    if options.exactly_once is not None:
        with DriverClient(options.producer) as admin:
            seen |= _inspect_ledger(admin, options.exactly_once)
    group = options.source_consumer_group
    if group is not None:
        servers = ",".join(f"{host}:{port}" for host, port in options.producer.bootstrap_servers)
        # The form in which Spark writes offsets into its checkpoint.
        seen["group"] = {}
        for (topic, partition), offset in committed_offsets(servers, group).items():
            seen["group"].setdefault(topic, {})[str(partition)] = offset
    return seen


def _inspect_ledger(admin: DriverClient, options: ExactlyOnceOptions) -> dict[str, Any]:
    budget = Budget.of(time.monotonic, _PATIENCE_SECONDS)
    topic, prefix = options.ledger_topic, options.prefix
    state = Ledger(admin, topic=topic, prefix=prefix, clock=time.time).read(budget)
    return {
        "open": len(recovery.list_open(admin, prefix, budget)),
        "states": [record.write.state.value for record in state.writes.values()],
        "last": [record.write.batch_id for record in state.writes.values()],
    }
