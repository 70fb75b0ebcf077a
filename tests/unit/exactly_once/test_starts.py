"""Steps that are fenced or have an unknown outcome are attempted eight times in all."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from spark_kafka_sink.admin.transaction_values import TransactionDescription
from spark_kafka_sink.exactly_once import operations, recovery
from spark_kafka_sink.exactly_once.errors import LedgerFencedError, LedgerOutcomeUnknownError
from spark_kafka_sink.exactly_once.ledger import Budget
from spark_kafka_sink.exactly_once.ledger_records import OffsetRange, Winner, WriteRecord
from spark_kafka_sink.exactly_once.plan import Plan, Prepared
from spark_kafka_sink.exactly_once.recovery import OpenTransaction
from spark_kafka_sink.exactly_once.transitions import Fate, Write, WriteState
from spark_kafka_sink.exactly_once.two_phase_commit import TwoPhaseCommit
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition

STARTS = 8
PRODUCER = ProducerIdAndEpoch(7, 0)
WINNER = Winner("p.a.0", PRODUCER, 2, (OffsetRange(TopicPartition("t", 0), 5, 9, 5),))
OPEN = OpenTransaction("p.b.0", PRODUCER, (TopicPartition("t", 0),))
NOW = 1_000.0


def record(state):
    return WriteRecord(write=Write(5, 3, state, 4), updated_at_ms=1, winners=(WINNER,))


class _Ledger:
    """A ledger that accepts some appends and refuses all later ones."""

    prefix = "p"

    def __init__(self, kind, writes, *, takes=0):
        self.tries = 0
        self._kind = kind
        self._writes = writes
        self._takes = takes

    def fence_and_read(self, _budget):
        return SimpleNamespace(
            writes=self._writes,
            generation=3,
            claim=None,
            unfinished=lambda: self._writes,
            expired=lambda _now, most: frozenset(),
        )

    def append(self, changes, _budget):
        if self._takes:
            self._takes -= 1
            self._writes.update(changes.writes)
            return
        self.tries += 1
        raise self._kind(f"try {self.tries}")


class _Admin:
    """An admin client for which the winner is the only open transaction."""

    def describe_and_list(self, _ids, _accepts, *, states, pattern, timeout):
        del states, pattern, timeout
        open_winner = TransactionDescription(
            transactional_id="p.a.0",
            state="Ongoing",
            producer=PRODUCER,
            timeout_ms=60_000,
            start_time_ms=None,
            partitions=(),
        )
        return {"p.a.0": open_winner}, []


@pytest.fixture(autouse=True)
def _brokers(monkeypatch):
    """Make one transaction open, decisions roll forward as done, and winners aborted."""
    monkeypatch.setattr(recovery, "list_open", lambda *_, **__: [OPEN])
    monkeypatch.setattr(recovery, "roll_forward", lambda *_, **__: {"w": record(WriteState.DONE)})
    monkeypatch.setattr(recovery, "winner_fates", lambda *_: [Fate.ABORTED])


def resolve(ledger):
    operations.resolve(ledger, "w", skip=True, now_ms=1, budget=Budget(lambda: 0.0, 1.0))


def roll_forward(ledger):
    operations.roll_forward(_Admin(), ledger, now_ms=1, budget=Budget(lambda: 0.0, 1.0))


def abort(ledger):
    operations.abort(_Admin(), ledger, now_ms=1, name="me", budget=Budget(lambda: 0.0, 1.0))


def plan(ledger):
    protocol(ledger).plan("w", timeout=60.0)


def commit(ledger):
    last = Plan("p", 3, int(NOW * 1000), {})
    protocol(ledger).commit(last, "w", 5, [Prepared(3, WINNER)], timeout=60.0)


def protocol(ledger):
    return TwoPhaseCommit(_Admin(), ledger, clock=lambda: NOW, timer=lambda: NOW, name="me")


@pytest.mark.parametrize("kind", [LedgerFencedError, LedgerOutcomeUnknownError])
@pytest.mark.parametrize(
    ("step", "writes", "takes"),
    [
        (resolve, {"w": record(WriteState.MIXED)}, 0),
        (roll_forward, {"w": record(WriteState.DECIDED)}, 0),
        (abort, {}, 0),
        (plan, {}, 0),
        (commit, {}, 0),
        # The decision is appended, but its outcome cannot be.
        (commit, {}, 1),
    ],
)
def test_a_step_is_attempted_eight_times_and_raises_the_last_error(step, writes, takes, kind):
    """A step whose appends keep failing is attempted eight times and raises the last error."""
    ledger = _Ledger(kind, dict(writes), takes=takes)
    with pytest.raises(kind, match=rf"^try {STARTS}$"):
        step(ledger)
    assert STARTS == ledger.tries
