"""Where tokens of OAUTHBEARER come from, and when they are replaced."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import threading
import time
from dataclasses import replace

import pytest

from spark_kafka_sink.config.allow_lists import PATHS
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import AuthenticationError, ConfigError, NetworkError
from spark_kafka_sink.model import Node
from spark_kafka_sink.network import token_provider
from spark_kafka_sink.network.connection_security import ConnectionSecurity
from spark_kafka_sink.network.token_fetcher import FetchTimeouts, fetch_token
from spark_kafka_sink.network.token_provider import TokenProvider
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.security.client_credentials import ClientCredentials
from spark_kafka_sink.security.oauth_bearer import OAuthBearerToken, RefreshPolicy
from tests.support.certificates import STORE_PASSWORD
from tests.support.secure_front import SaslRules, SecureFront, server_context
from tests.support.secured import jaas
from tests.support.token_endpoint import TokenEndpoint, jwt

NODE = Node(1, "localhost", 9)
BEARER = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
HANDLER = "sasl.login.callback.handler.class"
URL = "sasl.oauthbearer.token.endpoint.url"
CREDENTIALS = {
    "sasl.oauthbearer.client.credentials.client.id": "an id",
    "sasl.oauthbearer.client.credentials.client.secret": "planted&secret",
}
#: Gives up on a token endpoint after the first try.
IMPATIENT = {"sasl.login.retry.backoff.max.ms": 0}


def configured(*parts, **others):
    named = {name.replace("_", "."): value for name, value in others.items()}
    merged = {name: value for part in parts for name, value in part.items()}
    return ProducerConfig.from_mapping(
        {"bootstrap.servers": "localhost:9", **BEARER, **merged, **named}
    )


def shown(*parts, times=1, **others):
    """Begin exchanges as connections do, and give what each says first."""

    async def run() -> list[str]:
        security = ConnectionSecurity(configured(*parts, **others).security, time.time)
        try:
            assert security.sasl_client is not None
            clients = [await security.sasl_client(NODE) for _ in range(times)]
        finally:
            await security.close()
        return [client.initial_response().decode() for client in clients]

    return asyncio.run(run())


def refusal(kind, *parts, **others):
    with pytest.raises(kind) as caught:
        shown(*parts, **others)
    assert "planted" not in str(caught.value)
    return str(caught.value)


def shown_url(endpoint):
    """Return what errors show of an endpoint's URL."""
    return endpoint.url.removesuffix("/token?a=b")


def trusting(authority):
    """Trust an authority for the token endpoint, as the login module of Java's client does."""
    options = {
        "ssl.truststore.type": "PKCS12",
        "ssl.truststore.location": str(authority.pkcs12_file),
        "ssl.truststore.password": STORE_PASSWORD,
    }
    return {"sasl.jaas.config": jaas("OAUTHBEARER", **options)}


@pytest.fixture
def endpoint():
    """Give a token endpoint without TLS, which is allowed on this machine only."""
    with TokenEndpoint() as serving:
        yield serving


# --- a token endpoint


def test_a_token_is_asked_for_over_https(certificates):
    """Client credentials get a token from an endpoint whose certificate is verified."""
    with TokenEndpoint(server_context(certificates.server)) as endpoint:
        said = shown(CREDENTIALS, trusting(certificates.authority), {URL: endpoint.url})
        assert [f"n,,\x01auth=Bearer {endpoint.token}\x01\x01"] == said
        form = {"grant_type": ["client_credentials"]}
        assert [("/token?a=b", "an id:planted&secret", form)] == endpoint.asked


def test_scope_and_encoding_are_as_the_settings_say(endpoint):
    """The scope is asked for, and id and secret are form-encoded where the provider wants it."""
    shown(
        CREDENTIALS,
        {URL: endpoint.url},
        sasl_oauthbearer_scope="write all",
        sasl_oauthbearer_header_urlencode="true",
    )
    [(_, authorization, form)] = endpoint.asked
    assert "an+id:planted%26secret" == authorization
    assert ["write all"] == form["scope"]


