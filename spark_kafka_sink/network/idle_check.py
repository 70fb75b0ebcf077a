"""Finding out that nobody uses a connection any more (connections.max.idle.ms)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

#: Seconds between two looks at a connection that is busy, however short its idle time may be.
LEAST_IDLE_CHECK: Final = 0.01


class IdleCheck:
    """Looks at one connection when it may have been idle for long enough."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        max_idle: float | None,
        *,
        last_used: Callable[[], float],
        is_busy: Callable[[], bool],
        on_idle: Callable[[str], None],
    ) -> None:
        """Wait for `start`; `on_idle` is told what the connection was for `max_idle` seconds.

        With None an idle connection is kept. One that `is_busy` is left to request.timeout.ms.
        """
        self._loop = loop
        self._max_idle = max_idle
        self._last_used = last_used
        self._is_busy = is_busy
        self._on_idle = on_idle
        self._next_check: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look now, and from then on."""
        if self._max_idle is not None:
            self._check(self._max_idle)

    def cancel(self) -> None:
        """Look no more."""
        if self._next_check is not None:
            self._next_check.cancel()

    def _check(self, max_idle: float) -> None:
        now = self._loop.time()
        idle_at = self._last_used() + max_idle
        if idle_at <= now:
            if not self._is_busy():
                self._on_idle(f"idle for {max_idle:g} s (connections.max.idle.ms)")
                return
            idle_at = now + max(max_idle, LEAST_IDLE_CHECK)
        self._next_check = self._loop.call_at(idle_at, self._check, max_idle)
