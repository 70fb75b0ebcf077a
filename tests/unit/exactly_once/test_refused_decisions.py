"""Decisions that cannot be carried out, upgrades, jobs, and what the ledger stores."""

from __future__ import annotations

import re

import pytest

from spark_kafka_sink.admin.transaction_values import TransactionEnd
from spark_kafka_sink.errors import IllegalStateError
from spark_kafka_sink.exactly_once import recovery
from spark_kafka_sink.exactly_once.ledger.errors import (
    ExactlyOnceError,
    MixedError,
    OvertakenError,
    VoidError,
    WinnerLostError,
)
from spark_kafka_sink.exactly_once.ledger.transitions import WriteState
from spark_kafka_sink.exactly_once.plan import Job
from spark_kafka_sink.exactly_once.points import Point
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


def test_a_winner_that_timed_out_fails_the_batch_before_the_decision(here):
    """A winner that timed out fails the batch with nothing visible and names the setting."""
    here.transaction_timeout_ms = 1_000
    driver = here.driver()
    plan = driver.plan()
    prepared = here.worker.run(plan)
    here.time_out_everything()
    with pytest.raises(WinnerLostError, match=re.escape("transaction.timeout.ms")):
        driver.commit(plan, prepared)
    here.transaction_timeout_ms = TRANSACTION_TIMEOUT_MS
    here.finish(0)
    assert each_once(0) == here.visible()


def test_a_winner_that_could_time_out_fails_the_batch(here):
    """A winner that might time out between decision and commit fails the batch."""
    driver = here.driver()
    plan = driver.plan()
    prepared = here.worker.run(plan)
    here.clock.ahead = 570
    with pytest.raises(WinnerLostError, match="times out in"):
        driver.commit(plan, prepared)


def test_a_broker_clock_that_is_ahead_does_not_fail_the_batch(here):
    """If the broker's clock is ahead, the plan's time replaces the transaction's start time."""
    here.clock.ahead = -3600
    driver = here.driver()
    plan = driver.plan()
    driver.commit(plan, here.worker.run(plan))
    assert each_once(0) == here.visible()


def test_a_winner_aborted_by_an_operator_fails_the_batch(here):
    """A winner that an operator aborted before the decision fails the batch."""
    driver = here.driver()
    plan = driver.plan()
    prepared = here.worker.run(plan)
    here.abort_by_hand(prepared[1].transaction)
    with pytest.raises(WinnerLostError, match="is no longer open"):
        driver.commit(plan, prepared)
    assert [] == here.visible()


def test_a_decision_whose_winners_were_all_aborted_is_void(here):
    """A decision whose winners were all aborted is void, and the batch is written again."""
    for winner in here.decide_and_die():
        here.abort_by_hand(winner)
    plan = here.driver().plan()
    assert (True, WriteState.VOID) == (plan.must_write(QUERY, 0), here.state())
    here.finish(0)
    assert each_once(0) == here.visible()


def test_a_decision_that_timed_out_is_void(here):
    """A decision whose winners all timed out is void, and the batch is written again."""
    here.finish(0)
    # Long enough to decide in, also on a busy machine.
    here.transaction_timeout_ms = 8_000
    here.decide_and_die(1)
    here.time_out_everything()
    here.transaction_timeout_ms = TRANSACTION_TIMEOUT_MS
    here.finish(1)
    assert each_once(0, 1) == here.visible()


def test_a_half_committed_decision_that_times_out_is_mixed(here):
    """A half-committed decision that times out is mixed until an operator resolves it."""
    here.transaction_timeout_ms = 8_000
    [first, _] = here.decide_and_die()
    end = TransactionEnd(first.transactional_id, first.producer, True, first.transaction_version)
    here.admin.end_transaction(end, timeout=TIMEOUT)
    here.time_out_everything()
    here.transaction_timeout_ms = TRANSACTION_TIMEOUT_MS
    with pytest.raises(
        MixedError, match=f"aborted: {here.data}-1 offsets 0 to 2.* --skip .* --replay"
    ):
        here.finish(0)
    assert rows(0)[0] == here.visible()
    here.resolve(skip=True)
    here.finish(0)
    here.finish(1)
    assert sorted(rows(0)[0] + each_once(1)) == here.visible()


