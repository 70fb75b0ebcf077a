"""The protocol against the embedded broker: crashes at every point, rivals, zombies, operators."""

from __future__ import annotations

import pickle
import re
from dataclasses import replace

import pytest

from spark_kafka_sink.admin.transaction_values import TransactionEnd
from spark_kafka_sink.devbroker.faults import AnswerError, CloseConnection
from spark_kafka_sink.devbroker.handlers.api_versions import ApiVersionsHandler
from spark_kafka_sink.errors import IllegalStateError, KafkaTimeoutError, ProducerFencedError
from spark_kafka_sink.exactly_once import recovery
from spark_kafka_sink.exactly_once.errors import (
    CommitPendingError,
    ExactlyOnceError,
    MixedError,
    OvertakenError,
    RolledBackError,
    VoidError,
    WinnerLostError,
)
from spark_kafka_sink.exactly_once.ledger import LedgerChanges
from spark_kafka_sink.exactly_once.ledger_records import Claim
from spark_kafka_sink.exactly_once.points import Point
from spark_kafka_sink.exactly_once.transitions import WriteState
from spark_kafka_sink.exactly_once.two_phase_commit import Job, Prepared
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.exactly_once_world import (
    PREFIX,
    QUERY,
    TIMEOUT,
    CrashError,
    each_once,
    rows,
    world,
)

PLAN_POINTS = [point for point in Point if point.value.startswith("plan")]
COMMIT_POINTS = [point for point in Point if point.value.startswith("commit")]
ABORT_POINTS = [point for point in Point if point.value.startswith("abort")]
#: Points of a commit before the decision is durable: what a rival does there decides who wins.
UNDECIDED = (Point.COMMIT_FENCED, Point.CHECKED)


@pytest.fixture(params=[1, 2], ids=["tv1", "tv2"])
def here(request):
    with world(transaction_version=request.param) as made:
        yield made


@pytest.fixture
def tv2():
    with world() as made:
        yield made


def _by_name(point):
    return point.name.lower()


def _state(here, write_id=QUERY, prefix=PREFIX):
    return here.ledger_state(prefix).writes[write_id].write.state


def _abort_by_hand(here, transaction):
    """End a transaction as an operator would, who knows nothing of the protocol."""
    end = TransactionEnd(transaction.transactional_id, transaction.producer, committed=False)
    here.admin.end_transaction(end, timeout=TIMEOUT)


def _decide_and_die(here, batch_id=0):
    """Leave a decision behind of which no winner is committed."""
    driver = here.dying(Point.DECIDED)
    plan = driver.plan()
    prepared = here.worker.run(plan, batch_id)
    with pytest.raises(CrashError):
        driver.commit(plan, prepared, batch_id)
    return [one.transaction for one in prepared]


def _sent(value):
    """Send a value to another process, as Spark does."""
    return pickle.loads(pickle.dumps(value))  # noqa: S301  our own


# --- without faults


def test_batches_become_visible_once_each(here):
    """Nothing is visible before the commit, all of it after, and nothing is left open."""
    driver = here.driver()
    for batch_id in range(3):
        plan = driver.plan()
        assert plan.must_write(QUERY, batch_id)
        prepared = here.worker.run(plan, batch_id)
        assert each_once(*range(batch_id)) == here.visible()
        driver.commit(plan, prepared, batch_id)
    assert each_once(0, 1, 2) == here.visible()
    assert ([], WriteState.DONE) == (here.left_open(), _state(here))
    assert {Point.CLAIMED, Point.SWEPT, Point.DECIDED, Point.DONE} <= set(driver.reached)


def test_plan_commit_and_abort_may_be_in_different_processes(here):
    """The plan is pickled, and so is what the tasks hand back."""
    plan = _sent(here.driver("planner").plan())
    prepared = _sent(here.worker.run(plan))
    here.driver("committer").commit(plan, prepared)
    assert each_once(0) == here.visible()


def test_making_a_driver_asks_nobody(here):
    """Spark makes a writer before every commit and abort: that must not fence the one at work."""
    driver = here.driver()
    plan = driver.plan()
    prepared = here.worker.run(plan)
    hooks = [here.broker.on(key, lambda *_: None) for key in ApiKey]
    here.driver("made right before the commit")
    assert 0 == sum(hook.seen for hook in hooks)
    driver.commit(plan, prepared)
    assert each_once(0) == here.visible()


