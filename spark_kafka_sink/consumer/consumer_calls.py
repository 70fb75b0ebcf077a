"""What the two public consumers have in common: calls that do not wait, and all that the others do.

`KafkaConsumer` and `AIOKafkaConsumer` add how a call waits, and how the consumer is closed. A call
holds the guard (`_call`), which refuses two calls at once; the state is changed under the lock.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from spark_kafka_sink.config.arguments import (
    INT64,
    check_columns,
    is_integer,
    number_of,
    number_of_seconds,
    offset_of,
    offsets_of,
    partition_of,
    partitions_of,
    topic_of,
)
from spark_kafka_sink.config.consumer_config import CONSUMER_PROTOCOL, KafkaConsumerConfig
from spark_kafka_sink.config.plug_ins import PlugIns, plug_in_settings
from spark_kafka_sink.consumer.assignors.assignment_strategies import assignor_instances
from spark_kafka_sink.consumer.commits import Commits
from spark_kafka_sink.consumer.group.group_requests import LeaveOperation
from spark_kafka_sink.consumer.interceptors import resolve_interceptors
from spark_kafka_sink.consumer.polls import Polls
from spark_kafka_sink.consumer.records.deserializers import resolve_deserializers
from spark_kafka_sink.consumer.subscription.partition_state import (
    EARLIEST,
    LATEST,
    FetchPosition,
    LeaderAndEpoch,
)
from spark_kafka_sink.errors import ConfigError, IllegalStateError, KafkaError
from spark_kafka_sink.metrics.kafka_metric import KafkaMetric, MetricName, MetricsByName
from spark_kafka_sink.model import Node, PartitionInfo, TopicPartition
from spark_kafka_sink.protocol.messages.list_offsets import LATEST_TIMESTAMP

if TYPE_CHECKING:
    from contextlib import AbstractContextManager, ExitStack

    import pyarrow as pa

    from spark_kafka_sink.config.format_arguments import FormatArguments
    from spark_kafka_sink.consumer.consumer_context import Waiting
    from spark_kafka_sink.consumer.consumer_core import ConsumerCore
    from spark_kafka_sink.consumer.group.coordinator import Coordinator
    from spark_kafka_sink.consumer.group.rebalance_listener import ConsumerRebalanceListener
    from spark_kafka_sink.consumer.records.consumer_record import ConsumerRecords
    from spark_kafka_sink.model import ConsumerGroupMetadata, OffsetAndMetadata
    from spark_kafka_sink.protocol.messages.metadata import MetadataResponse

logger = logging.getLogger(__name__)

#: Seconds that `close` takes at most unless told otherwise, as in Java.
CLOSE_TIMEOUT: Final = 30.0
#: Seconds of each `poll` of an iteration.
ITERATION_TIMEOUT: Final = 1.0
#: The methods of a ConsumerRebalanceListener.
_LISTENER = ("on_partitions_assigned", "on_partitions_revoked", "on_partitions_lost")


class Guard(Protocol):
    """What refuses calls that may not be made now."""

    is_closed: bool

    @property
    def is_calling(self) -> bool:
        """Whether the caller is within another call, such as a listener of `poll`."""

    def call(self, *, closes: bool = False) -> AbstractContextManager[Any]:
        """Return what to hold during a call; only one that `closes` may follow the end."""


class ConsumerCalls:
    """The parts of a consumer, and its calls."""

    _core: ConsumerCore
    _guard: Guard
    #: Whether the user's functions may be coroutine functions.
    _awaits: ClassVar[bool]

    def _build(
        self,
        config: KafkaConsumerConfig | Mapping[str, object],
        core_type: Callable[[KafkaConsumerConfig, Sequence[Any], ExitStack], ConsumerCore],
        undo: ExitStack,
    ) -> None:
        """Put the parts together; `undo` closes the plug-ins."""
        if not isinstance(config, KafkaConsumerConfig):
            config = KafkaConsumerConfig.from_mapping(config)
        self._config = config
        self._plug_ins = PlugIns(plug_in_settings(config))
        undo.callback(self._plug_ins.close)
        assignors = assignor_instances(config.partition_assignment_strategy, self._plug_ins)
        deserializers = resolve_deserializers(config, self._plug_ins)
        interceptors = resolve_interceptors(config.interceptor_classes, self._plug_ins)
        self._core = core = core_type(config, assignors, undo)
        self._context = core.context
        self._subscriptions = core.subscriptions
        self._commits = Commits(core, interceptors)
        self._polls = Polls(core, self._commits, deserializers, interceptors)
        self._is_closing = self._has_stopped = False

    # --- what to read

    def _subscribe(
        self,
        topics: str | Iterable[str],
        pattern: str | re.Pattern[str] | None,
        broker_pattern: str | None,
        listener: ConsumerRebalanceListener | None,
    ) -> Waiting[None]:
        names = topics_of(topics)
        compiled = None if pattern is None else pattern_of(pattern)
        check_listener(listener, awaits=self._awaits)
        with self._call():
            if (compiled is not None) + (broker_pattern is not None) + bool(names) > 1:
                raise ConfigError("subscribe takes either topics or one pattern, not both")
            if compiled is None and broker_pattern is None and not names:
                yield from self._end_subscription()
                return
            coordinator = self._need_group("subscribe")
            if broker_pattern is not None and self._config.group_protocol != CONSUMER_PROTOCOL:
                raise ConfigError(
                    "a broker evaluates patterns only with group.protocol=consumer: set it, or "
                    "pass the regular expression as `pattern`"
                )
            with self._context.lock:
                if broker_pattern is not None:
                    self._subscriptions.subscribe_broker_pattern(broker_pattern, listener)
                elif compiled is None:
                    self._subscriptions.subscribe(frozenset(names), listener)
                else:
                    self._subscriptions.subscribe_pattern(compiled, listener)
                coordinator.subscription_changed()
                self._context.wake()

    def _assign(self, partitions: Iterable[TopicPartition]) -> Waiting[None]:
        topic_partitions = partitions_of(partitions)
        with self._call():
            if not topic_partitions:
                yield from self._end_subscription()
                return
            self._commits.commit_before_assignment()
            with self._context.lock:
                self._subscriptions.assign_from_user(topic_partitions)
                self._context.may_look_up = False
                self._context.forget_positions()
                self._context.wake()

    def _unsubscribe(self) -> Waiting[None]:
        with self._call():
            yield from self._end_subscription()

    def _end_subscription(self) -> Waiting[None]:
        try:
            yield from self._polls.leave(
                "the consumer unsubscribed from all topics", LeaveOperation.DEFAULT
            )
        finally:
            with self._context.lock:
                self._subscriptions.unsubscribe()
                self._context.forget_positions()
                self._core.topics.forget_pattern()
                self._context.wake()

    def subscription(self) -> frozenset[str]:
        """Return the topics subscribed to, by name or by the pattern so far."""
        with self._call(), self._context.lock:
            return self._subscriptions.subscription.topics

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that are read."""
        with self._call(), self._context.lock:
            return frozenset(self._subscriptions.assigned_partitions)

    # --- reading

    def _poll(self, timeout: float) -> Waiting[ConsumerRecords]:
        with self._call():
            return (yield from self._polls.poll(seconds_of(timeout)))

    def _poll_arrow(
        self,
        timeout: float,
        columns: Sequence[str] | None,
        arguments: FormatArguments,
        *,
        include_headers: bool,
    ) -> Waiting[pa.Table]:
        check_columns(columns)
        with self._call():
            return (
                yield from self._polls.poll_arrow(
                    seconds_of(timeout),
                    columns,
                    include_headers=include_headers,
                    arguments=arguments,
                )
            )

    # --- offsets of the group

    def _commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None,
        timeout: float | None,
    ) -> Waiting[None]:
        with self._call():
            self._need_group("commit")
            with self._core.timed(self._core.measures.commit_called):
                yield from self._commits.commit(self._offsets(offsets), self._timeout(timeout))

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        callback: Callable[[Mapping[TopicPartition, OffsetAndMetadata], Exception | None], object]
        | None = None,
    ) -> None:
        """Commit `offsets` for the group without waiting; see `commit`.

        A later `poll`, `commit` or `close` calls `callback` with the offsets and the error, None if
        there was none. It is not retried: a later commit may have been faster.
        """
        check_callback(callback, awaits=self._awaits)
        with self._call():
            self._need_group("commit_async")
            self._commits.commit_async(self._offsets(offsets), callback)

    def _committed(
        self, partitions: Iterable[TopicPartition], timeout: float | None
    ) -> Waiting[dict[TopicPartition, OffsetAndMetadata | None]]:
        topic_partitions = partitions_of(partitions)
        with self._call():
            self._need_group("committed")
            with self._core.timed(self._core.measures.committed_called):
                return (
                    yield from self._commits.committed(topic_partitions, self._timeout(timeout))
                )

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return what `KafkaProducer.send_offsets_to_transaction` needs (KIP-447)."""
        with self._call(), self._context.lock:
            return self._need_group("group_metadata").group_metadata()

    def enforce_rebalance(self, reason: str = "rebalance enforced by user") -> None:
        """Make the next `poll` rejoin the group, for instance because user data have changed.

        The brokers log `reason`. With group.protocol=consumer it has no effect but a warning: there
        the coordinator alone decides when to rebalance.
        """
        with self._call(), self._context.lock:
            self._need_group("enforce_rebalance").enforce_rebalance(reason)

    # --- positions

    def _position(self, partition: TopicPartition, timeout: float | None) -> Waiting[int]:
        with self._call():
            return (
                yield from self._polls.position(partition_of(partition), self._timeout(timeout))
            )

    def seek(self, partition: TopicPartition, offset: OffsetAndMetadata | int) -> None:
        """Read `partition` from `offset` on; records that were fetched before are dropped."""
        partition = partition_of(partition)
        target = offset_of(partition, offset)
        with self._call(), self._context.lock:
            self._need_assigned(partition)
            self._context.forget_positions()
            leader = LeaderAndEpoch.in_metadata(self._context.client.metadata.snapshot, partition)
            position = FetchPosition(target.offset, target.leader_epoch, leader)
            self._subscriptions.seek_unvalidated(partition, position)
            self._context.wake()

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Read `partitions`, or all that are assigned, from their first offset on."""
        self._seek_to(partitions, EARLIEST)

    def seek_to_end(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Read only new records of `partitions`, or of all that are assigned."""
        self._seek_to(partitions, LATEST)

    def _seek_to(self, partitions: Iterable[TopicPartition], reset: Any) -> None:
        topic_partitions = partitions_of(partitions)
        with self._call(), self._context.lock:
            self._need_assigned(*topic_partitions)
            self._context.forget_positions()
            for topic_partition in topic_partitions or self._subscriptions.assigned_partitions:
                self._subscriptions.request_offset_reset(topic_partition, reset)
            self._context.wake()

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no records of these `partitions` until `resume`; what was fetched is kept."""
        self._change_each(partitions, self._subscriptions.pause)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Return records of these `partitions` again."""
        self._change_each(partitions, self._subscriptions.resume)

    def _change_each(
        self, partitions: Iterable[TopicPartition], change: Callable[[TopicPartition], None]
    ) -> None:
        topic_partitions = partitions_of(partitions)
        with self._call(), self._context.lock:
            self._need_assigned(*topic_partitions)
            for topic_partition in topic_partitions:
                change(topic_partition)
            # What is kept of a paused one no longer delays the fetches of other partitions.
            self._context.wake()

    def paused(self) -> frozenset[TopicPartition]:
        """Return the partitions that are paused."""
        with self._call(), self._context.lock:
            return frozenset(self._subscriptions.paused_partitions)

    # --- questions to the brokers

    def _ends(
        self, partitions: Iterable[TopicPartition], timestamp: int, timeout: float | None
    ) -> Waiting[dict[TopicPartition, int]]:
        timestamps = dict.fromkeys(partitions_of(partitions), timestamp)
        found = yield from self._find_offsets(timestamps, timeout)
        return {partition: offset or 0 for partition, offset in found.items()}

    def _find_offsets(
        self, timestamps: dict[TopicPartition, int], timeout: float | None
    ) -> Waiting[dict[TopicPartition, int | None]]:
        with self._call():
            seconds = self._timeout(timeout)
            deadline = self._core.clock() + seconds
            is_committed = self._config.is_read_committed
            call = partial(
                self._context.calls.offsets, timestamps, deadline, is_committed=is_committed
            )
            return (yield from self._core.call(call, seconds, "ListOffsets"))

    def _describe(
        self, topics: list[str] | None, timeout: float | None, *, includes_internal: bool = False
    ) -> Waiting[dict[str, list[PartitionInfo]]]:
        with self._call():
            seconds = self._timeout(timeout)
            deadline = self._core.clock() + seconds
            call = partial(
                self._context.calls.describe, topics, deadline, includes_internal=includes_internal
            )
            return _partitions((yield from self._core.call(call, seconds, "Metadata")))

    def current_lag(self, partition: TopicPartition) -> int | None:
        """Return how many offsets the position is behind the end of the log, as far as is known.

        `partition` must be assigned. It sends no request, and takes no time: None means that there
        is no position yet, or that the end is only now being looked up. With
        isolation.level=read_committed the end is the last stable offset.
        """
        with self._call():
            return self._current_lag(partition_of(partition))

    def _current_lag(self, partition: TopicPartition) -> int | None:
        """Return the lag; if the end is not known, begin to look it up (OffsetFetcher.currentLag).

        A failed look-up is repeated by the next call.
        """
        subscriptions, is_committed = self._subscriptions, self._config.is_read_committed
        with self._context.lock:
            lag = subscriptions.partition_lag(partition, is_committed=is_committed)
            end = subscriptions.partition_end_offset(partition, is_committed=is_committed)
            if end is None and not subscriptions.is_end_offset_requested(partition):
                subscriptions.request_end_offset(partition)
                self._context.start(partial(_find_end, self._core, partition))
        return lag

    # --- metrics

    def metrics(self) -> Mapping[MetricName, KafkaMetric]:
        """Return the metrics by their names; each `value()` is current when it is called.

        They have the names of Kafka's Java consumer. Any thread may call it, also after `close`.
        """
        return MetricsByName(self._core.metrics.metrics())

    # --- closing

    def _close(self, seconds: float, *, commits: bool) -> Waiting[None]:
        is_nested = self._guard.is_calling
        with self._guard.call(closes=True):
            if self._has_stopped or (is_nested and self._is_closing):
                return
            if is_nested:
                raise IllegalStateError(
                    "close was called by a listener or a callback: call it after poll has returned"
                )
            try:
                if not self._is_closing:
                    self._is_closing = True
                    # The listener is called, and may commit.
                    yield from self._polls.close(seconds, commits=commits)
            finally:
                self._guard.is_closed = True
                yield from self._stop()

    def _stop(self) -> Waiting[None]:
        """End the core and the plug-ins; if it is interrupted, another `close` does the rest."""
        try:
            yield from self._core.stop()
        finally:
            self._plug_ins.close()
        self._has_stopped = True

    # --- helpers

    def _described(self) -> str:
        group = "" if self._config.group_id is None else f" group={self._config.group_id!r}"
        state = ", closed" if self._guard.is_closed else ""
        return f"<{type(self).__name__}{group} {self._subscriptions.subscription}{state}>"

    def _call(self) -> AbstractContextManager[Any]:
        """Return what to hold during a call of the user's; raise if the consumer is closed."""
        call = self._guard.call()
        self._polls.end_calm()
        return call

    def _timeout(self, timeout: float | None) -> float:
        default = self._config.default_api_timeout_ms / 1000
        return default if timeout is None else seconds_of(timeout)

    def _need_group(self, method: str) -> Coordinator:
        if self._core.coordinator is None:
            raise ConfigError(f"{method} needs a group: set group.id")
        return self._core.coordinator

    def _need_assigned(self, *partitions: TopicPartition) -> None:
        for partition in partitions:
            if not self._subscriptions.is_assigned(partition):
                raise IllegalStateError(f"{partition} is not assigned to this consumer")

    def _offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        if offsets is None:
            with self._context.lock:
                return self._subscriptions.all_consumed()
        return offsets_of(offsets)


def _partitions(response: MetadataResponse) -> dict[str, list[PartitionInfo]]:
    nodes = {
        broker.node_id: Node(broker.node_id, broker.host, broker.port)
        for broker in response.brokers
    }
    return {
        topic.name or "": [
            PartitionInfo(
                topic.name or "", partition.partition_index, nodes.get(partition.leader_id)
            )
            for partition in sorted(topic.partitions, key=lambda item: item.partition_index)
        ]
        for topic in response.topics
    }


# --- the arguments of the methods, checked: a mistake is raised where it was made


def seconds_of(timeout: float) -> float:
    """Return a timeout in seconds, as much as a thread can wait."""
    seconds = number_of_seconds(timeout)
    if not seconds >= 0:
        raise ValueError(f"timeout is {timeout}, but must be a number of seconds from 0 on")
    return min(seconds, threading.TIMEOUT_MAX / 2)


def topics_of(topics: object) -> list[str]:
    """Return the names of topics; a text is one name."""
    if isinstance(topics, str):
        return [topic_of(topics)]
    if isinstance(topics, re.Pattern):
        raise TypeError("topics are names: pass a regular expression as `pattern`")
    if not isinstance(topics, Iterable):
        raise TypeError(f"topics are names, not {topics!r}")
    return [topic_of(topic) for topic in topics]


def pattern_of(pattern: object) -> re.Pattern[str]:
    """Return a compiled regular expression."""
    if isinstance(pattern, re.Pattern) and isinstance(pattern.pattern, str):
        return pattern
    if not isinstance(pattern, str):
        raise TypeError(f"pattern is a regular expression as text, not {pattern!r}")
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"pattern is not a regular expression: {error}") from error


