"""Decisions that cannot be carried out, upgrades, jobs, and what the ledger stores."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest

from spark_kafka_sink.admin.transaction_values import TransactionEnd
from spark_kafka_sink.errors import IllegalStateError
from spark_kafka_sink.exactly_once import recovery
from spark_kafka_sink.exactly_once.errors import (
    ExactlyOnceError,
    MixedError,
    OvertakenError,
    VoidError,
    WinnerLostError,
)
from spark_kafka_sink.exactly_once.plan import Job
from spark_kafka_sink.exactly_once.transitions import WriteState
from spark_kafka_sink.exactly_once.two_phase_commit import Point
from tests.support.exactly_once.exactly_once_sites import embedded_world
from tests.support.exactly_once.exactly_once_world import (
    QUERY,
    TIMEOUT,
    TRANSACTION_TIMEOUT_MS,
    CrashError,
    each_once,
    rows,
)

# --- decisions that cannot be carried out


def test_a_winner_that_timed_out_fails_the_batch_before_the_decision(world):
    """A winner that timed out fails the batch with nothing visible and names the setting."""
    world.transaction_timeout_ms = 1_000
    driver = world.driver()
    plan = driver.plan()
    prepared = world.worker.run(plan)
    world.time_out_everything()
    with pytest.raises(WinnerLostError, match=re.escape("transaction.timeout.ms")):
        driver.commit(plan, prepared)
    world.transaction_timeout_ms = TRANSACTION_TIMEOUT_MS
    world.finish(0)
    assert each_once(0) == world.visible()


def test_a_winner_that_could_time_out_fails_the_batch(world):
    """A winner that might time out between decision and commit fails the batch."""
    driver = world.driver()
    plan = driver.plan()
    prepared = world.worker.run(plan)
    world.clock.ahead = 570
    with pytest.raises(WinnerLostError, match="times out in"):
        driver.commit(plan, prepared)


def test_a_broker_clock_that_is_ahead_does_not_fail_the_batch(world):
    """If the broker's clock is ahead, the plan's time replaces the transaction's start time."""
    world.clock.ahead = -3600
    driver = world.driver()
    plan = driver.plan()
    driver.commit(plan, world.worker.run(plan))
    assert each_once(0) == world.visible()


def test_a_winner_aborted_by_an_operator_fails_the_batch(world):
    """A winner that an operator aborted before the decision fails the batch."""
    driver = world.driver()
    plan = driver.plan()
    prepared = world.worker.run(plan)
    world.abort_by_hand(prepared[1].transaction)
    with pytest.raises(WinnerLostError, match="is no longer open"):
        driver.commit(plan, prepared)
    assert [] == world.visible()


def test_a_decision_whose_winners_were_all_aborted_is_void(world):
    """A decision whose winners were all aborted is void, and the batch is written again."""
    for winner in world.decide_and_die():
        world.abort_by_hand(winner)
    plan = world.driver().plan()
    assert (True, WriteState.VOID) == (plan.must_write(QUERY, 0), world.state())
    world.finish(0)
    assert each_once(0) == world.visible()


def test_a_plan_without_a_write_id_has_the_fate_of_a_decision_that_it_rolled_forward(embedded):
    """The plan of all streams says that a batch whose winners were all aborted must be written."""
    for winner in embedded.decide_and_die():
        embedded.abort_by_hand(winner)
    assert embedded.driver().plan(None).must_write(QUERY, 0)


def test_generations_rise_although_the_clock_falls(embedded):
    """A driver whose clock is an hour behind claims a higher generation than the one before it."""
    before = embedded.driver().plan().generation
    embedded.clock.ahead = -3600
    assert embedded.driver().plan().generation > before


def test_a_step_does_not_time_out_because_the_clock_is_set(embedded):
    """It takes as long as it takes, whatever the time of day is; the clock leaps once."""

    def set_clock(point):
        embedded.clock.ahead += 3600 if point is Point.PLAN_FENCED else 0

    plan = embedded.driver(observe=set_clock).plan()
    assert 3600 == embedded.clock.ahead
    assert plan.must_write(QUERY, 0)