def test_a_replayed_batch_is_skipped(here):
    """What is in is not written again: Spark's commit log was lost, not the batch."""
    here.finish(0)
    assert not here.driver().plan().must_write(QUERY, 0)
    here.finish(0)
    assert each_once(0) == here.visible()


def test_a_rolled_back_checkpoint_is_refused(here):
    """An older batch than the last would be in twice; the error says what happened."""
    here.finish(0)
    here.finish(1)
    driver = here.driver()
    plan = driver.plan()
    with pytest.raises(RolledBackError, match=r"batch 0 of 'query-1' comes after batch 1"):
        plan.must_write(QUERY, 0)
    with pytest.raises(RolledBackError, match="checkpoint was rolled back"):
        driver.commit(plan, here.worker.run(plan), 0)
    assert each_once(0, 1) == here.visible()


def test_a_planner_that_does_not_know_its_write_id_tells_of_all_streams(here):
    """A streaming writer learns its query's id from its tasks only."""
    here.finish(0)
    job = here.driver()
    plan = job.plan("job-1")
    job.commit(plan, here.worker.run(plan, 7), 0, "job-1", job=Job(expires_at_ms=2**62))
    plan = here.driver().plan(None)
    assert [QUERY] == list(plan.writes)
    assert not plan.must_write(QUERY, 0)
    assert plan.must_write("another", 0)


def test_an_empty_batch_of_a_stream_asks_nobody(here):
    """Without a transaction there is nothing to decide."""
    driver = here.driver()
    plan = driver.plan()
    before = len(driver.reached)
    driver.commit(plan, [])
    assert (False, before) == (driver.abort(plan, []), len(driver.reached))


def test_an_attempt_without_rows_is_no_winner(here):
    """Emptiness is told by what was acknowledged: the coordinator knows of no transaction."""
    driver = here.driver()
    plan = driver.plan()
    attempt = here.worker.begin(plan, 0)
    full = here.worker.begin(plan, 1).write("a")
    empty = Prepared(
        plan.generation,
        full.transaction._replace(transactional_id=str(attempt.worker_id), ranges=()),
    )
    driver.commit(plan, [empty, full])
    assert ["a"] == here.visible()


def test_losers_are_aborted_with_the_commit(here):
    """A speculative copy that came too late leaves nothing open."""
    driver = here.driver()
    plan = driver.plan()
    prepared = here.worker.run(plan)
    here.worker.begin(plan, 0).write("a loser's row")
    driver.commit(plan, prepared)
    assert (each_once(0), []) == (here.visible(), here.left_open())


def test_an_abort_ends_what_the_tasks_left_open(here):
    """Nothing is visible, and the batch can be written again."""
    driver = here.driver()
    plan = driver.plan()
    assert driver.abort(plan, here.worker.run(plan))
    assert ([], []) == (here.visible(), here.left_open())
    here.finish(0)
    assert each_once(0) == here.visible()


def test_two_tasks_by_one_id_are_refused():
    """Then a worker has used a slot twice in a generation, and one of them is lost already."""
    with world() as here:
        driver = here.driver()
        plan = driver.plan()
        prepared = here.worker.run(plan)
        with pytest.raises(ExactlyOnceError, match="the same transactional id"):
            driver.commit(plan, [prepared[0], prepared[0]])


def test_tasks_of_another_plan_are_refused(here):
    """A writer that was pickled by another driver must not be committed by this one."""
    prepared = here.worker.run(here.driver().plan())
    driver = here.driver()
    plan = driver.plan()
    with pytest.raises(OvertakenError, match="planned by another driver"):
        driver.commit(plan, prepared)
    assert [] == here.visible()


def test_requests_do_not_grow_with_the_ledger(tv2):
    """A driver that lives on reads only what is new."""
    driver = tv2.driver()
    hooks = [tv2.broker.on(key, lambda *_: None) for key in ApiKey]
    seen = []
    for batch_id in range(12):
        before = sum(hook.seen for hook in hooks)
        driver.plan()
        tv2.finish(batch_id, driver=driver)
        seen.append(sum(hook.seen for hook in hooks) - before)
    assert seen[-1] <= seen[1]


# --- crashes


@pytest.mark.parametrize("point", [*PLAN_POINTS, *COMMIT_POINTS], ids=_by_name)
def test_a_driver_that_dies_is_followed_by_another(here, point):
    """Wherever it dies, each row is visible once in the end, and nothing is left open."""
    here.finish(0)
    driver = here.dying(point)
    with pytest.raises(CrashError):
        here.finish(1, driver=driver)
    assert point is driver.reached[-1]
    here.finish(1)
    here.finish(2)
    assert (each_once(0, 1, 2), []) == (here.visible(), here.left_open())


