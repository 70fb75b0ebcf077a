"""The queue of delivery callbacks, which the network thread calls one at a time.

A record may end on any thread and under any lock: when its batch is acknowledged, when a caller of
`send` finds no memory for it, when another thread aborts its transaction. Its callback is never
called there. A callback may acquire a lock that another thread holds while it sends, so it must not
run inside `send`, nor while a thread holds the batches.

One queue serves the whole producer, so callbacks are called in the order in which records ended.
After the network thread has ended, no thread serves the queue: a thread that adds a job then calls
`run_rest` as soon as it holds no lock.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class CallbackQueue:
    """A first-in, first-out queue of jobs for the network thread. Any thread may add one."""

    def __init__(self, schedule: Callable[[Callable[[], None]], None]) -> None:
        """Create an empty queue; `schedule(run)` makes the network thread call `run` soon."""
        self._schedule = schedule
        self._jobs: deque[Callable[[], object]] = deque()
        self._is_scheduled = False
        self._has_ended = False
        self._running = threading.Lock()

    def add(self, job: Callable[[], object]) -> None:
        """Add a job to the queue; it must not raise."""
        try:
            self._jobs.append(job)
            self._schedule_turn()
        except BaseException:
            # The caller was interrupted: the queued job must not wait for another one.
            self._schedule_turn()
            raise

    def _schedule_turn(self) -> None:
        if not self._is_scheduled:
            try:
                self._is_scheduled = True
                self._schedule(self.run)
            except BaseException:
                # With the flag set, no turn would ever be scheduled again.
                self._is_scheduled = False
                raise

    @property
    def is_running(self) -> bool:
        """Whether a job is running now."""
        return self._running.locked()

    def run(self) -> None:
        """Run the jobs queued by now; jobs that these add wait for the next turn."""
        # Reset before reading the queue: any job added from now on schedules the next turn.
        self._is_scheduled = False
        with self._running:
            for _ in range(len(self._jobs)):
                self._jobs.popleft()()

    def end(self) -> None:
        """Run all jobs, as the network thread's last step."""
        self._has_ended = True
        self.run_rest()

    def run_rest(self) -> None:
        """Run the jobs that the ended network thread left or missed; do nothing while it lives."""
        # Callbacks must not run concurrently: the thread that runs one takes the other's jobs, too.
        while self._has_ended and self._jobs and self._running.acquire(blocking=False):
            try:
                self._jobs.popleft()()
            finally:
                self._running.release()

    def wait(self, timeout: float | None) -> bool:
        """Wait until all jobs queued by now have run; return False after `timeout` seconds."""
        if not self._jobs and not self._running.locked():
            return True
        done = threading.Event()
        self.add(done.set)
        self.run_rest()
        return done.wait(timeout)
