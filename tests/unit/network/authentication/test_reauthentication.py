"""Authenticating again on the same connection (KIP-368), with requests in flight."""

from __future__ import annotations

import asyncio
import math

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import AuthenticationError, NetworkError
from spark_kafka_sink.model import Node, TopicPartition
from spark_kafka_sink.network.authentication import sasl_authenticator
from spark_kafka_sink.network.authentication.sasl_authenticator import SaslSession
from spark_kafka_sink.network.connection.broker_connection import (
    BrokerConnection,
    ConnectionSettings,
)
from spark_kafka_sink.network.connection.dialer import Dialer
from spark_kafka_sink.network.connection.host_resolver import HostResolver
from spark_kafka_sink.network.connection.node_api_versions import NodeApiVersions
from spark_kafka_sink.network.connection.reauthentication import PendingRequest, Reauthentication
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest
from spark_kafka_sink.security.login import PlainClient
from tests.support.network.scripted_transport import ScriptedTransport, run_without_waiting
from tests.support.producer.mock_network import ALL_VERSIONS
from tests.support.security.secure_front import SaslRules, SecureFront
from tests.support.security.secured import sasl

PASSWORD = "planted-secret"  # noqa: S105
ALICE = ("PLAIN", "alice")
#: Longer than any test; a session is renewed when the test decides.
SESSION_MS = 600_000


@pytest.fixture(scope="module")
def broker():
    with DevBroker(topics={"events": 1}) as started:
        yield started


@pytest.fixture
def front(broker):
    rules = SaslRules(users={"alice": PASSWORD}, session_ms=SESSION_MS)
    with SecureFront(broker.bootstrap_servers, sasl=rules) as listening:
        yield listening


@pytest.fixture
def always_due(monkeypatch):
    """Make every session due for renewal as soon as it has begun."""
    for name in ("RENEWAL_SHARE", "RENEWAL_JITTER", "MIN_INTERVAL"):
        monkeypatch.setattr(sasl_authenticator, name, 0.0)


def _log_end_offset(broker) -> int:
    return broker.call(
        lambda it: it.cluster.partition(TopicPartition("events", 0)).log.log_end_offset
    )


def _session_of(connection: BrokerConnection) -> SaslSession:
    assert connection._reauthentication is not None
    return connection._reauthentication._session


def _connected(front, use, new_client=None):
    """Run steps with an open connection."""

    async def client(_: Node) -> PlainClient:
        return PlainClient("alice", PASSWORD)

    async def run() -> object:
        connection = await BrokerConnection.open(
            Node(1, front.host, front.port),
            ConnectionSettings(client_id="test", request_timeout=60.0),
            connect=Dialer(HostResolver()).connect,
            setup_timeout=60.0,
            sasl_client=new_client or client,
        )
        try:
            return await use(connection)
        finally:
            connection.close()

    return asyncio.run(run())


@pytest.mark.usefixtures("always_due")
@pytest.mark.parametrize("acks", ["all", "0"])
def test_reauthentication_under_load_neither_loses_nor_reorders_records(front, broker, acks):
    """A producer authenticates again between requests, and everything arrives as sent."""
    settings = {
        "bootstrap.servers": front.bootstrap_servers,
        "batch.size": 100,
        "linger.ms": 0,
        "acks": acks,
        **sasl("SCRAM-SHA-256", "alice", PASSWORD),
    }
    before = _log_end_offset(broker)
    with KafkaProducer(settings) as producer:
        futures = [producer.send("events", b"%d" % number) for number in range(300)]
        producer.flush(300)
        if acks == "all":
            offsets = [future.result(0).offset for future in futures]
            assert list(range(before, before + 300)) == offsets
        producer.send("events", b"the last").result(60)
    assert [] == front.violations
    # Some connections, and many more authentications.
    assert len(front.authenticated) > 3 * front.connections
    assert {("SCRAM-SHA-256", "alice")} == set(front.authenticated)


@pytest.mark.usefixtures("always_due")
def test_requests_are_held_while_the_session_is_renewed(front):
    """Requests made during an authentication are counted, and sent after it in order."""

    async def use(connection: BrokerConnection) -> None:
        first = connection.send(MetadataRequest(topics=()))
        others = [connection.send(MetadataRequest(topics=())) for _ in range(3)]
        assert 4 == connection.in_flight_count
        answered = []
        for number, future in enumerate([first, *others]):
            future.add_done_callback(lambda _, number=number: answered.append(number))
        await asyncio.gather(first, *others)
        assert [0, 1, 2, 3] == answered
        assert 0 == connection.in_flight_count

    _connected(front, use)
    assert [ALICE] * 2 == front.authenticated
    assert [] == front.violations


@pytest.mark.usefixtures("always_due")
def test_responses_to_earlier_requests_arrive_during_the_renewal(front, monkeypatch):
    """Requests that the broker already has when the session is renewed are answered."""

    async def use(connection: BrokerConnection) -> list:
        session = _session_of(connection)
        session._renew_at = math.inf
        in_flight = [connection.send(MetadataRequest(topics=())) for _ in range(3)]
        session._renew_at = 0.0
        return await asyncio.gather(*in_flight, connection.send(MetadataRequest(topics=())))

    assert 4 == len(_connected(front, use))
    assert [ALICE] * 2 == front.authenticated