@pytest.mark.parametrize("first", [*PLAN_POINTS, *COMMIT_POINTS], ids=_by_name)
@pytest.mark.parametrize("second", PLAN_POINTS, ids=_by_name)
def test_recovery_itself_may_die(tv2, first, second):
    """A second driver dies while it recovers what the first has left."""
    for point in (first, second):
        batch_id = 0 if tv2.visible() == [] else 1
        with pytest.raises(CrashError):
            tv2.finish(batch_id, driver=tv2.dying(point))
    tv2.finish(0)
    tv2.finish(1)
    assert (each_once(0, 1), []) == (tv2.visible(), tv2.left_open())


@pytest.mark.parametrize("point", ABORT_POINTS, ids=_by_name)
def test_an_abort_that_dies_is_finished_by_the_next_plan(here, point):
    """What it left open is swept, and the batch written again."""
    driver = here.dying(point)
    plan = driver.plan()
    with pytest.raises(CrashError):
        driver.abort(plan, here.worker.run(plan))
    here.finish(0)
    assert (each_once(0), []) == (here.visible(), here.left_open())


def _end_only(here, code, commits):
    """Have the broker refuse to end transactions of tasks after some commits."""
    ended = []

    def decide(request, _):
        if request.transactional_id.endswith(".ledger") or not request.committed:
            return None
        if len(ended) >= commits:
            return AnswerError(code)
        ended.append(request.transactional_id)
        return None

    return here.broker.on(ApiKey.END_TXN, decide)


def test_a_commit_that_stops_half_way_is_rolled_forward(here):
    """One winner is committed, the other one's coordinator fails: the decision stands."""
    driver = here.driver()
    plan = driver.plan()
    prepared = here.worker.run(plan)
    hook = _end_only(here, ErrorCode.UNKNOWN_SERVER_ERROR, 1)
    with pytest.raises(CommitPendingError, match="1 of its 2 transactions"):
        driver.commit(plan, prepared)
    assert 3 == len(here.visible())
    # Spark now calls abort() with all messages.
    assert not driver.abort(plan, prepared)
    with pytest.raises(CommitPendingError):
        here.driver().plan()
    hook.remove()
    assert not here.driver().plan().must_write(QUERY, 0)
    assert (each_once(0), WriteState.DONE) == (here.visible(), _state(here))


def test_an_abort_touches_nothing_that_is_decided(here):
    """Spark calls abort() with all messages also when commit() died after its decision."""
    winners = _decide_and_die(here)
    generation = here.ledger_state().generation
    plan = replace(here.driver().plan(), generation=generation)
    assert not here.driver().abort(plan, [Prepared(generation, winner) for winner in winners])
    assert each_once(0) == here.visible()


def test_what_is_lost_on_the_way_to_the_ledger_is_looked_up(here):
    """The decision's EndTxn is done and answered by an error: it is read, not assumed."""
    driver = here.driver()
    plan = driver.plan()
    prepared = here.worker.run(plan)
    here.broker.on(
        ApiKey.END_TXN, AnswerError(ErrorCode.UNKNOWN_SERVER_ERROR, handled=True), times=1
    )
    driver.commit(plan, prepared)
    assert 2 == driver.reached.count(Point.COMMIT_FENCED)
    assert (each_once(0), WriteState.DONE) == (here.visible(), _state(here))


def test_a_decision_that_did_not_get_through_is_made_again(here):
    """The same error, and nothing was done: the driver finds its batch undecided."""
    driver = here.driver()
    plan = driver.plan()
    prepared = here.worker.run(plan)
    here.broker.on(ApiKey.END_TXN, AnswerError(ErrorCode.UNKNOWN_SERVER_ERROR), times=1)
    driver.commit(plan, prepared)
    assert 2 == driver.reached.count(Point.CHECKED)
    assert (each_once(0), []) == (here.visible(), here.left_open())


