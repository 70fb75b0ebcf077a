"""When to request metadata for topics whose ids have no known names."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from spark_kafka_sink.consumer.reconciliation.member_values import RefreshMetadata

if TYPE_CHECKING:
    from uuid import UUID

    from spark_kafka_sink.network.base.exponential_backoff import ExponentialBackoff


class MetadataRefresh:
    """The requests for one set of topics after another; times are seconds."""

    def __init__(self, backoff: ExponentialBackoff, now: float) -> None:
        """Start with nothing to request."""
        self._backoff = backoff
        self._failures, self._due_at = 0, now
        self._is_in_flight = False
        self._topic_ids: frozenset[UUID] = frozenset()

    def due_at(self, topic_ids: frozenset[UUID], now: float) -> float:
        """Return when to request the names of these topics; never without topics.

        Other topics than those of the last request are due at once.
        """
        if not topic_ids or (topic_ids <= self._topic_ids and self._is_in_flight):
            return inf
        return self._due_at if topic_ids <= self._topic_ids else now

    def next_step(self, topic_ids: frozenset[UUID], now: float) -> RefreshMetadata | None:
        """Return the request, if it is due."""
        if now < self.due_at(topic_ids, now):
            return None
        if not topic_ids <= self._topic_ids:
            self._failures = 0
        self._topic_ids = topic_ids
        self._is_in_flight = True
        return RefreshMetadata(topic_ids)

    def ended(self, now: float) -> None:
        """Delay the next request by a back-off: there are new metadata, or there is an error."""
        if self._is_in_flight:
            self._is_in_flight = False
            self._due_at = now + self._backoff.delay(self._failures)
            self._failures += 1
