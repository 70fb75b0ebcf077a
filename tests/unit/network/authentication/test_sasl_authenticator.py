"""The states of an authentication, step by step, in order and out of order."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import AuthenticationError, IllegalStateError, NetworkError
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.authentication.sasl_authenticator import (
    TRANSITIONS,
    AuthenticationState,
    SaslAuthenticator,
)
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from spark_kafka_sink.protocol.messages.sasl_handshake import SaslHandshakeResponse
from spark_kafka_sink.security.login import PlainClient
from spark_kafka_sink.security.oauth_bearer import OAuthBearerClient, read_token
from spark_kafka_sink.security.sasl import Expiry, SaslMechanism
from spark_kafka_sink.security.scram import ScramClient

NODE = Node(1, "broker", 9092)
AGREED = SaslHandshakeResponse(mechanisms=("PLAIN",))
S = AuthenticationState


def plain():
    return SaslAuthenticator(PlainClient("alice", "planted-secret"), NODE)


def begun(client=None):
    """Return an authenticator that has sent its first message."""
    authenticator = plain() if client is None else SaslAuthenticator(client, NODE)
    authenticator.begin()
    authenticator.receive(AGREED)
    return authenticator


def test_an_authentication_is_a_handshake_and_an_exchange():
    """Handshake, message and consent follow, and the consent has the session's lifetime."""
    authenticator = plain()
    assert S.INITIAL is authenticator.state
    assert "PLAIN" == authenticator.begin().mechanism
    assert S.NEGOTIATING is authenticator.state
    request = authenticator.receive(AGREED)
    assert b"\0alice\0planted-secret" == request.auth_bytes
    assert "planted-secret" not in repr(request)
    assert S.EXCHANGING is authenticator.state
    assert authenticator.receive(SaslAuthenticateResponse(session_lifetime_ms=1_500)) is None
    assert S.COMPLETE is authenticator.state
    assert 1.5 == authenticator.session_lifetime


def test_a_session_without_a_lifetime_does_not_expire():
    """If the broker sets no end, there is none."""
    authenticator = begun()
    authenticator.receive(SaslAuthenticateResponse())
    assert authenticator.session_lifetime is None


@pytest.mark.parametrize(("milliseconds", "seconds"), [(-1, None), (0, None), (1, 0.001)])
def test_only_a_positive_lifetime_limits_a_session(milliseconds, seconds):
    """Any other number means that there is no end."""
    authenticator = begun()
    authenticator.receive(SaslAuthenticateResponse(session_lifetime_ms=milliseconds))
    assert seconds == authenticator.session_lifetime


@pytest.mark.parametrize("length", [2_000, 2_001])
def test_an_error_shows_up_to_2000_characters_of_the_reason(length):
    """The rest of a longer reason is omitted."""
    refusal = SaslAuthenticateResponse(
        error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message="x" * length
    )
    with pytest.raises(AuthenticationError) as caught:
        begun().receive(refusal)
    assert f"failed: {'x' * 2_000}" in str(caught.value)
    assert "x" * 2_001 not in str(caught.value)


@pytest.mark.parametrize("state", list(S))
def test_an_authentication_cannot_be_used_twice(state):
    """An authentication cannot be used twice."""
    assert (state in {S.COMPLETE, S.FAILED}) == (not TRANSITIONS[state])


def test_steps_out_of_order_are_refused():
    """No step is possible before the beginning, twice, or after the end."""
    authenticator = plain()
    with pytest.raises(IllegalStateError, match="unexpected response in state INITIAL"):
        authenticator.receive(AGREED)
    authenticator.begin()
    with pytest.raises(IllegalStateError, match="does not go from NEGOTIATING to NEGOTIATING"):
        authenticator.begin()
    authenticator.receive(AGREED)
    authenticator.receive(SaslAuthenticateResponse())
    with pytest.raises(IllegalStateError, match="unexpected response in state COMPLETE"):
        authenticator.receive(SaslAuthenticateResponse())


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        (ErrorCode.UNSUPPORTED_SASL_MECHANISM, AuthenticationError, "The broker offers: PLAIN"),
        (ErrorCode.ILLEGAL_SASL_STATE, AuthenticationError, "this listener does not use SASL"),
        (ErrorCode.UNKNOWN_SERVER_ERROR, NetworkError, "UNKNOWN_SERVER_ERROR"),
    ],
)
def test_a_refused_handshake_is_an_error(code, kind, text):
    """Permanent errors differ from transient ones."""
    authenticator = plain()
    authenticator.begin()
    with pytest.raises(kind, match=text) as caught:
        authenticator.receive(SaslHandshakeResponse(error_code=code, mechanisms=("PLAIN",)))
    assert str(caught.value).startswith("broker:9092 (id 1): ")
    assert S.FAILED is authenticator.state


