"""Admin calls whose time is up as soon as they have failed, and not before.

A timeout that must pass after a failure would otherwise have to be short for the test and long for
a slow machine. The calls may have any timeout: the clock of their event loop leaps to its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.admin.cluster_calls import ClusterCalls
from spark_kafka_sink.network.network_client import NetworkClient

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    import pytest

    from spark_kafka_sink.errors import KafkaError
    from spark_kafka_sink.network.network_client import LeastLoadedNode


def end_at_back_off(
    monkeypatch: pytest.MonkeyPatch, condition: Callable[[], bool] = lambda: True
) -> None:
    """Move the clock to the end of each call that waits to try again while `condition` holds."""
    sleep, pause = ClusterCalls._sleep, ClusterCalls.pause

    async def late_sleep(
        calls: ClusterCalls, delay: float, deadline: float, what: str, cause: KafkaError | None
    ) -> None:
        if condition():
            _leap_to(calls._loop, deadline)
        await sleep(calls, delay, deadline, what, cause)

    async def late_pause(calls: ClusterCalls, attempts: int, deadline: float) -> bool:
        if condition():
            _leap_to(calls._loop, deadline)
        return await pause(calls, attempts, deadline)

    monkeypatch.setattr(ClusterCalls, "_sleep", late_sleep)
    monkeypatch.setattr(ClusterCalls, "pause", late_pause)


def end_when_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Move the clock to the end of each call when an attempt to connect has failed."""
    wait = NetworkClient._wait_for_node

    async def late_wait(
        client: NetworkClient, found: LeastLoadedNode | None, now: float, deadline: float
    ) -> None:
        await wait(client, found, now, deadline)
        if client.last_error is not None:
            _leap_to(client._loop, deadline)

    monkeypatch.setattr(NetworkClient, "_wait_for_node", late_wait)


def _leap_to(loop: asyncio.AbstractEventLoop, moment: float) -> None:
    now = loop.time
    seconds = max(0.0, moment - now())
    loop.time = lambda: now() + seconds  # type: ignore[method-assign]
