"""The protocol when brokers answer with errors, late, or not at all."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker.net.faults import AnswerError, CloseConnection
from spark_kafka_sink.errors import KafkaTimeoutError
from spark_kafka_sink.exactly_once.errors import (
    CommitPendingError,
    MixedError,
)
from spark_kafka_sink.exactly_once.transitions import WriteState
from spark_kafka_sink.exactly_once.two_phase_commit import Point
from spark_kafka_sink.model import NO_PRODUCER_EPOCH
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.admin.late_calls import end_at_back_off
from tests.support.exactly_once.exactly_once_world import (
    QUERY,
    each_once,
)

# --- without faults


def test_creating_a_driver_sends_no_request(embedded):
    """Creating a driver sends no request, so it cannot fence the one at work."""
    driver = embedded.driver()
    plan = driver.plan()
    prepared = embedded.worker.run(plan)
    hooks = [embedded.broker.on(key, lambda *_: None) for key in ApiKey]
    embedded.driver("made right before the commit")
    assert 0 == sum(hook.seen for hook in hooks)
    driver.commit(plan, prepared)
    assert each_once(0) == embedded.visible()


def test_requests_do_not_grow_with_the_ledger(tv2):
    """A long-lived driver reads only new records, so batches need no more requests over time."""
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


def test_a_batch_is_recorded_as_done_after_a_coordinator_restart(embedded):
    """A batch is recorded as done after a coordinator restart that forgets the previous epoch."""

    def forget(broker):
        known = broker.cluster.transactions._metadata
        known[f"{embedded.prefix}.ledger"].last_producer_epoch = NO_PRODUCER_EPOCH

    driver = embedded.driver(
        observe=lambda point: (
            embedded.broker.call(forget) if point in {Point.DECIDED, Point.COMMITTED} else None
        )
    )
    plan = driver.plan()
    driver.commit(plan, embedded.worker.run(plan))
    assert WriteState.DONE is embedded.state()


def _end_only(embedded, code, commits):
    """Make the broker refuse EndTxn of tasks after `commits` commits."""
    ended = []

    def decide(request, _):
        if request.transactional_id.endswith(".ledger") or not request.committed:
            return None
        if len(ended) >= commits:
            return AnswerError(code)
        ended.append(request.transactional_id)
        return None

    return embedded.broker.on(ApiKey.END_TXN, decide, expect=True)


def test_an_interrupted_commit_is_rolled_forward(embedded):
    """A commit that fails after one of two winners is completed by the next plan, not aborted."""
    driver = embedded.driver()
    plan = driver.plan()
    prepared = embedded.worker.run(plan)
    hook = _end_only(embedded, ErrorCode.UNKNOWN_SERVER_ERROR, 1)
    with pytest.raises(CommitPendingError, match="1 of its 2 transactions"):
        driver.commit(plan, prepared)
    assert 3 == len(embedded.visible())
    # Spark now calls abort() with all messages.
    assert not driver.abort(plan, prepared)
    with pytest.raises(CommitPendingError):
        embedded.driver().plan()
    hook.remove()
    assert not embedded.driver().plan().must_write(QUERY, 0)
    assert (each_once(0), WriteState.DONE) == (embedded.visible(), embedded.state())


def test_a_decision_answered_with_an_error_is_found_in_the_ledger(embedded):
    """A decision whose EndTxn succeeded but was answered with an error is found in the ledger."""
    driver = embedded.driver()
    plan = driver.plan()
    prepared = embedded.worker.run(plan)
    embedded.broker.on(
        ApiKey.END_TXN, AnswerError(ErrorCode.UNKNOWN_SERVER_ERROR, handled=True), times=1
    )
    driver.commit(plan, prepared)
    assert 2 == driver.reached.count(Point.COMMIT_FENCED)
    assert (each_once(0), WriteState.DONE) == (embedded.visible(), embedded.state())


def test_a_decision_missing_in_the_ledger_is_appended_again(embedded):
    """A decision whose EndTxn failed is found missing in the ledger and appended again."""
    driver = embedded.driver()
    plan = driver.plan()
    prepared = embedded.worker.run(plan)
    embedded.broker.on(ApiKey.END_TXN, AnswerError(ErrorCode.UNKNOWN_SERVER_ERROR), times=1)
    driver.commit(plan, prepared)
    assert 2 == driver.reached.count(Point.CHECKED)
    assert (each_once(0), []) == (embedded.visible(), embedded.left_open())


@pytest.mark.parametrize("handled", [True, False], ids=["done", "not done"])
def test_a_claim_with_an_unknown_outcome_is_made_again(embedded, handled):
    """A plan whose claim has an unknown outcome starts again with a new generation."""
    embedded.broker.on(
        ApiKey.END_TXN, AnswerError(ErrorCode.UNKNOWN_SERVER_ERROR, handled=handled), times=1
    )
    driver = embedded.driver()
    plan = driver.plan()
    assert 2 == driver.reached.count(Point.PLAN_FENCED)
    driver.commit(plan, embedded.worker.run(plan))
    assert each_once(0) == embedded.visible()


def test_a_lost_connection_changes_nothing(embedded):
    """Requests whose connection is lost are sent again, and the commit succeeds."""
    driver = embedded.driver()
    plan = driver.plan()
    prepared = embedded.worker.run(plan)
    for key in (ApiKey.PRODUCE, ApiKey.END_TXN, ApiKey.INIT_PRODUCER_ID, ApiKey.FETCH):
        embedded.broker.on(key, CloseConnection(handled=True), times=1)
    driver.commit(plan, prepared)
    assert each_once(0) == embedded.visible()


# --- decisions that cannot be carried out


def test_a_resolution_answered_with_an_error_is_found_in_the_ledger(embedded):
    """A resolution that was appended but answered with an error is found in the ledger."""
    embedded.mix()
    with pytest.raises(MixedError):
        embedded.driver().plan()
    embedded.broker.on(
        ApiKey.END_TXN, AnswerError(ErrorCode.UNKNOWN_SERVER_ERROR, handled=True), times=1
    )
    assert WriteState.DONE is embedded.resolve(skip=True).write.state


def test_an_unreadable_marker_leaves_the_batch_mixed(embedded):
    """If the markers of refused commits cannot be read, the batch is mixed and not rewritten."""
    for winner in embedded.decide_and_die():
        embedded.abort_by_hand(winner)
    hook = embedded.broker.on(
        ApiKey.FETCH,
        lambda request, _: (
            AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            if request.topics[0].topic == embedded.data
            else None
        ),
        expect=True,
    )
    with pytest.raises(
        MixedError, match=f"unknown: {embedded.data}-0 offsets 0 to 2, {embedded.data}-1"
    ):
        embedded.driver().plan()
    hook.remove()


# --- jobs, and what the ledger keeps


def test_a_plan_fails_at_its_timeout(embedded, monkeypatch):
    """A plan without a final answer fails at its timeout and names the request."""
    loading = AnswerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    hook = embedded.broker.on(ApiKey.INIT_PRODUCER_ID, loading)
    end_at_back_off(monkeypatch, lambda: hook.fired > 1)
    with pytest.raises(KafkaTimeoutError, match=rf"InitProducerId of '{embedded.prefix}\.ledger'"):
        embedded.driver().plan()


def test_an_orphan_that_cannot_be_aborted_is_a_warning(embedded, caplog):
    """An orphan that cannot be aborted is logged as a warning and the write continues."""
    embedded.worker.begin(embedded.driver().plan(), 0).write("an orphan's row")
    hook = embedded.broker.on(
        ApiKey.END_TXN,
        lambda request, _: (
            None
            if request.committed
            else AnswerError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        ),
        expect=True,
    )
    embedded.finish(0)
    assert "until it times out" in caplog.text
    hook.remove()
    embedded.finish(1)
    assert (each_once(0, 1), []) == (embedded.visible(), embedded.left_open())
