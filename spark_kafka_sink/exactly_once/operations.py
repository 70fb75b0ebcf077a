"""What an operator does about a prefix by hand, by the same rules as a driver.

Both fence the ledger and read it first. Rolling forward is what every plan begins with. Aborting
claims a generation before it ends anything, so that a driver which still runs cannot decide about
what is being aborted; what is decided already is never aborted, but rolled forward. What was listed
is ended by its producer id and epoch, and nothing that began later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.errors import KafkaTimeoutError
from spark_kafka_sink.exactly_once import recovery
from spark_kafka_sink.exactly_once.errors import LedgerFencedError, LedgerOutcomeUnknownError
from spark_kafka_sink.exactly_once.ledger import LedgerChanges
from spark_kafka_sink.exactly_once.ledger_entries import decided_writes
from spark_kafka_sink.exactly_once.ledger_records import Claim
from spark_kafka_sink.exactly_once.transitions import next_generation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_kafka_sink.admin.admin_client import AdminClient
    from spark_kafka_sink.errors import KafkaError
    from spark_kafka_sink.exactly_once.budget import Budget
    from spark_kafka_sink.exactly_once.ledger import Ledger
    from spark_kafka_sink.exactly_once.ledger_entries import LedgerState
    from spark_kafka_sink.exactly_once.ledger_records import WriteRecord
    from spark_kafka_sink.exactly_once.recovery import OpenTransaction

_AGAIN = (LedgerFencedError, LedgerOutcomeUnknownError)


def undecided_open(
    admin: AdminClient, prefix: str, state: LedgerState, budget: Budget
) -> list[OpenTransaction]:
    """List the open transactions of a prefix that belong to no decision."""
    winners = {
        (winner.transactional_id, winner.producer)
        for record in decided_writes(state).values()
        for winner in record.winners
    }
    listed = recovery.list_open(admin, prefix, budget)
    return [one for one in listed if (one.transactional_id, one.producer) not in winners]


def roll_forward(
    admin: AdminClient, ledger: Ledger, *, now_ms: int, budget: Budget
) -> Mapping[str, WriteRecord]:
    """Commit what is decided under the prefix, and note how each write has ended; give those.

    Raises CommitPendingError where a transaction was not answered for good.
    """
    last: KafkaError | None = None
    for _ in range(recovery.MAX_STARTS):
        pending = decided_writes(ledger.fence_and_read(budget))
        if not pending:
            return {}
        ends = recovery.roll_forward(admin, pending, now_ms=now_ms, budget=budget)
        try:
            ledger.append(LedgerChanges(writes=ends), budget)
        except _AGAIN as error:
            last = error
        else:
            return ends
    raise last or KafkaTimeoutError("rolling forward was given no try")


class Aborted(NamedTuple):
    """What became of a transaction that an operator had aborted."""

    transaction: OpenTransaction
    #: None where it is aborted; else why it stays open until its time-out.
    error: KafkaError | None


def abort(
    admin: AdminClient, ledger: Ledger, *, now_ms: int, name: str, budget: Budget
) -> list[Aborted]:
    """Abort the open transactions of a prefix that belong to no decision.

    A driver that still runs under the prefix cannot commit its batch any more, and fails with a
    sentence that has `name` in it. With nothing to abort nothing is claimed.
    """
    last: KafkaError | None = None
    for _ in range(recovery.MAX_STARTS):
        state = ledger.fence_and_read(budget)
        # Listed before the claim: what is listed then can only be of older generations.
        listed = undecided_open(admin, ledger.prefix, state, budget)
        if not listed:
            return []
        claim = Claim(next_generation(state.generation, now_ms), now_ms, name)
        try:
            ledger.append(LedgerChanges(claim=claim), budget)
        except _AGAIN as error:
            last = error
            continue
        errors = recovery.abort_exactly(admin, listed, budget)
        return [Aborted(one, errors.get(one)) for one in listed]
    raise last or KafkaTimeoutError("aborting was given no try")