def test_a_session_without_a_lifetime_is_not_renewed(front):
    """A session is not renewed if the broker has set no end for it."""
    front.sasl.session_ms = 0

    async def use(connection: BrokerConnection) -> None:
        for _ in range(3):
            await connection.send(MetadataRequest(topics=()))

    _connected(front, use)
    assert [ALICE] == front.authenticated


def test_a_session_is_renewed_when_most_of_it_has_passed(front):
    """After 85 to 95 percent of its time, as in Java, by the next request."""

    async def use(connection: BrokerConnection) -> float:
        return _session_of(connection)._renew_at - asyncio.get_running_loop().time()

    left = _connected(front, use)
    assert SESSION_MS / 1000 * 0.80 < left <= SESSION_MS / 1000 * 0.95


@pytest.mark.usefixtures("always_due")
def test_a_refused_renewal_fails_the_producer(front):
    """If the password has changed by then, held and sent records fail with that error."""
    settings = {"bootstrap.servers": front.bootstrap_servers, **sasl("PLAIN", "alice", PASSWORD)}
    producer = KafkaProducer(settings)
    producer.send("events", b"v").result(60)
    front.sasl.users = {"alice": "changed"}
    failed = producer.send("events", b"v")
    with pytest.raises(Exception, match="PLAIN authentication of user 'alice' failed") as caught:
        failed.result(60)
    assert PASSWORD not in str(caught.value)
    with pytest.raises(AuthenticationError):
        producer.flush()
    producer.close(0)


@pytest.mark.usefixtures("always_due")
def test_a_renewal_without_a_token_closes_the_connection(front):
    """A transient error only ends the connection: everything that waits can be resent."""
    clients = [PlainClient("alice", PASSWORD)]

    async def new_client(_: Node) -> PlainClient:
        if clients:
            return clients.pop()
        raise NetworkError("the token endpoint is away")

    async def use(connection: BrokerConnection) -> list:
        futures = [connection.send(MetadataRequest(topics=())) for _ in range(2)]
        errors = await asyncio.gather(*futures, return_exceptions=True)
        with pytest.raises(NetworkError):
            connection.send(MetadataRequest(topics=()))
        return errors

    errors = _connected(front, use, new_client)
    assert ["the token endpoint is away"] * 2 == [str(error) for error in errors]
    assert [True] * 2 == [error.retriable for error in errors]


@pytest.mark.usefixtures("always_due")
def test_an_unexpected_error_in_a_renewal_closes_the_connection(front):
    """Waiting requests fail with a retriable error, and its cause is not quoted."""
    clients = [PlainClient("alice", PASSWORD)]

    async def new_client(_: Node) -> PlainClient:
        if clients:
            return clients.pop()
        raise ValueError(PASSWORD)

    async def use(connection: BrokerConnection) -> list:
        futures = [
            connection.send(MetadataRequest(topics=())),
            connection.send_without_response(MetadataRequest(topics=())),
        ]
        return await asyncio.gather(*futures, return_exceptions=True)

    errors = _connected(front, use, new_client)
    assert [NetworkError] * 2 == [type(error) for error in errors]
    assert ["the session was not renewed: ValueError"] * 2 == [
        str(error).partition(": ")[2] for error in errors
    ]
    assert isinstance(errors[0].__cause__, ValueError)


def test_requests_held_for_a_renewal_time_out():
    """A token that never arrives must not leave requests waiting forever."""

    async def never(_: Node) -> PlainClient:
        return await asyncio.get_running_loop().create_future()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        settings = ConnectionSettings(client_id="test", request_timeout=30.0)
        connection = BrokerConnection(Node(1, "localhost", 9092), ScriptedTransport(), settings)
        connection.api_versions = NodeApiVersions(ALL_VERSIONS, {})
        session = SaslSession(connection.node, never, None, loop.time)
        connection._renew_when_due(session)
        session._renew_at = began_at = loop.time()
        futures = [
            connection.send(MetadataRequest(topics=())),
            connection.send_without_response(MetadataRequest(topics=())),
        ]
        errors = await asyncio.gather(*futures, return_exceptions=True)
        assert ["the session was not renewed within 30 s (request.timeout.ms)"] * 2 == [
            str(error).partition(": ")[2] for error in errors
        ]
        assert began_at + 30.0 == loop.time()

    run_without_waiting(run)


def test_a_closed_connection_does_not_renew_its_session():
    """A request that comes too late fails at once, and no token is fetched for it."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        settings = ConnectionSettings(client_id="test", request_timeout=30.0)
        connection = BrokerConnection(Node(1, "localhost", 9092), ScriptedTransport(), settings)
        connection.api_versions = NodeApiVersions(ALL_VERSIONS, {})
        session = SaslSession(connection.node, None, None, loop.time)
        connection._renew_when_due(session)
        session._renew_at = loop.time()
        connection.close()
        for send in (connection.send, connection.send_without_response):
            with pytest.raises(NetworkError, match="the connection was closed by this client"):
                send(MetadataRequest(topics=()))
        assert {asyncio.current_task()} == asyncio.all_tasks()

    run_without_waiting(run)


def test_the_deadline_is_that_of_the_oldest_held_request():
    """It has waited longest, and without one there is no deadline."""

    async def run() -> list[float | None]:
        waiting = Reauthentication(None, None, send=None, on_renewed=None, on_failed=None)
        deadlines = [waiting.held_until(30.0)]
        for since in (5.0, 7.0):
            waiting.hold(PendingRequest(None, 0, None), since)
            deadlines.append(waiting.held_until(30.0))
        return deadlines

    assert [None, 35.0, 35.0] == asyncio.run(run())