def test_a_referenced_part_of_the_url_is_hidden_before_a_reason_is_cut(endpoint, monkeypatch):
    """Where the cut falls within it, its beginning is not shown."""
    monkeypatch.setenv("TENANT", "planted-tenant")
    url = f"{shown_url(endpoint)}/${{env:TENANT}}"
    endpoint.answers = [(401, {"error": f"{'x' * 290} planted-tenant and more"})]
    assert "plan" not in refusal(AuthenticationError, CREDENTIALS, {URL: url})


def test_a_false_endpoint_gets_no_secret(certificates):
    """An endpoint whose certificate is not trusted is not spoken to."""
    with TokenEndpoint(server_context(certificates.server)) as endpoint:
        message = refusal(
            AuthenticationError, CREDENTIALS, trusting(certificates.stranger), {URL: endpoint.url}
        )
        assert message.startswith(
            f"the token endpoint {shown_url(endpoint)} has a certificate that is no"
        )
        assert [] == endpoint.asked


@pytest.mark.parametrize("status", [401, 400])
def test_a_refused_client_is_an_error_at_once(endpoint, status):
    """Wrong credentials are not tried again."""
    endpoint.answers = [
        (status, {"error": "invalid_client", "error_description": "planted&secret"})
    ]
    message = refusal(AuthenticationError, CREDENTIALS, {URL: endpoint.url})
    assert (
        f"the token endpoint {shown_url(endpoint)} refused the client 'an id' with {status}: "
        "invalid_client [hidden]"
    ) == message
    assert 1 == len(endpoint.asked)


def test_a_busy_endpoint_is_asked_again(endpoint):
    """What may pass is tried again, for as long as sasl.login.retry.backoff.max.ms says."""
    endpoint.answers = [(503, {}), (429, {})]
    retry = {"sasl.login.retry.backoff.ms": 0, "sasl.login.retry.backoff.max.ms": 60_000}
    shown(CREDENTIALS, {URL: endpoint.url}, retry)
    assert 3 == len(endpoint.asked)
    endpoint.answers = [(503, {"error": "busy"})]
    assert "with 503: busy" in refusal(NetworkError, CREDENTIALS, {URL: endpoint.url}, IMPATIENT)


def test_a_busy_endpoint_is_given_time(endpoint):
    """It is not asked again before sasl.login.retry.backoff.ms, when all of the time is over."""
    endpoint.answers = [(503, {"error": "busy"})]
    slow = {"sasl.login.retry.backoff.ms": 60_000, "sasl.login.retry.backoff.max.ms": 60_000}
    assert "with 503: busy" in refusal(NetworkError, CREDENTIALS, {URL: endpoint.url}, slow)
    assert 1 == len(endpoint.asked)


def test_a_redirect_is_not_followed(endpoint):
    """The secret goes to the endpoint that the settings name, and to no other."""
    endpoint.answers = [(302, {})]
    assert "with 302" in refusal(NetworkError, CREDENTIALS, {URL: endpoint.url}, IMPATIENT)
    assert 1 == len(endpoint.asked)


def test_an_endpoint_that_keeps_silent_is_given_up(endpoint):
    """After sasl.login.read.timeout.ms the endpoint counts as one that cannot be asked."""
    endpoint.silent.set()
    message = refusal(
        NetworkError,
        CREDENTIALS,
        {URL: endpoint.url},
        IMPATIENT,
        sasl_login_read_timeout_ms=50,
    )
    waited = "no answer within 0.05 s (sasl.login.read.timeout.ms)"
    assert f"the token endpoint {shown_url(endpoint)} cannot be asked: {waited}" == message


@pytest.mark.parametrize("with_tls", [False, True])
def test_an_endpoint_that_drips_is_given_up(certificates, with_tls):
    """An answer that never ends is given up, although the endpoint is never silent for long."""
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
    assert f"the token endpoint {shown_url(endpoint)} cannot be asked: {waited}" == message


