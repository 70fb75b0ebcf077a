"""The listener options of the command line, and errors in them."""

from __future__ import annotations

import argparse
import json

import pytest

from spark_kafka_sink.devbroker.net.listener import (
    KEY_PASSWORD_VARIABLE,
    USERS_VARIABLE,
    Listener,
    add_listener_arguments,
    exposure_warnings,
    listeners_of,
)
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.model import SecurityProtocol
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from spark_kafka_sink.protocol.messages.sasl_handshake import SaslHandshakeRequest
from spark_kafka_sink.security.sasl import SaslMechanism
from spark_kafka_sink.security.tls import ClientAuth
from tests.support.devbroker.broker_process import broker_process
from tests.support.network.raw_client import RawClient

USERS = json.dumps({"alice": "pl4nted"})


def listeners(*arguments, **environment):
    parser = argparse.ArgumentParser()
    add_listener_arguments(parser)
    return listeners_of(parser.parse_args(arguments), environment)


def test_without_options_there_is_one_plain_listener():
    """The default is Kafka's port on the loopback address."""
    assert [Listener(port=9092)] == listeners()


def test_host_and_port_are_a_plain_listeners():
    """The short options define a single plaintext listener."""
    arguments = ["--host", "::1", "--port", "1", "--advertised-host", "h"]
    assert [Listener(host="::1", port=1, advertised_host="h")] == listeners(*arguments)


@pytest.mark.parametrize("port", ["-5", "65536", "99999"])
def test_a_port_out_of_range_is_rejected(port, capsys):
    """A port outside 0 to 65535 is an error; the system would listen on another one."""
    with pytest.raises(SystemExit):
        listeners(f"--port={port}")
    assert f"--port: must be from 0 to 65535, not {port}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("host", "protocol", "client_auth", "is_open"),
    [
        ("127.0.0.1", "PLAINTEXT", "none", False),
        ("127.1.2.3", "PLAINTEXT", "none", False),
        ("localhost", "PLAINTEXT", "none", False),
        ("::1", "SSL", "none", False),
        ("0.0.0.0", "PLAINTEXT", "none", True),  # noqa: S104
        ("", "PLAINTEXT", "none", True),
        ("[::]", "SSL", "none", True),
        ("example.org", "SSL", "requested", True),
        ("10.0.0.1", "SSL", "required", False),
        ("0.0.0.0", "SASL_PLAINTEXT", "none", False),  # noqa: S104
        ("[::]", "SASL_SSL", "none", False),
    ],
)
def test_a_listener_without_authentication_causes_a_warning(host, protocol, client_auth, is_open):
    """Only SASL or required client certificates protect an address other than loopback."""
    made = listeners(
        *("--listener", f"{protocol}://{host}:9092", "--tls-keystore", "k.pem"),
        *("--tls-truststore", "t.pem", "--tls-client-auth", client_auth),
        DEVBROKER_SASL_USERS=USERS,
    )
    expected = [True] if is_open else []
    assert expected == [
        warning.startswith(f"{host}:9092 ({protocol}) accepts clients from other machines")
        for warning in exposure_warnings(made)
    ]


def test_listeners_of_each_kind(tmp_path):
    """All listeners share one key store, one trust store and one set of users."""
    users = tmp_path / "users.json"
    users.write_text(USERS)
    made = listeners(
        *(
            argument
            for number, protocol in enumerate(SecurityProtocol)
            for argument in ("--listener", f"{protocol}://[::1]:{number}")
        ),
        *("--tls-keystore", "k.pem", "--tls-truststore", "t.pem", "--tls-client-auth", "required"),
        *("--sasl-users-file", str(users), "--sasl-mechanism", "PLAIN"),
        *("--sasl-max-reauth-ms", "5000"),
        **{KEY_PASSWORD_VARIABLE: "key's"},
    )

    assert list(SecurityProtocol) == [each.security_protocol for each in made]
    assert [("::1", 0), ("::1", 1), ("::1", 2), ("::1", 3)] == [(it.host, it.port) for it in made]
    assert [None, made[3].tls, None, made[3].tls] == [each.tls for each in made]
    assert [None, None, made[3].sasl, made[3].sasl] == [each.sasl for each in made]
    assert ClientAuth.REQUIRED is made[1].client_auth
    assert ("k.pem", "t.pem", "key's") == (
        made[1].tls.keystore_location,
        made[1].tls.truststore_location,
        made[1].tls.key_password,
    )
    assert ({"alice": "pl4nted"}, (SaslMechanism.PLAIN,), 5000) == (
        made[3].sasl.users,
        made[3].sasl.mechanisms,
        made[3].sasl.max_reauth_ms,
    )


