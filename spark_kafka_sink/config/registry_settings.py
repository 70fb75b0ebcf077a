"""The settings of a Schema Registry client, parsed into one immutable object.

`RegistrySettings.from_mapping` is the only entry point. The names are those of Confluent's clients,
under `schema.registry.` in the options of Spark. If two given settings contradict each other, or
one would have no effect, that is an error. The settings of TLS are those of Kafka's clients.

Credentials may also stand in a URL (`https://user:password@host`), as in Confluent's clients. They
are taken out of it here, so that a URL can be shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import unquote, urlsplit

from spark_kafka_sink.config.allow_lists import NotAllowedError, allow_lists
from spark_kafka_sink.config.client_config import KAFKA_PREFIX
from spark_kafka_sink.config.config_def import (
    HIDDEN,
    HIGH,
    INT,
    LIST,
    LOW,
    MEDIUM,
    PASSWORD,
    REQUIRED,
    STRING,
    ConfigDef,
    NotEmpty,
    OneOf,
    Password,
    Range,
    RefusedSetting,
    attribute_name,
    declared_in,
    nearest_name,
    setting,
    unknown_option,
)
from spark_kafka_sink.config.references import has_reference, resolve_references
from spark_kafka_sink.config.security_settings import (
    REFERENCE_SETTINGS,
    REFUSED_SECURITY,
    SECURITY_CONFIG_DEF,
    SecuritySettings,
    security_settings,
)
from spark_kafka_sink.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

#: The prefix of the settings' names in the options of Spark.
REGISTRY_PREFIX: Final = "schema.registry."
#: How names begin that `registry_options` reads or refuses.
REGISTRY_NAMES: Final = (REGISTRY_PREFIX, f"{KAFKA_PREFIX}{REGISTRY_PREFIX}")

_TLS: Final = tuple(name for name in SECURITY_CONFIG_DEF.names if name.startswith("ssl."))
#: The settings that accept references, as in the other clients.
REGISTRY_REFERENCE_SETTINGS: Final = frozenset(
    {
        "url",
        "proxy",
        "basic.auth.user.info",
        "bearer.auth.token",
        *(name for name in _TLS if name in REFERENCE_SETTINGS),
    }
)

#: What errors do not show: a URL may contain a password.
_WITH_PASSWORDS: Final = frozenset({"url", "proxy"})
_USER_INFO: Final = "USER_INFO"
_IN_URL: Final = "URL"
_STATIC_TOKEN: Final = "STATIC_TOKEN"  # noqa: S105 -- the name of a source
_SOURCES: Final = ("basic.auth.credentials.source", "bearer.auth.credentials.source")
#: What a header can hold.
_HEADER_TEXT: Final = re.compile(r"[\x21-\x7e]+")
_USER_AND_PASSWORD: Final = re.compile(r"[^:\x00-\x1f\x7f]*:[^\x00-\x1f\x7f]*")
_URL_TEXT: Final = re.compile(r"[\x21-\x7e]+")
#: The sources of credentials that Confluent's clients have and this one does not.
_NO_TOKENS: Final = RefusedSetting(
    "tokens are not requested for a registry: set {prefix}bearer.auth.token, which may be a "
    "reference"
)
_REFUSED_SOURCES: Final[Mapping[str, RefusedSetting]] = {
    "SASL_INHERIT": RefusedSetting(
        "the login of the brokers is not used for a registry: set {prefix}basic.auth.user.info"
    ),
    "SASL_OAUTHBEARER_INHERIT": RefusedSetting(
        "the tokens of the brokers' login are not used for a registry: set "
        "{prefix}bearer.auth.token"
    ),
    "OAUTHBEARER": _NO_TOKENS,
    "CUSTOM": RefusedSetting(
        "providers of tokens cannot be named here: set {prefix}bearer.auth.token"
    ),
    "UAMI": _NO_TOKENS,
}

_SET_TIMEOUT: Final = RefusedSetting(
    "set {prefix}request.timeout.ms, which is the timeout of a whole request"
)
_SET_PROXY: Final = RefusedSetting("set {prefix}proxy=http://host:port")
_SET_TRUSTSTORE: Final = RefusedSetting(
    "set {prefix}ssl.truststore.location and {prefix}ssl.truststore.type=PEM, as for Kafka's "
    "clients"
)
_SET_KEYSTORE: Final = RefusedSetting(
    "set {prefix}ssl.keystore.location and {prefix}ssl.keystore.type=PEM, as for Kafka's clients"
)
_NO_CACHE: Final = RefusedSetting(
    "a schema is kept as long as the process lives, and nothing else is: neither which version is "
    "the latest nor a failure"
)

#: The settings of Confluent's clients that are not supported: why, and what to set instead.
REFUSED_REGISTRY: Final[Mapping[str, RefusedSetting]] = {
    "auto.register.schemas": RefusedSetting("set the option autoRegisterSchemas", ("false",)),
    "bearer.auth.cache.expiry.buffer.seconds": _NO_TOKENS,
    "bearer.auth.client.id": _NO_TOKENS,
    "bearer.auth.client.secret": _NO_TOKENS,
    "bearer.auth.custom.provider.class": _NO_TOKENS,
    "bearer.auth.issuer.endpoint.url": _NO_TOKENS,
    "bearer.auth.scope": _NO_TOKENS,
    "bearer.auth.uami.endpoint.url": _NO_TOKENS,
    "cache.capacity": _NO_CACHE,
    "cache.latest.ttl.sec": _NO_CACHE,
    "http.connect.timeout.ms": _SET_TIMEOUT,
    "http.read.timeout.ms": _SET_TIMEOUT,
    "latest.cache.ttl.sec": _NO_CACHE,
    "missing.cache.size": _NO_CACHE,
    "missing.id.cache.ttl.sec": _NO_CACHE,
    "missing.schema.cache.ttl.sec": _NO_CACHE,
    "missing.version.cache.ttl.sec": _NO_CACHE,
    "normalize.schemas": RefusedSetting("set the option normalizeSchemas", ("false",)),
    "proxy.host": _SET_PROXY,
    "proxy.port": _SET_PROXY,
    "ssl.ca.location": _SET_TRUSTSTORE,
    "ssl.certificate.location": _SET_KEYSTORE,
    "ssl.key.location": _SET_KEYSTORE,
    "timeout": _SET_TIMEOUT,
    # As in ABRiS.
    "topic": RefusedSetting(
        "the topic is that of the read or write; another subject is named by valueSubject or "
        "keySubject"
    ),
    "url.randomize": RefusedSetting("URLs are asked in the given order", ("false",)),
    "use.apache.http.client": RefusedSetting("there is one client", ("false",)),
    "use.latest.version": RefusedSetting(
        "set the option valueSchema or keySchema to latest", ("false",)
    ),
    **{name: row for name, row in REFUSED_SECURITY.items() if name.startswith("ssl.")},
}


@dataclass(frozen=True, slots=True)
class RegistryUrl:
    """The address of a registry, and the credentials that stood in the URL."""

    #: Scheme, host, port and path, without a slash at the end.
    address: str
    #: `user:password`.
    user_info: Password | None = None

    def __str__(self) -> str:
        return self.address


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RegistrySettings:
    """The validated settings of a Schema Registry client, made by `from_mapping`.

    Its attributes are named as the settings, with underscores for dots.
    """

    url: tuple[RegistryUrl, ...] = setting(LIST, REQUIRED, HIGH).doc(
        "The registry's URLs (http:// or https://), separated by commas. If one cannot be reached "
        "or answers with an error of its own, the next one is asked. A URL may contain user and "
        "password."
    )
    basic_auth_credentials_source: str | None = setting(
        STRING, None, MEDIUM, OneOf((_USER_INFO, _IN_URL))
    ).doc(
        "Where user and password come from: USER_INFO is basic.auth.user.info, URL is the URL. "
        "Need not be set."
    )
    basic_auth_user_info: Password | None = setting(PASSWORD, None, HIGH, NotEmpty()).doc(
        "User and password, as `user:password`."
    )
    bearer_auth_credentials_source: str | None = setting(
        STRING, None, MEDIUM, OneOf((_STATIC_TOKEN,))
    ).doc("Where the token comes from: STATIC_TOKEN is bearer.auth.token. Need not be set.")
    bearer_auth_token: Password | None = setting(PASSWORD, None, HIGH, NotEmpty()).doc(
        "A token, which is sent with each request in place of user and password."
    )
    bearer_auth_logical_cluster: str | None = setting(STRING, None, LOW, NotEmpty()).doc(
        "With a token, in Confluent Cloud: the id of the registry, such as `lsrc-...`."
    )
    bearer_auth_identity_pool_id: str | None = setting(STRING, None, LOW, NotEmpty()).doc(
        "With a token, in Confluent Cloud: the id of the identity pool, such as `pool-...`."
    )
    request_timeout_ms: int = setting(INT, 30_000, MEDIUM, Range(1)).doc(
        "How long a request to one URL may take, from the look-up of the host's name to the end "
        "of the response."
    )
    max_retries: int = setting(INT, 3, MEDIUM, Range(0)).doc(
        "How often a request is repeated after all URLs have failed. Only transient errors are "
        "retried: a lost connection, a timeout, and the statuses 408, 429, 500, 502, 503 and 504. "
        "A schema that is unknown although a payload names it, or although it was just registered, "
        "is asked for again as often: a registry of several nodes may not know it yet."
    )
    retries_wait_ms: int = setting(INT, 1_000, LOW, Range(0)).doc(
        "How long to wait at most before the first retry; doubles with each further retry. The "
        "actual wait is random, so that many tasks do not ask at the same time."
    )
    retries_max_wait_ms: int = setting(INT, 20_000, LOW, Range(0)).doc(
        "The maximum wait before a retry."
    )
    proxy: RegistryUrl | None = setting(STRING, None, LOW, NotEmpty()).doc(
        "The proxy to send requests through, as `http://host:port`, or with user and password as "
        "`http://user:password@host:port`. Environment variables do not set one."
    )
    #: ssl.*; the other settings in it are not used.
    security: SecuritySettings = declared_in(SECURITY_CONFIG_DEF, *_TLS)
    _given: Mapping[str, object] = field(default_factory=dict, compare=False)
    #: What messages call the settings, and what they hide: the prefix, the names of settings with
    #: references, and the texts of these. A cached object must not show what another one hides.
    _display: tuple[str, frozenset[str], frozenset[str]] = ("", frozenset(), frozenset())

    @classmethod
    def from_mapping(cls, settings: Mapping[str, object], *, prefix: str = "") -> Self:
        """Parse `settings` by their names, which do not include `prefix`; errors do.

        Raises ConfigError; no error shows the value of a secret.
        """
        if not isinstance(settings, Mapping):
            raise ConfigError(
                f"the settings of a Schema Registry must be a mapping of names to values, not "
                f"{type(settings).__name__}"
            )
        _check_names(settings, prefix)
        known = {name: value for name, value in settings.items() if name not in REFUSED_REGISTRY}
        resolved = resolve_references(known, prefix)
        values = REGISTRY_CONFIG_DEF.parse(
            resolved.settings, prefix=prefix, secret=resolved.secret | _WITH_PASSWORDS
        )
        hidden = "url" in resolved.secret
        values["url"] = _urls(values["url"], f"{prefix}url", hidden=hidden)
        values["proxy"] = _proxy(values["proxy"], f"{prefix}proxy")
        _settle_credentials(values, prefix)
        _check_tls_has_effect(values, known, prefix)
        _check_waits_have_effect(values, known, prefix)
        security = security_settings(
            {**SECURITY_CONFIG_DEF.parse({}), **{name: values.pop(name) for name in _TLS}},
            prefix=prefix,
            secret=resolved.secret,
            secret_texts=resolved.texts,
        )
        return cls(
            **{attribute_name(name): value for name, value in values.items()},
            security=security,
            _given=dict(settings),
            _display=(prefix, resolved.secret, resolved.texts),
        )

    @classmethod
    def of_options(cls, settings: Mapping[str, object]) -> Self | None:
        """Parse what `registry_options` returned; None if the options name no registry."""
        return cls.from_mapping(settings, prefix=REGISTRY_PREFIX) if settings else None

    @property
    def prefix(self) -> str:
        """The prefix of the settings' names as the user wrote them."""
        return self.security.prefix

    @property
    def secrets(self) -> frozenset[str]:
        """The texts that no message may show."""
        texts = {*self.security.hidden_texts}
        for url in (*self.url, self.proxy):
            if url is not None and url.user_info is not None:
                texts |= {url.user_info.value, url.user_info.value.partition(":")[2]}
        if self.bearer_auth_token is not None:
            texts.add(self.bearer_auth_token.value)
        if has_reference(self._given["url"]):
            # As errors of TLS name it.
            texts |= {urlsplit(url.address).hostname or "" for url in self.url}
        return frozenset(filter(None, texts))

    def shown(self, url: RegistryUrl) -> str:
        """Return an address for a message; one from a reference is hidden."""
        return HIDDEN if has_reference(self._given["url"]) else url.address

    def __repr__(self) -> str:
        """Show all settings, with secrets hidden."""
        shown = ", ".join(
            f"{each.name}={self._shown(each.name)}"
            for each in fields(self)
            if each.name not in {"security", "_given", "_display"}
        )
        tls = ", ".join(
            f"{name}={value}"
            for name, value in self.security.shown().items()
            if name.startswith("ssl_")
        )
        return f"RegistrySettings({shown}, {tls})"

    def _shown(self, attribute: str) -> str:
        value = getattr(self, attribute)
        if value is not None and has_reference(self._given.get(attribute.replace("_", "."))):
            return HIDDEN
        if attribute == "url":
            return repr(",".join(map(str, self.url)))
        return repr(str(value)) if isinstance(value, RegistryUrl) else repr(value)

    def __reduce__(self) -> tuple[Callable[..., RegistrySettings], tuple[object, ...]]:
        """Pickle the settings as they were given, with references and not with their values."""
        return _configure, (type(self), dict(self._given), self.prefix)


