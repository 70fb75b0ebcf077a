"""The login of a client: a SASL mechanism and the login module of Java's `sasl.jaas.config`.

A `Login` is the lasting part: user and password, or the source of tokens. It creates a `SaslClient`
for each exchange. Nothing is fetched or read here: a token's source is described as data, and the
network layer gets the token.

All errors of `read_login` are ValueErrors whose message begins with a setting and shows no secret.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias
from urllib.parse import SplitResult, unquote

from spark_kafka_sink.security.kerberos import KRB5_LOGIN_MODULE, KerberosLogin, read_kerberos
from spark_kafka_sink.security.oauth_bearer import (
    ClientCredentials,
    OAuthBearerClient,
    OAuthBearerToken,
    check_extensions,
    check_url,
    read_token,
    split_url,
    unsecured_token,
)
from spark_kafka_sink.security.sasl import CHECK_LOGIN, Expiry, SaslClient, SaslMechanism
from spark_kafka_sink.security.scram import ScramClient

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping


_KAFKA: Final = "org.apache.kafka.common.security."
_MODULES: Final[Mapping[SaslMechanism, str]] = MappingProxyType(
    {
        SaslMechanism.PLAIN: f"{_KAFKA}plain.PlainLoginModule",
        SaslMechanism.SCRAM_SHA_256: f"{_KAFKA}scram.ScramLoginModule",
        SaslMechanism.SCRAM_SHA_512: f"{_KAFKA}scram.ScramLoginModule",
        SaslMechanism.OAUTHBEARER: f"{_KAFKA}oauthbearer.OAuthBearerLoginModule",
        SaslMechanism.GSSAPI: KRB5_LOGIN_MODULE,
    }
)
_AWS_MSK_IAM: Final = "AWS_MSK_IAM"
_IAM_MODULE: Final = "software.amazon.msk.auth.iam.IAMLoginModule"
_TLS_OPTION: Final = "ssl."
_UNSECURED: Final = "unsecuredLogin"
_EXTENSION: Final = "Extension_"
#: Java's prefix for extensions of tokens other than unsecured ones.
_OTHER_EXTENSION: Final = "extension_"
#: The claims that an unsecured token always sets itself.
_RESERVED_CLAIMS: Final = frozenset({"iat", "exp"})
_LIFETIME: Final = "3600"
_NUL = "\0"

#: A token of an entry; a quoted text ends on its line, as in Java's StreamTokenizer.
_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|//[^\r\n]*|/\*.*?\*/)
      | "(?P<double>(?:\\.|[^"\\\r\n])*)"
      | '(?P<single>(?:\\.|[^'\\\r\n])*)'
      | (?P<mark>[=;])
      | (?P<word>[^\s=;"']+)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)", re.DOTALL)
_CONTROLS: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_CONTROL_FLAGS: Final = ("required", "requisite", "sufficient", "optional")


# --- the entries of sasl.jaas.config


@dataclass(frozen=True, slots=True)
class LoginModule:
    """A JAAS login entry; its repr does not show the options, which may be secrets."""

    #: The name of the Java class.
    name: str
    options: Mapping[str, str] = field(repr=False)

    def is_class(self, java_class: str) -> bool:
        """Return whether it names this class, which some platforms ship under their own prefix."""
        return self.name == java_class or self.name.endswith(f".{java_class}")


class _Token(NamedTuple):
    text: str
    #: Whether it is an unquoted `=` or `;`.
    is_mark: bool = False


_EQUALS: Final = _Token("=", is_mark=True)
_END: Final = _Token(";", is_mark=True)


def parse_jaas(text: str) -> LoginModule:
    """Parse the only entry of a `sasl.jaas.config`: a login module and its options.

        org.apache.kafka.common.security.scram.ScramLoginModule required username="a" password="b";

    Parsed like `org.apache.kafka.common.security.JaasConfig`, with Java's escapes in quotes and
    both of its kinds of comments; unquoted values are accepted in any form.

    Raises ValueError, whose message is the end of a sentence about the setting. The entry holds
    passwords, so errors show nothing of it but the name of the module.
    """
    tokens = _tokens(text)
    name, flag = next(tokens, _END), next(tokens, _END)
    if name.is_mark or flag.is_mark or flag.text.lower() not in _CONTROL_FLAGS:
        raise ValueError("must begin with a login module and the word 'required'")
    options = {}
    while (key := next(tokens, None)) != _END:
        if key is None:
            raise ValueError("must end with a semicolon")
        equals, value = next(tokens, _END), next(tokens, _END)
        if key.is_mark or equals != _EQUALS or value.is_mark:
            raise ValueError(
                'must give options as name="value"; a quote within a value is written \\"'
            )
        options[key.text] = value.text
    if next(tokens, None) is not None:
        raise ValueError("must name one login module, with nothing after its semicolon")
    return LoginModule(name.text, options)


def _tokens(text: str) -> Iterator[_Token]:
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError("has a quote that is not closed on its line")
        position = match.end()
        kind = match.lastgroup
        if kind in {"single", "double"}:
            yield _Token(_unescape(match[kind]))
        elif kind != "space":
            yield _Token(match[0], is_mark=kind == "mark")


def _unescape(quoted: str) -> str:
    def replacement(escape: re.Match[str]) -> str:
        code = escape[1]
        return (
            chr(int(code, 8)) if code in "01234567" or len(code) > 1 else _CONTROLS.get(code, code)
        )

    return _ESCAPE.sub(replacement, quoted)


# --- logins


class PlainClient:
    """A PLAIN exchange (RFC 4616), which consists of a single message.

    It has the username and the password in clear text. Only TLS protects them in transit.
    """

    mechanism = SaslMechanism.PLAIN
    failure = None
    expiry: Expiry | None = None
    hidden: Collection[str] = ()
    advice = CHECK_LOGIN

    def __init__(self, username: str, password: str) -> None:
        """Set the credentials; ValueError for a NUL, which would shift the border between them."""
        for name, value in (("username", username), ("password", password)):
            if _NUL in value:
                raise ValueError(f"the {name} must not contain NUL")
        self.user = username
        self.secret = password
        self.is_complete = False

    def initial_response(self) -> bytes:
        """Return the message, without an authorization id: the user acts as themselves."""
        self.is_complete = True
        return f"{_NUL}{self.user}{_NUL}{self.secret}".encode()

    def evaluate_challenge(self, challenge: bytes) -> bytes | None:  # noqa: ARG002
        """Return None: what the broker sends with its consent changes nothing."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class PasswordLogin:
    """A username and a password, for PLAIN and SCRAM."""

    mechanism: SaslMechanism
    username: str = field(repr=False)
    password: str = field(repr=False)
    #: Whether they are the id and the HMAC of a delegation token (KIP-48).
    token_auth: bool = False

    def client(self) -> SaslClient:
        """Create the client of a new exchange."""
        if self.mechanism is SaslMechanism.PLAIN:
            return PlainClient(self.username, self.password)
        return ScramClient(self.mechanism, self.username, self.password, token_auth=self.token_auth)


