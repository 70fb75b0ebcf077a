"""The settings of TLS and SASL, as one immutable object.

`ProducerConfig` parses them with all other settings. This module checks them only against
security.protocol. The network layer checks the combinations and the content of sasl.jaas.config, as
soon as a producer, a check or an admin client is created.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.config.config_def import HIDDEN, Password
from spark_kafka_sink.config.plugin_reference import PluginReference  # noqa: TC001 -- a field's type
from spark_kafka_sink.config.security_table import SECURITY_CONFIG_DEF
from spark_kafka_sink.model import SecurityProtocol

if TYPE_CHECKING:
    from collections.abc import Iterable

#: The protocols with which a layer's settings, by the first part of their names, have an effect.
_NEEDED: Final = {
    "ssl": (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL),
    "sasl": (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL),
}
_URL: Final = "sasl_oauthbearer_token_endpoint_url"
_NAMES: Final = {name.replace(".", "_"): name for name in SECURITY_CONFIG_DEF.names}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SecuritySettings:
    """The individually validated settings; names are Kafka's, as in `SECURITY_CONFIG_DEF`."""

    security_protocol: SecurityProtocol
    ssl_truststore_type: str
    ssl_truststore_location: str | None
    ssl_truststore_password: Password | None
    ssl_truststore_certificates: Password | None
    ssl_keystore_type: str
    ssl_keystore_location: str | None
    ssl_keystore_password: Password | None
    ssl_keystore_key: Password | None
    ssl_keystore_certificate_chain: Password | None
    ssl_key_password: Password | None
    ssl_endpoint_identification_algorithm: str
    ssl_protocol: str
    ssl_enabled_protocols: tuple[str, ...]
    ssl_cipher_suites: tuple[str, ...]
    sasl_mechanism: str
    sasl_jaas_config: Password | None
    sasl_kerberos_service_name: str | None
    sasl_login_callback_handler_class: PluginReference | None
    sasl_oauthbearer_token_endpoint_url: str | None
    sasl_oauthbearer_client_credentials_client_id: str | None
    sasl_oauthbearer_client_credentials_client_secret: Password | None
    sasl_oauthbearer_scope: str | None
    sasl_oauthbearer_header_urlencode: bool
    sasl_oauthbearer_sub_claim_name: str
    sasl_login_connect_timeout_ms: int | None
    sasl_login_read_timeout_ms: int | None
    sasl_login_retry_backoff_ms: int
    sasl_login_retry_backoff_max_ms: int
    sasl_login_refresh_window_factor: float
    sasl_login_refresh_window_jitter: float
    sasl_login_refresh_min_period_seconds: int
    sasl_login_refresh_buffer_seconds: int
    #: The prefix of the settings' names as the user wrote them ("kafka.").
    prefix: str = field(default="", compare=False)
    #: The settings whose values came from references: no repr and no error shows their values.
    hidden: frozenset[str] = field(default=frozenset(), compare=False)
    #: The values of those references, which must not appear in any message, in any encoding.
    hidden_texts: frozenset[str] = field(default=frozenset(), compare=False)

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.security_protocol in _NEEDED["ssl"]

    @property
    def uses_sasl(self) -> bool:
        """Whether the client authenticates with SASL."""
        return self.security_protocol in _NEEDED["sasl"]

    def __repr__(self) -> str:
        """Show all settings, with secrets hidden."""
        shown = (f"{name}={value}" for name, value in self.shown().items())
        return f"SecuritySettings({', '.join(shown)})"

    def shown(self) -> dict[str, str]:
        """Return each setting's value as text, by attribute name, with secrets hidden.

        A URL is hidden too, since its query may contain a key.
        """
        return {
            name: HIDDEN
            if _NAMES[name] in self.hidden or (name == _URL and getattr(self, name) is not None)
            else repr(getattr(self, name))
            for setting in fields(self)
            if (name := setting.name) in _NAMES
        }


def security_settings(
    values: dict[str, Any], *, prefix: str, secret: frozenset[str], secret_texts: frozenset[str]
) -> SecuritySettings:
    """Remove the TLS and SASL settings from all parsed values, and return them as one object.

    `secret` names the settings that had references, and `secret_texts` holds their values.
    """
    own = {name.replace(".", "_"): values.pop(name) for name in SECURITY_CONFIG_DEF.names}
    own["security_protocol"] = SecurityProtocol(own["security_protocol"].upper())
    for name in ("ssl_enabled_protocols", "ssl_cipher_suites"):
        own[name] = tuple(filter(None, own[name]))
    hidden = secret.intersection(SECURITY_CONFIG_DEF.names)
    return SecuritySettings(**own, prefix=prefix, hidden=hidden, hidden_texts=secret_texts)


def setting_without_effect(protocol: SecurityProtocol, names: Iterable[str]) -> str | None:
    """Return what is wrong with the first setting that this protocol ignores; None if none is."""
    for name in names:
        needed = _NEEDED.get(name.partition(".")[0])
        if needed is not None and protocol not in needed and name in SECURITY_CONFIG_DEF:
            return (
                f"{name} requires security.protocol {' or '.join(needed)}, but it is {protocol}: "
                "the setting would have no effect"
            )
    return None
