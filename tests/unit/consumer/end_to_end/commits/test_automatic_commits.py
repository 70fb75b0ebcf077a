"""Automatic commits of a consumer: by time, before rebalances and at close."""

from __future__ import annotations

import asyncio
import time

import pytest

from spark_kafka_sink.consumer.group.group_member import MemberState
from spark_kafka_sink.testing import (
    AnswerError,
    ApiKey,
    CloseConnection,
    ErrorCode,
    NeverAnswer,
)
from tests.support.consumer.commits import BY_HAND, committed, committed_by
from tests.support.consumer.embedded_consuming import (
    GROUP,
    NEVER_MS,
    PATIENCE,
    SHORT_SESSION,
    Recording,
    consuming,
    poll_until,
    take,
    tp,
    wait_until,
)
from tests.support.network.leaps import leap, leap_broker


def test_positions_are_committed_after_the_interval(broker):
    """By a later poll: what the last one returned may not have been processed."""
    with consuming(broker, auto_commit_interval_ms=100, **GROUP) as consumer:
        consumer.subscribe("t")
        take(consumer, 10)
        time.sleep(0.3)
        assert committed_by(consumer) is None or committed_by(consumer) == 0
        poll_until(consumer, lambda: 10 == committed_by(consumer))


def test_the_interval_limits_automatic_commits(broker):
    """Polls in between commit nothing."""
    hook = broker.on(ApiKey.OFFSET_COMMIT, lambda *_: None)
    with consuming(broker, auto_commit_interval_ms=200, **GROUP) as consumer:
        consumer.subscribe("t")
        begin = time.monotonic()
        poll_until(consumer, lambda: 4 <= hook.seen)
        assert 0.5 < time.monotonic() - begin


def test_close_commits_automatically(broker):
    """What poll has returned; and so does an assigned consumer."""
    for offset, subscribes in ((4, True), (8, False)):
        with consuming(broker, max_poll_records=4, **GROUP) as consumer:
            if subscribes:
                consumer.subscribe("t")
            else:
                consumer.assign([tp()])
            take(consumer, 4)
        assert offset == committed(broker)


@pytest.mark.parametrize("is_subscribed", [False, True])
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_close_commits_without_waiting(broker, protocol, is_subscribed):
    """With a timeout of 0 the commit is sent, before the member leaves."""
    settings = {"group.protocol": protocol, "group.id": "g", "request.timeout.ms": NEVER_MS}
    with consuming(broker, auto_commit_interval_ms=NEVER_MS, **settings) as consumer:
        if is_subscribed:
            consumer.subscribe("t")
        else:
            consumer.assign([tp()])
        take(consumer, 10)
        broker.on(ApiKey.OFFSET_COMMIT, NeverAnswer(handled=True))
        begin = time.monotonic()
        consumer.close(0)
        assert time.monotonic() - begin < PATIENCE
    assert 10 == committed(broker)


def test_a_revocation_is_preceded_by_an_automatic_commit(broker):
    """The listener finds the offsets committed."""
    found = []
    with consuming(broker, auto_commit_interval_ms=60_000, **GROUP) as consumer:

        def ask(what, partitions):
            if what == "revoked":
                found.append(consumer.committed(partitions))

        consumer.subscribe("t", listener=Recording(ask))
        take(consumer, 10)
        broker.create_topic("u")
        consumer.subscribe(["t", "u"], listener=Recording(ask))
        poll_until(consumer, lambda: 2 == len(consumer.assignment()))
    assert [10, 10] == [each[tp()].offset for each in found]


def test_an_automatic_commit_that_fails_is_repeated(broker, caplog):
    """It is only logged; reading goes on."""
    hook = broker.on(ApiKey.OFFSET_COMMIT, AnswerError(ErrorCode.NOT_COORDINATOR), times=2)
    with consuming(broker, auto_commit_interval_ms=50, **GROUP) as consumer:
        consumer.subscribe("t")
        take(consumer, 10)
        poll_until(consumer, lambda: 10 == committed_by(consumer))
    assert 2 == hook.fired
    assert "automatic commit" in caplog.text


def test_automatic_commits_begin_an_interval_after_a_join(broker):
    """However long the join has taken: there is nothing to commit before."""
    hook = broker.on(ApiKey.OFFSET_COMMIT, lambda *_: None)
    broker.on(ApiKey.JOIN_GROUP, lambda _, it: leap(consumer) if it.number == 1 else None)
    with consuming(broker, auto_commit_interval_ms=15_000, **GROUP) as consumer:
        consumer.subscribe("t")
        take(consumer, 10)
        for _ in range(5):
            consumer.poll(0.02)
        assert 0 == hook.seen
        leap(consumer)
        poll_until(consumer, lambda: 10 == committed_by(consumer))


@pytest.mark.parametrize("to_beginning", [False, True])
def test_an_assigned_consumer_finds_the_coordinator_when_it_commits(broker, to_beginning):
    """A consumer with positions does not need it before, and the search is retried."""
    error = AnswerError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    hook = broker.on(
        ApiKey.FIND_COORDINATOR, lambda _, context: error if context.number < 4 else None
    )
    with consuming(broker, auto_commit_interval_ms=15_000, **GROUP) as consumer:
        consumer.assign([tp()])
        if to_beginning:
            consumer.seek_to_beginning()
        else:
            consumer.seek(tp(), 2)
        take(consumer, 8)
        assert 0 == hook.seen
        leap(consumer)
        poll_until(consumer, lambda: 4 == hook.seen)
        poll_until(consumer, lambda: 10 == committed_by(consumer))


