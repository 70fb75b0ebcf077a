"""Users of SCRAM that administrators create while the broker runs."""

from __future__ import annotations

import hashlib
import json

import pytest

from spark_kafka_sink import AdminClient
from spark_kafka_sink.devbroker import DevBroker, Listener
from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings
from spark_kafka_sink.devbroker.brokers.clusters import cluster_of
from spark_kafka_sink.errors import AuthenticationError, ConfigError
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from spark_kafka_sink.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from tests.support.devbroker.broker_requests import NOW, ask, broker_with
from tests.support.network.raw_client import RawClient
from tests.support.security.secure_listeners import sasl

SHA_256, SHA_512 = 1, 2
HASHES = {SHA_256: "sha256", SHA_512: "sha512"}
PASSWORD = "a new password"  # noqa: S105 - only for the tests' own broker


def upsertion(name, mechanism=SHA_256, *, iterations=4096, password=PASSWORD):
    name_of_hash = HASHES.get(mechanism, "sha256")
    salted = hashlib.pbkdf2_hmac(name_of_hash, password.encode(), b"salt", min(iterations, 4096))
    return ScramCredentialUpsertion(
        name=name,
        mechanism=mechanism,
        iterations=iterations,
        salt=b"salt",
        salted_password=salted,
    )


def deletion(name, mechanism=SHA_256):
    return ScramCredentialDeletion(name=name, mechanism=mechanism)


def request_of(*items):
    return AlterUserScramCredentialsRequest(
        deletions=tuple(item for item in items if isinstance(item, ScramCredentialDeletion)),
        upsertions=tuple(item for item in items if isinstance(item, ScramCredentialUpsertion)),
    )


def altered(broker, *items):
    results = ask(broker, request_of(*items)).results
    return {result.user: ErrorCode(result.error_code).name for result in results}


def described(broker, *names):
    users = tuple(UserName(name=name) for name in names) or None
    answer = ask(broker, DescribeUserScramCredentialsRequest(users=users))
    return {
        result.user: ErrorCode(result.error_code).name
        if result.error_code
        else [(info.mechanism, info.iterations) for info in result.credential_infos]
        for result in answer.results
    }


@pytest.fixture
def broker():
    return broker_with()


def test_users_are_described_with_their_mechanisms(broker):
    """Each user has its mechanisms and iterations, and no key is returned."""
    assert {} == described(broker)
    assert {"a": "NONE", "b": "NONE"} == altered(
        broker, upsertion("b", SHA_512, iterations=8192), upsertion("a")
    )
    assert {"a": "NONE"} == altered(broker, upsertion("a", SHA_512))

    assert {"a": [(SHA_256, 4096), (SHA_512, 4096)], "b": [(SHA_512, 8192)]} == described(broker)
    assert {"b": [(SHA_512, 8192)]} == described(broker, "b")


def test_unknown_and_repeated_users_have_errors(broker):
    """Each user of a request is described by itself."""
    altered(broker, upsertion("a"), upsertion("b"))

    assert {
        "a": [(SHA_256, 4096)],
        "b": "DUPLICATE_RESOURCE",
        "c": "RESOURCE_NOT_FOUND",
    } == described(broker, "a", "b", "b", "c")


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([upsertion("")], {"": "UNACCEPTABLE_CREDENTIAL"}),
        ([upsertion("a", iterations=4095)], {"a": "UNACCEPTABLE_CREDENTIAL"}),
        ([upsertion("a", iterations=16_385)], {"a": "UNACCEPTABLE_CREDENTIAL"}),
        ([upsertion("a", iterations=16_384)], {"a": "NONE"}),
        ([upsertion("a", 3)], {"a": "UNSUPPORTED_SASL_MECHANISM"}),
        ([deletion("a")], {"a": "RESOURCE_NOT_FOUND"}),
        ([deletion("known", SHA_512)], {"known": "RESOURCE_NOT_FOUND"}),
        ([deletion("known"), upsertion("known")], {"known": "DUPLICATE_RESOURCE"}),
        ([upsertion("a"), upsertion("a", SHA_512)], {"a": "DUPLICATE_RESOURCE"}),
        ([upsertion("a"), upsertion("b", 3)], {"a": "NONE", "b": "UNSUPPORTED_SASL_MECHANISM"}),
        ([deletion("known")], {"known": "NONE"}),
    ],
)
def test_each_change_has_its_result(broker, items, expected):
    """An invalid change is refused, and the others of the request take effect."""
    altered(broker, upsertion("known"))
    before = described(broker)

    assert expected == altered(broker, *items)

    changed = {user for user, result in expected.items() if result == "NONE"}
    after = described(broker)
    assert changed == {
        user for user in before.keys() | expected if before.get(user) != after.get(user)
    }


