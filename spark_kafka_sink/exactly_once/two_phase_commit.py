"""The driver's side of exactly-once: plan, commit, abort; and what a task hands to it.

    plan      before the tasks: take over the prefix, finish or abort what others left behind
    write     in each task attempt: a transaction of its own, flushed and left open
    commit    after the tasks: write down who has won, then commit all of those
    abort     after a failure: end exactly what the tasks left open, unless it was decided

`plan` runs once for a batch, in whatever process; its result is pickled to the tasks, and comes to
`commit` and `abort` with their messages. Making these objects does nothing: Spark makes a writer
before every call.

What may be done is `transitions`' business. Each step fences the ledger, reads it, and appends at
most one entry that counts; where another driver wrote at the same time it begins again, and finds
out by reading who was first.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError
from spark_kafka_sink.exactly_once import recovery
from spark_kafka_sink.exactly_once.budget import Budget
from spark_kafka_sink.exactly_once.errors import (
    LedgerFencedError,
    LedgerOutcomeUnknownError,
    MixedError,
    OvertakenError,
    VoidError,
    WinnerLostError,
)
from spark_kafka_sink.exactly_once.ledger import Ledger, LedgerChanges
from spark_kafka_sink.exactly_once.ledger_entries import LedgerState, decided_writes
from spark_kafka_sink.exactly_once.ledger_records import Claim, Winner, WriteRecord
from spark_kafka_sink.exactly_once.plan import (
    Job,
    Plan,
    Prepared,
    check_open,
    is_ours,
    refusal,
    told_of,
    who_took_over,
    winners_of,
)
from spark_kafka_sink.exactly_once.points import Point
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

    from spark_kafka_sink.admin.admin_client import AdminClient
    from spark_kafka_sink.exactly_once.recovery import OpenTransaction

logger = logging.getLogger(__name__)

_AGAIN: Final = (LedgerFencedError, LedgerOutcomeUnknownError)
#: Jobs that one plan drops from the ledger: a plan after a long pause must not take long.
MOST_FORGOTTEN: Final = 500


class TwoPhaseCommit:
    """See the module. `clock` gives seconds since 1970, `name` this process for an operator."""

    def __init__(
        self,
        admin: AdminClient,
        ledger: Ledger,
        *,
        clock: Callable[[], float],
        name: str,
        observe: Callable[[Point], None] = lambda _: None,
    ) -> None:
        """Do nothing yet. `observe` is told of each named point."""
        self._admin = admin
        self._ledger = ledger
        self._clock = clock
        self._name = name
        self._observe = observe

    @property
    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    # --- plan

    def plan(self, write_id: str | None, *, timeout: float) -> Plan:
        """Take over the prefix, and give the tasks' plan; `write_id` is None if not known yet.

        Every decided write of the prefix is rolled forward, whoever decided it, and then every open
        transaction is aborted. Raises MixedError for a write that an operator has to resolve,
        CommitPendingError where a decided one cannot be finished, and KafkaErrors.
        """
        budget = Budget.of(self._clock, timeout)
        last: KafkaError | None = None
        for _ in range(recovery.MAX_STARTS):
            state = self._ledger.fence_and_read(budget)
            self._observe(Point.PLAN_FENCED)
            ends = self._roll_forward(state, budget)
            self._observe(Point.ROLLED_FORWARD)
            told = told_of(state, ends, write_id)
            mixed = {
                known: recovery.describe_mixed(known, record)
                for known, record in told.items()
                if record.write.state is WriteState.MIXED
            }
            # The plan of one write has nothing to claim, and nothing to abort, if it is mixed.
            is_mixed = write_id in mixed
            # Listed before the claim: what is listed then can only be of older generations.
            listed = (
                [] if is_mixed else recovery.list_open(self._admin, self._ledger.prefix, budget)
            )
            self._observe(Point.LISTED)
            now_ms = self._now_ms
            claim = Claim(next_generation(state.generation, now_ms), now_ms, self._name)
            changes = LedgerChanges(
                writes=ends,
                claim=None if is_mixed else claim,
                forget=state.expired(now_ms, most=MOST_FORGOTTEN) - {write_id},
            )
            try:
                if ends or not is_mixed:
                    self._ledger.append(changes, budget)
            except _AGAIN as error:
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
                {known: record.write for known, record in told.items()},
                mixed,
            )
        raise last or KafkaTimeoutError("planning was given no try")

    def _roll_forward(self, state: LedgerState, budget: Budget) -> dict[str, WriteRecord]:
        pending = decided_writes(state)
        ends = recovery.roll_forward(self._admin, pending, now_ms=self._now_ms, budget=budget)
        for write_id, record in ends.items():
            if record.write.state is WriteState.MIXED:
                logger.error("%s", recovery.describe_mixed(write_id, record))
            else:
                logger.info(
                    "batch %d of %r, which another driver had decided, is %s",
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
        """Decide that these transactions are the batch, and commit them all.

        A stream's batch without a transaction has no rows, and nothing is written down for it; a
        job's is, since it must not run again. Raises before the decision, with nothing visible:
        OvertakenError, WinnerLostError, RolledBackError. After it: CommitPendingError (the next
        plan commits the rest), VoidError (nothing is visible, and the batch is to be written
        again), MixedError.
        """
        winners = winners_of(plan, prepared)
        if not winners and job is None:
            return
        budget = Budget.of(self._clock, timeout)
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
        """Append the decision; give it, or what it has come to, and the losers listed before it."""
        losers: list[OpenTransaction] = []
        last: KafkaError | None = None
        for _ in range(recovery.MAX_STARTS):
            state = self._ledger.fence_and_read(budget)
            self._observe(Point.COMMIT_FENCED)
            known = state.writes.get(write_id)
            before = None if known is None else known.write
            says = verdict(state.generation, plan.generation, before, batch_id)
            if says is Verdict.DECIDED and known is not None and is_ours(known, plan, winners):
                return known, losers
            if says is not Verdict.DECIDE:
                raise refusal(says, plan, write_id, batch_id, state)
            try:
                self._check_open(plan, winners, budget)
            except WinnerLostError:
                # Another driver aborts what it finds open once it has claimed: perhaps just now.
                state = self._ledger.read(budget)
                if state.generation > plan.generation:
                    says = Verdict.OVERTAKEN
                    raise refusal(says, plan, write_id, batch_id, state) from None
                raise
            # Listed before the decision: a later driver's transactions cannot be among them.
            own = {winner.transactional_id for winner in winners}
            losers = [
                one
                for one in recovery.list_open(self._admin, self._ledger.prefix, budget)
                if one.transactional_id not in own
            ]
            self._observe(Point.CHECKED)
            decision = WriteRecord(
                write=decided(before, batch_id, plan.generation),
                updated_at_ms=self._now_ms,
                expires_at_ms=None if job is None else job.expires_at_ms,
                winners=winners,
            )
            try:
                self._ledger.append(LedgerChanges(writes={write_id: decision}), budget)
            except _AGAIN as error:
                last = error
                continue
            self._observe(Point.DECIDED)
            return decision, losers
        raise last or KafkaTimeoutError("the commit was given no try")

    def _check_open(self, plan: Plan, winners: Sequence[Winner], budget: Budget) -> None:
        described = self._admin.describe_transactions(
            [winner.transactional_id for winner in winners],
            timeout=budget.left("describing the winners"),
        )
        now_ms = self._now_ms
        for winner in winners:
            check_open(winner, described[winner.transactional_id], plan.planned_at_ms, now_ms)

    def _finish(self, write_id: str, record: WriteRecord, budget: Budget) -> None:
        """Commit all winners of a decision, and note how it has ended."""
        fates = recovery.winner_fates(self._admin, record.winners, budget)
        if end_of(fates) is not WriteState.DONE:
            self._settle(write_id, record, budget)
            return
        self._observe(Point.COMMITTED)
        done = recovery.with_fates(record, fates, now_ms=self._now_ms)
        try:
            self._ledger.append(LedgerChanges(writes={write_id: done}), budget)
        except KafkaError as error:
            # All is visible: whoever comes next commits what is committed, and notes it.
            logger.info("that batch %d is done is not noted: %s", record.write.batch_id, error)

    def _settle(self, write_id: str, record: WriteRecord, budget: Budget) -> None:
        """Note how a decision has ended that could not be carried out; raises what that means.

        Another driver may have noted it before, by what it saw: then that holds.
        """
        last: KafkaError | None = None
        for _ in range(recovery.MAX_STARTS):
            state = self._ledger.fence_and_read(budget)
            now = state.writes.get(write_id)
            if now is None or now.write[:2] != record.write[:2]:
                raise OvertakenError(
                    f"{write_id!r} has gone on since batch {record.write.batch_id} was decided: "
                    f"{who_took_over(state, record.write.generation)}"
                )
            if now.write.state is WriteState.DECIDED:
                fates = recovery.winner_fates(self._admin, now.winners, budget)
                now = recovery.with_fates(now, fates, now_ms=self._now_ms)
                try:
                    self._ledger.append(LedgerChanges(writes={write_id: now}), budget)
                except _AGAIN as error:
                    last = error
                    continue
            if now.write.state is WriteState.VOID:
                raise VoidError(
                    f"batch {record.write.batch_id} of {write_id!r} was decided, but all of its "
                    "transactions had timed out or been aborted; nothing of it is visible, and it "
                    "is to be written again"
                )
            if now.write.state is WriteState.MIXED:
                raise MixedError(recovery.describe_mixed(write_id, now))
            return
        raise last or KafkaTimeoutError("the end of a decision was given no try")

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
        """Abort what the tasks left open; False where it was left alone.

        Spark calls this with all messages also when `commit` failed half-way, and while it still
        runs: so nothing is done about a batch that is decided or taken over, and the commit is shut
        out by a claim before anything is aborted. What is left open is aborted by the next plan.
        """
        transactions = [one.transaction for one in prepared if one.transaction.ranges]
        if not transactions:
            return False
        budget = Budget.of(self._clock, timeout)
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
        except _AGAIN as error:
            logger.info("the tasks' transactions are left to the next start: %s", error)
            return False
        self._observe(Point.ABORT_CLAIMED)
        recovery.abort_exactly(
            self._admin,
            [
                recovery.OpenTransaction(
                    one.transactional_id,
                    one.producer,
                    tuple(written.topic_partition for written in one.ranges),
                )
                for one in transactions
            ],
            budget,
        )
        return True
