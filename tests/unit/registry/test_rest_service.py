"""Requests to a Schema Registry: credentials, URLs, retries, limits and errors."""

from __future__ import annotations

import random
import threading
from types import SimpleNamespace

import pytest

from spark_kafka_sink.config.registry_settings import REGISTRY_PREFIX, RegistrySettings
from spark_kafka_sink.errors import ConfigError, SchemaRegistryError
from spark_kafka_sink.registry import rest_service
from spark_kafka_sink.registry.rest_service import RestService
from tests.support.registry.fake_registry import (
    FakeRegistry,
    dripping,
    error,
    redirect_to,
    reset,
    respond,
    silent,
    truncate,
)
from tests.support.security.secure_front import server_context

#: Fail after the first round of requests.
ONCE = {"max.retries": 0}


@pytest.fixture
def registry():
    with FakeRegistry() as fake:
        yield fake


def service(url, *parts, sleeps=None):
    """Return a service with some settings, which notes its waits and does not wait."""
    settings = {name: value for part in parts for name, value in part.items()}
    return RestService(
        RegistrySettings.from_mapping({"url": url, **settings}, prefix=REGISTRY_PREFIX),
        sleep=([] if sleeps is None else sleeps).append,
    )


def failure(url, *parts, path="/subjects", sleeps=None):
    """Return the error of a request, which shows nothing that was planted."""
    with pytest.raises(SchemaRegistryError) as caught:
        service(url, *parts, sleeps=sleeps).get(path)
    assert "planted" not in str(caught.value)
    return caught.value


USER = {"basic.auth.user.info": "me:planted"}


@pytest.mark.parametrize(
    ("url", "settings", "warned"),
    [
        ("http://registry:8081", USER, True),
        ("http://me:planted@registry:8081", {}, True),
        ("http://registry:8081", {}, False),
        ("https://registry:8081", USER, False),
        ("http://localhost:8081", USER, False),
        ("http://127.0.0.1:8081", USER, False),
    ],
)
def test_credentials_in_clear_text_are_a_warning(caplog, url, settings, warned):
    """TLS is not required, as in Confluent's clients; a request on the same machine needs none."""
    service(url, settings)
    expected = (
        "the credentials for the Schema Registry http://registry:8081 are sent in clear text: use "
        "https://"
    )
    assert [expected] * warned == caplog.messages


def test_a_request_has_confluents_headers(registry):
    """The content types are those of the registry's API; without credentials, none are sent."""
    registry.script = [(200, [1]), (200, {"id": 2})]
    rest = service(registry.url)
    assert ([1], f"GET {registry.url}/a?b=c+d%26") == rest.get("/a", {"b": "c d&"})
    assert {"id": 2} == rest.post("/a", {}, {"schema": "é"}).value
    got, posted = registry.asked
    assert ("GET", "/a?b=c+d%26", None) == (got.method, got.path, got.body)
    assert ("POST", "/a", {"schema": "é"}) == (posted.method, posted.path, posted.body)
    assert "application/vnd.schemaregistry.v1+json" == posted.headers["content-type"]
    assert got.headers["accept"].startswith("application/vnd.schemaregistry.v1+json, ")
    assert "content-type" not in got.headers
    assert got.credentials is None


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"basic.auth.user.info": "me:pä:ss"}, "me:pä:ss"),
        ({"bearer.auth.token": "a.b.c"}, "Bearer a.b.c"),
    ],
)
def test_credentials_are_sent_with_each_request(registry, settings, expected):
    """User and password are sent in UTF-8, and may contain colons."""
    registry.script = [(200, 1)]
    service(registry.url, settings).get("/a")
    assert [expected] == [asked.credentials for asked in registry.asked]


def test_each_url_has_its_own_credentials(registry):
    """Those in one URL are not sent to another."""
    with FakeRegistry() as other:
        registry.script, other.script = [error(503)], [(200, 1)]
        planted = registry.url.replace("//", "//me:planted%2Fa@")
        assert f"GET {other.url}/a" == service(f"{planted},{other.url}").get("/a").request
        assert ["me:planted/a"] == [asked.credentials for asked in registry.asked]
        assert [None] == [asked.credentials for asked in other.asked]