def test_a_decision_that_timed_out_is_void(world):
    """A decision whose winners all timed out is void, and the batch is written again."""
    world.finish(0)
    # Long enough to decide in, also on a busy machine.
    world.transaction_timeout_ms = 8_000
    world.decide_and_die(1)
    world.time_out_everything()
    world.transaction_timeout_ms = TRANSACTION_TIMEOUT_MS
    world.finish(1)
    assert each_once(0, 1) == world.visible()


def test_a_half_committed_decision_that_times_out_is_mixed(world):
    """A half-committed decision that times out is mixed until an operator resolves it."""
    world.transaction_timeout_ms = 8_000
    [first, _] = world.decide_and_die()
    end = TransactionEnd(first.transactional_id, first.producer, True, first.transaction_version)
    world.admin.end_transaction(end, timeout=TIMEOUT)
    world.time_out_everything()
    world.transaction_timeout_ms = TRANSACTION_TIMEOUT_MS
    with pytest.raises(
        MixedError, match=f"aborted: {world.data}-1 offsets 0 to 2.* --skip .* --replay"
    ):
        world.finish(0)
    assert rows(0)[0] == world.visible()
    world.resolve(skip=True)
    world.finish(0)
    world.finish(1)
    assert sorted(rows(0)[0] + each_once(1)) == world.visible()


def test_a_commit_whose_winners_were_all_aborted_says_so(world):
    """A commit that finds all its winners aborted records the batch as void and says so."""

    def abort(point):
        if point is Point.DECIDED:
            for one in prepared:
                world.abort_by_hand(one.transaction)

    driver = world.driver(observe=abort)
    plan = driver.plan()
    prepared = world.worker.run(plan)
    with pytest.raises(VoidError, match="must be written again"):
        driver.commit(plan, prepared)
    assert WriteState.VOID is world.state()
    world.finish(0)
    assert each_once(0) == world.visible()


@pytest.mark.parametrize("end", [Point.DECIDED, Point.DONE])
def test_a_driver_does_not_report_another_drivers_decision_as_its_own(world, end):
    """A driver whose void batch another driver decided again does not report that as its own."""

    def run_rival(point):
        if point is not Point.DECIDED:
            return
        for one in prepared:
            world.abort_by_hand(one.transaction)
        rival = world.dying(end)
        plan = rival.plan()
        with pytest.raises(CrashError):
            rival.commit(plan, world.worker.run(plan))

    driver = world.driver(observe=run_rival)
    plan = driver.plan()
    prepared = world.worker.run(plan)
    with pytest.raises(OvertakenError, match="'query-1' has moved on since batch 0"):
        driver.commit(plan, prepared)
    world.finish(0)
    world.finish(1)
    assert each_once(0, 1) == world.visible()


def test_a_mixed_batch_stops_the_query(world):
    """A mixed batch stops every start of its query with an error that lists the offsets."""
    world.mix()
    sentence = rf"committed: {world.data}-0 offsets 0 to 2; aborted: {world.data}-1 offsets 0 to 2"
    for _ in range(2):
        with pytest.raises(MixedError, match=sentence):
            world.driver().plan()
    assert (rows(0)[0], WriteState.MIXED) == (world.visible(), world.state())
    plan = world.driver().plan(None)
    with pytest.raises(MixedError, match="until an operator resolves it"):
        plan.must_write(QUERY, 0)


def test_a_commit_whose_winners_were_half_aborted_says_so(world):
    """A commit that finds half of its winners aborted records the batch as mixed and says so."""
    driver = world.driver(
        observe=lambda point: (
            point is Point.DECIDED and world.abort_by_hand(prepared[0].transaction)
        )
    )
    plan = driver.plan()
    prepared = world.worker.run(plan)
    with pytest.raises(MixedError, match=f"aborted: {world.data}-0"):
        driver.commit(plan, prepared)
    with pytest.raises(MixedError):
        driver.commit(plan, prepared)
    assert not driver.abort(plan, prepared)
    assert rows(0)[1] == world.visible()


def test_another_query_under_the_prefix_continues_despite_a_mixed_batch(world, caplog):
    """A mixed batch stops its own query, and another query under the prefix continues."""
    world.mix()
    other = world.driver()
    plan = other.plan("query-2")
    assert "only partly visible" in caplog.text
    other.commit(plan, world.worker.run(plan, 0, "x"), 0, "query-2")
    with pytest.raises(MixedError):
        world.driver().plan()
    assert sorted(rows(0)[0] + each_once(0, name="x")) == world.visible()