class Dripping:
    """A socket that gives a byte of an answer each second of a clock in hand."""

    def __init__(self, answer):
        self.now = 100.0
        self.answer = answer
        self.timeouts = []
        self.is_closed = False

    def settimeout(self, seconds):
        """Keep what it is set to."""
        self.timeouts.append(seconds)

    def setsockopt(self, *_):
        """Take what http.client sets."""

    def sendall(self, data):
        """Take the request."""

    def recv_into(self, buffer):
        """Return one byte, if it comes in time."""
        if self.timeouts[-1] < 1:
            raise TimeoutError
        self.now += 1
        buffer[:1], self.answer = self.answer[:1], self.answer[1:]
        return 1

    def close(self):
        """Keep that it was closed."""
        self.is_closed = True


def drip(monkeypatch, answer, seconds):
    """Fetch a token from an endpoint that gives its answer byte by byte."""
    dripping = Dripping(answer)
    monkeypatch.setattr("socket.create_connection", lambda *_: dripping)
    asked = ClientCredentials(url="http://localhost/token", client_id="a", client_secret="b")  # noqa: S106
    try:
        return dripping, fetch_token(
            asked, FetchTimeouts(read=seconds), ssl.create_default_context, lambda: dripping.now
        )
    except NetworkError as error:
        return dripping, str(error)


def test_the_time_for_an_answer_is_counted_once(monkeypatch):
    """Each byte has what the ones before it have left over."""
    answer = b'HTTP/1.0 200 OK\r\n\r\n{"access_token":"a.b.c"}'
    dripping, got = drip(monkeypatch, answer + b" " * 1000, 40.5)
    assert "no answer within 40.5 s" in got
    assert 140 == dripping.now
    # The request goes out in two parts, its head and its form.
    assert [40.5, 40.5, *(40.5 - second for second in range(41))] == dripping.timeouts
    assert dripping.is_closed


def test_an_answer_that_comes_in_time_is_read_to_its_end(monkeypatch):
    """It may come slowly, and its length may be told."""
    body = b'{"access_token":"a.b.c"}'
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    dripping, got = drip(monkeypatch, answer, len(answer) + 1)
    assert "a.b.c" == got
    assert dripping.is_closed


def test_a_name_that_is_looked_up_for_ever_is_given_up(endpoint, monkeypatch):
    """What no timeout of a socket ends is waited for no longer than both together."""
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
    assert "cannot be asked: nothing within 0.025 s (sasl.login.connect.timeout.ms and" in message


def test_an_endpoint_that_does_not_listen_is_told(endpoint, monkeypatch):
    """An endpoint that cannot be connected to within sasl.login.connect.timeout.ms is told."""
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
    assert "cannot be asked: no connection within 1.5 s (sasl.login.connect.timeout" in message
    assert [1.5] == waited


def test_an_answer_that_is_no_token_is_refused(endpoint):
    """What could not be sent to a broker is no token."""
    endpoint.token = "planted token"  # noqa: S105
    message = refusal(AuthenticationError, CREDENTIALS, {URL: endpoint.url})
    assert f"the endpoint {shown_url(endpoint)}: the token is empty, or holds char" in message


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"ssl.truststore.type": "BKS"}, "ssl.truststore.type must be one of: JKS, PKCS12, PEM"),
        ({"ssl.truststore.certificates": "x"}, "sasl.jaas.config: for the token endpoint name fil"),
        ({"ssl.truststore.location": ""}, "ssl.truststore.location must not be empty"),
    ],
)
def test_tls_of_the_endpoint_is_checked_beforehand(options, problem):
    """The options ssl.* of the login module are read when the settings are."""
    module = {"sasl.jaas.config": jaas("OAUTHBEARER", **options)}
    assert problem in refusal(ConfigError, CREDENTIALS, module, {URL: "https://idp.example"})


# --- files, functions, and tokens of one's own


