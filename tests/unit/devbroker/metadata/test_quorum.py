"""The metadata log, and who may append to it."""

from __future__ import annotations

import uuid

import pytest

from spark_kafka_sink.devbroker.metadata.quorum import (
    NO_CONTROLLER,
    MetadataQuorum,
    NotControllerError,
)
from spark_kafka_sink.devbroker.metadata.records import TopicRecord

TOPICS = [TopicRecord(topic_id=uuid.UUID(int=index), name=f"t{index}") for index in range(3)]


def quorum_of(*node_ids: int) -> MetadataQuorum:
    """Return a quorum of running brokers, whose leases last two seconds."""
    quorum = MetadataQuorum(lease=2.0, stagger=0.1)
    for node_id in node_ids:
        quorum.start(node_id)
    return quorum


def test_the_controller_appends_and_everybody_reads():
    """Records keep the order in which they were appended."""
    quorum = quorum_of(1)
    assert NO_CONTROLLER == quorum.controller_id
    epoch = quorum.acquire(1, 0.0)
    assert (1, 1, 1) == (epoch, quorum.controller_id, quorum.controller_epoch)
    assert 0 == quorum.append(epoch, TOPICS[:2])
    assert 2 == quorum.append(epoch, TOPICS[2:])
    assert tuple(TOPICS[1:]) == quorum.read(1, 10)
    assert (TOPICS[1],) == quorum.read(1, 1)
    assert 3 == quorum.end_offset


def test_nobody_else_is_elected_during_a_lease():
    """A renewed lease lasts from then on."""
    quorum = quorum_of(1, 2)
    epoch = quorum.acquire(1, 0.0)
    assert quorum.acquire(2, 1.9) is None
    assert quorum.renew(epoch, 1.9)
    assert quorum.acquire(2, 3.8) is None
    assert 2 == quorum.acquire(2, 3.9)


def test_a_controller_that_was_replaced_cannot_append():
    """Nothing is appended, and its lease cannot be renewed or given up."""
    quorum = quorum_of(1, 2)
    old = quorum.acquire(1, 0.0)
    new = quorum.acquire(2, 2.0)
    with pytest.raises(NotControllerError, match="controller epoch 1 is over"):
        quorum.append(old, TOPICS)
    assert not quorum.renew(old, 2.1)
    quorum.resign(old, 2.1)
    assert 0 == quorum.end_offset
    assert 0 == quorum.append(new, TOPICS)


def test_a_controller_whose_lease_has_ended_goes_on_until_it_is_replaced():
    """There is still only one in each epoch."""
    quorum = quorum_of(1, 2)
    epoch = quorum.acquire(1, 0.0)
    assert 0 == quorum.append(epoch, TOPICS)
    assert quorum.renew(epoch, 5.0)


def test_the_brokers_take_turns_after_the_last_controller():
    """The one with the next higher id is first, and the last holder comes last."""
    quorum = quorum_of(1, 2, 3)
    assert 1 == quorum.acquire(2, 0.0)
    assert [2.2, 2.0, 2.1] == [round(quorum.turn_of(each), 6) for each in (2, 3, 1)]
    assert quorum.acquire(1, 2.05) is None
    assert quorum.acquire(2, 2.15) is None
    assert 2 == quorum.acquire(1, 2.15)


def test_a_controller_that_resigns_is_replaced_at_once():
    """Until then nobody may append."""
    quorum = quorum_of(1, 2)
    epoch = quorum.acquire(1, 0.0)
    quorum.resign(epoch, 0.5)
    assert NO_CONTROLLER == quorum.controller_id
    with pytest.raises(NotControllerError):
        quorum.append(epoch, TOPICS)
    assert not quorum.renew(epoch, 0.5)
    assert 2 == quorum.acquire(2, 0.5)


def test_a_broker_that_does_not_run_is_not_elected():
    """One that was stopped has no turn, and the others do not wait for it."""
    quorum = quorum_of(1, 2)
    assert quorum.acquire(3, 0.0) is None
    quorum.acquire(1, 0.0)
    quorum.stop(2)
    assert {1} == quorum.running
    assert quorum.acquire(2, 9.0) is None
    assert 2 == quorum.acquire(1, 2.0)
