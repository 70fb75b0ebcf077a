"""How long an OAUTHBEARER token is kept, and when it is replaced."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace

import pytest

from spark_kafka_sink.errors import AuthenticationError, NetworkError
from spark_kafka_sink.network.authentication import tokens
from spark_kafka_sink.network.authentication.connection_security import ConnectionSecurity
from spark_kafka_sink.network.authentication.tokens import TokenProvider
from spark_kafka_sink.security.oauth_bearer import OAuthBearerToken, RefreshPolicy
from tests.support.network.scripted_transport import run_without_waiting
from tests.support.security.secured import jaas
from tests.support.security.token_endpoint import jwt
from tests.support.security.token_exchanges import (
    HANDLER,
    configured,
)


class Source:
    """A source of tokens with this lifetime on a simulated clock, which fails on request."""

    def __init__(self, lifetime):
        self.now = 1000.0
        self.lifetime = lifetime
        self.given = 0
        self.error = None
        #: The error of all requests after the first token.
        self.error_after_first = None
        #: How long getting a token takes, by the simulated clock.
        self.pauses = []
        self.gave = asyncio.Event()

    async def get(self):
        """Return the next token."""
        self.gave.set()
        self.given += 1
        if self.error is not None:
            raise self.error
        token = OAuthBearerToken(
            value=f"t{self.given}", started_at=self.now, expires_at=self.now + self.lifetime
        )
        self.now += self.pauses.pop() if self.pauses else 0
        self.error = self.error_after_first
        return token

    async def next(self):
        """Wait until one more token was requested."""
        self.gave.clear()
        async with asyncio.timeout(30):
            await self.gave.wait()
        # The token is stored after two rounds of the loop.
        await asyncio.sleep(0)
        await asyncio.sleep(0)


def provided(lifetime, use, policy=None):
    """Run a test's steps with a source and its provider."""

    async def run() -> None:
        source = Source(lifetime)
        provider = TokenProvider(source.get, policy or RefreshPolicy(), lambda: source.now)
        try:
            await use(source, provider)
        finally:
            await provider.close()

    asyncio.run(run())


def test_a_valid_token_is_shared():
    """All callers get the same token while it is valid or being fetched."""

    async def use(source, provider):
        got = await asyncio.gather(provider.token(), provider.token())
        assert ["t1", "t1", "t1"] == [it.value for it in [*got, await provider.token()]]

    provided(3600.0, use)


def test_an_expired_token_is_replaced_on_request():
    """An expired token is given to no caller."""

    async def use(source, provider):
        await provider.token()
        source.now += 3600
        assert "t2" == (await provider.token()).value

    provided(3600.0, use)


@pytest.mark.parametrize(
    ("pause", "error"), [(3599, None), (3600, NetworkError), (7200, NetworkError)]
)
def test_a_token_that_arrives_expired_is_fetched_again(pause, error):
    """After a pause of the process a token may arrive expired, which is not a refusal."""

    async def use(source, provider):
        source.pauses = [pause]
        if error is None:
            assert "t1" == (await provider.token()).value
            return
        with pytest.raises(
            error, match=rf"expired while it was being fetched, which took {pause} sec"
        ):
            await provider.token()
        assert "t2" == (await provider.token()).value

    provided(3600.0, use)


#: Makes a token of 5 ms be replaced after 4.
SOON = RefreshPolicy(min_period=0, buffer=0, window_jitter=0)


def test_a_token_is_replaced_before_it_expires():
    """This happens in the background, without any caller."""

    async def use(source, provider):
        await provider.token()
        await source.next()
        # Which token it is by now depends on how busy the machine is.
        assert "t1" != (await provider.token()).value

    provided(0.005, use, SOON)


def test_a_failed_replacement_is_retried_every_ten_seconds(caplog):
    """Attempts begin at the configured time, and end when the token has expired."""

    async def run():
        loop, attempts = asyncio.get_running_loop(), []
        began = loop.time()

        def clock():
            return loop.time() - began + 7

        async def get():
            attempts.append(clock() - 7)
            if len(attempts) > 1:
                raise NetworkError("nobody there")
            return OAuthBearerToken(value="t", started_at=clock(), expires_at=clock() + 100)

        policy = RefreshPolicy(window_factor=0.5, window_jitter=0, min_period=0, buffer=0)
        provider = TokenProvider(get, policy, clock)
        await provider.token()
        await asyncio.sleep(1_000)
        await provider.close()
        return attempts

    with caplog.at_level(logging.WARNING):
        assert [0, 50, 60, 70, 80, 90, 100] == run_without_waiting(run)
    assert 5 == len(caplog.messages)


