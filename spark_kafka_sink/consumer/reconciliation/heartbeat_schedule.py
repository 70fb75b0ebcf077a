"""When a member of a KIP-848 group sends heartbeats (HeartbeatRequestState without its clock).

The coordinator names the interval with every answer. A change of the member's state makes a
heartbeat urgent: it does not wait for the interval. Unlike in Java it still waits for the back-off
after a failure, or a coordinator that is loading would get the same request in a busy loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_kafka_sink.consumer.reconciliation.member_values import MemberSettings


class HeartbeatSchedule:
    """The timers of one member; all times are seconds on the caller's clock."""

    def __init__(self, settings: MemberSettings, now: float) -> None:
        """Start with a heartbeat that is due, and with the timer of the user's calls of `poll`."""
        self._settings = settings
        self._interval = 0.0
        self._failures = 0
        #: The end of the interval, and that of the back-off.
        self._due_at = self._retry_at = now
        self._poll_until = now
        self.poll(now)

    @property
    def interval(self) -> float:
        """The interval that the coordinator has named; 0 before its first answer."""
        return self._interval

    @property
    def poll_until(self) -> float:
        """When the time for the user's next call of `poll` ends."""
        return self._poll_until

    def poll(self, now: float) -> None:
        """Restart the timer of the user's calls of `poll`."""
        self._poll_until = now + self._settings.rebalance_timeout

    def has_poll_expired(self, now: float) -> bool:
        """Return whether the user has not called `poll` for max.poll.interval.ms."""
        return now >= self._poll_until

    def next_at(self, *, is_urgent: bool) -> float:
        """Return when the next heartbeat is due, if none is in flight."""
        return self._retry_at if is_urgent else max(self._due_at, self._retry_at)

    def sent(self, now: float) -> None:
        """Restart the interval."""
        self._due_at = now + self._interval

    def answered(self, interval: float, now: float) -> None:
        """Apply the interval of an answer without an error, which ends the back-off.

        The next heartbeat that is not urgent waits for retry.backoff.ms at least, whatever the
        interval is.
        """
        if interval != self._interval:
            self._interval = interval
            self._due_at = now + interval
        self._due_at = max(self._due_at, now + self._settings.backoff.initial)
        self._failures = 0
        self._retry_at = now

    def failed(self, now: float, *, may_skip: bool = False) -> None:
        """End the interval, and start a back-off that grows with each failure (KIP-580).

        With `may_skip` the first failure in a row has no back-off.
        """
        self._due_at = self._retry_at = now
        if self._failures or not may_skip:
            self._retry_at += self._settings.backoff.delay(self._failures)
        self._failures += 1

    def reset(self, now: float) -> None:
        """End the interval and the back-off."""
        self._failures = 0
        self._due_at = self._retry_at = now
