"""Detecting that a connection is no longer in use (connections.max.idle.ms)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

#: The minimum in seconds between two checks of a busy connection, however short its idle time is.
LEAST_IDLE_CHECK: Final = 0.01


class IdleCheck:
    """A timer that checks one connection when it may have been idle for long enough."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        max_idle: float | None,
        *,
        last_used: Callable[[], float],
        is_busy: Callable[[], bool],
        on_idle: Callable[[str], None],
    ) -> None:
        """Create the check; `on_idle` is called with a description of the idle time.

        With a `max_idle` of None an idle connection stays open. A connection that `is_busy` is left
        to request.timeout.ms.
        """
        self._loop = loop
        self._max_idle = max_idle
        self._last_used = last_used
        self._is_busy = is_busy
        self._on_idle = on_idle
        self._next_check: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Check now, and then whenever the connection may have become idle."""
        if self._max_idle is not None:
            self._check(self._max_idle)

    def cancel(self) -> None:
        """Stop checking."""
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
