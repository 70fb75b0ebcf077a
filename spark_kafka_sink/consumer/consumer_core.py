"""The parts of one consumer, put together, without what runs them: a thread, or the user's loop.

The user's side calls them, and meets the network side under the lock of the context: see
`consumer_context`. The network side starts what is due whenever something has changed: heartbeats,
look-ups of positions, fetches, metadata.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import time
import uuid
from abc import ABC, abstractmethod
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from spark_kafka_sink.config.consumer_config import CONSUMER_PROTOCOL, KafkaConsumerConfig
from spark_kafka_sink.consumer.consumer_context import Answer
from spark_kafka_sink.consumer.consumer_metrics import ConsumerMetrics
from spark_kafka_sink.consumer.fetch.fetcher import Fetcher
from spark_kafka_sink.consumer.group.classic_coordinator import ClassicCoordinator
from spark_kafka_sink.consumer.group.consumer_coordinator import ConsumerCoordinator
from spark_kafka_sink.consumer.group.group_member import MemberSettings
from spark_kafka_sink.consumer.group.group_requests import GroupSettings
from spark_kafka_sink.consumer.group.offset_commits import OffsetCommits
from spark_kafka_sink.consumer.offsets.offset_calls import BrokerRequests, OffsetCalls
from spark_kafka_sink.consumer.offsets.position_lookups import PositionLookups
from spark_kafka_sink.consumer.subscription.partition_state import parse_offset_reset
from spark_kafka_sink.consumer.subscription.subscription_state import SubscriptionState
from spark_kafka_sink.consumer.topic_updates import TopicUpdates
from spark_kafka_sink.errors import IllegalStateError, KafkaTimeoutError, WakeupError
from spark_kafka_sink.metrics.client_metrics import create_metrics
from spark_kafka_sink.network.authentication.connection_security import read_security
from spark_kafka_sink.network.exponential_backoff import NEVER, ExponentialBackoff
from spark_kafka_sink.network.network_client import NetworkClient

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence
    from contextlib import ExitStack

    from spark_kafka_sink.consumer.assignors.partition_assignor import ConsumerPartitionAssignor
    from spark_kafka_sink.consumer.consumer_context import ConsumerContext, Waiting
    from spark_kafka_sink.consumer.group.coordinator import Coordinator

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds by which the network side's own answer to a timeout may be late.
_ANSWER_TIMEOUT: Final = 1.0


def closed_error() -> IllegalStateError:
    """Return the error of calls after `close`."""
    return IllegalStateError("the consumer is closed: create another one")


class ConsumerCore(ABC):
    """The subscriptions, the coordinator, the positions and the fetches."""

    def __init__(
        self,
        config: KafkaConsumerConfig,
        assignors: Sequence[ConsumerPartitionAssignor],
        undo: ExitStack,
        *,
        context_type: Callable[..., ConsumerContext],
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        stopwatch: Callable[[], float] = time.monotonic,
    ) -> None:
        """Put the parts together; the clocks return seconds.

        `clock` is that of the loop, which may stand still between its rounds; `stopwatch` does not.

        Only metrics reporters run yet, and `undo` closes them. Raises ConfigError for TLS and SASL
        settings, and for reporters, that cannot be used.
        """
        read_security(config.security)
        self.config = config
        self.clock = clock
        self.stopwatch = stopwatch
        self.wall_clock = wall_clock
        #: Whether it was logged that no broker can be reached; a connection ends that.
        self._is_warned = False
        self.subscriptions = SubscriptionState(parse_offset_reset(config.auto_offset_reset))
        self.metrics = create_metrics(config, clock)
        undo.callback(self.metrics.close)
        self.measures = ConsumerMetrics(
            self.metrics,
            has_group=config.group_id is not None,
            is_classic=config.group_protocol != CONSUMER_PROTOCOL,
            assigned_partitions=lambda: len(self.subscriptions.assigned_partitions),
            preferred_replica=self.subscriptions.last_preferred_read_replica,
        )
        self.context = context_type(config, self.subscriptions, clock=clock, measures=self.measures)
        self.coordinator = self._create_coordinator(assignors)
        self.offset_commits = (
            None if self.coordinator is None else OffsetCommits(self.context, self.coordinator)
        )
        self.positions = PositionLookups(
            self.context, self.offset_commits, wall_clock_ms=lambda: int(wall_clock() * 1000)
        )
        self.topics = TopicUpdates(self.context)
        self.fetcher = Fetcher(self.context)
        #: The user has called `wakeup`.
        self.is_woken = False
        #: The consumer is being closed, which nothing is to interrupt.
        self.ignores_wakeups = False

    def _create_coordinator(
        self, assignors: Sequence[ConsumerPartitionAssignor]
    ) -> Coordinator | None:
        config = self.config
        if config.group_id is None:
            return None
        if config.group_protocol == CONSUMER_PROTOCOL:
            return ConsumerCoordinator(self.context, member_settings(config))
        return ClassicCoordinator(self.context, group_settings(config), assignors)

    # --- the network side

    def _connect(self, changed: Callable[[], None]) -> NetworkClient:
        """Create the connections on the loop that runs now; `changed` starts what is due, soon."""
        nodes_changed = asyncio.Event()

        def on_change() -> None:
            changed()
            nodes_changed.set()
            self._warn_if_unreachable(client)

        client = NetworkClient(self.config, on_change=on_change, listener=self.measures)
        requests = BrokerRequests(client, self.config, nodes_changed)
        self.context.begin(client, requests, OffsetCalls(requests), changed)
        return client

    def _warn_if_unreachable(self, client: NetworkClient) -> None:
        """Log once that nothing listens at any broker's address; `poll` only returns nothing."""
        if client.connection_count:
            self._is_warned = False
        elif not self._is_warned and client.last_error is not None and client.finds_nobody:
            self._is_warned = True
            logger.warning("%s. The consumer keeps trying", client.unreachable())

    def _advance(self, now: float) -> float:
        self.context.finish_waits()
        parts: list[Callable[[float], float]] = [
            self.topics.advance,
            self.positions.advance,
            self.fetcher.advance,
        ]
        if self.coordinator is not None:
            # First, so that no error of another part ends the heartbeats.
            parts.insert(0, partial(self.coordinator.advance, may_join=False))
        until = NEVER
        for advance in parts:
            try:
                until = min(until, advance(now))
            except Exception as error:  # noqa: BLE001  the user's next call raises it
                self.context.fail(error)
                until = min(until, now + self.config.reconnect_backoff_max_ms / 1000)
        return until

    # --- the user's side

    @abstractmethod
    def stop(self) -> Waiting[None]:
        """Close all connections, end the network side, and close the metrics reporters."""

    def call(
        self,
        work: Callable[[], Coroutine[Any, Any, T]],
        timeout: float,
        what: str,
        *,
        is_wakeable: bool = True,
    ) -> Waiting[T]:
        """Run a coroutine, which `work` returns, on the network side, and return its result.

        It has to end by itself within `timeout` seconds. Raises WakeupError after `wakeup`, unless
        `is_wakeable` is False: then a later call does. Raises KafkaTimeoutError if it does not end,
        and what it raises.
        """
        context = self.context
        answer = Answer(work)
        until = self.clock() + timeout + _ANSWER_TIMEOUT
        try:
            context.start_for_user(answer)
            while not answer.is_done:
                if is_wakeable:
                    self.raise_wakeup()
                left = until - self.clock()
                if left <= 0:
                    raise KafkaTimeoutError(f"{what}: no answer within {timeout:g} s")
                yield from context.wait(left)
            return answer.get()
        finally:
            if not answer.is_done:
                context.cancel(answer)

    @contextmanager
    def timed(self, record: Callable[[float, float], None]) -> Iterator[None]:
        """Pass the seconds that the block took, and the time at its end, to `record`."""
        started = self.clock()
        try:
            yield
        finally:
            now = self.clock()
            record(now - started, now)

    def submit(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine on the network side, and do not wait for it."""
        self.context.start(work)

    def wakeup(self) -> None:
        """Make the call that waits, or the next one that would, raise WakeupError."""
        with self.context.lock:
            self.is_woken = True
            self.context.ring()

    def raise_wakeup(self) -> None:
        """Raise WakeupError once after `wakeup`."""
        if self.is_woken and not self.ignores_wakeups:
            self.is_woken = False
            raise WakeupError("another thread has called wakeup()")


def group_settings(config: KafkaConsumerConfig) -> GroupSettings:
    """Return the settings of the member of a classic group."""
    return GroupSettings(
        group_id=config.group_id or "",
        group_instance_id=config.group_instance_id,
        session_timeout=config.session_timeout_ms / 1000,
        rebalance_timeout=config.max_poll_interval_ms / 1000,
        heartbeat_interval=config.heartbeat_interval_ms / 1000,
        request_timeout=config.request_timeout_ms / 1000,
        backoff=_backoff(config),
    )


def member_settings(config: KafkaConsumerConfig) -> MemberSettings:
    """Return the settings of a new member of a group of the consumer protocol (KIP-848)."""
    return MemberSettings(
        group_id=config.group_id or "",
        # As Java's Uuid.toString: URL-safe Base64 without padding.
        member_id=base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode(),
        group_instance_id=config.group_instance_id,
        rack_id=config.client_rack or None,
        server_assignor=config.group_remote_assignor,
        rebalance_timeout=config.max_poll_interval_ms / 1000,
        is_auto_commit=config.enable_auto_commit,
        backoff=_backoff(config),
    )


def _backoff(config: KafkaConsumerConfig) -> ExponentialBackoff:
    return ExponentialBackoff(config.retry_backoff_ms / 1000, config.retry_backoff_max_ms / 1000)