RETRIED = [
    AnswerError(ErrorCode.COORDINATOR_NOT_AVAILABLE),
    AnswerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    CloseConnection(),
]
NOT_RETRIED = [
    AnswerError(ErrorCode.UNKNOWN_MEMBER_ID),
    AnswerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    NeverAnswer(),
]


@pytest.mark.parametrize("fault", RETRIED + NOT_RETRIED, ids=repr)
def test_a_commit_before_a_rebalance_does_not_prevent_it(broker, fault):
    """It is retried if that may help soon, and given up after max.poll.interval.ms."""
    broker.create_topic("u")
    forgets = fault == AnswerError(ErrorCode.UNKNOWN_MEMBER_ID)
    settings = {**(SHORT_SESSION if forgets else GROUP), "auto.commit.interval.ms": NEVER_MS}
    settings |= {"request.timeout.ms": 15_000, "max.poll.interval.ms": 30_000}

    def refuse(*_):
        if isinstance(fault, NeverAnswer):
            leap(consumer)
        elif forgets:
            # The group would wait for the member under the id that it forgets.
            leap_broker(broker)
        return fault

    with consuming(broker, **settings) as consumer:
        consumer.subscribe("t")
        take(consumer, 10)
        times = None if isinstance(fault, NeverAnswer) else 1
        hook = broker.on(ApiKey.OFFSET_COMMIT, refuse, times=times)
        consumer.subscribe(["t", "u"])
        poll_until(consumer, lambda: 2 == len(consumer.assignment()))
        assert 1 <= hook.fired
        hook.remove()
        expected = 10 if fault in RETRIED else None
        assert expected == committed_by(consumer)


def test_nothing_is_committed_before_a_rebalance_by_hand(broker):
    """With enable.auto.commit=false."""
    broker.create_topic("u")
    hook = broker.on(ApiKey.OFFSET_COMMIT, lambda *_: None)
    with consuming(broker, **BY_HAND) as consumer:
        consumer.subscribe("t")
        take(consumer, 10)
        consumer.subscribe(["t", "u"])
        poll_until(consumer, lambda: 2 == len(consumer.assignment()))
    assert 0 == hook.seen


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_commit_before_a_rebalance_does_not_delay_poll(broker, strategy):
    """A cooperative member goes on reading; the commit is of what earlier polls have returned."""
    broker.create_topic("u")
    sent = []

    def ignore(request, _):
        sent.append(request.topics[0].partitions[0].committed_offset)
        return NeverAnswer()

    settings = {
        **GROUP,
        "auto.commit.interval.ms": NEVER_MS,
        "request.timeout.ms": 15_000,
        "partition.assignment.strategy": strategy,
        "max.poll.records": 1,
    }
    listener = Recording()
    with consuming(broker, **settings) as consumer:
        consumer.subscribe("t", listener=listener)
        take(consumer, 3)
        hook = broker.on(ApiKey.OFFSET_COMMIT, ignore, times=1)
        consumer.subscribe(["t", "u"], listener=listener)
        found = consumer.poll(0.1)
        assert [("assigned", (tp(),))] == listener.calls
        assert (0 if strategy == "range" else 1) == found.count
        wait_until(lambda: sent)
        # It has neither been answered nor sent again after its timeout.
        assert 1 == hook.seen
        leap(consumer)
        poll_until(consumer, lambda: 2 == len(consumer.assignment()))
        assert 3 == sent[0]
        if strategy == "range":
            assert 3 == committed_by(consumer)


def test_a_commit_before_a_revocation_has_what_was_returned(broker):
    """Not what poll returns while the commit is on its way (KIP-848)."""
    broker.create_topic("u")
    sent = []
    settings = {"group.id": "g", "group.protocol": "consumer", "max.poll.records": 1}
    with consuming(broker, auto_commit_interval_ms=60_000, **settings) as consumer:
        commit = consumer._context.commit_positions

        async def commit_later(*given):
            await asyncio.sleep(0.2)
            await commit(*given)

        consumer.subscribe(["t", "u"])
        poll_until(consumer, lambda: 2 == len(consumer.assignment()))
        consumer.seek(tp(), 3)
        assert 3 == consumer.position(tp())
        consumer._context.commit_positions = commit_later
        broker.on(
            ApiKey.OFFSET_COMMIT,
            lambda request, _: sent.append(
                max(each.committed_offset for it in request.topics for each in it.partitions)
            ),
        )
        consumer.subscribe("t")
        before = consumer.position(tp())
        assert before < 10
        # The new assignment arrives without poll.
        membership = consumer._core.coordinator.member
        wait_until(lambda: membership.state is MemberState.RECONCILING)
        assert 1 == consumer.poll(PATIENCE).count
        poll_until(consumer, lambda: sent)
        assert before == sent[0]
