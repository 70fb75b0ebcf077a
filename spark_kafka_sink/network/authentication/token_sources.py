"""Sources of OAUTHBEARER tokens: made here, read from a file, fetched over HTTPS, or a function.

Each source is a coroutine function that returns one token. None of them blocks the event loop:
whatever may block runs on a thread, and a login waits for it no longer than the settings allow.
This matters most for users' functions, about which nothing is known. Only their coroutine functions
run on the event loop, as coroutine functions expect.
"""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from spark_kafka_sink.config.lookup.named_files import read_named_file
from spark_kafka_sink.errors import AuthenticationError, ConfigError, KafkaError, NetworkError
from spark_kafka_sink.network.authentication.hidden_texts import errors_hiding, hidden_texts
from spark_kafka_sink.network.authentication.msk_iam import msk_iam_source
from spark_kafka_sink.network.authentication.tls_contexts import TlsContexts
from spark_kafka_sink.network.authentication.token_fetcher import (
    DEFAULT_TIMEOUT,
    FetchTimeouts,
    fetch_token,
)
from spark_kafka_sink.network.base.daemon_thread import Outcome, SharedCall, in_daemon_thread
from spark_kafka_sink.network.base.exponential_backoff import ExponentialBackoff
from spark_kafka_sink.network.base.timeout_check import done_by
from spark_kafka_sink.security.client_credentials import ClientCredentials
from spark_kafka_sink.security.login import MskIamToken, TokenFile, UnsecuredToken
from spark_kafka_sink.security.oauth_bearer import OAuthBearerToken, read_token
from spark_kafka_sink.security.redaction import HIDDEN
from spark_kafka_sink.security.tls import TlsSettings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

    from spark_kafka_sink.config.security_settings import SecuritySettings
    from spark_kafka_sink.security.login import TokenLogin

    GetToken = Callable[[], Awaitable[OAuthBearerToken]]

_THREAD = "kafka-token"
_HANDLER = "sasl.login.callback.handler.class"
_URL = "sasl.oauthbearer.token.endpoint.url"
#: The options of a login module about its token endpoint -> the settings of `TlsSettings`.
_ENDPOINT_TLS = {
    f"ssl.{name.replace('_', '.')}": name
    for name in (
        "truststore_type",
        "truststore_location",
        "truststore_password",
        "keystore_type",
        "keystore_location",
        "keystore_password",
        "key_password",
    )
}


def token_source(
    login: TokenLogin,
    settings: SecuritySettings,
    wall_clock: Callable[[], float],
    hosts: Sequence[str] = (),
) -> GetToken:
    """Return the function that gets a token; `hosts` are those of bootstrap.servers.

    Its errors show nothing that came from a reference. Raises ConfigError if the function named in
    the settings cannot be loaded.
    """
    get_token = _source(login, settings, wall_clock, hosts)
    hidden = hidden_texts(settings, login)

    async def get() -> OAuthBearerToken:
        with errors_hiding(hidden):
            return await get_token()

    return get


def _source(
    login: TokenLogin,
    settings: SecuritySettings,
    wall_clock: Callable[[], float],
    hosts: Sequence[str],
) -> GetToken:
    source, subject = login.source, login.subject_claim
    if isinstance(source, UnsecuredToken):
        return _made_here(source, wall_clock)
    if isinstance(source, TokenFile):
        return _from_file(source, subject, settings)
    if isinstance(source, ClientCredentials):
        return _from_endpoint(source, login, settings)
    if isinstance(source, MskIamToken):
        return _on_a_thread(msk_iam_source(source, hosts), f"{source} (AWS_MSK_IAM)", settings)
    reference = settings.sasl_login_callback_handler_class
    setting = f"{settings.prefix}{_HANDLER}"
    function = None if reference is None else reference.load(setting)
    if not callable(function):
        raise ConfigError(f"{setting}: {reference} cannot be called")
    return _from_function(function, f"{_HANDLER} {reference}", subject, settings)


def endpoint_tls(options: Mapping[str, str]) -> TlsSettings:
    """Read the `ssl.*` options of a login module, as in Java; ValueError if unsupported."""
    given = {name: value for name, value in options.items() if name.startswith("ssl.")}
    for name in given:
        if name not in _ENDPOINT_TLS:
            raise ValueError(
                f"sasl.jaas.config: {name} cannot be set for the token endpoint, but only "
                + ", ".join(_ENDPOINT_TLS)
            )
    chosen: dict[str, Any] = {_ENDPOINT_TLS[name]: value for name, value in given.items()}
    return TlsSettings(**chosen)


def _made_here(source: UnsecuredToken, wall_clock: Callable[[], float]) -> GetToken:
    async def get() -> OAuthBearerToken:
        return source.make(wall_clock())

    return get


def _from_file(source: TokenFile, subject_claim: str, settings: SecuritySettings) -> GetToken:
    setting = f"{settings.prefix}{_URL}"
    shown = HIDDEN if _URL in settings.hidden else source.path

    def read() -> OAuthBearerToken:
        try:
            text = read_named_file(source.path).decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise ConfigError(f"{setting}: {shown} cannot be read: {reason}") from None
        try:
            return read_token(text, subject_claim=subject_claim)
        except ValueError as error:
            raise AuthenticationError(f"{setting}: {shown}: {error}") from None

    return _on_a_thread(read, f"{setting}: {shown}", settings)


