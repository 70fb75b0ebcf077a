"""The settings of TLS and SASL: the supported ones, as one immutable object, and the others.

Names, types and defaults are those of Kafka's `SslConfigs`, `SaslConfigs` and `CommonClientConfigs`
(4.3). The configuration of every client includes them; it parses them with all other settings.
This module checks them only against security.protocol. The network layer checks the combinations
and the content of sasl.jaas.config, as soon as a producer, a check or an admin client is created.

A setting that names a store, a key or a login may be left out, but not be empty: an empty value
(from a variable that was never set, for instance) would mean the default, and so trust all of the
system's certificate authorities, or send no certificate.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.config.config_def import *
from spark_kafka_sink.config.config_def import HIDDEN, attribute_name
from spark_kafka_sink.config.plugin_reference import TOKEN_SOURCES, PluginReference
from spark_kafka_sink.model import SecurityProtocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: The protocols with which a layer's settings, by the first part of their names, have an effect.
_NEEDED: Final = {
    "ssl": (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL),
    "sasl": (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL),
}
_URL: Final = "sasl.oauthbearer.token.endpoint.url"
#: `AWS_MSK_IAM` is the mechanism of Amazon's library for Java.
MECHANISMS: Final = (
    "PLAIN",
    "SCRAM-SHA-256",
    "SCRAM-SHA-512",
    "OAUTHBEARER",
    "GSSAPI",
    "AWS_MSK_IAM",
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SecuritySettings:
    """The individually validated settings, named as Kafka's, with underscores for dots."""

    security_protocol: SecurityProtocol = setting(
        STRING, SecurityProtocol.PLAINTEXT.value, MEDIUM, OneOfAnyCase(tuple(SecurityProtocol))
    ).doc(
        "How connections are secured: SSL encrypts them and authenticates the brokers (and "
        "this client, with ssl.keystore.*); SASL_* authenticates this client with sasl.*."
    )
    ssl_truststore_type: str = setting(
        STRING, "JKS", MEDIUM, OneOfAnyCase(("JKS", "PKCS12", "PEM"))
    ).doc(
        "The format of the truststore. PKCS12 is read under either of the first two names "
        "(extra `pkcs12`); Java's own JKS must be converted, and the error says how."
    )
    ssl_truststore_location: str | None = setting(STRING, None, HIGH, NotEmpty()).doc(
        "The file with the trusted certificates, readable by the driver and every task. "
        "Without it, and without ssl.truststore.certificates, the system's own are trusted."
    )
    ssl_truststore_password: Password | None = setting(PASSWORD, None, HIGH, NotEmpty()).doc(
        "The truststore's password; not for PEM."
    )
    ssl_truststore_certificates: Password | None = setting(PASSWORD, None, HIGH, NotEmpty()).doc(
        "The trusted certificates, in PEM, instead of a file; with ssl.truststore.type=PEM."
    )
    ssl_keystore_type: str = setting(
        STRING, "JKS", MEDIUM, OneOfAnyCase(("JKS", "PKCS12", "PEM"))
    ).doc("The format of the keystore, like ssl.truststore.type.")
    ssl_keystore_location: str | None = setting(STRING, None, HIGH, NotEmpty()).doc(
        "The file with this client's key and certificate chain, for brokers that request one "
        "(ssl.client.auth). It is read again for each connection, so that it can be renewed."
    )
    ssl_keystore_password: Password | None = setting(PASSWORD, None, HIGH, NotEmpty()).doc(
        "The keystore's password; not for PEM."
    )
    ssl_keystore_key: Password | None = setting(PASSWORD, None, HIGH, NotEmpty()).doc(
        "This client's key, in PEM, instead of a file; with ssl.keystore.type=PEM."
    )
    ssl_keystore_certificate_chain: Password | None = setting(PASSWORD, None, HIGH, NotEmpty()).doc(
        "The certificate for ssl.keystore.key, followed by its chain, in PEM."
    )
    ssl_key_password: Password | None = setting(PASSWORD, None, HIGH, NotEmpty()).doc(
        "The key's own password, if it has one."
    )
    ssl_endpoint_identification_algorithm: str = setting(
        STRING, "https", LOW, OneOfAnyCase(("https", ""))
    ).doc(
        "`https`: a broker's certificate must match its host name. Empty: any certificate "
        "that a trusted authority has signed is accepted."
    )
    ssl_protocol: str = setting(
        STRING, "TLSv1.3", MEDIUM, OneOf(("TLS", "TLSv1.3", "TLSv1.2"))
    ).doc("The newest version of TLS to use.")
    ssl_enabled_protocols: tuple[str, ...] = setting(LIST, ("TLSv1.2", "TLSv1.3"), MEDIUM).doc(
        "The versions of TLS to use."
    )
    ssl_cipher_suites: tuple[str, ...] = setting(LIST, (), LOW).doc(
        "The cipher suites to use, by Java's names; by default, all secure ones. For TLS 1.3,"
        " either all or none."
    )
    sasl_mechanism: str = setting(STRING, "GSSAPI", MEDIUM, OneOf(MECHANISMS)).doc(
        "How this client authenticates. GSSAPI is Kerberos (extra `kerberos`), the default as"
        " in Java. AWS_MSK_IAM is Amazon's (extra `msk-iam`)."
    )
    sasl_jaas_config: Password | None = setting(PASSWORD, None, MEDIUM, NotEmpty()).doc(
        "The login, in the format of Java's client, with one login module: "
        '`...ScramLoginModule required username="alice" password="...";`, `tokenauth="true"` '
        "for a delegation token."
    )
    sasl_kerberos_service_name: str | None = setting(STRING, None, MEDIUM).doc(
        "The first part of the brokers' Kerberos principal, usually `kafka`; the same as "
        "`serviceName` in sasl.jaas.config."
    )
    sasl_login_callback_handler_class: PluginReference | None = setting(
        CLASS, None, MEDIUM, plugins=TOKEN_SOURCES
    ).doc(
        "The source of OAUTHBEARER tokens: `token_endpoint` (Java's "
        "OAuthBearerLoginCallbackHandler), `msk_iam`, or `package.module:attribute` of a "
        "function that returns a token. Without it, an unsigned token is created from "
        "sasl.jaas.config."
    )
    sasl_oauthbearer_token_endpoint_url: str | None = setting(STRING, None, MEDIUM, NotEmpty()).doc(
        "The endpoint from which tokens are requested by client credentials (https://), or "
        "the file that contains one (file:///path)."
    )
    sasl_oauthbearer_client_credentials_client_id: str | None = setting(
        STRING, None, MEDIUM, NotEmpty()
    ).doc(
        "This client's id at the token endpoint; takes precedence over `clientId` in "
        "sasl.jaas.config."
    )
    sasl_oauthbearer_client_credentials_client_secret: Password | None = setting(
        PASSWORD, None, MEDIUM, NotEmpty()
    ).doc(
        "This client's secret at the token endpoint; takes precedence over `clientSecret` in "
        "sasl.jaas.config."
    )
    sasl_oauthbearer_scope: str | None = setting(STRING, None, MEDIUM).doc(
        "The scope to request; takes precedence over `scope` in sasl.jaas.config."
    )
    sasl_oauthbearer_header_urlencode: bool = setting(BOOLEAN, False, LOW).doc(
        "Whether id and secret are form-encoded in the header, as RFC 6749 specifies."
    )
    sasl_oauthbearer_sub_claim_name: str = setting(STRING, "sub", LOW).doc(
        "The claim of a token that names its subject, for errors."
    )
    sasl_login_connect_timeout_ms: int | None = setting(INT, None, LOW, Range(1)).doc(
        "How long to wait for a connection to the token endpoint; 10 seconds by default."
    )
    sasl_login_read_timeout_ms: int | None = setting(INT, None, LOW, Range(1)).doc(
        "How long to wait for a token: for the token endpoint's whole response, or for a call"
        " of a function that returns tokens; 10 seconds by default."
    )
    sasl_login_retry_backoff_ms: int = setting(LONG, 100, LOW, Range(0)).doc(
        "How long to wait before a token is requested again; doubles with each failure."
    )
    sasl_login_retry_backoff_max_ms: int = setting(LONG, 10_000, LOW, Range(0)).doc(
        "The maximum wait, and the total time for which a token is requested before the "
        "connection fails."
    )
    sasl_login_refresh_window_factor: float = setting(DOUBLE, 0.8, LOW, Range(0.5, 1.0)).doc(
        "The fraction of its lifetime after which a token is replaced."
    )
    sasl_login_refresh_window_jitter: float = setting(DOUBLE, 0.05, LOW, Range(0.0, 0.25)).doc(
        "The maximum random fraction of the lifetime to add to that."
    )
    sasl_login_refresh_min_period_seconds: int = setting(SHORT, 60, LOW, Range(0, 900)).doc(
        "The minimum time for which a token is used before it is replaced."
    )
    sasl_login_refresh_buffer_seconds: int = setting(SHORT, 300, LOW, Range(0, 3600)).doc(
        "How long before its expiry a token is replaced at the latest. This setting and "
        "sasl.login.refresh.min.period.seconds are ignored if the remaining lifetime of a new "
        "token is shorter than both together."
    )
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
        shown = {}
        for name in SECURITY_CONFIG_DEF.names:
            attribute = attribute_name(name)
            value = getattr(self, attribute)
            is_hidden = name in self.hidden or (name == _URL and value is not None)
            shown[attribute] = HIDDEN if is_hidden else repr(value)
        return shown


