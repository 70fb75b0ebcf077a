"""Ctrl-C between the moment a step of the user's thread is chosen and its first line."""

from __future__ import annotations

import pytest

from spark_kafka_sink.admin.admin_client import AdminClient
from spark_kafka_sink.consumer import polls
from spark_kafka_sink.consumer.assignors.range_assignor import RangeAssignor
from spark_kafka_sink.consumer.commits import Commits
from spark_kafka_sink.consumer.consumer_core import ConsumerCore
from spark_kafka_sink.consumer.group.classic_coordinator import ClassicCoordinator
from spark_kafka_sink.consumer.group.consumer_coordinator import ConsumerCoordinator
from spark_kafka_sink.consumer.interceptors import ConsumerInterceptors
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.testing import ApiKey, NeverAnswer
from tests.support.consumer.commits import BY_HAND, committed_by
from tests.support.consumer.embedded_consuming import (
    GROUP,
    PATIENCE,
    Recording,
    consuming,
    poll_until,
    take,
    tp,
)
from tests.support.consumer.reading import fill, numbered
from tests.support.faults.interrupts import interrupt, needs_signals

pytestmark = needs_signals

COORDINATORS = {"classic": ClassicCoordinator, "consumer": ConsumerCoordinator}
T, U = (tp(),), (tp(0, "u"),)


@pytest.fixture
def broker():
    """Return a broker with three records in topic `t`, and none in `u`."""
    with DevBroker(topics={"t": 1, "u": 1}, auto_create_topics=False) as broker:
        fill(broker.bootstrap_servers, "t", numbered(3))
        yield broker


def settings_of(protocol):
    """Return the settings of a member."""
    if protocol == "classic":
        return {**GROUP, "partition.assignment.strategy": "range"}
    return {"group.id": "g", "group.protocol": "consumer"}


def interrupt_once(monkeypatch, owner, name, *, number=1):
    """Interrupt a method at its n-th call before it does anything; return the list of calls."""
    original = getattr(owner, name)
    calls = []

    def interrupted(self, *given):
        calls.append(given)
        if len(calls) == number:
            interrupt()
        return original(self, *given)

    monkeypatch.setattr(owner, name, interrupted)
    return calls


#: Of a classic group each of two joins is prepared and completed; in the other protocol partitions
#: are assigned, revoked and assigned.
STEPS = [("classic", number) for number in (1, 2, 3, 4)] + [("consumer", n) for n in (1, 2, 3)]


@pytest.mark.parametrize(("protocol", "number"), STEPS)
def test_an_interrupted_step_of_a_rebalance_is_done_by_the_next_poll(
    broker, monkeypatch, protocol, number
):
    """The listener hears of each partition once, and the member gets what it has subscribed to."""
    listener = Recording()
    interrupts = 0
    with consuming(broker, **settings_of(protocol)) as consumer:
        interrupt_once(monkeypatch, COORDINATORS[protocol], "run", number=number)
        for topic, expected in (("t", T), ("u", U)):
            consumer.subscribe(topic, listener=listener)
            for _ in range(2):
                try:
                    poll_until(consumer, lambda it=expected: ("assigned", it) in listener.calls)
                except KeyboardInterrupt:
                    interrupts += 1
        assert frozenset(U) == consumer.assignment()
    assert 1 == interrupts
    heard = [call for call in listener.calls if call[1]]
    assert [("assigned", T), ("revoked", T), ("assigned", U), ("revoked", U)] == heard


@pytest.mark.parametrize("call", ["unsubscribe", "close"])
def test_a_member_whose_poll_was_interrupted_can_leave(broker, monkeypatch, call):
    """It does not wait for the step that no poll will do."""
    listener = Recording()
    with consuming(broker, **settings_of("consumer")) as consumer:
        interrupt_once(monkeypatch, ConsumerCoordinator, "run")
        consumer.subscribe("t", listener=listener)
        with pytest.raises(KeyboardInterrupt):
            poll_until(consumer, lambda: False)
        getattr(consumer, call)()
    assert [("assigned", T), ("revoked", T)] == listener.calls


def test_an_interrupted_unsubscribe_can_be_repeated(broker, monkeypatch):
    """The listener hears of it then."""
    listener = Recording()
    with consuming(broker, **settings_of("consumer")) as consumer:
        consumer.subscribe("t", listener=listener)
        poll_until(consumer, consumer.assignment)
        interrupt_once(monkeypatch, ConsumerCoordinator, "run")
        with pytest.raises(KeyboardInterrupt):
            consumer.unsubscribe()
        consumer.unsubscribe()
        assert [("assigned", T), ("revoked", T)] == listener.calls


def test_an_interrupt_before_a_callback_of_a_commit_does_not_lose_it(broker, monkeypatch):
    """The next poll calls it, and the interceptors are not told twice."""
    done = []
    with consuming(broker, group_id="g") as consumer:
        consumer.assign(T)
        take(consumer, 3)
        told = interrupt_once(monkeypatch, ConsumerInterceptors, "on_commit")
        consumer.commit_async(callback=lambda offsets, error: done.append((offsets, error)))
        with pytest.raises(KeyboardInterrupt):
            poll_until(consumer, lambda: False)
        assert [] == done
        consumer.poll(0)
        assert [(3, None)] == [(offsets[tp()].offset, error) for offsets, error in done]
        assert 1 == len(told)