def _configure(
    cls: type[RegistrySettings], settings: Mapping[str, object], prefix: str
) -> RegistrySettings:
    return cls.from_mapping(settings, prefix=prefix)


REGISTRY_CONFIG_DEF: Final = ConfigDef.of(RegistrySettings)


def registry_options(options: Mapping[str, object]) -> dict[str, object]:
    """Return the settings of the registry in options of Spark, by their names without the prefix.

    Names are not case-sensitive. Raises ConfigError for `kafka.schema.registry.*`.
    """
    own = {}
    for name, value in options.items():
        key = name.lower()
        if key.startswith(f"{KAFKA_PREFIX}{REGISTRY_PREFIX}"):
            raise ConfigError(
                f"unknown option {name!r}: a registry is not a part of Kafka, so write "
                f"{key.removeprefix(KAFKA_PREFIX)!r}"
            )
        if key.startswith(REGISTRY_PREFIX):
            own[key.removeprefix(REGISTRY_PREFIX)] = value
    return own


def _check_names(settings: Mapping[str, object], prefix: str) -> None:
    for name, value in settings.items():
        if not isinstance(name, str):
            raise ConfigError(f"the name of a setting must be a string, not {name!r}")
        refused = REFUSED_REGISTRY.get(name)
        if refused is not None and str(value).strip().lower() not in refused.accepted:
            raise ConfigError(f"{prefix}{name} is not supported: {refused.said(prefix)}")
        if refused is None and name not in REGISTRY_CONFIG_DEF:
            bare = name.lower().removeprefix(KAFKA_PREFIX).removeprefix(REGISTRY_PREFIX)
            nearest = nearest_name(bare, (*REGISTRY_CONFIG_DEF.names, *REFUSED_REGISTRY))
            raise unknown_option(
                f"{prefix}{name}", None if nearest is None else f"{prefix}{nearest}"
            )
        if has_reference(value) and name not in REGISTRY_REFERENCE_SETTINGS:
            raise ConfigError(
                f"{prefix}{name} does not accept ${{}} references, which are for secrets and for "
                "files with secrets: set the value itself"
            )
        if name in _SOURCES and str(value).strip() in _REFUSED_SOURCES:
            source = str(value).strip()
            reason = _REFUSED_SOURCES[source].said(prefix)
            raise ConfigError(f"{prefix}{name}={source} is not supported: {reason}")