def test_a_token_of_confluent_cloud_names_cluster_and_pool(registry):
    """Both are headers of their own."""
    registry.script = [(200, 1)]
    settings = {
        "bearer.auth.token": "t",
        "bearer.auth.logical.cluster": "lsrc-1",
        "bearer.auth.identity.pool.id": "pool-1",
    }
    service(registry.url, settings).get("/a")
    headers = registry.asked[0].headers
    assert ("lsrc-1", "pool-1") == (
        headers["target-sr-cluster"],
        headers["confluent-identity-pool-id"],
    )


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_transient_errors_are_retried(registry, status):
    """The request is repeated until it succeeds; the waits grow, and are random."""
    registry.script = [error(status, 50001)] * 3 + [(200, 5)]
    sleeps = []
    random.seed(3)
    assert 5 == service(registry.url, sleeps=sleeps).get("/a").value
    assert [True] * 3 == [0 <= wait <= 2**i for i, wait in enumerate(sleeps)]
    assert 3 == len(set(sleeps))


def test_the_wait_is_limited(registry):
    """It does not exceed retries.max.wait.ms, however many retries there are."""
    registry.script = [error(503)] * 40 + [(200, 5)]
    sleeps = []
    limits = {"max.retries": 40, "retries.wait.ms": 10, "retries.max.wait.ms": 20}
    assert 5 == service(registry.url, limits, sleeps=sleeps).get("/a").value
    assert 40 == len(sleeps)
    assert max(sleeps) <= 0.02


@pytest.mark.parametrize("step", [reset, truncate])
def test_a_lost_connection_is_retried(registry, step):
    """A response that ends in its middle counts as none."""
    registry.script = [step, (200, 5)]
    assert 5 == service(registry.url).get("/a").value


def test_retries_end(registry):
    """After max.retries the error says how often the request was sent, and what to do."""
    registry.script = [error(503, 50302, "try later")] * 3
    raised = failure(registry.url, {"max.retries": 2})
    assert (
        f"GET {registry.url}/subjects failed after 3 attempts (schema.registry.max.retries) with "
        "status 503 (50302: try later): look into the registry's log"
    ) == str(raised)
    assert (503, 50302, True) == (raised.status, raised.error_code, raised.retriable)
    assert 3 == len(registry.asked)


def test_all_urls_are_asked_before_a_wait(registry):
    """A URL that answers is asked first from then on."""
    with FakeRegistry() as other:
        other.script = [(200, 1), (200, 2)]
        registry.script = [reset]
        sleeps = []
        rest = service(f"http://localhost:1,{registry.url},{other.url}", sleeps=sleeps)
        assert [1, 2] == [rest.get("/a").value for _ in range(2)]
        assert ([], 1, 2) == (sleeps, len(registry.asked), len(other.asked))


def test_the_last_url_of_the_last_round_gives_the_error(registry):
    """Each round asks all URLs."""
    sleeps = []
    registry.script = [error(503)] * 2
    raised = failure(f"{registry.url},http://localhost:1", {"max.retries": 1}, sleeps=sleeps)
    assert str(raised).startswith(
        "GET http://localhost:1/subjects failed after 2 attempts (schema."
    )
    assert str(raised).endswith("; check that the registry runs, and schema.registry.url")
    assert (None, None, True) == (raised.status, raised.error_code, raised.retriable)
    assert (1, 2) == (len(sleeps), len(registry.asked))


@pytest.mark.parametrize(
    ("status", "code", "advice"),
    [
        (300, None, "redirects are not followed, since they could lead the credentials elsewhere"),
        (401, 401, "check the credentials: schema.registry.basic.auth.user.info or "),
        (403, 40301, "the credentials do not permit this: ask whoever runs the registry"),
        (404, 40401, "check the name of the subject, or register a schema under it"),
        (404, 40402, "check the version"),
        (404, 40403, "check the id, and that schema.registry.url names the registry that has"),
        (404, 40499, "check the request"),
        (404, 99_999, "check the request"),
        (407, None, "set user and password in schema.registry.proxy"),
        (409, 409, "make the schema compatible with the versions of the subject, or change the"),
        (422, 42201, "change what the registry objects to"),
        (400, 40001, "check the request"),
        (501, 501, "check the request"),
    ],
)
def test_refusals_are_not_retried(registry, status, code, advice):
    """The error has the registry's code and message, and says what to do."""
    registry.script = [error(status, code, "it says so.")]
    raised = failure(f"http://localhost:{registry.port}")
    said = "" if code is None else f" ({code}: it says so)"
    assert str(raised).startswith(
        f"GET {registry.url}/subjects failed with status {status}{said}: {advice}"
    )
    assert (status, code, False) == (raised.status, raised.error_code, raised.retriable)
    assert 1 == len(registry.asked)


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>planted", {}, [1], {"error_code": 404, "message": "HTTP 404 Not Found"}]
    + [{"error_code": code} for code in ("40403", True, 0, -5, 100_000, 10**30, 4.5, None)],
)
def test_another_server_is_not_taken_for_a_registry(registry, body):
    """A 404 without a code of Confluent's asks whether the URL is right."""
    registry.script = [(404, body)]
    raised = failure(registry.url)
    assert str(raised).endswith(
        ": check that schema.registry.url is the URL of a Schema Registry, with its path"
    )
    assert (404, None) == (raised.status, raised.error_code)


