"""What the broker has to do later, in the order of its time; the time itself comes from outside.

Kafka's SystemTimer without a clock: `run_due` is told the time and does what is due,
`next_deadline` says when there will be something to do. However late that is, each action is told
the time it was meant for, and so things take as long as they should. An action may schedule others,
also for at once. One that fails is logged and keeps nothing else from being done; what repeats an
action schedules the next time first.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    #: Called with the time for which it was scheduled, seconds since 1970.
    Action = Callable[[float], None]

logger = logging.getLogger(__name__)

#: Below this, cancelled timers are not worth looking for.
_MIN_CANCELLED_TO_SWEEP = 64


class Timer:
    """Something to be done later, unless it is cancelled."""

    __slots__ = ("_action", "_timers", "deadline")

    def __init__(self, timers: Timers, deadline: float, action: Action) -> None:
        """Belong to `timers`; made by `Timers.schedule`."""
        self._timers = timers
        self._action: Action | None = action
        #: When it is due, in seconds since 1970.
        self.deadline = deadline

    @property
    def is_pending(self) -> bool:
        """Whether it is still going to be done."""
        return self._action is not None

    def cancel(self) -> None:
        """Do it never; nothing happens if it has been done or cancelled."""
        if self._action is not None:
            self._action = None
            self._timers.cancelled()

    def run(self) -> None:
        """Do it, once; an error of the action is logged."""
        action, self._action = self._action, None
        if action is not None:
            try:
                action(self.deadline)
            except Exception:
                logger.exception("what was to be done at %s failed", self.deadline)


class Timers:
    """Everything that has a time."""

    def __init__(self) -> None:
        """Have nothing to do."""
        #: The latest time that is known, in seconds since 1970; 0 before there is one.
        self.now = 0.0
        self._heap: list[tuple[float, int, Timer]] = []
        self._background: list[Timer] = []
        self._next_in_background = math.inf
        self._order = itertools.count()
        self._cancelled = 0

    @property
    def next_deadline(self) -> float | None:
        """When there is something to do, in seconds since 1970; None: never."""
        while self._heap and not self._heap[0][2].is_pending:
            heapq.heappop(self._heap)
            self._cancelled -= 1
        return self._heap[0][0] if self._heap else None

    def schedule(self, deadline: float, action: Action) -> Timer:
        """Have something done when `deadline` (seconds since 1970) has come."""
        timer = Timer(self, deadline, action)
        heapq.heappush(self._heap, (deadline, next(self._order), timer))
        return timer

    def schedule_in_background(self, deadline: float, action: Action) -> Timer:
        """Have something done when `deadline` has come, and something else is to be done anyway.

        It is no reason to wake up: housekeeping of a broker that nobody uses can wait.
        """
        timer = Timer(self, deadline, action)
        self._background.append(timer)
        self._next_in_background = min(self._next_in_background, deadline)
        return timer

    def run_due(self, now: float) -> None:
        """Do all that is due, in order."""
        self.now = max(self.now, now)
        while (deadline := self.next_deadline) is not None and deadline <= now:
            heapq.heappop(self._heap)[2].run()
        if self._next_in_background <= now:
            background, self._background = self._background, []
            self._next_in_background = math.inf
            for timer in background:
                if timer.deadline <= now:
                    timer.run()
                else:
                    self._background.append(timer)
                    self._next_in_background = min(self._next_in_background, timer.deadline)

    def clear(self) -> None:
        """Forget everything that was to be done."""
        for _, _, timer in self._heap:
            timer.cancel()
        self._heap.clear()
        self._background.clear()
        self._next_in_background = math.inf
        self._cancelled = 0

    def cancelled(self) -> None:
        """Take note that a timer was cancelled: they must not pile up before their time."""
        self._cancelled += 1
        if self._cancelled > _MIN_CANCELLED_TO_SWEEP and self._cancelled > len(self._heap) // 2:
            self._heap = [entry for entry in self._heap if entry[2].is_pending]
            heapq.heapify(self._heap)
            self._cancelled = 0
