"""What fault actions do to responses, over real sockets."""

from __future__ import annotations

import time

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.net.faults import (
    AnswerError,
    CloseConnection,
    Corrupt,
    Delay,
    NeverAnswer,
    Throttle,
)
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest
from tests.support.devbroker.broker_asker import produce_request
from tests.support.kafka.real_kafka import wait_until
from tests.support.network.raw_client import RawClient
from tests.support.record.plain_batches import plain_batch

METADATA = MetadataRequest(topics=())
LONG_MS = 600_000


def produce(**fields):
    return produce_request("t", plain_batch(1), **fields)


def waiting_fetch():
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=10**6)
    return FetchRequest(
        max_wait_ms=LONG_MS,
        min_bytes=1,
        topics=(FetchTopic(topic="t", partitions=(partition,)),),
    )


def log_end(broker):
    return broker.call(lambda b: b.cluster.topic("t").partitions[0].log.log_end_offset)


@pytest.fixture
def broker():
    with DevBroker(topics={"t": 1}) as broker:
        yield broker


@pytest.fixture
def client(broker):
    with RawClient(broker.port) as client:
        yield client


def test_an_answer_can_be_late(broker, client):
    """The request is handled at once; its response and all later ones are delayed."""
    hook = broker.on(ApiKey.PRODUCE, Delay(LONG_MS, handled=True), times=1)
    client.send_bytes(client.frame(produce(), 9) + client.frame(METADATA, 9))

    wait_until(lambda: hook.fired == 1, seconds=60, what="the request")
    assert client.is_silent_for(0.05)
    assert (1, 1) == (hook.fired, log_end(broker))


def test_a_late_answer_comes(broker, client):
    """After the delay the response arrives, followed by those to later requests."""
    broker.on(ApiKey.PRODUCE, Delay(0.1, handled=True), times=1)
    started = time.monotonic()
    client.send_bytes(client.frame(produce(), 9) + client.frame(METADATA, 9))

    assert [0, 1] == [client.receive()[0], client.receive()[0]]
    assert time.monotonic() - started >= 0.09


def test_a_client_can_be_throttled(broker, client):
    """The response says for how long the broker does not read from the connection (KIP-219)."""
    broker.on(ApiKey.PRODUCE, Throttle(0.1), times=1)
    started = time.monotonic()
    client.send_bytes(client.frame(produce(), 9) + client.frame(METADATA, 9))

    correlation_id, answer = client.receive()
    assert (0, 100, 1) == (correlation_id, answer.throttle_time_ms, log_end(broker))
    assert 1 == client.receive()[0]
    assert time.monotonic() - started >= 0.09


def test_an_answer_can_be_nonsense(broker, client):
    """The request is handled; only the size and correlation id of the response are right."""
    frame = client.frame(produce(), 9)
    client.send_bytes(frame)
    right = client.receive_frame()
    broker.on(ApiKey.PRODUCE, Corrupt(), times=1)
    client.send_bytes(client.frame(produce(), 9))
    wrong = client.receive_frame()

    assert len(right) == len(wrong)
    assert [0, 1] == [int.from_bytes(answer[:4], "big") for answer in (right, wrong)]
    assert all(a != b for a, b in zip(right[4:12], wrong[4:12], strict=True))
    assert 2 == log_end(broker)


def test_an_answer_can_be_cut(broker, client):
    """A part of the response arrives, and then the connection is closed."""
    broker.on(ApiKey.PRODUCE, Corrupt(lambda frame: frame[:10], close=True), times=1)
    client.send(produce(), 9)

    assert 10 == len(client.rest())
    assert 1 == log_end(broker)


def test_a_wait_that_is_over_is_answered_as_the_fault_says(broker, client):
    """A handled fault waits with its request: here until there are records to fetch."""
    broker.on(ApiKey.FETCH, CloseConnection(handled=True), times=1)
    client.send(waiting_fetch(), 12)

    assert client.is_silent_for(0.05)
    with RawClient(broker.port) as other:
        other.ask(produce(), 9)
    assert client.is_closed()


@pytest.mark.parametrize(("handled", "appended"), [(False, 0), (True, 1)])
@pytest.mark.parametrize(
    "fault", [CloseConnection, lambda handled: AnswerError(ErrorCode.NOT_ENOUGH_REPLICAS, handled)]
)
def test_without_acks_an_error_is_the_end_of_the_connection(
    broker, client, fault, handled, appended
):
    """Without a response, closing the connection is the only way to signal an error."""
    broker.on(ApiKey.PRODUCE, fault(handled), times=1)
    client.send(produce(acks=0), 9)

    assert client.is_closed()
    assert appended == log_end(broker)


def test_without_acks_there_is_nothing_to_alter(broker, client):
    """A fault that changes responses has no effect on a request without one."""
    broker.on(ApiKey.PRODUCE, lambda _, context: ACTIONS.get(context.number), expect=True)
    for _ in ACTIONS:
        client.send(produce(acks=0), 9)
    client.send(METADATA, 9)

    assert len(ACTIONS) == client.receive()[0]
    assert len(ACTIONS) == log_end(broker)


ACTIONS = {1: Corrupt(), 2: Throttle(60), 3: Delay(60, handled=True)}


def test_a_fault_may_be_for_one_broker_alone():
    """A hook's context has the id of the broker that received the request."""
    with DevBroker(brokers=2, topics={"t": 1}) as cluster:
        cluster.on(
            ApiKey.METADATA, lambda _, c: NeverAnswer() if c.node_id == 2 else None, expect=True
        )
        ports = [int(address.rpartition(":")[2]) for address in cluster.addresses.values()]
        with RawClient(ports[0]) as one, RawClient(ports[1]) as two:
            two.send(METADATA, 9)
            one.send(METADATA, 9)
            assert 0 == one.receive()[0]
            assert two.is_silent_for(0.05)
