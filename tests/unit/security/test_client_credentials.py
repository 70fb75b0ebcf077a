from __future__ import annotations

import base64
import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import AuthenticationError, KafkaError, NetworkError
from spark_kafka_sink.security.oauth_bearer import (
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
    """The grant is requested in a form, with the client in HTTP basic authentication."""
    request = token_request(credentials(scope="read write"))
    assert b"grant_type=client_credentials&scope=read+write" == request.body
    authorization = request.headers["Authorization"].removeprefix("Basic ")
    assert b"an id:planted-secret" == base64.b64decode(authorization)
    assert "application/x-www-form-urlencoded" == request.headers["Content-Type"]


def test_id_and_secret_can_be_form_encoded():
    """With sasl.oauthbearer.header.urlencode both are form-encoded first (RFC 6749, 2.3.1)."""
    request = token_request(credentials(client_secret="a:b&c", urlencode=True))  # noqa: S106
    authorization = request.headers["Authorization"].removeprefix("Basic ")
    assert b"an+id:a%3Ab%26c" == base64.b64decode(authorization)


def test_no_scope_is_requested_by_default():
    """Without a scope the provider's default applies."""
    assert b"grant_type=client_credentials" == token_request(credentials()).body


def test_no_repr_shows_the_secret():
    """The repr of credentials and requests shows neither the secret nor the client's id."""
    assert "ClientCredentials(scope='read', urlencode=True)" == repr(
        credentials(scope="read", urlencode=True, hidden=["planted-reference"])
    )
    encoded = base64.b64encode(f"an id:{SECRET}".encode()).decode()
    assert encoded not in repr(token_request(credentials()))
    assert "TokenRequest()" == repr(token_request(credentials()))


def test_references_are_not_part_of_equality():
    """The values of references are also in other fields, which are compared."""
    assert credentials() == credentials(hidden=["planted-reference"])
    assert credentials() != credentials(scope="read")


@pytest.mark.parametrize(
    "url",
    [URL, "https://[::1]:8443/x", "http://127.0.0.1:1/", "http://localhost", "http://[::1]/x"],
)
def test_safe_token_endpoints_are_accepted(url):
    """HTTPS is accepted anywhere, and HTTP within this machine."""
    check_url(url)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://idp.example/token", "could be read in transit"),
        ("ftp://idp.example", "must be an https:// or file:// address"),
        ("ftp://localhost", "must be an https:// or file:// address"),
        ("https:///path", "must be an https:// or file:// address"),
        ("idp.example", "must be an https:// or file:// address"),
        ("https://idp.example:planted/", "has a malformed host or port"),
        ("https://idp.example:99999/", "has a malformed host or port"),
        ("https://[planted/", "has a malformed host or port"),
        ("https://idp.example/planted\n", "must not contain spaces, control characters"),
        ("https://idp.example/?key=planted secret", "must not contain spaces, control characters"),
        ("https://idp.example/plant\u00e9d", "must not contain spaces, control characters"),
    ],
)
def test_unsafe_token_endpoints_are_rejected(url, problem):
    """A secret is sent neither in clear text nor to an unknown place."""
    with pytest.raises(ValueError, match=problem) as caught:
        check_url(url)
    assert "planted" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("https://idp.example/token?key=planted", "https://idp.example"),
        ("https://user:planted@idp.example:8443/", "https://idp.example:8443"),
        ("http://[::1]:80/planted#planted", "http://[::1]:80"),
    ],
)
def test_only_scheme_and_host_of_a_url_are_shown(url, endpoint):
    """A path, a query or a user may be secret, so neither errors nor a repr show it."""
    client = ClientCredentials(url=url, client_id="an id", client_secret=SECRET)
    assert endpoint == client.endpoint
    assert "planted" not in f"{client!r}{token_request(client)!r}"
    with pytest.raises(AuthenticationError) as caught:
        access_token(client, 200, b"")
    assert "planted" not in str(caught.value)


@pytest.mark.parametrize("status", [401, 503])
@pytest.mark.parametrize("urlencode", [False, True])
def test_an_error_that_quotes_the_request_shows_no_secret(status, urlencode):
    """Basic authentication is base64, which protects a secret no better than plain text."""
    client = credentials(client_secret=f"{SECRET}/+", urlencode=urlencode)
    header = token_request(client).headers["Authorization"]
    body = json.dumps({"error": "invalid_client", "error_description": f"got {header}"}).encode()
    with pytest.raises((AuthenticationError, NetworkError)) as caught:
        access_token(client, status, body)
    assert header.removeprefix("Basic ") not in str(caught.value)
    assert str(caught.value).endswith(": invalid_client got Basic [hidden]")