def test_a_token_is_read_from_a_file_each_time(tmp_path):
    """A token that has no end is used once, so a file that somebody replaces is read again."""
    file = tmp_path / "token"
    file.write_text("opaque-1\n")
    assert ["n,,\x01auth=Bearer opaque-1\x01\x01"] == shown({URL: file.as_uri()})
    file.write_text("planted token")
    assert f"{file}: the token is empty, or holds" in refusal(
        AuthenticationError, {URL: file.as_uri()}
    )
    file.unlink()
    assert f"{file} cannot be read: No such file" in refusal(ConfigError, {URL: file.as_uri()})


@pytest.mark.parametrize("name", ["/dev/zero", "PIPE", "LARGE"])
def test_a_token_is_read_from_a_regular_file_of_bounded_size(tmp_path, name):
    """A device would never end, a pipe would never begin, and no token is that large."""
    os.mkfifo(tmp_path / "PIPE")
    (tmp_path / "LARGE").write_bytes(b"a" * (2**20 + 1))
    file = tmp_path / name
    problem = "is larger than 1048576 bytes" if name == "LARGE" else "is not a regular file"
    assert f"{URL}: {file} cannot be read: it {problem}" == refusal(
        ConfigError, {URL: file.as_uri()}
    )


def test_a_token_is_read_from_a_listed_path_only(tmp_path, monkeypatch):
    """What SPARK_KAFKA_SINK_ALLOWED_PATHS does not list is no token."""
    (tmp_path / "token").write_text("opaque")
    monkeypatch.setenv(PATHS, "/nowhere")
    assert "does not allow it in this process" in refusal(
        ConfigError, {URL: (tmp_path / "token").as_uri()}
    )
    monkeypatch.setenv(PATHS, str(tmp_path))
    assert ["n,,\x01auth=Bearer opaque\x01\x01"] == shown({URL: (tmp_path / "token").as_uri()})


def test_a_function_gives_tokens():
    """A function is called off the event loop; it may give the token's end along with it."""
    threads = []

    def give() -> str:
        threads.append(threading.current_thread())
        return f"token-{len(threads)}"

    assert ["token-1", "token-2"] == [
        said.split("Bearer ")[1].strip("\x01") for said in shown({HANDLER: give}, times=2)
    ]
    assert threading.main_thread() not in threads
    calls = []

    async def give_with_end() -> tuple[str, float]:
        calls.append(None)
        return "opaque", time.time() + 3600

    shown({HANDLER: give_with_end}, times=2)
    assert 1 == len(calls)


def test_a_function_may_be_named():
    """A path of the form `package.module:attribute` names a function, as it must under Spark."""
    [said] = shown({HANDLER: "tests.support.token_endpoint:jwt"})
    assert said.startswith("n,,\x01auth=Bearer ey")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("tests.support.token_endpoint:nothing", "cannot be imported: AttributeError"),
        ("tests.support.secured:MODULES", "cannot be called"),
    ],
)
def test_a_function_that_cannot_be_had_is_told_at_once(name, problem):
    """Whoever makes a producer is told."""
    with pytest.raises(ConfigError, match=problem):
        KafkaProducer(configured({HANDLER: name}))


def test_a_function_that_raises_is_not_quoted():
    """What a function raises may hold anything: it is the cause, and no part of the sentence."""

    def give() -> str:
        raise RuntimeError("planted-secret")

    with pytest.raises(NetworkError, match="raised RuntimeError instead of giving a token") as it:
        shown({HANDLER: give})
    assert "planted" not in str(it.value)
    assert isinstance(it.value.__cause__, RuntimeError)


@pytest.mark.parametrize("given", [None, 1, b"x", ("a",), ("a", "b"), ("a", True)])
def test_what_a_function_gives_is_checked(given):
    """Only text, or text and a time, is a token."""
    message = refusal(AuthenticationError, {HANDLER: lambda: given})
    assert "must give a token as str, or a tuple of it and its end" in message


def test_a_token_that_has_ended_is_not_shown():
    """A token that comes too late is refused with its subject, before a broker sees it."""
    message = refusal(AuthenticationError, {HANDLER: lambda: jwt("alice", lifetime=-100)})
    assert message.startswith("the token for 'alice' (OAUTHBEARER) ended 10")


