"""Something that happens between two requests of a driver, without timers.

A driver's client sends its requests on a thread of its own. Here that thread first calls a
function, which may run a whole rival driver: the rival has its own client, thread and connections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_kafka_sink.admin.cluster_calls import ClusterCalls

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.exactly_once.exactly_once_world import Driver


class _StruckCalls(ClusterCalls):
    """Calls that are preceded by a call of a function."""

    def __init__(self, config: Any, strike: Callable[[str], None]) -> None:
        super().__init__(config)
        self._strike = strike

    async def _send(self, connection: Any, call: Any, deadline: float) -> Any:
        self._strike(call.what)
        return await super()._send(connection, call, deadline)


def strike_before_requests(driver: Driver, strike: Callable[[str], None]) -> None:
    """Call a function before each request that a new driver sends, with what the request is."""
    admin = driver.admin
    admin._thread._open_shared = lambda: _StruckCalls(admin._config, strike)