def _urls(entries: tuple[str, ...], name: str, *, hidden: bool) -> tuple[RegistryUrl, ...]:
    """Return each URL once; entries between commas may be empty."""
    urls = dict.fromkeys(_url(entry, name, ("http", "https")) for entry in entries if entry)
    if not urls:
        raise ConfigError(f"{name} contains no URL: set http://host:port or https://host:port")
    for url in urls:
        try:
            allow_lists().check_url(url.address)
        except NotAllowedError as error:
            shown = HIDDEN if hidden else url.address
            raise ConfigError(f"{name} {shown} cannot be used: {error}") from None
    return tuple(urls)


def _url(text: str, name: str, schemes: tuple[str, ...]) -> RegistryUrl:
    """Split a URL; an error does not show it, since it may contain a password."""
    if _URL_TEXT.fullmatch(text) is None:
        raise ConfigError(
            f"{name} must not contain spaces, control characters or non-ASCII characters"
        )
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ConfigError(f"{name} has a malformed host or port") from None
    if parts.scheme not in schemes or not host:
        expected = " or ".join(f"{scheme}://host:port" for scheme in schemes)
        raise ConfigError(f"{name} must be {expected}")
    if parts.query or parts.fragment:
        raise ConfigError(f"{name} must end with a path: remove what begins with '?' or '#'")
    info, at, place = parts.netloc.rpartition("@")
    address = f"{parts.scheme}://{place}{parts.path.rstrip('/')}"
    return RegistryUrl(address, _user_info(unquote(info), name) if at else None)


