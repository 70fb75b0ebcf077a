"""The cores of a broker work together: each message reaches its core, and news reach the others."""

from __future__ import annotations

import random

import pytest

from spark_kafka_sink.devbroker.lifecycle.broker_lifecycle import BrokerState
from spark_kafka_sink.devbroker.metadata.envelope import Envelope
from spark_kafka_sink.devbroker.metadata.quorum import FetchMetadataResponse, MetadataQuorum
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from tests.support.devbroker.replication.simulated_broker import (
    LEASE,
    SimulatedDisk,
    start_broker,
    stop_broker,
)
from tests.support.devbroker.replication.simulated_cluster import CLIENT, SimulatedCluster


@pytest.fixture
def cluster():
    """Return three brokers that have a topic."""
    return SimulatedCluster(5)


def leader_of(cluster):
    """Return the broker that leads the first partition, by the controller's image."""
    return cluster.controller.image.find_partition(cluster.keys[0]).leader


def test_a_broker_alone_starts_by_its_own_messages():
    """It becomes the controller, registers with itself, and is unfenced."""
    quorum = MetadataQuorum(lease=LEASE)
    quorum.start(1)
    node = start_broker(1, [1], SimulatedDisk(), quorum, random.Random(1))
    now = 0.0
    while node.lifecycle.state is not BrokerState.RUNNING:
        now = max(now, node.deadline)
        assert now < 5.0
        queue = node.tick(now)
        while queue:
            envelope = queue.pop(0)
            assert 1 == envelope.receiver
            queue += node.handle(envelope, now)
    assert node.image.is_active(1)
    assert node.image == node.controller.controller.image


def test_brokers_start(cluster):
    """All of them run, know the same metadata, and have their replicas."""
    cluster.run(cluster.now + 0.5)
    for broker in cluster.brokers.values():
        assert BrokerState.RUNNING is broker.lifecycle.state
        assert cluster.controller.image == broker.image
        assert all(broker.replicas.log(key) is not None for key in cluster.keys)


def test_news_reach_all_brokers_at_once(cluster):
    """Nobody waits for the next round of fetches: the controller holds them until there is news."""
    cluster.run(cluster.now + 0.5)
    cluster.move(cluster.keys[0], [2, 0, 1])
    cluster.run(cluster.now + 0.05)
    assert 1 == len({broker.image.offset for broker in cluster.brokers.values()})


def test_a_broker_shuts_down_when_others_lead(cluster):
    """It stops by itself then, and its process ends in order."""
    cluster.run(cluster.now + 0.5)
    node_id = leader_of(cluster)
    broker = cluster.brokers[node_id]
    cluster.shut_down(node_id)
    cluster.run(cluster.now + 2.0)
    assert node_id not in cluster.brokers
    assert broker.may_stop
    assert leader_of(cluster) not in {node_id, -1}
    assert cluster.disks[node_id].clean_epoch == broker.lifecycle.epoch >= 0


def test_a_process_does_not_act_on_what_the_last_one_led(cluster):
    """Before its own registration it has no replicas, and its heartbeats claim no metadata."""
    node_id = leader_of(cluster)
    disk = SimulatedDisk()
    process = start_broker(node_id, cluster.disks, disk, cluster.quorum, random.Random(1))
    records = cluster.quorum.read(0, cluster.quorum.end_offset)
    response = FetchMetadataResponse(controller_id=0, controller_epoch=1, offset=0, records=records)
    outgoing = process.handle(Envelope(0, node_id, -1, response), 0.0)
    assert cluster.controller.image == process.image
    assert {} == disk.logs
    registration = next(
        each for each in outgoing if isinstance(each.message, BrokerRegistrationRequest)
    )
    answer = BrokerRegistrationResponse(broker_epoch=99)
    (heartbeat,) = process.handle(registration.response(answer), 0.0)
    assert (99, -1, True) == (
        heartbeat.message.broker_epoch,
        heartbeat.message.current_metadata_offset,
        heartbeat.message.want_fence,
    )


def test_a_heartbeat_that_did_not_arrive_is_sent_again():
    """And so is a fetch of metadata, to the next broker."""
    quorum = MetadataQuorum(lease=LEASE)
    quorum.start(1)
    node = start_broker(1, [1, 2], SimulatedDisk(), quorum, random.Random(1))
    first = node.tick(0.0)
    assert 2 == len(first)
    for each in first:
        assert [] == node.failed(each.correlation_id, 0.0)
    again = []
    while len(again) < 2:
        again += node.tick(node.deadline)
    assert {type(each.message) for each in first} == {type(each.message) for each in again}
    assert 2 == again[-1].receiver


def test_the_controller_passes_its_role_on_when_it_stops(cluster):
    """Another broker is it at once, and the stopped one is not in the way."""
    cluster.run(cluster.now + 0.5)
    node_id = cluster.quorum.controller_id
    epoch = cluster.quorum.controller_epoch
    stop_broker(cluster.brokers[node_id], cluster.disks[node_id], cluster.now)
    cluster.kill(node_id)
    cluster.run(cluster.now + 0.2)
    assert cluster.controller is not None
    assert epoch + 1 == cluster.quorum.controller_epoch


def test_any_broker_asks_the_controller_for_a_client(cluster):
    """The client gets the controller's answer from the broker that it has asked."""
    cluster.run(cluster.now + 0.5)
    answers = []
    receive = cluster.send

    def watch(envelope):
        if envelope.receiver == CLIENT:
            answers.append(envelope)
        receive(envelope)

    cluster.send = watch
    key = cluster.keys[0]
    replicas = cluster.controller.image.find_partition(key).replicas
    moved = [*replicas[1:], replicas[0]]
    cluster.move(key, moved)
    cluster.run(cluster.now + 0.2)
    (answer,) = answers
    assert ErrorCode.NONE == answer.message.error_code
    assert ErrorCode.NONE == answer.message.response.error_code
    cluster.run(cluster.now + 1.0)
    assert tuple(moved) == cluster.controller.image.find_partition(key).replicas
