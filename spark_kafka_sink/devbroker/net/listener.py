"""An endpoint for clients of a broker: its address, and how connections to it are secured.

The names are Kafka's: `listeners`, `advertised.listeners`, `listener.security.protocol.map`. A TLS
listener presents the certificate of its key store, and checks client certificates according to
`client_auth`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.model import SecurityProtocol
from spark_kafka_sink.security.tls import ClientAuth, TlsSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_kafka_sink.devbroker.net.sasl_settings import SaslSettings

LOOPBACK = "127.0.0.1"
MAX_PORT = 65_535
WITH_TLS = frozenset({SecurityProtocol.SSL, SecurityProtocol.SASL_SSL})
WITH_SASL = frozenset({SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL})


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
