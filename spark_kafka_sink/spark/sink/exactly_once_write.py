"""The steps of an exactly-once write that both writers share: plan, write, commit, abort.

`plan` runs on the driver, when Spark pickles a writer for the tasks. The plan travels with the
writer to the tasks. A stream's `commit` and `abort` run on another object and learn the plan from
the tasks' messages.

This module imports the network code, so writers import it only for an exactly-once write.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from spark_kafka_sink.admin.driver_client import DriverClient
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.exactly_once.ledger.budget import Budget
from spark_kafka_sink.exactly_once.ledger.ledger import Ledger
from spark_kafka_sink.exactly_once.ledger.transitions import Verdict
from spark_kafka_sink.exactly_once.plan import Job, Plan, is_ended_by_others, refusal
from spark_kafka_sink.metrics.snapshot import MetricsSnapshot
from spark_kafka_sink.spark.sink.attempt_producers import ProducerOfAttempt
from spark_kafka_sink.spark.sink.commit_message import TransactionalPart
from spark_kafka_sink.spark.sink.driver_transactions import step_timeout, two_phase_commit
from spark_kafka_sink.spark.sink.partition_writer import Written, write_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pyarrow as pa

    from spark_kafka_sink.config.exactly_once_options import ExactlyOnceOptions
    from spark_kafka_sink.config.producer_config import ProducerConfig
    from spark_kafka_sink.exactly_once.plan import Prepared
    from spark_kafka_sink.exactly_once.points import Point
    from spark_kafka_sink.spark.sink.commit_message import KafkaCommitMessage

    Observe = Callable[[Point], None]

logger = logging.getLogger(__name__)

#: How long a failed task may take to find out which driver ended its transaction.
_LEDGER_SECONDS: Final = 30.0


class TaskResult(NamedTuple):
    """The outcome of a task's write."""

    written: Written
    transactional: TransactionalPart


@dataclass(frozen=True, slots=True)
class ExactlyOnceWrite:
    """An exactly-once write, described by its options; it can be pickled."""

    config: ProducerConfig
    options: ExactlyOnceOptions

    def job(self, topic: str | None) -> Job:
        """Return the job that this write is if it is a batch; `topic` is None if rows name it."""
        retention_ms = self.options.write_id_retention_ms if self.options.write_id else 0
        return Job(retention_ms, topic)

    def plan(self, write_id: str | None, observe: Observe, job: Job | None = None) -> Plan:
        """Acquire the prefix and plan (on the driver, before the tasks); raises KafkaErrors."""
        with two_phase_commit(self.config, self.options, observe=observe) as protocol:
            return protocol.plan(write_id, timeout=step_timeout(self.config), job=job)

    def plan_of(self, messages: Sequence[KafkaCommitMessage]) -> Plan | None:
        """Rebuild the tasks' plan as far as the driver needs it; None if there were no tasks."""
        for message in messages:
            part = message.transactional
            if part is not None:
                return Plan(self.options.prefix, part.generation, part.planned_at_ms, {})
        return None

    def write(
        self,
        plan: Plan,
        write_id: str,
        batch_id: int,
        batches: Iterable[pa.RecordBatch],
        topic: str | None,
        *,
        stage: int | None = None,
    ) -> TaskResult:
        """Write a task's rows in a transaction of their own and leave it open (in the worker).

        `stage` is the id of the task's stage.

        Raises RolledBackError, MixedError, OvertakenError if another driver has taken over the
        prefix and thereby ended the transaction, and the errors of `write_rows`.
        """
        other_write_ids = () if write_id in plan.writes else tuple(sorted(plan.writes))
        part = TransactionalPart(
            plan.generation, plan.planned_at_ms, other_write_ids=other_write_ids
        )
        if not plan.must_write(write_id, batch_id):
            # Upstream operators may be stateful, and store their state after their last row.
            for _ in batches:
                pass
            return TaskResult(Written(0, (), MetricsSnapshot()), part._replace(is_replay=True))
        producers = ProducerOfAttempt(
            self.config,
            plan,
            transaction_timeout_ms=self.options.transaction_timeout_ms,
            stage=stage,
        )
        try:
            written = write_rows(batches, producers=producers, topic=topic, config=self.config)
        except KafkaError as error:
            if is_ended_by_others(error):
                self._raise_if_overtaken(plan, write_id, batch_id, error)
            raise
        return TaskResult(written, part._replace(prepared=producers.prepared(written.acks)))

    def _raise_if_overtaken(
        self, plan: Plan, write_id: str, batch_id: int, error: KafkaError
    ) -> None:
        """Raise OvertakenError if the ledger shows a newer driver: brokers do not report it."""
        try:
            with DriverClient(self.config) as admin:
                ledger = Ledger(
                    admin,
                    topic=self.options.ledger_topic,
                    prefix=self.options.prefix,
                    clock=time.time,
                )
                state = ledger.read(Budget.of(time.monotonic, _LEDGER_SECONDS))
        except KafkaError as unread:
            logger.warning(
                "a task's transaction timed out or was ended by another process; could not find "
                "out whether another driver has taken over transactionalIdPrefix %r: %s",
                self.options.prefix,
                unread,
            )
            return
        if state.generation > plan.generation:
            raise refusal(Verdict.OVERTAKEN, plan, write_id, batch_id, state) from error

    def commit(
        self,
        plan: Plan,
        write_id: str,
        batch_id: int,
        messages: Sequence[KafkaCommitMessage],
        observe: Observe,
        *,
        job: Job | None = None,
    ) -> None:
        """Decide and commit (on the driver); raises the errors of `TwoPhaseCommit.commit`."""
        with two_phase_commit(self.config, self.options, observe=observe, checks=False) as protocol:
            protocol.commit(
                plan,
                write_id,
                batch_id,
                _prepared(messages),
                timeout=step_timeout(self.config),
                job=job,
            )

    def abort(
        self,
        plan: Plan,
        write_id: str,
        batch_id: int,
        messages: Sequence[KafkaCommitMessage],
        observe: Observe,
    ) -> None:
        """Abort the tasks' open transactions unless they are decided; never raises a KafkaError.

        A transaction that is not aborted now is aborted by the next start under the prefix, or by
        its timeout.
        """
        prepared = _prepared(messages)
        if not prepared:
            return
        try:
            with two_phase_commit(
                self.config, self.options, observe=observe, checks=False
            ) as protocol:
                protocol.abort(
                    plan, write_id, batch_id, prepared, timeout=step_timeout(self.config)
                )
        except KafkaError as error:
            logger.warning(
                "could not abort the transactions of a failed write; they remain open until a "
                "query or job starts with transactionalIdPrefix %r, or until they time out: %s",
                self.options.prefix,
                error,
            )


def _prepared(messages: Sequence[KafkaCommitMessage]) -> list[Prepared]:
    parts = [message.transactional for message in messages]
    return [part.prepared for part in parts if part is not None and part.prepared is not None]
