"""The plan that a driver sends to its tasks, their messages, and the checks on both.

The plan goes to the tasks and returns to `commit` and `abort` with their messages, because the
process that ends a batch may not be the one that planned it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from spark_kafka_sink.errors import BrokerError
from spark_kafka_sink.exactly_once import recovery
from spark_kafka_sink.exactly_once.errors import (
    ExactlyOnceError,
    MixedError,
    OvertakenError,
    RolledBackError,
    WinnerLostError,
)
from spark_kafka_sink.exactly_once.transitions import Standing, Verdict, Write, WriteState, standing
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spark_kafka_sink.admin.transaction_values import TransactionDescription
    from spark_kafka_sink.exactly_once.ledger_entries import LedgerState
    from spark_kafka_sink.exactly_once.ledger_records import Winner, WriteRecord

#: The share of its timeout that a winner's transaction must have left at the decision. A commit
#: takes milliseconds, or some seconds if the coordinator is moving to another broker.
SPARE_SHARE: Final = 0.1
MAX_SPARE_SECONDS: Final = 60.0
#: The errors of a producer whose transaction was ended by another client, or timed out.
_ENDED_BY_OTHERS: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH.name,
        ErrorCode.PRODUCER_FENCED.name,
        ErrorCode.INVALID_TXN_STATE.name,
        ErrorCode.TRANSACTION_ABORTABLE.name,
    }
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The instructions of a driver for its tasks; picklable, and free of secrets."""

    prefix: str
    generation: int
    #: Milliseconds since 1970 by the driver's clock: no transaction of this plan is older.
    planned_at_ms: int
    #: The ledger's state of this driver's write, or of all streams if the driver does not know its
    #: write id yet.
    writes: Mapping[str, Write]
    #: For each mixed write, a text that lists what is visible and what is not.
    mixed: Mapping[str, str] = field(default_factory=dict)

    def must_write(self, write_id: str, batch_id: int) -> bool:
        """Return whether a batch must be written; False if it is a replay of a committed one.

        Raises RolledBackError and MixedError, which say what to do.
        """
        write = self.writes.get(write_id)
        current = standing(write, batch_id)
        if current is Standing.MIXED:
            raise MixedError(self.mixed[write_id])
        if current is Standing.ROLLED_BACK:
            raise _rolled_back(write_id, batch_id, write)
        return current is Standing.WRITE


class Prepared(NamedTuple):
    """The message of a task attempt to the driver: its transaction, flushed and left open."""

    generation: int
    transaction: Winner


@dataclass(frozen=True, slots=True)
class Job:
    """A batch job with a write id; the ledger keeps its record so that it runs only once."""

    #: How long after the commit, in milliseconds.
    retention_ms: int
    #: The topic to which it writes; None if its rows name their topics.
    topic: str | None = None


def writes_for_plan(
    state: LedgerState, ends: Mapping[str, WriteRecord], write_id: str | None
) -> dict[str, WriteRecord]:
    """Return the writes for a plan: the one with this id, or all streams if the id is None.

    `ends` are the writes that were rolled forward after the ledger was read.
    """
    if write_id is not None:
        record = ends.get(write_id) or state.writes.get(write_id)
        return {} if record is None else {write_id: record}
    streams = state.streams()
    return {known: ends.get(known, record) for known, record in streams.items()}


def check_same_job(prefix: str, write_id: str, record: WriteRecord | None, job: Job) -> None:
    """Raise ExactlyOnceError if a write was committed before, but to another topic."""
    if record is None or record.write.state is not WriteState.DONE or record.topic == job.topic:
        return
    at = datetime.fromtimestamp(record.updated_at_ms / 1000, tz=UTC)
    raise ExactlyOnceError(
        f"nothing was written: under transactionalIdPrefix {prefix!r}, writeId {write_id!r} is the "
        f"name of a write to {_topic_text(record.topic)}, committed at {at:%Y-%m-%d %H:%M:%S} UTC, "
        f"and this write is to {_topic_text(job.topic)}. Give each write a writeId of its own, for "
        "example with the name of its topic"
    )


def _topic_text(topic: str | None) -> str:
    return "the topics that its rows name" if topic is None else f"topic {topic!r}"