def check_listener(listener: object, *, awaits: bool) -> None:
    """Raise TypeError for an object without the methods of a ConsumerRebalanceListener.

    Without `awaits`, they may not be coroutine functions.
    """
    missing = [name for name in _LISTENER if not callable(getattr(listener, name, None))]
    if listener is not None and missing:
        raise TypeError(
            f"the listener has no method {missing[0]}: derive its class from "
            "ConsumerRebalanceListener"
        )
    for name in _LISTENER:
        if not awaits and iscoroutinefunction(getattr(listener, name, None)):
            raise TypeError(
                f"the listener's {name} is a coroutine function, which only an AIOKafkaConsumer "
                "awaits: define it without `async`"
            )


def check_callback(callback: object, *, awaits: bool) -> None:
    """Raise TypeError for a callback that cannot be called, or without `awaits` for a coroutine."""
    if callback is not None and not callable(callback):
        raise TypeError(f"callback is a function of offsets and error, not {callback!r}")
    if not awaits and iscoroutinefunction(callback):
        raise TypeError(
            "callback is a coroutine function, which only an AIOKafkaConsumer awaits: define it "
            "without `async`"
        )


def times_of(times: object) -> dict[TopicPartition, int]:
    """Return the times of several partitions."""
    if not isinstance(times, Mapping):
        raise TypeError(f"times are a mapping of TopicPartition to ms since 1970, not {times!r}")
    return {partition_of(partition): _time_of(partition, time) for partition, time in times.items()}


