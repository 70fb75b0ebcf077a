"""One current OAUTHBEARER token, replaced before it expires.

Like Java's ExpiringCredentialRefreshingLogin, but without its thread.

Callers get the current token at once. It is replaced in the background; while that fails, the old
token is used until it expires, with another attempt every few seconds. After that, every login asks
again: a source that was away has refused nothing, and its next token ends the outage. A token
without a known expiry is used for one authentication only.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.errors import AuthenticationError, KafkaError, NetworkError
from spark_kafka_sink.security.redaction import hide
from spark_kafka_sink.security.sasl import moment

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from spark_kafka_sink.network.authentication.token_sources import GetToken
    from spark_kafka_sink.security.oauth_bearer import OAuthBearerToken, RefreshPolicy

logger = logging.getLogger(__name__)

#: Seconds between two attempts to replace a token that is still valid.
RETRY_INTERVAL: Final = 10.0


class TokenProvider:
    """The current token of one client. Belongs to one event loop; `close` it."""

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
