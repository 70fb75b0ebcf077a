"""Detecting timeouts, except those caused by a pause of the process.

After a pause of the whole process (SIGSTOP, a slow machine), a response may already be in the
socket although its deadline has passed. Like the Java client, which reads before it checks the
time, nothing here times out before the loop has had the chance to read: neither a connection
(`TimeoutCheck`), nor a caller that waits for the result of a response (`done_by`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: Consecutive checks, one loop round apart, that must all find something overdue. The first may
#: follow a poll that was interrupted by a signal and reports no socket. The second round polls
#: again and reads the socket before the check. The third is a reserve. The rounds that
#: it takes to read what has arrived are added.
CHECKS_UNTIL_TIMEOUT: Final = 3
#: Loop rounds after a deadline in which data that has arrived is still waited for. Two of them read
#: and decode it. Then each task that waits for another one needs a round: the sender of the
#: request, and the callers that wait for the sender. The remaining rounds are a reserve.
ROUNDS_UNTIL_GIVING_UP: Final = 10


async def done_by(future: asyncio.Future[Any], deadline: float) -> bool:
    """Wait for a future until a time by the loop's clock; return whether it is done.

    It counts as done in time if everything it needs had arrived by then. It is not cancelled.
    """
    left = deadline - asyncio.get_running_loop().time()
    await asyncio.wait({future}, timeout=left)
    for _ in range(ROUNDS_UNTIL_GIVING_UP):
        if future.done():
            return True
        await asyncio.sleep(0)
    return future.done()


class TimeoutCheck:
    """A timer that checks the deadlines of one connection when the first of them passes."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        deadlines: Callable[[], Mapping[str, float | None]],
        on_timeout: Callable[[str], None],
        rounds_to_read: Callable[[], int],
    ) -> None:
        """Create the check; `check_at` schedules it.

        `deadlines` returns the deadline of each thing that can time out; None if the connection is
        not waiting for it. `on_timeout` is called with the one that timed out.
        `rounds_to_read` returns how many rounds it takes to read what has arrived; see `Transport`.
        """
        self._loop = loop
        self._deadlines = deadlines
        self._on_timeout = on_timeout
        self._rounds_to_read = rounds_to_read
        self._next_check: asyncio.TimerHandle | None = None
        #: The number of consecutive checks that found something overdue.
        self._overdue_checks = 0
        #: The number of them that is a timeout.
        self._checks_until_timeout = CHECKS_UNTIL_TIMEOUT

    def check_at(self, deadline: float) -> None:
        """Check at this time of the loop's clock, unless an earlier check is scheduled."""
        # An earlier check schedules the next.
        if self._next_check is not None:
            if self._next_check.when() <= deadline:
                return
            self._next_check.cancel()
        self._next_check = self._loop.call_at(deadline, self._check)

    def cancel(self) -> None:
        """Cancel the scheduled check."""
        if self._next_check is not None:
            self._next_check.cancel()

    def _check(self) -> None:
        self._next_check = None
        deadlines = {what: at for what, at in self._deadlines().items() if at is not None}
        now = self._loop.time()
        overdue = next((what for what, at in deadlines.items() if at <= now), None)
        self._overdue_checks = 0 if overdue is None else self._overdue_checks + 1
        if self._overdue_checks == 1:
            # Only what is there now may have arrived in time. What comes later does not count, so a
            # peer that goes on sending does not put off the timeout.
            self._checks_until_timeout = CHECKS_UNTIL_TIMEOUT + self._rounds_to_read()
        if overdue is not None and self._overdue_checks >= self._checks_until_timeout:
            self._on_timeout(overdue)
        elif deadlines:
            # A deadline that has passed schedules the next round, after that round has read its
            # sockets.
            self.check_at(min(deadlines.values()))
