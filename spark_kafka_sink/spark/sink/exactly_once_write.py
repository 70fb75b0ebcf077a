"""The steps of an exactly-once write that both writers share: plan, write, commit, abort.

`plan` runs on the driver, when Spark pickles a writer for the tasks. The plan travels with the
writer to the tasks. A stream's `commit` and `abort` run on another object and learn the plan from
the tasks' messages. The driver's steps are built on `exactly_once.TwoPhaseCommit`, and begin with
`two_phase_commit`. Each task attempt takes its producer from a `ProducerOfAttempt`.

This module imports the network code, so writers import it only for an exactly-once write.
"""

from __future__ import annotations

import logging
import os
import platform
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from spark_kafka_sink.admin.driver_client import DriverClient
from spark_kafka_sink.errors import BrokerError, ConfigError, KafkaError
from spark_kafka_sink.exactly_once.errors import WinnerLostError
from spark_kafka_sink.exactly_once.ledger import Budget, Ledger, ensure_ledger_topic
from spark_kafka_sink.exactly_once.ledger_records import OffsetRange, Winner
from spark_kafka_sink.exactly_once.plan import Job, Plan, Prepared, is_ended_by_others, refusal
from spark_kafka_sink.exactly_once.transactional_ids import Slots, WorkerId, ledger_id
from spark_kafka_sink.exactly_once.transitions import Verdict
from spark_kafka_sink.exactly_once.two_phase_commit import Point, TwoPhaseCommit
from spark_kafka_sink.metrics.snapshot import MetricsSnapshot
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.spark.idle_cache import fingerprint
from spark_kafka_sink.spark.sink.partition_writer import (
    TransactionalPart,
    Written,
    close_quietly,
    start_producer,
    write_rows,
)
from spark_kafka_sink.spark.sink.producer_cache import CacheKey, ProducerCache, producer_cache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

    from spark_kafka_sink.config.producer_config import ProducerConfig
    from spark_kafka_sink.config.sink_options import ExactlyOnceOptions
    from spark_kafka_sink.model import PartitionAcks, PreparedTransaction, TopicPartition
    from spark_kafka_sink.producer.kafka_producer import KafkaProducer
    from spark_kafka_sink.spark.sink.dead_letters import BadRowWriter
    from spark_kafka_sink.spark.sink.pacing import Pacer
    from spark_kafka_sink.spark.sink.partition_writer import KafkaCommitMessage, Start

    Observe = Callable[[Point], None]

logger = logging.getLogger(__name__)

#: The number of prefixes whose connections are kept.
_MAX_KEPT: Final = 8
_NEEDS_3_0: Final = (
    "deliveryGuarantee=exactly_once requires Apache Kafka 3.0 or later: upgrade the brokers, or "
    "use deliveryGuarantee=at_least_once"
)
_AUTHORIZATION_FAILED: Final = "AUTHORIZATION_FAILED"
_INVALID_TIMEOUT: Final = ErrorCode.INVALID_TRANSACTION_TIMEOUT.name
#: How long a failed task may take to find out which driver ended its transaction.
_LEDGER_SECONDS: Final = 30.0


class _Kept:
    """The connections and ledger state that a process keeps for one prefix on one cluster.

    They are kept from one step to the next: Spark runs the steps in long-lived Python workers, and
    a stream plans and commits every batch. Each step fences the ledger before it reads further, so
    stale state is never relied upon. A step that fails discards that state.
    """

    def __init__(self, config: ProducerConfig, options: ExactlyOnceOptions) -> None:
        self.admin = DriverClient(config)
        self.ledger = _ledger(self.admin, options)
        self.is_checked = False


_kept: dict[tuple[object, ...], _Kept] = {}
os.register_at_fork(after_in_child=_kept.clear)


