"""OAUTHBEARER tokens: their sources, and the token that a client uses (`TokenProvider`).

They are made or signed here, from a file, fetched over HTTPS, or returned by a function.

Each source is a coroutine function that returns one token. None of them blocks the event loop:
whatever may block runs on a thread, and a login waits for it no longer than the settings allow.
This matters most for users' functions, about which nothing is known. Only their coroutine functions
run on the event loop, as coroutine functions expect.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import random
import re
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.config.allow_lists import read_named_file
from spark_kafka_sink.errors import AuthenticationError, ConfigError, KafkaError, NetworkError
from spark_kafka_sink.network.daemon_thread import Outcome, SharedCall, in_daemon_thread
from spark_kafka_sink.network.exponential_backoff import ExponentialBackoff
from spark_kafka_sink.network.http_client import (
    HttpError,
    HttpFailure,
    HttpRequest,
    HttpTimeouts,
    exchange,
)
from spark_kafka_sink.network.timeout_check import done_by
from spark_kafka_sink.network.tls_contexts import TlsContexts
from spark_kafka_sink.security.login import MskIamToken, TokenFile, UnsecuredToken
from spark_kafka_sink.security.oauth_bearer import (
    ClientCredentials,
    OAuthBearerToken,
    access_token,
    read_token,
    token_request,
)
from spark_kafka_sink.security.redaction import HIDDEN, errors_hiding, hide
from spark_kafka_sink.security.sasl import moment
from spark_kafka_sink.security.tls import TlsSettings

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence

    from spark_kafka_sink.config.security_settings import SecuritySettings
    from spark_kafka_sink.security.login import TokenLogin
    from spark_kafka_sink.security.oauth_bearer import RefreshPolicy

    GetToken = Callable[[], Awaitable[OAuthBearerToken]]

logger = logging.getLogger(__name__)

#: Seconds between two attempts to replace a token that is still valid.
RETRY_INTERVAL: Final = 10.0
_THREAD = "kafka-token"
_HANDLER = "sasl.login.callback.handler.class"
_URL = "sasl.oauthbearer.token.endpoint.url"
#: The default of the timeouts in seconds; the Java client would wait forever.
DEFAULT_TIMEOUT: Final = 10.0
#: The most bytes read of an endpoint's response; no token comes near this size.
_MAX_BYTES: Final = 1 << 20
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

_SIGNER: Final = "aws_msk_iam_sasl_signer"
#: An MSK broker's host name, provisioned or serverless, which contains the region.
_HOST: Final = re.compile(r"\.kafka(?:-serverless)?\.([a-z]{2}(?:-[a-z]+)+-\d)\.amazonaws\.com")
_REGION_VARIABLES: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
_MILLISECONDS: Final = 1000


# --- a token request to an OAuth endpoint


def fetch_token(
    credentials: ClientCredentials,
    timeouts: HttpTimeouts,
    tls_context: Callable[[], ssl.SSLContext],
    clock: Callable[[], float],
) -> str:
    """Fetch a token over HTTPS with one POST and one response; redirects are not followed.

    A redirect could send the client's secret anywhere, so it is treated like any other response
    without a token. The call blocks and needs a thread of its own. It takes a bounded time,
    whatever the endpoint does: a response that arrives byte by byte has to be complete in time as
    well. `clock` returns seconds since an arbitrary moment.

    Raises AuthenticationError if the endpoint refuses permanently or its certificate is not
    trusted, NetworkError if it may respond differently later; neither shows the secret.
    """
    asked = token_request(credentials)
    request = HttpRequest("POST", asked.url, asked.headers, asked.body)
    try:
        response = exchange(request, timeouts, tls_context, clock, max_bytes=_MAX_BYTES)
    except HttpError as error:
        if error.failure is HttpFailure.UNTRUSTED:
            raise AuthenticationError(
                f"the certificate of the token endpoint {credentials.endpoint} is not trusted, or "
                f"is for another host ({error.reason}): check the ssl.truststore.* options of "
                "the login module in sasl.jaas.config"
            ) from None
        late = {
            HttpFailure.NO_CONNECTION: f"no connection within {timeouts.connect:g} s "
            "(sasl.login.connect.timeout.ms)",
            HttpFailure.NO_ANSWER: f"no answer within {timeouts.read:g} s "
            "(sasl.login.read.timeout.ms)",
        }
        # The library's message quotes a response that is not HTTP, and that may contain secrets.
        raise NetworkError(
            f"the request to the token endpoint {credentials.endpoint} failed: "
            f"{credentials.quoted(late.get(error.failure, error.reason))}"
        ) from None
    return access_token(credentials, response.status, response.body)


# --- tokens for Amazon MSK with IAM


def msk_iam_source(source: MskIamToken, hosts: Sequence[str]) -> Callable[[], OAuthBearerToken]:
    """Return the function that signs a token; ConfigError if the signer is not installed.

    The signer is Amazon's own (extra `msk-iam`). It presigns a request with the AWS credentials of
    this process, and the cluster accepts that as an OAUTHBEARER token. The options of Java's
    IAMLoginModule select the credentials; without options, the AWS libraries find them in their
    usual places. The function blocks, since credentials may have to be fetched.
    """
    if find_spec(_SIGNER) is None:
        raise ConfigError(
            "sasl.mechanism AWS_MSK_IAM, or msk_iam as sasl.login.callback.handler.class, requires "
            "Amazon's signer: pip install 'spark-kafka-sink[msk-iam]', for the driver and for tasks"
        )
    return lambda: _sign(source, msk_region(source, hosts))


def msk_region(source: MskIamToken, hosts: Sequence[str]) -> str:
    """Return the cluster's region: as configured, from a broker's name, or from the environment.

    Raises ConfigError if none of these has it.
    """
    matches = (_HOST.search(host.lower()) for host in hosts)
    named = source.region or next((match[1] for match in matches if match), None)
    region = named or next(filter(None, map(os.environ.get, _REGION_VARIABLES)), None)
    if region is None:
        raise ConfigError(
            "the AWS region of the cluster is unknown: bootstrap.servers has no host names of "
            "Amazon MSK; set awsRegion in sasl.jaas.config, or the environment variable AWS_REGION"
        )
    return region


def _sign(source: MskIamToken, region: str) -> OAuthBearerToken:
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider  # noqa: PLC0415 -- optional, and slow
    from botocore.exceptions import HTTPClientError  # noqa: PLC0415 -- comes with it

    try:
        if source.role_arn is not None:
            signed = MSKAuthTokenProvider.generate_auth_token_from_role_arn(
                region, source.role_arn, source.session_name
            )
        elif source.profile is not None:
            signed = MSKAuthTokenProvider.generate_auth_token_from_profile(region, source.profile)
        else:
            signed = MSKAuthTokenProvider.generate_auth_token(region)
    except HTTPClientError as error:
        raise NetworkError(
            f"{source} (AWS_MSK_IAM) could not be requested: {type(error).__name__}"
        ) from error
    except Exception as error:
        # The AWS libraries raise many kinds of errors, and none is transient.
        raise AuthenticationError(
            f"{source} (AWS_MSK_IAM) cannot be used: {type(error).__name__}. Check where this "
            "process (driver or task) finds its AWS credentials"
        ) from error
    value, expires_at_ms = signed
    return OAuthBearerToken(
        value=value, subject=str(source), expires_at=expires_at_ms / _MILLISECONDS
    )


# --- the sources


def token_source(
    login: TokenLogin,
    settings: SecuritySettings,
    wall_clock: Callable[[], float],
    hosts: Sequence[str] = (),
    hidden: Collection[str] = (),
) -> GetToken:
    """Return the function that gets a token; `hosts` are those of bootstrap.servers.

    What an endpoint answers is quoted without `hidden`. Raises ConfigError if the function named in
    the settings cannot be loaded.
    """
    source, subject = login.source, login.subject_claim
    if isinstance(source, UnsecuredToken):
        return _made_here(source, wall_clock)
    if isinstance(source, TokenFile):
        return _from_file(source, subject, settings)
    if isinstance(source, ClientCredentials):
        return _from_endpoint(source, login, settings, hidden)
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
    credentials: ClientCredentials,
    login: TokenLogin,
    settings: SecuritySettings,
    hidden: Collection[str],
) -> GetToken:
    # The endpoint's message is cut short, and half of a hidden text could not be found afterwards.
    credentials = replace(credentials, hidden=hidden)
    contexts = TlsContexts(
        endpoint_tls(login.tls_options), f"{settings.prefix}sasl.jaas.config: ", hidden
    )
    timeouts = HttpTimeouts(
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
    credentials: ClientCredentials, timeouts: HttpTimeouts, contexts: TlsContexts
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
                result = await _awaited(function(), source, timeout)
            else:
                result = await called_in_time()
        except KafkaError:
            raise
        except Exception as error:
            # Its error may contain anything, so it is the cause and not quoted.
            failed = NetworkError(
                f"{source} raised {type(error).__name__} instead of returning a token"
            )
            failed.is_from_user_code = True
            raise failed from error
        return _token_of(result, source, subject_claim)

    return get


async def _awaited(coroutine: Coroutine[Any, Any, object], source: str, seconds: float) -> object:
    """Wait for a coroutine on this loop, which owns what the coroutine keeps between calls."""
    task = asyncio.ensure_future(coroutine)
    try:
        if await done_by(task, asyncio.get_running_loop().time() + seconds):
            return task.result()
    finally:
        task.cancel()
    raise NetworkError(
        f"{source} returned no token within {seconds:g} s (sasl.login.read.timeout.ms), and was "
        "cancelled: find out what blocks it, and give that a timeout of its own"
    )


def _token_of(result: object, source: str, subject_claim: str) -> OAuthBearerToken:
    """Convert a function's result: a token, or a token and its expiry in seconds since 1970."""
    if isinstance(result, OAuthBearerToken):
        return result
    match result:
        case str():
            return _read(result, subject_claim, source)
        case (str() as value, int() | float() as expires_at) if not isinstance(expires_at, bool):
            return _read(value, subject_claim, source, expires_at)
    raise AuthenticationError(
        f"{source} returned {type(result).__name__}; it must return a token as str, or a tuple "
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


class TokenProvider:
    """The current token of one client, replaced before it expires. Belongs to one event loop.

    Like Java's ExpiringCredentialRefreshingLogin, but without its thread.

    Callers get the current token at once. It is replaced in the background; while that fails, the
    old token is used until it expires, with another attempt every few seconds. After that, every
    login asks again: a source that was away has refused nothing, and its next token ends the
    outage. A token without a known expiry is used for one authentication only. `close` it.
    """

    def __init__(
        self,
        get_token: GetToken,
        policy: RefreshPolicy,
        wall_clock: Callable[[], float],
        hidden: Collection[str] = (),
    ) -> None:
        """Create the provider without getting a token.

        `wall_clock` returns seconds since 1970; errors and warnings show nothing of `hidden`.
        """
        self._get_token = get_token
        self._hidden = hidden
        self._policy = policy
        self._wall_clock = wall_clock
        self._token: OAuthBearerToken | None = None
        self._getting: asyncio.Task[OAuthBearerToken] | None = None
        self._refresh: asyncio.TimerHandle | None = None

    async def token(self) -> OAuthBearerToken:
        """Return a token that has not expired, getting one if necessary.

        Raises AuthenticationError, ConfigError or NetworkError, as the source does. A NetworkError
        names the token that has expired, if there was one.
        """
        token = self._token
        if token is not None and not self._has_ended(token):
            return token
        getting = self._getting or self._start()
        # Other callers may be waiting for the same task, so it continues if this wait is cancelled.
        await asyncio.wait({getting})
        try:
            return getting.result()
        except NetworkError as error:
            if token is None or token.expires_at is None:
                raise
            missing = NetworkError(
                f"{self._named(token)} expired at {moment(token.expires_at)}, and no new one could "
                f"be fetched: {error}"
            )
            missing.is_from_user_code = error.is_from_user_code
            raise missing from error.__cause__

    @property
    def is_getting(self) -> bool:
        """Whether a token has been requested from the source and has not arrived yet."""
        return self._getting is not None

    def _has_ended(self, token: OAuthBearerToken) -> bool:
        return token.expires_at is None or token.expires_at <= self._wall_clock()

    def _start(self) -> asyncio.Task[OAuthBearerToken]:
        self._getting = asyncio.get_running_loop().create_task(self._get())
        self._getting.add_done_callback(self._done)
        return self._getting

    async def _get(self) -> OAuthBearerToken:
        asked_at = self._wall_clock()
        with errors_hiding(self._hidden):
            token = await self._get_token()
        now = self._wall_clock()
        if token.expires_at is not None and token.expires_at <= now:
            raise self._ended(token, token.expires_at, asked_at, now)
        self._token = token
        if token.expires_at is not None:
            due_at = self._policy.refresh_at(token, now, random.random())
            self._schedule(due_at - now)
        return token

    def _ended(
        self, token: OAuthBearerToken, ended_at: float, asked_at: float, now: float
    ) -> AuthenticationError | NetworkError:
        if ended_at > asked_at:
            return NetworkError(
                f"{self._named(token)} expired while it was being fetched, which "
                f"took {now - asked_at:.0f} seconds: this process was paused, or the token source "
                "is slow"
            )
        # After a valid token, the source is late; before one, the clocks may differ for good.
        kind = AuthenticationError if self._token is None else NetworkError
        return kind(
            f"{self._named(token)} expired {now - ended_at:.0f} "
            "seconds ago: check its issuer, and this machine's clock"
        )

    def _named(self, token: OAuthBearerToken) -> str:
        # The subject may come from a reference, too.
        return f"the token for {hide(repr(token.subject), self._hidden)} (OAUTHBEARER)"

    def _schedule(self, seconds: float) -> None:
        if self._refresh is not None:
            self._refresh.cancel()
        self._refresh = asyncio.get_running_loop().call_later(seconds, self._replace)

    def _replace(self) -> None:
        if self._getting is None:
            self._start()

    def _done(self, getting: asyncio.Task[OAuthBearerToken]) -> None:
        self._getting = None
        error = None if getting.cancelled() else getting.exception()
        if error is None or self._token is None or self._has_ended(self._token):
            return
        what = error if isinstance(error, KafkaError) else type(error).__name__
        logger.warning(
            "the current token remains in use, since no new one could be fetched: %s", what
        )
        self._schedule(RETRY_INTERVAL)

    async def close(self) -> None:
        """Stop refreshing, and cancel a request that is under way."""
        if self._refresh is not None:
            self._refresh.cancel()
        if self._getting is not None:
            self._getting.cancel()
            await asyncio.wait({self._getting})
