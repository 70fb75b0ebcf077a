"""Registration, heartbeats, fencing and orderly shutdown of brokers, by the controller."""

from __future__ import annotations

import random
import uuid

import pytest

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.controller.broker_control import (
    NEXT_STATES,
    BrokerControlState,
)
from spark_kafka_sink.devbroker.metadata.records import NO_LEADER, Endpoint
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from tests.support.devbroker.controlled_cluster import ControlledCluster


def test_a_new_broker_is_fenced_until_it_has_read_its_registration():
    """Its first heartbeats may be behind, and only a caught-up one lets it lead."""
    cluster = ControlledCluster(brokers=1)
    cluster.register(1)
    broker = cluster.controller.image.brokers[1]
    assert broker.fenced
    assert (Endpoint("EXTERNAL", "h", 9001),) == broker.endpoints
    assert "r" == broker.rack
    response = cluster.heartbeat(1, offset=0)
    assert (False, True) == (response.is_caught_up, response.is_fenced)
    response = cluster.heartbeat(1)
    assert (True, False, False) == (
        response.is_caught_up,
        response.is_fenced,
        response.should_shut_down,
    )
    assert cluster.controller.image.is_active(1)


def test_the_epoch_of_a_broker_is_the_offset_of_its_registration():
    """So a later registration always has a higher one."""
    cluster = ControlledCluster(brokers=2)
    assert {0: 0, 1: 2} == cluster.epochs


def test_a_broker_of_another_cluster_is_refused():
    """It would take over data that are not its own."""
    cluster = ControlledCluster()
    response = cluster.register(5, cluster_id="another")
    assert ErrorCode.INCONSISTENT_CLUSTER_ID == response.error_code
    assert 5 not in cluster.controller.image.brokers


def test_another_process_registers_only_when_the_session_of_the_last_one_has_ended():
    """Two processes with the same id cannot push each other out."""
    cluster = ControlledCluster()
    assert ErrorCode.DUPLICATE_BROKER_REGISTRATION == cluster.register(1).error_code
    cluster.pass_time(9.0, 0, 2)
    response = cluster.register(1)
    assert ErrorCode.NONE == response.error_code
    assert cluster.controller.image.brokers[1].broker_epoch == response.broker_epoch
    assert cluster.controller.image.brokers[1].fenced


def test_the_same_process_may_register_again_at_any_time():
    """It keeps its epoch, and is not fenced by it."""
    cluster = ControlledCluster()
    response = cluster.register_again(1, cluster.incarnations[1])
    assert cluster.epochs[1] == response.broker_epoch
    assert cluster.controller.image.is_active(1)


def test_a_silent_broker_is_fenced():
    """It leads nothing from then on, and is in sync nowhere."""
    cluster = ControlledCluster()
    cluster.create((1, 2, 0), (2, 1, 0))
    cluster.pass_time(8.5, 0, 2)
    assert 1 == cluster.partition().leader
    cluster.pass_time(1.0, 0, 2)
    assert cluster.controller.image.brokers[1].fenced
    assert (2, (2, 0), ()) == cluster.state(0)
    assert (2, (2, 0), ()) == cluster.state(1)
    assert (1, 0) == (cluster.partition(0).leader_epoch, cluster.partition(1).leader_epoch)


def test_all_silent_brokers_are_fenced():
    """The last one that was in sync stays eligible."""
    cluster = ControlledCluster()
    cluster.create((1, 2, 0))
    cluster.pass_time(20.0)
    assert [True] * 3 == [each.fenced for each in cluster.controller.image.brokers.values()]
    leader, isr, elr = cluster.state()
    assert (NO_LEADER, ()) == (leader, isr)
    assert 1 == len(elr)
    cluster.heartbeat(elr[0])
    assert (elr[0], elr, ()) == cluster.state()


def test_the_epoch_of_an_earlier_process_is_stale():
    """Its requests have no effect, and do not keep the session alive."""
    cluster = ControlledCluster()
    assert ErrorCode.STALE_BROKER_EPOCH == cluster.heartbeat(1, epoch=77).error_code
    cluster.epochs[9] = 5
    assert ErrorCode.STALE_BROKER_EPOCH == cluster.heartbeat(9).error_code


def test_a_new_process_is_in_sync_nowhere():
    """It may not lead with what it has before the others know of it."""
    cluster = ControlledCluster()
    cluster.create((1, 2, 0), min_insync_replicas="3")
    cluster.fence(1)
    assert (2, (2, 0), (1,)) == cluster.state()
    cluster.pass_time(9.0, 0, 2)
    cluster.register(1)
    assert (2, (2, 0), ()) == cluster.state()


def test_a_process_that_was_shut_down_cleanly_remains_eligible():
    """It names the epoch of its predecessor, which had written all that it had (KIP-966)."""
    cluster = ControlledCluster()
    cluster.create((1, 2, 0), min_insync_replicas="3")
    cluster.fence(1)
    cluster.pass_time(9.0, 0, 2)
    cluster.register(1, previous_epoch=cluster.epochs[1])
    assert (2, (2, 0), (1,)) == cluster.state()


