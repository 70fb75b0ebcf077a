"""A secret is planted in every setting that takes one, and all output is searched for it."""

from __future__ import annotations

import asyncio
import base64
import http.client
import logging
import pickle
import time
import traceback
from contextlib import suppress
from urllib.parse import quote, quote_plus

import pytest

from spark_kafka_sink.admin.cluster_check import describe_topics
from spark_kafka_sink.config.config_def import Password
from spark_kafka_sink.config.producer_config import PRODUCER_CONFIG_DEF
from spark_kafka_sink.config.sink_options import SinkOptions
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.model import Node, PartitionAcks, TopicPartition
from spark_kafka_sink.network.authentication.connection_security import (
    ConnectionSecurity,
    read_security,
)
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.spark.sink.partition_writer import KafkaCommitMessage
from spark_kafka_sink.spark.sink.writers import KafkaBatchWriter
from tests.support.security.secure_front import SaslRules, SecureFront, server_context
from tests.support.security.secured import jaas, sasl, tls
from tests.support.security.token_endpoint import TokenEndpoint, jwt

SECRET = "planted secret/+="  # noqa: S105
#: The forms in which it could leak.
FORMS = (
    SECRET,
    repr(SECRET.encode())[2:-1],
    base64.b64encode(SECRET.encode()).decode(),
    base64.b64encode(f"me:{SECRET}".encode()).decode(),
    quote_plus(SECRET),
    quote(SECRET),
    SECRET.encode().hex(),
)
#: Requests a token from an endpoint once.
ENDPOINT = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.client.credentials.client.secret": SECRET,
    "sasl.login.retry.backoff.max.ms": 0,
    "max.block.ms": 100,
}
HANDLER = "sasl.login.callback.handler.class"
MESSAGE = KafkaCommitMessage(
    partition_id=0,
    task_attempt_id=1,
    rows=1,
    acks=(
        (
            TopicPartition("events", 0),
            PartitionAcks(first_offset=0, last_offset=0, records=1, bytes=80),
        ),
    ),
)


@pytest.fixture(scope="module")
def broker():
    with DevBroker(topics={"events": 1}) as started:
        yield started


@pytest.fixture
def front(broker):
    """Return a listener that quotes to a client whatever the client has sent."""
    rules = SaslRules(users={"alice": SECRET}, message=lambda said: f"no: {said!r} {said.decode()}")
    with SecureFront(broker.bootstrap_servers, sasl=rules) as listening:
        yield listening


class Searched:
    """All output, to be searched at the end."""

    def __init__(self) -> None:
        """Start without output."""
        self.texts: list[str] = []

    def add(self, *things: object) -> None:
        """Add the text of objects, and the whole traceback of an error."""
        for thing in things:
            self.texts += [repr(thing), str(thing), f"{thing}"]
            if isinstance(thing, BaseException):
                self.texts.append("".join(traceback.format_exception(thing)))

    def found(self) -> list[str]:
        """Return the output that contains a form of the secret."""
        return [text for text in self.texts if any(form in text for form in FORMS)]


@pytest.fixture
def searched(caplog, capfd):
    """Return a collector of output; logs and prints are searched as well."""
    everything = Searched()
    with caplog.at_level(logging.DEBUG):
        yield everything
    everything.texts += [caplog.text, *capfd.readouterr()]
    assert [] == everything.found()


async def log_in(settings):
    """Begin the exchange of a login, if there is one."""
    security = ConnectionSecurity(settings, time.time)
    try:
        if security.sasl_client is not None:
            await security.sasl_client(Node(1, "localhost", 9))
    finally:
        await security.close()


def use(searched, settings):
    """Use settings as a driver and its tasks do, and collect all output."""
    options = {f"kafka.{name}": value for name, value in settings.items()}
    try:
        parsed = SinkOptions.from_mapping({"topic": "events", **options})
    except KafkaError as error:
        searched.add(error)
        return
    searched.add(parsed, parsed.producer, parsed.producer.security)
    writer = KafkaBatchWriter(parsed, topic="events", report_path=None)
    arrived = pickle.loads(pickle.dumps(writer))  # noqa: S301 -- our own bytes
    searched.add(writer, vars(writer), arrived, vars(arrived))
    arrived.commit([MESSAGE])
    with suppress(KafkaError):
        searched.add(read_security(parsed.producer.security))
    try:
        # As connections do, but without a limit: a driver gives up after max.block.ms.
        asyncio.run(log_in(parsed.producer.security))
    except KafkaError as error:
        searched.add(error)
    try:
        searched.add(describe_topics(parsed.producer, ["events"], is_dry_run=True, timeout=15))
    except KafkaError as error:
        searched.add(error)
    try:
        with KafkaProducer(parsed.producer) as producer:
            future = producer.send("events", b"v")
            searched.add(future, producer)
            searched.add(future.result(60), producer.metrics(), producer.metrics_snapshot())
    except KafkaError as error:
        searched.add(error)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("known", [True, False])