@contextmanager
def two_phase_commit(
    config: ProducerConfig,
    options: ExactlyOnceOptions,
    *,
    observe: Observe = lambda _: None,
    checks: bool = True,
) -> Iterator[TwoPhaseCommit]:
    """Yield the protocol for one step of the driver, after checking the cluster if `checks`.

    The first step of a process checks that every broker can be reached and is new enough, creates a
    missing ledger, and checks that brokers allow the transaction timeout, all before any task runs.
    A step after the tasks leaves that out: it must not fail because a broker restarts.

    Raises ConfigError if the cluster does not allow the settings, UnsupportedVersionError if its
    brokers are too old, and NetworkError or KafkaTimeoutError if one cannot be reached.
    """
    key = (fingerprint(config), options.ledger_topic, options.prefix)
    kept = _kept.pop(key, None) or _Kept(config, options)
    try:
        with _naming_missing_permissions(options):
            if checks and not kept.is_checked:
                _check(kept.admin, config, options)
                kept.is_checked = True
            yield TwoPhaseCommit(
                kept.admin,
                kept.ledger,
                clock=time.time,
                timer=time.monotonic,
                name=f"{platform.node()}, process {os.getpid()}",
                observe=observe,
            )
    except BaseException:
        kept.admin.close()
        raise
    _kept[key] = kept
    while len(_kept) > _MAX_KEPT:
        _kept.pop(next(iter(_kept))).admin.close()


def step_timeout(config: ProducerConfig) -> float:
    """Return how long a step may take, in seconds."""
    return config.delivery_timeout_ms / 1000


@cache
def slots_of(prefix: str, configuration: str) -> Slots:
    """Return this process's slots; the first call creates their worker id."""
    del configuration  # only a cache key: each configuration has transactional ids of its own
    return Slots(prefix)


os.register_at_fork(after_in_child=slots_of.cache_clear)


