from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.security.oauth_bearer import (
    OAuthBearerClient,
    OAuthBearerToken,
    RefreshPolicy,
    read_token,
    unsecured_token,
)

HOUR = 3600.0


def jwt(claims: object) -> str:
    """Build a token with these claims; its signature is any text."""
    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()
        for part in ({"alg": "RS256"}, claims)
    ]
    return ".".join([*parts, "c2lnbmVk"])


def test_the_subject_and_expiry_of_a_token_are_parsed():
    """A JWT's subject, start and expiry are known; the repr does not show the token."""
    value = jwt({"sub": "alice", "iat": 100, "exp": 200.5})
    token = read_token(f" {value}\n")
    assert OAuthBearerToken(value=value, subject="alice", started_at=100, expires_at=200.5) == token
    assert value not in repr(token)


@pytest.mark.parametrize("length", range(1, 9))
def test_a_token_may_have_any_length(length):
    """A JWT omits the padding of base64, however much its length would require."""
    assert "u" * length == read_token(jwt({"sub": "u" * length})).subject


def test_another_claim_may_be_the_subject():
    """The subject may be in another claim (sasl.oauthbearer.sub.claim.name)."""
    assert "a-client" == read_token(jwt({"azp": "a-client"}), subject_claim="azp").subject


@pytest.mark.parametrize(
    "value",
    [
        *("opaque", "a.b", "a.b.c", "a.YWJj.c", jwt([1]), jwt({"exp": "x", "sub": 1})),
        *(jwt({"exp": time}) for time in (10**309, float("nan"), float("inf"))),
    ],
)
def test_a_token_that_is_not_a_jwt_has_no_expiry(value):
    """A token that cannot be parsed is used as it is, and only the broker validates it."""
    assert OAuthBearerToken(value=value) == read_token(value)