SECURITY_CONFIG_DEF: Final = ConfigDef.of(SecuritySettings)
#: The settings that accept references: secrets, the files that hold secrets, and the client id and
#: endpoint that secrets are used with. In other settings a reference could only leak what it reads.
REFERENCE_SETTINGS: Final = frozenset(
    {
        *(key.name for key in SECURITY_CONFIG_DEF if key.type is PASSWORD),
        "ssl.truststore.location",
        "ssl.keystore.location",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.oauthbearer.client.credentials.client.id",
    }
)


def security_settings(
    values: dict[str, Any], *, prefix: str, secret: frozenset[str], secret_texts: frozenset[str]
) -> SecuritySettings:
    """Remove the TLS and SASL settings from all parsed values, and return them as one object.

    `secret` names the settings that had references, and `secret_texts` holds their values.
    """
    own = {attribute_name(name): values.pop(name) for name in SECURITY_CONFIG_DEF.names}
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


_JAVA_CLASSES: Final = "Java classes cannot be used here"
_BROKERS_CHECK: Final = "only brokers check tokens"
_KERBEROS: Final = (
    "with a keytab, libgssapi renews tickets in time; a ticket cache must be renewed by the "
    "program that fills it"
)
_NO_ASSERTIONS: Final = (
    "tokens are requested by client credentials only, not by an assertion (KIP-1139)"
)
_OAUTH: Final = "org.apache.kafka.common.security.oauthbearer."
_OPENSSL: Final = "OpenSSL does this, not a Java provider"