@pytest.mark.parametrize(
    ("query", "quoted"),
    [
        ("key=planted-key", "/token?key=planted-key"),
        ("v=2&planted-key", "/token?v=2&planted-key"),
        ("key=planted%2Dk%65y", "/token?key=planted%2Dk%65y"),
        ("key=planted%2Dk%65y", '{"key": "planted-key"}'),
    ],
)
def test_an_error_that_quotes_the_url_shows_no_key_of_its_query(query, quoted):
    """Not even if the key begins within the part that is shown and ends beyond it."""
    client = credentials(url=f"{URL}?{query}")
    for padding in (0, 280, 290, 295):
        reason = f"{'x' * padding} {quoted} is refused"
        shown = client.quoted(reason)
        assert "plan" not in shown
        assert shown.startswith(reason[:padding])
    assert "the key is unknown in version 2" == client.quoted("the key is unknown in version 2")


def test_secrets_are_hidden_before_a_text_is_truncated():
    """Otherwise half of it could remain, unrecognizable, at the end of a long reason."""
    client = credentials(hidden=["planted-reference"])
    for padding in range(270, 305):
        assert "plan" not in client.quoted(f"{'x' * padding}planted-reference and more")


@pytest.mark.parametrize(
    "body", [b'{"access_token":"a.b.c"}', b'{"access_token":"","id_token":"a.b.c"}']
)
def test_the_token_is_read_from_the_response(body):
    """The access token is used; some providers give it another name."""
    assert "a.b.c" == access_token(credentials(), 200, body)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"access_token":1}', b"[" * 100_000])
def test_a_response_without_a_token_is_an_error(body):
    """A success response without a token is a permanent error, since the URL must be wrong."""
    with pytest.raises(AuthenticationError, match="answered with 200 and no access_token"):
        access_token(credentials(), 200, body)


def test_errors_are_permanent_or_transient():
    """A client's mistake is an AuthenticationError, a transient failure is a NetworkError."""
    body = b'{"error":"invalid_client","error_description":"no\\n planted-secret"}'
    passing = set()
    for status in [*range(100, 200), *range(300, 600)]:
        with pytest.raises((AuthenticationError, NetworkError)) as caught:
            access_token(credentials(), status, body)
        assert (
            f"the token endpoint https://idp.example refused the client 'an id' with {status}: "
            "invalid_client no? [hidden]"
        ) == str(caught.value)
        if type(caught.value) is NetworkError:
            passing.add(status)
    assert {*range(100, 200), *range(300, 400), 408, 425, 429, *range(500, 600)} == passing


def test_every_2xx_status_is_a_success():
    """Every 2xx status is a success, not only 200."""
    for status in range(200, 300):
        assert "a.b.c" == access_token(credentials(), status, b'{"access_token":"a.b.c"}')


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b'{"error":"e","error_description":"d"}', "e d"),
        (b'{"error":"e"}', "e"),
        (b'{"error_description":"d"}', "d"),
        (b'{"error":7,"error_description":"d"}', "d"),
        (b'{"message":"m"}', "it gave no reason"),
        (b"<html>", "it gave no reason"),
        (json.dumps({"error": "x" * 300}).encode(), "x" * 300),
        (json.dumps({"error": "x" * 301}).encode(), f"{'x' * 300}..."),
    ],
)
def test_an_error_shows_up_to_300_characters_of_the_reason(body, shown):
    """The reason consists of OAuth's two fields, if they are strings."""
    with pytest.raises(AuthenticationError) as caught:
        access_token(credentials(), 401, body)
    assert shown == str(caught.value).partition(" with 401: ")[2]


def test_short_values_of_the_query_are_not_hidden():
    """Any text may contain three letters by chance, so only four or more are hidden."""
    client = credentials(url=f"{URL}?a=abc&b=wxyz&efgh&i")
    assert "abc [hidden] [hidden] i" == client.quoted("abc wxyz efgh i")


@given(status=st.integers(100, 599), body=st.binary(max_size=80))
def test_garbage_is_a_token_or_an_error(status, body):
    """Any response leads to a token or to one of our errors."""
    with contextlib.suppress(KafkaError):
        access_token(credentials(), status, body)