def test_users_may_be_in_the_environment():
    """Without a users file, the users come from the environment variable."""
    (made,) = listeners("--listener", "SASL_PLAINTEXT://h:1", **{USERS_VARIABLE: USERS})
    assert {"alice": "pl4nted"} == made.sasl.users


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--listener", "h:1"], "PROTOCOL://HOST:PORT"),
        (["--listener", "SSL://h"], "PROTOCOL://HOST:PORT"),
        (["--listener", "SSL://h:x"], "PROTOCOL://HOST:PORT"),
        (["--listener", "SSL://h:65536"], "PROTOCOL://HOST:PORT"),
        (["--listener", "TLS://h:1"], "one of PLAINTEXT, SSL"),
        (["--listener", "SSL://h:1"], "needs --tls-keystore"),
        (
            ["--listener", "SSL://h:1", "--tls-keystore", "k", "--tls-client-auth", "required"],
            "needs --tls-truststore",
        ),
        (["--listener", "SASL_PLAINTEXT://h:1"], "needs at least one user"),
    ],
)
def test_contradictory_options_are_refused(arguments, reason):
    """For a listener that is not possible the error names the option or form to use."""
    with pytest.raises(ConfigError, match=reason):
        listeners(*arguments)


@pytest.mark.slow
def test_the_process_listens_with_sasl_and_shows_no_secret():
    """The first line names the listeners, a client can authenticate, and no password is printed."""
    arguments = [
        "--listener",
        "SASL_PLAINTEXT://127.0.0.1:0",
        "--listener",
        "PLAINTEXT://127.0.0.1:0",
    ]
    with broker_process(*arguments, **{USERS_VARIABLE: USERS}) as process:
        line = process.stdout.readline()
        first, _, second = line.partition(",")
        assert first.startswith("listening on SASL_PLAINTEXT://127.0.0.1:")
        assert second.startswith("PLAINTEXT://127.0.0.1:")
        with RawClient(int(first.rpartition(":")[2])) as client:
            client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
            answer = client.ask(SaslAuthenticateRequest(auth_bytes=b"\0alice\0pl4nted"), 2)
        process.terminate()
        output, errors = process.communicate(timeout=60)

    assert ErrorCode.NONE == answer.error_code
    assert (0, "", "") == (process.returncode, output, errors)


@pytest.mark.slow
def test_the_process_warns_of_a_listener_without_authentication():
    """The warning goes to standard error and does not change standard output."""
    with broker_process("--host", "0.0.0.0", "--port", "0") as process:  # noqa: S104
        line = process.stdout.readline()
        process.terminate()
        output, errors = process.communicate(timeout=60)

    assert (True, 0, "") == (line.startswith("listening on "), process.returncode, output)
    assert errors.startswith("warning: 0.0.0.0:0 (PLAINTEXT) accepts clients from other machines")


@pytest.mark.slow
def test_the_process_says_what_is_wrong_with_its_users():
    """Users that cannot be parsed cause one line of error, which does not show them."""
    arguments = ["--listener", "SASL_PLAINTEXT://127.0.0.1:0"]
    with broker_process(*arguments, **{USERS_VARIABLE: "alice=pl4nted"}) as process:
        output, errors = process.communicate(timeout=60)

    assert (1, "") == (process.returncode, output)
    assert errors.startswith(f"cannot start: {USERS_VARIABLE} is not JSON")
    assert "pl4nted" not in errors
