"""The embedded Schema Registry over real sockets: addresses, faults, credentials and limits."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
import urllib.error
import urllib.request

import pytest

from spark_kafka_sink.devbroker import ConnectionLimits, DevBroker, Listener, SaslSettings
from spark_kafka_sink.devbroker.registry.http_message import MAX_BODY_BYTES
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.testing import AnswerStatus, CloseConnection, Delay, NeverAnswer
from tests.support.devbroker.registry_calls import TIMEOUT_SECONDS, Answer, call, record
from tests.support.security.secure_listeners import PASSWORD, USER, server_tls

V1 = record("id:long")
REGISTER = "POST /subjects/orders/versions"


@pytest.fixture
def broker():
    """Yield a broker with a registry."""
    with DevBroker(schema_registry=True) as running:
        yield running


def connect(broker):
    """Return a socket to the registry."""
    address = ("127.0.0.1", int(broker.schema_registry_url.rpartition(":")[2]))
    return socket.create_connection(address, timeout=TIMEOUT_SECONDS)


def rest_of(client):
    """Return what arrives until the connection ends."""
    parts = []
    while part := client.recv(65536):
        parts.append(part)
    return b"".join(parts)


def test_a_registry_runs_beside_the_broker(broker):
    """The registry has an address of its own, and answers there."""
    assert broker.schema_registry_url.startswith("http://127.0.0.1:")
    assert broker.schema_registry_url == broker.schema_registry.url
    assert Answer(200, []) == call(broker.schema_registry_url, "GET /subjects")


def test_without_a_registry_there_is_no_address():
    """A broker without a registry says how to get one."""
    broker = DevBroker()
    with pytest.raises(ConfigError, match="schema_registry=True"):
        _ = broker.schema_registry_url


def test_schemas_survive_a_restart_in_memory(broker):
    """Stopping and starting keeps the port and the schemas."""
    url = broker.schema_registry_url
    assert 1 == call(url, REGISTER, {"schema": V1}).body["id"]
    broker.stop()
    broker.start()
    assert url == broker.schema_registry_url
    assert Answer(200, ["orders"]) == call(url, "GET /subjects")


def test_a_registry_has_its_own_listener():
    """A Listener sets the port."""
    with DevBroker(schema_registry=Listener(host="localhost")) as broker:
        assert broker.schema_registry_url.startswith("http://localhost:")
        assert Answer(200, []) == call(broker.schema_registry_url, "GET /subjects")


def test_a_connection_serves_many_requests(broker):
    """Requests of one connection are answered in order, also if they are sent at once."""
    with connect(broker) as client:
        head = b"POST /subjects/orders/versions HTTP/1.1\r\nContent-Length: %d\r\n\r\n"
        body = json.dumps({"schema": V1}).encode()
        client.sendall(head % len(body) + body)
        client.sendall(b"GET /subjects HTTP/1.1\r\n\r\n" * 2)
        client.sendall(b"GET /schemas/types HTTP/1.1\r\nConnection: close\r\n\r\n")
        answers = rest_of(client).split(b"HTTP/1.1 200 OK")
    assert 5 == len(answers)
    assert answers[2].endswith(b'["orders"]')
    assert answers[4].endswith(b'["AVRO"]')


def test_a_client_that_has_closed_its_side_gets_its_answer(broker):
    """A half-closed connection is served to its end."""
    with connect(broker) as client:
        client.sendall(b"GET /subjects HTTP/1.1\r\n\r\nGET /schemas/types HTTP/1.1\r\n\r\n")
        client.shutdown(socket.SHUT_WR)
        assert 2 == rest_of(client).count(b"HTTP/1.1 200 OK")


def test_a_client_that_waits_is_told_to_continue(broker):
    """A body that the client holds back is asked for."""
    with connect(broker) as client:
        body = json.dumps({"schema": V1}).encode()
        client.sendall(
            b"POST /subjects/a/versions HTTP/1.1\r\nExpect: 100-continue\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body)
        )
        assert b"HTTP/1.1 100 Continue\r\n\r\n" == client.recv(1000)
        client.sendall(body)
        assert rest_of(client).startswith(b"HTTP/1.1 200 OK")


def test_head_has_no_body(broker):
    """A method that no path has is refused, and HEAD gets no body."""
    with connect(broker) as client:
        client.sendall(b"HEAD /subjects HTTP/1.1\r\nConnection: close\r\n\r\n")
        answer = rest_of(client)
    assert answer.startswith(b"HTTP/1.1 405 ")
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"hello\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1), b"413"),
        (b"GET /" + b"a" * 40_000, b"431"),
    ],
)
def test_a_malformed_request_ends_the_connection(broker, data, status):
    """Bytes that are not a request get a status, and the connection is closed."""
    with connect(broker) as client:
        client.sendall(data)
        assert rest_of(client).startswith(b"HTTP/1.1 " + status)
    assert Answer(200, []) == call(broker.schema_registry_url, "GET /subjects")


@pytest.mark.parametrize(
    ("limits", "data"),
    [
        ({"connections_max_idle_ms": 1}, b""),
        ({"request_receive_timeout_ms": 1}, b"GET / HT"),
        ({"request_receive_timeout_ms": 1}, b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n{"),
    ],
)
def test_a_slow_client_is_disconnected(limits, data):
    """A connection that is idle for too long, or a request that takes too long, is closed."""
    with (
        DevBroker(schema_registry=True, connection_limits=ConnectionLimits(**limits)) as broker,
        connect(broker) as client,
    ):
        client.sendall(data)
        assert b"" == rest_of(client)


def test_too_many_connections_are_closed():
    """The limit of connections is that of the broker."""
    limits = ConnectionLimits(max_connections=1)
    with (
        DevBroker(schema_registry=True, connection_limits=limits) as broker,
        connect(broker) as first,
        connect(broker) as second,
    ):
        first.sendall(b"GET /subjects HTTP/1.1\r\nConnection: close\r\n\r\n")
        assert b"" == rest_of(second)
        assert rest_of(first).startswith(b"HTTP/1.1 200 OK")


# Faults.


def test_a_status_can_be_injected(broker):
    """A fault answers in place of the registry, as often as it should."""
    registry = broker.schema_registry
    hook = registry.on("GET /schemas/ids/{id}", AnswerStatus(503, 50003, "busy"), times=1)
    call(registry.url, REGISTER, {"schema": V1})
    assert Answer(503, {"error_code": 50003, "message": "busy"}) == (
        call(registry.url, "GET /schemas/ids/1")
    )
    assert 200 == call(registry.url, "GET /schemas/ids/1").status
    assert (1, 1) == (hook.seen, hook.fired)
    assert "<RegistryFaultHook for GET /schemas/ids/{id}: injected 1 time>" == repr(hook)


def test_a_status_may_come_after_the_change(broker):
    """With handled the request takes effect, and the client does not learn of it."""
    registry = broker.schema_registry
    registry.on("POST /subjects/...", AnswerStatus(500, handled=True), times=1)
    assert Answer(500, {"error_code": 500, "message": "Internal Server Error"}) == (
        call(registry.url, REGISTER, {"schema": V1})
    )
    assert Answer(200, ["orders"]) == call(registry.url, "GET /subjects")


@pytest.mark.parametrize("handled", [False, True])
def test_a_connection_can_be_reset(broker, handled):
    """A fault closes the connection before or after the request takes effect."""
    registry = broker.schema_registry
    registry.on("POST /...", CloseConnection(handled=handled), times=1)
    with pytest.raises((ConnectionError, http.client.RemoteDisconnected)):
        call(registry.url, REGISTER, {"schema": V1})
    expected = ["orders"] if handled else []
    assert Answer(200, expected) == call(registry.url, "GET /subjects")


@pytest.mark.parametrize("handled", [False, True])
def test_a_response_can_be_delayed(broker, handled):
    """A fault delays the request, or only its response."""
    registry = broker.schema_registry
    hook = registry.on("POST /...", Delay(0.01, handled=handled), times=1)
    assert 1 == call(registry.url, REGISTER, {"schema": V1}).body["id"]
    assert 1 == hook.fired


def test_a_request_can_remain_unanswered(broker):
    """A fault leaves a client waiting until it gives up."""
    registry = broker.schema_registry
    registry.on("GET /subjects", NeverAnswer(handled=True), times=1)
    with connect(broker) as client:
        client.sendall(b"GET /subjects HTTP/1.1\r\n\r\n")
        client.settimeout(0.05)
        with pytest.raises(TimeoutError):
            client.recv(1)
    assert Answer(200, []) == call(registry.url, "GET /subjects")


def test_a_function_decides_on_each_request(broker):
    """A fault may be a function of the request and its context."""
    registry = broker.schema_registry

    def every_second(request, context):
        assert ("GET", "/subjects") == (request.method, request.target)
        return AnswerStatus(500) if context.number % 2 == 0 else None

    hook = registry.on("get /subjects", every_second)
    statuses = [call(registry.url, "GET /subjects").status for _ in range(4)]
    assert [200, 500, 200, 500] == statuses
    hook.remove()
    assert 200 == call(registry.url, "GET /subjects").status


@pytest.mark.parametrize(
    "path",
    [
        "GET /schemas/ids/7",
        "GET /schemas/ids/{id}",
        "GET /schemas/...",
        "GET /{a}/{b}/{c}",
        "GET /...",
    ],
)
def test_paths_match_by_their_parts(broker, path):
    """A path may be exact, have places in braces, or end with any rest."""
    registry = broker.schema_registry
    registry.on(path, AnswerStatus(599), expect=True)
    assert 599 == call(registry.url, "GET /schemas/ids/7").status
    assert 599 == call(registry.url, "GET /contexts/.test/schemas/ids/7").status


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("GET /nothing", AnswerStatus(500)), "matches no request"),
        (("/subjects", AnswerStatus(500)), "matches no request"),
        (("GET /subjects", AnswerStatus), "must not be a class"),
        (("GET /subjects", 500), "must be an action"),
        (("GET /subjects", lambda: None), "two arguments"),
    ],
)
def test_a_fault_that_cannot_act_is_refused(broker, arguments, message):
    """Arguments with which a hook would never act are errors."""
    with pytest.raises(ConfigError, match=message):
        broker.schema_registry.on(*arguments)


@pytest.mark.parametrize("times", [0, True, "1"])
def test_a_limit_must_be_a_number(broker, times):
    """A hook that acts no times is an error."""
    with pytest.raises(ConfigError, match="times must be"):
        broker.schema_registry.on("GET /subjects", AnswerStatus(500), times=times)


@pytest.mark.parametrize("status", [99, 600, True, "500"])
def test_a_status_must_be_one(status):
    """Only numbers that HTTP has for statuses can be injected."""
    with pytest.raises(ConfigError, match="a status of HTTP"):
        AnswerStatus(status)


def test_an_expected_fault_must_happen():
    """A broker that ends before an expected fault was injected raises."""
    with (
        pytest.raises(AssertionError, match="GET /subjects"),
        DevBroker(schema_registry=True) as broker,
    ):
        # Not `on`, which the tests watch for faults that never act.
        broker.schema_registry._faults.on("GET /subjects", AnswerStatus(500), expect=True)


# Security.


def secured(certificates, protocol):
    """Return a broker whose registry has TLS, basic authentication or both."""
    return DevBroker(
        schema_registry=Listener(
            security_protocol=protocol,
            tls=server_tls(certificates.server) if "SSL" in protocol.split("_") else None,
            sasl=SaslSettings(users={USER: PASSWORD}, mechanisms=("PLAIN",))
            if "SASL" in protocol
            else None,
        )
    )


def basic(user, password):
    """Return the header of basic authentication."""
    encoded = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"Authorization": f"Basic {encoded}"}


def test_a_registry_may_ask_for_a_password(certificates):
    """A client needs a user and a password, and learns that from the response."""
    with secured(certificates, "SASL_PLAINTEXT") as broker:
        url = broker.schema_registry_url
        assert Answer(200, []) == call(url, "GET /subjects", **basic(USER, PASSWORD))
        for headers in (
            {},
            basic(USER, "wrong"),
            basic("mallory", PASSWORD),
            {"Authorization": "Basic !"},
            {"Authorization": "Basic YQ=="},
            {"Authorization": "Bearer YQ=="},
        ):
            assert Answer(401, {"error_code": 401, "message": "Unauthorized"}) == (
                call(url, "GET /subjects", **headers)
            )
        request = urllib.request.Request(f"{url}/subjects")  # noqa: S310 - our own
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)  # noqa: S310
        assert refused.value.headers["WWW-Authenticate"].startswith("Basic realm=")
        refused.value.close()


def test_a_client_without_a_password_sends_no_body(certificates):
    """A client is refused as soon as the head of its request has arrived."""
    with secured(certificates, "SASL_PLAINTEXT") as broker, connect(broker) as client:
        client.sendall(
            b"POST /subjects/a/versions HTTP/1.1\r\nContent-Length: 1000000\r\n"
            b"Expect: 100-continue\r\n\r\n{"
        )
        assert rest_of(client).startswith(b"HTTP/1.1 401 Unauthorized\r\n")


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
def test_a_registry_may_use_tls(certificates, protocol):
    """With TLS the address begins with https, and the certificate is the listener's."""
    with secured(certificates, protocol) as broker:
        url = broker.schema_registry_url
        assert url.startswith("https://")
        context = ssl.create_default_context(cafile=str(certificates.authority.pem_file))
        request = urllib.request.Request(f"{url}/subjects", headers=basic(USER, PASSWORD))  # noqa: S310
        with urllib.request.urlopen(  # noqa: S310
            request, context=context, timeout=TIMEOUT_SECONDS
        ) as response:
            assert b"[]" == response.read()