@pytest.mark.parametrize("handled", [True, False], ids=["done", "not done"])
def test_a_claim_of_unknown_outcome_is_made_again(here, handled):
    """The plan begins anew, with a generation of its own."""
    here.broker.on(
        ApiKey.END_TXN, AnswerError(ErrorCode.UNKNOWN_SERVER_ERROR, handled=handled), times=1
    )
    driver = here.driver()
    plan = driver.plan()
    assert 2 == driver.reached.count(Point.PLAN_FENCED)
    driver.commit(plan, here.worker.run(plan))
    assert each_once(0) == here.visible()


def test_a_lost_connection_changes_nothing(here):
    """Every request of the ledger and of the commit is sent again."""
    driver = here.driver()
    plan = driver.plan()
    prepared = here.worker.run(plan)
    for key in (ApiKey.PRODUCE, ApiKey.END_TXN, ApiKey.INIT_PRODUCER_ID, ApiKey.FETCH):
        here.broker.on(key, CloseConnection(handled=True), times=1)
    driver.commit(plan, prepared)
    assert each_once(0) == here.visible()


def test_a_done_mark_that_is_refused_is_no_error(here):
    """All is visible by then; the next plan notes it."""
    rival = here.driver("rival")

    def fence(point):
        if point is Point.COMMITTED:
            rival.ledger.fence_and_read(here.budget())

    driver = here.driver(observe=fence)
    plan = driver.plan()
    driver.commit(plan, here.worker.run(plan))
    assert (each_once(0), WriteState.DECIDED) == (here.visible(), _state(here))
    assert not here.driver().plan().must_write(QUERY, 0)
    assert WriteState.DONE is _state(here)


# --- rivals


def test_the_later_of_two_drivers_wins(here):
    """The earlier one fails at its commit, with a sentence that names the other."""
    first = here.driver("host-a:1")
    plan = first.plan()
    prepared = here.worker.run(plan)
    here.finish(0, driver=here.driver("host-b:2"))
    with pytest.raises(OvertakenError, match="host-b:2 claimed generation"):
        first.commit(plan, prepared)
    assert (each_once(0), []) == (here.visible(), here.left_open())


def test_two_jobs_under_one_prefix_do_not_mix(here):
    """Parallel jobs need a prefix each; under one, the earlier fails and writes nothing."""
    job = Job(expires_at_ms=2**62)
    first, second = here.driver("first"), here.driver("second")
    plans = first.plan("job-1"), second.plan("job-2")
    prepared = [here.worker.run(plan, 0, name) for plan, name in zip(plans, "xy", strict=True)]
    with pytest.raises(OvertakenError, match="need a transactionalIdPrefix each"):
        first.commit(plans[0], prepared[0], 0, "job-1", job=job)
    second.commit(plans[1], prepared[1], 0, "job-2", job=job)
    assert each_once(0, name="y") == here.visible()


@pytest.mark.parametrize("point", COMMIT_POINTS, ids=_by_name)
def test_a_whole_driver_comes_in_between_a_commit(here, point):
    """Before the decision it takes over; afterwards it finds the batch in."""
    rival = here.driver("rival")

    def come_in(reached):
        if reached is point and not rival.reached:
            here.finish(0, driver=rival)

    driver = here.driver("first", observe=come_in)
    plan = driver.plan()
    prepared = here.worker.run(plan)
    if point in UNDECIDED:
        # What it finds first: its transactions aborted, or its claim outdated.
        with pytest.raises((OvertakenError, WinnerLostError), match=r"rival|taken over"):
            driver.commit(plan, prepared)
    else:
        driver.commit(plan, prepared)
    assert (each_once(0), []) == (here.visible(), here.left_open())


@pytest.mark.parametrize("point", PLAN_POINTS, ids=_by_name)
def test_a_whole_driver_comes_in_between_a_plan(here, point):
    """The one that is fenced begins again; whichever claims last may decide."""
    rival = here.driver("rival")

    def come_in(reached):
        if reached is point and not rival.reached:
            here.finish(0, driver=rival)

    driver = here.driver("first", observe=come_in)
    plan = driver.plan()
    if point in {Point.CLAIMED, Point.SWEPT}:
        assert plan.must_write(QUERY, 0)
        with pytest.raises(OvertakenError, match="has committed this batch"):
            driver.commit(plan, here.worker.run(plan))
    else:
        assert not plan.must_write(QUERY, 0)
    here.finish(1)
    assert (each_once(0, 1), []) == (here.visible(), here.left_open())


