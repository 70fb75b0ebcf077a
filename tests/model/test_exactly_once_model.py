"""The exactly-once protocol, explored with the code's own transition table, and with mistakes."""

from __future__ import annotations

import pytest

from spark_kafka_sink.exactly_once import transitions
from tests.model import exactly_once_state
from tests.model.exactly_once_search import describe_path, explore
from tests.model.exactly_once_state import Conf, Proto

ONE = Conf("one batch")
TWO = Conf("two batches", nb=2)
QUERIES = Conf("two queries under one prefix", qseq=(0, 1))
JOBS = Conf("a job, run twice at once", job=True)
ATTEMPTS = Conf("a second attempt", spec=1)
TIMEOUT = Conf("a time-out", tmo=1)
LOST = Conf("a marker of the ledger is lost", lost=1)
ABORT = Conf("a call of abort()", cb=1)
TWO_ATTEMPTS = Conf("two batches, a second attempt", nb=2, spec=1)
TWO_TIMEOUTS = Conf("two batches, two time-outs", nb=2, tmo=2)

TV1 = Proto("TV1", tv=1)
TV2 = Proto("TV2")


def in_soak(*parameters):
    """Leave a mistake that takes tens of thousands of states to `make soak`."""
    return pytest.param(*parameters, marks=pytest.mark.soak)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("proto", "conf"),
    [
        *((TV2, conf) for conf in (ATTEMPTS, TWO, QUERIES, JOBS, TIMEOUT, ABORT, LOST)),
        *((TV1, conf) for conf in (QUERIES, JOBS, TIMEOUT)),
    ],
    ids=lambda value: value.name,
)
def test_no_order_of_events_loses_or_duplicates_a_row(proto, conf):
    """No reachable state violates the guarantee, and from each of them a new driver can finish."""
    result = explore(proto, conf)
    assert {} == {wrong: describe_path(way, wrong) for wrong, way in result.violations.items()}
    assert result.finished > 0
    assert bool(conf.tmo) == bool(result.mixed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("conf", "mistake"),
    [
        (ONE, {"plan_in_commit": True}),
        (ONE, {"fence": "after"}),
        (ONE, {"read": "lso"}),
        (ONE, {"commit": "blind"}),
        (ONE, {"commit": "reread"}),
        (ONE, {"claim": False}),
        (ONE, {"claim_first": True}),
        in_soak(ABORT, {"how": "init"}),
        (ATTEMPTS, {"ids": "noatt"}),
        (ONE, {"ids": "att"}),
        in_soak(TWO_ATTEMPTS, {"ids": "run"}),
        (ONE, {"ids": "slot_any"}),
        (TWO, {"loser": "after"}),
        (TIMEOUT, {"void_early": True}),
        (LOST, {"believe": "answer"}),
        (ABORT, {"cb": "naive"}),
        (ABORT, {"cb": "verify_nomark"}),
        (QUERIES, {"ledkey": "prefix"}),
        in_soak(TWO_TIMEOUTS, {"keep_in": False}),
        (QUERIES, {"scope": "own"}),
        (ONE, {"late_rf": True}),
        (TWO, {"fence_winners": True}),
    ],
    ids=lambda value: value.name if isinstance(value, Conf) else str(value),
)
def test_every_mistake_in_the_steps_is_found(conf, mistake):
    """For each mistake there is an order of events that violates the guarantee, step by step."""
    result = explore(Proto("mistaken", **mistake), conf, stop_at_first=True)
    [(wrong, way)] = list(result.violations.items())[:1]
    assert wrong in {"DUP", "LOST", "HALF", "TORN", "FALSE", "STUCK", "UNEVEN", "ILLEGAL"}
    assert describe_path(way, wrong)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "broken"),
    [
        ("last_committed", lambda write: -1 if write is None else write.in_before),
        ("end_of", lambda fates: transitions.WriteState.DONE if list(fates) else None),
        ("verdict", lambda *_: transitions.Verdict.DECIDE),
        ("standing", lambda *_: transitions.Standing.WRITE),
    ],
)
def test_a_mistake_in_the_transition_table_is_found(monkeypatch, function, broken):
    """The model uses the code's own table, so a mistake in the table shows up as a violation."""
    monkeypatch.setattr(transitions, function, broken)
    for module in ("exactly_once_state", "exactly_once_steps"):
        monkeypatch.setattr(f"tests.model.{module}.{function}", broken, raising=False)
    found = [
        explore(Proto("broken table"), conf, stop_at_first=True, max_states=8_000).violations
        for conf in (ONE, TIMEOUT)
    ]
    assert any(found)
    assert exactly_once_state.ended is transitions.ended
