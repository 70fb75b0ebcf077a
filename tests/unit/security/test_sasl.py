from __future__ import annotations

import pytest

from spark_kafka_sink.security.login import PlainClient
from spark_kafka_sink.security.sasl import no_common_mechanism


def test_plain_sends_username_and_password():
    """PLAIN is a single message: no authorization id, the username, the password."""
    client = PlainClient("älice", "sécret")
    assert not client.is_complete
    assert "\0älice\0sécret".encode() == client.initial_response()
    assert client.is_complete
    assert client.evaluate_challenge(b"welcome") is None


@pytest.mark.parametrize(("user", "password"), [("a\0b", "c"), ("a", "\0planted-secret")])
def test_plain_rejects_nul(user, password):
    """A NUL would shift the border between user and password; the error shows neither."""
    with pytest.raises(ValueError, match="must not contain NUL") as caught:
        PlainClient(user, password)
    assert "planted-secret" not in str(caught.value)


def test_a_missing_mechanism_lists_those_of_both_sides():
    """If the broker lacks the mechanism, the error lists both sides' and what to do."""
    assert (
        "the broker has not enabled PLAIN (sasl.mechanism) on this listener. The broker offers: "
        "NTLM, SCRAM-SHA-512; this client supports: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, "
        "OAUTHBEARER, GSSAPI; set sasl.mechanism to SCRAM-SHA-512"
    ) == str(no_common_mechanism("PLAIN", ["SCRAM-SHA-512", "NTLM"]))


def test_without_a_common_mechanism_the_error_says_what_to_change():
    """If both sides have no mechanism in common, the error says to change the listener."""
    error = str(no_common_mechanism("PLAIN", ["NTLM"]))
    assert "enable one of this client's on the listener" in error
    assert "The broker offers: none" in str(no_common_mechanism("PLAIN", []))
