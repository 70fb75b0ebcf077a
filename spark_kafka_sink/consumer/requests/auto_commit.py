"""When a consumer commits its offsets by itself (enable.auto.commit), without IO.

Times are seconds on the caller's clock.

Source: CommitRequestManager.AutoCommitState and maybeAutoCommitAsync; for classic groups,
ConsumerCoordinator.maybeAutoCommitOffsetsAsync.
"""

from __future__ import annotations

from math import inf


class AutoCommit:
    """The commits, one per auto.commit.interval.ms, and never two of them in flight."""

    def __init__(self, interval: float, now: float, *, is_enabled: bool = True) -> None:
        """Start the first interval; `is_enabled` is enable.auto.commit."""
        self.interval = interval
        self.is_enabled = is_enabled
        self._due_at = now + interval
        self._is_in_flight = False

    @property
    def wake_up_at(self) -> float:
        """When `is_due` may become true by the passage of time; never while one is in flight."""
        return inf if self._is_in_flight or not self.is_enabled else self._due_at

    def is_due(self, now: float) -> bool:
        """Return whether to commit all consumed offsets at `now`."""
        return now >= self.wake_up_at

    def begin(self, now: float, *, is_sent: bool = True) -> None:
        """Start the next interval; `is_sent` is False if there was no offset to commit."""
        self._due_at = now + self.interval
        self._is_in_flight = is_sent

    def end(self, now: float, *, retry_after: float | None = None) -> None:
        """Record the outcome of the commit in flight.

        `retry_after` is retry.backoff.ms if it failed for a reason that may pass. Any other failure
        is left to the next interval.
        """
        self._is_in_flight = False
        if retry_after is not None:
            self._due_at = now + retry_after

    def restart(self, now: float) -> None:
        """Start an interval: the consumer has a new assignment."""
        self._due_at = now + self.interval