def test_another_claim_names_the_subject():
    """sasl.oauthbearer.sub.claim.name says whom errors speak of."""
    message = refusal(
        AuthenticationError,
        {HANDLER: lambda: jwt("alice", lifetime=-100)},
        sasl_oauthbearer_sub_claim_name="azp",
    )
    assert message.startswith("the token for 'unknown' (OAUTHBEARER)")


def test_a_token_of_ones_own_needs_no_signature():
    """Without another source the token is made of sasl.jaas.config, as Java does."""
    module = jaas("OAUTHBEARER", unsecuredLoginStringClaim_sub="alice")
    [said] = shown({"sasl.jaas.config": module})
    assert said.startswith("n,,\x01auth=Bearer ey")


# --- keeping a token


class Source:
    """Gives tokens that last so many seconds of a clock in hand, and fails when told to."""

    def __init__(self, lifetime):
        self.now = 1000.0
        self.lifetime = lifetime
        self.given = 0
        self.error = None
        #: How long getting a token takes, by the clock in hand.
        self.pauses = []
        self.gave = asyncio.Event()

    async def get(self):
        """Give the next one."""
        self.gave.set()
        self.given += 1
        if self.error is not None:
            raise self.error
        token = OAuthBearerToken(
            value=f"t{self.given}", started_at=self.now, expires_at=self.now + self.lifetime
        )
        self.now += self.pauses.pop() if self.pauses else 0
        return token

    async def next(self):
        """Wait until one more was asked for."""
        self.gave.clear()
        async with asyncio.timeout(30):
            await self.gave.wait()
        # What was got is in place when the loop has come round.
        await asyncio.sleep(0)
        await asyncio.sleep(0)


def provided(lifetime, use, policy=None):
    """Run a test's steps with a source and its provider."""

    async def run() -> None:
        source = Source(lifetime)
        provider = TokenProvider(source.get, policy or RefreshPolicy(), lambda: source.now)
        try:
            await use(source, provider)
        finally:
            await provider.close()

    asyncio.run(run())


def test_a_token_is_kept():
    """Whoever comes while a token is good, or is being got, gets that one."""

    async def use(source, provider):
        got = await asyncio.gather(provider.token(), provider.token())
        assert ["t1", "t1", "t1"] == [it.value for it in [*got, await provider.token()]]

    provided(3600.0, use)


def test_a_token_that_has_ended_is_replaced_when_it_is_asked_for():
    """Nobody is given a token that is over."""

    async def use(source, provider):
        await provider.token()
        source.now += 3600
        assert "t2" == (await provider.token()).value

    provided(3600.0, use)


@pytest.mark.parametrize(
    ("pause", "error"), [(3599, None), (3600, NetworkError), (7200, NetworkError)]
)
def test_a_token_that_ends_while_it_is_got_is_got_again(pause, error):
    """After a pause of the process it is over when it comes, which is nobody's refusal."""

    async def use(source, provider):
        source.pauses = [pause]
        if error is None:
            assert "t1" == (await provider.token()).value
            return
        with pytest.raises(error, match=rf"ended while it was being got, which took {pause} sec"):
            await provider.token()
        assert "t2" == (await provider.token()).value

    provided(3600.0, use)


#: Has a token of 5 ms replaced after 4.
SOON = RefreshPolicy(min_period=0, buffer=0, window_jitter=0)


def test_a_token_is_replaced_before_it_ends():
    """In the background, without anybody asking."""

    async def use(source, provider):
        await provider.token()
        await source.next()
        # Which one it is by now depends on how busy the machine is.
        assert "t1" != (await provider.token()).value

    provided(0.005, use, SOON)


