"""The tables of TLS and SASL settings: the supported and the unsupported ones.

`client_config` includes these rows in its own tables. Names, types and defaults are those of
Kafka's `SslConfigs`, `SaslConfigs` and `CommonClientConfigs` (4.3).

A setting that names a store, a key or a login may be left out, but not be empty: an empty value
(from a variable that was never set, for instance) would mean the default, and so trust all of the
system's certificate authorities, or send no certificate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark_kafka_sink.config.config_def import (
    ConfigDef,
    ConfigType,
    Importance,
    NotEmpty,
    OneOf,
    OneOfAnyCase,
    Range,
    RefusedSetting,
)
from spark_kafka_sink.model import SecurityProtocol

if TYPE_CHECKING:
    from collections.abc import Mapping

_BOOLEAN, _STRING, _SHORT, _INT, _LONG, _DOUBLE, _LIST, _PASSWORD, _CLASS = (
    ConfigType.BOOLEAN,
    ConfigType.STRING,
    ConfigType.SHORT,
    ConfigType.INT,
    ConfigType.LONG,
    ConfigType.DOUBLE,
    ConfigType.LIST,
    ConfigType.PASSWORD,
    ConfigType.CLASS,
)
_HIGH, _MEDIUM, _LOW = Importance.HIGH, Importance.MEDIUM, Importance.LOW

#: `AWS_MSK_IAM` is the mechanism of Amazon's library for Java.
MECHANISMS: Final = (
    "PLAIN",
    "SCRAM-SHA-256",
    "SCRAM-SHA-512",
    "OAUTHBEARER",
    "GSSAPI",
    "AWS_MSK_IAM",
)

SECURITY_CONFIG_DEF: Final = (
    ConfigDef()
    .define(
        "security.protocol",
        _STRING,
        SecurityProtocol.PLAINTEXT.value,
        OneOfAnyCase(tuple(SecurityProtocol)),
        _MEDIUM,
        "How connections are secured: SSL encrypts them and authenticates the brokers (and "
        "this client, with ssl.keystore.*); SASL_* authenticates this client with sasl.*.",
    )
    .define(
        "ssl.truststore.type",
        _STRING,
        "JKS",
        OneOfAnyCase(("JKS", "PKCS12", "PEM")),
        _MEDIUM,
        "The format of the truststore. PKCS12 is read under either of the first two names "
        "(extra `pkcs12`); Java's own JKS must be converted, and the error says how.",
    )
    .define(
        "ssl.truststore.location",
        _STRING,
        None,
        NotEmpty(),
        _HIGH,
        "The file with the trusted certificates, readable by the driver and every task. "
        "Without it, and without ssl.truststore.certificates, the system's own are trusted.",
    )
    .define(
        "ssl.truststore.password",
        _PASSWORD,
        None,
        NotEmpty(),
        _HIGH,
        "The truststore's password; not for PEM.",
    )
    .define(
        "ssl.truststore.certificates",
        _PASSWORD,
        None,
        NotEmpty(),
        _HIGH,
        "The trusted certificates, in PEM, instead of a file; with ssl.truststore.type=PEM.",
    )
    .define(
        "ssl.keystore.type",
        _STRING,
        "JKS",
        OneOfAnyCase(("JKS", "PKCS12", "PEM")),
        _MEDIUM,
        "The format of the keystore, like ssl.truststore.type.",
    )
    .define(
        "ssl.keystore.location",
        _STRING,
        None,
        NotEmpty(),
        _HIGH,
        "The file with this client's key and certificate chain, for brokers that request one "
        "(ssl.client.auth). It is read again for each connection, so that it can be renewed.",
    )
    .define(
        "ssl.keystore.password",
        _PASSWORD,
        None,
        NotEmpty(),
        _HIGH,
        "The keystore's password; not for PEM.",
    )
    .define(
        "ssl.keystore.key",
        _PASSWORD,
        None,
        NotEmpty(),
        _HIGH,
        "This client's key, in PEM, instead of a file; with ssl.keystore.type=PEM.",
    )
    .define(
        "ssl.keystore.certificate.chain",
        _PASSWORD,
        None,
        NotEmpty(),
        _HIGH,
        "The certificate for ssl.keystore.key, followed by its chain, in PEM.",
    )
    .define(
        "ssl.key.password",
        _PASSWORD,
        None,
        NotEmpty(),
        _HIGH,
        "The key's own password, if it has one.",
    )
    .define(
        "ssl.endpoint.identification.algorithm",
        _STRING,
        "https",
        OneOfAnyCase(("https", "")),
        _LOW,
        "`https`: a broker's certificate must match its host name. Empty: any certificate "
        "that a trusted authority has signed is accepted.",
    )
    .define(
        "ssl.protocol",
        _STRING,
        "TLSv1.3",
        OneOf(("TLS", "TLSv1.3", "TLSv1.2")),
        _MEDIUM,
        "The newest version of TLS to use.",
    )
    .define(
        "ssl.enabled.protocols",
        _LIST,
        ("TLSv1.2", "TLSv1.3"),
        None,
        _MEDIUM,
        "The versions of TLS to use.",
    )
    .define(
        "ssl.cipher.suites",
        _LIST,
        (),
        None,
        _LOW,
        "The cipher suites to use, by Java's names; by default, all secure ones. For TLS 1.3,"
        " either all or none.",
    )
    .define(
        "sasl.mechanism",
        _STRING,
        "GSSAPI",
        OneOf(MECHANISMS),
        _MEDIUM,
        "How this client authenticates. GSSAPI is Kerberos (extra `kerberos`), the default as"
        " in Java. AWS_MSK_IAM is Amazon's (extra `msk-iam`).",
    )
    .define(
        "sasl.jaas.config",
        _PASSWORD,
        None,
        NotEmpty(),
        _MEDIUM,
        "The login, in the format of Java's client, with one login module: "
        '`...ScramLoginModule required username="alice" password="...";`, `tokenauth="true"` '
        "for a delegation token.",
    )
    .define(
        "sasl.kerberos.service.name",
        _STRING,
        None,
        None,
        _MEDIUM,
        "The first part of the brokers' Kerberos principal, usually `kafka`; the same as "
        "`serviceName` in sasl.jaas.config.",
    )
    .define(
        "sasl.login.callback.handler.class",
        _CLASS,
        None,
        None,
        _MEDIUM,
        "The source of OAUTHBEARER tokens: `token_endpoint` (Java's "
        "OAuthBearerLoginCallbackHandler), `msk_iam`, or `package.module:attribute` of a "
        "function that returns a token. Without it, an unsigned token is created from "
        "sasl.jaas.config.",
    )
    .define(
        "sasl.oauthbearer.token.endpoint.url",
        _STRING,
        None,
        NotEmpty(),
        _MEDIUM,
        "The endpoint from which tokens are requested by client credentials (https://), or "
        "the file that contains one (file:///path).",
    )
    .define(
        "sasl.oauthbearer.client.credentials.client.id",
        _STRING,
        None,
        NotEmpty(),
        _MEDIUM,
        "This client's id at the token endpoint; takes precedence over `clientId` in "
        "sasl.jaas.config.",
    )
    .define(
        "sasl.oauthbearer.client.credentials.client.secret",
        _PASSWORD,
        None,
        NotEmpty(),
        _MEDIUM,
        "This client's secret at the token endpoint; takes precedence over `clientSecret` in "
        "sasl.jaas.config.",
    )
    .define(
        "sasl.oauthbearer.scope",
        _STRING,
        None,
        None,
        _MEDIUM,
        "The scope to request; takes precedence over `scope` in sasl.jaas.config.",
    )
    .define(
        "sasl.oauthbearer.header.urlencode",
        _BOOLEAN,
        False,
        None,
        _LOW,
        "Whether id and secret are form-encoded in the header, as RFC 6749 specifies.",
    )
    .define(
        "sasl.oauthbearer.sub.claim.name",
        _STRING,
        "sub",
        None,
        _LOW,
        "The claim of a token that names its subject, for errors.",
    )
    .define(
        "sasl.login.connect.timeout.ms",
        _INT,
        None,
        Range(1),
        _LOW,
        "How long to wait for a connection to the token endpoint; 10 seconds by default.",
    )
    .define(
        "sasl.login.read.timeout.ms",
        _INT,
        None,
        Range(1),
        _LOW,
        "How long to wait for a token: for the token endpoint's whole response, or for a call"
        " of a function that returns tokens; 10 seconds by default.",
    )
    .define(
        "sasl.login.retry.backoff.ms",
        _LONG,
        100,
        Range(0),
        _LOW,
        "How long to wait before a token is requested again; doubles with each failure.",
    )
    .define(
        "sasl.login.retry.backoff.max.ms",
        _LONG,
        10_000,
        Range(0),
        _LOW,
        "The maximum wait, and the total time for which a token is requested before the "
        "connection fails.",
    )
    .define(
        "sasl.login.refresh.window.factor",
        _DOUBLE,
        0.8,
        Range(0.5, 1.0),
        _LOW,
        "The fraction of its lifetime after which a token is replaced.",
    )
    .define(
        "sasl.login.refresh.window.jitter",
        _DOUBLE,
        0.05,
        Range(0.0, 0.25),
        _LOW,
        "The maximum random fraction of the lifetime to add to that.",
    )
    .define(
        "sasl.login.refresh.min.period.seconds",
        _SHORT,
        60,
        Range(0, 900),
        _LOW,
        "The minimum time for which a token is used before it is replaced.",
    )
    .define(
        "sasl.login.refresh.buffer.seconds",
        _SHORT,
        300,
        Range(0, 3600),
        _LOW,
        "How long before its expiry a token is replaced at the latest. This setting and "
        "sasl.login.refresh.min.period.seconds are ignored if the remaining lifetime of a new "
        "token is shorter than both together.",
    )
)

#: The settings that accept references: secrets, the files that hold secrets, and the client id and
#: endpoint that secrets are used with. In other settings a reference could only leak what it reads.
REFERENCE_SETTINGS: Final = frozenset(
    {
        *(key.name for key in SECURITY_CONFIG_DEF if key.type is ConfigType.PASSWORD),
        "ssl.truststore.location",
        "ssl.keystore.location",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.oauthbearer.client.credentials.client.id",
    }
)

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