def test_a_listener_that_polls_is_not_called_again(broker):
    """The step that calls it is still the first one, but runs."""
    for protocol in COORDINATORS:
        listener = Recording(lambda *_: consumer.poll(0))
        with consuming(broker, **settings_of(protocol)) as consumer:
            consumer.subscribe("t", listener=listener)
            poll_until(consumer, consumer.assignment)
            heard = [call for call in listener.calls if call[1]]
            assert [("assigned", T)] == heard


class InterruptedAssignor(RangeAssignor):
    """An assignor that Ctrl-C interrupts when it hears of its first assignment."""

    is_interrupted = False

    def on_assignment(self, assignment, metadata) -> None:
        """Interrupt once."""
        if not self.is_interrupted:
            self.is_interrupted = True
            interrupt()


def test_an_assignment_that_was_not_applied_is_asked_for_again(broker):
    """Otherwise the member would stay in the group and read nothing."""
    strategy = [InterruptedAssignor]
    with consuming(broker, **GROUP, partition_assignment_strategy=strategy) as consumer:
        consumer.subscribe("t")
        with pytest.raises(KeyboardInterrupt):
            poll_until(consumer, lambda: False)
        assert frozenset() == consumer.assignment()
        poll_until(consumer, consumer.assignment)
        assert frozenset(T) == consumer.assignment()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_an_interrupted_unsubscribe_leaves_the_group(broker, monkeypatch, protocol):
    """A later subscription to the same topic gets its partitions."""
    with consuming(broker, **settings_of(protocol)) as consumer:
        consumer.subscribe("t")
        poll_until(consumer, consumer.assignment)
        interrupt_once(monkeypatch, Commits, "begin_pending")
        with pytest.raises(KeyboardInterrupt):
            consumer.unsubscribe()
        assert frozenset() == consumer.assignment()
        consumer.subscribe("t")
        poll_until(consumer, consumer.assignment)
        assert frozenset(T) == consumer.assignment()


def test_an_automatic_commit_that_was_interrupted_is_not_the_last(broker, monkeypatch):
    """The next poll commits."""
    with consuming(broker, **GROUP, auto_commit_interval_ms=1) as consumer:
        consumer.assign(T)
        take(consumer, 3)
        interrupt_once(monkeypatch, Commits, "_commit_automatically")
        with pytest.raises(KeyboardInterrupt):
            poll_until(consumer, lambda: False)
        poll_until(consumer, lambda: 3 == committed_by(consumer))


def test_an_asynchronous_commit_that_was_interrupted_is_not_waited_for(broker, monkeypatch):
    """A later commit does not run into its timeout."""
    submit = ConsumerCore.submit

    def interrupted(_core, _work):
        monkeypatch.setattr(ConsumerCore, "submit", submit)
        interrupt()

    with consuming(broker, **BY_HAND) as consumer:
        consumer.assign(T)
        take(consumer, 3)
        monkeypatch.setattr(ConsumerCore, "submit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            consumer.commit_async()
        consumer.commit(timeout=PATIENCE)
        assert 3 == committed_by(consumer)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_close_that_is_interrupted_while_it_commits_leaves_the_group(
    broker, monkeypatch, protocol
):
    """Otherwise the other members would wait for its session to end."""
    listener = Recording()
    with consuming(broker, **settings_of(protocol)) as consumer:
        consumer.subscribe("t", listener=listener)
        take(consumer, 3)
        interrupt_once(monkeypatch, Commits, "commit_before_close")
        monkeypatch.setattr(polls, "_LAST_SECONDS", PATIENCE)
        with pytest.raises(KeyboardInterrupt):
            consumer.close(PATIENCE)
    assert [("assigned", T), ("revoked", T)] == listener.calls
    with AdminClient({"bootstrap.servers": broker.bootstrap_servers}) as admin:
        assert () == admin.describe_consumer_groups(["g"])["g"].members


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_close_that_is_interrupted_does_not_wait_for_its_time(broker, monkeypatch, protocol):
    """Whoever presses Ctrl-C waits a second for a group that does not answer, and not for ever."""
    leaves = ApiKey.LEAVE_GROUP if protocol == "classic" else ApiKey.CONSUMER_GROUP_HEARTBEAT
    for_ever = {"request.timeout.ms": 10**9}
    with consuming(broker, **settings_of(protocol), **for_ever) as consumer:
        consumer.subscribe("t")
        take(consumer, 3)
        interrupt_once(monkeypatch, Commits, "commit_before_close")
        # After a pause at the wrong moment there may be no time left to send it.
        broker.on(leaves, NeverAnswer(), expect=False)
        with pytest.raises(KeyboardInterrupt):
            consumer.close(10**9)
