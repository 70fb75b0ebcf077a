"""Finding out that something has taken too long, but not because the process was paused.

After a pause of the whole process (SIGSTOP, a slow machine) an answer may already be in the socket,
and its deadline over. Like Java's client, which reads before it looks at the time, nothing here
times out before the loop has had the chance to read: neither a connection (`TimeoutCheck`), nor who
waits for what comes of an answer (`done_by`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: Checks, each one loop round after the last, that must all find something overdue. The first may
#: follow a poll that a signal interrupted and that reports no socket. The second round polls again
#: and reads the socket; the third runs the task that waits for the bytes, before the check.
CHECKS_UNTIL_TIMEOUT: Final = 3
#: Rounds of the loop after a deadline in which what has arrived is still waited for. Two read and
#: decode it; then each task that waits for the one before it needs a round: who sent the request,
#: and whoever waits for that one. Some are to spare.
ROUNDS_UNTIL_GIVING_UP: Final = 10


async def done_by(future: asyncio.Future[Any], deadline: float) -> bool:
    """Wait for a future until a time of the loop's clock; return whether it is done.

    It counts as done in time if all that it needs had arrived by then. The future is not cancelled.
    """
    left = deadline - asyncio.get_running_loop().time()
    await asyncio.wait({future}, timeout=left)
    for _ in range(ROUNDS_UNTIL_GIVING_UP):
        if future.done():
            return True
        await asyncio.sleep(0)
    return future.done()


class TimeoutCheck:
    """Looks at the deadlines of one connection when the first of them passes."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        deadlines: Callable[[], Mapping[str, float | None]],
        on_timeout: Callable[[str], None],
    ) -> None:
        """Wait for `check_at`.

        `deadlines` returns, for each thing that can go wrong, when it will have; None where the
        connection does not wait. `on_timeout` is called with the one that did.
        """
        self._loop = loop
        self._deadlines = deadlines
        self._on_timeout = on_timeout
        self._next_check: asyncio.TimerHandle | None = None
        #: How many checks in a row have found something overdue.
        self._overdue_checks = 0

    def check_at(self, deadline: float) -> None:
        """Check at this time of the loop's clock, unless an earlier check is scheduled."""
        # The scheduled check is never later than this one, and schedules the next.
        if self._next_check is None:
            self._next_check = self._loop.call_at(deadline, self._check)

    def cancel(self) -> None:
        """Cancel the check that is scheduled."""
        if self._next_check is not None:
            self._next_check.cancel()

    def _check(self) -> None:
        self._next_check = None
        deadlines = {what: at for what, at in self._deadlines().items() if at is not None}
        now = self._loop.time()
        overdue = next((what for what, at in deadlines.items() if at <= now), None)
        self._overdue_checks = 0 if overdue is None else self._overdue_checks + 1
        if overdue is not None and self._overdue_checks >= CHECKS_UNTIL_TIMEOUT:
            self._on_timeout(overdue)
        elif deadlines:
            # A deadline that is over makes this the next round, after the sockets of that round.
            self.check_at(min(deadlines.values()))
