"""Clients whose clocks leap, so that a long timeout passes at a chosen moment and without a wait.

A timeout that must pass, but not before a certain answer has arrived, would otherwise have to be
short for the test and long for a slow machine. Choose a timeout of `SECONDS` instead.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

#: How far clocks leap: longer than a machine may stall, and shorter than the default of
#: request.timeout.ms, so that requests in flight do not time out.
SECONDS: Final = 20
MILLISECONDS: Final = 1000 * SECONDS
_PAUSE_SECONDS: Final = 0.002


def leap(client: Any) -> None:
    """Move the clock of a producer, a consumer client or an admin client forward now."""
    loop = _loop_of(client)
    now = loop.time
    loop.time = lambda: now() + SECONDS  # type: ignore[method-assign]
    # A loop that sleeps does not notice.
    loop.call_soon_threadsafe(lambda: None)


def leap_once(client: Any, condition: Callable[[], bool]) -> None:
    """Move the clock of a producer or a consumer client as soon as a condition holds."""

    async def wait() -> None:
        while not condition():  # noqa: ASYNC110  it has no event
            await asyncio.sleep(_PAUSE_SECONDS)
        leap(client)

    _thread_of(client).submit(wait())


def is_missing(producer: Any, topic: str) -> bool:
    """Return whether a broker has told a producer that a topic does not exist."""
    known = producer._core._client.metadata.snapshot.topics.get(topic)
    return known is not None and bool(known.error_code)


def _thread_of(client: Any) -> Any:
    return client._core._thread if hasattr(client, "_core") else client._thread


def _loop_of(client: Any) -> asyncio.AbstractEventLoop:
    thread = _thread_of(client)
    loop: asyncio.AbstractEventLoop
    loop = thread._runner.get_loop() if hasattr(thread, "_runner") else thread._loop
    return loop
