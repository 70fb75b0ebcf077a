"""The way to a group's coordinator, for both group protocols.

The coordinator has a connection of its own, because a broker answers the requests of one connection
one after the other: a heartbeat must not wait until a Fetch has found records.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from spark_kafka_sink.consumer.group.rebalance_listener import call_listener
from spark_kafka_sink.consumer.offsets.offset_requests import (
    find_coordinator_request,
    found_coordinator,
)
from spark_kafka_sink.errors import DecodeError, KafkaError, NetworkError
from spark_kafka_sink.model import MORE_CONNECTIONS, ConsumerGroupMetadata, Node, TopicPartition
from spark_kafka_sink.protocol.api_keys import ApiKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from spark_kafka_sink.consumer.consumer_context import ConsumerContext, Waiting
    from spark_kafka_sink.consumer.group.commit_rules import OffsetCall, Verdict
    from spark_kafka_sink.consumer.group.group_requests import FindCoordinator, LeaveOperation
    from spark_kafka_sink.consumer.group.membership import Membership
    from spark_kafka_sink.protocol.schema import ApiRequest, ResponseT


class Coordinator(ABC):
    """The requests of one member, and of commits, to the coordinator.

    The methods are called under the lock of the context, except for the coroutines, which take it,
    and those for which the docstring says so.
    """

    #: The kinds of answers to OffsetCommit and OffsetFetch, to the latter for the whole group and
    #: for a partition.
    offset_calls: ClassVar[tuple[OffsetCall, OffsetCall, OffsetCall]]
    #: Whether commits and look-ups name topics by their ids.
    uses_topic_ids: ClassVar[bool]
    #: The membership in the group.
    member: Membership

    def __init__(self, context: ConsumerContext, group_id: str) -> None:
        self.context = context
        measures = context.measures.coordinator
        assert measures is not None  # noqa: S101  there is a group
        self.measures = measures
        self.group_id = group_id
        #: The next steps of the user's side, within `poll`. A step stays the first until it has
        #: been run, so that Ctrl-C loses none.
        self.for_user: deque[Any] = deque()
        #: How many commits and look-ups wait for the coordinator.
        self.waiting = 0
        self._connected: Node | None = None

    @property
    def is_joining(self) -> bool:
        """Whether the subscribed topics have to be up to date, because they are sent next."""
        return False

    @abstractmethod
    def advance(self, now: float, *, may_join: bool) -> float:
        """Start what is due at `now`, and return when to call again.

        `may_join` says that the user is in `poll` and has subscribed.
        """

    @property
    def awaits_others(self) -> bool:
        """Whether the connection waits for an answer that takes as long as a rebalance."""
        return False

    @property
    def is_leaving(self) -> bool:
        """Whether the user has left the group, and the coordinator has not answered it so far."""
        return False

    @abstractmethod
    def subscription_changed(self) -> None:
        """Record that the user has subscribed to something else."""

    def may_run(self, step: Any, now: float) -> bool:  # noqa: ARG002
        """Return whether the first step of `for_user` can be done now, or waits for a change."""
        return True

    @abstractmethod
    def run(self, step: Any) -> Waiting[None]:
        """Do a step of `for_user` and remove it, on the user's side and without the lock.

        Raises KafkaError if a method of the user's listener has raised.
        """

    @abstractmethod
    def leave(self, reason: str, operation: LeaveOperation, seconds: float) -> Waiting[None]:
        """Release all partitions and leave the group, on the user's side and without the lock.

        It takes no longer than `seconds`, apart from the listener.

        Raises KafkaError if a method of the user's listener has raised.
        """

    @abstractmethod
    def enforce_rebalance(self, reason: str) -> None:
        """Rejoin the group within the next `poll`; needs the lock."""

    @abstractmethod
    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return what fences this member's commits in a transaction (KIP-447)."""

    def committing_member(self) -> ConsumerGroupMetadata:
        """Return the member to commit as; raise if it is in no generation at the moment."""
        if not self.context.subscriptions.subscription.is_auto_assigned:
            return ConsumerGroupMetadata(self.group_id)
        return self._current_member()

    @abstractmethod
    def _current_member(self) -> ConsumerGroupMetadata:
        """Return the member in its generation; raise if it is in none."""

    def fetching_member(self) -> tuple[str | None, int]:
        """Return the member id and the epoch for OffsetFetch; None and -1 in a classic group."""
        return None, -1

    @abstractmethod
    def apply_commit(
        self, verdict: Verdict, sent: ConsumerGroupMetadata, *, is_of_user: bool
    ) -> Verdict:
        """Apply the answer to a commit to the membership; return what remains for the caller."""

    def disconnect_lost(self) -> None:
        """Close the connection to a broker that is no longer the coordinator.

        Otherwise the next request to the same broker would wait behind those that have no answer.

        Source: AbstractCoordinator.markCoordinatorUnknown.
        """
        lost, self._connected = self._connected, self.member.coordinator
        if lost is not None and self._connected is None:
            self.context.start(partial(self._disconnect, lost))

    async def _disconnect(self, lost: Node) -> None:
        self.context.client.disconnect(lost, "it is no longer the group's coordinator")

    async def ask(
        self,
        api_key: ApiKey,
        build: Callable[[int], ApiRequest[ResponseT]],
        *,
        seconds: float | None = None,
        max_version: int | None = None,
        is_apart: bool = False,
        on_connected: Callable[[], None] = lambda: None,
    ) -> ResponseT | None:
        """Send the coordinator what `build` returns for a version; None if there is no answer.

        A coordinator that does not answer is lost. `seconds` is the timeout of the request, without
        it request.timeout.ms. With `is_apart` it has a connection of its own, because the broker
        would not read it before it has answered an earlier one. `on_connected` is called when there
        is nothing to wait for before it is sent. Call it without the lock.

        Raises UnsupportedVersionError, AuthenticationError or ConfigError if no further attempt
        would help.
        """
        context = self.context
        node = self.member.coordinator
        if node is None:
            return None
        if is_apart:
            node = node._replace(node_id=MORE_CONNECTIONS + node.node_id)
        reached = False
        limit = context.config.request_timeout_ms / 1000
        try:
            connection = await context.requests.connection_to(node, context.clock() + limit)
            reached = True
            on_connected()
            version = connection.api_versions.version_for(api_key, max_version)
            return await connection.send(build(version), timeout=seconds, max_version=version)
        except (NetworkError, DecodeError):
            with context.lock:
                if node == self.member.coordinator:
                    self.member.coordinator_lost(context.clock(), was_reached=reached)
                    context.tell_user()
            return None
        except KafkaError:
            with context.lock:
                self.member.coordinator_lost(context.clock(), was_reached=False)
            raise

    async def _find_coordinator(self, step: FindCoordinator) -> None:
        context = self.context
        deadline = context.clock() + context.config.request_timeout_ms / 1000
        code: int | None = None
        node: Node | None = None
        try:
            connection = await context.client.least_loaded_connection(deadline)
            version = connection.api_versions.version_for(ApiKey.FIND_COORDINATOR)
            request = find_coordinator_request(self.group_id, version)
            code, node = found_coordinator(await connection.send(request))
        except (NetworkError, DecodeError):
            pass
        except KafkaError as error:
            with context.lock:
                context.fail(error)
        with context.lock:
            if code == 0 and node is not None:
                node = node._replace(node_id=MORE_CONNECTIONS + node.node_id)
                self.member.coordinator_found(step, node, context.clock())
            else:
                self.member.coordinator_not_found(step, code, context.clock())
            context.tell_user()

    def tell_listener(
        self, method: str, partitions: Iterable[TopicPartition], *, always: bool = False
    ) -> Waiting[None]:
        """Call a method of the user's listener; see `call_listener`."""
        context = self.context
        started = context.clock()
        listener = context.subscriptions.rebalance_listener
        if (yield from call_listener(context, listener, method, partitions, always=always)):
            now = context.clock()
            self.measures.listener_called(method, now - started, now)

    def step_done(self, step: Any) -> None:
        """Remove a step for the user's side; one that has left the group has removed all."""
        if step in self.for_user:
            self.for_user.remove(step)

    def for_poll(self, step: Any) -> None:
        """Add a step for the user's side."""
        self.for_user.append(step)
        self.context.note_change()