def _user_info(text: str, name: str) -> Password:
    if _USER_AND_PASSWORD.fullmatch(text) is None:
        raise ConfigError(f"{name} must have user and password as user:password")
    return Password(text)


def _proxy(text: str | None, name: str) -> RegistryUrl | None:
    if text is None:
        return None
    proxy = _url(text, name, ("http",))
    if urlsplit(proxy.address).path:
        raise ConfigError(f"{name} must be http://host:port, without a path")
    try:
        allow_lists().check_url(proxy.address)
    except NotAllowedError as error:
        raise ConfigError(f"{name} cannot be used: {error}") from None
    return proxy


def _settle_credentials(values: dict[str, Any], prefix: str) -> None:
    """Check that there is at most one kind of credentials, and put user and password to the URLs.

    Confluent's clients ignore what the source does not name; here it is an error.
    """
    info, token = values["basic.auth.user.info"], values["bearer.auth.token"]
    basic, bearer = (values[name] for name in _SOURCES)
    in_url = any(url.user_info is not None for url in values["url"])
    given = {
        "basic.auth.user.info": info is not None,
        "bearer.auth.token": token is not None,
        "user and password in url": in_url,
    }
    several = [name for name, is_given in given.items() if is_given]
    if len(several) > 1:
        raise ConfigError(f"{prefix}{several[0]} and {several[1]} cannot both be set")
    for source, value, expected, name in (
        (_SOURCES[0], basic, _USER_INFO, "basic.auth.user.info"),
        (_SOURCES[0], basic, _IN_URL, "user and password in url"),
        (_SOURCES[1], bearer, _STATIC_TOKEN, "bearer.auth.token"),
    ):
        if value == expected and not given[name]:
            raise ConfigError(f"{prefix}{source}={value} requires {name}")
    for name in ("bearer.auth.logical.cluster", "bearer.auth.identity.pool.id"):
        if values[name] is not None and token is None:
            raise ConfigError(f"{prefix}{name} requires bearer.auth.token")
        if values[name] is not None and _HEADER_TEXT.fullmatch(values[name]) is None:
            raise ConfigError(f"{prefix}{name} must have only printable ASCII characters")
    if token is not None and _HEADER_TEXT.fullmatch(token.value) is None:
        raise ConfigError(f"{prefix}bearer.auth.token must have only printable ASCII characters")
    if info is not None:
        checked = _user_info(info.value, f"{prefix}basic.auth.user.info")
        values["url"] = tuple(RegistryUrl(url.address, checked) for url in values["url"])


def _check_tls_has_effect(
    values: Mapping[str, Any], given: Mapping[str, object], prefix: str
) -> None:
    if any(url.address.startswith("https:") for url in values["url"]):
        return
    for name in _TLS:
        if name in given:
            raise ConfigError(
                f"{prefix}{name} requires an https:// URL in {prefix}url: the setting would have "
                "no effect"
            )


def _check_waits_have_effect(
    values: Mapping[str, Any], given: Mapping[str, object], prefix: str
) -> None:
    for name in ("retries.wait.ms", "retries.max.wait.ms"):
        if name in given and values["max.retries"] == 0:
            raise ConfigError(
                f"{prefix}{name} has no effect with {prefix}max.retries=0: remove one of them"
            )
