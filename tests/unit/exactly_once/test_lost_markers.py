"""The protocol when a coordinator acknowledges EndTxn but loses markers (KAFKA-20734)."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker.net.faults import AnswerError
from spark_kafka_sink.exactly_once import ledger, markers
from spark_kafka_sink.exactly_once.errors import (
    CommitPendingError,
    LedgerFencedError,
    LedgerOutcomeUnknownError,
    MixedError,
)
from spark_kafka_sink.exactly_once.ledger import Ledger, LedgerChanges
from spark_kafka_sink.exactly_once.ledger_records import Claim
from spark_kafka_sink.exactly_once.transitions import WriteState
from spark_kafka_sink.exactly_once.two_phase_commit import Point
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.exactly_once.exactly_once_world import CrashError, Worker, each_once


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    """Make missing markers count as lost almost at once."""
    monkeypatch.setattr(ledger, "MARKER_SECONDS", 0.2)
    monkeypatch.setattr(markers, "MAX_CHECKS", 1)


def _ledger(world):
    return Ledger(world.new_admin(), topic=world.ledger, prefix=world.prefix, clock=world.clock)


def _claim(generation):
    return LedgerChanges(claim=Claim(generation, 1, "me"))


def _checked(world, *batches):
    """Check that each row is visible once at both isolation levels, and nothing is open."""
    assert each_once(*batches) == world.visible(stable=True)
    assert each_once(*batches) == world.visible()
    assert [] == world.left_open()


# --- in the ledger


def test_an_entry_without_a_marker_is_aborted(embedded):
    """The next fence aborts an entry whose marker was lost, so no later marker can commit it."""
    first = _ledger(embedded)
    first.fence_and_read(embedded.budget())
    first.append(_claim(1), embedded.budget())
    lost = embedded.site.lose_markers(embedded.ledger, 1)
    with pytest.raises(LedgerOutcomeUnknownError, match="no marker"):
        first.append(_claim(2), embedded.budget())
    assert 1 == lost()
    second = _ledger(embedded)
    assert 1 == second.fence_and_read(embedded.budget()).generation
    second.append(LedgerChanges(forget=frozenset({"nothing"})), embedded.budget())
    assert 1 == embedded.ledger_state().generation


def test_a_writer_whose_entry_was_aborted_is_fenced(embedded, monkeypatch):
    """A writer whose acknowledged append a rival's fence has aborted is fenced, not successful."""
    monkeypatch.setattr(ledger, "MARKER_SECONDS", 60)
    writer, rival = _ledger(embedded), _ledger(embedded)
    writer.fence_and_read(embedded.budget())
    lost = embedded.site.lose_markers(embedded.ledger, 1)
    read_log, cleared = writer._admin.read_log, []

    def read_behind_the_rival(*args, **settings):
        if not cleared:
            cleared.append(rival.fence_and_read(embedded.budget()).generation)
        return read_log(*args, **settings)

    monkeypatch.setattr(writer._admin, "read_log", read_behind_the_rival)
    with pytest.raises(LedgerFencedError, match="another driver now writes the ledger"):
        writer.append(_claim(1), embedded.budget())
    assert (1, [0]) == (lost(), cleared)
    assert 0 == rival.fence_and_read(embedded.budget()).generation


def test_a_delayed_marker_is_waited_for(embedded):
    """A delayed marker makes the outcome unknown, and the next fence waits for it."""
    writer = _ledger(embedded)
    writer.fence_and_read(embedded.budget())
    embedded.site.delay_markers(600_000)
    with pytest.raises(LedgerOutcomeUnknownError, match="no marker"):
        writer.append(_claim(1), embedded.budget())
    embedded.site.delay_markers(0)
    embedded.site.pass_time(601)
    assert 1 == writer.fence_and_read(embedded.budget()).generation


@pytest.mark.parametrize("which", [1, 2, 3], ids=["claim", "decision", "done"])
def test_a_driver_appends_a_lost_entry_again(embedded, which):
    """A driver whose entry lost its marker appends it again, and each row is visible once."""
    driver = embedded.driver()
    plan = driver.plan() if which > 1 else None
    lost = embedded.site.lose_markers(embedded.ledger, 1, after=max(0, which - 2))
    plan = plan or driver.plan()
    driver.commit(plan, embedded.worker.run(plan))
    assert 1 == lost()
    embedded.finish(0)
    embedded.finish(1)
    _checked(embedded, 0, 1)


@pytest.mark.parametrize("point", [Point.DECIDED, Point.COMMITTED, Point.DONE])
def test_a_lost_decision_commits_no_winner(embedded, point):
    """No winner is committed before the decision's marker is read, wherever the driver dies."""
    driver = embedded.dying(point)
    plan = driver.plan()
    prepared = embedded.worker.run(plan)
    lost = embedded.site.lose_markers(embedded.ledger, 1)
    with pytest.raises(CrashError):
        driver.commit(plan, prepared)
    assert 1 == lost()
    embedded.finish(0)
    embedded.finish(1)
    _checked(embedded, 0, 1)


