"""A broker's controller answers messages, and holds fetches of metadata until there is news."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker.controller.controller_host import ControllerHost
from spark_kafka_sink.devbroker.metadata.envelope import (
    Envelope,
    ForwardedRequest,
    ForwardedResponse,
)
from spark_kafka_sink.devbroker.metadata.quorum import NO_CONTROLLER, FetchMetadataRequest
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from spark_kafka_sink.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from spark_kafka_sink.protocol.messages.delete_topics import DeleteTopicsRequest
from spark_kafka_sink.protocol.messages.elect_leaders import ElectLeadersRequest
from spark_kafka_sink.protocol.messages.fetch import FetchRequest
from tests.support.devbroker.controlled_cluster import ControlledCluster

CREATE = CreateTopicsRequest(
    topics=(CreatableTopic(name="t", num_partitions=1, replication_factor=1, assignments=()),)
)


@pytest.fixture
def cluster():
    return ControlledCluster()


@pytest.fixture
def host(cluster):
    """Return the host of the active controller, on broker 0."""
    return ControllerHost(cluster.controller)


def send(host, message, now=0.0, sender=1, number=4):
    """Send a request from a broker to broker 0."""
    return host.handle(Envelope(sender, 0, number, message), now)


def fetch_after(host, max_wait):
    """Return a fetch of what follows all that there is."""
    offset = host.controller.image.offset + 1
    return FetchMetadataRequest(node_id=1, offset=offset, max_wait=max_wait)


def test_a_request_of_a_broker_is_answered(cluster, host):
    """The response goes back to its sender, with its number."""
    (response,) = send(
        host, AllocateProducerIdsRequest(broker_id=1, broker_epoch=cluster.epochs[1])
    )
    assert (0, 1, 4) == response[:3]
    assert AllocateProducerIdsResponse(producer_id_start=0, producer_id_len=1000) == (
        response.message
    )


def test_other_messages_are_left_to_others(host):
    """A controller takes no part in replication."""
    assert send(host, FetchRequest(topics=(), max_wait_ms=0, min_bytes=0)) is None


def test_a_fetch_waits_for_news(host):
    """It is answered together with the request that brings them."""
    request = fetch_after(host, max_wait=0.5)
    assert [] == send(host, request, number=7)
    outgoing = send(host, ForwardedRequest(request=CREATE, version=7), sender=2)
    assert [(2, 4), (1, 7)] == [each[1:3] for each in outgoing]
    assert request.offset == outgoing[1].message.offset
    assert outgoing[1].message.records
    assert [] == host.tick(1.0)


def test_a_fetch_waits_no_longer_than_it_may(host):
    """An answer without records says that the controller is there."""
    send(host, fetch_after(host, max_wait=0.3))
    assert 0.3 == host.deadline
    assert [] == host.tick(0.2)
    (response,) = host.tick(0.3)
    assert (0, ()) == (response.message.controller_id, response.message.records)


def test_a_fetch_for_old_records_does_not_wait(host):
    """What is there is sent at once."""
    (response,) = send(host, FetchMetadataRequest(node_id=1, offset=0, max_wait=0.5))
    assert 0 == response.message.offset
    assert response.message.records


def test_those_that_wait_learn_that_the_controller_resigns(cluster, host):
    """They look for the next one, which this one does not know yet."""
    send(host, fetch_after(host, max_wait=9.0))
    (response,) = host.resign(0.0)
    assert NO_CONTROLLER == response.message.controller_id
    assert float("inf") != cluster.new_controller(1).deadline


def test_a_standby_names_the_controller(cluster):
    """It answers at once, because it will have no news."""
    standby = ControllerHost(cluster.new_controller(1))
    (response,) = send(standby, fetch_after(standby, max_wait=9.0), sender=2)
    assert (0, ()) == (response.message.controller_id, response.message.records)


def test_a_controller_whose_lease_is_over_does_not_name_itself(cluster, host):
    """Although no other one has been elected yet."""
    for node_id in (1, 2):
        cluster.new_controller(node_id)
    while cluster.controller.is_active:
        host.tick(cluster.controller.deadline)
    assert 0 == cluster.quorum.controller_id
    (response,) = send(host, fetch_after(host, max_wait=9.0), now=100.0)
    assert NO_CONTROLLER == response.message.controller_id


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (CREATE, 7),
        (DeleteTopicsRequest(topics=(), timeout_ms=0), 6),
        (ElectLeadersRequest(topic_partitions=None), 2),
    ],
    ids=["create", "delete", "elect"],
)
def test_a_forwarded_request_learns_that_this_is_not_the_controller(cluster, request_, version):
    """Whether its own response has a place for that or not: the broker that forwards asks again."""
    standby = ControllerHost(cluster.new_controller(1))
    (response,) = send(standby, ForwardedRequest(request=request_, version=version))
    assert ForwardedResponse(response=None, error_code=ErrorCode.NOT_CONTROLLER) == response.message
