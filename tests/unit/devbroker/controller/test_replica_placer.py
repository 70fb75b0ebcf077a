"""Where the replicas of new partitions go."""

from __future__ import annotations

import random
import uuid

import pytest

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.controller.replica_placer import place_replicas
from spark_kafka_sink.devbroker.metadata.records import RegisterBroker
from spark_kafka_sink.protocol.error_codes import ErrorCode


def broker(node_id: int, rack: str | None = None, **state: bool) -> RegisterBroker:
    """Return a broker, which is active by default."""
    return RegisterBroker(
        node_id=node_id,
        broker_epoch=0,
        incarnation_id=uuid.UUID(int=node_id),
        rack=rack,
        **{"fenced": False, **state},
    )


@pytest.mark.parametrize("seed", range(5))
def test_leaders_and_replicas_are_spread_evenly(seed):
    """Each broker leads as many partitions, and has as many replicas, as the others."""
    brokers = [broker(node_id) for node_id in range(5)]
    placed = place_replicas(20, 3, brokers, random.Random(seed))
    assert [4] * 5 == [sum(each[0] == node_id for each in placed) for node_id in range(5)]
    assert [12] * 5 == [sum(node_id in each for each in placed) for node_id in range(5)]
    assert all(3 == len(set(each)) for each in placed)


@pytest.mark.parametrize("seed", range(5))
def test_each_partition_has_a_replica_in_every_rack(seed):
    """Racks come before brokers, even if they have different numbers of them."""
    racks = {0: "a", 1: "a", 2: "a", 3: "b", 4: "c"}
    brokers = [broker(node_id, rack) for node_id, rack in racks.items()]
    for replicas in place_replicas(12, 3, brokers, random.Random(seed)):
        assert {"a", "b", "c"} == {racks[each] for each in replicas}


@pytest.mark.parametrize("seed", range(5))
def test_a_fenced_broker_never_comes_first(seed):
    """Neither in its rack nor in the list, but its rack still counts."""
    brokers = [broker(0, "a"), broker(1, "a", fenced=True), broker(2, "b", fenced=True)]
    for replicas in place_replicas(6, 3, brokers, random.Random(seed)):
        assert 0 == replicas[0]
        assert {0, 1, 2} == {*replicas}
    for replicas in place_replicas(6, 2, brokers, random.Random(seed)):
        assert (0, 2) == replicas


@pytest.mark.parametrize(
    ("factor", "state", "message"),
    [
        (0, {}, "must be positive"),
        (4, {}, r"only 3 broker\(s\)"),
        (3, {"in_controlled_shutdown": True}, r"only 2 broker\(s\)"),
        (1, {"fenced": True}, "currently fenced"),
    ],
)
def test_replicas_that_cannot_be_placed_are_refused(factor, state, message):
    """Brokers that shut down do not count, and one has to be active."""
    fenced = state.get("fenced", False)
    brokers = [broker(0, fenced=fenced), broker(1, fenced=fenced), broker(2, **state)]
    with pytest.raises(RefusedError, match=message) as caught:
        place_replicas(1, factor, brokers, random.Random(1))
    assert ErrorCode.INVALID_REPLICATION_FACTOR == caught.value.error_code