@pytest.mark.parametrize("point", [*PLAN_POINTS, *COMMIT_POINTS], ids=_by_name)
def test_a_rival_that_dies_in_between_changes_nothing(tv2, point):
    """Half of another driver, at any point of it, between the plan and the commit of the first."""
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
def test_an_abort_may_come_while_the_commit_runs(here, point):
    """Before the decision the abort wins and the commit fails; afterwards it does nothing."""
    other = here.driver("abort")
    done = []

    def abort(reached):
        if reached is point and not done:
            done.append(other.abort(plan, prepared))

    driver = here.driver(observe=abort)
    plan = driver.plan()
    prepared = here.worker.run(plan)
    if point in UNDECIDED:
        with pytest.raises((OvertakenError, WinnerLostError), match=r"\(abort\)|taken over"):
            driver.commit(plan, prepared)
    else:
        driver.commit(plan, prepared)
    assert [point in UNDECIDED] == done
    here.finish(0)
    assert (each_once(0), []) == (here.visible(), here.left_open())


def test_an_abort_that_is_fenced_leaves_all_alone(here):
    """Its claim was refused: what it would abort may be decided by now."""
    rival = here.driver("rival")
    driver = here.driver(
        observe=lambda point: point is Point.ABORT_FENCED and here.finish(0, driver=rival)
    )
    plan = driver.plan()
    assert not driver.abort(plan, here.worker.run(plan))
    assert (each_once(0), []) == (here.visible(), here.left_open())


def test_an_overtaken_abort_leaves_all_alone(here):
    """The batch belongs to another driver; a plan swept what was left."""
    driver = here.driver()
    plan = driver.plan()
    prepared = here.worker.run(plan)
    here.driver().plan()
    assert not driver.abort(plan, prepared)


def test_a_zombie_wakes_up_after_the_next_batch_has_begun(here):
    """Its transaction is nobody's: it is not committed, and the next plan aborts it."""
    driver = here.driver()
    plan = driver.plan()
    zombie = here.worker.begin(plan, 0)
    driver.commit(plan, here.worker.run(plan, 0), 0)
    after = driver.plan()
    late = zombie.write("a zombie's row")
    driver.commit(after, here.worker.run(after, 1), 1)
    with pytest.raises(OvertakenError):
        driver.commit(plan, [late], 1)
    here.driver().plan()
    assert (each_once(0, 1), []) == (here.visible(), here.left_open())


def test_a_zombie_cannot_write_by_an_id_that_has_moved_on(here):
    """Its slot went to a later generation, whose InitProducerId has fenced it."""
    driver = here.driver()
    plan = driver.plan()
    old = here.worker.begin(plan, 0)
    here.worker.slots.release(old.worker_id)
    after = driver.plan()
    prepared = here.worker.run(after)
    assert str(old.worker_id) == prepared[0].transaction.transactional_id
    with pytest.raises(ProducerFencedError, match=r"PRODUCER_FENCED|INVALID_PRODUCER_EPOCH"):
        old.write("a zombie's row")
    driver.commit(after, prepared)
    assert each_once(0) == here.visible()


def test_two_queries_may_take_turns_under_one_prefix(here):
    """What one has decided is finished by the other, and each finds its own batches."""
    winners = _decide_and_die(here)
    other = here.driver("other query")
    plan = other.plan("query-2")
    assert (3 * len(winners), WriteState.DONE) == (len(here.visible()), _state(here))
    other.commit(plan, here.worker.run(plan, 0, "x"), 0, "query-2")
    assert not here.driver().plan().must_write(QUERY, 0)
    here.finish(1)
    expected = sorted(each_once(0, 1) + each_once(0, name="x"))
    assert expected == here.visible()


def test_prefixes_do_not_touch_each_other(here):
    """`orders` and `orders.eu` share the ledger's topic and nothing else."""
    other = here.driver(prefix="orders.eu")
    plan = other.plan()
    attempt = type(here.worker)(here.admin, "orders.eu").begin(plan, 0)
    theirs = attempt.write("theirs")
    here.finish(0)
    assert [theirs.transaction.transactional_id] == here.left_open("orders.eu")
    other.commit(plan, [theirs])
    assert sorted([*each_once(0), "theirs"]) == here.visible()


def test_another_prefixs_open_ledger_transaction_hides_nothing(here):
    """It holds back the last stable offset, and reading goes to the high watermark."""
    other = here.driver(prefix="zz")
    other.ledger.fence_and_read(here.budget())
    stuck = other.ledger._producer
    here.admin.write_to_transaction(
        "zz.ledger",
        stuck,
        TopicPartition("ledger", 0),
        other.ledger._entries(_claim()),
        now_ms=0,
        timeout=TIMEOUT,
    )
    here.finish(0)
    assert not here.driver().plan().must_write(QUERY, 0)
    assert each_once(0) == here.visible()