def _on_a_thread(
    function: Callable[[], Any], source: str, settings: SecuritySettings
) -> Callable[[], Awaitable[Any]]:
    call = SharedCall(_THREAD, function)
    timeout = _seconds(settings.sasl_login_read_timeout_ms)

    async def get() -> Any:
        outcome = await call.outcome_within(timeout)
        if outcome is None:
            raise NetworkError(
                f"{source} returned no token within {timeout:g} s (sasl.login.read.timeout.ms). "
                f"The call continues in the daemon thread {_THREAD!r}, and the next login waits "
                "for it: find out what blocks it, and give that a timeout of its own"
            )
        return outcome.get()

    return get


def _from_endpoint(
    credentials: ClientCredentials, login: TokenLogin, settings: SecuritySettings
) -> GetToken:
    hidden = hidden_texts(settings, login)
    # The endpoint's message is cut short, and half of a hidden text could not be found afterwards.
    credentials = replace(credentials, hidden=hidden)
    contexts = TlsContexts(
        endpoint_tls(login.tls_options), f"{settings.prefix}sasl.jaas.config: ", hidden
    )
    timeouts = FetchTimeouts(
        _seconds(settings.sasl_login_connect_timeout_ms),
        _seconds(settings.sasl_login_read_timeout_ms),
    )
    patience = settings.sasl_login_retry_backoff_max_ms / 1000
    backoff = ExponentialBackoff(settings.sasl_login_retry_backoff_ms / 1000, patience)

    async def get() -> OAuthBearerToken:
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + patience
        attempts = 0
        while True:
            fetched = await _fetched(credentials, timeouts, contexts)
            if not isinstance(fetched.error, NetworkError):
                return _read(
                    fetched.get(), login.subject_claim, f"the endpoint {credentials.endpoint}"
                )
            delay = backoff.delay(attempts)
            attempts += 1
            if loop.time() + delay >= give_up_at:
                raise fetched.error
            await asyncio.sleep(delay)

    return get


async def _fetched(
    credentials: ClientCredentials, timeouts: FetchTimeouts, contexts: TlsContexts
) -> Outcome:
    """Fetch a token once, within the two timeouts together.

    A hanging name service, or many addresses that do not answer, would take longer; the thread then
    ends by itself and is not waited for.
    """
    clock = asyncio.get_running_loop().time
    total = timeouts.connect + timeouts.read
    fetching = in_daemon_thread(
        _THREAD, fetch_token, credentials, timeouts, contexts.current, clock
    )
    if await done_by(fetching, clock() + total):
        return fetching.result()
    problem = (
        f"the request to the token endpoint {credentials.endpoint} failed: no response within "
        f"{total:g} s (sasl.login.connect.timeout.ms and sasl.login.read.timeout.ms together)"
    )
    return Outcome(None, NetworkError(problem))


def _seconds(milliseconds: int | None) -> float:
    return DEFAULT_TIMEOUT if milliseconds is None else milliseconds / 1000


def _from_function(
    function: Callable[[], Any], source: str, subject_claim: str, settings: SecuritySettings
) -> GetToken:
    called_in_time = _on_a_thread(function, source, settings)
    timeout = _seconds(settings.sasl_login_read_timeout_ms)

    async def get() -> OAuthBearerToken:
        try:
            if inspect.iscoroutinefunction(function):
                given = await _awaited(function(), source, timeout)
            else:
                given = await called_in_time()
        except KafkaError:
            raise
        except Exception as error:
            # Its error may contain anything, so it is the cause and not quoted.
            failed = NetworkError(
                f"{source} raised {type(error).__name__} instead of returning a token"
            )
            failed.is_from_user_code = True
            raise failed from error
        return _given(given, source, subject_claim)

    return get


async def _awaited(given: Coroutine[Any, Any, object], source: str, seconds: float) -> object:
    """Wait for a coroutine on this loop, which owns what the coroutine keeps between calls."""
    task = asyncio.ensure_future(given)
    try:
        if await done_by(task, asyncio.get_running_loop().time() + seconds):
            return task.result()
    finally:
        task.cancel()
    raise NetworkError(
        f"{source} returned no token within {seconds:g} s (sasl.login.read.timeout.ms), and was "
        "cancelled: find out what blocks it, and give that a timeout of its own"
    )


def _given(given: object, source: str, subject_claim: str) -> OAuthBearerToken:
    """Convert a function's result: a token, or a token and its expiry in seconds since 1970."""
    if isinstance(given, OAuthBearerToken):
        return given
    match given:
        case str():
            return _read(given, subject_claim, source)
        case (str() as value, int() | float() as expires_at) if not isinstance(expires_at, bool):
            return _read(value, subject_claim, source, expires_at)
    raise AuthenticationError(
        f"{source} returned {type(given).__name__}; it must return a token as str, or a tuple "
        "of the token and its expiry time in seconds since 1970"
    )


def _read(
    value: str, subject_claim: str, source: str, expires_at: float | None = None
) -> OAuthBearerToken:
    try:
        token = read_token(value, subject_claim=subject_claim)
        return token if expires_at is None else replace(token, expires_at=float(expires_at))
    except (ValueError, OverflowError) as error:
        raise AuthenticationError(f"{source}: {error}") from None
