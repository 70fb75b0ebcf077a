"""OAUTHBEARER tokens from files and functions, and how brokers accept them."""

from __future__ import annotations

import os
import threading
import time

import pytest

from spark_kafka_sink.config.allow_lists import PATHS
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import AuthenticationError, ConfigError, NetworkError
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from tests.support.security.secure_front import SaslRules, SecureFront
from tests.support.security.secured import jaas
from tests.support.security.token_endpoint import jwt
from tests.support.security.token_exchanges import (
    BEARER,
    CREDENTIALS,
    HANDLER,
    URL,
    configured,
    refusal,
    shown,
)


def test_a_token_is_read_from_a_file_each_time(tmp_path):
    """A token without an expiry is used once, so a file that was replaced is read again."""
    file = tmp_path / "token"
    file.write_text("opaque-1\n")
    assert ["n,,\x01auth=Bearer opaque-1\x01\x01"] == shown({URL: file.as_uri()})
    file.write_text("planted token")
    assert f"{file}: the token is empty, or contains" in refusal(
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


def test_a_token_is_read_only_from_an_allowed_path(tmp_path, monkeypatch):
    """A path that SPARK_KAFKA_SINK_ALLOWED_PATHS does not list is not read."""
    (tmp_path / "token").write_text("opaque")
    monkeypatch.setenv(PATHS, "/nowhere")
    assert "does not allow it in this process" in refusal(
        ConfigError, {URL: (tmp_path / "token").as_uri()}
    )
    monkeypatch.setenv(PATHS, str(tmp_path))
    assert ["n,,\x01auth=Bearer opaque\x01\x01"] == shown({URL: (tmp_path / "token").as_uri()})


def test_a_function_provides_tokens():
    """A function is called off the event loop, and may return the token's expiry as well."""
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


def test_a_function_may_be_given_by_its_import_path():
    """A name `package.module:attribute` stands for a function, as is necessary under Spark."""
    [said] = shown({HANDLER: "tests.support.security.token_endpoint:jwt"})
    assert said.startswith("n,,\x01auth=Bearer ey")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("tests.support.security.token_endpoint:nothing", "cannot be imported: AttributeError"),
        ("tests.support.security.secured:MODULES", "cannot be called"),
    ],
)
def test_a_function_that_cannot_be_imported_is_an_error_at_once(name, problem):
    """Creating a producer raises the error."""
    with pytest.raises(ConfigError, match=f"^{HANDLER}: '{name}' {problem}"):
        KafkaProducer(configured({HANDLER: name}))


@pytest.mark.parametrize("kind", [RuntimeError, FileNotFoundError])
def test_a_function_that_raises_is_not_quoted(kind):
    """A function's error may contain anything, so it is the cause and is not quoted."""

    def give() -> str:
        raise kind("planted-secret")

    with pytest.raises(
        NetworkError, match=f"raised {kind.__name__} instead of returning a token"
    ) as it:
        shown({HANDLER: give})
    assert "planted" not in str(it.value)
    assert kind is type(it.value.__cause__)
    assert it.value.is_from_user_code


@pytest.mark.parametrize("given", [None, 1, b"x", ("a",), ("a", "b"), ("a", True)])
def test_the_result_of_a_function_is_validated(given):
    """Only a string, or a string and a time, is a token."""
    message = refusal(AuthenticationError, {HANDLER: lambda: given})
    assert "must return a token as str, or a tuple of the token and its expiry" in message


@pytest.mark.parametrize("expires_at", [float("nan"), 10**309])
def test_a_function_whose_token_expires_at_no_time_fails_the_login(expires_at):
    """The login says so at once; otherwise the client could not plan when to ask again."""
    message = refusal(AuthenticationError, {HANDLER: lambda: ("opaque", expires_at)})
    assert "opaque" not in message
    assert "no time" in message or "too large" in message


def test_an_expired_token_is_not_sent():
    """A token that arrives expired is refused with its subject, before a broker gets it."""
    message = refusal(AuthenticationError, {HANDLER: lambda: jwt("alice", lifetime=-100)})
    assert message.startswith("the token for 'alice' (OAUTHBEARER) expired 10")


def test_another_claim_may_be_the_subject():
    """sasl.oauthbearer.sub.claim.name determines the subject that errors name."""
    message = refusal(
        AuthenticationError,
        {HANDLER: lambda: jwt("alice", lifetime=-100)},
        sasl_oauthbearer_sub_claim_name="azp",
    )
    assert message.startswith("the token for 'unknown' (OAUTHBEARER)")


def test_an_unsecured_token_is_made_without_another_source():
    """Without another source the token is made from sasl.jaas.config, as in Java."""
    module = jaas("OAUTHBEARER", unsecuredLoginStringClaim_sub="alice")
    [said] = shown({"sasl.jaas.config": module})
    assert said.startswith("n,,\x01auth=Bearer ey")


def test_a_refused_token_fails_the_producer():
    """The error has the broker's reason, and not the token."""
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
        f"{front.bootstrap_servers}: OAUTHBEARER authentication of user 'alice' failed: "
        '{invalid_token} ({"status":"invalid_token"}). Check that the token is meant for this '
        "cluster and has not expired, and the clocks"
    ) == str(caught.value).partition(". The token says: end 2")[0]


def test_a_producer_sends_its_token_on_every_connection(endpoint):
    """A producer fetches its token once, and presents it on every connection."""
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