# --- in the data


@pytest.mark.parametrize("count", [1, 2, 4])
def test_lost_commit_markers_are_rewritten(embedded, count):
    """Lost commit markers are rewritten, repeatedly if needed, before the batch is done."""
    driver = embedded.driver()
    plan = driver.plan()
    prepared = embedded.worker.run(plan)
    lost = embedded.site.lose_markers(embedded.data, count)
    driver.commit(plan, prepared)
    assert count == lost()
    assert WriteState.DONE is embedded.state()
    _checked(embedded, 0)


def test_rows_with_a_lost_abort_marker_are_never_committed(embedded):
    """Rows of an aborted transaction without a marker are not committed by the next transaction."""
    driver = embedded.driver()
    attempt = embedded.worker.begin(driver.plan(), 0)
    attempt.write("of a batch that failed")
    lost = embedded.site.lose_markers(embedded.data, 1)
    embedded.finish(0)
    assert 1 == lost()
    _checked(embedded, 0)


def test_a_driver_that_may_not_list_open_producers_rewrites_the_markers(embedded):
    """A driver that may not list open producers assumes that markers are lost and writes them."""
    driver = embedded.driver()
    plan = driver.plan()
    prepared = embedded.worker.run(plan)
    embedded.broker.on(ApiKey.DESCRIBE_PRODUCERS, AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    lost = embedded.site.lose_markers(embedded.data, 1)
    driver.commit(plan, prepared)
    assert 1 == lost()
    _checked(embedded, 0)


def test_another_writers_open_transaction_triggers_no_rewrite(embedded):
    """Another writer's open transaction in the same partitions triggers no marker rewrite."""
    driver = embedded.driver()
    plan = driver.plan()
    stranger = Worker(embedded, "somebody else").begin(plan, 0)
    stranger.write("not committed")
    hook = embedded.broker.on(ApiKey.ADD_PARTITIONS_TO_TXN, lambda *_: None)
    prepared = embedded.worker.run(plan)
    seen = hook.seen
    driver.commit(plan, prepared)
    assert each_once(0) == embedded.visible()
    # TV1 adds the ledger's partition twice; a rewritten marker would add more.
    assert hook.seen - seen in {0, 2}


def test_a_batch_whose_producer_has_moved_on_is_mixed(embedded):
    """If the producer has moved on before its lost marker is rewritten, the batch is mixed."""
    driver = embedded.driver()
    plan = driver.plan()
    prepared = embedded.worker.run(plan)
    lost = embedded.site.lose_markers(embedded.data, 1)

    def fence(request, _):
        if request.v3_and_below_transactional_id.endswith(".ledger"):
            return None
        return AnswerError(ErrorCode.PRODUCER_FENCED)

    hook = embedded.broker.on(ApiKey.ADD_PARTITIONS_TO_TXN, fence, expect=True)
    with pytest.raises(MixedError, match="unknown: "):
        driver.commit(plan, prepared)
    assert 1 == lost()
    hook.remove()


def test_a_driver_can_die_while_rewriting_markers(embedded):
    """If a driver dies while rewriting markers, the next driver commits the same transaction."""
    driver = embedded.driver()
    plan = driver.plan()
    prepared = embedded.worker.run(plan)
    lost = embedded.site.lose_markers(embedded.data, 1)
    ended: list[str] = []

    def fail_the_second(request, _):
        if request.transactional_id.endswith(".ledger"):
            return None
        ended.append(request.transactional_id)
        return AnswerError(ErrorCode.UNKNOWN_SERVER_ERROR) if ended.count(ended[-1]) > 1 else None

    hook = embedded.broker.on(ApiKey.END_TXN, fail_the_second, expect=True)
    with pytest.raises(CommitPendingError, match="UNKNOWN_SERVER_ERROR"):
        driver.commit(plan, prepared)
    assert 1 == lost()
    assert 1 == len(embedded.left_open())
    hook.remove()
    embedded.finish(0)
    embedded.finish(1)
    _checked(embedded, 0, 1)


def test_a_batch_whose_markers_cannot_be_checked_is_pending(embedded):
    """A decided batch whose markers cannot be checked is pending until the next plan checks."""
    driver = embedded.driver()
    plan = driver.plan()
    prepared = embedded.worker.run(plan)
    hook = embedded.broker.on(
        ApiKey.LIST_OFFSETS,
        lambda request, _: (
            AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            if request.topics[0].name == embedded.data
            else None
        ),
        expect=True,
    )
    with pytest.raises(CommitPendingError, match="checks again"):
        driver.commit(plan, prepared)
    hook.remove()
    embedded.finish(0)
    _checked(embedded, 0)
