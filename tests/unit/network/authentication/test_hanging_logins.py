"""Logins that wait for a token or a file end in bounded time and block nothing meanwhile."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import time

import pytest

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import NetworkError
from spark_kafka_sink.model import Node
from spark_kafka_sink.network import tls_contexts
from spark_kafka_sink.network.authentication import tokens
from spark_kafka_sink.network.authentication.connection_security import ConnectionSecurity
from spark_kafka_sink.network.connection.dialer import Dialer
from spark_kafka_sink.network.connection.host_resolver import HostResolver
from spark_kafka_sink.network.network_client import NetworkClient
from spark_kafka_sink.network.tls_contexts import TlsContexts
from spark_kafka_sink.security.tls import TlsSettings
from tests.support.network.scripted_transport import run_without_waiting

NODE = Node(1, "localhost", 9)
HANDLER = "sasl.login.callback.handler.class"
READ_TIMEOUT = "sasl.login.read.timeout.ms"


class Hanging:
    """A token function that hangs until it is released."""

    def __init__(self):
        self.threads = []
        self.called = threading.Event()
        self.released = threading.Event()

    def give(self):
        """Return a token when it is released."""
        self.threads.append(threading.current_thread())
        self.called.set()
        assert self.released.wait(60)
        return "late"

    def calls(self):
        """Return the name of each call's thread, and whether it is a daemon.

        Waits for the first call, which a busy machine may begin after the login has timed out.
        """
        assert self.called.wait(60)
        return [(each.name, each.daemon) for each in self.threads]

    def release(self):
        """Release all calls."""
        self.released.set()
        for thread in self.threads:
            thread.join(60)


@pytest.fixture
def hanging():
    """Return functions that hang during the test."""
    function = Hanging()
    yield function
    function.release()


def configured(**settings):
    return ProducerConfig.from_mapping(
        {
            "bootstrap.servers": "localhost:9",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            **settings,
        }
    )


async def refusals(settings, count=1):
    """Begin exchanges as connections do, and return the error of each."""
    security = ConnectionSecurity(settings.security, time.time)
    assert security.sasl_client is not None
    errors = []
    for _ in range(count):
        with pytest.raises(NetworkError) as caught:
            await security.sasl_client(NODE)
        errors.append(str(caught.value))
    await security.close()
    return errors


def test_a_function_that_hangs_ends_the_login(hanging):
    """The error names function, limit and daemon thread; no login calls the function twice."""
    settings = configured(**{HANDLER: hanging.give, READ_TIMEOUT: 1})
    first, second = asyncio.run(refusals(settings, count=2))
    reference = settings.security.sasl_login_callback_handler_class
    assert (
        f"{HANDLER} {reference} returned no token within 0.001 s ({READ_TIMEOUT}). The call "
        "continues in the daemon thread 'kafka-token', and the next login waits for it: "
        "find out what blocks it, and give that a timeout of its own"
    ) == first
    assert first == second
    assert [("kafka-token", True)] == hanging.calls()


def test_a_coroutine_function_that_hangs_is_cancelled():
    """The error names function and limit, and the next login calls it again."""
    ends = []

    async def give() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append(threading.current_thread())
        return "never"

    settings = configured(**{HANDLER: give, READ_TIMEOUT: 1})
    first, second = asyncio.run(refusals(settings, count=2))
    reference = settings.security.sasl_login_callback_handler_class
    assert (
        f"{HANDLER} {reference} returned no token within 0.001 s ({READ_TIMEOUT}), and was "
        "cancelled: find out what blocks it, and give that a timeout of its own"
    ) == first
    assert first == second
    assert [threading.main_thread()] * 2 == ends


def test_a_function_has_ten_seconds_by_default(hanging):
    """This is less than a Spark driver waits for a cluster, so its error has the cause."""

    async def run() -> list[str]:
        return await refusals(configured(**{HANDLER: hanging.give}))

    assert "returned no token within 10 s" in run_without_waiting(run)[0]


def test_a_file_that_hangs_ends_the_login(hanging, monkeypatch):
    """A file on an unavailable server also ends the login."""
    monkeypatch.setattr(tokens, "read_named_file", lambda _: hanging.give())
    url = {"sasl.oauthbearer.token.endpoint.url": "file:///token"}
    [error] = asyncio.run(refusals(configured(**url, **{READ_TIMEOUT: 1})))
    assert "token.endpoint.url: /token returned no token within 0.001 s" in error


def test_a_function_that_exits_ends_only_its_thread():
    """The login fails as if the function had raised an error."""
    [error] = asyncio.run(refusals(configured(**{HANDLER: lambda: sys.exit(3)})))
    assert error.endswith("raised RuntimeError instead of returning a token")


def test_a_timeout_during_a_login_names_what_it_waits_for(hanging):
    """If max.block.ms expires first, the error says that no token has arrived."""

    async def run() -> str:
        client = NetworkClient(configured(**{HANDLER: hanging.give}))
        with pytest.raises(NetworkError) as caught:
            await client.update_metadata(asyncio.get_running_loop().time() + 1)
        await client.close()
        return str(caught.value)

    assert (
        "no broker answered through localhost:9 (bootstrap.servers); last cause: "
        "no connection attempt has finished yet; logins are waiting for a token (OAUTHBEARER)."
    ) in run_without_waiting(run)


def test_a_trust_store_that_hangs_ends_the_attempt(hanging, monkeypatch):
    """An unavailable file server costs one thread, and never blocks the loop."""
    monkeypatch.setattr(tls_contexts, "read_named_file", lambda _: hanging.give())

    async def run() -> list[str]:
        tls = TlsContexts(TlsSettings(truststore_type="PEM", truststore_location="/gone/ca.pem"))
        dialer = Dialer(HostResolver(getaddrinfo=lambda *_, **__: [found]), tls=tls)
        errors = []
        for _ in range(2):
            with pytest.raises(NetworkError) as caught:
                await dialer.connect(NODE, 0.002)
            errors.append(str(caught.value))
        return errors

    # No connection is made before the files are read.
    found = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", 9))
    assert [
        (
            "localhost:9 (id 1): the files of ssl.truststore.location and ssl.keystore.location "
            "were not read within 0.001 s: the daemon thread 'kafka-tls-files' is still "
            "waiting for them. Check their file systems"
        )
    ] * 2 == asyncio.run(run())
    assert [("kafka-tls-files", True)] == hanging.calls()
