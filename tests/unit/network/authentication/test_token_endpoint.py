"""OAUTHBEARER tokens from a token endpoint."""

from __future__ import annotations

import socket
import ssl
import threading

import pytest

from spark_kafka_sink.errors import AuthenticationError, ConfigError, NetworkError
from spark_kafka_sink.network.authentication.tokens import fetch_token
from spark_kafka_sink.network.http_client import HttpTimeouts, _SocketUntil
from spark_kafka_sink.security.oauth_bearer import ClientCredentials
from tests.support.security.secure_front import server_context
from tests.support.security.secured import jaas
from tests.support.security.token_endpoint import TokenEndpoint
from tests.support.security.token_exchanges import (
    CREDENTIALS,
    IMPATIENT,
    URL,
    refusal,
    shown,
    shown_url,
    trusting,
)


def test_a_token_is_requested_over_https(certificates):
    """Client credentials get a token from an endpoint whose certificate is verified."""
    with TokenEndpoint(server_context(certificates.server)) as endpoint:
        said = shown(CREDENTIALS, trusting(certificates.authority), {URL: endpoint.url})
        assert [f"n,,\x01auth=Bearer {endpoint.token}\x01\x01"] == said
        form = {"grant_type": ["client_credentials"]}
        assert [("/token?a=b", "an id:planted&secret", form)] == endpoint.asked


def test_the_settings_determine_scope_and_encoding(endpoint):
    """The scope is sent, and id and secret are form-encoded if the provider requires it."""
    shown(
        CREDENTIALS,
        {URL: endpoint.url},
        sasl_oauthbearer_scope="write all",
        sasl_oauthbearer_header_urlencode="true",
    )
    [(_, authorization, form)] = endpoint.asked
    assert "an+id:planted%26secret" == authorization
    assert ["write all"] == form["scope"]


def test_a_referenced_part_of_the_url_is_hidden_before_a_reason_is_truncated(endpoint, monkeypatch):
    """If the cut falls within it, its beginning is not shown."""
    monkeypatch.setenv("TENANT", "planted-tenant")
    url = f"{shown_url(endpoint)}/${{env:TENANT}}"
    endpoint.answers = [(401, {"error": f"{'x' * 290} planted-tenant and more"})]
    assert "plan" not in refusal(AuthenticationError, CREDENTIALS, {URL: url})


def test_an_untrusted_endpoint_gets_no_secret(certificates):
    """Nothing is sent to an endpoint whose certificate is not trusted."""
    with TokenEndpoint(server_context(certificates.server)) as endpoint:
        message = refusal(
            AuthenticationError, CREDENTIALS, trusting(certificates.stranger), {URL: endpoint.url}
        )
        assert message.startswith(
            f"the certificate of the token endpoint {shown_url(endpoint)} is not trusted, or is"
        )
        assert [] == endpoint.asked


@pytest.mark.parametrize("status", [401, 400])
def test_a_refused_client_is_an_error_at_once(endpoint, status):
    """Wrong credentials are not retried."""
    endpoint.answers = [
        (status, {"error": "invalid_client", "error_description": "planted&secret"})
    ]
    message = refusal(AuthenticationError, CREDENTIALS, {URL: endpoint.url})
    assert (
        f"the token endpoint {shown_url(endpoint)} refused the client 'an id' with {status}: "
        "invalid_client [hidden]"
    ) == message
    assert 1 == len(endpoint.asked)


def test_requests_to_a_busy_endpoint_are_retried(endpoint):
    """Transient errors are retried for as long as sasl.login.retry.backoff.max.ms allows."""
    endpoint.answers = [(503, {}), (429, {})]
    retry = {"sasl.login.retry.backoff.ms": 0, "sasl.login.retry.backoff.max.ms": 60_000}
    shown(CREDENTIALS, {URL: endpoint.url}, retry)
    assert 3 == len(endpoint.asked)
    endpoint.answers = [(503, {"error": "busy"})]
    assert "with 503: busy" in refusal(NetworkError, CREDENTIALS, {URL: endpoint.url}, IMPATIENT)


def test_no_retry_without_time_for_the_backoff(endpoint):
    """If sasl.login.retry.backoff.ms takes all of the time, there is no retry."""
    endpoint.answers = [(503, {"error": "busy"})]
    slow = {"sasl.login.retry.backoff.ms": 60_000, "sasl.login.retry.backoff.max.ms": 60_000}
    assert "with 503: busy" in refusal(NetworkError, CREDENTIALS, {URL: endpoint.url}, slow)
    assert 1 == len(endpoint.asked)


def test_a_redirect_is_not_followed(endpoint):
    """The secret is sent only to the endpoint that is configured."""
    endpoint.answers = [(302, {})]
    assert "with 302" in refusal(NetworkError, CREDENTIALS, {URL: endpoint.url}, IMPATIENT)
    assert 1 == len(endpoint.asked)


def test_a_silent_endpoint_times_out(endpoint):
    """After sasl.login.read.timeout.ms the endpoint counts as unavailable."""
    endpoint.silent.set()
    message = refusal(
        NetworkError,
        CREDENTIALS,
        {URL: endpoint.url},
        IMPATIENT,
        sasl_login_read_timeout_ms=50,
    )
    waited = "no answer within 0.05 s (sasl.login.read.timeout.ms)"
    assert f"the request to the token endpoint {shown_url(endpoint)} failed: {waited}" == message