@dataclass(frozen=True, slots=True)
class UnsecuredToken:
    """An unsigned token that this client makes itself."""

    claims: Mapping[str, object]
    #: In seconds.
    lifetime: float
    subject_claim: str

    def make(self, now: float) -> OAuthBearerToken:
        """Make a token that is valid from `now` on."""
        token = unsecured_token(self.claims, now=now, lifetime=self.lifetime)
        return read_token(token.value, subject_claim=self.subject_claim)


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A file that holds a token and may be replaced at any time."""

    path: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class TokenFunction:
    """A function that is called for each token; the network layer loads it."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MskIamToken:
    """A token signed with AWS credentials; the options are those of Java's IAMLoginModule."""

    profile: str | None = None
    role_arn: str | None = None
    session_name: str = "spark-kafka-sink"
    #: The cluster's region; None to find it in the brokers' names or the environment.
    region: str | None = None

    def __str__(self) -> str:
        """Return the name of the credentials for use in a sentence."""
        if self.role_arn is not None:
            return f"AWS role {self.role_arn}"
        return "AWS credentials" if self.profile is None else f"AWS profile {self.profile}"


TokenSource: TypeAlias = (
    UnsecuredToken | TokenFile | TokenFunction | ClientCredentials | MskIamToken
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogin:
    """A token that is fetched from its source, for OAUTHBEARER."""

    source: TokenSource
    extensions: Mapping[str, str] = field(default_factory=dict)
    subject_claim: str = "sub"
    #: The `ssl.*` options of the login module, for TLS connections to the token endpoint.
    tls_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    mechanism = SaslMechanism.OAUTHBEARER

    def client(self, token: OAuthBearerToken) -> SaslClient:
        """Create the client of an exchange that presents this token."""
        return OAuthBearerClient(token, self.extensions)


Login: TypeAlias = PasswordLogin | TokenLogin | KerberosLogin


def login_module(login: Login) -> str:
    """Return the Java class of the login module for this login."""
    if isinstance(login, TokenLogin) and isinstance(login.source, MskIamToken):
        return _IAM_MODULE
    return _MODULES[login.mechanism]


# --- the settings


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSettings:
    """The OAUTHBEARER settings besides sasl.jaas.config."""

    #: The name in sasl.login.callback.handler.class; None if it is not set.
    handler: str | None = None
    url: str | None = field(default=None, repr=False)
    client_id: str | None = field(default=None, repr=False)
    client_secret: str | None = field(default=None, repr=False)
    scope: str | None = None
    urlencode: bool = False
    subject_claim: str = "sub"


def read_login(
    mechanism: str, jaas: str | None, tokens: TokenSettings, *, service_name: str | None = None
) -> Login:
    """Parse the SASL settings; see the module for errors.

    `service_name` is sasl.kerberos.service.name.
    """
    if mechanism == _AWS_MSK_IAM:
        # MSK clusters accept the same signature through OAUTHBEARER, as Amazon's Python signer
        # makes it.
        options = {} if jaas is None else _parsed(jaas).options
        return TokenLogin(source=_msk_iam(options))
    if mechanism not in _MODULES:
        raise ValueError(
            f"sasl.mechanism {mechanism} is not supported: set it to {', '.join(_MODULES)} or "
            f"{_AWS_MSK_IAM}, whichever the cluster uses"
        )
    known = SaslMechanism(mechanism)
    module = _module(known, jaas)
    if known is SaslMechanism.OAUTHBEARER:
        return _token_login(module, tokens)
    if known is SaslMechanism.GSSAPI:
        if module is None:
            raise ValueError(
                "sasl.jaas.config is required with sasl.mechanism=GSSAPI (the default, as in "
                f"Java; set another one if it is not Kerberos): {KRB5_LOGIN_MODULE} required "
                'useTicketCache=true; or ... useKeyTab=true keyTab="..." principal="...";'
            )
        return read_kerberos(module.options, service_name)
    if module is None:
        raise ValueError(
            f"sasl.jaas.config is required with sasl.mechanism={mechanism}: {_MODULES[known]} "
            'required username="..." password="...";'
        )
    login = PasswordLogin(
        mechanism=known,
        username=_option(module, "username"),
        password=_option(module, "password"),
        token_auth=_flag(module, "tokenauth"),
    )
    try:
        login.client()
    except ValueError as error:
        raise ValueError(f"sasl.jaas.config: {error}") from None
    return login


def _module(mechanism: SaslMechanism, jaas: str | None) -> LoginModule | None:
    if jaas is None:
        return None
    module = _parsed(jaas)
    if not module.is_class(_MODULES[mechanism]):
        theirs = sorted(other for other, name in _MODULES.items() if module.is_class(name))
        advice = f"set sasl.mechanism={' or '.join(theirs)}, or " if theirs else ""
        raise ValueError(
            f"sasl.jaas.config names {module.name!r}, but sasl.mechanism is {mechanism}: {advice}"
            f"name {_MODULES[mechanism]}"
        )
    return module


def _parsed(jaas: str) -> LoginModule:
    try:
        return parse_jaas(jaas)
    except ValueError as error:
        raise ValueError(f"sasl.jaas.config {error}") from None


def _option(module: LoginModule, name: str) -> str:
    value = module.options.get(name)
    if not value:
        raise ValueError(f"sasl.jaas.config has no {name}")
    return value


def _flag(module: LoginModule, name: str) -> bool:
    return module.options.get(name, "").lower() == "true"


# --- tokens


def _token_login(module: LoginModule | None, tokens: TokenSettings) -> TokenLogin:
    options = {} if module is None else module.options
    unsecured = f"{_UNSECURED}{_EXTENSION}"
    extensions = {
        name.removeprefix(prefix): value
        for name, value in options.items()
        for prefix in (unsecured, _OTHER_EXTENSION)
        if name.startswith(prefix)
    }
    try:
        check_extensions(extensions)
    except ValueError as error:
        raise ValueError(f"sasl.jaas.config: {error}") from None
    return TokenLogin(
        source=_token_source(options, tokens),
        extensions=extensions,
        subject_claim=tokens.subject_claim,
        tls_options={
            name: value for name, value in options.items() if name.startswith(_TLS_OPTION)
        },
    )


def _token_source(options: Mapping[str, str], tokens: TokenSettings) -> TokenSource:
    handler = tokens.handler or ("unsecured" if tokens.url is None else "token_endpoint")
    if handler == "unsecured":
        return _unsecured(options)
    if handler == "msk_iam":
        return _msk_iam(options)
    return (
        _token_endpoint(options, tokens) if handler == "token_endpoint" else TokenFunction(handler)
    )


def _token_file(parts: SplitResult) -> TokenFile:
    if not parts.path or parts.netloc not in {"", "localhost"}:
        raise ValueError("names no file: use file:///path/to/token")
    return TokenFile(unquote(parts.path))


def _token_endpoint(
    options: Mapping[str, str], tokens: TokenSettings
) -> TokenFile | ClientCredentials:
    if tokens.url is None:
        raise ValueError(
            "sasl.oauthbearer.token.endpoint.url is required: the endpoint that issues "
            "tokens (https://), or the file with a token (file:///path)"
        )
    try:
        parts = split_url(tokens.url)
        if parts.scheme == "file":
            return _token_file(parts)
        check_url(tokens.url)
    except ValueError as error:
        raise ValueError(f"sasl.oauthbearer.token.endpoint.url {error}") from None
    prefix = "sasl.oauthbearer.client.credentials.client"
    client_id = tokens.client_id or options.get("clientId")
    client_secret = tokens.client_secret or options.get("clientSecret")
    for name, value in (("id", client_id), ("secret", client_secret)):
        if not value:
            raise ValueError(f"{prefix}.{name} is required by the token endpoint")
    return ClientCredentials(
        url=tokens.url,
        client_id=client_id or "",
        client_secret=client_secret or "",
        scope=tokens.scope or options.get("scope"),
        urlencode=tokens.urlencode,
    )


def _msk_iam(options: Mapping[str, str]) -> MskIamToken:
    return MskIamToken(
        profile=options.get("awsProfileName"),
        role_arn=options.get("awsRoleArn"),
        session_name=options.get("awsRoleSessionName") or "spark-kafka-sink",
        region=options.get("awsRegion"),
    )


def _unsecured(options: Mapping[str, str]) -> UnsecuredToken:
    """Parse the options that Java's OAuthBearerUnsecuredLoginCallbackHandler reads."""
    subject_claim = options.get(f"{_UNSECURED}PrincipalClaimName") or "sub"
    claims = dict(_claims(options))
    if not claims.get(subject_claim):
        raise ValueError(
            "sasl.oauthbearer.token.endpoint.url and sasl.login.callback.handler.class are not "
            "set: set the one that provides tokens; for unsigned tokens, "
            f"sasl.jaas.config requires {_UNSECURED}StringClaim_{subject_claim}"
        )
    lifetime = options.get(f"{_UNSECURED}LifetimeSeconds", _LIFETIME)
    if not lifetime.isdecimal():
        raise ValueError(f"sasl.jaas.config: {_UNSECURED}LifetimeSeconds must be a whole number")
    return UnsecuredToken(claims, float(lifetime), subject_claim)


def _claims(options: Mapping[str, str]) -> Iterator[tuple[str, object]]:
    for option, value in options.items():
        kind, separator, claim = option.removeprefix(_UNSECURED).partition("Claim_")
        if not separator or not claim or not option.startswith(_UNSECURED):
            continue
        if claim in _RESERVED_CLAIMS:
            raise ValueError(f"sasl.jaas.config: the claim {claim!r} of a token cannot be set")
        if kind == "String":
            yield claim, value
        elif kind == "List":
            # The first character is the separator of the items.
            yield claim, value[1:].split(value[0]) if value[1:] else []
        elif kind == "Number":
            try:
                yield claim, float(value)
            except ValueError:
                raise ValueError(f"sasl.jaas.config: {option} must be a number") from None