def test_an_operator_can_skip_a_mixed_batch(world):
    """A skipped mixed batch counts as committed, and the query continues after it."""
    world.mix()
    with pytest.raises(MixedError):
        world.driver().plan()
    world.resolve(skip=True)
    world.finish(0)
    world.finish(1)
    assert sorted(rows(0)[0] + each_once(1)) == world.visible()


def test_an_operator_can_replay_a_mixed_batch(world):
    """A replayed mixed batch is written again, so its visible rows are duplicated."""
    world.mix()
    with pytest.raises(MixedError):
        world.driver().plan()
    world.resolve(skip=False)
    world.finish(0)
    assert sorted(rows(0)[0] + each_once(0)) == world.visible()


def test_only_a_mixed_write_can_be_resolved(world):
    """Resolving a write that is done or unknown is refused with an error that says why."""
    world.finish(0)
    with pytest.raises(IllegalStateError, match="nothing to resolve"):
        world.resolve(skip=False)
    with pytest.raises(ExactlyOnceError, match="has no write 'nobody'"):
        world.resolve(skip=False, write_id="nobody")


def test_a_deleted_marker_leaves_the_batch_mixed(world):
    """If retention has deleted the markers, the batch is mixed."""
    for winner in world.decide_and_die():
        world.abort_by_hand(winner)
    for place in world.places:
        world.site.delete_records(place, 4)
    with pytest.raises(MixedError, match="unknown: "), _short_markers():
        world.driver().plan()


def test_the_marker_of_a_later_transaction_does_not_decide_the_fate(world, monkeypatch):
    """A later transaction's marker is recognized by its epoch and does not decide the fate."""
    [winner, _] = world.decide_and_die()
    world.abort_by_hand(winner)
    stale = winner._replace(producer=winner.producer._replace(epoch=winner.producer.epoch - 2))
    assert recovery.Fate.UNKNOWN is recovery.fate_by_marker(world.admin, stale, world.budget())
    assert recovery.Fate.ABORTED is recovery.fate_by_marker(world.admin, winner, world.budget())


def test_without_a_known_last_offset_the_fate_is_unknown(world):
    """Without a known last offset, no marker is searched for and the fate is unknown."""
    [winner, _] = world.decide_and_die()
    nowhere = winner._replace(ranges=(winner.ranges[0]._replace(last_offset=-1),))
    assert recovery.Fate.UNKNOWN is recovery.fate_by_marker(world.admin, nowhere, world.budget())


class _short_markers:  # noqa: N801  a context manager
    def __enter__(self):
        self._before = recovery.MARKER_TIMEOUT
        recovery.MARKER_TIMEOUT = 0.3

    def __exit__(self, *_):
        recovery.MARKER_TIMEOUT = self._before


def test_a_delayed_marker_is_waited_for():
    """A plan waits for an abort marker that the coordinator writes after its answer."""
    with embedded_world(transaction_marker_delay_ms=150) as world:
        for winner in world.decide_and_die():
            world.abort_by_hand(winner)
        assert world.driver().plan().must_write(QUERY, 0)
        ledger = world.driver().ledger.fence_and_read(world.budget())
        assert WriteState.VOID is ledger.writes[QUERY].write.state


def test_brokers_can_be_upgraded_between_decision_and_roll_forward(upgradable_world):
    """Decisions made under TV1 are rolled forward correctly after an upgrade to TV2."""
    world = upgradable_world
    with pytest.raises(CrashError):
        world.finish(0, driver=world.dying(Point.COMMITTED))
    begun_before, left_open = world.dying(Point.DECIDED), world.dying(Point.COMMITTED)
    world.site.set_transaction_version(2)
    assert not world.driver().plan().must_write(QUERY, 0)
    with pytest.raises(CrashError):
        world.finish(1, driver=begun_before)
    with pytest.raises(CrashError):
        world.finish(2, driver=left_open)
    world.finish(3)
    assert (each_once(0, 1, 2, 3), WriteState.DONE) == (world.visible(), world.state())


def test_a_client_uses_the_transaction_version_of_the_cluster(upgradable_world):
    """A new client uses the transaction version that the cluster reports."""
    assert 1 == upgradable_world.admin.transaction_version(timeout=TIMEOUT)
    upgradable_world.site.set_transaction_version(2)
    later = upgradable_world.new_admin()
    assert 2 == later.transaction_version(timeout=TIMEOUT)


