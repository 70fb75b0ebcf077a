"""Delivery callbacks wait here until the network thread calls them, one at a time.

A record may end on any thread and under any lock: when its batch is acknowledged, when a sender
finds no memory for it, when another thread aborts its transaction. Its callback is never called
there. A callback may take a lock that some thread holds while it sends, so it must not run inside
of `send`, nor while anybody holds the batches.

One queue serves the whole producer, so callbacks are called in the order in which records ended.
Once the network thread has ended, nobody takes from the queue by itself: whoever adds to it calls
`run_rest` as soon as no lock is held.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class CallbackQueue:
    """Jobs for the network thread, in the order in which they came. Any thread may add one."""

    def __init__(self, schedule: Callable[[Callable[[], None]], None]) -> None:
        """`schedule(run)` makes the network thread call `run` soon."""
        self._schedule = schedule
        self._jobs: deque[Callable[[], object]] = deque()
        self._is_scheduled = False
        self._has_ended = False
        self._running = threading.Lock()

    def add(self, job: Callable[[], object]) -> None:
        """Queue a job; it must not raise."""
        try:
            self._jobs.append(job)
            self._schedule_turn()
        except BaseException:
            # An interrupt of the caller's: what is queued must not wait for another job.
            self._schedule_turn()
            raise

    def _schedule_turn(self) -> None:
        if not self._is_scheduled:
            try:
                self._is_scheduled = True
                self._schedule(self.run)
            except BaseException:
                # Without this no turn would be scheduled any more.
                self._is_scheduled = False
                raise

    @property
    def is_running(self) -> bool:
        """Return whether a job is being run now."""
        return self._running.locked()

    def run(self) -> None:
        """Run the jobs that are queued by now; what they add themselves waits for another turn."""
        # Before looking: a job that comes from now on schedules the next turn.
        self._is_scheduled = False
        with self._running:
            for _ in range(len(self._jobs)):
                self._jobs.popleft()()

    def end(self) -> None:
        """Run everything; the network thread does so last."""
        self._has_ended = True
        self.run_rest()

    def run_rest(self) -> None:
        """Run what the network thread has left or cannot see any more; nothing while it lives."""
        # Two threads must not call back at once: the one that is at it takes the other's jobs too.
        while self._has_ended and self._jobs and self._running.acquire(blocking=False):
            try:
                self._jobs.popleft()()
            finally:
                self._running.release()

    def wait(self, timeout: float | None) -> bool:
        """Wait until everything queued by now has run; False when `timeout` seconds are too few."""
        if not self._jobs and not self._running.locked():
            return True
        done = threading.Event()
        self.add(done.set)
        self.run_rest()
        return done.wait(timeout)
