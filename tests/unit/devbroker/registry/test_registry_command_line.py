"""The embedded Schema Registry on the command line."""

from __future__ import annotations

import base64
import json
import signal

import pytest

from spark_kafka_sink.devbroker.__main__ import main, parser
from spark_kafka_sink.devbroker.net.listener import registry_listeners_of
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.model import SecurityProtocol
from tests.support.devbroker.broker_process import broker_process
from tests.support.devbroker.registry_calls import Answer, call, record
from tests.support.security.secure_listeners import PASSWORD, USER

USERS = {"DEVBROKER_SASL_USERS": json.dumps({USER: PASSWORD})}


def listeners(*arguments):
    """Return the listeners of the registry that some arguments ask for."""
    return registry_listeners_of(parser().parse_args(arguments), USERS)


def test_the_command_prints_the_address(tmp_path):
    """A second line has the registry's address, and its schemas survive in the data directory."""
    arguments = ("--port", "0", "--schema-registry", "0", "--data-dir", str(tmp_path / "data"))
    for expected in ([], ["orders"]):
        with broker_process(*arguments) as process:
            assert process.stdout.readline().startswith("listening on 127.0.0.1:")
            words, _, url = process.stdout.readline().strip().rpartition(" ")
            assert "schema registry at" == words
            assert Answer(200, expected) == call(url, "GET /subjects")
            call(url, "POST /subjects/orders/versions", {"schema": record("id:long")})
            process.send_signal(signal.SIGTERM)
            assert 0 == process.wait()


def test_without_the_option_there_is_no_registry():
    """The registry runs only on request."""
    assert [] == listeners()


def test_a_port_is_one_of_the_host():
    """A number is a port of --host, without TLS or credentials."""
    (listener,) = listeners("--host", "::1", "--schema-registry", "8081")
    assert ("::1", 8081, SecurityProtocol.PLAINTEXT) == (
        listener.host,
        listener.port,
        listener.security_protocol,
    )


def test_an_address_may_need_credentials():
    """With SASL the users are those of the broker, for basic authentication."""
    (listener,) = listeners("--schema-registry", "SASL_PLAINTEXT://localhost:8081")
    assert ({USER: PASSWORD}, ("PLAIN",)) == (listener.sasl.users, listener.sasl.mechanisms)
    arguments = ("--port", "0", "--schema-registry", "SASL_PLAINTEXT://127.0.0.1:0")
    with broker_process(*arguments, **USERS) as process:
        process.stdout.readline()
        url = process.stdout.readline().split()[-1]
        assert 401 == call(url, "GET /subjects").status
        encoded = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        headers = {"Authorization": f"Basic {encoded}"}
        assert Answer(200, []) == call(url, "GET /subjects", **headers)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("somewhere", "--schema-registry somewhere: it must be PROTOCOL://HOST:PORT"),
        ("HTTP://localhost:1", "--schema-registry HTTP://localhost:1: the protocol must be one of"),
        ("SSL://localhost:1", "needs --tls-keystore"),
    ],
)
def test_a_wrong_address_is_refused(address, message):
    """An address that cannot be used is an error that names the option."""
    with pytest.raises(ConfigError, match=message):
        listeners("--schema-registry", address)


def test_a_port_must_be_one(capsys):
    """A port that is too large is an error before anything starts."""
    assert 1 == main(["--schema-registry", "65536"])
    assert "--schema-registry PLAINTEXT://127.0.0.1:65536: it must be" in capsys.readouterr().err


def test_a_registry_for_others_causes_a_warning():
    """A registry that other machines can reach without credentials is warned of."""
    with broker_process("--port", "0", "--schema-registry", "PLAINTEXT://0.0.0.0:0") as process:
        assert "accepts clients from other machines" in process.stderr.readline()