def _claim():
    return LedgerChanges(claim=Claim(1, 0, "stuck"))


# --- decisions that cannot be carried out


def test_a_winner_that_timed_out_fails_the_batch_before_the_decision(here):
    """Nothing is visible, and the error says what to set."""
    driver = here.driver()
    plan = driver.plan()
    prepared = here.worker.run(plan)
    here.time_out_everything()
    with pytest.raises(WinnerLostError, match=re.escape("transaction.timeout.ms")):
        driver.commit(plan, prepared)
    here.finish(0)
    assert each_once(0) == here.visible()


def test_a_winner_without_time_to_spare_fails_the_batch(here):
    """What might time out between the decision and its commit is not decided."""
    driver = here.driver()
    plan = driver.plan()
    prepared = here.worker.run(plan)
    here.clock.ahead = 570
    with pytest.raises(WinnerLostError, match="times out in"):
        driver.commit(plan, prepared)


def test_a_brokers_clock_that_is_ahead_fails_nobody(here):
    """Its start time is not believed, and the plan's stands in for it."""
    here.clock.ahead = -3600
    driver = here.driver()
    plan = driver.plan()
    driver.commit(plan, here.worker.run(plan))
    assert each_once(0) == here.visible()


def test_a_winner_aborted_by_an_operator_fails_the_batch(here):
    """Before the decision that is only a failed batch."""
    driver = here.driver()
    plan = driver.plan()
    prepared = here.worker.run(plan)
    _abort_by_hand(here, prepared[1].transaction)
    with pytest.raises(WinnerLostError, match="is not open any more"):
        driver.commit(plan, prepared)
    assert [] == here.visible()


def test_a_decision_of_which_all_is_aborted_is_void(here):
    """The next plan notes it, and the batch is written again."""
    for winner in _decide_and_die(here):
        _abort_by_hand(here, winner)
    plan = here.driver().plan()
    assert (True, WriteState.VOID) == (plan.must_write(QUERY, 0), _state(here))
    here.finish(0)
    assert each_once(0) == here.visible()


def test_a_decision_that_timed_out_is_void(here):
    """The driver was away for longer than transaction.timeout.ms."""
    here.finish(0)
    _decide_and_die(here, 1)
    here.time_out_everything()
    here.finish(1)
    assert each_once(0, 1) == here.visible()


def test_a_commit_that_finds_all_aborted_says_so(here):
    """It is void at once, and a replay writes it again."""

    def abort(point):
        if point is Point.DECIDED:
            for one in prepared:
                _abort_by_hand(here, one.transaction)

    driver = here.driver(observe=abort)
    plan = driver.plan()
    prepared = here.worker.run(plan)
    with pytest.raises(VoidError, match="to be written again"):
        driver.commit(plan, prepared)
    assert WriteState.VOID is _state(here)
    here.finish(0)
    assert each_once(0) == here.visible()


def _mix(here):
    """Have an operator abort one of two winners after the decision."""
    winners = _decide_and_die(here)
    _abort_by_hand(here, winners[1])
    return winners


def test_a_mixed_batch_stops_the_query(here):
    """The error names what is in and what is not; a restart meets it again."""
    _mix(here)
    sentence = r"in: data-0 offsets 0 to 2; not in: data-1 offsets 0 to 2"
    for _ in range(2):
        with pytest.raises(MixedError, match=sentence):
            here.driver().plan()
    assert (rows(0)[0], WriteState.MIXED) == (here.visible(), _state(here))
    plan = here.driver().plan(None)
    with pytest.raises(MixedError, match="resolve it"):
        plan.must_write(QUERY, 0)


def test_a_commit_that_finds_half_of_it_aborted_says_so(here):
    """It is noted as mixed at once."""
    driver = here.driver(
        observe=lambda point: (
            point is Point.DECIDED and _abort_by_hand(here, prepared[0].transaction)
        )
    )
    plan = driver.plan()
    prepared = here.worker.run(plan)
    with pytest.raises(MixedError, match="not in: data-0"):
        driver.commit(plan, prepared)
    with pytest.raises(MixedError):
        driver.commit(plan, prepared)
    assert not driver.abort(plan, prepared)
    assert rows(0)[1] == here.visible()


