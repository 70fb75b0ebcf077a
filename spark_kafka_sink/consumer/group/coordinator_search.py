"""The search for the coordinator of a group (AbstractCoordinator.ensureCoordinatorReady)."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from spark_kafka_sink.consumer.group.group_values import FindCoordinator

if TYPE_CHECKING:
    from spark_kafka_sink.model import Node
    from spark_kafka_sink.network.base.exponential_backoff import ExponentialBackoff


class CoordinatorSearch:
    """The coordinator, or the search for it; times are seconds on the caller's clock."""

    def __init__(self, backoff: ExponentialBackoff, now: float) -> None:
        self._backoff = backoff
        self._begins_at = now
        self._failures = 0
        self._step: FindCoordinator | None = None
        self._coordinator: Node | None = None

    @property
    def coordinator(self) -> Node | None:
        """The coordinator; None while it is not known."""
        return self._coordinator

    @property
    def begins_at(self) -> float:
        """When the next request may be sent; never while one is in flight."""
        return inf if self._step is not None else self._begins_at

    def is_due(self, now: float) -> bool:
        """Return whether a request may be sent."""
        return now >= self.begins_at

    def begin(self, number: int) -> FindCoordinator:
        """Return the step of sending a request."""
        self._step = FindCoordinator(number)
        return self._step

    def end(self, step: FindCoordinator) -> bool:
        """End a search; return whether it was the current one."""
        is_current = step == self._step
        if is_current:
            self._step = None
        return is_current

    def found(self, node: Node) -> None:
        """Use `node` as the coordinator."""
        self._coordinator = node

    def reached(self) -> None:
        """Restart the back-off at its shortest: the coordinator has answered."""
        self._failures = 0

    def failed(self, now: float) -> None:
        """Delay the next request by a back-off, which grows with each failure."""
        self._begins_at = now + self._backoff.delay(self._failures)
        self._failures += 1

    def lost(self) -> None:
        """Forget the coordinator; the next search may begin at once."""
        self._coordinator = None