def test_a_password_is_not_shown(searched, front, mechanism, known):
    """A password is shown neither when it is accepted nor when it is refused."""
    if not known:
        front.sasl.users = {"alice": "another"}
    settings = sasl(mechanism, "alice", SECRET)
    use(searched, {"bootstrap.servers": front.bootstrap_servers, **settings})
    assert known == bool(front.authenticated)
    assert any("AuthenticationError" in text for text in searched.texts) != known


@pytest.mark.parametrize(
    "text",
    [
        f'PlainLoginModule required password="{SECRET}"',
        f"PlainLoginModule required {SECRET};",
        f'Module required username="a" password="{SECRET}";',
        SECRET,
    ],
)
def test_a_malformed_login_module_is_not_shown(searched, front, text):
    """A malformed sasl.jaas.config is not quoted."""
    settings = {**sasl("PLAIN", "alice", "x"), "sasl.jaas.config": text}
    use(searched, {"bootstrap.servers": front.bootstrap_servers, **settings})
    assert any("sasl.jaas.config" in text for text in searched.texts)


@pytest.mark.parametrize(
    "name", [key.name for key in PRODUCER_CONFIG_DEF if key.type == "password"]
)
@pytest.mark.parametrize("kind", [str, Password, str.encode])
def test_no_setting_that_takes_a_secret_shows_it(searched, front, certificates, name, kind):
    """Whatever is wrong with such a setting, its value is not shown."""
    front.tls = server_context(certificates.server)
    settings = {
        "bootstrap.servers": front.bootstrap_servers,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "ssl.keystore.type": "PEM",
        "ssl.truststore.type": "PEM",
        name: kind(SECRET),
    }
    use(searched, settings)
    assert any("Error" in text for text in searched.texts)


@pytest.mark.parametrize("store", ["keystore", "truststore"])
def test_the_password_of_a_store_is_not_shown(searched, front, certificates, store):
    """A store's wrong password is not shown."""
    front.tls = server_context(certificates.server)
    file = (certificates.client if store == "keystore" else certificates.authority).pkcs12_file
    settings = {
        "bootstrap.servers": front.bootstrap_servers,
        **sasl("PLAIN", "alice", SECRET),
        **tls(certificates.authority, "SASL_SSL"),
        f"ssl.{store}.type": "PKCS12",
        f"ssl.{store}.location": str(file),
        f"ssl.{store}.password": SECRET,
    }
    if store == "truststore":
        del settings["ssl.truststore.certificates"]
    use(searched, settings)
    assert any("its password is wrong" in text for text in searched.texts)


@pytest.mark.parametrize("form", range(len(FORMS)))
@pytest.mark.parametrize("status", [200, 401, 503])
def test_a_clients_secret_and_its_token_are_not_shown(searched, front, status, form):
    """An endpoint that quotes the secret and a broker that quotes the token leak neither."""
    token = jwt()
    front.sasl.accepts_token = lambda _: False
    with TokenEndpoint() as endpoint:
        endpoint.token = token
        if status != 200:
            answer = {"error": f"{FORMS}", "error_description": FORMS[form]}
            endpoint.answers = [(status, answer)] * 9
        use(
            searched,
            {
                "bootstrap.servers": front.bootstrap_servers,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.token.endpoint.url": endpoint.url,
                "sasl.jaas.config": jaas("OAUTHBEARER", clientId="me", clientSecret=SECRET),
                "sasl.login.retry.backoff.max.ms": 0,
                "max.block.ms": 100,
            },
        )
    assert any("Error" in text for text in searched.texts)
    assert [] == [text for text in searched.texts if token in text]


@pytest.mark.parametrize("form", FORMS)
def test_a_non_http_response_shows_no_secret(searched, front, monkeypatch, form):
    """The part of a non-HTTP response that Python's library quotes shows no secret."""

    def getresponse(_: object) -> None:
        raise http.client.BadStatusLine(f"you said {form}")

    monkeypatch.setattr("http.client.HTTPConnection.getresponse", getresponse)
    with TokenEndpoint() as endpoint:
        use(
            searched,
            {
                **ENDPOINT,
                "bootstrap.servers": front.bootstrap_servers,
                "sasl.oauthbearer.token.endpoint.url": endpoint.url,
                "sasl.oauthbearer.client.credentials.client.id": "me",
            },
        )
    assert any("failed: you said [hidden]" in text for text in searched.texts)


#: URLs that contain a secret, and what is shown of them.
URLS = [
    ("http://localhost:9/?key=PLANTED", "http://localhost:9 failed"),
    ("http://PLANTED@localhost:9/PLANTED", "http://localhost:9 failed"),
    ("http://localhost:PLANTED/", "has a malformed host or port"),
    ("http://localhost:9/PLANTED\x7f", "must not contain spaces, control"),
    ("ftp://PLANTED/", "must be an https"),
]


def use_url(searched, url):
    use(
        searched,
        {
            **ENDPOINT,
            "bootstrap.servers": "localhost:9",
            "sasl.oauthbearer.token.endpoint.url": url,
            "sasl.oauthbearer.client.credentials.client.id": "me",
        },
    )
    assert [] == [text for text in searched.texts if "PLANTED" in text]