def test_another_query_under_the_prefix_goes_on_beside_a_mixed_one(here, caplog):
    """It notes and logs what it found, and the mixed query is stopped at its own start."""
    _mix(here)
    other = here.driver()
    plan = other.plan("query-2")
    assert "visible in part" in caplog.text
    other.commit(plan, here.worker.run(plan, 0, "x"), 0, "query-2")
    with pytest.raises(MixedError):
        here.driver().plan()
    assert sorted(rows(0)[0] + each_once(0, name="x")) == here.visible()


def test_an_operator_may_take_a_mixed_batch_as_it_is(here):
    """Then it counts as in, and the query goes on behind it."""
    _mix(here)
    with pytest.raises(MixedError):
        here.driver().plan()
    _resolve(here, skip=True)
    here.finish(0)
    here.finish(1)
    assert sorted(rows(0)[0] + each_once(1)) == here.visible()


def test_an_operator_may_have_a_mixed_batch_written_again(here):
    """What was in is there twice then, as the operator was told."""
    _mix(here)
    with pytest.raises(MixedError):
        here.driver().plan()
    _resolve(here, skip=False)
    here.finish(0)
    assert sorted(rows(0)[0] + each_once(0)) == here.visible()


def _resolve(here, *, skip, write_id=QUERY):
    return recovery.resolve(
        here.driver().ledger, write_id, skip=skip, now_ms=0, budget=here.budget()
    )


def test_a_resolution_of_unknown_outcome_is_looked_up(here):
    """The entry was appended, and its answer lost."""
    _mix(here)
    with pytest.raises(MixedError):
        here.driver().plan()
    here.broker.on(
        ApiKey.END_TXN, AnswerError(ErrorCode.UNKNOWN_SERVER_ERROR, handled=True), times=1
    )
    assert WriteState.DONE is _resolve(here, skip=True).write.state


def test_only_what_is_mixed_can_be_resolved(here):
    """A batch that is done stays done, and an unknown write is named."""
    here.finish(0)
    with pytest.raises(IllegalStateError, match="nothing to resolve"):
        _resolve(here, skip=False)
    with pytest.raises(ExactlyOnceError, match="has no write 'nobody'"):
        _resolve(here, skip=False, write_id="nobody")


def test_a_marker_that_cannot_be_read_leaves_the_batch_mixed(here):
    """Without READ on the data topic nobody can tell, and nothing is written twice for that."""
    for winner in _decide_and_die(here):
        _abort_by_hand(here, winner)
    here.broker.on(
        ApiKey.FETCH,
        lambda request, _: (
            AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            if request.topics[0].topic == "data"
            else None
        ),
    )
    with pytest.raises(MixedError, match="not known: data-0 offsets 0 to 2, data-1"):
        here.driver().plan()


def test_a_marker_that_was_deleted_leaves_the_batch_mixed(here):
    """Retention has taken the records and their marker before anybody looked."""
    for winner in _decide_and_die(here):
        _abort_by_hand(here, winner)
    for partition in range(2):
        place = TopicPartition("data", partition)
        here.broker.call(
            lambda broker, place=place: broker.cluster.partition(place).log.delete_records(4)
        )
    here.clock.ahead = 1
    with pytest.raises(MixedError, match="not known"), _short_markers():
        here.driver().plan()


def test_a_later_transactions_marker_is_not_taken_for_the_winners(here, monkeypatch):
    """Compaction may have removed ours; the epoch tells."""
    [winner, _] = _decide_and_die(here)
    _abort_by_hand(here, winner)
    stale = winner._replace(producer=winner.producer._replace(epoch=winner.producer.epoch - 2))
    assert recovery.Fate.UNKNOWN is recovery.fate_by_marker(here.admin, stale, here.budget())
    assert recovery.Fate.ABORTED is recovery.fate_by_marker(here.admin, winner, here.budget())


def test_offsets_that_nobody_told_lead_to_no_marker(here):
    """A broker that has forgotten a duplicate's offset does not give one."""
    [winner, _] = _decide_and_die(here)
    nowhere = winner._replace(ranges=(winner.ranges[0]._replace(last_offset=-1),))
    assert recovery.Fate.UNKNOWN is recovery.fate_by_marker(here.admin, nowhere, here.budget())


class _short_markers:  # noqa: N801  a context manager
    def __enter__(self):
        self._before = recovery.MARKER_TIMEOUT
        recovery.MARKER_TIMEOUT = 0.3

    def __exit__(self, *_):
        recovery.MARKER_TIMEOUT = self._before


