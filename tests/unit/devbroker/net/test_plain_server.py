"""The broker's side of PLAIN: Kafka's response to each kind of message."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker.net.sasl_authenticator import PlainServer
from spark_kafka_sink.devbroker.net.sasl_servers import Credentials, SaslAuthenticationError

CREDENTIALS = Credentials({"alice": "sécret"}, iterations=4096)


@pytest.mark.parametrize("message", ["\0alice\0sécret", "alice\0alice\0sécret"])
def test_the_right_password_is_accepted(message):
    """The user may also be given as authorization id."""
    server = PlainServer(CREDENTIALS)
    assert b"" == server.evaluate_response(message.encode(), 0.0)
    assert server.is_complete
    assert "alice" == server.user


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"\0alice\0wrong", "Invalid username or password"),
        (b"\0bob\0secret", "Invalid username or password"),
        ("\0alice\0sécret\0".encode(), "expected 3 tokens, got 4"),
        (b"\0\0secret", "username not specified"),
        (b"\0alice\0", "password not specified"),
        ("bob\0alice\0sécret".encode(), "authorization id"),
        (b"", "expected 3 tokens, got 1"),
        (b"alice\0secret", "expected 3 tokens, got 2"),
        (b"\0\xff\0\xff", "Invalid username or password"),
    ],
)
def test_all_else_is_refused_with_its_reason(message, reason):
    """The error message is Kafka's, and never contains the password."""
    server = PlainServer(CREDENTIALS)
    with pytest.raises(SaslAuthenticationError, match=reason) as caught:
        server.evaluate_response(message, 0.0)
    assert not server.is_complete
    assert "cret" not in str(caught.value)
