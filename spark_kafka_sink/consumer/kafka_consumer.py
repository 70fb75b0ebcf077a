"""The consumer: it reads topics, alone or as a member of a group (Kafka's KafkaConsumer).

The user's thread calls the methods, one at a time; a daemon thread runs one asyncio loop that owns
all sockets, keeps the member in its group and fetches ahead. `consumer_core` holds the parts that
talk to the brokers, `polls` and `commits` the work of the user's thread.

A consumer must be created in the process that uses it, and is never pickled.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

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
from spark_kafka_sink.config.format_arguments import FormatArguments
from spark_kafka_sink.config.plug_ins import PlugIns, plug_in_settings
from spark_kafka_sink.consumer.assignors.assignment_strategies import assignor_instances
from spark_kafka_sink.consumer.commits import Commits
from spark_kafka_sink.consumer.consumer_core import CallGuard, ConsumerCore
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
from spark_kafka_sink.protocol.messages.list_offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP

if TYPE_CHECKING:
    from types import TracebackType

    import pyarrow as pa

    from spark_kafka_sink.consumer.group.coordinator import Coordinator
    from spark_kafka_sink.consumer.group.rebalance_listener import ConsumerRebalanceListener
    from spark_kafka_sink.consumer.records.consumer_record import ConsumerRecord, ConsumerRecords
    from spark_kafka_sink.model import ConsumerGroupMetadata, OffsetAndMetadata
    from spark_kafka_sink.protocol.messages.metadata import MetadataResponse

logger = logging.getLogger(__name__)

#: Seconds that `close` takes at most unless told otherwise, as in Java.
CLOSE_TIMEOUT: Final = 30.0
#: Seconds of each `poll` of an iteration.
_ITERATION_TIMEOUT: Final = 1.0
#: The methods of a ConsumerRebalanceListener.
_LISTENER = ("on_partitions_assigned", "on_partitions_revoked", "on_partitions_lost")


class KafkaConsumer:
    """A client that reads records from Kafka; `close` it or use it in a `with` block.

    >>> with KafkaProducer({"bootstrap.servers": "localhost:9092"}) as producer:
    ...     metadata = producer.send("orders", b"a book", key=b"alice").result(timeout=30)
    >>> settings = {
    ...     "bootstrap.servers": "localhost:9092",
    ...     "group.id": "billing",
    ...     "auto.offset.reset": "earliest",
    ... }
    >>> with KafkaConsumer(settings) as consumer:
    ...     consumer.subscribe(["orders"])
    ...     record = next(iter(consumer))
    >>> record.value
    b'a book'

    The main settings of `config`, with Kafka's names, and their defaults:

    - `bootstrap.servers` (required): the brokers' addresses, host:port, separated by commas
    - `group.id`: the group, which `subscribe` and commits need
    - `auto.offset.reset` (`latest`): where to start without a committed offset; also `earliest`,
      `none`, or `by_duration:` with a duration such as `P1D`
    - `enable.auto.commit` (`true`), `auto.commit.interval.ms` (`5000`): whether `poll` commits what
      earlier polls have returned, and how often
    - `max.poll.records` (`500`): the most records that `poll` returns
    - `max.poll.interval.ms` (`300000`): the longest time between two calls of `poll`
    - `key.deserializer`, `value.deserializer` (`bytes`): or your own function
    - `isolation.level` (`read_uncommitted`): `read_committed` skips aborted transactions
    - `partition.assignment.strategy` (`range,cooperative-sticky`), `group.instance.id`

    It is not thread-safe, except for `wakeup` and `metrics`: a call while another thread's call is
    running raises IllegalStateError. Methods that wait for a broker take at most
    default.api.timeout.ms, unless they are given a `timeout` in seconds, and raise
    KafkaTimeoutError then.
    """

    def __init__(self, config: KafkaConsumerConfig | Mapping[str, object]) -> None:
        """Create a consumer, which connects when it is first used.

        Raises ConfigError for invalid or unsupported settings.
        """
        if not isinstance(config, KafkaConsumerConfig):
            config = KafkaConsumerConfig.from_mapping(config)
        self._config = config
        self._is_closing = self._has_stopped = False
        self._plug_ins = PlugIns(plug_in_settings(config))
        with ExitStack() as undo:
            undo.callback(self._plug_ins.close)
            assignors = assignor_instances(config.partition_assignment_strategy, self._plug_ins)
            deserializers = resolve_deserializers(config, self._plug_ins)
            interceptors = resolve_interceptors(config.interceptor_classes, self._plug_ins)
            self._core = core = ConsumerCore(config, assignors, undo)
            self._context = core.context
            self._subscriptions = core.subscriptions
            self._commits = Commits(core, interceptors)
            self._polls = Polls(core, self._commits, deserializers, interceptors)
            self._guard = CallGuard(self._polls.settle)
            core.start(undo)
            core.stop_with(self, self._plug_ins.close, undo)
            undo.pop_all()

    # --- what to read

    def subscribe(
        self,
        topics: str | Iterable[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        broker_pattern: str | None = None,
        listener: ConsumerRebalanceListener | None = None,
    ) -> None:
        """Join the group, within `poll`, to read its share of the partitions of some topics.

        `topics` are names; `pattern` is a regular expression that must match a topic's whole name,
        also that of a later one. `broker_pattern` is one in RE2's syntax that the broker evaluates,
        with group.protocol=consumer. The call replaces an earlier subscription; without any of
        these it ends it. The methods of `listener` are called by `poll`, `unsubscribe` and `close`.

        Raises ConfigError without group.id, IllegalStateError after `assign`.
        """
        names = topics_of(topics)
        compiled = None if pattern is None else pattern_of(pattern)
        check_listener(listener)
        with self._call():
            if (compiled is not None) + (broker_pattern is not None) + bool(names) > 1:
                raise ConfigError("subscribe takes either topics or one pattern, not both")
            if compiled is None and broker_pattern is None and not names:
                self._unsubscribe()
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

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these `partitions`, without a share for other members of the group.

        The call replaces an earlier one; without partitions it ends the subscription. With group.id
        reading starts at the group's committed offsets, and offsets can be committed.

        Raises IllegalStateError after `subscribe`.
        """
        topic_partitions = partitions_of(partitions)
        with self._call():
            if not topic_partitions:
                self._unsubscribe()
                return
            self._commits.commit_before_assignment()
            with self._context.lock:
                self._subscriptions.assign_from_user(topic_partitions)
                self._context.may_look_up = False
                self._context.forget_positions()
                self._context.wake()

    def unsubscribe(self) -> None:
        """Leave the group, or end the assignment, and read nothing."""
        with self._call():
            self._unsubscribe()

    def _unsubscribe(self) -> None:
        try:
            self._polls.leave("the consumer unsubscribed from all topics", LeaveOperation.DEFAULT)
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

    def poll(self, timeout: float = 1.0) -> ConsumerRecords:
        """Return the next records by partition, at most max.poll.records; none after `timeout`.

        It waits for `timeout` seconds at most until there are records, and also does the work of a
        member: joining the group, calling the listener, committing if enable.auto.commit is set. A
        group expects a `poll` at least every max.poll.interval.ms.

        Raises NoOffsetForPartitionError and OffsetOutOfRangeError with auto.offset.reset=none,
        SerializationError and CorruptRecordError for a record that cannot be returned (`seek` past
        it to go on), BrokerError if a topic or the group may not be used, WakeupError after
        `wakeup`, and IllegalStateError without a subscription.
        """
        with self._call():
            records = self._polls.poll(seconds_of(timeout))
        self._polls.is_taking = False
        return records

    def poll_arrow(
        self,
        timeout: float = 1.0,
        *,
        columns: Sequence[str] | None = None,
        include_headers: bool = False,
        key_format: str | None = None,
        value_format: str | None = None,
        key_schema: str | None = None,
        value_schema: str | None = None,
        schema_registry: Mapping[str, object] | None = None,
        format_options: Mapping[str, object] | None = None,
    ) -> pa.Table:
        """Return all records that have been fetched as one Arrow table; see `poll`.

        `columns` selects among `key`, `value`, `topic`, `partition`, `offset`, `timestamp`,
        `timestampType` and `headers`; without it, there are all of them, `headers` only with
        `include_headers`. max.poll.records, deserializers and interceptors do not apply. The table
        has no rows if there were no records within `timeout` seconds.

        `key_format`, `value_format`, `key_schema`, `value_schema`, `schema_registry` and
        `format_options` give keys and values types, as in `read_arrow`. The latest schema is looked
        up by the first call and kept, for the same arguments and topics, as long as the consumer
        lives. A call may take longer than `timeout` when it asks the registry. It also raises
        PayloadError for a malformed payload, once the records before it are returned: `seek` past
        it to go on, or set `{"onDecodeError": "null"}`. After SchemaRegistryError the same records
        come again.
        """
        check_columns(columns)
        arguments = FormatArguments(
            key_format, value_format, key_schema, value_schema, schema_registry, format_options
        )
        with self._call():
            seconds = seconds_of(timeout)
            table = self._polls.poll_arrow(
                seconds, columns, include_headers=include_headers, arguments=arguments
            )
        self._polls.is_taking = False
        return table

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Yield records forever.

        Positions are those after the last record that was yielded, so that a loop can be left
        anywhere, and `commit` within it commits what was processed. Deserializers are called for
        some records ahead. `poll` is faster.
        """
        while True:
            with self._guard.call():
                records = self._polls.next_record(_ITERATION_TIMEOUT)
            self._polls.is_taking = False
            yield from records

    # --- offsets of the group

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """Commit offsets for the group, and wait for it; without `offsets` all positions.

        An offset is that of the next record to read: one more than the last one processed.
        `timeout` is in seconds, by default default.api.timeout.ms.

        Raises CommitFailedError if the partitions have other owners now, RebalanceInProgressError
        during a rebalance (call `poll`, then try again), BrokerError and ConfigError.
        """
        with self._call():
            self._need_group("commit")
            with self._core.timed(self._core.measures.commit_called):
                self._commits.commit(self._offsets(offsets), self._timeout(timeout))

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
        check_callback(callback)
        with self._call():
            self._need_group("commit_async")
            self._commits.commit_async(self._offsets(offsets), callback)

    def committed(
        self, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the committed offsets of the group for `partitions`; None where there is none.

        `timeout` is in seconds, by default default.api.timeout.ms.
        """
        topic_partitions = partitions_of(partitions)
        with self._call():
            self._need_group("committed")
            with self._core.timed(self._core.measures.committed_called):
                return self._commits.committed(topic_partitions, self._timeout(timeout))

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

    def position(self, partition: TopicPartition, *, timeout: float | None = None) -> int:
        """Return the offset of the next record to read, which may have to be looked up first.

        `partition` must be assigned. `timeout` is in seconds, by default default.api.timeout.ms.
        """
        with self._call():
            return self._polls.position(partition_of(partition), self._timeout(timeout))

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

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the first offset of each of the `partitions`.

        `timeout` is in seconds, by default default.api.timeout.ms.
        """
        return self._ends(partitions, EARLIEST_TIMESTAMP, timeout)

    def end_offsets(
        self, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the offset after the last record of each of the `partitions`.

        `timeout` is in seconds, by default default.api.timeout.ms. With
        isolation.level=read_committed that is the last stable offset.
        """
        return self._ends(partitions, LATEST_TIMESTAMP, timeout)

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int], *, timeout: float | None = None
    ) -> dict[TopicPartition, int | None]:
        """Return the first offset at or after a time; None if there is none.

        `times` has a time for each partition, in ms since 1970. `timeout` is in seconds, by default
        default.api.timeout.ms.
        """
        return self._find_offsets(times_of(times), timeout)

    def _ends(
        self, partitions: Iterable[TopicPartition], timestamp: int, timeout: float | None
    ) -> dict[TopicPartition, int]:
        timestamps = dict.fromkeys(partitions_of(partitions), timestamp)
        return {
            partition: offset or 0
            for partition, offset in self._find_offsets(timestamps, timeout).items()
        }

    def _find_offsets(
        self, timestamps: dict[TopicPartition, int], timeout: float | None
    ) -> dict[TopicPartition, int | None]:
        with self._call():
            seconds = self._timeout(timeout)
            deadline = self._core.clock() + seconds
            is_committed = self._config.is_read_committed
            call = partial(
                self._context.calls.offsets, timestamps, deadline, is_committed=is_committed
            )
            return self._core.call(call, seconds, "ListOffsets")

    def partitions_for(self, topic: str, *, timeout: float | None = None) -> list[PartitionInfo]:
        """Return the partitions of `topic`, with their leaders.

        `timeout` is in seconds, by default default.api.timeout.ms. Raises BrokerError if the topic
        does not exist.
        """
        with self._call():
            return self._describe([topic_of(topic)], timeout)[topic]

    def list_topics(self, *, timeout: float | None = None) -> dict[str, list[PartitionInfo]]:
        """Return the partitions of all topics that this consumer may see, also of internal ones.

        `timeout` is in seconds, by default default.api.timeout.ms.
        """
        with self._call():
            return self._describe(None, timeout, includes_internal=True)

    def _describe(
        self, topics: list[str] | None, timeout: float | None, *, includes_internal: bool = False
    ) -> dict[str, list[PartitionInfo]]:
        seconds = self._timeout(timeout)
        deadline = self._core.clock() + seconds
        call = partial(
            self._context.calls.describe, topics, deadline, includes_internal=includes_internal
        )
        return _partitions(self._core.call(call, seconds, "Metadata"))

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

    # --- lifecycle

    def wakeup(self) -> None:
        """Make the call that waits, or the next one that would, raise WakeupError.

        Any thread may call it.
        """
        self._core.wakeup()

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Commit if enable.auto.commit is set, leave the group, and close all connections.

        It takes at most `timeout` seconds. A static member (group.instance.id) stays in the group
        until its session times out. A second call does no more than what Ctrl-C has prevented.
        """
        self._close(seconds_of(timeout), commits=True)

    def _close(self, seconds: float, *, commits: bool) -> None:
        if self._guard.is_forked:
            # The threads and connections are those of the process that was forked.
            return
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
                    self._polls.close(seconds, commits=commits)
            finally:
                self._guard.is_closed = True
                self._stop()

    def _stop(self) -> None:
        """End the thread and the plug-ins; after Ctrl-C another `close` does the rest."""
        try:
            self._core.stop()
        finally:
            self._plug_ins.close()
        self._has_stopped = True

    def __enter__(self) -> Self:
        """Return the consumer."""
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it; an error of the block is raised rather than one of closing.

        If the block has raised, nothing is committed: not all records of its last poll may have
        been processed.
        """
        try:
            self._close(CLOSE_TIMEOUT, commits=exc_type is None)
        except KafkaError:
            if exc is None:
                raise

    def __reduce__(self) -> NoReturn:
        """Raise TypeError: sockets and threads cannot be pickled."""
        raise TypeError("a KafkaConsumer cannot be pickled: create it where it is used")

    def __repr__(self) -> str:
        """Show the group, the subscription and whether it is closed."""
        group = "" if self._config.group_id is None else f" group={self._config.group_id!r}"
        state = ", closed" if self._guard.is_closed else ""
        return f"<KafkaConsumer{group} {self._subscriptions.subscription}{state}>"

    # --- helpers

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


def check_listener(listener: object) -> None:
    """Raise TypeError for an object without the methods of a ConsumerRebalanceListener."""
    missing = [name for name in _LISTENER if not callable(getattr(listener, name, None))]
    if listener is not None and missing:
        raise TypeError(
            f"the listener has no method {missing[0]}: derive its class from "
            "ConsumerRebalanceListener"
        )


def check_callback(callback: object) -> None:
    """Raise TypeError for a callback that cannot be called."""
    if callback is not None and not callable(callback):
        raise TypeError(f"callback is a function of offsets and error, not {callback!r}")


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
