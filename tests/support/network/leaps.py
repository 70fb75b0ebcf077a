"""Clients and brokers whose clocks leap: a timeout passes at a chosen moment, and without a wait.

A timeout that must pass, but not before a certain answer has arrived, would otherwise have to be
short for the test and long for a slow machine. Choose a timeout of `SECONDS` instead.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.consumer.consumer_core import ConsumerCore
from spark_kafka_sink.consumer.offsets import offset_calls
from spark_kafka_sink.consumer.offsets.offset_calls import OffsetCalls
from spark_kafka_sink.network import connection_waits
from spark_kafka_sink.protocol.api_keys import ApiKey

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    import pytest

    from spark_kafka_sink.devbroker import DevBroker
    from spark_kafka_sink.network.network_client import NetworkClient

#: How far clocks leap: longer than a machine may stall, and shorter than the default of
#: request.timeout.ms, so that requests in flight do not time out.
SECONDS: Final = 20
MILLISECONDS: Final = 1000 * SECONDS
_PAUSE_SECONDS: Final = 0.002


def leap(client: Any) -> None:
    """Move the clock of a producer, a consumer or an admin client forward now."""
    loop = _loop_of(client)
    now = loop.time
    loop.time = lambda: now() + SECONDS  # type: ignore[method-assign]
    # A loop that sleeps does not notice.
    loop.call_soon_threadsafe(lambda: None)
    core = getattr(client, "_core", None)
    if isinstance(core, ConsumerCore):
        core.clock = core.context.clock = loop.time
        core.context.wake()
        # Nor does a thread that waits in `poll`.
        with core.context.lock:
            core.context.ring()


def leap_broker(broker: DevBroker) -> None:
    """Move the clock of an embedded broker forward now; it ends what is over by then."""
    dispatcher = broker._server._running()
    now = dispatcher.clock
    dispatcher.clock = lambda: now() + SECONDS
    dispatcher.loop.call_soon_threadsafe(dispatcher._run_timers)


def leap_once(client: Any, condition: Callable[[], bool]) -> None:
    """Move the clock of a producer or a consumer client as soon as a condition holds."""

    async def wait() -> None:
        while not condition():  # noqa: ASYNC110  it has no event
            await asyncio.sleep(_PAUSE_SECONDS)
        leap(client)

    _thread_of(client).submit(wait())


def leap_at_second_metadata(broker: DevBroker, client: Any) -> None:
    """Move a client's clock when it asks for metadata again, after the answer from now."""
    broker.on(ApiKey.METADATA, lambda _, context: leap(client) if context.number == 2 else None)


def leap_at_first_contact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Move the clock of each first contact to its `FINAL_SECONDS` when its failure is known."""
    ask = connection_waits._ask

    async def leaping_ask(
        client: NetworkClient,
        topics: Sequence[str],
        began: float,
        patience: connection_waits.Patience,
    ) -> None:
        if patience.limit != connection_waits._FINAL:
            return await ask(client, topics, began, patience)
        asking = ask(client, topics, began, patience)
        return await _leap_when_failed(asking, client, topics, connection_waits.FINAL_SECONDS)

    monkeypatch.setattr(connection_waits, "_ask", leaping_ask)


def leap_at_search_for_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Move a consumer client's clock to the end of its search when it has found nobody."""
    find = OffsetCalls._find_anybody

    async def leaping_find(calls: OffsetCalls, deadline: float) -> None:
        finding = find(calls, deadline)
        return await _leap_when_failed(finding, calls._client, (), offset_calls.FINAL_SECONDS)

    monkeypatch.setattr(OffsetCalls, "_find_anybody", leaping_find)


async def _leap_when_failed(
    asking: Coroutine[Any, Any, None], client: NetworkClient, topics: Sequence[str], seconds: float
) -> None:
    task = asyncio.ensure_future(asking)
    while not task.done() and not _has_failed(client, topics):  # noqa: ASYNC110  likewise
        await asyncio.sleep(_PAUSE_SECONDS)
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + seconds  # type: ignore[method-assign]
    await task


def _has_failed(client: NetworkClient, topics: Sequence[str]) -> bool:
    finds_nobody = client.last_error is not None and client.finds_nobody
    return finds_nobody or any(_is_missing(client, topic) for topic in topics)


def is_missing(producer: Any, topic: str) -> bool:
    """Return whether a broker has told a producer that a topic does not exist."""
    return _is_missing(producer._core._client, topic)


def _is_missing(client: NetworkClient, topic: str) -> bool:
    known = client.metadata.snapshot.topics.get(topic)
    return known is not None and bool(known.error_code)


def _thread_of(client: Any) -> Any:
    return client._core._thread if hasattr(client, "_core") else client._thread


def _loop_of(client: Any) -> asyncio.AbstractEventLoop:
    thread = _thread_of(client)
    loop: asyncio.AbstractEventLoop
    loop = thread._runner.get_loop() if hasattr(thread, "_runner") else thread._loop
    return loop
