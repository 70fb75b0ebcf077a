"""When to ask for metadata next (the timing half of org.apache.kafka.clients.Metadata).

Asked for: at once for a new topic; soon when an answer showed the picture to be old; by
metadata.max.age.ms in any case. Held back: for retry.backoff.ms after every answer, and twice as
long each time nobody answers or an answer says nothing new (KIP-580), up to retry.backoff.max.ms.
Reads no clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.network.metadata_recovery import NEVER

if TYPE_CHECKING:
    from spark_kafka_sink.network.exponential_backoff import ExponentialBackoff


class RefreshSchedule:
    """Times are seconds of one monotonic clock, given by the caller."""

    def __init__(self, *, backoff: ExponentialBackoff, max_age: float) -> None:
        """Start without an answer: the first question may be asked at once."""
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
        """When everything was last answered; None before the first time."""
        return self._last_full_answer

    def request_full_update(self) -> None:
        """Note that the picture is out of date; the back-off of equivalent answers stays."""
        self._full_update_requested = True

    def allow_at_once(self) -> None:
        """Drop all back-offs: what is asked for now was never asked for before."""
        self._not_before = 0.0
        self._equivalent_answers = 0

    def expire(self) -> None:
        """Treat the picture as too old from now on: ask for everything at once."""
        self._is_expired = True
        self._not_before = 0.0

    def is_full_update_due(self, now: float) -> bool:
        """Whether everything has to be asked for, and not only what is new."""
        return self._full_update_requested or self._expires_at() <= now

    def _expires_at(self) -> float:
        if self._is_expired:
            return 0.0
        return NEVER if self._last_full_answer is None else self._last_full_answer + self._max_age

    def next_at(self, *, has_new_topics: bool) -> float:
        """When to ask next."""
        if has_new_topics or self._full_update_requested:
            return self._not_before
        return max(self._expires_at(), self._not_before)

    def failed(self, now: float) -> None:
        """Note that nobody answered; the next question waits for the back-off."""
        self._not_before = now + self._backoff.delay(self._failures)
        self._failures += 1

    def answered(self, now: float, *, full: bool, progressed: bool) -> None:
        """Note an answer; `progressed` is whether it said anything that was not known.

        An answer that came because the picture was old counts as progress: nothing was expected to
        have changed.
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
