"""Manual operations on a prefix: roll forward and abort, by the same rules as a driver.

Both fence the ledger and read it first. Rolling forward is also the first step of every plan.
Aborting claims a generation before it ends any transaction, so that a running driver can no longer
decide the transactions being aborted. Decided transactions are never aborted, only rolled forward.
Listed transactions are ended by producer id and epoch, so later ones are not affected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.errors import KafkaTimeoutError
from spark_kafka_sink.exactly_once import recovery
from spark_kafka_sink.exactly_once.ledger.errors import LedgerFencedError, LedgerOutcomeUnknownError
from spark_kafka_sink.exactly_once.ledger.ledger import LedgerChanges
from spark_kafka_sink.exactly_once.ledger.ledger_entries import decided_writes
from spark_kafka_sink.exactly_once.ledger.ledger_records import Claim
from spark_kafka_sink.exactly_once.ledger.transitions import next_generation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_kafka_sink.admin.driver_client import DriverClient
    from spark_kafka_sink.errors import KafkaError
    from spark_kafka_sink.exactly_once.ledger.budget import Budget
    from spark_kafka_sink.exactly_once.ledger.ledger import Ledger
    from spark_kafka_sink.exactly_once.ledger.ledger_entries import LedgerState
    from spark_kafka_sink.exactly_once.ledger.ledger_records import WriteRecord
    from spark_kafka_sink.exactly_once.recovery import OpenTransaction

_RETRIABLE = (LedgerFencedError, LedgerOutcomeUnknownError)


def undecided_open(
    admin: DriverClient, prefix: str, state: LedgerState, budget: Budget
) -> list[OpenTransaction]:
    """Return the open transactions of a prefix that belong to no decision."""
    winners = {
        (winner.transactional_id, winner.producer)
        for record in decided_writes(state).values()
        for winner in record.winners
    }
    listed = recovery.list_open(admin, prefix, budget)
    return [
        transaction
        for transaction in listed
        if (transaction.transactional_id, transaction.producer) not in winners
    ]


def roll_forward(
    admin: DriverClient, ledger: Ledger, *, now_ms: int, budget: Budget
) -> Mapping[str, WriteRecord]:
    """Commit the decided writes of the prefix; record and return their outcomes.

    Raises CommitPendingError if a transaction's EndTxn got no final answer.
    """
    last: KafkaError | None = None
    for _ in range(recovery.MAX_STARTS):
        pending = decided_writes(ledger.fence_and_read(budget))
        if not pending:
            return {}
        ends = recovery.roll_forward(admin, pending, now_ms=now_ms, budget=budget)
        try:
            ledger.append(LedgerChanges(writes=ends), budget)
        except _RETRIABLE as error:
            last = error
        else:
            return ends
    raise last or KafkaTimeoutError("rolling forward was not attempted")


class Aborted(NamedTuple):
    """The outcome of aborting a transaction for an operator."""

    transaction: OpenTransaction
    #: None if it was aborted; otherwise why it remains open until its timeout.
    error: KafkaError | None


def abort(
    admin: DriverClient, ledger: Ledger, *, now_ms: int, name: str, budget: Budget
) -> list[Aborted]:
    """Abort the open transactions of a prefix that belong to no decision.

    A driver still running under the prefix can no longer commit its batch; its error message
    contains `name`. If there is nothing to abort, no generation is claimed.
    """
    last: KafkaError | None = None
    for _ in range(recovery.MAX_STARTS):
        state = ledger.fence_and_read(budget)
        # List before the claim, so that only transactions of older generations are listed.
        listed = undecided_open(admin, ledger.prefix, state, budget)
        if not listed:
            return []
        claim = Claim(next_generation(state.generation, now_ms), now_ms, name)
        try:
            ledger.append(LedgerChanges(claim=claim), budget)
        except _RETRIABLE as error:
            last = error
            continue
        errors = recovery.abort_exactly(admin, listed, budget)
        return [Aborted(transaction, errors.get(transaction)) for transaction in listed]
    raise last or KafkaTimeoutError("aborting was not attempted")