def test_a_user_logs_in_with_the_password_that_was_set_last():
    """A login uses the stored credential, before that of the listener's settings."""
    listeners = [Listener(), Listener(security_protocol="SASL_PLAINTEXT", sasl=sasl())]
    with DevBroker(listeners=listeners) as broker, RawClient(broker.port) as administrator:

        def alter(*items):
            results = administrator.ask(request_of(*items), 0).results
            assert [0] * len(items) == [result.error_code for result in results]

        def logs_in(user, password, mechanism="SCRAM-SHA-256"):
            return _logs_in(broker.address("SASL_PLAINTEXT"), user, password, mechanism)

        assert not logs_in("carol", PASSWORD)
        alter(upsertion("carol"))
        assert logs_in("carol", PASSWORD)
        assert not logs_in("carol", "another password")
        assert not logs_in("carol", PASSWORD, "SCRAM-SHA-512")
        alter(upsertion("bob"))
        assert logs_in("bob", PASSWORD)
        alter(deletion("bob"), deletion("carol"))
        assert logs_in("bob", "bob's secret")
        assert not logs_in("carol", PASSWORD)


def _logs_in(servers, user, password, mechanism):
    login = "org.apache.kafka.common.security.scram.ScramLoginModule"
    settings = {
        "bootstrap.servers": servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'{login} required username="{user}" password="{password}";',
    }
    with AdminClient(settings) as admin:
        try:
            admin.list_topics(timeout=60)
        except AuthenticationError:
            return False
    return True


def opened(path):
    (broker,) = cluster_of(BrokerSettings(), 1, data_dir=path).brokers
    broker.cluster.open(NOW)
    return broker


def test_users_survive_a_restart(tmp_path):
    """Credentials are in the data directory, without the password."""
    broker = opened(tmp_path / "data")
    altered(broker, upsertion("a"), upsertion("b", SHA_512))
    before = dict(broker.cluster.scram_users)
    broker.cluster.close(NOW)
    assert PASSWORD not in (tmp_path / "data" / "cluster.json").read_text()

    broker = opened(tmp_path / "data")

    assert before == broker.cluster.scram_users
    broker.cluster.close(NOW)


@pytest.mark.parametrize("stored", [{"user": "a"}, {"user": "a", "mechanism": "PLAIN"}])
def test_a_stored_user_that_is_malformed_stops_the_broker(tmp_path, stored):
    """A cluster with a credential that cannot be read is not opened without it."""
    opened(tmp_path / "data").cluster.close(NOW)
    path = tmp_path / "data" / "cluster.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"scram_users": [stored]}))

    with pytest.raises(ConfigError, match=r"cluster\.json cannot be read"):
        opened(tmp_path / "data")


def test_nothing_is_changed_on_a_full_disk(tmp_path, monkeypatch):
    """If the credentials cannot be stored, each user has the error."""
    broker = opened(tmp_path / "data")

    def fail(_cluster):
        raise OSError("no space")

    monkeypatch.setattr(broker.cluster.logs.data, "write_cluster", fail)
    results = altered(broker, upsertion("a"), upsertion("b"))
    monkeypatch.undo()

    assert {"a": "KAFKA_STORAGE_ERROR", "b": "KAFKA_STORAGE_ERROR"} == results
    assert {} == described(broker)
    broker.cluster.close(NOW)
