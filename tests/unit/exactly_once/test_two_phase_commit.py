"""The protocol under crashes at every point, rivals and zombies."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from spark_kafka_sink.errors import ProducerFencedError
from spark_kafka_sink.exactly_once.errors import (
    ExactlyOnceError,
    OvertakenError,
    RolledBackError,
    WinnerLostError,
)
from spark_kafka_sink.exactly_once.ledger import LedgerChanges
from spark_kafka_sink.exactly_once.ledger_records import Claim
from spark_kafka_sink.exactly_once.plan import Job, Prepared
from spark_kafka_sink.exactly_once.transactional_ids import ledger_id
from spark_kafka_sink.exactly_once.transitions import WriteState
from spark_kafka_sink.exactly_once.two_phase_commit import Point
from spark_kafka_sink.model import TopicPartition
from tests.support.exactly_once.exactly_once_world import (
    QUERY,
    TIMEOUT,
    CrashError,
    Worker,
    each_once,
)

PLAN_POINTS = [point for point in Point if point.value.startswith("plan")]
COMMIT_POINTS = [point for point in Point if point.value.startswith("commit")]
ABORT_POINTS = [point for point in Point if point.value.startswith("abort")]
#: The points of a commit before the decision is durable, at which a rival can still take over.
UNDECIDED = (Point.COMMIT_FENCED, Point.CHECKED)


def _by_name(point):
    return point.name.lower()


def _sent(value):
    """Return a value after pickling and unpickling it, as Spark does."""
    return pickle.loads(pickle.dumps(value))  # noqa: S301  our own


# --- without faults


def test_each_batch_becomes_visible_once(world):
    """Each batch becomes visible at its commit, once, and nothing remains open."""
    driver = world.driver()
    for batch_id in range(3):
        plan = driver.plan()
        assert plan.must_write(QUERY, batch_id)
        prepared = world.worker.run(plan, batch_id)
        assert each_once(*range(batch_id)) == world.visible()
        driver.commit(plan, prepared, batch_id)
    assert each_once(0, 1, 2) == world.visible()
    assert ([], WriteState.DONE) == (world.left_open(), world.state())
    assert {Point.CLAIMED, Point.SWEPT, Point.DECIDED, Point.DONE} <= set(driver.reached)


def test_plan_commit_and_abort_can_run_in_different_processes(world):
    """A plan and its messages can be pickled and committed by another process."""
    plan = _sent(world.driver("planner").plan())
    prepared = _sent(world.worker.run(plan))
    world.driver("committer").commit(plan, prepared)
    assert each_once(0) == world.visible()


def test_a_replayed_batch_is_skipped(world):
    """A committed batch is not written again."""
    world.finish(0)
    assert not world.driver().plan().must_write(QUERY, 0)
    world.finish(0)
    assert each_once(0) == world.visible()


def test_a_rolled_back_checkpoint_is_rejected(world):
    """A batch older than the last committed one is refused with an error that says why."""
    world.finish(0)
    world.finish(1)
    driver = world.driver()
    plan = driver.plan()
    with pytest.raises(
        RolledBackError, match=r"batch 0 of 'query-1' is not written, since batch 1"
    ):
        plan.must_write(QUERY, 0)
    with pytest.raises(RolledBackError, match="checkpoint was rolled back"):
        driver.commit(plan, world.worker.run(plan), 0)
    assert each_once(0, 1) == world.visible()


def test_a_plan_without_a_write_id_has_the_state_of_all_streams(world):
    """A plan without a write id has the state of every stream, but not of jobs."""
    world.finish(0)
    job = world.driver()
    plan = job.plan("job-1")
    job.commit(plan, world.worker.run(plan, 7), 0, "job-1", job=Job(retention_ms=2**61))
    plan = world.driver().plan(None)
    assert [QUERY] == list(plan.writes)
    assert not plan.must_write(QUERY, 0)
    assert plan.must_write("another", 0)


def test_an_empty_batch_of_a_stream_sends_no_request(world):
    """Committing or aborting an empty batch of a stream does nothing."""
    driver = world.driver()
    plan = driver.plan()
    before = len(driver.reached)
    driver.commit(plan, [])
    assert (False, before) == (driver.abort(plan, []), len(driver.reached))


def test_an_attempt_without_rows_is_not_a_winner(world):
    """An attempt without acknowledged rows is not a winner."""
    driver = world.driver()
    plan = driver.plan()
    attempt = world.worker.begin(plan, 0)
    full = world.worker.begin(plan, 1).write("a")
    empty = Prepared(
        plan.generation,
        full.transaction._replace(transactional_id=str(attempt.worker_id), ranges=()),
    )
    driver.commit(plan, [empty, full])
    assert ["a"] == world.visible()


def test_losers_are_aborted_by_the_commit(world):
    """A commit aborts the transaction of a late speculative attempt."""
    driver = world.driver()
    plan = driver.plan()
    prepared = world.worker.run(plan)
    world.worker.begin(plan, 0).write("a loser's row")
    driver.commit(plan, prepared)
    assert (each_once(0), []) == (world.visible(), world.left_open())


def test_an_abort_ends_the_open_transactions_of_the_tasks(world):
    """An abort ends the tasks' transactions, and the batch can be written again."""
    driver = world.driver()
    plan = driver.plan()
    assert driver.abort(plan, world.worker.run(plan))
    assert ([], []) == (world.visible(), world.left_open())
    world.finish(0)
    assert each_once(0) == world.visible()