def winners_of(plan: Plan, prepared: Sequence[Prepared]) -> tuple[Winner, ...]:
    """Return the transactions that have rows, as shown by acknowledgements, never by error codes.

    Raises OvertakenError for a message of another plan, and ExactlyOnceError if two messages name
    the same transactional id.
    """
    for task in prepared:
        if task.generation != plan.generation:
            raise OvertakenError(
                f"a task wrote under generation {task.generation}, but this driver has "
                f"{plan.generation}: the task followed the plan of another driver"
            )
    winners = tuple(task.transaction for task in prepared if task.transaction.ranges)
    if len({winner.transactional_id for winner in winners}) != len(winners):
        raise ExactlyOnceError(
            "two tasks used the same transactional id. This is a bug in pykafka: please report it"
        )
    return winners


def is_ours(known: WriteRecord, plan: Plan, winners: tuple[Winner, ...]) -> bool:
    """Return whether a decision is this driver's own, from an append of unknown outcome."""
    return known.write.generation == plan.generation and (
        known.write.state is WriteState.DONE or known.winners == winners
    )


def check_open(
    winner: Winner, description: TransactionDescription | None, planned_at_ms: int, now_ms: int
) -> None:
    """Raise WinnerLostError unless a winner's transaction is open with enough time left."""
    if description is None or not description.is_open or description.producer != winner.producer:
        state = "unknown" if description is None else f"{description.state}, {description.producer}"
        raise WinnerLostError(
            f"the transaction of {winner.transactional_id} ({winner.producer}) is no longer open "
            f"(it is {state}): it timed out, or was aborted by an operator or by another driver "
            "that has taken over. None of the batch is visible. If the write took longer than "
            "transaction.timeout.ms, raise it, up to the brokers' transaction.max.timeout.ms"
        )
    left = _seconds_left(description, planned_at_ms, now_ms)
    if left < _spare_seconds(description.timeout_ms):
        raise WinnerLostError(
            f"the transaction of {winner.transactional_id} times out in {left:.0f} s, "
            "too soon to commit it safely. None of the batch is visible. Raise "
            "transaction.timeout.ms, up to the brokers' transaction.max.timeout.ms"
        )


def _seconds_left(description: TransactionDescription, planned_at_ms: int, now_ms: int) -> float:
    """Return an estimate of the seconds before a transaction times out.

    The start time is by the coordinator's clock. If that is before the plan or in the future, the
    clocks disagree, and the transaction is assumed to be as old as the plan.
    """
    start_ms = description.start_time_ms
    if start_ms is None or not planned_at_ms <= start_ms <= now_ms:
        start_ms = planned_at_ms
    return (description.timeout_ms - (now_ms - start_ms)) / 1000


def _spare_seconds(timeout_ms: int) -> float:
    return min(timeout_ms / 1000 * SPARE_SHARE, MAX_SPARE_SECONDS)


def refusal(
    ruling: Verdict, plan: Plan, write_id: str, batch_id: int, state: LedgerState
) -> ExactlyOnceError:
    """Build the error of a commit that may not decide."""
    known = state.writes.get(write_id)
    if ruling is Verdict.MIXED and known is not None:
        return MixedError(recovery.describe_mixed(write_id, known))
    if ruling is Verdict.ROLLED_BACK:
        return _rolled_back(write_id, batch_id, None if known is None else known.write)
    already = " Another driver has committed this batch." if ruling is Verdict.DECIDED else ""
    return OvertakenError(
        f"this driver did not commit batch {batch_id} of {write_id!r}, and nothing that its tasks "
        f"wrote is visible: {describe_takeover(state, plan.generation)}.{already} Give each query "
        "and job its own transactionalIdPrefix"
    )


def describe_takeover(state: LedgerState, generation: int) -> str:
    """Return a clause naming the driver that has taken over the prefix from `generation`."""
    if state.claim is None:
        return (
            "the ledger no longer has a claim of this prefix: its topic, or the prefix's entries, "
            "were deleted"
        )
    return (
        f"another driver has taken over: {state.claim.claimed_by} claimed generation "
        f"{state.claim.generation}, and this driver has {generation}"
    )


def is_ended_by_others(error: BaseException | None) -> bool:
    """Return whether a task failed because its transaction was ended while it was writing."""
    while error is not None:
        if isinstance(error, BrokerError) and error.name in _ENDED_BY_OTHERS:
            return True
        error = error.__cause__
    return False


def _rolled_back(write_id: str, batch_id: int, write: Write | None) -> RolledBackError:
    last = "a later batch" if write is None else f"batch {write.batch_id}"
    return RolledBackError(
        f"batch {batch_id} of {write_id!r} is not written, since {last} is already committed: the "
        "checkpoint was rolled back to an older state, and the rows would be written twice. "
        "Restore the latest checkpoint, or start with a new one"
    )