REFUSED_SECURITY: Final[Mapping[str, RefusedSetting]] = {
    "security.providers": RefusedSetting(_JAVA_CLASSES, ("",)),
    "ssl.engine.factory.class": RefusedSetting(
        _JAVA_CLASSES, ("", "org.apache.kafka.common.security.ssl.defaultsslenginefactory")
    ),
    "ssl.keymanager.algorithm": RefusedSetting(_OPENSSL, ("", "sunx509", "pkix", "newsunx509")),
    "ssl.provider": RefusedSetting(_OPENSSL, ("",)),
    "ssl.secure.random.implementation": RefusedSetting(_OPENSSL, ("",)),
    "ssl.trustmanager.algorithm": RefusedSetting(_OPENSSL, ("", "pkix", "sunx509")),
    "sasl.client.callback.handler.class": RefusedSetting(
        _JAVA_CLASSES, ("", "software.amazon.msk.auth.iam.iamclientcallbackhandler")
    ),
    "sasl.login.class": RefusedSetting(_JAVA_CLASSES, ("",)),
    "sasl.kerberos.kinit.cmd": RefusedSetting(_KERBEROS, ("", "/usr/bin/kinit")),
    "sasl.kerberos.min.time.before.relogin": RefusedSetting(_KERBEROS, ("60000",)),
    "sasl.kerberos.ticket.renew.jitter": RefusedSetting(_KERBEROS, ("0.05",)),
    "sasl.kerberos.ticket.renew.window.factor": RefusedSetting(_KERBEROS, ("0.8",)),
    **dict.fromkeys(
        (
            "sasl.oauthbearer.assertion.algorithm",
            "sasl.oauthbearer.assertion.claim.aud",
            "sasl.oauthbearer.assertion.claim.exp.seconds",
            "sasl.oauthbearer.assertion.claim.iss",
            "sasl.oauthbearer.assertion.claim.jti.include",
            "sasl.oauthbearer.assertion.claim.nbf.seconds",
            "sasl.oauthbearer.assertion.claim.sub",
            "sasl.oauthbearer.assertion.file",
            "sasl.oauthbearer.assertion.private.key.file",
            "sasl.oauthbearer.assertion.private.key.passphrase",
            "sasl.oauthbearer.assertion.template.file",
        ),
        RefusedSetting(_NO_ASSERTIONS),
    ),
    "sasl.oauthbearer.allow.unverified.audience": RefusedSetting(_BROKERS_CHECK, ("false",)),
    "sasl.oauthbearer.allow.unverified.issuer": RefusedSetting(_BROKERS_CHECK, ("false",)),
    "sasl.oauthbearer.clock.skew.seconds": RefusedSetting(_BROKERS_CHECK, ("30",)),
    "sasl.oauthbearer.expected.audience": RefusedSetting(_BROKERS_CHECK, ("",)),
    "sasl.oauthbearer.expected.issuer": RefusedSetting(_BROKERS_CHECK, ("",)),
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": RefusedSetting(_BROKERS_CHECK, ("3600000",)),
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": RefusedSetting(
        _BROKERS_CHECK, ("10000",)
    ),
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": RefusedSetting(_BROKERS_CHECK, ("100",)),
    "sasl.oauthbearer.jwks.endpoint.url": RefusedSetting(_BROKERS_CHECK, ("",)),
    "sasl.oauthbearer.jwt.retriever.class": RefusedSetting(
        f"{_NO_ASSERTIONS}; set your own function as sasl.login.callback.handler.class",
        (
            "",
            f"{_OAUTH}defaultjwtretriever",
            f"{_OAUTH}clientcredentialsjwtretriever",
            f"{_OAUTH}filejwtretriever",
        ),
    ),
    "sasl.oauthbearer.jwt.validator.class": RefusedSetting(
        _BROKERS_CHECK, ("", f"{_OAUTH}defaultjwtvalidator", f"{_OAUTH}clientjwtvalidator")
    ),
    "sasl.oauthbearer.scope.claim.name": RefusedSetting(_BROKERS_CHECK, ("", "scope")),
}
