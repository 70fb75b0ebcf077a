from __future__ import annotations

import base64
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import AuthenticationError, KafkaError, NetworkError
from spark_kafka_sink.security.client_credentials import (
    ClientCredentials,
    access_token,
    check_url,
    token_request,
)

SECRET = "planted-secret"  # noqa: S105
URL = "https://idp.example/token"


def credentials(**others):
    return ClientCredentials(
        **{"url": URL, "client_id": "an id", "client_secret": SECRET, **others}
    )


def test_a_request_authenticates_the_client():
    """The grant is asked for in a form, the client shown by HTTP's basic authentication."""
    request = token_request(credentials(scope="read write"))
    assert b"grant_type=client_credentials&scope=read+write" == request.body
    authorization = request.headers["Authorization"].removeprefix("Basic ")
    assert b"an id:planted-secret" == base64.b64decode(authorization)
    assert "application/x-www-form-urlencoded" == request.headers["Content-Type"]


def test_id_and_secret_may_be_encoded():
    """With sasl.oauthbearer.header.urlencode both are form-encoded first (RFC 6749, 2.3.1)."""
    request = token_request(credentials(client_secret="a:b&c", urlencode=True))  # noqa: S106
    authorization = request.headers["Authorization"].removeprefix("Basic ")
    assert b"an+id:a%3Ab%26c" == base64.b64decode(authorization)


def test_no_scope_is_asked_for_without_one():
    """Without a scope the provider's default applies."""
    assert b"grant_type=client_credentials" == token_request(credentials()).body


def test_no_repr_shows_the_secret():
    """Neither the credentials nor the request show it."""
    assert SECRET not in repr(credentials())
    encoded = base64.b64encode(f"an id:{SECRET}".encode()).decode()
    assert encoded not in repr(token_request(credentials()))


@pytest.mark.parametrize(
    "url", [URL, "https://[::1]:8443/x", "http://127.0.0.1:1/", "http://localhost"]
)
def test_addresses_that_a_secret_may_be_sent_to(url):
    """HTTPS anywhere, and HTTP within this machine."""
    check_url(url)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://idp.example/token", "readable on the way"),
        ("ftp://idp.example", "must be an https"),
        ("https:///path", "must be an https"),
        ("idp.example", "must be an https"),
    ],
)
def test_addresses_that_no_secret_is_sent_to(url, problem):
    """Nothing is sent in the clear, or to who knows where."""
    with pytest.raises(ValueError, match=problem):
        check_url(url)


@pytest.mark.parametrize(
    "body", [b'{"access_token":"a.b.c"}', b'{"access_token":"","id_token":"a.b.c"}']
)
def test_the_token_is_taken_from_the_answer(body):
    """The access token is what counts; some providers call it otherwise."""
    assert "a.b.c" == access_token(credentials(), 200, body)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"access_token":1}', b"[" * 100_000])
def test_an_answer_without_a_token_is_refused(body):
    """An answer that should have a token and has none ends it: the address is wrong, it seems."""
    with pytest.raises(AuthenticationError, match="answered with 200 and no access_token"):
        access_token(credentials(), 200, body)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, AuthenticationError),
        (401, AuthenticationError),
        (403, AuthenticationError),
        (404, AuthenticationError),
        (302, NetworkError),
        (408, NetworkError),
        (429, NetworkError),
        (500, NetworkError),
        (503, NetworkError),
    ],
)
def test_a_refusal_is_for_good_or_may_pass(status, kind):
    """What the client did wrong is an AuthenticationError; what may pass is a NetworkError."""
    body = b'{"error":"invalid_client","error_description":"no\\n planted-secret"}'
    with pytest.raises(kind) as caught:
        access_token(credentials(), status, body)
    assert type(caught.value) is kind
    assert (
        f"the token endpoint {URL} refused the client 'an id' with {status}: "
        "invalid_client no? [hidden]"
    ) == str(caught.value)


@given(status=st.integers(100, 599), body=st.binary(max_size=80))
def test_garbage_is_refused(status, body):
    """Whatever is answered gives a token or an error of ours."""
    with contextlib.suppress(KafkaError):
        access_token(credentials(), status, body)
