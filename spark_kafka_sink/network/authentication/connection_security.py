"""The security of a client's connections, built from its settings.

`read_security` checks the settings as a whole; it reads no certificates or tokens and connects to
nothing. Code that creates a producer calls it first, so that errors are reported at once. A
NetworkClient holds a `ConnectionSecurity` for its lifetime: the TLS contexts and the source of SASL
exchanges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from spark_kafka_sink.config.allow_lists import NotAllowedError, allow_lists
from spark_kafka_sink.config.config_def import plain_text
from spark_kafka_sink.errors import ConfigError, IllegalStateError
from spark_kafka_sink.network.authentication.kerberos_tickets import begin_gssapi, check_gssapi
from spark_kafka_sink.network.authentication.tokens import TokenProvider, token_source
from spark_kafka_sink.network.tls_contexts import TlsContexts, tls_settings
from spark_kafka_sink.security.kerberos import KerberosLogin
from spark_kafka_sink.security.login import (
    Login,
    PasswordLogin,
    TokenLogin,
    TokenSettings,
    login_module,
    read_login,
)
from spark_kafka_sink.security.oauth_bearer import RefreshPolicy
from spark_kafka_sink.security.redaction import errors_hiding, hide
from spark_kafka_sink.security.sasl import Expiry, SaslClient

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from spark_kafka_sink.config.security_settings import SecuritySettings
    from spark_kafka_sink.model import Node
    from spark_kafka_sink.security.tls import TlsSettings


class SecurityPlan(NamedTuple):
    """The parsed security settings; None for a layer that is not used."""

    tls: TlsSettings | None
    login: Login | None


def read_security(settings: SecuritySettings) -> SecurityPlan:
    """Parse the TLS and SASL settings as a whole; ConfigError if they are invalid."""
    try:
        return SecurityPlan(
            tls_settings(settings) if settings.uses_tls else None,
            _login(settings) if settings.uses_sasl else None,
        )
    except ValueError as error:
        problem = hide(str(error), settings.hidden_texts)
        raise ConfigError(f"{settings.prefix}{problem}") from None


def _login(settings: SecuritySettings) -> Login:
    handler = settings.sasl_login_callback_handler_class
    login = read_login(
        settings.sasl_mechanism,
        plain_text(settings.sasl_jaas_config),
        TokenSettings(
            handler=None if handler is None else handler.built_in or str(handler),
            url=settings.sasl_oauthbearer_token_endpoint_url,
            client_id=settings.sasl_oauthbearer_client_credentials_client_id,
            client_secret=plain_text(settings.sasl_oauthbearer_client_credentials_client_secret),
            scope=settings.sasl_oauthbearer_scope,
            urlencode=settings.sasl_oauthbearer_header_urlencode,
            subject_claim=settings.sasl_oauthbearer_sub_claim_name,
        ),
        service_name=settings.sasl_kerberos_service_name,
    )
    _check_allowed(login, settings.sasl_oauthbearer_token_endpoint_url)
    if isinstance(login, KerberosLogin):
        check_gssapi()
    if isinstance(login, TokenLogin):
        # This checks that the source can be created; it requests no token until it is called.
        token_source(login, settings, lambda: 0.0)
    return login


def _check_allowed(login: Login, token_endpoint: str | None) -> None:
    """Raise ValueError for a login that this process may not use; files are checked when read."""
    lists = allow_lists()
    setting = f"sasl.jaas.config: {login_module(login)}"
    try:
        lists.check_login_module(login_module(login))
        if isinstance(login, TokenLogin) and token_endpoint is not None:
            # A token file is named by a URL as well.
            setting = "sasl.oauthbearer.token.endpoint.url"
            lists.check_url(token_endpoint)
        if isinstance(login, KerberosLogin) and login.ticket_cache is not None:
            setting = "sasl.jaas.config: ticketCache"
            lists.check_ticket_cache(login.ticket_cache)
    except NotAllowedError as error:
        raise ValueError(f"{setting}: {error}") from None


def hidden_texts(settings: SecuritySettings, login: Login | None) -> frozenset[str]:
    """Return what errors must not show: the values of references, and the paths within them.

    A reference may stand for the whole sasl.jaas.config, and errors name the files in it.
    """
    paths: list[str | None] = []
    if isinstance(login, KerberosLogin):
        paths = [login.keytab, login.ticket_cache]
    elif isinstance(login, TokenLogin):
        paths = [
            login.tls_options.get(f"ssl.{store}.location") for store in ("truststore", "keystore")
        ]
    texts = settings.hidden_texts
    return texts | {path for path in paths if path and any(path in text for text in texts)}


class ConnectionSecurity:
    """The TLS contexts and SASL exchanges of one client. Belongs to one event loop; `close` it."""

    def __init__(
        self,
        settings: SecuritySettings,
        wall_clock: Callable[[], float],
        hosts: Sequence[str] = (),
    ) -> None:
        """Check the settings, without reading a file or connecting to anything.

        `wall_clock` returns seconds since 1970, `hosts` are those of bootstrap.servers.

        Raises ConfigError like `read_security`, and if a token function cannot be loaded.
        """
        plan = read_security(settings)
        self._login = plan.login
        self._wall_clock = wall_clock
        self._hidden = hidden_texts(settings, plan.login)
        #: None for connections without TLS.
        self.tls = (
            None if plan.tls is None else TlsContexts(plan.tls, settings.prefix, self._hidden)
        )
        self._tokens: TokenProvider | None = None
        if isinstance(plan.login, TokenLogin):
            self._tokens = TokenProvider(
                token_source(plan.login, settings, wall_clock, hosts, self._hidden),
                _refresh_policy(settings),
                wall_clock,
                self._hidden,
            )

    @property
    def sasl_client(self) -> Callable[[Node], Awaitable[SaslClient]] | None:
        """A function that begins an exchange for a connection; None without SASL."""
        return None if self._login is None else self._begin_exchange

    @property
    def awaits_token(self) -> bool:
        """Whether logins are waiting for a token that has been requested."""
        return self._tokens is not None and self._tokens.is_getting

    async def _begin_exchange(self, node: Node) -> SaslClient:
        with errors_hiding(self._hidden):
            client = await self._new_client(node)
        client.hidden = self._hidden
        return client

    async def _new_client(self, node: Node) -> SaslClient:
        if self._tokens is not None:
            token = await self._tokens.token()
            client = cast("TokenLogin", self._login).client(token)
            if token.expires_at is not None:
                client.expiry = Expiry(token.expires_at, self._wall_clock)
            return client
        if isinstance(self._login, PasswordLogin):
            return self._login.client()
        if isinstance(self._login, KerberosLogin):
            return await begin_gssapi(self._login, node.host)
        raise IllegalStateError("this connection has no login")

    async def close(self) -> None:
        """Stop refreshing tokens, and cancel a request that is under way."""
        if self._tokens is not None:
            await self._tokens.close()


def _refresh_policy(settings: SecuritySettings) -> RefreshPolicy:
    return RefreshPolicy(
        window_factor=settings.sasl_login_refresh_window_factor,
        window_jitter=settings.sasl_login_refresh_window_jitter,
        min_period=settings.sasl_login_refresh_min_period_seconds,
        buffer=settings.sasl_login_refresh_buffer_seconds,
    )
