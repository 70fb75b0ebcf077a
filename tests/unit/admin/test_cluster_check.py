"""The driver's check: which limit it observes and names, and what ends it early."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from dataclasses import replace

import pytest

from spark_kafka_sink.admin.cluster_check import (
    LEADERS_SECONDS,
    describe_topics,
    list_topics,
    missing_topics,
    rest,
)
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import KafkaTimeoutError, NetworkError
from spark_kafka_sink.network import cluster_connection_states, connection_waits
from spark_kafka_sink.network.connection_waits import Patience
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.testing import AlterResponse, ApiKey
from tests.support.network.leaps import leap_at_first_contact


def failure(servers, *topics, timeout=3600.0, kind=NetworkError, **settings):
    config = ProducerConfig.from_mapping({"bootstrap.servers": servers, **settings})
    with pytest.raises(kind) as caught:
        describe_topics(config, topics, is_dry_run=True, timeout=timeout)
    return str(caught.value)


@pytest.fixture
def early_failure(monkeypatch):
    """Return a function that returns the error of a check that gives up before its limit.

    If the process is paused, not every address has been tried when the check looks whether to give
    up, and it waits until its limit. Such a check is repeated.
    """
    leap_at_first_contact(monkeypatch)
    limits = []
    ask = connection_waits._ask

    def note(client, topics, began, patience):
        limits.append(patience.limit)
        return ask(client, topics, began, patience)

    monkeypatch.setattr(connection_waits, "_ask", note)

    def fail(servers, *topics):
        for _ in range(5):
            limits.clear()
            message = failure(servers, *topics, timeout=10.0, **{"max.block.ms": 7_200_000})
            if limits == [connection_waits._FINAL]:
                return message
        raise AssertionError(f"the check never ended early: {message}")

    return fail


@pytest.fixture
def silent(monkeypatch):
    """Yield the address of a peer that answers nothing; a wait ends once it has a request."""
    asked = threading.Event()
    ask = connection_waits._ask

    async def leaping_ask(client, topics, began, patience):
        asking = asyncio.ensure_future(ask(client, topics, began, patience))
        while not asking.done() and not asked.is_set():  # noqa: ASYNC110  set on a thread
            await asyncio.sleep(0.002)
        loop = asyncio.get_running_loop()
        now = loop.time
        loop.time = lambda: now() + patience.seconds
        return await asking

    monkeypatch.setattr(connection_waits, "_ask", leaping_ask)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            with server.accept()[0] as connection:
                while connection.recv(1_000):
                    asked.set()

        peer = threading.Thread(target=serve, daemon=True)
        peer.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        peer.join()


def test_a_smaller_max_block_ms_limits_the_check(silent):
    """A max.block.ms below the check's own limit is observed and named."""
    message = failure(silent, "events", kind=KafkaTimeoutError, **{"max.block.ms": 60_000})
    assert re.match(r"topic 'events' is not known after [\d.]+ s \(max\.block\.ms\): ", message)


def test_the_limit_of_the_check_is_named(silent):
    """A max.block.ms that is not the limit is not named."""
    message = failure(silent, "events", kind=KafkaTimeoutError, timeout=20.0)
    assert re.search(r"not known after [\d.]+ s \(the limit of the driver's check\): ", message)
    assert "max.block.ms" not in message


@pytest.mark.parametrize("topics", [("events",), ()], ids=["topic", "topics of a column"])
def test_refused_connections_end_the_check_early(unused_port, topics, early_failure):
    """If nothing listens at any address, the check does not use up its time."""
    servers = f"127.0.0.1:{unused_port},localhost:{unused_port}"
    message = early_failure(servers, *topics)
    assert f"no broker answered through 127.0.0.1:{unused_port}" in message


def test_a_host_without_an_address_ends_the_check_early(early_failure):
    """A name that does not resolve is not waited for either."""
    message = early_failure("no-such-host.invalid:9092", "events")
    assert "no-such-host.invalid:9092" in message
    assert "(waiting longer would not help)" in message


def test_the_check_waits_for_a_single_address_that_may_respond(unused_port, silent):
    """A single address that does not respond is reason enough to wait."""
    servers = f"{silent},127.0.0.1:{unused_port}"
    message = failure(servers, "events", kind=KafkaTimeoutError, timeout=20.0)
    assert re.search(r"not known after [\d.]+ s \(the limit of the driver's check\): ", message)


@pytest.mark.parametrize("host", ["kafka-internal.invalid", "127.0.0.1"])
def test_an_advertised_address_that_nobody_can_reach_is_named(unused_port, host, monkeypatch):
    """A broker that advertises an address where nobody is, or a name without one, is named."""
    monkeypatch.setattr(cluster_connection_states, "FINAL_SECONDS", 0.0)
    with DevBroker(topics={"events": 3}) as broker:
        broker.call(lambda it: it.advertise(host, unused_port, listener="PLAINTEXT"))
        message = failure(broker.bootstrap_servers, "events")
    assert message.startswith(f"{host}:{unused_port} (id 1): ")
    assert message.endswith(
        "; broker 1 advertises this address (its advertised.listeners): clients must be able to "
        "reach it; waiting longer would not help"
    )


@pytest.mark.parametrize(
    ("seconds", "waited", "left"),
    [
        (15.0, 4.0, 11.0),
        (15.0, 14.0, LEADERS_SECONDS),
        (15.0, 16.0, LEADERS_SECONDS),
        (2.0, 1.5, 2.0),
    ],
)
def test_the_leaders_have_what_is_left_of_the_limit(seconds, waited, left):
    """The first answer and the leaders share one limit, but the leaders get a few seconds of it."""
    assert Patience(left, "x") == rest(Patience(seconds, "x"), waited)


def test_internal_topics_are_not_listed():
    """An error must not suggest them to a user who has misspelled a name."""

    def with_internal_topic(response):
        topics = (replace(each, is_internal=each.name == "hidden") for each in response.topics)
        return replace(response, topics=tuple(topics))

    with DevBroker(topics={"hidden": 1, "orders": 1}) as broker:
        hook = broker.on(ApiKey.METADATA, AlterResponse(with_internal_topic))
        config = ProducerConfig.from_mapping({"bootstrap.servers": broker.bootstrap_servers})
        assert ["orders"] == list_topics(config)
    assert 1 == hook.fired


def test_a_topic_that_may_not_be_seen_is_not_missing():
    """A broker says of it only that, whether it exists or not; nothing is created."""

    def refused(response):
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        topics = (
            replace(each, error_code=code, partitions=()) if each.name == "secret" else each
            for each in response.topics
        )
        return replace(response, topics=tuple(topics))

    with DevBroker(topics={"orders": 1}) as broker:
        hook = broker.on(ApiKey.METADATA, AlterResponse(refused))
        config = ProducerConfig.from_mapping({"bootstrap.servers": broker.bootstrap_servers})
        for _ in range(2):
            assert {"none"} == missing_topics(config, ["none", "secret", "orders"])
    assert 2 == hook.fired