def test_two_tasks_with_one_transactional_id_are_rejected(world):
    """A commit with two messages for one transactional id is refused."""
    driver = world.driver()
    plan = driver.plan()
    prepared = world.worker.run(plan)
    with pytest.raises(ExactlyOnceError, match="the same transactional id"):
        driver.commit(plan, [prepared[0], prepared[0]])


def test_tasks_of_another_plan_are_rejected(world):
    """A commit with messages of another driver's plan is refused."""
    prepared = world.worker.run(world.driver().plan())
    driver = world.driver()
    plan = driver.plan()
    with pytest.raises(OvertakenError, match="the plan of another driver"):
        driver.commit(plan, prepared)
    assert [] == world.visible()


# --- crashes


@pytest.mark.parametrize("point", [*PLAN_POINTS, *COMMIT_POINTS], ids=_by_name)
def test_the_next_driver_recovers_wherever_a_driver_dies(embedded, point):
    """Wherever a driver dies, each row is visible once after the next one, and nothing is open."""
    embedded.finish(0)
    driver = embedded.dying(point)
    with pytest.raises(CrashError):
        embedded.finish(1, driver=driver)
    assert point is driver.reached[-1]
    embedded.finish(1)
    embedded.finish(2)
    assert (each_once(0, 1, 2), []) == (embedded.visible(), embedded.left_open())


@pytest.mark.slow
@pytest.mark.parametrize("first", [*PLAN_POINTS, *COMMIT_POINTS], ids=_by_name)
@pytest.mark.parametrize("second", PLAN_POINTS, ids=_by_name)
def test_a_driver_can_die_during_recovery(tv2, first, second):
    """If a second driver dies while recovering, the third completes the recovery."""
    for point in (first, second):
        batch_id = 0 if tv2.visible() == [] else 1
        with pytest.raises(CrashError):
            tv2.finish(batch_id, driver=tv2.dying(point))
    tv2.finish(0)
    tv2.finish(1)
    assert (each_once(0, 1), []) == (tv2.visible(), tv2.left_open())


@pytest.mark.parametrize("point", ABORT_POINTS, ids=_by_name)
def test_an_interrupted_abort_is_completed_by_the_next_plan(embedded, point):
    """If a driver dies during an abort, the next plan aborts the remaining transactions."""
    driver = embedded.dying(point)
    plan = driver.plan()
    with pytest.raises(CrashError):
        driver.abort(plan, embedded.worker.run(plan))
    embedded.finish(0)
    assert (each_once(0), []) == (embedded.visible(), embedded.left_open())


def test_an_abort_does_not_touch_a_decided_batch(world):
    """An abort leaves a decided batch alone, as Spark also aborts after a commit that failed."""
    winners = world.decide_and_die()
    generation = world.ledger_state().generation
    plan = replace(world.driver().plan(), generation=generation)
    assert not world.driver().abort(plan, [Prepared(generation, winner) for winner in winners])
    assert each_once(0) == world.visible()


