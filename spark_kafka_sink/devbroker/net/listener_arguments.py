"""Listeners from the command line. Secrets come only from files or the environment.

    --listener SASL_SSL://127.0.0.1:9093 --tls-keystore server.pem --sasl-users-file users.json

The TLS and SASL options apply to all listeners that use TLS or SASL.
"""

from __future__ import annotations

import argparse
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.net.listener import (
    LOOPBACK,
    MAX_PORT,
    WITH_SASL,
    WITH_TLS,
    Listener,
)
from spark_kafka_sink.devbroker.net.sasl_settings import (
    MECHANISMS_WITH_PASSWORDS,
    SERVED_MECHANISMS,
    SaslSettings,
    read_users,
)
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.model import SecurityProtocol, host_and_port
from spark_kafka_sink.security.key_stores import PEM
from spark_kafka_sink.security.sasl import SaslMechanism
from spark_kafka_sink.security.tls import ClientAuth, TlsSettings

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterable, Mapping

USERS_VARIABLE = "DEVBROKER_SASL_USERS"
KEY_PASSWORD_VARIABLE = "DEVBROKER_TLS_KEY_PASSWORD"  # noqa: S105 - where to find it


def add_listener_arguments(parser: ArgumentParser) -> None:
    """Add the options of this module to a parser."""
    parser.add_argument(
        "--host", default=LOOPBACK, help="address to listen on (default: %(default)s)"
    )
    parser.add_argument(
        "--port",
        type=_port,
        default=9092,
        help="port to listen on; 0 means any free port (default: %(default)s)",
    )
    parser.add_argument("--advertised-host", help="host to advertise to clients (default: --host)")
    parser.add_argument(
        "--listener",
        action="append",
        default=[],
        metavar="PROTOCOL://HOST:PORT",
        help="listen on this address, instead of --host and --port; may be given several times; "
        f"PROTOCOL is one of {', '.join(SecurityProtocol)}",
    )
    parser.add_argument(
        "--tls-keystore",
        metavar="FILE",
        help="PEM file with the private key and its certificate chain; the password of the key, if "
        f"it has one, is read from the environment variable {KEY_PASSWORD_VARIABLE}",
    )
    parser.add_argument(
        "--tls-truststore",
        metavar="FILE",
        help="PEM file with the CA certificates that sign the certificates of clients",
    )
    parser.add_argument(
        "--tls-client-auth",
        choices=[word.value for word in ClientAuth],
        default=ClientAuth.NONE.value,
        help="whether to request or require client certificates (default: %(default)s)",
    )
    parser.add_argument(
        "--sasl-mechanism",
        action="append",
        default=[],
        choices=[mechanism.value for mechanism in SERVED_MECHANISMS],
        help="SASL mechanism to enable; may be given several times (default: PLAIN and both SCRAM "
        "mechanisms); OAUTHBEARER accepts unsigned tokens",
    )
    parser.add_argument(
        "--sasl-users-file",
        metavar="FILE",
        help='JSON file with users and passwords: {"user": "password"} (default: the value of the '
        f"environment variable {USERS_VARIABLE})",
    )
    parser.add_argument(
        "--sasl-max-reauth-ms",
        type=int,
        default=0,
        metavar="MS",
        help="time after which clients must re-authenticate, in milliseconds; 0 means never "
        "(default: %(default)s)",
    )


def listeners_of(arguments: Namespace, environment: Mapping[str, str]) -> list[Listener]:
    """Build the requested listeners.

    Raises ConfigError for contradictory options, OSError for files that cannot be read. Neither
    error shows a secret.
    """
    if not arguments.listener:
        return [
            Listener(
                host=arguments.host, port=arguments.port, advertised_host=arguments.advertised_host
            )
        ]
    addresses = [_parse_listener(text) for text in arguments.listener]
    protocols = {protocol for protocol, _, _ in addresses}
    tls = _tls(arguments, environment) if protocols & WITH_TLS else None
    sasl = _sasl(arguments, environment) if protocols & WITH_SASL else None
    return [
        Listener(
            security_protocol=protocol,
            host=host,
            port=port,
            advertised_host=arguments.advertised_host,
            tls=tls if protocol in WITH_TLS else None,
            client_auth=ClientAuth(arguments.tls_client_auth),
            sasl=sasl if protocol in WITH_SASL else None,
        )
        for protocol, host, port in addresses
    ]


def exposure_warnings(listeners: Iterable[Listener]) -> list[str]:
    """Return a warning for each listener that other machines can reach without authenticating."""
    return [
        f"{host_and_port(listener.host, listener.port)} ({listener.security_protocol}) accepts "
        "clients from other machines without authentication, so anyone can read and write: listen "
        "on 127.0.0.1, or use --listener with SASL_SSL"
        for listener in listeners
        if listener.sasl is None
        and listener.client_auth is not ClientAuth.REQUIRED
        and not _is_loopback(listener.host)
    ]


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= MAX_PORT:
        raise argparse.ArgumentTypeError(f"must be from 0 to {MAX_PORT}, not {port}")
    return port


def _parse_listener(text: str) -> tuple[SecurityProtocol, str, int]:
    protocol, separator, address = text.partition("://")
    host, colon, port = address.rpartition(":")
    if not separator or not colon or not port.isdecimal() or int(port) > MAX_PORT:
        raise ConfigError(f"--listener {text}: it must be PROTOCOL://HOST:PORT")
    try:
        return SecurityProtocol(protocol), host.strip("[]"), int(port)
    except ValueError:
        raise ConfigError(
            f"--listener {text}: the protocol must be one of {', '.join(SecurityProtocol)}"
        ) from None


def _tls(arguments: Namespace, environment: Mapping[str, str]) -> TlsSettings:
    if arguments.tls_keystore is None:
        raise ConfigError("a listener with TLS needs --tls-keystore")
    if arguments.tls_client_auth != ClientAuth.NONE and arguments.tls_truststore is None:
        raise ConfigError("--tls-client-auth needs --tls-truststore")
    return TlsSettings(
        keystore_type=PEM,
        keystore_location=arguments.tls_keystore,
        key_password=environment.get(KEY_PASSWORD_VARIABLE),
        truststore_type=PEM,
        truststore_location=arguments.tls_truststore,
    )


def _sasl(arguments: Namespace, environment: Mapping[str, str]) -> SaslSettings:
    users: dict[str, str] = {}
    if arguments.sasl_users_file is not None:
        text = Path(arguments.sasl_users_file).read_text(encoding="utf-8", errors="replace")
        users = read_users(text, arguments.sasl_users_file)
    elif USERS_VARIABLE in environment:
        users = read_users(environment[USERS_VARIABLE], USERS_VARIABLE)
    mechanisms = tuple(SaslMechanism(name) for name in arguments.sasl_mechanism)
    return SaslSettings(
        users=users,
        mechanisms=mechanisms or MECHANISMS_WITH_PASSWORDS,
        max_reauth_ms=arguments.sasl_max_reauth_ms,
    )