def bearer(now, end=1_000_000_000.0):
    """Return the client of a token that expires at `end`."""
    client = OAuthBearerClient(read_token("a.b.c"))
    client.expiry = Expiry(end, lambda: now)
    return client


@pytest.mark.parametrize(
    ("client", "told"),
    [
        (PlainClient("alice", "planted-secret"), ""),
        (bearer(999_999_999.0), "the token expires at 2001-09-09 01:46:40 UTC, and "),
        (bearer(1_000_000_000.0), "the token expired at 2001-09-09 01:46:40 UTC, and "),
        (bearer(1.0, end=1e300), "the token expires at 1e+300 seconds since 1970, and "),
    ],
)
def test_a_refused_renewal_is_no_listener_without_sasl(client, told):
    """It is transient, and the error says until when the token is valid."""
    authenticator = SaslAuthenticator(client, NODE, is_renewal=True)
    authenticator.begin()
    with pytest.raises(NetworkError) as caught:
        authenticator.receive(SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE))
    text = str(caught.value)
    assert "the session could not be renewed" in text
    assert "ILLEGAL_SASL_STATE" in text
    assert text.endswith(f"; {told}the client connects again")
    assert "a.b.c" not in text
    assert "planted" not in text


@pytest.mark.parametrize(
    ("left", "kind", "told"),
    [
        (5.1, AuthenticationError, "failed: invalid. Check that the token"),
        (5.0, NetworkError, "; the token expires at 2001-09-09 01:46:40 UTC, and the next one is"),
        (0.0, NetworkError, "; the token expired at 2001-09-09 01:46:40 UTC, and the next one is"),
    ],
)
def test_a_refused_token_is_final_unless_it_is_about_to_expire(left, kind, told):
    """Up to five seconds before its end the clocks may differ, and the next token may pass."""
    refusal = SaslAuthenticateResponse(
        error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message="invalid."
    )
    with pytest.raises(kind) as caught:
        begun(bearer(1_000_000_000.0 - left)).receive(refusal)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.SASL_AUTHENTICATION_FAILED, AuthenticationError),
        (ErrorCode.UNKNOWN_SERVER_ERROR, NetworkError),
        (ErrorCode.REQUEST_TIMED_OUT, NetworkError),
    ],
)
def test_a_refused_message_is_an_error(code, kind):
    """The error names broker, mechanism, user and reason, and never shows the secret."""
    authenticator = begun()
    with pytest.raises(kind) as caught:
        authenticator.receive(
            SaslAuthenticateResponse(error_code=code, error_message="not planted-secret\n")
        )
    assert str(caught.value).startswith("broker:9092 (id 1): PLAIN authentication of user 'alice' ")
    assert "not [hidden]?" in str(caught.value)
    assert "planted" not in str(caught.value)
    assert S.FAILED is authenticator.state


def test_a_refusal_may_have_no_reason():
    """A broker need not give a reason."""
    refusal = SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED)
    with pytest.raises(AuthenticationError, match="failed: the broker gave no reason"):
        begun().receive(refusal)


def test_consent_before_the_mechanism_has_completed_is_refused():
    """A broker that has not proved what it has to prove is refused."""
    scram = ScramClient(SaslMechanism.SCRAM_SHA_256, "alice", "planted-secret")
    with pytest.raises(AuthenticationError, match="user 'alice' failed: the broker's first SCRAM"):
        begun(scram).receive(SaslAuthenticateResponse())


def test_the_error_for_a_refused_token_quotes_the_first_response():
    """The JSON of the first response is in the error of the second."""
    authenticator = begun(OAuthBearerClient(read_token("a.b.c")))
    answer = authenticator.receive(SaslAuthenticateResponse(auth_bytes=b'{"status":"x a.b.c"}'))
    assert b"\x01" == answer.auth_bytes
    refusal = SaslAuthenticateResponse(
        error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message="invalid."
    )
    with pytest.raises(AuthenticationError) as caught:
        authenticator.receive(refusal)
    assert 'failed: invalid ({"status":"x [hidden]"}). Check that the token' in str(caught.value)
