"""Drivers, workers and brokers that are killed with SIGKILL, on real Kafka.

The victim connects through a proxy, whose trace of the broker's answers proves how far the victim
got. Afterwards another driver starts, as Spark would start it; an independent consumer must see
each row exactly once, one of a hundred as a dead letter, and no transaction may stay open.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from spark_kafka_sink.exactly_once.transitions import WriteState
from spark_kafka_sink.exactly_once.two_phase_commit import Point
from spark_kafka_sink.protocol.api_keys import ApiKey
from tests.support.exactly_once.exactly_once_processes import BEGUN, FLUSHED
from tests.support.exactly_once.exactly_once_scene import ROWS, scene_on, seen_once
from tests.support.exactly_once.exactly_once_world import QUERY
from tests.support.faults.broker_trace import Received
from tests.support.faults.fault_rules import Action, Fault, Side
from tests.support.kafka.kafka_files import KAFKA_3, KAFKA_4
from tests.support.kafka.kafka_unavailable import KafkaUnavailableError, skip_or_fail
from tests.support.kafka.proxied_kafka import start_proxied_kafka

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.exactly_once.exactly_once_scene import Scene
    from tests.support.kafka.proxied_kafka import ProxiedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

FENCED = Received(ledger_inits=1)
LISTED = FENCED._replace(described=1, listed=1)

#: What the broker has done for the victim, after two decided winners and an orphan were left.
PLAN_TRACES = {
    Point.PLAN_FENCED: FENCED,
    Point.ROLLED_FORWARD: FENCED._replace(task_commits=2),
    Point.LISTED: LISTED._replace(task_commits=2),
    Point.CLAIMED: LISTED._replace(task_commits=2, ledger_commits=1),
    Point.SWEPT: LISTED._replace(task_commits=2, ledger_commits=1, task_aborts=1),
}
#: The same for a commit of two winners while a loser is open.
COMMIT_TRACES = {
    Point.COMMIT_FENCED: FENCED,
    Point.CHECKED: LISTED,
    Point.DECIDED: LISTED._replace(ledger_commits=1),
    Point.COMMITTED: LISTED._replace(ledger_commits=1, task_commits=2),
    Point.DONE: LISTED._replace(ledger_commits=2, task_commits=2),
}
ABORT_TRACES = {
    Point.ABORT_FENCED: FENCED,
    Point.ABORT_CLAIMED: FENCED._replace(ledger_commits=1),
}
#: What sends the same requests with both versions of transactions runs on the newest Kafka.
NEWEST = pytest.mark.parametrize("proxied", [KAFKA_4], indirect=True)


@pytest.fixture(scope="module", params=[KAFKA_4, KAFKA_3])
def proxied(request: pytest.FixtureRequest) -> Iterator[ProxiedKafka]:
    """Yield a broker behind a proxy."""
    try:
        with start_proxied_kafka(request.param) as kafka:
            yield kafka
    except KafkaUnavailableError as error:
        skip_or_fail(error, os.environ)


@pytest.fixture
def scene(proxied: ProxiedKafka) -> Iterator[Scene]:
    """Yield a scene with a running worker."""
    with scene_on(proxied) as made:
        yield made


def _by_name(point):
    return point.name.lower()


# --- drivers


@NEWEST
@pytest.mark.parametrize("point", PLAN_TRACES, ids=_by_name)
def test_a_driver_is_killed_during_its_plan(scene, point):
    """The next driver finishes what the killed one has found: a decided batch and an orphan."""
    plan = scene.world.driver().plan()
    scene.world.decide_and_die(0)
    scene.worker.call("write", plan, 0, ["an orphan's row"])
    with scene.driver() as victim:
        victim.begin("plan", QUERY)
        victim.run_to(point)
        assert PLAN_TRACES[point] == scene.trace.received
    scene.check(0)


def _prepare_commit(scene):
    """Return a plan and its two winners, with a loser left open."""
    plan = scene.world.driver().plan()
    scene.worker.call("write", plan, 1, ["a loser's row"])
    return plan, scene.world.worker.run(plan, 0)


@pytest.mark.parametrize("point", COMMIT_TRACES, ids=_by_name)
def test_a_driver_is_killed_during_its_commit(scene, point):
    """Before the decision is durable nothing of the batch counts, afterwards all of it."""
    plan, prepared = _prepare_commit(scene)
    expected = COMMIT_TRACES[point]
    if point is Point.DONE and scene.kafka.cluster.version == KAFKA_3:
        # With TV1, the second entry gets its own epoch only from InitProducerId.
        expected = expected._replace(ledger_inits=2)
    with scene.driver() as victim:
        victim.begin("commit", plan, QUERY, 0, prepared)
        victim.run_to(point)
        assert expected == scene.trace.received
    is_decided = point in {Point.DECIDED, Point.COMMITTED, Point.DONE}
    assert is_decided != scene.world.driver().plan().must_write(QUERY, 0)
    scene.check(0)


def test_a_driver_is_killed_between_the_commits_of_its_winners(scene):
    """If only one winner was committed, the next driver commits the other one."""
    plan, prepared = _prepare_commit(scene)
    held = Fault(side=Side.REQUEST, action=Action.HANG, api_key=ApiKey.END_TXN, nth=2)
    with scene.driver() as victim:
        victim.begin("commit", plan, QUERY, 0, prepared)
        victim.run_to(Point.DECIDED)
        scene.kafka.proxy.arm(held)
        victim.go()
        scene.trace.wait_for(task_commits=1)
        assert scene.kafka.proxy.rules.wait_for(bool, 120)
    assert COMMIT_TRACES[Point.DECIDED]._replace(task_commits=1) == scene.trace.received
    assert (ROWS * 0.99, ROWS * 0.01) == tuple(map(len, scene.visible()))
    assert not scene.world.driver().plan().must_write(QUERY, 0)
    scene.check(0)


@pytest.mark.parametrize("side", Side, ids=lambda side: side.value)
def test_a_driver_is_killed_while_its_decision_is_in_flight(scene, side):
    """Whether the request or its answer is lost, the ledger shows if the batch is decided."""
    plan, prepared = _prepare_commit(scene)
    held = Fault(side=side, action=Action.HANG, api_key=ApiKey.END_TXN)
    scene.kafka.proxy.arm(held)
    with scene.driver() as victim:
        victim.begin("commit", plan, QUERY, 0, prepared)
        victim.run_to(Point.CHECKED)
        victim.go()
        assert scene.kafka.proxy.rules.wait_for(bool, 120)
    scene.kafka.disarm()
    is_decided = side is Side.ANSWER
    assert is_decided != scene.world.driver().plan().must_write(QUERY, 0)
    scene.check(0)


@NEWEST
@pytest.mark.parametrize("point", ABORT_TRACES, ids=_by_name)
def test_a_driver_is_killed_during_its_abort(scene, point):
    """The next driver aborts the transactions that the killed one left open."""
    plan, prepared = _prepare_commit(scene)
    with scene.driver() as victim:
        victim.begin("abort", plan, QUERY, 0, prepared)
        victim.run_to(point)
        assert ABORT_TRACES[point] == scene.trace.received
    scene.check(0)


# --- workers


def _commit_beside(scene, plan):
    """Run the task again in another worker, and commit."""
    scene.world.driver().commit(plan, scene.world.worker.run(plan, 0))
    assert seen_once(0) == scene.visible()
    scene.check(0)


@NEWEST
def test_a_worker_is_killed_before_it_writes(scene):
    """A worker that was killed with only a producer id does not disturb the retry of its task."""
    plan = scene.world.driver().plan()
    with scene.new_worker() as victim:
        victim.begin("write", plan, 0, ["a row of the dead"])
        victim.run_to(BEGUN)
        assert Received(task_inits=1) == scene.trace.received
    _commit_beside(scene, plan)


def test_a_worker_is_killed_during_its_write(scene):
    """Rows of a killed worker that are already in the log are never committed."""
    plan = scene.world.driver().plan()
    with scene.new_worker() as victim:
        victim.begin("write_on", plan, 0)
        victim.run_to(BEGUN)
        victim.go()
        scene.trace.wait_for(task_batches=3)
    _commit_beside(scene, plan)


@NEWEST
def test_a_worker_is_killed_after_its_flush(scene):
    """Acknowledged rows are not committed if the commit message never reaches the driver."""
    plan = scene.world.driver().plan()
    with scene.new_worker() as victim:
        victim.begin("write", plan, 0, ["a row of the dead"])
        victim.run_to(FLUSHED)
        assert Received(task_inits=1, task_batches=1) == scene.trace.received
    _commit_beside(scene, plan)


def test_a_stalled_worker_resumes_after_the_next_batch_has_begun(scene):
    """The transaction of a stalled worker that writes after the next batch began is aborted."""
    plan = scene.world.driver().plan()
    with scene.new_worker() as zombie:
        zombie.begin("write", plan, 0, ["a zombie's row"])
        zombie.run_to(BEGUN)
        scene.world.driver().commit(plan, scene.world.worker.run(plan, 0), 0)
        later = scene.world.driver()
        plan = later.plan()
        prepared = scene.world.worker.run(plan, 1)
        scene.trace.forget()
        zombie.go()
        zombie.run_to(FLUSHED)
        assert Received(task_batches=1) == scene.trace.received
        later.commit(plan, prepared, 1)
    scene.check(0, 1)


# --- brokers


@NEWEST
def test_the_broker_is_killed_while_transactions_are_open(scene):
    """Open transactions survive in the broker's log, and the batch is committed."""
    plan, prepared = _prepare_commit(scene)
    scene.restart_broker()
    with scene.driver() as driver:
        driver.call("commit", plan, QUERY, 0, prepared)
    assert WriteState.DONE is scene.world.state()
    scene.check(0)


def test_the_broker_is_killed_after_a_decision(scene):
    """The driver waits for the broker and commits what it has decided."""
    plan, prepared = _prepare_commit(scene)
    with scene.driver() as driver:
        driver.begin("commit", plan, QUERY, 0, prepared)
        driver.run_to(Point.DECIDED)
        assert COMMIT_TRACES[Point.DECIDED] == scene.trace.received
        scene.restart_broker()
        driver.go()
        driver.finish()
    assert seen_once(0) == scene.visible()
    # After reloading, a coordinator knows only the latest epoch, and may reject the done entry of
    # the ledger: then the next plan appends it.
    assert scene.world.state() in {WriteState.DECIDED, WriteState.DONE}
    assert not scene.world.driver().plan().must_write(QUERY, 0)
    assert WriteState.DONE is scene.world.state()
    scene.check(0)