def _time_of(partition: TopicPartition, time: object) -> int:
    if not is_integer(time):
        raise TypeError(
            f"{partition}: a time is a whole number of ms since 1970, such as "
            f"int(moment.timestamp() * 1000) of a datetime, not {time!r}"
        )
    if number_of(time, f"{partition}: a time", bits=INT64) < 0:
        raise ValueError(f"{partition}: the time {time} is negative")
    return time


async def _find_end(core: ConsumerCore, partition: TopicPartition) -> None:
    """Look up the end of a partition for its lag.

    It knows the core alone: with the consumer, the network thread would keep a forgotten one alive.
    """
    context, subscriptions, config = core.context, core.subscriptions, core.config
    end: int | None = None
    try:
        offsets = await context.calls.offsets(
            {partition: LATEST_TIMESTAMP},
            context.clock() + config.request_timeout_ms / 1000,
            is_committed=config.is_read_committed,
        )
        end = offsets[partition]
    except KafkaError as error:
        logger.info("the end of %s was not found for its lag: %s", partition, error)
    with context.lock:
        if end is None:
            subscriptions.clear_end_offset_request(partition)
        elif config.is_read_committed:
            subscriptions.update_offsets(partition, last_stable_offset=end)
        else:
            subscriptions.update_offsets(partition, high_watermark=end)
