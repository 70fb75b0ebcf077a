"""The actions that the broker has scheduled, in order of time.

The counterpart of Kafka's SystemTimer, without a clock: `run_due` takes the time and runs what is
due, `next_deadline` returns when more will be due. Each action receives the time for which it was
scheduled, however late it runs, so that delays do not add up. An action may schedule others, even
for at once. If one fails, the error is logged and the others still run; an action that repeats
schedules its next run first.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    #: Called with the time for which it was scheduled, seconds since 1970.
    Action = Callable[[float], None]

logger = logging.getLogger(__name__)

#: The deadline of what is not scheduled.
NEVER: Final = math.inf

#: Up to this number, cancelled timers are not swept.
_MIN_CANCELLED_TO_SWEEP = 64


class Timer:
    """An action that runs later, unless it is cancelled."""

    __slots__ = ("_action", "_timers", "deadline")

    def __init__(self, timers: Timers, deadline: float, action: Action) -> None:
        self._timers = timers
        self._action: Action | None = action
        #: When the action is due, in seconds since 1970.
        self.deadline = deadline

    @property
    def is_pending(self) -> bool:
        """Whether the action is still going to run."""
        return self._action is not None

    def cancel(self) -> None:
        """Cancel the action; do nothing if it has run or was cancelled."""
        if self._action is not None:
            self._action = None
            self._timers.cancelled()

    def run(self) -> None:
        """Run the action, at most once; log its error."""
        action, self._action = self._action, None
        if action is not None:
            try:
                action(self.deadline)
            except Exception:
                logger.exception("the action scheduled for %s failed", self.deadline)


class Timers:
    """All scheduled actions of a cluster."""

    def __init__(self) -> None:
        #: The latest time seen, in seconds since 1970; 0 before the first.
        self.now = 0.0
        self._heap: list[tuple[float, int, Timer]] = []
        self._background: list[Timer] = []
        self._next_in_background = NEVER
        self._order = itertools.count()
        self._cancelled = 0

    @property
    def next_deadline(self) -> float | None:
        """When the next action is due, in seconds since 1970, or None if there is none."""
        while self._heap and not self._heap[0][2].is_pending:
            heapq.heappop(self._heap)
            self._cancelled -= 1
        return self._heap[0][0] if self._heap else None

    def schedule(self, deadline: float, action: Action) -> Timer:
        """Schedule an action for `deadline` (seconds since 1970)."""
        timer = Timer(self, deadline, action)
        heapq.heappush(self._heap, (deadline, next(self._order), timer))
        return timer

    def schedule_in_background(self, deadline: float, action: Action) -> Timer:
        """Schedule an action for the first `run_due` at or after `deadline`.

        It does not count for `next_deadline`: an idle broker does not wake for its housekeeping.
        """
        timer = Timer(self, deadline, action)
        self._background.append(timer)
        self._next_in_background = min(self._next_in_background, deadline)
        return timer

    def run_due(self, now: float) -> None:
        """Run everything that is due, in order, then what is due in the background."""
        self.now = max(self.now, now)
        while (deadline := self.next_deadline) is not None and deadline <= now:
            heapq.heappop(self._heap)[2].run()
        if self._next_in_background <= now:
            background, self._background = self._background, []
            self._next_in_background = NEVER
            for timer in background:
                if timer.deadline <= now:
                    timer.run()
                else:
                    self._background.append(timer)
                    self._next_in_background = min(self._next_in_background, timer.deadline)

    def clear(self) -> None:
        """Cancel all actions."""
        for _, _, timer in self._heap:
            timer.cancel()
        self._heap.clear()
        self._background.clear()
        self._next_in_background = NEVER
        self._cancelled = 0

    def cancelled(self) -> None:
        """Count a cancelled timer; sweep cancelled ones before they pile up."""
        self._cancelled += 1
        if self._cancelled > _MIN_CANCELLED_TO_SWEEP and self._cancelled > len(self._heap) // 2:
            self._heap = [entry for entry in self._heap if entry[2].is_pending]
            heapq.heapify(self._heap)
            self._cancelled = 0