def test_a_registry_has_no_other_authentication():
    """SASL mechanisms other than PLAIN have no place in HTTP."""
    listener = Listener(
        security_protocol="SASL_PLAINTEXT", sasl=SaslSettings(users={USER: PASSWORD})
    )
    with pytest.raises(ConfigError, match="basic authentication"):
        DevBroker(schema_registry=listener)


# Data directories.


def test_schemas_live_in_the_data_directory(tmp_path):
    """Ids, levels, modes and deletions survive the process."""
    with DevBroker(schema_registry=True, data_dir=tmp_path / "data") as broker:
        url = broker.schema_registry_url
        call(url, REGISTER, {"schema": V1, "metadata": {"properties": {"a": "b"}}})
        call(url, "POST /subjects/gone/versions", {"schema": record("x:int")})
        call(url, "DELETE /subjects/gone")
        call(url, "PUT /config/orders", {"compatibility": "FULL"})
        call(url, "PUT /mode/orders", {"mode": "READONLY"})
        before = call(url, "GET /schemas?deleted=true")
        assert 2 == len(before.body)
    with DevBroker(schema_registry=True, data_dir=tmp_path / "data") as broker:
        url = broker.schema_registry_url
        assert before == call(url, "GET /schemas?deleted=true")
        assert Answer(200, {"compatibilityLevel": "FULL"}) == call(url, "GET /config/orders")
        assert Answer(200, {"mode": "READONLY"}) == call(url, "GET /mode/orders")
        assert 3 == call(url, "POST /subjects/b/versions", {"schema": record("z:int")}).body["id"]


@pytest.mark.parametrize(
    "text",
    [
        b"{",
        b"[]",
        b'{"version": 2}',
        b'{"version": 1, "last_ids": {}, "configs": {}, "modes": {}, "schemas": [{}]}',
        b'{"version": 1, "last_ids": {}, "configs": {}, "modes": {"a": "X"}, "schemas": []}',
    ],
)
def test_damaged_schemas_are_refused(tmp_path, text):
    """A file that is not whole stops the start, and says which file it is."""
    with DevBroker(schema_registry=True, data_dir=tmp_path / "data"):
        pass
    path = tmp_path / "data" / "schemas.json"
    path.write_bytes(text)
    with (
        pytest.raises(ConfigError, match=r"schemas\.json, or remove it"),
        DevBroker(schema_registry=True, data_dir=tmp_path / "data"),
    ):
        pass
