"""ISR changes, elections and reassignments by the controller."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from spark_kafka_sink.devbroker.controller.replication_control import ControllerSettings
from spark_kafka_sink.devbroker.metadata.records import (
    BROKER_RESOURCE,
    NO_LEADER,
    RECOVERED,
    RECOVERING,
    TOPIC_RESOURCE,
    ConfigResource,
)
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartition,
    AlterPartitionRequestTopic,
)
from spark_kafka_sink.protocol.messages.elect_leaders import PREFERRED, UNCLEAN
from tests.support.devbroker.controlled_cluster import ControlledCluster


@pytest.mark.parametrize("version", [2, 3])
def test_a_leader_shrinks_and_expands_its_isr(version):
    """The response has the new partition epoch, and the leader epoch stays."""
    cluster = ControlledCluster()
    cluster.create((1, 2, 0))
    result = cluster.alter((1, 2), version=version)
    assert (ErrorCode.NONE, (1, 2), 0, 1) == (
        result.error_code,
        result.isr,
        result.leader_epoch,
        result.partition_epoch,
    )
    result = cluster.alter((1, 2, 0), version=version)
    assert ((1, 2, 0), 0, 2) == (result.isr, result.leader_epoch, result.partition_epoch)
    assert (1, (1, 2, 0), ()) == cluster.state()


def test_a_wish_that_changes_nothing_is_granted():
    """Nothing is recorded, so the partition epoch stays."""
    cluster = ControlledCluster()
    cluster.create((1, 2, 0))
    end = cluster.quorum.end_offset
    assert ErrorCode.NONE == cluster.alter((1, 2, 0)).error_code
    assert end == cluster.quorum.end_offset


@pytest.mark.parametrize(
    ("isr", "changes", "expected"),
    [
        ((1, 2), {"leader_epoch": 1}, ErrorCode.NOT_CONTROLLER),
        ((1, 2), {"partition_epoch": 2}, ErrorCode.NOT_CONTROLLER),
        ((1, 2), {"leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
        ((1, 2), {"sender": 2}, ErrorCode.INVALID_REQUEST),
        ((1, 2), {"partition_epoch": 0}, ErrorCode.INVALID_UPDATE_VERSION),
        ((1, 1, 2), {}, ErrorCode.INVALID_REQUEST),
        ((1, 3), {}, ErrorCode.INVALID_REQUEST),
        ((2, 0), {}, ErrorCode.INVALID_REQUEST),
        ((), {}, ErrorCode.INVALID_REQUEST),
        ((1, 2), {"leader_recovery_state": RECOVERING}, ErrorCode.INVALID_REQUEST),
        ((1,), {"leader_recovery_state": RECOVERING}, ErrorCode.INVALID_REQUEST),
        ((1, 2), {"partition_index": 5}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_a_wish_that_cannot_be_granted_is_refused(isr, changes, expected):
    """Each reason has an error of its own, and nothing changes."""
    cluster = ControlledCluster(brokers=4)
    cluster.create((1, 2, 0))
    cluster.alter((1, 2, 0), leader_recovery_state=RECOVERED)
    cluster.alter((1, 0))
    before = cluster.partition()
    assert expected == cluster.alter(isr, **changes).error_code
    assert before == cluster.partition()


def test_a_wish_for_an_unknown_topic_is_refused():
    """Topics are known by their ids."""
    cluster = ControlledCluster()
    wish = AlterPartitionRequestPartition(partition_index=0, leader_epoch=0, partition_epoch=0)
    topic = AlterPartitionRequestTopic(topic_id=uuid.UUID(int=99), partitions=(wish,))
    request = AlterPartitionRequest(broker_id=1, broker_epoch=cluster.epochs[1], topics=(topic,))
    response = cluster.controller.handle(request, cluster.now)
    assert ErrorCode.UNKNOWN_TOPIC_ID == response.topics[0].partitions[0].error_code
    response = cluster.controller.handle(replace(request, broker_epoch=77), cluster.now)
    assert ErrorCode.STALE_BROKER_EPOCH == response.error_code


def test_only_active_brokers_in_their_current_epoch_are_in_sync():
    """A leader may count the fetches of a process that is not there any more (KIP-903)."""
    cluster = ControlledCluster()
    cluster.create((1, 2, 0))
    cluster.alter((1, 0))
    stale = {**cluster.epochs, 2: cluster.epochs[2] - 1}
    assert ErrorCode.INELIGIBLE_REPLICA == cluster.alter((1, 0, 2), epochs=stale).error_code
    assert ErrorCode.NONE == cluster.alter((1, 0, 2), epochs={1: -1}).error_code
    cluster.alter((1, 0))
    cluster.fence(2)
    assert ErrorCode.INELIGIBLE_REPLICA == cluster.alter((1, 0, 2)).error_code


def test_preferred_leaders_are_elected_on_request():
    """Another replica has taken over meanwhile, and stays the leader until then."""
    cluster = ControlledCluster()
    cluster.create((1, 2, 0))
    cluster.fence(1)
    cluster.heartbeat(1)
    assert 2 == cluster.partition().leader
    assert ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE == cluster.elect(election=PREFERRED)
    cluster.alter((2, 0, 1))
    assert ErrorCode.NONE == cluster.elect(election=PREFERRED)
    assert (1, 2) == (cluster.partition().leader, cluster.partition().leader_epoch)


@pytest.mark.parametrize(
    ("topic", "index", "election", "expected"),
    [
        ("t", 0, PREFERRED, ErrorCode.ELECTION_NOT_NEEDED),
        ("t", 0, UNCLEAN, ErrorCode.ELECTION_NOT_NEEDED),
        ("t", 1, UNCLEAN, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("u", 0, UNCLEAN, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_an_election_without_need_or_partition_is_refused(topic, index, election, expected):
    """The error says which."""
    cluster = ControlledCluster()
    cluster.create((1, 2, 0))
    assert expected == cluster.elect(index, election=election, topic=topic)


def leaderless(**settings: str) -> ControlledCluster:
    """Return a cluster whose partition only broker 1 could lead, which is gone."""
    cluster = ControlledCluster(settings=ControllerSettings(unclean_leader_election_interval=30.0))
    cluster.create((1, 2, 0), **settings)
    cluster.alter((1,))
    cluster.fence(1)
    return cluster


def test_an_unclean_election_is_made_only_on_request():
    """Without it the partition waits for the replica that surely has everything."""
    cluster = leaderless()
    assert (NO_LEADER, (), (1,)) == cluster.state()
    cluster.pass_time(100.0, 0, 2)
    assert NO_LEADER == cluster.partition().leader
    assert ErrorCode.NONE == cluster.elect(election=UNCLEAN)
    assert (2, (2,), ()) == cluster.state()
    assert RECOVERING == cluster.partition().leader_recovery_state
    cluster.alter((2,), leader_recovery_state=RECOVERED)
    assert RECOVERED == cluster.partition().leader_recovery_state


def test_an_unclean_election_needs_a_replica():
    """If all are fenced, nobody is available."""
    cluster = leaderless()
    cluster.fence(0, 2)
    assert ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE == cluster.elect(election=UNCLEAN)


def test_a_topic_may_allow_unclean_elections():
    """Then another replica takes over at once, whatever it lacks."""
    cluster = leaderless(unclean_leader_election_enable="true")
    assert (2, (2,), ()) == cluster.state()


def test_a_topic_that_allows_unclean_elections_later_gets_a_leader_in_time():
    """The controller looks for partitions without leader at an interval."""
    cluster = leaderless()
    resource = ConfigResource(TOPIC_RESOURCE, "t")
    changes = {"unclean.leader.election.enable": "true"}
    cluster.controller.alter_configs(resource, changes, cluster.now)
    cluster.pass_time(29.0, 0, 2)
    assert NO_LEADER == cluster.partition().leader
    cluster.pass_time(2.0, 0, 2)
    assert 2 == cluster.partition().leader


def test_leaders_are_balanced_at_an_interval():
    """Preferred replicas that are in sync lead again without a request."""
    cluster = ControlledCluster(
        settings=ControllerSettings(leader_imbalance_check_interval=30.0, max_elections=1)
    )
    cluster.create((1, 2, 0), (1, 0, 2), (1, 2, 0))
    cluster.fence(1)
    cluster.heartbeat(1)
    cluster.alter((2, 0, 1))
    for index in range(3):
        assert 1 != cluster.partition(index).leader
    cluster.pass_time(29.0, 0, 1, 2)
    assert 2 == cluster.partition().leader
    cluster.pass_time(2.0, 0, 1, 2)
    assert [1, 0, 2] == [cluster.partition(index).leader for index in range(3)]


def test_leaders_are_not_balanced_if_that_is_switched_off():
    """auto.leader.rebalance.enable is false then."""
    cluster = ControlledCluster(settings=ControllerSettings(leader_imbalance_check_interval=None))
    cluster.create((1, 2, 0))
    cluster.fence(1)
    cluster.heartbeat(1)
    cluster.alter((2, 0, 1))
    cluster.pass_time(1000.0, 0, 1, 2)
    assert 2 == cluster.partition().leader


@pytest.mark.parametrize(
    ("resource", "expected"),
    [
        (ConfigResource(TOPIC_RESOURCE, "t"), ()),
        (ConfigResource(BROKER_RESOURCE, ""), ()),
        (ConfigResource(TOPIC_RESOURCE, "u"), (1,)),
        (ConfigResource(BROKER_RESOURCE, "1"), (1,)),
    ],
)
def test_another_min_insync_replicas_ends_eligibility(resource, expected):
    """What was acknowledged under the old setting may be missing."""
    cluster = ControlledCluster()
    cluster.create((1, 2, 0), min_insync_replicas="3")
    cluster.create((1, 2, 0), name="u")
    cluster.fence(1)
    cluster.controller.alter_configs(resource, {"retention.ms": "5"}, cluster.now)
    assert (1,) == cluster.partition().elr
    cluster.controller.alter_configs(resource, {"min.insync.replicas": "2"}, cluster.now)
    assert expected == cluster.partition().elr


def test_the_setting_of_all_brokers_applies_to_topics_without_one():
    """A topic with fewer replicas needs only these."""
    cluster = ControlledCluster()
    everyone = ConfigResource(BROKER_RESOURCE, "")
    cluster.controller.alter_configs(everyone, {"min.insync.replicas": "3"}, cluster.now)
    cluster.create((1, 2, 0))
    cluster.create((1, 2), name="u")
    cluster.fence(1)
    assert ((1,), (1,)) == (cluster.partition().elr, cluster.partition(name="u").elr)
    cluster.controller.alter_configs(everyone, {"min.insync.replicas": None}, cluster.now)
    assert () == cluster.partition().elr


def test_a_reassignment_moves_replicas_step_by_step():
    """When the new ones are in sync, the old ones go, and the leader with them."""
    cluster = ControlledCluster(brokers=5)
    cluster.create((0, 1))
    assert ErrorCode.NONE == cluster.reassign((3, 4))
    partition = cluster.partition()
    assert ((3, 4, 0, 1), (3, 4), (0, 1)) == (
        partition.replicas,
        partition.adding,
        partition.removing,
    )
    assert (0, (0, 1), ()) == cluster.state()
    assert ErrorCode.NONE == cluster.alter((0, 1, 3)).error_code
    result = cluster.alter((0, 1, 3, 4))
    assert ErrorCode.NEW_LEADER_ELECTED == result.error_code
    assert (3, (3, 4), ()) == cluster.state()
    assert not cluster.partition().is_reassigning


def test_a_reassignment_can_be_cancelled():
    """The replicas are those of before."""
    cluster = ControlledCluster(brokers=5)
    cluster.create((0, 1))
    assert ErrorCode.NONE == cluster.reassign((0, 3))
    cluster.alter((0, 1))
    assert ErrorCode.NONE == cluster.reassign(None)
    partition = cluster.partition()
    assert ((0, 1), False) == (partition.replicas, partition.is_reassigning)
    assert ErrorCode.NO_REASSIGNMENT_IN_PROGRESS == cluster.reassign(None)


@pytest.mark.parametrize("unclean", ["true", "false"])
def test_a_reassignment_of_which_only_new_replicas_are_in_sync_needs_an_unclean_election(unclean):
    """Without it the reassignment cannot be cancelled."""
    cluster = ControlledCluster(brokers=4)
    cluster.create((0, 1), unclean_leader_election_enable=unclean)
    assert ErrorCode.NONE == cluster.reassign((2, 3))
    cluster.alter((0, 1, 2))
    cluster.fence(0, 1)
    assert (2, (2,), ()) == cluster.state()
    if unclean == "true":
        assert ErrorCode.NONE == cluster.reassign(None)
        assert (0, 1) == cluster.partition().replicas
    else:
        assert ErrorCode.INVALID_REPLICA_ASSIGNMENT == cluster.reassign(None)


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [
        ((), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((0, 9), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((0, 0), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((0, 1, 2), ErrorCode.INVALID_REPLICATION_FACTOR),
    ],
)
def test_a_reassignment_that_cannot_be_is_refused(replicas, expected):
    """The number of replicas may change only if the client says so."""
    cluster = ControlledCluster()
    cluster.create((0, 1))
    assert expected == cluster.reassign(replicas, may_change_replication_factor=False)
    assert not cluster.partition().is_reassigning


def test_a_reassignment_to_the_same_replicas_changes_nothing():
    """Nothing is recorded."""
    cluster = ControlledCluster()
    cluster.create((0, 1))
    end = cluster.quorum.end_offset
    assert ErrorCode.NONE == cluster.reassign((0, 1))
    assert end == cluster.quorum.end_offset