def test_a_token_that_cannot_be_replaced_is_used_to_its_end(caplog, monkeypatch):
    """While the source fails it is tried again and again, and the old token serves."""
    monkeypatch.setattr(token_provider, "RETRY_INTERVAL", 0.001)

    async def use(source, provider):
        await provider.token()
        source.error = NetworkError("nobody there")
        await source.next()
        await source.next()
        assert "t1" == (await provider.token()).value
        source.now += 1
        with pytest.raises(NetworkError):
            await provider.token()

    with caplog.at_level(logging.WARNING):
        provided(0.005, use, SOON)
    assert "the token is used on, since no other could be got: nobody there" in caplog.text


def test_the_warning_of_a_token_that_is_used_on_hides_its_subject(caplog, monkeypatch):
    """A subject that a reference stands for is in no log, where the next token comes too late."""
    monkeypatch.setenv("SUBJECT", "planted-subject")
    module = jaas("OAUTHBEARER", unsecuredLoginStringClaim_sub="${env:SUBJECT}")
    settings = configured({"sasl.jaas.config": module}).security
    now = 1000.0

    async def run() -> None:
        security = ConnectionSecurity(settings, lambda: now)
        tokens = security._tokens
        assert tokens is not None
        token = await tokens.token()
        assert "planted-subject" == token.subject
        late = replace(token, expires_at=now - 5)
        monkeypatch.setattr(tokens, "_get_token", lambda: asyncio.sleep(0, late))
        tokens._replace()
        assert tokens._getting is not None
        await asyncio.wait({tokens._getting})
        await asyncio.sleep(0)
        await security.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    [warning] = caplog.messages
    assert (
        "the token is used on, since no other could be got: the token for '[hidden]' "
        "(OAUTHBEARER) ended 5 seconds ago: check who issues it, and this machine's clock"
    ) == warning


def test_when_a_token_is_replaced_is_as_the_settings_say():
    """The settings sasl.login.refresh.* make the policy."""
    settings = configured(
        {HANDLER: jwt},
        sasl_login_refresh_window_factor=0.5,
        sasl_login_refresh_window_jitter=0.25,
        sasl_login_refresh_min_period_seconds=1,
        sasl_login_refresh_buffer_seconds=2,
    )
    tokens = ConnectionSecurity(settings.security, time.time)._tokens
    assert tokens is not None
    assert (
        RefreshPolicy(window_factor=0.5, window_jitter=0.25, min_period=1, buffer=2)
        == tokens._policy
    )


# --- to a broker


def test_a_refused_token_ends_the_producer():
    """The broker's reason is told, and not the token."""
    rules = SaslRules(accepts_token=lambda _: False, message=lambda _: "{invalid_token}")
    token = jwt("alice")
    with (
        DevBroker(topics={"events": 1}) as broker,
        SecureFront(broker.bootstrap_servers, sasl=rules) as front,
    ):
        settings = {"bootstrap.servers": front.bootstrap_servers, **BEARER, HANDLER: lambda: token}
        producer = KafkaProducer({**settings, "max.block.ms": 10**7})
        with pytest.raises(AuthenticationError) as caught:
            producer.send("events", b"v").result(60)
        producer.close(0)
    assert (
        f"{front.bootstrap_servers} (id -1): OAUTHBEARER authentication of user 'alice' failed: "
        '{invalid_token} ({"status":"invalid_token"}). Check that the token is meant for this '
        "cluster and has not ended, and the clocks"
    ) == str(caught.value).partition(". The token says: end 2")[0]


def test_a_producer_shows_its_token(endpoint):
    """A producer gets its token once, and shows it on every connection."""
    with (
        DevBroker(topics={"events": 1}) as broker,
        SecureFront(broker.bootstrap_servers, sasl=SaslRules()) as front,
        KafkaProducer(
            {
                "bootstrap.servers": front.bootstrap_servers,
                **BEARER,
                **CREDENTIALS,
                URL: endpoint.url,
            }
        ) as producer,
    ):
        producer.send("events", b"v").result(60)
        assert {("OAUTHBEARER", "client")} == set(front.authenticated)
        assert len(front.authenticated) > 1
        assert 1 == len(endpoint.asked)
