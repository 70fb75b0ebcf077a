"""Ctrl-C between the moment a step of the user's thread is chosen and its first line."""

from __future__ import annotations

import pytest

from spark_kafka_sink.consumer.polling.classic_coordinator import ClassicCoordinator
from spark_kafka_sink.consumer.polling.consumer_coordinator import ConsumerCoordinator
from spark_kafka_sink.consumer.polling.interceptors import ConsumerInterceptors
from spark_kafka_sink.devbroker import DevBroker
from tests.support.consumer.embedded_consuming import (
    GROUP,
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
