"""The driver's side of exactly-once writes: plan, commit and abort.

    plan      before the tasks: take over the prefix; finish or abort earlier transactions
    write     in each task attempt: write in its own transaction, flush it and leave it open
    commit    after the tasks: record the winners in the ledger, then commit all of them
    abort     after a failure: abort exactly the tasks' open transactions, unless decided

`plan` runs once per batch, in any process. The plan is pickled to the tasks, and returns to
`commit` and `abort` with their messages. Constructing these objects sends no requests, since Spark
creates a writer before every call.

`transitions` defines which actions are legal. Each step fences the ledger, reads it, and appends at
most one claim or decision. If another driver writes at the same time, the step starts again and
learns from the ledger which driver was first.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError
from spark_kafka_sink.exactly_once import recovery
from spark_kafka_sink.exactly_once.errors import (
    LedgerFencedError,
    LedgerOutcomeUnknownError,
    MixedError,
    OvertakenError,
    VoidError,
    WinnerLostError,
)
from spark_kafka_sink.exactly_once.ledger import Budget, Ledger, LedgerChanges
from spark_kafka_sink.exactly_once.ledger_entries import LedgerState, decided_writes
from spark_kafka_sink.exactly_once.ledger_records import Claim, Winner, WriteRecord
from spark_kafka_sink.exactly_once.plan import (
    Job,
    Plan,
    Prepared,
    check_open,
    check_same_job,
    describe_takeover,
    is_ours,
    refusal,
    winners_of,
    writes_for_plan,
)
from spark_kafka_sink.exactly_once.transitions import (
    Verdict,
    WriteState,
    decided,
    end_of,
    next_generation,
    verdict,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spark_kafka_sink.admin.driver_client import DriverClient
    from spark_kafka_sink.exactly_once.recovery import OpenTransaction

logger = logging.getLogger(__name__)

_RETRIABLE: Final = (LedgerFencedError, LedgerOutcomeUnknownError)
#: The most jobs that one plan drops from the ledger: a plan after a long pause must not take long.
MAX_FORGOTTEN: Final = 500


class Point(Enum):
    """A named point of the protocol at which a driver can die; reported right after that step.

    Each member says what is durable there. docs/internals/exactly-once-protocol.md contains the
    table, and the tests kill a driver at each point.
    """

    #: Plan: the ledger is fenced and read.
    PLAN_FENCED = "plan: ledger fenced and read"
    #: Plan: the winners of all decided writes are committed; the ledger does not record it yet.
    ROLLED_FORWARD = "plan: rolled forward"
    #: Plan: the transactions to abort are listed; no generation is claimed yet.
    LISTED = "plan: open transactions listed"
    #: Plan: the claim and the outcomes of decided writes are durable; nothing is aborted yet.
    CLAIMED = "plan: claimed"
    #: Plan: the listed transactions are aborted.
    SWEPT = "plan: orphans aborted"
    #: Commit: the ledger is fenced and read.
    COMMIT_FENCED = "commit: ledger fenced and read"
    #: Commit: every winner is open; the losers are listed.
    CHECKED = "commit: winners checked"
    #: Commit: the decision is durable; no winner is committed yet.
    DECIDED = "commit: decided"
    #: Commit: every winner is committed; the ledger does not record it yet.
    COMMITTED = "commit: winners committed"
    #: Commit: the ledger records that the batch is done; losers are still open.
    DONE = "commit: done"
    #: Abort: the ledger is fenced and read.
    ABORT_FENCED = "abort: ledger fenced and read"
    #: Abort: no older driver can decide any more; nothing is aborted yet.
    ABORT_CLAIMED = "abort: claimed"


class TwoPhaseCommit:
    """The driver's steps for the writes of one prefix; the module docstring describes them."""

    def __init__(
        self,
        admin: DriverClient,
        ledger: Ledger,
        *,
        clock: Callable[[], float],
        timer: Callable[[], float],
        name: str,
        observe: Callable[[Point], None] = lambda _: None,
    ) -> None:
        """Store the arguments; send no request.

        `clock` returns seconds since 1970, and may be set; `timer` returns seconds for time-outs.
        `name` identifies this process to an operator. `observe` is called at each named point.
        """
        self._admin = admin
        self._ledger = ledger
        self._clock = clock
        self._timer = timer
        self._name = name
        self._observe = observe

    @property
    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    # --- plan

    def plan(self, write_id: str | None, *, timeout: float, job: Job | None = None) -> Plan:
        """Take over the prefix and return the plan; `write_id` is None if it is not known yet.

        Rolls forward every decided write of the prefix, whichever driver decided it, and then
        aborts every open transaction. Raises MixedError if an operator must resolve the write,
        CommitPendingError if a decided write cannot be finished, ExactlyOnceError if the `job` was
        committed before but to another topic, and other KafkaErrors.
        """
        budget = Budget.of(self._timer, timeout)
        last: KafkaError | None = None
        for _ in range(recovery.MAX_STARTS):
            state = self._ledger.fence_and_read(budget)
            self._observe(Point.PLAN_FENCED)
            ends = self._roll_forward(state, budget)
            self._observe(Point.ROLLED_FORWARD)
            writes = writes_for_plan(state, ends, write_id)
            if job is not None and write_id is not None:
                check_same_job(self._ledger.prefix, write_id, writes.get(write_id), job)
            mixed = {
                known: recovery.describe_mixed(known, record)
                for known, record in writes.items()
                if record.write.state is WriteState.MIXED
            }
            # If the planned write is mixed, this call claims and aborts nothing.
            is_mixed = write_id in mixed
            # List before the claim, so that only transactions of older generations are listed.
            listed = (
                [] if is_mixed else recovery.list_open(self._admin, self._ledger.prefix, budget)
            )
            self._observe(Point.LISTED)
            now_ms = self._now_ms
            claim = Claim(next_generation(state.generation, now_ms), now_ms, self._name)
            changes = LedgerChanges(
                writes=ends,
                claim=None if is_mixed else claim,
                forget=state.expired(now_ms, most=MAX_FORGOTTEN) - {write_id},
            )
            try:
                if ends or not is_mixed:
                    self._ledger.append(changes, budget)
            except _RETRIABLE as error:
                last = error
                continue
            if is_mixed:
                raise MixedError("; ".join(mixed.values()))
            self._observe(Point.CLAIMED)
            recovery.abort_exactly(self._admin, listed, budget)
            self._observe(Point.SWEPT)
            return Plan(
                self._ledger.prefix,
                claim.generation,
                now_ms,
                {known: record.write for known, record in writes.items()},
                mixed,
            )
        raise last or KafkaTimeoutError("planning was not attempted")

    def _roll_forward(self, state: LedgerState, budget: Budget) -> dict[str, WriteRecord]:
        pending = decided_writes(state)
        ends = recovery.roll_forward(self._admin, pending, now_ms=self._now_ms, budget=budget)
        for write_id, record in ends.items():
            if record.write.state is WriteState.MIXED:
                logger.error("%s", recovery.describe_mixed(write_id, record))
            else:
                logger.info(
                    "batch %d of %r, which another driver had decided, is now %s",
                    record.write.batch_id,
                    write_id,
                    record.write.state.value,
                )
        return ends

    # --- commit

    def commit(
        self,
        plan: Plan,
        write_id: str,
        batch_id: int,
        prepared: Sequence[Prepared],
        *,
        timeout: float,
        job: Job | None = None,
    ) -> None:
        """Decide that the batch consists of these transactions, and commit them all.

        A stream's batch without transactions has no rows and is not recorded. A job's is, since the
        job must not run again.

        Raises OvertakenError, WinnerLostError, RolledBackError, or MixedError for an earlier batch,
        before the decision: nothing of this batch is visible. After the decision, raises
        CommitPendingError (the next plan commits the rest), VoidError (nothing is visible, and the
        batch must be written again), MixedError, or OvertakenError (the write has moved on).
        """
        winners = winners_of(plan, prepared)
        if not winners and job is None:
            return
        budget = Budget.of(self._timer, timeout)
        record, losers = self._decide(plan, write_id, batch_id, winners, job=job, budget=budget)
        if record.write.state is WriteState.DECIDED:
            self._finish(write_id, record, budget)
        self._observe(Point.DONE)
        recovery.abort_exactly(self._admin, losers, budget)

    def _decide(
        self,
        plan: Plan,
        write_id: str,
        batch_id: int,
        winners: tuple[Winner, ...],
        *,
        job: Job | None,
        budget: Budget,
    ) -> tuple[WriteRecord, list[OpenTransaction]]:
        """Append the decision; return its record and the losers listed before it.

        If an earlier attempt was appended after all, the record is the ledger's, perhaps ended.
        """
        losers: list[OpenTransaction] = []
        last: KafkaError | None = None
        for _ in range(recovery.MAX_STARTS):
            state = self._ledger.fence_and_read(budget)
            self._observe(Point.COMMIT_FENCED)
            known = state.writes.get(write_id)
            before = None if known is None else known.write
            ruling = verdict(state.generation, plan.generation, before, batch_id)
            if ruling is Verdict.DECIDED and known is not None and is_ours(known, plan, winners):
                return known, losers
            if ruling is not Verdict.DECIDE:
                raise refusal(ruling, plan, write_id, batch_id, state)
            # List before the decision, so that no later driver's transactions are listed.
            described, losers = recovery.describe_and_list_open(
                self._admin,
                self._ledger.prefix,
                [winner.transactional_id for winner in winners],
                budget,
            )
            now_ms = self._now_ms
            try:
                for winner in winners:
                    check_open(
                        winner, described[winner.transactional_id], plan.planned_at_ms, now_ms
                    )
            except WinnerLostError:
                # Another driver may just have claimed the prefix and aborted the transaction.
                state = self._ledger.read(budget)
                if state.generation > plan.generation:
                    ruling = Verdict.OVERTAKEN
                    raise refusal(ruling, plan, write_id, batch_id, state) from None
                raise
            self._observe(Point.CHECKED)
            decision = WriteRecord(
                write=decided(before, batch_id, plan.generation),
                updated_at_ms=now_ms,
                expires_at_ms=None if job is None else now_ms + job.retention_ms,
                topic=None if job is None else job.topic,
                winners=winners,
            )
            try:
                self._ledger.append(LedgerChanges(writes={write_id: decision}), budget)
            except _RETRIABLE as error:
                last = error
                continue
            self._observe(Point.DECIDED)
            return decision, losers
        raise last or KafkaTimeoutError("the commit was not attempted")

    def _finish(self, write_id: str, record: WriteRecord, budget: Budget) -> None:
        """Commit all winners of a decision and record its outcome."""
        fates = recovery.winner_fates(self._admin, record.winners, budget)
        if end_of(fates) is not WriteState.DONE:
            self._settle(write_id, record, budget)
            return
        self._observe(Point.COMMITTED)
        done = recovery.with_fates(record, fates, now_ms=self._now_ms)
        try:
            self._ledger.append(LedgerChanges(writes={write_id: done}), budget)
        except KafkaError as error:
            # All rows are visible. The next driver repeats the commits and records the outcome.
            logger.info(
                "batch %d is done, but the ledger does not record it yet: %s",
                record.write.batch_id,
                error,
            )

    def _settle(self, write_id: str, record: WriteRecord, budget: Budget) -> None:
        """Record the outcome of a decision that was not fully committed; raise its error.

        If another driver has already recorded an outcome, that one holds. Raises VoidError,
        MixedError, or OvertakenError if the write has moved on; returns if the batch is done.
        """
        last: KafkaError | None = None
        for _ in range(recovery.MAX_STARTS):
            state = self._ledger.fence_and_read(budget)
            now = state.writes.get(write_id)
            if now is None or now.write[:2] != record.write[:2]:
                raise OvertakenError(
                    f"{write_id!r} has moved on since batch {record.write.batch_id} was decided: "
                    f"{describe_takeover(state, record.write.generation)}"
                )
            if now.write.state is WriteState.DECIDED:
                fates = recovery.winner_fates(self._admin, now.winners, budget)
                now = recovery.with_fates(now, fates, now_ms=self._now_ms)
                try:
                    self._ledger.append(LedgerChanges(writes={write_id: now}), budget)
                except _RETRIABLE as error:
                    last = error
                    continue
            if now.write.state is WriteState.VOID:
                raise VoidError(
                    f"batch {record.write.batch_id} of {write_id!r} was decided, but all of its "
                    "transactions had timed out or been aborted; none of it is visible, and it "
                    "must be written again"
                )
            if now.write.state is WriteState.MIXED:
                raise MixedError(recovery.describe_mixed(write_id, now))
            return
        raise last or KafkaTimeoutError("finishing the commit was not attempted")

    # --- abort

    def abort(
        self,
        plan: Plan,
        write_id: str,
        batch_id: int,
        prepared: Sequence[Prepared],
        *,
        timeout: float,
    ) -> bool:
        """Abort the tasks' open transactions; return False if they were left open.

        Spark also calls this, with all messages, after `commit` failed half-way, and while it is
        still running. So a batch that is decided or taken over is left alone, and a claim prevents
        the commit from deciding before anything is aborted. The next plan aborts transactions that
        remain open.
        """
        transactions = [task.transaction for task in prepared if task.transaction.ranges]
        if not transactions:
            return False
        budget = Budget.of(self._timer, timeout)
        state = self._ledger.fence_and_read(budget)
        self._observe(Point.ABORT_FENCED)
        known = state.writes.get(write_id)
        before = None if known is None else known.write
        if verdict(state.generation, plan.generation, before, batch_id) is not Verdict.DECIDE:
            return False
        now_ms = self._now_ms
        claim = Claim(next_generation(state.generation, now_ms), now_ms, f"{self._name} (abort)")
        try:
            self._ledger.append(LedgerChanges(claim=claim), budget)
        except _RETRIABLE as error:
            logger.info("left the tasks' transactions for the next start to abort: %s", error)
            return False
        self._observe(Point.ABORT_CLAIMED)
        recovery.abort_exactly(
            self._admin,
            [
                recovery.OpenTransaction(
                    transaction.transactional_id,
                    transaction.producer,
                    tuple(written.topic_partition for written in transaction.ranges),
                )
                for transaction in transactions
            ],
            budget,
        )
        return True