@pytest.mark.parametrize("time", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(("field", "name"), [("started_at", "start"), ("expires_at", "expiry")])
def test_a_token_that_ends_at_no_time_is_refused(field, name, time):
    """A start or an end that is no time would break the plan of its replacement."""
    with pytest.raises(ValueError, match=f"^the {name} of the token is {time}, which is no time$"):
        OAuthBearerToken(value="opaque", **{field: time})


@pytest.mark.parametrize("value", ["", " ", "a b", "a\x01b", "planted-secret\n.x", "é", "=a"])
def test_an_invalid_token_is_refused_without_being_shown(value):
    """A value that would end the message early is not a token."""
    with pytest.raises(ValueError, match="the token is empty, or contains invalid") as caught:
        read_token(value)
    assert "planted" not in str(caught.value)


@given(st.text(max_size=40))
def test_garbage_is_a_token_or_refused(text):
    """Any text is either a token or refused with ValueError."""
    try:
        token = read_token(text)
    except ValueError:
        return
    assert "\x01" not in token.value


def test_the_exchange_sends_the_token():
    """The first message has the token and extensions (KIP-342); consent ends the exchange."""
    client = OAuthBearerClient(read_token("a.b.c"), {"traceId": "123"})
    assert b"n,,\x01auth=Bearer a.b.c\x01traceId=123\x01\x01" == client.initial_response()
    assert not client.is_complete
    assert client.evaluate_challenge(b"") is None
    assert client.is_complete


def whole_token(header, claims):
    parts = (base64.urlsafe_b64encode(json.dumps(part).encode()) for part in (header, claims))
    return ".".join((*(part.rstrip(b"=").decode() for part in parts), "signature"))


@pytest.mark.parametrize(
    ("header", "claims", "says"),
    [
        (
            {"alg": "RS256", "kid": "k1"},
            {"iss": "https://idp", "aud": ["a", "b"], "exp": 1_000_000_000},
            "issuer 'https://idp', audience 'a' and 'b', key 'k1', end 2001-09-09 01:46:40 UTC",
        ),
        ({"kid": "k"}, {"aud": "a\n\x1b"}, r"audience 'a\n\x1b', key 'k'"),
        ({"kid": 7}, {"iss": None, "aud": [1, {}], "exp": 1e300}, ""),
        ({}, {"exp": float("nan")}, ""),
        ([], [], ""),
        ({}, {"iss": "x" * 10_000, "aud": ["y"] * 1000}, f"issuer '{'x' * 200}', audience "),
    ],
)
def test_errors_show_the_claims_that_may_be_the_cause(header, claims, says):
    """Errors show issuer, audience, key and expiry, in printable form and limited length."""
    token = read_token(whole_token(header, claims))
    assert token.says.startswith(says)
    assert len(token.says) < 1000
    client = OAuthBearerClient(token)
    assert (f". The token says: {token.says}" in client.advice) == bool(says)
    assert token.value not in client.advice


def test_errors_show_a_limited_part_of_the_claims():
    """Up to 200 characters of each text and the first five values of an audience are shown."""
    claims = {"iss": "x" * 201, "aud": ["a", "b", 7, "d", "e", "f"]}
    says = f"issuer '{'x' * 200}', audience 'a' and 'b' and 'd' and 'e', key '{'k' * 200}'"
    assert says == read_token(whole_token({"kid": "k" * 201}, claims)).says


@pytest.mark.parametrize(("length", "end"), [(500, ""), (501, "...")])
def test_an_error_is_truncated_to_500_characters(length, end):
    """A longer message ends in dots."""
    client = OAuthBearerClient(read_token("a.b.c"))
    client.evaluate_challenge(b"x" * length)
    assert f"{'x' * 500}{end}" == client.failure


def test_the_brokers_error_is_acknowledged_and_reported():
    """The broker's JSON is answered with a separator and becomes part of the error."""
    client = OAuthBearerClient(read_token("a.b.c"))
    assert b"\x01" == client.evaluate_challenge(b'{"status":"invalid_token"}')
    assert '{"status":"invalid_token"}' == client.failure
    assert not client.is_complete


def test_a_second_error_ends_the_exchange():
    """A broker that sends a second refusal does not keep the exchange going."""
    client = OAuthBearerClient(read_token("a.b.c"))
    client.evaluate_challenge(b"\x1b[31mno\n" + b"x" * 10_000)
    with pytest.raises(
        AuthenticationError, match=r"rejected the token: \?\[31mno\?x+\.\.\.$"
    ) as caught:
        client.evaluate_challenge(b"again")
    assert len(str(caught.value)) < 600


def test_an_error_that_quotes_the_token_shows_no_part_of_it():
    """A token is not cut into a part that would no longer be recognized."""
    token = f"{'a' * 700}.{'b' * 700}.{'c' * 700}"
    client = OAuthBearerClient(read_token(token))
    client.evaluate_challenge(f"not this: {token}".encode())
    assert "not this: [hidden]" == client.failure


@pytest.mark.parametrize(
    ("name", "value"),
    [("auth", "x"), ("a b", "x"), ("", "x"), ("a", ""), ("a", "\x01"), ("a", "é")],
)
def test_invalid_extensions_are_refused(name, value):
    """Names are letters, values are ASCII, and `auth` is reserved for the token."""
    with pytest.raises(ValueError, match="the SASL extension"):
        OAuthBearerClient(read_token("a.b.c"), {name: value})


def test_an_unsecured_token_has_no_signature():
    """It has the requested claims, its times, and an empty signature."""
    token = unsecured_token({"sub": "bob", "groups": ["a"]}, now=1000.0, lifetime=60.0)
    header, payload, signature = token.value.split(".")
    assert ({"alg": "none"}, "") == (json.loads(base64.urlsafe_b64decode(header + "==")), signature)
    assert {"iat": 1000.0, "exp": 1060.0, "sub": "bob", "groups": ["a"]} == json.loads(
        base64.urlsafe_b64decode(payload + "==")
    )
    assert ("bob", 1060.0) == (token.subject, token.expires_at)


@pytest.mark.parametrize(
    ("started_at", "expires_at", "chance", "expected"),
    [
        # Four fifths of its lifetime, plus the random addition.
        (0.0, HOUR, 0.0, 0.8 * HOUR),
        (0.0, HOUR, 0.5, 0.825 * HOUR),
        (None, HOUR, 0.0, 0.8 * HOUR),
        # Not within the first minute, and not within the last five.
        (-HOUR, 400.0, 0.0, 60.0),
        (0.0, 1000.0, 0.5, 700.0),
        # Just long enough for these two.
        (0.0, 360.0, 0.0, 60.0),
        (0.0, 359.0, 0.0, 0.8 * 359.0),
        # Too short for these two: only the window counts.
        (0.0, 100.0, 0.0, 80.0),
        # A start in the future, by the provider's clock, counts as now.
        (50.0, HOUR, 0.0, 0.8 * HOUR),
        # Unknown expiry: used only once.
        (0.0, None, 0.0, 0.0),
    ],
)
def test_a_token_is_replaced_before_it_expires(started_at, expires_at, chance, expected):
    """As in Java: by the window, after at least a minute, and not in its last minutes."""
    token = OAuthBearerToken(value="x", started_at=started_at, expires_at=expires_at)
    assert expected == pytest.approx(RefreshPolicy().refresh_at(token, 0.0, chance))


@given(
    now=st.floats(0, 1e9),
    life=st.floats(0, 1e6),
    age=st.floats(0, 1e5),
    chance=st.floats(0, 1, exclude_max=True),
)
def test_a_token_is_never_used_after_its_expiry(now, life, age, chance):
    """Whatever its lifetime, a token is replaced before it expires."""
    token = OAuthBearerToken(value="x", started_at=now - age, expires_at=now + life)
    assert RefreshPolicy().refresh_at(token, now, chance) <= now + life