def test_a_commit_whose_winners_were_all_aborted_says_so(here):
    """A commit that finds all its winners aborted records the batch as void and says so."""

    def abort(point):
        if point is Point.DECIDED:
            for one in prepared:
                here.abort_by_hand(one.transaction)

    driver = here.driver(observe=abort)
    plan = driver.plan()
    prepared = here.worker.run(plan)
    with pytest.raises(VoidError, match="must be written again"):
        driver.commit(plan, prepared)
    assert WriteState.VOID is here.state()
    here.finish(0)
    assert each_once(0) == here.visible()


@pytest.mark.parametrize("end", [Point.DECIDED, Point.DONE])
def test_a_driver_does_not_report_another_drivers_decision_as_its_own(here, end):
    """A driver whose void batch another driver decided again does not report that as its own."""

    def be_overtaken(point):
        if point is not Point.DECIDED:
            return
        for one in prepared:
            here.abort_by_hand(one.transaction)
        rival = here.dying(end)
        plan = rival.plan()
        with pytest.raises(CrashError):
            rival.commit(plan, here.worker.run(plan))

    driver = here.driver(observe=be_overtaken)
    plan = driver.plan()
    prepared = here.worker.run(plan)
    with pytest.raises(OvertakenError, match="'query-1' has moved on since batch 0"):
        driver.commit(plan, prepared)
    here.finish(0)
    here.finish(1)
    assert each_once(0, 1) == here.visible()


def test_a_mixed_batch_stops_the_query(here):
    """A mixed batch stops every start of its query with an error that lists the offsets."""
    here.mix()
    sentence = rf"committed: {here.data}-0 offsets 0 to 2; aborted: {here.data}-1 offsets 0 to 2"
    for _ in range(2):
        with pytest.raises(MixedError, match=sentence):
            here.driver().plan()
    assert (rows(0)[0], WriteState.MIXED) == (here.visible(), here.state())
    plan = here.driver().plan(None)
    with pytest.raises(MixedError, match="until an operator resolves it"):
        plan.must_write(QUERY, 0)


def test_a_commit_whose_winners_were_half_aborted_says_so(here):
    """A commit that finds half of its winners aborted records the batch as mixed and says so."""
    driver = here.driver(
        observe=lambda point: point is Point.DECIDED and here.abort_by_hand(prepared[0].transaction)
    )
    plan = driver.plan()
    prepared = here.worker.run(plan)
    with pytest.raises(MixedError, match=f"aborted: {here.data}-0"):
        driver.commit(plan, prepared)
    with pytest.raises(MixedError):
        driver.commit(plan, prepared)
    assert not driver.abort(plan, prepared)
    assert rows(0)[1] == here.visible()


def test_another_query_under_the_prefix_continues_despite_a_mixed_batch(here, caplog):
    """A mixed batch stops its own query, and another query under the prefix continues."""
    here.mix()
    other = here.driver()
    plan = other.plan("query-2")
    assert "only partly visible" in caplog.text
    other.commit(plan, here.worker.run(plan, 0, "x"), 0, "query-2")
    with pytest.raises(MixedError):
        here.driver().plan()
    assert sorted(rows(0)[0] + each_once(0, name="x")) == here.visible()


def test_an_operator_can_skip_a_mixed_batch(here):
    """A skipped mixed batch counts as committed, and the query continues after it."""
    here.mix()
    with pytest.raises(MixedError):
        here.driver().plan()
    here.resolve(skip=True)
    here.finish(0)
    here.finish(1)
    assert sorted(rows(0)[0] + each_once(1)) == here.visible()


def test_an_operator_can_replay_a_mixed_batch(here):
    """A replayed mixed batch is written again, so its visible rows are duplicated."""
    here.mix()
    with pytest.raises(MixedError):
        here.driver().plan()
    here.resolve(skip=False)
    here.finish(0)
    assert sorted(rows(0)[0] + each_once(0)) == here.visible()


def test_only_a_mixed_write_can_be_resolved(here):
    """Resolving a write that is done or unknown is refused with an error that says why."""
    here.finish(0)
    with pytest.raises(IllegalStateError, match="nothing to resolve"):
        here.resolve(skip=False)
    with pytest.raises(ExactlyOnceError, match="has no write 'nobody'"):
        here.resolve(skip=False, write_id="nobody")


def test_a_deleted_marker_leaves_the_batch_mixed(here):
    """If retention has deleted the markers, the batch is mixed."""
    for winner in here.decide_and_die():
        here.abort_by_hand(winner)
    for place in here.places:
        here.site.delete_records(place, 4)
    with pytest.raises(MixedError, match="unknown: "), _short_markers():
        here.driver().plan()