@pytest.mark.parametrize(("url", "problem"), URLS)
def test_a_secret_in_a_url_is_not_shown(searched, url, problem):
    """Only scheme and host of a URL are shown."""
    use_url(searched, url)
    assert any(problem in text for text in searched.texts)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        *URLS,
        ("file:///PLANTED", "[hidden] cannot be read: No such file"),
        ("file:///PL%41NTED", "[hidden] cannot be read: No such file"),
    ],
)
def test_a_url_from_a_reference_is_not_shown(searched, monkeypatch, url, problem):
    """A file's path that came from a reference is not shown either."""
    monkeypatch.setenv("SINK_URL", url)
    use_url(searched, "${env:SINK_URL}")
    assert any(problem in text for text in searched.texts)


@pytest.fixture(params=[None, b"garbage"])
def planted_path(request, tmp_path, monkeypatch):
    """Put the path of a file, or of none, into a variable."""
    path = tmp_path / "PLANTED"
    if request.param is not None:
        path.write_bytes(request.param)
    monkeypatch.setenv("SINK_PATH", str(path))


@pytest.mark.parametrize("store", ["truststore", "keystore"])
@pytest.mark.usefixtures("planted_path")
def test_a_path_from_a_reference_is_not_shown(searched, front, store):
    """The location of a secret is part of the reference as much as the secret."""
    settings = {
        "bootstrap.servers": front.bootstrap_servers,
        "security.protocol": "SSL",
        f"ssl.{store}.location": "${env:SINK_PATH}",
        f"ssl.{store}.type": "PEM",
    }
    use(searched, settings)
    assert any(f"ssl.{store}.location [hidden]" in text for text in searched.texts)
    assert [] == [text for text in searched.texts if "PLANTED" in text]


def test_a_username_from_a_reference_is_not_shown(searched, front, monkeypatch):
    """A file that is read as the username is not in the error of the failed login."""
    monkeypatch.setenv("SINK_USER", SECRET)
    settings = sasl("PLAIN", "${env:SINK_USER}", "another")
    use(searched, {"bootstrap.servers": front.bootstrap_servers, **settings})
    assert any("authentication of user '[hidden]' failed" in text for text in searched.texts)


def test_a_client_id_from_a_reference_is_not_shown(searched, front, monkeypatch):
    """A client id is not in the error of a token endpoint that refuses it."""
    monkeypatch.setenv("SINK_ID", SECRET)
    with TokenEndpoint() as endpoint:
        endpoint.answers = [(401, {"error": "invalid_client"})] * 9
        use(
            searched,
            {
                **ENDPOINT,
                "bootstrap.servers": front.bootstrap_servers,
                "sasl.oauthbearer.token.endpoint.url": endpoint.url,
                "sasl.oauthbearer.client.credentials.client.id": "${env:SINK_ID}",
            },
        )
    assert any("refused the client '[hidden]' with 401" in text for text in searched.texts)


@pytest.mark.parametrize("name", ["ssl.enabled.protocols", "ssl.cipher.suites"])
def test_references_in_lists_are_not_resolved(searched, front, monkeypatch, name):
    """Something that could only be shown in an error is not read at all."""
    monkeypatch.setenv("SINK_LIST", SECRET)
    settings = {"security.protocol": "SSL", name: "${env:SINK_LIST}"}
    use(searched, {"bootstrap.servers": front.bootstrap_servers, **settings})
    assert any(f"{name} does not accept ${{}} reference" in text for text in searched.texts)


def test_the_error_of_a_token_function_is_not_quoted(searched, front):
    """The error of a token function is the cause of ours, which does not quote it."""
    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        HANDLER: "tests.support.security.token_endpoint:jwt",
        "bootstrap.servers": front.bootstrap_servers,
    }
    front.sasl.message = lambda said: said.decode()
    front.sasl.accepts_token = lambda _: False
    use(searched, settings)
    assert any("OAUTHBEARER authentication of user 'client' failed" in it for it in searched.texts)
    assert [] == [text for text in searched.texts if "eyJ" in text]


def test_the_reprs_of_live_objects_show_no_secret(searched, front):
    """Clients, exchanges and requests hide what they hold, in case they are logged."""
    parsed = SinkOptions.from_mapping(
        {
            f"kafka.{name}": value
            for name, value in {
                "bootstrap.servers": front.bootstrap_servers,
                **sasl("PLAIN", "alice", SECRET),
            }.items()
        }
    )

    async def run() -> None:
        security = ConnectionSecurity(parsed.producer.security, lambda: 0.0)
        assert security.sasl_client is not None
        client = await security.sasl_client(None)
        searched.add(security, security._login, client)
        await security.close()

    asyncio.run(run())


def test_a_planted_secret_is_found():
    """The search finds the secret in every form."""
    for form in FORMS:
        everything = Searched()
        everything.add(ValueError(f"x{form}y"))
        assert everything.found()