def test_a_token_that_cannot_be_replaced_is_used_until_it_expires(caplog, monkeypatch):
    """While the source fails it is tried again and again, and the old token is used."""
    monkeypatch.setattr(tokens, "RETRY_INTERVAL", 0.001)

    async def use(source, provider):
        # Set before the first token, whose replacement may begin before this task runs again.
        source.error_after_first = NetworkError("nobody there")
        await provider.token()
        await source.next()
        await source.next()
        assert "t1" == (await provider.token()).value
        source.now += 1
        with pytest.raises(NetworkError):
            await provider.token()

    with caplog.at_level(logging.WARNING):
        provided(0.005, use, SOON)
    assert (
        "the current token remains in use, since no new one could be fetched: nobody there"
        in caplog.text
    )


@pytest.mark.parametrize(
    "error", [NetworkError("nobody there"), AuthenticationError("a wrong secret")], ids=str
)
def test_the_error_after_the_end_names_the_token_that_ended(error):
    """A source that is away misses nothing but the next token; a refusal of its own is final."""

    async def use(source, provider):
        await provider.token()
        source.now += 3600
        source.error = error
        with pytest.raises(type(error)) as caught:
            await provider.token()
        ended = (
            "the token for 'unknown' (OAUTHBEARER) expired at 1970-01-01 01:16:40 UTC, "
            "and no new one could be fetched: "
        )
        prefix = ended if isinstance(error, NetworkError) else ""
        assert f"{prefix}{error}" == str(caught.value)
        source.error = None
        assert "t3" == (await provider.token()).value

    provided(3600.0, use)


def test_an_old_token_is_a_refusal_only_if_there_was_no_other():
    """A source may return its old token for a while, and is asked again."""

    async def use(source, provider):
        source.lifetime = -5.0
        with pytest.raises(AuthenticationError, match="expired 5 seconds ago"):
            await provider.token()
        source.lifetime = 3600.0
        await provider.token()
        source.now += 3600
        source.lifetime = -5.0
        with pytest.raises(NetworkError, match="expired 5 seconds ago"):
            await provider.token()

    provided(3600.0, use)


def test_the_warning_of_a_late_replacement_hides_the_subject(caplog, monkeypatch):
    """A subject from a reference is not logged when the next token is late."""
    monkeypatch.setenv("SUBJECT", "planted-subject")
    module = jaas("OAUTHBEARER", unsecuredLoginStringClaim_sub="${env:SUBJECT}")
    settings = configured({"sasl.jaas.config": module}).security
    now = 1000.0

    async def run() -> None:
        security = ConnectionSecurity(settings, lambda: now)
        tokens = security._tokens
        assert tokens is not None
        token = await tokens.token()
        assert "planted-subject" == token.subject
        late = replace(token, expires_at=now - 5)
        monkeypatch.setattr(tokens, "_get_token", lambda: asyncio.sleep(0, late))
        tokens._replace()
        assert tokens._getting is not None
        await asyncio.wait({tokens._getting})
        await asyncio.sleep(0)
        await security.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    [warning] = caplog.messages
    assert (
        "the current token remains in use, since no new one could be fetched: the token for "
        "'[hidden]' (OAUTHBEARER) expired 5 seconds ago: check its issuer, and this machine's clock"
    ) == warning


def test_the_settings_determine_when_a_token_is_replaced():
    """The settings sasl.login.refresh.* determine the policy."""
    settings = configured(
        {HANDLER: jwt},
        sasl_login_refresh_window_factor=0.5,
        sasl_login_refresh_window_jitter=0.25,
        sasl_login_refresh_min_period_seconds=1,
        sasl_login_refresh_buffer_seconds=2,
    )
    tokens = ConnectionSecurity(settings.security, time.time)._tokens
    assert tokens is not None
    assert (
        RefreshPolicy(window_factor=0.5, window_jitter=0.25, min_period=1, buffer=2)
        == tokens._policy
    )
