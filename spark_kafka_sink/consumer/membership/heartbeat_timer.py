"""When a member of a classic group sends heartbeats, and when it is too late for them.

This is Kafka's Heartbeat class without its clock. There are three timers: the next heartbeat, the
session (no answer for so long: the coordinator may be gone), and the user's calls of `poll` (none
for so long: the member must leave, because others wait for its partitions).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_kafka_sink.consumer.membership.group_values import GroupSettings


class HeartbeatTimer:
    """The timers of one member; all times are seconds on the caller's clock."""

    def __init__(self, settings: GroupSettings, now: float) -> None:
        """Start all three timers."""
        self._settings = settings
        self._failures = 0
        self._heartbeat_at = self._session_until = self._poll_until = now
        self.reset_timeouts(now)

    @property
    def heartbeat_at(self) -> float:
        """When the next heartbeat is due."""
        return self._heartbeat_at

    @property
    def next_deadline(self) -> float:
        """When the session or the time for `poll` ends, whichever is first."""
        return min(self._session_until, self._poll_until)

    def poll(self, now: float) -> None:
        """Restart the timer of the user's calls of `poll`."""
        self._poll_until = now + self._settings.rebalance_timeout

    def sent(self, now: float) -> None:
        """Schedule the next heartbeat after the one that is sent at `now`."""
        self._heartbeat_at = now + self._settings.heartbeat_interval

    def received(self, now: float) -> None:
        """Extend the session: the coordinator has answered."""
        self._failures = 0
        self.reset_session(now)

    def failed(self, now: float) -> None:
        """Schedule the next heartbeat after a back-off that grows with each failure (KIP-580)."""
        self._heartbeat_at = now + self._settings.backoff.delay(self._failures)
        self._failures += 1

    def should_heartbeat(self, now: float) -> bool:
        """Return whether a heartbeat is due."""
        return now >= self._heartbeat_at

    def time_to_next_heartbeat(self, now: float) -> float:
        """Return the seconds until the next heartbeat; 0 if it is due."""
        return max(self._heartbeat_at - now, 0.0)

    def has_session_expired(self, now: float) -> bool:
        """Return whether the coordinator has not answered for session.timeout.ms."""
        return now >= self._session_until

    def has_poll_expired(self, now: float) -> bool:
        """Return whether the user has not called `poll` for max.poll.interval.ms."""
        return now >= self._poll_until

    def reset_session(self, now: float) -> None:
        """Restart the session."""
        self._session_until = now + self._settings.session_timeout

    def reset_timeouts(self, now: float) -> None:
        """Restart all three timers."""
        self.reset_session(now)
        self.poll(now)
        self.sent(now)
