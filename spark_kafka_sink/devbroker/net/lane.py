"""The lane of connections that could otherwise keep the event loop busy.

A turn of the event loop handles one request of a connection, or a few short ones. That is not
enough if each of its requests takes long, or if the client has not authenticated yet. Such
connections share a lane: it gives them turns one at a time, in the order in which they entered, and
then rests for as long as the turn took. So all of them together take at most half of the event
loop's time.

What counts is the time for which the event loop computed: on a busy machine the time on the wall
says nothing about a request.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

#: A connection whose last request took longer than this enters a lane for the next one. Few
#: requests of well-behaved clients do.
LONG_SECONDS: Final = 0.02


class Lane:
    """Connections that wait for their next request to be handled."""

    def __init__(self, loop: asyncio.AbstractEventLoop, cpu_clock: Callable[[], float]) -> None:
        """Create an empty lane; `cpu_clock` returns the seconds that the loop has computed."""
        self._loop = loop
        self._cpu_clock = cpu_clock
        self._turns: deque[Callable[[], None]] = deque()
        self._rests_until = loop.time()
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, turn: Callable[[], None]) -> None:
        """Call `turn`, which handles a request, after those that entered before."""
        self._turns.append(turn)
        self._schedule()

    def close(self) -> None:
        """Forget all connections."""
        self._turns.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self) -> None:
        if self._timer is None and self._turns:
            self._timer = self._loop.call_at(self._rests_until, self._run)

    def _run(self) -> None:
        began = self._cpu_clock()
        try:
            self._turns.popleft()()
        finally:
            self._rests_until = self._loop.time() + self._cpu_clock() - began
            self._timer = None
            self._schedule()
