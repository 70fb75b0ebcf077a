"""The computation of an authentication, and the event loop that all connections share."""

from __future__ import annotations

import asyncio
import threading

import pytest

from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.authentication import sasl_authenticator
from spark_kafka_sink.network.authentication.sasl_authenticator import SaslSession
from spark_kafka_sink.network.daemon_thread import Outcome
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from spark_kafka_sink.protocol.messages.sasl_handshake import (
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from spark_kafka_sink.security.login import PlainClient
from spark_kafka_sink.security.oauth_bearer import OAuthBearerClient, read_token
from spark_kafka_sink.security.sasl import SaslMechanism
from spark_kafka_sink.security.scram import MAX_ITERATIONS, ScramClient
from tests.support.network.scripted_transport import run_without_waiting

FIRST = f"r=ours-theirs,s=c2FsdA==,i={MAX_ITERATIONS}".encode()


def authenticate(challenges):
    """Authenticate by SCRAM to a broker that sends these challenges."""
    client = ScramClient(SaslMechanism.SCRAM_SHA_512, "alice", "secret", nonce="ours-")
    left = iter(challenges)

    async def ask(request):
        if isinstance(request, SaslHandshakeRequest):
            return SaslHandshakeResponse(mechanisms=("SCRAM-SHA-512",))
        return SaslAuthenticateResponse(auth_bytes=next(left))

    async def unused(_):
        raise AssertionError

    async def run():
        await SaslSession(Node(1, "broker", 9), unused, ask, lambda: 0.0).authenticate(client)

    asyncio.run(run())


def test_scram_works_off_the_event_loop(monkeypatch):
    """A broker that demands a million iterations delays no other connection."""
    threads = []

    def pbkdf2(*_: object) -> bytes:
        threads.append(threading.current_thread())
        return b"salted"

    monkeypatch.setattr("spark_kafka_sink.security.scram.hashlib.pbkdf2_hmac", pbkdf2)
    with pytest.raises(AuthenticationError, match="signature is wrong"):
        authenticate([FIRST, b"v=d3Jvbmc="])
    assert ["kafka-sasl"] == [thread.name for thread in threads]


def session_of(clock, lifetime_ms=0):
    """Return a session of a broker that accepts anybody, with this lifetime."""

    async def ask(request):
        if isinstance(request, SaslHandshakeRequest):
            return SaslHandshakeResponse(mechanisms=("PLAIN",))
        return SaslAuthenticateResponse(session_lifetime_ms=lifetime_ms)

    async def new_client(_):
        return PlainClient("alice", "secret")

    return SaslSession(Node(1, "broker", 9), new_client, ask, clock)


@pytest.mark.parametrize(("chance", "due"), [(0.0, 108.5), (0.5, 109.0), (0.999, 109.499)], ids=str)
def test_a_session_is_renewed_after_85_to_95_percent_of_its_lifetime(monkeypatch, chance, due):
    """The random share keeps many clients from renewing at the same time."""
    now = [100.0]
    monkeypatch.setattr("random.random", lambda: chance)
    session = session_of(lambda: now[0], lifetime_ms=10_000)
    asyncio.run(session.renew())
    now[0] = due - 0.0005
    assert not session.is_due
    now[0] = due + 0.0005
    assert session.is_due


def test_a_session_without_a_lifetime_is_never_renewed():
    """The same holds before a session's first authentication."""
    session = session_of(lambda: 1e18)
    assert not session.is_due
    asyncio.run(session.renew())
    assert not session.is_due


@pytest.mark.parametrize(("lifetime_ms", "due"), [(1_100, 101.0), (1_000, 101.0), (400, 100.4)])
def test_a_short_session_is_renewed_after_a_second_or_at_its_end(monkeypatch, lifetime_ms, due):
    """No request is sent after the end; the renewal that is due then waits for its second."""
    now = [100.0]
    monkeypatch.setattr("random.random", lambda: 0.0)
    session = session_of(lambda: now[0], lifetime_ms=lifetime_ms)
    asyncio.run(session.renew())
    now[0] = due - 0.0005
    assert not session.is_due
    now[0] = due + 0.0005
    assert session.is_due


@pytest.mark.parametrize("chance", [0.0, 0.999])
def test_a_session_is_renewed_at_most_once_a_second(monkeypatch, chance):
    """While a token is late, each renewal is shorter; brokers refuse a second one within 1 s."""
    monkeypatch.setattr("random.random", lambda: chance)

    async def here(_, function, argument):
        # A simulated clock does not wait for threads.
        return Outcome(function(argument), None)

    monkeypatch.setattr(sasl_authenticator, "in_daemon_thread", here)

    async def run():
        loop = asyncio.get_running_loop()
        began, renewed = loop.time(), []

        async def ask(request):
            now = loop.time()
            if isinstance(request, SaslHandshakeRequest):
                if renewed and now - renewed[-1] < 1.0:
                    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
                renewed.append(now)
                return SaslHandshakeResponse(mechanisms=("OAUTHBEARER",))
            # The first token ends after 8 seconds, and the second one comes with its end.
            end = began + (8 if now < began + 8 else 16)
            return SaslAuthenticateResponse(session_lifetime_ms=round((end - now) * 1000))

        async def new_client(_):
            return OAuthBearerClient(read_token("a.b.c"))

        session = SaslSession(Node(1, "broker", 9), new_client, ask, loop.time)
        await session.authenticate(await new_client(None))
        while renewed[-1] < began + 8:
            await asyncio.sleep(session._renew_at - loop.time())
            await session.renew()
        return [at - began for at in renewed]

    first, second, *others = run_without_waiting(run)
    assert 0.0 == first
    assert 8 * (0.85 + 0.1 * chance) == pytest.approx(second, abs=0.001)
    assert others
    assert 8.0 <= others[-1] <= 9.0


def test_an_error_in_the_scram_thread_is_raised_on_the_loop():
    """A response that is not SCRAM ends the authentication with its own error."""
    with pytest.raises(AuthenticationError, match="first SCRAM message is malformed"):
        authenticate([b"nonsense"])
