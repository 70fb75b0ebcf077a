"""The part of a membership that both group protocols share: the coordinator and the error."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import inf
from typing import TYPE_CHECKING

from spark_kafka_sink.consumer.group.group_requests import FindCoordinator, GroupSettings
from spark_kafka_sink.protocol.error_codes import broker_error

if TYPE_CHECKING:
    from spark_kafka_sink.consumer.group.group_member import MemberSettings
    from spark_kafka_sink.errors import BrokerError
    from spark_kafka_sink.model import Node
    from spark_kafka_sink.protocol.api_keys import ApiKey


class Membership(ABC):
    """One member of a group; all times are seconds on the caller's clock.

    It searches for the coordinator as AbstractCoordinator.ensureCoordinatorReady does.
    """

    def __init__(self, settings: GroupSettings | MemberSettings, now: float) -> None:
        self._group_id = settings.group_id
        self._group_instance_id = settings.group_instance_id
        self._backoff = settings.backoff
        #: None while it is not known.
        self.coordinator: Node | None = None
        #: The error that the next `poll` raises.
        self.failure: BrokerError | None = None
        self._steps = 0
        self._search: FindCoordinator | None = None
        self._search_begins_at = now
        self._failed_searches = 0

    def poll(self, now: float) -> None:  # noqa: ARG002  for the timers of the subclasses
        """Record a call of `poll`; raise the error of the group, if there is one, once."""
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure

    def raise_failure(self) -> None:
        """Raise the error of the group, if there is one, from a call other than `poll`."""
        if self.failure is not None:
            raise self.failure

    # The coordinator

    def coordinator_found(self, step: FindCoordinator, node: Node, now: float) -> None:  # noqa: ARG002
        """Use `node` as the coordinator."""
        if self._end_search(step):
            self.coordinator = node

    @abstractmethod
    def coordinator_not_found(self, step: FindCoordinator, code: int | None, now: float) -> None:
        """Retry the search after a back-off; `code` is None if there was no answer.

        The next `poll` raises an error that retrying does not help against.
        """

    def coordinator_lost(self, now: float, *, was_reached: bool = True) -> None:
        """Rediscover the coordinator: the connection was lost, or it is no longer the coordinator.

        Requests in flight to it have failed. The caller closes the connection. `was_reached` is
        False if there was none: then the search begins after a back-off, or a broker that is down
        would be found in a busy loop.

        Source: AbstractCoordinator.markCoordinatorUnknown.
        """
        self.coordinator = None
        if not was_reached:
            self._delay_search(now)

    @property
    def _search_at(self) -> float:
        """When the next request may be sent; never while one is in flight."""
        return inf if self._search is not None else self._search_begins_at

    def _begin_search(self) -> FindCoordinator:
        self._search = FindCoordinator(self._next_number())
        return self._search

    def _end_search(self, step: FindCoordinator) -> bool:
        """End a search; return whether it was the current one."""
        is_current = step == self._search
        if is_current:
            self._search = None
        return is_current

    def _delay_search(self, now: float) -> None:
        """Delay the next request by a back-off, which grows with each failure.

        It is the shortest one again when the coordinator has answered.
        """
        self._search_begins_at = now + self._backoff.delay(self._failed_searches)
        self._failed_searches += 1

    # Helpers

    def _set_failure(self, api_key: ApiKey, code: int, advice: str | None) -> None:
        context = f"{api_key.name} of group {self._group_id!r}"
        if self._group_instance_id is not None:
            context += f", group.instance.id {self._group_instance_id!r}"
        self.failure = broker_error(code, context, advice)

    def _next_number(self) -> int:
        self._steps += 1
        return self._steps