class ProducerOfAttempt:
    """The source of one task attempt's producer; implements `Producers`.

    - Each attempt has an open transaction of its own, which begins with the first row. Its
      transactional id belongs to this process, and no other attempt of the plan uses it
      (`exactly_once.transactional_ids`). InitProducerId precedes each transaction, so that a
      late EndTxn for the previous one cannot end this one.
    - Once every record is acknowledged, the transaction is left open for the driver. After a
      failure it is left open too: the driver aborts every transaction that no task has reported.
    - A worker that runs many tasks of one plan uses an id for each, but few producers: the next
      task takes the producer of the last one from the worker's cache, and gives it another id.
    """

    def __init__(
        self,
        config: ProducerConfig,
        plan: Plan,
        *,
        transaction_timeout_ms: int,
        stage: int | None = None,
        start: Start = start_producer,
        cache: ProducerCache | None = None,
    ) -> None:
        self._config = config
        self._plan = plan
        self._transaction_timeout_ms = transaction_timeout_ms
        self._stage = stage
        self._start = start
        self._cache = cache or producer_cache()
        configuration = fingerprint(config) + str(transaction_timeout_ms)
        self._key = CacheKey(plan.prefix, configuration)
        self._slots = slots_of(plan.prefix, configuration)
        self._worker_id: WorkerId | None = None
        self._prepared: PreparedTransaction | None = None

    def take(self) -> KafkaProducer:
        """Begin a transaction and return its producer."""
        self._worker_id = self._slots.take(self._plan.generation)
        transactional_id = str(self._worker_id)
        producer = self._cache.take_producer(self._key, self._stage) or self._start(
            replace(
                self._config,
                transactional_id=transactional_id,
                transaction_timeout_ms=self._transaction_timeout_ms,
            )
        )
        try:
            producer.init_transactions(transactional_id)
            producer.begin_transaction()
        except BaseException:
            self.failed(producer)
            raise
        return producer

    def finished(self, producer: KafkaProducer) -> None:
        """Prepare the fully acknowledged transaction and leave it open for the driver."""
        try:
            self._prepared = producer.prepare_transaction()
        except BaseException:
            self.failed(producer)
            raise
        self._release()
        self._cache.put_producer(self._key, producer, self._stage)

    def failed(self, producer: KafkaProducer) -> None:
        """Close the producer at once; its transaction stays open and belongs to no batch."""
        close_quietly(producer)
        self._release()

    def prepared(self, acks: tuple[tuple[TopicPartition, PartitionAcks], ...]) -> Prepared | None:
        """Return what the driver needs to commit; None if the attempt wrote nothing."""
        if self._prepared is None or self._worker_id is None or not acks:
            return None
        ranges = tuple(
            OffsetRange(
                written,
                partition_acks.first_offset,
                partition_acks.last_offset,
                partition_acks.records,
            )
            for written, partition_acks in acks
        )
        winner = Winner(str(self._worker_id), *self._prepared, ranges)
        return Prepared(self._plan.generation, winner)

    def _release(self) -> None:
        if self._worker_id is None:
            raise RuntimeError("no producer was taken")
        self._slots.release(self._worker_id)


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
        pacer: Pacer | None = None,
        bad_rows: BadRowWriter | None = None,
        samples_keys: bool = False,
    ) -> TaskResult:
        """Write a task's rows in a transaction of their own and leave it open (in the worker).

        `stage` is the id of the task's stage; `pacer`, `bad_rows` and `samples_keys` are those of
        `write_rows`.

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
            written = write_rows(
                batches,
                producers=producers,
                topic=topic,
                config=self.config,
                pacer=pacer,
                bad_rows=bad_rows,
                samples_keys=samples_keys,
            )
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
                budget = Budget.of(time.monotonic, _LEDGER_SECONDS)
                state = _ledger(admin, self.options).read(budget)
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
        try:
            with two_phase_commit(
                self.config, self.options, observe=observe, checks=False
            ) as protocol:
                protocol.commit(
                    plan,
                    write_id,
                    batch_id,
                    _prepared(messages),
                    timeout=step_timeout(self.config),
                    job=job,
                )
        except WinnerLostError as error:
            paused = sum(message.paced_seconds or 0.0 for message in messages)
            if not paused:
                raise
            raise WinnerLostError(
                f"{error}. Its tasks paused for {paused:,.0f} s in all, because of "
                "maxBytesPerSecond or maxRecordsPerSecond, while the transactions were open: with "
                "a lower rate, a write needs a longer transaction.timeout.ms, or fewer rows at a "
                "time"
            ) from error

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


def _ledger(admin: DriverClient, options: ExactlyOnceOptions) -> Ledger:
    return Ledger(admin, topic=options.ledger_topic, prefix=options.prefix, clock=time.time)


def _check(admin: DriverClient, config: ProducerConfig, options: ExactlyOnceOptions) -> None:
    from spark_kafka_sink.admin.cluster_check import LEADERS_SECONDS

    # As with a producer's transactional calls, but long enough to find that addresses are wrong.
    timeout = min(step_timeout(config), max(config.max_block_ms / 1000, LEADERS_SECONDS))
    # This comes first, before anything is created or written.
    admin.require_transaction_apis(_NEEDS_3_0, timeout=timeout)
    ensure_ledger_topic(
        admin,
        options.ledger_topic,
        replication_factor=options.ledger_replication_factor,
        timeout=timeout,
    )
    try:
        # A writer may lack the right to read brokers' settings, but the coordinator checks this.
        admin.init_producer_id(
            ledger_id(options.prefix),
            transaction_timeout_ms=options.transaction_timeout_ms,
            timeout=timeout,
        )
    except BrokerError as error:
        if error.name != _INVALID_TIMEOUT:
            raise
        raise ConfigError(
            f"kafka.transaction.timeout.ms is {options.transaction_timeout_ms}, which exceeds the "
            "brokers' transaction.max.timeout.ms: lower it to that limit, as long as it remains "
            "longer than a stage of this write takes; otherwise raise the brokers' limit"
        ) from None


@contextmanager
def _naming_missing_permissions(options: ExactlyOnceOptions) -> Iterator[None]:
    try:
        yield
    except BrokerError as error:
        if not error.name.endswith(_AUTHORIZATION_FAILED):
            raise
        raise BrokerError(
            f"{error}. An exactly-once write requires WRITE and DESCRIBE on transactional ids that "
            f"begin with '{options.prefix}.', and READ, WRITE, DESCRIBE and DESCRIBE_CONFIGS on "
            f"ledgerTopic {options.ledger_topic!r}, with CREATE if that topic does not exist",
            code=error.code,
            name=error.name,
        ) from error


def _prepared(messages: Sequence[KafkaCommitMessage]) -> list[Prepared]:
    parts = [message.transactional for message in messages]
    return [part.prepared for part in parts if part is not None and part.prepared is not None]
