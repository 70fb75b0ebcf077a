"""A paused broker and its clients' connections."""

from __future__ import annotations

import select
import socket
import struct

import pytest

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.net.faults import Delay
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest
from spark_kafka_sink.protocol.registry import RequestHeader, decode_response, encode_request
from tests.support.devbroker.broker_asker import produce_request
from tests.support.kafka.real_kafka import wait_until
from tests.support.record.plain_batches import plain_batch

#: Others take over after a fraction of a second.
QUICK = {"broker_session_timeout_ms": 100, "controller_quorum_fetch_timeout_ms": 100}


@pytest.fixture
def cluster():
    with DevBroker(brokers=3, topics={"t": 1}, **QUICK) as cluster:
        yield cluster


def connect(cluster, node_id):
    host, port = cluster.addresses[node_id].rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=120)


def send(client, request, version, times=1):
    header = RequestHeader(
        request_api_key=request.api_key,
        request_api_version=version,
        correlation_id=1,
        client_id="t",
    )
    client.sendall(times * b"".join(encode_request(header, request)))


def receive(client, request, version):
    """Return the response to a request."""
    (size,) = struct.unpack(">i", client.recv(4, socket.MSG_WAITALL))
    frame = client.recv(size, socket.MSG_WAITALL)
    return decode_response(request.api_key, version, frame)[1]


def ask_versions(client):
    send(client, ApiVersionsRequest(client_software_name="t", client_software_version="1"), 3)


def is_readable(client):
    return bool(select.select([client], [], [], 0)[0])


def test_a_paused_broker_answers_when_it_is_resumed(cluster):
    """Clients that were connected, and those that connect meanwhile, wait without an error."""
    with connect(cluster, 1) as connected:
        ask_versions(connected)
        assert connected.recv(1_000)
        cluster.pause(1)
        with connect(cluster, 1) as late, connect(cluster, 2) as other:
            for client in (connected, late, other):
                ask_versions(client)
            assert other.recv(1_000)
            assert (False, False) == (is_readable(connected), is_readable(late))
            cluster.resume(1)
            assert connected.recv(1_000)
            assert late.recv(1_000)


def test_a_producer_goes_on_at_the_new_leader(cluster):
    """Its request to the paused leader times out, and the record is written once elsewhere."""
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "request.timeout.ms": 500}
    with KafkaProducer(settings) as producer:
        producer.send("t", b"1").result(120)
        cluster.pause(1)
        producer.send("t", b"2").result(120)
        assert 1 != cluster.leader("t")
        cluster.resume(1)
        producer.send("t", b"3").result(120)
    assert [b"1", b"2", b"3"] == [record.value for record in cluster.records("t")[0]]


def wait_for_another_leader(cluster):
    wait_until(lambda: cluster.leader("t") not in {-1, 1}, seconds=120, what="a new leader")


def test_a_resumed_leader_confirms_what_was_sent_before_and_loses_it(cluster):
    """It handles the write with acks=1 before it learns that another broker leads."""
    request = produce_request("t", plain_batch(1), acks=1)
    with connect(cluster, 1) as client:
        ask_versions(client)
        assert client.recv(1_000)
        cluster.pause(1)
        send(client, request, 11)
        wait_for_another_leader(cluster)
        cluster.resume(1)
        (partition,) = receive(client, request, 11).responses[0].partition_responses
    assert (ErrorCode.NONE, 0) == (partition.error_code, partition.base_offset)
    empty = {1: 0, 2: 0, 3: 0}
    wait_until(lambda: cluster.end_offsets("t") == empty, seconds=120, what="the truncation")
    assert [] == cluster.records("t")[0]


def test_requests_that_have_arrived_are_handled_when_the_broker_is_resumed(cluster):
    """Of two in one packet, the second one is not handled if the broker is paused in between."""

    def pause(_request, context):
        if context.node_id == 1 and context.number == 1:
            cluster._server.pause_broker(1)

    hook = cluster.on("api-versions", pause)
    with connect(cluster, 1) as client, connect(cluster, 2) as other:
        request = ApiVersionsRequest(client_software_name="t", client_software_version="1")
        send(client, request, 0, times=2)
        wait_until(lambda: hook.seen, seconds=120, what="the first request")
        for _ in range(3):
            send(other, request, 0)
            receive(other, request, 0)
        assert 1 + 3 == hook.seen
        cluster.resume(1)
        for _ in range(2):
            receive(client, request, 0)
    assert 2 + 3 == hook.seen


def test_a_request_that_waits_is_answered_when_the_broker_is_resumed(cluster):
    """Its time is up during the pause, and nothing wakes it afterwards."""

    def pause(_request, context):
        if context.node_id != 1:
            return None
        cluster._server.pause_broker(1)
        return Delay(0.0, handled=True)

    hook = cluster.on("api-versions", pause)
    with connect(cluster, 1) as client, connect(cluster, 2) as other:
        ask_versions(client)
        wait_until(lambda: hook.fired, seconds=120, what="the request")
        for _ in range(3):
            ask_versions(other)
            assert other.recv(1_000)
        assert not is_readable(client)
        cluster.resume(1)
        assert client.recv(1_000)


def test_only_a_running_broker_is_paused_and_only_a_paused_one_resumed(cluster):
    """Other calls are errors that say what the broker does."""
    cluster.pause(1)
    with pytest.raises(KafkaError, match="broker 1 is paused, not running"):
        cluster.pause(1)
    with pytest.raises(KafkaError, match="broker 1 is paused: resume or kill it"):
        cluster.stop(1)
    with pytest.raises(KafkaError, match="already running"):
        cluster.start(1)
    with pytest.raises(KafkaError, match="broker 2 is running, not paused"):
        cluster.resume(2)
    with pytest.raises(KafkaError, match="broker 4 does not exist"):
        cluster.pause(4)
    assert "paused" in cluster._repr_html_()


def test_a_paused_broker_can_be_killed_with_its_connections(cluster):
    """Its clients see the end of their connections, and others answer for it."""
    with connect(cluster, 1) as client:
        ask_versions(client)
        assert client.recv(1_000)
        cluster.pause(1)
        cluster.kill(1)
        assert b"" == client.recv(1)
    cluster.start(1)
    assert "paused" not in cluster._repr_html_()


def test_the_only_broker_cannot_be_paused(devbroker):
    """Nobody could take over; a fault that never answers is meant for that."""
    with pytest.raises(KafkaError, match="pause needs several brokers"):
        devbroker.pause(1)


def test_a_notebook_shows_a_cluster_whose_brokers_are_away(cluster):
    """A partition without a replica that runs has no end, and without brokers there are none."""
    cluster.create_topic("alone", partitions=3, replication_factor=1)
    cluster.kill(2)
    assert "0, ?, 0" in cluster._repr_html_()
    cluster.pause(1)
    cluster.pause(3)
    assert "alone" not in cluster._repr_html_()