def test_a_marker_that_is_late_is_waited_for():
    """The coordinator has answered, and writes the abort's markers a moment later."""
    with world(transaction_marker_delay_ms=150) as here:
        for winner in _decide_and_die(here):
            _abort_by_hand(here, winner)
        assert here.driver().plan().must_write(QUERY, 0)
        ledger = here.driver().ledger.fence_and_read(here.budget())
        assert WriteState.VOID is ledger.writes[QUERY].write.state


def _upgrade(broker):
    """Finalize transaction.version 2; clients that are connected learn of it later."""
    settings = replace(broker.settings, transaction_version=2)
    broker.settings = broker.cluster.transactions._settings = settings
    handler = ApiVersionsHandler(broker.supported_versions, transaction_version=2)
    broker._api_versions = broker._handlers[ApiKey.API_VERSIONS] = handler


def test_brokers_may_be_upgraded_between_decision_and_roll_forward():
    """What TV1 has committed is found committed when the cluster has TV2, and nothing is mixed."""
    with world(transaction_version=1) as here:
        with pytest.raises(CrashError):
            here.finish(0, driver=here.dying(Point.COMMITTED))
        begun_before = here.dying(Point.DECIDED)
        here.broker.call(_upgrade)
        assert not here.driver().plan().must_write(QUERY, 0)
        with pytest.raises(CrashError):
            here.finish(1, driver=begun_before)
        here.finish(2)
        assert (each_once(0, 1, 2), WriteState.DONE) == (here.visible(), _state(here))


# --- jobs, and what the ledger keeps


def test_a_job_with_a_write_id_runs_once(here):
    """Run again, it finds itself in; so does one without rows."""
    for write_id, prepare in (("full", True), ("empty", False)):
        for run in range(2):
            driver = here.driver()
            plan = driver.plan(write_id)
            assert (run == 0) == plan.must_write(write_id, 0)
            if run == 0:
                prepared = here.worker.run(plan) if prepare else []
                driver.commit(plan, prepared, 0, write_id, job=Job(expires_at_ms=2**62))
    assert each_once(0) == here.visible()


def test_an_expired_job_is_forgotten_by_the_next_plan(here):
    """Its entry is deleted; a stream's is kept."""
    here.finish(0)
    driver = here.driver()
    plan = driver.plan("job-1")
    driver.commit(plan, here.worker.run(plan, 5), 0, "job-1", job=Job(expires_at_ms=1))
    assert {"job-1", QUERY} == set(here.ledger_state().writes)
    here.driver().plan("job-2")
    assert {QUERY} == set(here.ledger_state().writes)


def test_a_deleted_ledger_does_not_let_an_older_driver_decide(here):
    """Generations are numbered by the clock, so that none comes twice."""
    driver = here.driver()
    plan = driver.plan()
    prepared = here.worker.run(plan)
    _delete_ledger(here)
    with pytest.raises(OvertakenError, match="were deleted"):
        driver.commit(plan, prepared)
    here.finish(0, driver=here.driver("after"))
    with pytest.raises(OvertakenError, match="after claimed"):
        driver.commit(plan, prepared, 1)
    assert each_once(0) == here.visible()


def _delete_ledger(here):
    place = TopicPartition("ledger", 0)
    here.broker.call(
        lambda broker: broker.cluster.partition(place).log.delete_records(
            broker.cluster.partition(place).log.high_watermark
        )
    )


def test_a_plan_ends_in_the_time_it_was_given(here):
    """A coordinator that never answers for good is named."""
    here.broker.on(ApiKey.INIT_PRODUCER_ID, AnswerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
    with pytest.raises(KafkaTimeoutError, match=r"InitProducerId of 'orders\.ledger'"):
        here.driver().plan(timeout=0.2)


def test_an_orphan_that_cannot_be_aborted_is_a_warning(here, caplog):
    """The write goes on: its time-out ends the orphan."""
    here.worker.begin(here.driver().plan(), 0).write("an orphan's row")
    hook = here.broker.on(
        ApiKey.END_TXN,
        lambda request, _: (
            None
            if request.committed
            else AnswerError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        ),
    )
    here.finish(0)
    assert "until it times out" in caplog.text
    hook.remove()
    here.finish(1)
    assert (each_once(0, 1), []) == (here.visible(), here.left_open())