def test_the_marker_of_a_later_transaction_does_not_decide_the_fate(here, monkeypatch):
    """A later transaction's marker is recognized by its epoch and does not decide the fate."""
    [winner, _] = here.decide_and_die()
    here.abort_by_hand(winner)
    stale = winner._replace(producer=winner.producer._replace(epoch=winner.producer.epoch - 2))
    assert recovery.Fate.UNKNOWN is recovery.fate_by_marker(here.admin, stale, here.budget())
    assert recovery.Fate.ABORTED is recovery.fate_by_marker(here.admin, winner, here.budget())


def test_without_a_known_last_offset_the_fate_is_unknown(here):
    """Without a known last offset, no marker is searched for and the fate is unknown."""
    [winner, _] = here.decide_and_die()
    nowhere = winner._replace(ranges=(winner.ranges[0]._replace(last_offset=-1),))
    assert recovery.Fate.UNKNOWN is recovery.fate_by_marker(here.admin, nowhere, here.budget())


class _short_markers:  # noqa: N801  a context manager
    def __enter__(self):
        self._before = recovery.MARKER_TIMEOUT
        recovery.MARKER_TIMEOUT = 0.3

    def __exit__(self, *_):
        recovery.MARKER_TIMEOUT = self._before


def test_a_delayed_marker_is_waited_for():
    """A plan waits for an abort marker that the coordinator writes after its answer."""
    with embedded_world(transaction_marker_delay_ms=150) as here:
        for winner in here.decide_and_die():
            here.abort_by_hand(winner)
        assert here.driver().plan().must_write(QUERY, 0)
        ledger = here.driver().ledger.fence_and_read(here.budget())
        assert WriteState.VOID is ledger.writes[QUERY].write.state


def test_brokers_can_be_upgraded_between_decision_and_roll_forward(to_be_upgraded):
    """Decisions made under TV1 are rolled forward correctly after an upgrade to TV2."""
    here = to_be_upgraded
    with pytest.raises(CrashError):
        here.finish(0, driver=here.dying(Point.COMMITTED))
    begun_before, left_open = here.dying(Point.DECIDED), here.dying(Point.COMMITTED)
    here.site.set_transaction_version(2)
    assert not here.driver().plan().must_write(QUERY, 0)
    with pytest.raises(CrashError):
        here.finish(1, driver=begun_before)
    with pytest.raises(CrashError):
        here.finish(2, driver=left_open)
    here.finish(3)
    assert (each_once(0, 1, 2, 3), WriteState.DONE) == (here.visible(), here.state())


def test_a_client_uses_the_transaction_version_of_the_cluster(to_be_upgraded):
    """A new client uses the transaction version that the cluster reports."""
    assert 1 == to_be_upgraded.admin.transaction_version(timeout=TIMEOUT)
    to_be_upgraded.site.set_transaction_version(2)
    later = to_be_upgraded.new_admin()
    assert 2 == later.transaction_version(timeout=TIMEOUT)


# --- jobs, and what the ledger keeps


def test_a_job_with_a_write_id_runs_once(here):
    """A job with a write id, with or without rows, is skipped when it runs again."""
    for write_id, prepare in (("full", True), ("empty", False)):
        for run in range(2):
            driver = here.driver()
            plan = driver.plan(write_id)
            assert (run == 0) == plan.must_write(write_id, 0)
            if run == 0:
                prepared = here.worker.run(plan) if prepare else []
                driver.commit(plan, prepared, 0, write_id, job=Job(expires_at_ms=2**62))
    assert each_once(0) == here.visible()


def test_an_expired_job_is_deleted_by_the_next_plan(here):
    """The next plan deletes an expired job's entry and leaves a stream's."""
    here.finish(0)
    driver = here.driver()
    plan = driver.plan("job-1")
    driver.commit(plan, here.worker.run(plan, 5), 0, "job-1", job=Job(expires_at_ms=1))
    assert {"job-1", QUERY} == set(here.ledger_state().writes)
    here.driver().plan("job-2")
    assert {QUERY} == set(here.ledger_state().writes)


def test_a_deleted_ledger_does_not_let_an_older_driver_decide(here):
    """Deleting the ledger does not let an older driver decide, since generations never repeat."""
    driver = here.driver()
    plan = driver.plan()
    prepared = here.worker.run(plan)
    here.recreate_ledger()
    with pytest.raises(OvertakenError, match="were deleted"):
        driver.commit(plan, prepared)
    here.finish(0, driver=here.driver("after"))
    with pytest.raises(OvertakenError, match="after claimed"):
        driver.commit(plan, prepared, 1)
    assert each_once(0) == here.visible()