def test_a_commit_succeeds_even_if_done_cannot_be_recorded(world):
    """A commit succeeds even if it cannot record the batch as done, and the next plan does."""
    rival = world.driver("rival")

    def fence(point):
        if point is Point.COMMITTED:
            rival.ledger.fence_and_read(world.budget())

    driver = world.driver(observe=fence)
    plan = driver.plan()
    driver.commit(plan, world.worker.run(plan))
    assert (each_once(0), WriteState.DECIDED) == (world.visible(), world.state())
    assert not world.driver().plan().must_write(QUERY, 0)
    assert WriteState.DONE is world.state()


# --- rivals


def test_the_later_of_two_drivers_wins(world):
    """The earlier of two drivers fails at its commit with an error that names the later one."""
    first = world.driver("host-a:1")
    plan = first.plan()
    prepared = world.worker.run(plan)
    world.finish(0, driver=world.driver("host-b:2"))
    with pytest.raises(OvertakenError, match="host-b:2 claimed generation"):
        first.commit(plan, prepared)
    assert (each_once(0), []) == (world.visible(), world.left_open())


def test_two_jobs_under_one_prefix_do_not_mix(world):
    """Of two parallel jobs under one prefix, the earlier fails and writes nothing."""
    job = Job(retention_ms=2**61)
    first, second = world.driver("first"), world.driver("second")
    plans = first.plan("job-1"), second.plan("job-2")
    prepared = [world.worker.run(plan, 0, name) for plan, name in zip(plans, "xy", strict=True)]
    with pytest.raises(OvertakenError, match="its own transactionalIdPrefix"):
        first.commit(plans[0], prepared[0], 0, "job-1", job=job)
    second.commit(plans[1], prepared[1], 0, "job-2", job=job)
    assert each_once(0, name="y") == world.visible()


@pytest.mark.parametrize("point", COMMIT_POINTS, ids=_by_name)
def test_a_rival_driver_can_run_during_a_commit(world, point):
    """A rival takes over before the decision, and finds the batch committed after it."""
    rival = world.driver("rival")

    def run_rival(reached):
        if reached is point and not rival.reached:
            world.finish(0, driver=rival)

    driver = world.driver("first", observe=run_rival)
    plan = driver.plan()
    prepared = world.worker.run(plan)
    if point in UNDECIDED:
        # The error depends on what it finds first: aborted transactions or a later claim.
        with pytest.raises((OvertakenError, WinnerLostError), match=r"rival|taken over"):
            driver.commit(plan, prepared)
    else:
        driver.commit(plan, prepared)
    assert (each_once(0), []) == (world.visible(), world.left_open())


@pytest.mark.parametrize("point", PLAN_POINTS, ids=_by_name)
def test_a_rival_driver_can_run_during_a_plan(world, point):
    """If a rival runs during a plan, only the driver that claimed last may decide."""
    rival = world.driver("rival")

    def run_rival(reached):
        if reached is point and not rival.reached:
            world.finish(0, driver=rival)

    driver = world.driver("first", observe=run_rival)
    plan = driver.plan()
    if point in {Point.CLAIMED, Point.SWEPT}:
        assert plan.must_write(QUERY, 0)
        with pytest.raises(OvertakenError, match="has committed this batch"):
            driver.commit(plan, world.worker.run(plan))
    else:
        assert not plan.must_write(QUERY, 0)
    world.finish(1)
    assert (each_once(0, 1), []) == (world.visible(), world.left_open())


@pytest.mark.parametrize("point", [*PLAN_POINTS, *COMMIT_POINTS], ids=_by_name)
def test_a_rival_that_dies_between_plan_and_commit_changes_nothing(tv2, point):
    """A rival that dies between plan and commit leaves each row visible once."""
    driver = tv2.driver("first")
    plan = driver.plan()
    prepared = tv2.worker.run(plan)
    with pytest.raises(CrashError):
        tv2.finish(0, driver=tv2.dying(point))
    claimed = tv2.ledger_state().generation != plan.generation
    if claimed:
        with pytest.raises(OvertakenError):
            driver.commit(plan, prepared)
    else:
        driver.commit(plan, prepared)
    tv2.finish(0)
    assert (each_once(0), []) == (tv2.visible(), tv2.left_open())


