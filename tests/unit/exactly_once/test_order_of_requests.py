"""The driver sends the requests of the model's steps in the order of the model's steps.

`tests/model` proves that other orders lose or duplicate rows: listing after the claim or after the
decision, for example. Here the model and a real driver go through the same events.
"""

from __future__ import annotations

from contextlib import suppress

import pytest

from spark_kafka_sink.exactly_once.two_phase_commit import Point
from tests.model.exactly_once_state import Proto
from tests.support.exactly_once.exactly_once_sites import embedded_world
from tests.support.exactly_once.exactly_once_world import CrashError, Worker, each_once, rows
from tests.support.exactly_once.model_run import ModelRun
from tests.support.exactly_once.recorded_requests import Names, record


class Both:
    """The model and a world, in which the same happens."""

    def __init__(self, world, run):
        self.world, self.run = world, run
        self.names = Names()
        self.drivers = []
        self.plans = []

    def start(self, *, observe=None):
        """Start a driver in both."""
        self.run.happen(f"D{len(self.drivers) + 1} starts")
        driver = self.world.driver(observe=observe)
        self.drivers.append((driver, record(self.world, self.names, driver)))

    def plan(self):
        """Plan with the last driver; return the requests of the model and of the code."""
        driver, client = self.drivers[-1]
        self.plans.append(driver.plan())
        return self.run.drive(len(self.drivers) - 1), client.take()

    def write(self):
        """Run all unfinished task attempts; return the messages that the driver takes."""
        prepared = {}
        for task in self.run.tasks:
            partition = task[3]
            attempt = Worker(self.world, self.world.prefix).begin(self.plans[task[0]], partition)
            name, begun = self.run.begin(task)
            one = attempt.write(*rows(0)[partition])
            self.names.add(one.transaction, name)
            self.run.write(begun)
            prepared.setdefault(partition, one)
        return list(prepared.values())

    def commit(self, prepared, *, until=None):
        """Commit with the last driver; return the requests of the model and of the code."""
        driver, client = self.drivers[-1]
        with suppress(CrashError):
            driver.commit(self.plans[-1], prepared)
        return self.run.drive(len(self.drivers) - 1, until=until), client.take()


def die_when_decided(point):
    """Crash after the decision."""
    if point is Point.DECIDED:
        raise CrashError


@pytest.fixture(params=[1, 2], ids=["tv1", "tv2"])
def both(request):
    """Return a function that starts the model and a world, for TV1 and TV2."""
    with embedded_world(transaction_version=request.param) as world:
        yield lambda **budgets: Both(world, ModelRun(Proto("ours", tv=request.param), **budgets))


def test_a_batch_sends_the_requests_of_the_model(both):
    """Plan and commit of a first batch send the requests of the model's steps, in order."""
    both = both()
    both.start()
    expected, actual = both.plan()
    assert expected == actual
    expected, actual = both.commit(both.write())
    assert expected == actual
    assert each_once(0) == both.world.visible()


def test_a_commit_with_a_loser_sends_the_requests_of_the_model(both):
    """A commit lists a loser before the decision and aborts it after, as the model does."""
    both = both(attempts=1)
    both.start()
    both.plan()
    both.run.happen("launches b0.p1.a1")
    expected, actual = both.commit(both.write())
    assert expected == actual
    assert (each_once(0), []) == (both.world.visible(), both.world.left_open())


def test_a_plan_with_orphans_sends_the_requests_of_the_model(both):
    """A plan lists a dead driver's transactions before its claim and aborts them after it."""
    both = both()
    both.start()
    both.plan()
    both.write()
    both.start()
    expected, actual = both.plan()
    assert expected == actual
    expected, actual = both.commit(both.write())
    assert expected == actual
    assert (each_once(0), []) == (both.world.visible(), both.world.left_open())


def test_a_plan_with_a_decision_sends_the_requests_of_the_model(both):
    """A plan commits a dead driver's decision, with a loser, in the order of the model."""
    both = both(attempts=1)
    both.start(observe=die_when_decided)
    both.plan()
    both.run.happen("launches b0.p1.a1")
    expected, actual = both.commit(both.write(), until="DECISION")
    assert expected == actual
    both.start()
    expected, actual = both.plan()
    assert expected == actual
    assert (each_once(0), []) == (both.world.visible(), both.world.left_open())


def test_an_abort_sends_the_requests_of_the_model(both):
    """An abort claims a generation before it aborts, as the model does."""
    both = both(aborts=1)
    both.start()
    both.plan()
    prepared = both.write()
    both.run.happen("Spark calls abort()")
    driver, client = both.drivers[-1]
    client.take()
    assert driver.abort(both.plans[-1], prepared)
    assert both.run.abort() == client.take()
    assert ([], []) == (both.world.visible(), both.world.left_open())


def _requests(protocol):
    """Return the requests of a run of the model with all that the tests above do."""
    run = ModelRun(protocol, attempts=1, aborts=1)
    requests = []

    def batch(driver):
        run.happen(f"D{driver + 1} starts")
        requests.append(run.drive(driver))
        if not driver:
            run.happen("launches b0.p1.a1")
        for task in run.tasks:
            run.write(run.begin(task)[1])

    batch(0)
    run.happen("Spark calls abort()")
    requests.append(run.abort())
    batch(1)
    requests.append(run.drive(1, until="DECISION"))
    batch(2)
    return requests


@pytest.mark.parametrize(
    "mistake",
    [
        {"fence": "after"},
        {"claim_first": True},
        {"claim": False},
        {"orphan": False},
        {"loser": "after"},
        {"precheck": False},
        {"how": "init"},
        {"cb": "naive"},
        {"cb": "verify_nomark"},
        {"commit": "blind"},
        {"late_rf": True},
        {"plan_in_commit": True},
    ],
    ids=str,
)
def test_a_mistake_in_the_models_steps_changes_the_requests(mistake):
    """The requests of a mistaken model differ, so the tests above fail if the model changes."""
    assert _requests(Proto("ours")) != _requests(Proto("mistaken", **mistake))
