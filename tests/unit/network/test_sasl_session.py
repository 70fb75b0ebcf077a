"""An authentication's work, and the event loop that all connections share."""

from __future__ import annotations

import asyncio
import threading

import pytest

from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.sasl_session import SaslSession
from spark_kafka_sink.protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from spark_kafka_sink.protocol.messages.sasl_handshake import (
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from spark_kafka_sink.security.sasl import SaslMechanism
from spark_kafka_sink.security.scram import MAX_ITERATIONS, ScramClient

FIRST = f"r=ours-theirs,s=c2FsdA==,i={MAX_ITERATIONS}".encode()


def authenticate(challenges):
    """Log a client in by SCRAM to a broker that gives these challenges."""
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
    """A broker that asks for a million iterations holds up no other connection."""
    threads = []

    def pbkdf2(*_: object) -> bytes:
        threads.append(threading.current_thread())
        return b"salted"

    monkeypatch.setattr("spark_kafka_sink.security.scram.hashlib.pbkdf2_hmac", pbkdf2)
    with pytest.raises(AuthenticationError, match="signature is wrong"):
        authenticate([FIRST, b"v=d3Jvbmc="])
    assert ["kafka-sasl"] == [thread.name for thread in threads]


def test_what_is_refused_off_the_loop_is_an_error_on_it():
    """An answer that is no SCRAM ends the authentication with its own error."""
    with pytest.raises(AuthenticationError, match="first SCRAM message is malformed"):
        authenticate([b"nonsense"])
