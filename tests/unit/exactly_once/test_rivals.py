"""Rivals that run between any two requests of a driver."""

from __future__ import annotations

from contextlib import suppress
from itertools import count

import pytest

from spark_kafka_sink.admin.transaction_values import EndOutcome, TransactionEnd
from spark_kafka_sink.devbroker.net.faults import AnswerError
from spark_kafka_sink.exactly_once.errors import OvertakenError, WinnerLostError
from spark_kafka_sink.exactly_once.transitions import last_committed
from spark_kafka_sink.exactly_once.two_phase_commit import Point
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.exactly_once.exactly_once_world import (
    QUERY,
    TIMEOUT,
    CrashError,
    Worker,
    each_once,
)
from tests.support.exactly_once.striking import strike_before_requests

_LOST = (OvertakenError, WinnerLostError)


class Round:
    """A driver that plans and commits a batch, and a rival that strikes before one request."""

    def __init__(self, world, batch_id, position):
        self.world, self.batch_id, self.position = world, batch_id, position
        #: The APIs of the driver's requests so far, without repetitions and look-ups.
        self.requests = []
        self.plan = None
        self.prepared = []
        self.driver = world.driver("first")
        strike_before_requests(self.driver, self._strike)

    def is_ready(self):
        """Return whether the rival can strike by now."""
        return True

    def rival(self):
        """Run the rival."""

    def check(self, *, committed):
        """Check what the driver and the rival have done; `committed` is by the driver."""

    def _strike(self, what):
        [api, *_] = what.split()
        if api == "FindCoordinator" or self.requests[-1:] == [api] or not self.is_ready():
            return
        self.requests.append(api)
        if len(self.requests) == self.position + 1:
            self.rival()

    def run(self):
        """Run both; return whether the rival has struck."""
        committed = False
        with suppress(*_LOST):
            self.plan = self.driver.plan()
            if self.plan.must_write(QUERY, self.batch_id):
                self.prepared = self.world.worker.run(self.plan, self.batch_id)
                self.world.worker.begin(self.plan, 0).write("a loser's row")
                self.driver.commit(self.plan, self.prepared, self.batch_id)
                committed = True
        self.check(committed=committed)
        return len(self.requests) > self.position


class Finishing(Round):
    """The rival commits the batch."""

    def rival(self):
        """Plan and commit."""
        self.world.finish(self.batch_id, driver=self.world.driver("rival"))


class Dying(Round):
    """The rival dies between the commits of its two winners."""

    def rival(self):
        """Plan, decide, and commit one of two winners."""
        driver = self.world.dying(Point.DECIDED)
        plan = driver.plan()
        if not plan.must_write(QUERY, self.batch_id):
            return
        prepared = self.world.worker.run(plan, self.batch_id)
        with suppress(CrashError):
            driver.commit(plan, prepared, self.batch_id)
        name, producer, rules, *_ = prepared[0].transaction
        end = TransactionEnd(name, producer, True, rules)
        assert driver.admin.end_transaction(end, timeout=TIMEOUT).outcome is EndOutcome.ENDED


class Writing(Round):
    """The rival plans and writes, and commits when the driver has ended."""

    theirs = None

    def rival(self):
        """Plan the batch, or the next one if the driver has decided it, and write."""
        driver = self.world.driver("rival")
        plan = driver.plan()
        batch_id = self.batch_id + (not plan.must_write(QUERY, self.batch_id))
        # A worker of its own, since transactional ids that the driver knows are not losers.
        worker = Worker(self.world, self.world.prefix)
        self.theirs = driver, plan, batch_id, worker.run(plan, batch_id)

    def check(self, *, committed):
        """Check that the driver with the later generation has lost nothing."""
        if self.theirs is None:
            assert committed
            return
        driver, plan, batch_id, prepared = self.theirs
        if plan.generation > self.plan.generation:
            driver.commit(plan, prepared, batch_id)
        else:
            assert committed
            with pytest.raises(_LOST):
                driver.commit(plan, prepared, batch_id)


class Aborting(Round):
    """Spark aborts the batch while its commit is running."""

    aborted = None

    def is_ready(self):
        """Return whether the tasks have written: the commit is running."""
        return bool(self.prepared)

    def rival(self):
        """Abort what the tasks have written."""
        other = self.world.driver("abort")
        self.aborted = other.abort(self.plan, self.prepared, self.batch_id)

    def check(self, *, committed):
        """Check that either the commit or the abort has succeeded."""
        assert (not self.aborted) == committed


def strike_everywhere(world, kind):
    """Run a round for each request of a driver, and check the rows of all rounds."""
    after = world.driver("after")
    for position in count():
        # A rival may write a second batch.
        batch_id = 2 * position
        made = kind(world, batch_id, position)
        struck = made.run()
        plan = after.plan()
        for one in (batch_id, batch_id + 1):
            if one >= last_committed(plan.writes.get(QUERY)) and plan.must_write(QUERY, one):
                after.commit(plan, world.worker.run(plan, one), one)
                plan = after.plan()
        if not struck:
            break
        world.worker.begin(plan, 0).write("an orphan of the next round")
    assert each_once(*range(batch_id + 2)) == world.visible()
    assert [] == world.left_open()
    return made.requests


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Finishing, Dying, Writing, Aborting])
def test_a_rival_can_run_between_any_two_requests(tv2, kind):
    """A rival before any request of a driver loses no row, and the later claim prevails."""
    requests = strike_everywhere(tv2, kind)
    assert {"InitProducerId", "ListTransactions", "Produce", "EndTxn(commit)"} <= set(requests)


@pytest.mark.parametrize("kind", [Finishing, Dying, Writing])
def test_a_rival_can_run_while_the_ledger_is_fenced(tv2, kind):
    """A rival between a fence that got no final answer and its repetition loses no row."""
    made = kind(tv2, 0, 0)
    unanswered = AnswerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, handled=True)
    fences = []

    def strike(what):
        if what.startswith("InitProducerId"):
            fences.append(what)
            if len(fences) == 1:
                tv2.broker.on(ApiKey.INIT_PRODUCER_ID, unanswered, times=1)
            elif len(fences) == 2:
                made.rival()

    strike_before_requests(made.driver, strike)
    made.run()
    tv2.finish(0)
    tv2.finish(1)
    assert (each_once(0, 1), []) == (tv2.visible(), tv2.left_open())