@pytest.mark.parametrize("with_tls", [False, True])
def test_an_endless_response_times_out(certificates, with_tls):
    """An endless response is abandoned, although the endpoint is never silent for long."""
    tls = server_context(certificates.server) if with_tls else None
    with TokenEndpoint(tls) as endpoint:
        endpoint.dripping.set()
        message = refusal(
            NetworkError,
            CREDENTIALS,
            trusting(certificates.authority),
            {URL: endpoint.url},
            IMPATIENT,
            sasl_login_read_timeout_ms=200,
        )
    waited = "no answer within 0.2 s (sasl.login.read.timeout.ms)"
    assert f"the request to the token endpoint {shown_url(endpoint)} failed: {waited}" == message


def test_a_fetch_without_time_left_does_not_block():
    """A timeout of 0 would make the socket non-blocking instead of ending the fetch."""
    ours, peer = socket.socketpair()
    with ours, peer:
        assert 0.5 == _SocketUntil(ours, 5.0, lambda: 4.5).in_time().gettimeout()
        with pytest.raises(TimeoutError):
            _SocketUntil(ours, 5.0, lambda: 5.0).in_time()


class Dripping:
    """A socket that yields a byte of a response each second of a simulated clock."""

    def __init__(self, answer):
        self.now = 100.0
        self.answer = answer
        self.timeouts = []
        self.is_closed = False

    def settimeout(self, seconds):
        """Record the timeout."""
        self.timeouts.append(seconds)

    def setsockopt(self, *_):
        """Accept what http.client sets."""

    def sendall(self, data):
        """Accept the request."""

    def recv_into(self, buffer):
        """Return one byte, if it comes in time."""
        if self.timeouts[-1] < 1:
            raise TimeoutError
        self.now += 1
        buffer[:1], self.answer = self.answer[:1], self.answer[1:]
        return 1

    def close(self):
        """Record that it was closed."""
        self.is_closed = True


def drip(monkeypatch, answer, seconds):
    """Fetch a token from an endpoint that sends its response byte by byte."""
    dripping = Dripping(answer)
    monkeypatch.setattr("socket.create_connection", lambda *_: dripping)
    client = ClientCredentials(url="http://localhost/token", client_id="a", client_secret="b")  # noqa: S106
    try:
        return dripping, fetch_token(
            client, HttpTimeouts(10, seconds), ssl.create_default_context, lambda: dripping.now
        )
    except NetworkError as error:
        return dripping, str(error)


def test_the_read_timeout_applies_to_the_whole_response(monkeypatch):
    """Each byte has the time that the ones before it have left."""
    answer = b'HTTP/1.0 200 OK\r\n\r\n{"access_token":"a.b.c"}'
    dripping, got = drip(monkeypatch, answer + b" " * 1000, 40.5)
    assert "no answer within 40.5 s" in got
    assert 140 == dripping.now
    # The request is sent in two parts, its head and its form.
    assert [40.5, 40.5, *(40.5 - second for second in range(41))] == dripping.timeouts
    assert dripping.is_closed


def test_a_slow_response_within_the_timeout_is_read_completely(monkeypatch):
    """The response may come slowly, and its length may be known."""
    body = b'{"access_token":"a.b.c"}'
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    dripping, got = drip(monkeypatch, answer, len(answer) + 1)
    assert "a.b.c" == got
    assert dripping.is_closed


def test_an_endless_name_lookup_times_out(endpoint, monkeypatch):
    """A lookup, which no socket timeout ends, may take no longer than both timeouts together."""
    released = threading.Event()
    monkeypatch.setattr("socket.create_connection", lambda *_: released.wait(60))
    message = refusal(
        NetworkError,
        CREDENTIALS,
        {URL: endpoint.url},
        IMPATIENT,
        sasl_login_connect_timeout_ms=10,
        sasl_login_read_timeout_ms=15,
    )
    released.set()
    assert "failed: no response within 0.025 s (sasl.login.connect.timeout.ms and" in message


def test_an_unreachable_endpoint_is_an_error(endpoint, monkeypatch):
    """The error says that no connection was made within sasl.login.connect.timeout.ms."""
    waited = []

    def connect(_, timeout, *__):
        waited.append(timeout)
        raise TimeoutError("timed out")

    monkeypatch.setattr("socket.create_connection", connect)
    message = refusal(
        NetworkError,
        CREDENTIALS,
        {URL: endpoint.url},
        IMPATIENT,
        sasl_login_connect_timeout_ms=1_500,
    )
    assert "failed: no connection within 1.5 s (sasl.login.connect.timeout" in message
    assert [1.5] == waited


def test_a_response_that_is_not_a_token_is_refused(endpoint):
    """A value that could not be sent to a broker is not a token."""
    endpoint.token = "planted token"  # noqa: S105
    message = refusal(AuthenticationError, CREDENTIALS, {URL: endpoint.url})
    assert f"the endpoint {shown_url(endpoint)}: the token is empty, or contains inval" in message


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"ssl.truststore.type": "BKS"}, "ssl.truststore.type must be one of: JKS, PKCS12, PEM"),
        (
            {"ssl.truststore.certificates": "x"},
            "sasl.jaas.config: ssl.truststore.certificates cannot be set for the token endpoint",
        ),
        (
            {"ssl.trustore.location": "/mistyped.pem"},
            "ssl.trustore.location cannot be set for the token endpoint, but only ssl.truststore.",
        ),
        ({"ssl.truststore.location": ""}, "ssl.truststore.location must not be empty"),
    ],
)
def test_tls_options_of_the_endpoint_are_validated_with_the_settings(options, problem):
    """The options ssl.* of the login module are checked together with the settings."""
    module = {"sasl.jaas.config": jaas("OAUTHBEARER", **options)}
    assert problem in refusal(ConfigError, CREDENTIALS, module, {URL: "https://idp.example"})
