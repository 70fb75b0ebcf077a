"""An endpoint for clients of a broker: its address, and how connections to it are secured.

The names are Kafka's: `listeners`, `advertised.listeners`, `listener.security.protocol.map`. A TLS
listener presents the certificate of its key store, and checks client certificates according to
`client_auth`.

On the command line, secrets come only from files or the environment, and the TLS and SASL options
apply to all listeners that use TLS or SASL:

    --listener SASL_SSL://127.0.0.1:9093 --tls-keystore server.pem --sasl-users-file users.json
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.net.sasl_servers import TokenRules
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.model import SecurityProtocol, host_and_port
from spark_kafka_sink.security.sasl import SaslMechanism
from spark_kafka_sink.security.scram import MIN_ITERATIONS
from spark_kafka_sink.security.tls import PEM, ClientAuth, TlsSettings

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterable, Mapping, Sequence

#: The supported mechanisms; Kerberos needs a KDC and is left to real brokers.
SERVED_MECHANISMS = tuple(
    mechanism for mechanism in SaslMechanism if mechanism is not SaslMechanism.GSSAPI
)
MECHANISMS_WITH_PASSWORDS = (
    SaslMechanism.PLAIN,
    SaslMechanism.SCRAM_SHA_256,
    SaslMechanism.SCRAM_SHA_512,
)
LOOPBACK = "127.0.0.1"
MAX_PORT = 65_535
WITH_TLS = frozenset({SecurityProtocol.SSL, SecurityProtocol.SASL_SSL})
WITH_SASL = frozenset({SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL})
USERS_VARIABLE = "DEVBROKER_SASL_USERS"
KEY_PASSWORD_VARIABLE = "DEVBROKER_TLS_KEY_PASSWORD"  # noqa: S105 - where to find it


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslSettings:
    """Users and mechanisms, named as Kafka's broker settings; passwords are not in the repr.

    Raises ConfigError for unsupported mechanisms, and for users without a password.

    >>> SaslSettings(users={"alice": "her password"}, mechanisms=("PLAIN",))  # no password is shown
    SaslSettings(mechanisms=...
    """

    #: Passwords by user, for PLAIN and SCRAM.
    users: Mapping[str, str] = field(repr=False, default_factory=dict)
    #: sasl.enabled.mechanisms. OAUTHBEARER accepts unsigned tokens.
    mechanisms: Sequence[SaslMechanism | str] = MECHANISMS_WITH_PASSWORDS
    #: How long a session lasts until the client must re-authenticate (connections.max.reauth.ms,
    #: KIP-368). 0 for no limit other than the lifetime of its token.
    max_reauth_ms: int = 0
    #: Iterations of SCRAM's key derivation.
    scram_iterations: int = MIN_ITERATIONS
    #: Largest request of a client that has not authenticated (sasl.server.max.receive.size).
    max_receive_bytes: int = 512 * 1024
    #: Delay of the response to a failed authentication, which slows down password guessing
    #: (connection.failed.authentication.delay.ms).
    failed_authentication_delay_ms: int = 100
    #: The requirements on an OAUTHBEARER token.
    tokens: TokenRules = field(default_factory=TokenRules)

    def __post_init__(self) -> None:
        """Convert mechanism names to mechanisms; raise ConfigError for invalid settings."""
        known = ", ".join(SERVED_MECHANISMS)
        unknown = [mechanism for mechanism in self.mechanisms if mechanism not in SERVED_MECHANISMS]
        if unknown:
            raise ConfigError(
                f"sasl.enabled.mechanisms: {str(unknown[0])!r} is not supported; use {known}"
            )
        mechanisms = tuple(SaslMechanism(mechanism) for mechanism in self.mechanisms)
        if not mechanisms:
            raise ConfigError(f"sasl.enabled.mechanisms is empty; use {known}")
        object.__setattr__(self, "mechanisms", mechanisms)
        if any(not user or not password for user, password in self.users.items()):
            raise ConfigError("each user of a listener needs a name and a password")
        if not self.users and set(mechanisms) != {SaslMechanism.OAUTHBEARER}:
            raise ConfigError(
                f"{', '.join(mechanisms)}: a listener with these mechanisms needs at least one user"
            )
        if self.scram_iterations < MIN_ITERATIONS:
            raise ConfigError(f"SCRAM requires at least {MIN_ITERATIONS} iterations (RFC 7677)")


def read_users(text: str, source: str) -> dict[str, str]:
    """Parse users from a JSON object, {"user": "password"}.

    Raises ConfigError, which names `source` and shows nothing of the text.
    """
    try:
        users = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError(f'{source} is not JSON; it must be {{"user": "password"}}') from None
    if not isinstance(users, dict) or not all(isinstance(value, str) for value in users.values()):
        raise ConfigError(f'{source} must be one JSON object of strings: {{"user": "password"}}')
    return users


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """One listener; its repr contains no secrets.

    `security_protocol` is PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL; `host` is the address to
    listen on; `client_auth` is "none", "requested" or "required"; `sasl` sets users and mechanisms.
    Raises ConfigError for contradictory settings.

    >>> with DevBroker(listeners=[Listener(), Listener(name="INSIDE")]) as broker:
    ...     broker.address("INSIDE") == broker.bootstrap_servers
    False
    """

    security_protocol: SecurityProtocol | str = SecurityProtocol.PLAINTEXT
    #: By default the name of the security protocol.
    name: str = ""
    host: str = LOOPBACK
    #: 0 means any free port.
    port: int = 0
    #: The host that clients are told to connect to; by default `host`, or this machine's name if
    #: `host` stands for every address.
    advertised_host: str | None = None
    #: The port likewise; by default `port`. For a proxy in front of a single broker.
    advertised_port: int | None = None
    #: The key store and trust store.
    tls: TlsSettings | None = None
    client_auth: ClientAuth | str = ClientAuth.NONE
    sasl: SaslSettings | None = None

    def __post_init__(self) -> None:
        """Convert strings to enum members; raise ConfigError for contradictory settings."""
        try:
            protocol = SecurityProtocol(self.security_protocol)
            client_auth = ClientAuth(self.client_auth)
        except ValueError as error:
            raise ConfigError(f"invalid listener: {error}") from None
        object.__setattr__(self, "security_protocol", protocol)
        object.__setattr__(self, "client_auth", client_auth)
        if not self.name:
            object.__setattr__(self, "name", protocol.value)
        for setting, value, protocols in (
            ("tls", self.tls, WITH_TLS),
            ("sasl", self.sasl, WITH_SASL),
        ):
            if (value is not None) != (protocol in protocols):
                raise ConfigError(
                    f"listener {self.name} ({protocol}) "
                    f"{'needs' if value is None else 'does not use'} the setting {setting}"
                )


def check_listeners(listeners: Sequence[Listener]) -> None:
    """Raise ConfigError if there is no listener, or if two have the same name."""
    names = [listener.name for listener in listeners]
    if not names:
        raise ConfigError("a broker needs at least one listener")
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two listeners are named {name}: give them different names")


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


def registry_listeners_of(arguments: Namespace, environment: Mapping[str, str]) -> list[Listener]:
    """Build the listener of the Schema Registry, if one was requested. Raises as `listeners_of`."""
    text = arguments.schema_registry
    if text is None:
        return []
    protocol, host, port = _parse_listener(
        f"{SecurityProtocol.PLAINTEXT}://{arguments.host}:{text}" if text.isdecimal() else text,
        "--schema-registry",
    )
    sasl = _sasl(arguments, environment) if protocol in WITH_SASL else None
    return [
        Listener(
            security_protocol=protocol,
            host=host,
            port=port,
            tls=_tls(arguments, environment) if protocol in WITH_TLS else None,
            client_auth=ClientAuth(arguments.tls_client_auth),
            sasl=None if sasl is None else replace(sasl, mechanisms=(SaslMechanism.PLAIN,)),
        )
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


def _parse_listener(text: str, option: str = "--listener") -> tuple[SecurityProtocol, str, int]:
    protocol, separator, address = text.partition("://")
    host, colon, port = address.rpartition(":")
    if not separator or not colon or not port.isdecimal() or int(port) > MAX_PORT:
        raise ConfigError(f"{option} {text}: it must be PROTOCOL://HOST:PORT")
    try:
        return SecurityProtocol(protocol), host.strip("[]"), int(port)
    except ValueError:
        raise ConfigError(
            f"{option} {text}: the protocol must be one of {', '.join(SecurityProtocol)}"
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
