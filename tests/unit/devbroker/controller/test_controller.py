"""Which broker is the controller, and how the others read what it has recorded."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.metadata.image import MetadataImage
from spark_kafka_sink.devbroker.metadata.quorum import FetchMetadataRequest
from spark_kafka_sink.devbroker.metadata.records import (
    TOPIC_RESOURCE,
    ConfigResource,
    PartitionChange,
)
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from spark_kafka_sink.protocol.messages.elect_leaders import ElectLeadersRequest
from spark_kafka_sink.protocol.messages.heartbeat import HeartbeatRequest
from tests.support.devbroker.controlled_cluster import ControlledCluster


def fetch(cluster: ControlledCluster, controller, node_id: int, offset: int = 0):
    """Fetch metadata as a broker does."""
    request = FetchMetadataRequest(node_id=node_id, offset=offset)
    controller.note_fetch(request, cluster.now)
    return controller.read_metadata(request)


def test_a_broker_builds_its_image_from_what_it_fetches():
    """It may fetch all at once or step by step."""
    cluster = ControlledCluster()
    cluster.create((0, 1, 2))
    image = MetadataImage()
    image.apply(fetch(cluster, cluster.controller, 1).records)
    assert cluster.controller.image == image
    cluster.create((0, 1, 2), name="u")
    response = fetch(cluster, cluster.controller, 1, image.offset + 1)
    assert (0, 1, image.offset + 1) == (
        response.controller_id,
        response.controller_epoch,
        response.offset,
    )
    image.apply(response.records)
    assert cluster.controller.image == image
    assert () == fetch(cluster, cluster.controller, 1, image.offset + 5).records


def test_a_controller_on_standby_says_who_the_controller_is():
    """It has no records for others, and refuses requests."""
    cluster = ControlledCluster()
    standby = cluster.new_controller(1)
    standby.tick(cluster.now)
    assert not standby.is_active
    response = fetch(cluster, standby, 2)
    assert (0, 1, ()) == (response.controller_id, response.controller_epoch, response.records)
    request = AllocateProducerIdsRequest(broker_id=1, broker_epoch=cluster.epochs[1])
    assert ErrorCode.NOT_CONTROLLER == standby.handle(request, cluster.now).error_code
    with pytest.raises(RefusedError) as caught:
        standby.alter_configs(ConfigResource(TOPIC_RESOURCE, "t"), {"a": "b"}, cluster.now)
    assert ErrorCode.NOT_CONTROLLER == caught.value.error_code


def test_another_broker_takes_over_when_the_controller_is_gone():
    """It knows all that was recorded, and its epoch is higher."""
    cluster = ControlledCluster()
    cluster.create((0, 1, 2))
    standby = cluster.new_controller(1)
    cluster.now = standby.deadline - 0.001
    standby.tick(cluster.now)
    assert not standby.is_active
    cluster.now = standby.deadline
    standby.tick(cluster.now)
    assert standby.is_active
    assert (1, 2) == (cluster.quorum.controller_id, cluster.quorum.controller_epoch)
    assert cluster.controller.image == standby.image


def test_a_controller_that_was_replaced_notices_it_with_its_next_record():
    """The request has no effect, and the broker has to ask the new controller."""
    cluster = ControlledCluster()
    cluster.create((0, 1, 2))
    old, new = cluster.controller, cluster.new_controller(1)
    cluster.now = 2.0
    new.tick(cluster.now)
    assert old.is_active
    known = old.image.offset
    cluster.controller = new
    cluster.fence(2)
    # It does not know the new records either.
    assert known + 1 == len(fetch(cluster, old, 2).records)
    request = AllocateProducerIdsRequest(broker_id=1, broker_epoch=cluster.epochs[1])
    assert ErrorCode.NOT_CONTROLLER == old.handle(request, cluster.now).error_code
    assert not old.is_active
    assert 0 == new.image.next_producer_id


@pytest.mark.parametrize("call", ["tick", "fence", "elect"])
def test_a_controller_that_was_replaced_does_nothing_more(call):
    """Neither by itself nor on request."""
    cluster = ControlledCluster()
    cluster.create((0, 1, 2))
    old, new = cluster.controller, cluster.new_controller(1)
    new.tick(2.0)
    end = cluster.quorum.end_offset
    if call == "tick":
        old.tick(100.0)
    elif call == "fence":
        cluster.now = 2.0
        assert ErrorCode.NOT_CONTROLLER == cluster.heartbeat(1, want_fence=True).error_code
    else:
        partition = old.image.find_topic("t").partitions[0]
        change = PartitionChange(topic_id=partition.topic_id, partition=0, leader=1)
        old.image.apply([change])
        request = ElectLeadersRequest(topic_partitions=None)
        assert ErrorCode.NOT_CONTROLLER == old.handle(request, 2.0).error_code
    assert not old.is_active
    assert end == cluster.quorum.end_offset


def test_a_controller_stays_as_long_as_it_hears_from_most_brokers():
    """Their fetches of metadata count, and half of them are not enough."""
    cluster = ControlledCluster()
    others = [cluster.new_controller(node_id) for node_id in (1, 2)]
    for _ in range(40):
        cluster.now += 0.25
        fetch(cluster, cluster.controller, 1)
        cluster.controller.tick(cluster.now)
        others[1].tick(cluster.now)
    assert cluster.controller.is_active
    silent_since = cluster.now
    while cluster.controller.is_active:
        cluster.now = cluster.controller.deadline
        cluster.controller.tick(cluster.now)
    # It kept the last lease that it had renewed.
    assert silent_since + 2.0 <= cluster.now <= silent_since + 4.5
    others[0].tick(cluster.now)
    assert others[0].is_active


def test_a_controller_alone_stays():
    """It is most of the brokers that run."""
    cluster = ControlledCluster(brokers=1)
    for _ in range(100):
        cluster.now = cluster.controller.deadline
        cluster.controller.tick(cluster.now)
    assert cluster.controller.is_active
    assert 1 == cluster.quorum.controller_epoch
    assert 20.0 < cluster.now


def test_a_new_controller_gives_each_broker_a_whole_session():
    """It does not know when they were last heard of."""
    cluster = ControlledCluster()
    cluster.now = 8.0
    standby = cluster.new_controller(1)
    cluster.quorum.stop(0)
    standby.tick(cluster.now)
    cluster.controller = standby
    cluster.now = 16.9
    standby.tick(cluster.now)
    assert cluster.controller.image.is_active(2)
    cluster.now = 17.0
    standby.tick(cluster.now)
    assert not cluster.controller.image.is_active(2)


def test_a_controller_that_shuts_down_is_replaced_at_once():
    """It resigns, and somebody else takes over without waiting for the end of the lease."""
    cluster = ControlledCluster()
    standby = cluster.new_controller(1)
    cluster.controller.resign(cluster.now)
    cluster.controller.resign(cluster.now)
    assert not cluster.controller.is_active
    standby.tick(cluster.now)
    assert standby.is_active


def test_the_same_broker_may_become_controller_again():
    """It reads what the other one has recorded meanwhile."""
    cluster = ControlledCluster()
    first, second = cluster.controller, cluster.new_controller(1)
    first.resign(cluster.now)
    second.tick(cluster.now)
    cluster.controller = second
    cluster.create((0, 1, 2))
    second.resign(cluster.now)
    first.tick(cluster.now + 0.1)
    assert first.is_active
    assert second.image == first.image


def test_a_request_that_is_not_for_the_controller_is_an_error():
    """It is a mistake of the code that calls it."""
    cluster = ControlledCluster()
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    with pytest.raises(TypeError, match="HeartbeatRequest"):
        cluster.controller.handle(request, cluster.now)


def fail_to_store(_epoch, _records):
    raise RefusedError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")


def test_a_request_whose_records_cannot_be_stored_changes_nothing(monkeypatch):
    """The broker learns why, and its next try succeeds when there is space again."""
    cluster = ControlledCluster()
    request = AllocateProducerIdsRequest(broker_id=1, broker_epoch=cluster.epochs[1])
    with monkeypatch.context() as patch:
        patch.setattr(cluster.quorum, "append", fail_to_store)
        response = cluster.controller.handle(request, cluster.now)
        assert ErrorCode.KAFKA_STORAGE_ERROR == response.error_code
    assert 0 == cluster.controller.handle(request, cluster.now).producer_id_start
    assert cluster.controller.is_active


def test_a_controller_that_cannot_store_what_is_due_resigns(monkeypatch):
    """The next one, here itself, knows nothing that is not stored, and does it later."""
    cluster = ControlledCluster()
    with monkeypatch.context() as patch:
        patch.setattr(cluster.quorum, "append", fail_to_store)
        cluster.now = 9.0
        cluster.controller.tick(cluster.now)
        assert not cluster.controller.is_active
    assert cluster.controller.image.is_active(2)
    for now in (9.1, 18.2):
        cluster.controller.tick(now)
        assert cluster.controller.is_active
    assert not cluster.controller.image.is_active(2)
