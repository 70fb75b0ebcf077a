"""When a consumer commits its offsets by itself (enable.auto.commit), without IO.

`AutoCommit` is due once per interval, and never while an earlier commit of it is in flight. A
`LastCommit` comes before a rebalance and before closing, whatever the interval: it is retried until
its deadline, each time with the latest offsets.

Times are seconds on the caller's clock.

Source: CommitRequestManager.AutoCommitState, maybeAutoCommitAsync and
maybeAutoCommitSyncBeforeRebalance; for classic groups, ConsumerCoordinator.onJoinPrepare and
maybeAutoCommitOffsetsAsync.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from spark_kafka_sink.consumer.requests.commit_rules import OffsetAction, Verdict
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from spark_kafka_sink.network.base.exponential_backoff import ExponentialBackoff

#: A topic that was deleted would delay the rebalance until its deadline.
_NOT_RETRIED = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})


class AutoCommit:
    """The asynchronous commits, one per auto.commit.interval.ms."""

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


class LastCommit:
    """The commit before a rebalance, or before closing."""

    def __init__(
        self, now: float, deadline: float, backoff: ExponentialBackoff, *, is_enabled: bool = True
    ) -> None:
        """Commit at once if `is_enabled`, and retry until `deadline`."""
        self._deadline = deadline
        self._backoff = backoff
        self._attempts = 0
        self._is_done = not is_enabled
        self._is_in_flight = False
        self._send_at = now
        #: The last failure, for the log; None without one.
        self.failure: Verdict | None = None

    def is_done(self, now: float) -> bool:
        """Return whether the rebalance may begin: the commit has ended, or its time is over."""
        return self._is_done or now >= self._deadline

    def is_due(self, now: float) -> bool:
        """Return whether to send a commit of all consumed offsets at `now`."""
        return not self.is_done(now) and not self._is_in_flight and now >= self._send_at

    @property
    def wake_up_at(self) -> float:
        """When `is_due` or `is_done` may become true by the passage of time."""
        if self._is_done:
            return inf
        return self._deadline if self._is_in_flight else min(self._send_at, self._deadline)

    def sent(self) -> None:
        """Record that a commit was sent."""
        self._is_in_flight = True

    def nothing_to_commit(self) -> None:
        """End it: no partition has a position."""
        self._is_done = True

    def answered(self, verdict: Verdict, now: float, *, has_new_epoch: bool = False) -> None:
        """Apply the answer to the commit, after which it is done or due again after a back-off.

        `has_new_epoch` says that the member is still in its group: a commit with a stale epoch is
        then resent with the current one (KIP-848). A topic that does not exist is not retried.
        """
        self._is_in_flight = False
        if verdict.action is OffsetAction.DONE:
            self._is_done = True
            self.failure = None
            return
        self.failure = verdict
        if (
            not verdict.is_retried
            or verdict.code in _NOT_RETRIED
            or (verdict.action is OffsetAction.NEW_EPOCH and not has_new_epoch)
        ):
            self._is_done = True
        else:
            self._retry(now)

    def not_answered(self, now: float) -> None:
        """Retry after a back-off: the connection was lost, or there was no coordinator."""
        self._is_in_flight = False
        self._retry(now)

    def _retry(self, now: float) -> None:
        self._send_at = now + self._backoff.delay(self._attempts)
        self._attempts += 1