@pytest.mark.parametrize(
    "body", [b"", b"<html>planted", b"\xff\xfe", b"{", b"[" * 100_000, b"1" * 10_000]
)
def test_a_response_that_is_not_json_is_refused(registry, body):
    """Neither deep nesting nor a number without an end gets further."""
    registry.script = [(200, body)]
    raised = failure(registry.url)
    assert (
        f"GET {registry.url}/subjects was answered with something other than JSON: check that "
        "schema.registry.url is the URL of a Schema Registry, with its path"
    ) == str(raised)
    assert (200, False) == (raised.status, raised.retriable)


def test_a_redirect_is_not_followed(registry):
    """Credentials are sent only to the URLs that are configured."""
    with FakeRegistry() as other:
        registry.script = [redirect_to(f"{other.url}/subjects")]
        raised = failure(registry.url, {"basic.auth.user.info": "me:planted"})
        assert [] == other.asked
    assert "failed with status 302: redirects are not followed" in str(raised)


def test_a_message_of_the_registry_is_shown_without_secrets(registry):
    """It may quote the request; it is cut, and its control characters are replaced."""
    registry.script = [error(422, 42201, "planted\x1b[31m Bearer planted\n" + "x" * 1000)]
    message = str(failure(registry.url, {"bearer.auth.token": "planted"}))
    assert "(42201: [hidden]?[31m Bearer [hidden]?xxx" in message
    assert len(message) < 800


def test_a_url_from_a_reference_is_hidden(registry, monkeypatch):
    """The path of the request is shown, the host is not."""
    monkeypatch.setenv("WHERE", registry.url)
    registry.script = [error(500)]
    message = str(failure("${env:WHERE}", ONCE))
    assert message.startswith("GET [hidden]/subjects failed with status 500: ")


@pytest.mark.parametrize("step", [silent, dripping])
def test_a_response_has_to_be_complete_in_time(registry, step):
    """A server that is silent, or never done, is given up after request.timeout.ms."""
    registry.script = [step(registry)]
    raised = failure(registry.url, ONCE, {"request.timeout.ms": 100})
    assert (
        f"GET {registry.url}/subjects failed: no response within 0.1 s "
        "(schema.registry.request.timeout.ms); check that the registry runs, and "
        "schema.registry.url"
    ) == str(raised)
    assert raised.retriable


def test_a_look_up_of_a_name_has_to_end_in_time(monkeypatch):
    """No timeout of a socket ends it; its thread does not keep the process alive."""
    released, daemons = threading.Event(), []

    def hang(*_):
        daemons.append(threading.current_thread().daemon)
        released.wait(60)

    monkeypatch.setattr("socket.create_connection", hang)
    message = str(failure("http://a", ONCE, {"request.timeout.ms": 50}))
    released.set()
    assert "no response within 0.05 s" in message
    assert [True] == daemons


def test_a_response_is_limited_in_size(registry, monkeypatch):
    """A larger one is not kept."""
    monkeypatch.setattr(rest_service, "MAX_BYTES", 10)
    registry.script = [(200, "x" * 8), (200, "x" * 9)]
    assert "x" * 8 == service(registry.url, ONCE).get("/a").value
    assert "the response has more than 10 bytes" in str(failure(registry.url, ONCE))


