"""When to request metadata next (the timing half of org.apache.kafka.clients.Metadata).

A request is due at once for a new topic, soon if a response showed the metadata to be out of date,
and in any case after metadata.max.age.ms. It is held back for retry.backoff.ms after every
response, and for twice as long each time no broker answers or a response contains nothing new
(KIP-580), up to retry.backoff.max.ms. Reads no clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.network.base.times import NEVER

if TYPE_CHECKING:
    from spark_kafka_sink.network.base.exponential_backoff import ExponentialBackoff


class RefreshSchedule:
    """The times of metadata requests; callers pass times in seconds of one monotonic clock."""

    def __init__(self, *, backoff: ExponentialBackoff, max_age: float) -> None:
        """Start without a response: the first request may be sent at once."""
        self._backoff = backoff
        self._max_age = max_age
        self._full_update_requested = True
        self._is_expired = False
        self._last_full_answer: float | None = None
        self._failures = 0
        self._equivalent_answers = 0
        self._not_before = 0.0

    @property
    def last_full_answer(self) -> float | None:
        """When all topics were last received; None before the first time."""
        return self._last_full_answer

    def request_full_update(self) -> None:
        """Request a full update; the back-off after responses without news still applies."""
        self._full_update_requested = True

    def allow_at_once(self) -> None:
        """Drop all back-offs: what is requested now was never requested before."""
        self._not_before = 0.0
        self._equivalent_answers = 0

    def expire(self) -> None:
        """Treat the metadata as too old from now on: everything is due at once."""
        self._is_expired = True
        self._not_before = 0.0

    def is_full_update_due(self, now: float) -> bool:
        """Return whether everything has to be requested, and not only what is new."""
        return self._full_update_requested or self._expires_at() <= now

    def _expires_at(self) -> float:
        if self._is_expired:
            return 0.0
        return NEVER if self._last_full_answer is None else self._last_full_answer + self._max_age

    def next_at(self, *, has_new_topics: bool) -> float:
        """Return when to send the next request."""
        if has_new_topics or self._full_update_requested:
            return self._not_before
        return max(self._expires_at(), self._not_before)

    def failed(self, now: float) -> None:
        """Record that no broker answered; the next request waits for the back-off."""
        self._not_before = now + self._backoff.delay(self._failures)
        self._failures += 1

    def answered(self, now: float, *, full: bool, progressed: bool) -> None:
        """Record a response; `progressed` is whether it contained anything new.

        A response that was requested because the metadata was too old counts as progress: no change
        was expected.
        """
        if progressed or self._expires_at() <= now:
            self._equivalent_answers = 0
        self._not_before = now + self._backoff.delay(self._equivalent_answers)
        self._equivalent_answers += 1
        self._failures = 0
        if full:
            self._full_update_requested = False
            self._is_expired = False
            self._last_full_answer = now