# --- jobs, and what the ledger keeps


def test_a_job_with_a_write_id_runs_once(world):
    """A job with a write id, with or without rows, is skipped when it runs again."""
    for write_id, prepare in (("full", True), ("empty", False)):
        for run in range(2):
            driver = world.driver()
            plan = driver.plan(write_id)
            assert (run == 0) == plan.must_write(write_id, 0)
            if run == 0:
                prepared = world.worker.run(plan) if prepare else []
                driver.commit(plan, prepared, 0, write_id, job=Job(retention_ms=2**61))
    assert each_once(0) == world.visible()


@pytest.mark.parametrize(
    ("topic", "name"), [("refunds", "topic 'refunds'"), (None, "the topics that its rows name")]
)
def test_a_write_id_is_not_used_for_another_topic(world, topic, name):
    """A write id that was written to one topic is refused for another, and nothing changes."""
    job, other = Job(2**61, "orders"), Job(2**61, topic)
    driver = world.driver()
    plan = driver.plan("day-1", job=job)
    driver.commit(plan, world.worker.run(plan), 0, "day-1", job=job)
    before = world.ledger_state()
    record = before.writes["day-1"]
    assert plan.planned_at_ms <= record.expires_at_ms - 2**61 <= record.updated_at_ms
    with pytest.raises(ExactlyOnceError) as raised:
        world.driver().plan("day-1", job=other)
    at = datetime.fromtimestamp(record.updated_at_ms / 1000, tz=UTC)
    assert (
        f"nothing was written: under transactionalIdPrefix {world.prefix!r}, writeId 'day-1' is "
        f"the name of a write to topic 'orders', committed at {at:%Y-%m-%d %H:%M:%S} UTC, and this "
        f"write is to {name}. Give each write a writeId of its own, for example with the name of "
        "its topic"
    ) == str(raised.value)
    assert before.claim == world.ledger_state().claim
    assert not world.driver().plan("day-1", job=job).must_write("day-1", 0)
    assert each_once(0) == world.visible()


def test_a_write_id_whose_rows_are_not_visible_may_be_used_for_another_topic(world):
    """A job whose transactions were all aborted may be written to another topic."""

    def abort(point):
        if point is Point.DECIDED:
            for one in prepared:
                world.abort_by_hand(one.transaction)

    job = Job(2**61, "orders")
    driver = world.driver(observe=abort)
    plan = driver.plan("day-1", job=job)
    prepared = world.worker.run(plan)
    with pytest.raises(VoidError):
        driver.commit(plan, prepared, 0, "day-1", job=job)
    again = world.driver().plan("day-1", job=Job(2**61, "refunds"))
    assert again.must_write("day-1", 0)


def test_an_expired_job_is_deleted_by_the_next_plan(world):
    """The next plan deletes an expired job's entry and leaves a stream's."""
    world.finish(0)
    driver = world.driver()
    plan = driver.plan("job-1")
    driver.commit(plan, world.worker.run(plan, 5), 0, "job-1", job=Job(retention_ms=0))
    assert {"job-1", QUERY} == set(world.ledger_state().writes)
    world.driver().plan("job-2")
    assert {QUERY} == set(world.ledger_state().writes)


def test_an_expired_job_that_runs_again_is_not_deleted(tv2):
    """The plan of an expired job keeps its entry, so each further run of it is skipped, too."""
    driver = tv2.driver()
    plan = driver.plan("job-1")
    driver.commit(plan, tv2.worker.run(plan), 0, "job-1", job=Job(retention_ms=0))
    for _ in range(2):
        assert not tv2.driver().plan("job-1").must_write("job-1", 0)
    assert each_once(0) == tv2.visible()


def test_a_deleted_ledger_does_not_let_an_older_driver_decide(world):
    """Deleting the ledger does not let an older driver decide, since generations never repeat."""
    driver = world.driver()
    plan = driver.plan()
    prepared = world.worker.run(plan)
    world.recreate_ledger()
    with pytest.raises(OvertakenError, match="were deleted"):
        driver.commit(plan, prepared)
    world.finish(0, driver=world.driver("after"))
    with pytest.raises(OvertakenError, match="after claimed"):
        driver.commit(plan, prepared, 1)
    assert each_once(0) == world.visible()