def test_a_response_that_is_not_http_is_an_error(registry):
    """What it says is quoted without secrets."""

    def nonsense(handler):
        handler.wfile.write(b"planted nonsense\r\n\r\n")
        handler.close_connection = True

    registry.script = [nonsense]
    message = str(failure(registry.url, ONCE, {"bearer.auth.token": "planted"}))
    assert "[hidden] nonsense" in message


@pytest.mark.parametrize("size", [b"-5", b"zz", b""])
def test_a_chunk_without_a_size_is_an_error(registry, size):
    """It may be retried, like any other response that is cut."""

    def chunked(handler):
        handler.wfile.write(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + size + b"\r\n5"
        )
        handler.close_connection = True

    registry.script = [chunked]
    assert failure(registry.url, ONCE).retriable


def test_tls_is_verified(certificates):
    """A registry whose certificate is not trusted gets no request."""
    trust = {"ssl.truststore.type": "PEM"}
    good = {**trust, "ssl.truststore.certificates": certificates.authority.pem}
    bad = {**trust, "ssl.truststore.certificates": certificates.stranger.pem}
    with FakeRegistry(server_context(certificates.server)) as registry:
        registry.script = [(200, 5)]
        assert 5 == service(registry.url, good).get("/a").value
        raised = failure(registry.url, bad)
        assert f"GET {registry.url}/subjects failed: the registry's certificate" in str(raised)
        assert str(raised).endswith("check schema.registry.ssl.truststore.location")
        assert (False, 1) == (raised.retriable, len(registry.asked))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ssl.keystore.location": "/a"}, "ssl.keystore.location requires ssl.keystore.password"),
        ({"ssl.cipher.suites": "a"}, "ssl.cipher.suites: 'a' is unknown or insecure"),
    ],
)
def test_settings_of_tls_are_checked_at_once(settings, message):
    """No request is needed to find a contradiction."""
    with pytest.raises(ConfigError) as caught:
        service("https://a", settings)
    assert str(caught.value).startswith(f"schema.registry.{message}")


def test_a_missing_truststore_is_an_error_of_the_configuration(tmp_path):
    """It is read with the first request, and names its setting."""
    missing = {"ssl.truststore.location": str(tmp_path / "no"), "ssl.truststore.type": "PEM"}
    with pytest.raises(ConfigError, match=r"schema\.registry\.ssl\.truststore\.location .* cannot"):
        service("https://localhost:1", missing).get("/a")


def test_a_request_passes_through_a_proxy(registry):
    """The proxy gets the whole URL, and its own credentials."""
    registry.script = [(200, 5)]
    settings = {
        "proxy": f"http://us:planted@localhost:{registry.port}",
        "basic.auth.user.info": "me:x",
    }
    rest = service("http://registry.test:8081/base", settings)
    assert 5 == rest.get("/subjects").value
    [asked] = registry.asked
    assert "http://registry.test:8081/base/subjects" == asked.path
    assert ("registry.test:8081", "me:x") == (asked.headers["host"], asked.credentials)
    assert "Basic dXM6cGxhbnRlZA==" == asked.headers["proxy-authorization"]


def test_an_encrypted_request_passes_through_a_tunnel(registry):
    """The proxy is asked to connect, and does not see the request or its credentials."""
    registry.script = [lambda handler: respond(handler, 407, b"planted")]
    settings = {
        "proxy": f"http://us:planted@localhost:{registry.port}",
        "basic.auth.user.info": "me:x",
    }
    raised = failure("https://registry.test", ONCE, settings)
    [asked] = registry.asked
    assert ("CONNECT", "registry.test:443", None) == (asked.method, asked.path, asked.credentials)
    assert "Basic dXM6cGxhbnRlZA==" == asked.headers["proxy-authorization"]
    assert "Tunnel connection failed: 407" in str(raised)


def test_a_request_is_sent_although_no_thread_can_be_started(registry, monkeypatch):
    """At the end of a process, it is sent by the thread that needs it."""
    registry.script = [(200, [5])]
    rest = service(registry.url)
    # Only its own threads: the registry of the test has some, too.
    monkeypatch.setattr(rest_service, "threading", SimpleNamespace(Thread=_Unstarted))
    assert [5] == rest.get("/a").value


class _Unstarted:
    """A thread that cannot be started."""

    def __init__(self, **_):
        pass

    def start(self):
        """Fail as Python does."""
        raise RuntimeError("can't create new thread at interpreter shutdown")