def test_a_broker_that_shuts_down_hands_over_first():
    """It may stop when it leads nothing, and all others have read that."""
    cluster = ControlledCluster()
    cluster.create((1, 2, 0))
    response = cluster.heartbeat(1, want_shut_down=True)
    assert not response.should_shut_down
    assert not response.is_fenced
    assert (2, (2, 0), ()) == cluster.state()
    assert cluster.controller.image.brokers[1].in_controlled_shutdown
    end = cluster.controller.image.offset
    cluster.heartbeat(0)
    cluster.heartbeat(2, offset=end - 1)
    assert not cluster.heartbeat(1, want_shut_down=True).should_shut_down
    cluster.heartbeat(2)
    response = cluster.heartbeat(1, want_shut_down=True)
    assert response.should_shut_down
    assert response.is_fenced
    assert cluster.controller.image.brokers[1].fenced


def test_a_broker_that_leads_nothing_may_shut_down_at_once():
    """It is fenced with the same heartbeat."""
    cluster = ControlledCluster()
    cluster.create((1, 2, 0))
    assert cluster.heartbeat(2, want_shut_down=True).should_shut_down
    assert (1, (1, 0), ()) == cluster.state()


def test_a_broker_keeps_leading_if_nobody_can_take_over():
    """It goes on in controlled shutdown without a leader, and may be killed meanwhile."""
    cluster = ControlledCluster(brokers=1)
    cluster.create((0,))
    assert not cluster.heartbeat(0, want_shut_down=True).should_shut_down
    assert (NO_LEADER, (), (0,)) == cluster.state()
    assert cluster.heartbeat(0, want_shut_down=True).should_shut_down


@pytest.mark.parametrize("state", NEXT_STATES)
def test_every_state_has_a_next_one(state):
    """The last row applies in any case, and nothing follows the last state."""
    applies, following = NEXT_STATES[state][-1]
    assert applies(None)
    assert state is following
    assert BrokerControlState.SHUTDOWN_NOW not in NEXT_STATES


def test_a_broker_that_is_unregistered_is_gone():
    """It is not in sync any more, and has to be registered again."""
    cluster = ControlledCluster()
    cluster.create((1, 2, 0))
    cluster.controller.unregister_broker(1, cluster.now)
    assert (2, (2, 0), ()) == cluster.state()
    assert ErrorCode.STALE_BROKER_EPOCH == cluster.heartbeat(1).error_code
    assert {0, 2} == {*cluster.controller.image.brokers}
    with pytest.raises(RefusedError) as caught:
        cluster.controller.unregister_broker(1, cluster.now)
    assert ErrorCode.BROKER_ID_NOT_REGISTERED == caught.value.error_code


def test_no_producer_id_is_given_twice():
    """Each broker gets the block after the last one, whoever asked for that."""
    cluster = ControlledCluster()

    def allocate(node_id: int, epoch: int):
        request = AllocateProducerIdsRequest(broker_id=node_id, broker_epoch=epoch)
        return cluster.controller.handle(request, cluster.now)

    first, second = allocate(1, cluster.epochs[1]), allocate(2, cluster.epochs[2])
    assert (0, 1000) == (first.producer_id_start, first.producer_id_len)
    assert 1000 == second.producer_id_start
    assert ErrorCode.STALE_BROKER_EPOCH == allocate(1, 77).error_code


@pytest.mark.parametrize("seed", range(20))
def test_whatever_brokers_do_only_active_ones_lead(seed):
    """And a new image built from the log equals that of the controller."""
    rng = random.Random(seed)
    cluster = ControlledCluster(brokers=4, seed=seed)
    cluster.create(
        (0, 1, 2),
        (1, 2, 3),
        (3, 0, 1),
        min_insync_replicas=str(rng.randint(1, 3)),
        unclean_leader_election_enable=rng.choice(("true", "false")),
    )
    image = cluster.controller.image
    for _ in range(60):
        node_id = rng.randrange(4)
        match rng.randrange(5):
            case 0:
                cluster.heartbeat(node_id, want_shut_down=True)
            case 1:
                cluster.fence(node_id)
            case 2:
                cluster.pass_time(rng.choice((1.0, 5.0, 10.0)), *rng.sample(range(4), 2))
            case 3:
                cluster.register(node_id, previous_epoch=rng.choice((-1, cluster.epochs[node_id])))
            case _:
                cluster.heartbeat(node_id)
        for partition in image.partitions():
            assert partition.leader == NO_LEADER or image.is_active(partition.leader)
            assert all(map(image.is_active, partition.isr))
            assert partition.has_leader == bool(partition.isr)
    other = ControlledCluster(brokers=0).controller.image
    other.apply(cluster.quorum.read(0, cluster.quorum.end_offset))
    assert image == other


def test_ids_of_processes_are_compared():
    """A process that never registered is another one."""
    cluster = ControlledCluster()
    response = cluster.register_again(1, uuid.UUID(int=0))
    assert ErrorCode.DUPLICATE_BROKER_REGISTRATION == response.error_code
