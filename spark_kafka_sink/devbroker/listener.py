"""A place where clients come to a broker: an address, and how connections to it are secured.

Names are Kafka's: `listeners`, `advertised.listeners`, `listener.security.protocol.map`. A listener
of TLS shows the certificate of its key store, and looks at its clients' certificates where
`client_auth` says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.model import SecurityProtocol
from spark_kafka_sink.security.tls import ClientAuth, TlsSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_kafka_sink.devbroker.sasl.sasl_settings import SaslSettings

LOOPBACK = "127.0.0.1"
WITH_TLS = frozenset({SecurityProtocol.SSL, SecurityProtocol.SASL_SSL})
WITH_SASL = frozenset({SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL})


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """One listener; its repr shows no secret."""

    security_protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    #: What it is called; by default as its protocol.
    name: str = ""
    host: str = LOOPBACK
    #: 0 is any free one.
    port: int = 0
    #: Where clients are told to come to; by default `host`, or this machine's name where `host`
    #: stands for every address.
    advertised_host: str | None = None
    #: And to which port; by default `port`. For a proxy in front of a single broker.
    advertised_port: int | None = None
    #: Key store and trust store.
    tls: TlsSettings | None = None
    client_auth: ClientAuth = ClientAuth.NONE
    sasl: SaslSettings | None = None

    def __post_init__(self) -> None:
        """Make words of protocols; raise ConfigError for what contradicts itself."""
        try:
            object.__setattr__(self, "security_protocol", SecurityProtocol(self.security_protocol))
            object.__setattr__(self, "client_auth", ClientAuth(self.client_auth))
        except ValueError as error:
            raise ConfigError(f"a listener: {error}") from None
        if not self.name:
            object.__setattr__(self, "name", self.security_protocol.value)
        for setting, given, protocols in (
            ("tls", self.tls, WITH_TLS),
            ("sasl", self.sasl, WITH_SASL),
        ):
            if (given is not None) != (self.security_protocol in protocols):
                raise ConfigError(
                    f"the listener {self.name} ({self.security_protocol}) "
                    f"{'needs' if given is None else 'has no use for'} the setting {setting}"
                )


def check_listeners(listeners: Sequence[Listener]) -> None:
    """Raise ConfigError for no listener at all, or two of one name."""
    names = [listener.name for listener in listeners]
    if not names:
        raise ConfigError("a broker needs a listener")
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two listeners are called {name}: give them different names")