@pytest.mark.parametrize("point", COMMIT_POINTS, ids=_by_name)
def test_an_abort_can_run_during_a_commit(world, point):
    """An abort during a commit wins before the decision and does nothing after it."""
    other = world.driver("abort")
    done = []

    def abort(reached):
        if reached is point and not done:
            done.append(other.abort(plan, prepared))

    driver = world.driver(observe=abort)
    plan = driver.plan()
    prepared = world.worker.run(plan)
    if point in UNDECIDED:
        with pytest.raises((OvertakenError, WinnerLostError), match=r"\(abort\)|taken over"):
            driver.commit(plan, prepared)
    else:
        driver.commit(plan, prepared)
    assert [point in UNDECIDED] == done
    world.finish(0)
    assert (each_once(0), []) == (world.visible(), world.left_open())


def test_a_fenced_abort_changes_nothing(world):
    """An abort whose claim is refused aborts nothing."""
    rival = world.driver("rival")
    driver = world.driver(
        observe=lambda point: point is Point.ABORT_FENCED and world.finish(0, driver=rival)
    )
    plan = driver.plan()
    assert not driver.abort(plan, world.worker.run(plan))
    assert (each_once(0), []) == (world.visible(), world.left_open())


def test_an_overtaken_abort_changes_nothing(world):
    """An abort after another driver's claim does nothing."""
    driver = world.driver()
    plan = driver.plan()
    prepared = world.worker.run(plan)
    world.driver().plan()
    assert not driver.abort(plan, prepared)


def test_the_transaction_of_a_zombie_is_aborted_by_the_next_plan(world):
    """A late attempt's transaction is not committed, and the next plan aborts it."""
    driver = world.driver()
    plan = driver.plan()
    zombie = world.worker.begin(plan, 0)
    driver.commit(plan, world.worker.run(plan, 0), 0)
    after = driver.plan()
    late = zombie.write("a zombie's row")
    driver.commit(after, world.worker.run(after, 1), 1)
    with pytest.raises(OvertakenError):
        driver.commit(plan, [late], 1)
    world.driver().plan()
    assert (each_once(0, 1), []) == (world.visible(), world.left_open())


def test_a_zombie_whose_slot_was_reused_is_fenced(world):
    """A late attempt whose slot a later generation took is fenced."""
    driver = world.driver()
    plan = driver.plan()
    old = world.worker.begin(plan, 0)
    world.worker.slots.release(old.worker_id)
    after = driver.plan()
    prepared = world.worker.run(after)
    assert str(old.worker_id) == prepared[0].transaction.transactional_id
    with pytest.raises(ProducerFencedError, match=r"PRODUCER_FENCED|INVALID_PRODUCER_EPOCH"):
        old.write("a zombie's row")
    driver.commit(after, prepared)
    assert each_once(0) == world.visible()


def test_two_queries_can_alternate_under_one_prefix(world):
    """A query finishes the other's decision under the same prefix, and each has its own batches."""
    winners = world.decide_and_die()
    other = world.driver("other query")
    plan = other.plan("query-2")
    assert (3 * len(winners), WriteState.DONE) == (len(world.visible()), world.state())
    other.commit(plan, world.worker.run(plan, 0, "x"), 0, "query-2")
    assert not world.driver().plan().must_write(QUERY, 0)
    world.finish(1)
    expected = sorted(each_once(0, 1) + each_once(0, name="x"))
    assert expected == world.visible()


def test_prefixes_do_not_affect_each_other(world):
    """The prefixes `orders` and `orders.eu` share the ledger topic and nothing else."""
    longer = f"{world.prefix}.eu"
    other = world.driver(prefix=longer)
    plan = other.plan()
    theirs = Worker(world, longer).begin(plan, 0).write("theirs")
    world.finish(0)
    assert [theirs.transaction.transactional_id] == world.left_open(longer)
    other.commit(plan, [theirs])
    assert sorted([*each_once(0), "theirs"]) == world.visible()


def test_an_open_ledger_transaction_of_another_prefix_hides_no_entries(world):
    """Another prefix's open ledger transaction does not hide entries from a driver."""
    prefix = f"{world.prefix}-other"
    other = world.driver(prefix=prefix)
    other.ledger.fence_and_read(world.budget())
    world.admin.write_to_transaction(
        ledger_id(prefix),
        other.ledger._producer,
        TopicPartition(world.ledger, 0),
        other.ledger._entries(_claim()),
        now_ms=int(world.clock() * 1000),
        timeout=TIMEOUT,
    )
    world.finish(0)
    assert not world.driver().plan().must_write(QUERY, 0)
    assert each_once(0) == world.visible()


def _claim():
    return LedgerChanges(claim=Claim(1, 0, "stuck"))
