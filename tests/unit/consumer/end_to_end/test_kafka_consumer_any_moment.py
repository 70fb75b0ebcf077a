"""Ctrl-C at every moment of a call at which Python handles signals."""

from __future__ import annotations

import itertools
from functools import partial

import pytest

from spark_kafka_sink.devbroker import DevBroker
from tests.support.consumer.commits import BY_HAND, committed_by
from tests.support.consumer.embedded_consuming import GROUP, PATIENCE, consuming, take, tp
from tests.support.consumer.reading import fill, numbered
from tests.support.faults.interrupts import interrupted_at

#: More than there are moments.
MANY = 2_000


@pytest.fixture(scope="module")
def broker():
    """Return a broker with many records in topic `t`."""
    with DevBroker(topics={"t": 1}, auto_create_topics=False) as broker:
        fill(broker.bootstrap_servers, "t", numbered(MANY))
        yield broker


def check_is_free(consumer, struck):
    """Check that no call has left a lock behind."""
    assert not consumer._context.lock._is_owned(), repr(struck)
    assert not consumer._guard.is_calling, repr(struck)


def test_a_poll_leaves_the_consumer_usable(broker):
    """The network thread, which sends the heartbeats, and the next call get the locks."""
    with consuming(broker, **GROUP, max_poll_records=1) as consumer:
        consumer.assign([tp()])
        take(consumer, 1)
        for moment in itertools.count(1):
            struck = interrupted_at(moment, lambda: consumer.poll(PATIENCE))
            check_is_free(consumer, struck)
            if not struck:
                break
        assert 50 < moment < MANY
        assert 1 == len(take(consumer, 1))


def test_a_commit_leaves_the_consumer_usable(broker):
    """A later commit is answered."""
    with consuming(broker, **BY_HAND) as consumer:
        consumer.assign([tp()])
        for moment in itertools.count(1):
            commit = partial(consumer.commit, {tp(): moment}, timeout=PATIENCE)
            struck = interrupted_at(moment, commit)
            check_is_free(consumer, struck)
            if not struck:
                break
        assert 30 < moment < MANY
        assert moment == committed_by(consumer)


def close_at(broker, moment):
    """Interrupt `close` at a moment; return whether it took so long."""
    with consuming(broker, **GROUP) as consumer:
        consumer.assign([tp()])
        consumer.seek(tp(), 1)
        struck = interrupted_at(moment, consumer.close)
        check_is_free(consumer, struck)
        consumer.close()
        assert not consumer._core._thread.is_alive, repr(struck)
    return bool(struck)


def test_a_close_can_be_repeated(broker):
    """Whatever Ctrl-C has prevented, another call does, so that no thread is left."""
    moments = sum(
        1 for _ in itertools.takewhile(lambda it: close_at(broker, it), itertools.count(1))
    )
    assert 50 < moments < MANY
