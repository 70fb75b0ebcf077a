"""The broker's side of OAUTHBEARER: valid tokens, and the responses to invalid ones."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.devbroker.net.sasl_servers import (
    OAuthBearerServer,
    SaslAuthenticationError,
    SaslRefusedError,
    TokenRules,
)

NOW = 1_700_000_000.0
#: JSON that is nested too deeply for any parser.
DEEP = base64.b64encode(b"[" * 99_999).decode()
CLAIMS = {"sub": "alice", "iat": NOW, "exp": NOW + 60}


def part(value):
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def token(claims=CLAIMS, *, header=None, signature=""):
    return f"{part(header or {'alg': 'none'})}.{part(claims)}.{signature}"


def message(value, *, gs2="n,,", pairs=""):
    return f"{gs2}\x01auth=Bearer {value}\x01{pairs}\x01".encode()


def answer(value, **rules):
    """Return the response to a token."""
    return OAuthBearerServer(TokenRules(**rules)).evaluate_response(message(value), NOW)


def test_a_token_is_its_users_until_it_ends():
    """An unsigned token defines the user and the end of the session."""
    server = OAuthBearerServer(TokenRules())
    assert b"" == server.evaluate_response(message(token()), NOW)
    assert server.is_complete
    assert ("alice", NOW + 60) == (server.user, server.expires_at)


def test_extensions_are_let_pass():
    """Extensions (KIP-342) have no effect."""
    server = OAuthBearerServer(TokenRules())
    said = message(token(), pairs="traceId=123\x01")
    assert b"" == server.evaluate_response(said, NOW)


def test_another_claim_may_name_the_user():
    """The principal is read from the configured claim."""
    server = OAuthBearerServer(TokenRules(principal_claim="user"))
    server.evaluate_response(message(token({"user": "bob", "exp": NOW + 1})), NOW)
    assert "bob" == server.user


NOT_BELIEVED = [
    "abc",
    "a.b",
    token().replace(".", "..", 1),
    token(signature="c2ln"),
    token(header={"alg": "HS256"}),
    token(header={"typ": "JWT"}),
    token([1]),
    token({**CLAIMS, "sub": " "}),
    token({**CLAIMS, "sub": 7}),
    token({"exp": NOW + 60}),
    token({"sub": "alice"}),
    token({**CLAIMS, "exp": NOW}),
    token({**CLAIMS, "exp": "later"}),
    token({**CLAIMS, "exp": True}),
    token({**CLAIMS, "exp": float("nan")}),
    token({**CLAIMS, "exp": 10**400}),
    token({**CLAIMS, "iat": NOW + 1}),
    token({**CLAIMS, "iat": NOW + 60}),
    f"{part({'alg': 'none'})}.{DEEP}.",
]


@pytest.mark.parametrize("value", NOT_BELIEVED, ids=range(len(NOT_BELIEVED)))
def test_a_token_that_is_not_believed_is_answered_and_then_ends_the_exchange(value):
    """The response is RFC 7628's invalid_token; the client's next message ends the exchange."""
    server = OAuthBearerServer(TokenRules())
    said = server.evaluate_response(message(value), NOW)
    assert {"status": "invalid_token"} == json.loads(said)
    assert not server.is_complete
    with pytest.raises(SaslAuthenticationError, match="invalid_token"):
        server.evaluate_response(b"\x01", NOW)


@pytest.mark.parametrize("scope", [None, "read", ["read", "other"], "read write"])
def test_a_token_for_something_else_is_answered_with_the_scope(scope):
    """The response has the missing scope; a string counts as a single scope, as in Kafka."""
    said = answer(token({**CLAIMS, "scope": scope}), required_scope=("read", "write"))
    assert {"status": "insufficient_scope", "scope": "read write"} == json.loads(said)


def test_a_token_with_the_required_scopes_is_accepted():
    """The token's scopes may include more than the required ones."""
    claims = {**CLAIMS, "scope": ["write", "read", "x"]}
    assert b"" == answer(token(claims), required_scope=("read", "write"))


def test_clocks_may_differ_by_so_much():
    """The allowed clock skew applies to both ends of a token's lifetime."""
    late = token({"sub": "a", "exp": NOW - 1})
    early = token({"sub": "a", "iat": NOW + 1, "exp": NOW + 9})
    assert [b"", b""] == [answer(it, allowable_clock_skew_ms=2000) for it in (late, early)]
    assert b"" != answer(late, allowable_clock_skew_ms=1000)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\x01",
        b"n,,\x01\x01",
        b"n,,\x01auth=Basic abc\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"y,,\x01auth=Bearer abc\x01\x01",
        message("abc")[:-1],
    ],
)
def test_a_malformed_message_is_refused(said):
    """A message not of the form in RFC 7628 ends the exchange at once."""
    with pytest.raises(SaslRefusedError, match="OAUTHBEARER"):
        OAuthBearerServer(TokenRules()).evaluate_response(said, NOW)


def test_another_authorization_id_is_refused():
    """An authorization id other than the token's user is refused."""
    server = OAuthBearerServer(TokenRules())
    with pytest.raises(SaslAuthenticationError, match="authorization id"):
        server.evaluate_response(message(token(), gs2="n,a=bob,"), NOW)
    assert b"" == server.evaluate_response(message(token(), gs2="n,a=alice,"), NOW)


@given(st.binary(max_size=60))
def test_garbage_is_refused(garbage):
    """Any garbage is refused with SaslRefusedError."""
    server = OAuthBearerServer(TokenRules())
    with pytest.raises(SaslRefusedError):
        server.evaluate_response(garbage, NOW)
