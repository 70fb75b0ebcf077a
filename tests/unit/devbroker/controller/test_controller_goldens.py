"""Random events, answered as Kafka's own controller answered them."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_kafka_sink.devbroker.controller.replication_control import ControllerSettings
from spark_kafka_sink.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartition,
    AlterPartitionRequestTopic,
    BrokerState,
)
from spark_kafka_sink.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from spark_kafka_sink.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from tests.support.devbroker.controlled_cluster import ControlledCluster

if TYPE_CHECKING:
    from spark_kafka_sink.devbroker.metadata.records import PartitionRecord

GOLDENS = json.loads((Path(__file__).parent / "golden" / "controller_events.json").read_text())
SCHEDULES = [[*events] for _, events in groupby(GOLDENS, lambda golden: golden["schedule"])]
#: Whatever the controller does by itself is an event of its own here.
SETTINGS = ControllerSettings(
    leader_imbalance_check_interval=None, unclean_leader_election_interval=1e9
)


@pytest.mark.parametrize("events", SCHEDULES, ids=range(len(SCHEDULES)))
def test_the_controller_does_what_kafkas_does(events):
    """Brokers, leaders, epochs, and in-sync and eligible replicas are the same after each event."""
    cluster = ControlledCluster(brokers=0, settings=SETTINGS)
    for event in events:
        answer = EVENTS[event["event"]](cluster, event)
        expected = event.get("error", event.get("reply", event.get("epoch", 0)))
        assert (expected, event["after"]) == (answer, state(cluster)), event


def register(cluster: ControlledCluster, event: dict[str, Any]) -> int:
    """Register a new process of a broker; return its epoch, or an error."""
    response = cluster.register(event["broker"], previous_epoch=event["previous"])
    return response.error_code or response.broker_epoch


def heartbeat(cluster: ControlledCluster, event: dict[str, Any]) -> list[bool] | int:
    """Send a heartbeat; return what it says of the broker."""
    response = cluster.heartbeat(
        event["broker"],
        want_fence=event["fence"],
        want_shut_down=event["stop"],
        offset=event["offset"],
    )
    return response.error_code or [
        response.is_caught_up,
        response.is_fenced,
        response.should_shut_down,
    ]


def create(cluster: ControlledCluster, event: dict[str, Any]) -> int:
    """Create the topic."""
    cluster.create(
        *map(tuple, event["assignments"]),
        min_insync_replicas=event["min_isr"],
        unclean_leader_election_enable=event["unclean"],
    )
    return 0


def pass_time(cluster: ControlledCluster, event: dict[str, Any]) -> int:
    """Pass some time, after which silent brokers are fenced."""
    cluster.now = round(cluster.now + event["tenths"] / 10, 1)
    cluster.controller.tick(cluster.now)
    return 0


def alter(cluster: ControlledCluster, event: dict[str, Any]) -> int:
    """Request an ISR; return the error."""
    wish = AlterPartitionRequestPartition(
        partition_index=event["partition"],
        leader_epoch=event["leader_epoch"],
        partition_epoch=event["partition_epoch"],
        leader_recovery_state=event["recovery"],
        new_isr_with_epochs=tuple(
            BrokerState(broker_id=node_id, broker_epoch=epoch)
            for node_id, epoch in zip(event["isr"], event["isr_epochs"], strict=True)
        ),
    )
    topic_id = cluster.controller.image.find_topic("t").topic_id
    request = AlterPartitionRequest(
        broker_id=event["sender"],
        broker_epoch=cluster.epochs[event["sender"]],
        topics=(AlterPartitionRequestTopic(topic_id=topic_id, partitions=(wish,)),),
    )
    response = cluster.controller.handle(request, cluster.now)
    return response.topics[0].partitions[0].error_code


def elect(cluster: ControlledCluster, event: dict[str, Any]) -> int:
    """Elect a leader; return the error."""
    topic = TopicPartitions(topic="t", partitions=(event["partition"],))
    request = ElectLeadersRequest(election_type=event["type"], topic_partitions=(topic,))
    response = cluster.controller.handle(request, cluster.now)
    return response.replica_election_results[0].partition_result[0].error_code


def reassign(cluster: ControlledCluster, event: dict[str, Any]) -> int:
    """Begin or cancel a reassignment; return the error."""
    replicas = event["replicas"]
    partition = ReassignablePartition(
        partition_index=event["partition"],
        replicas=None if replicas is None else tuple(replicas),
    )
    topic = ReassignableTopic(name="t", partitions=(partition,))
    request = AlterPartitionReassignmentsRequest(topics=(topic,))
    response = cluster.controller.handle(request, cluster.now)
    return response.responses[0].partitions[0].error_code


EVENTS = {
    "register": register,
    "heartbeat": heartbeat,
    "create": create,
    "pass": pass_time,
    "alter": alter,
    "elect": elect,
    "reassign": reassign,
}


def state(cluster: ControlledCluster) -> list[object]:
    """Return the end of the log, the brokers and the partitions, as the goldens have them."""
    image = cluster.controller.image
    brokers = [
        [broker.broker_epoch, broker.fenced, broker.in_controlled_shutdown]
        for _, broker in sorted(image.brokers.items())
    ]
    return [cluster.quorum.end_offset, brokers, [described(each) for each in image.partitions()]]


def described(partition: PartitionRecord) -> list[object]:
    """Return a partition as the goldens have it."""
    lists = (
        partition.replicas,
        partition.isr,
        partition.elr,
        partition.last_known_elr,
        partition.adding,
        partition.removing,
    )
    return [
        partition.leader,
        partition.leader_epoch,
        partition.partition_epoch,
        partition.leader_recovery_state,
        *map(list, lists),
    ]
