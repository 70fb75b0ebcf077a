"""The consumer: it reads topics, alone or as a member of a group (Kafka's KafkaConsumer).

The user's thread calls the methods, one at a time; a daemon thread runs one asyncio loop that owns
all sockets, keeps the member in its group and fetches ahead. `threaded_core` holds the parts that
talk to the brokers, `consumer_calls` the calls and what they have in common with those of asyncio.

A consumer must be created in the process that uses it, and is never pickled.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, NoReturn, Self

from spark_kafka_sink.config.arguments import topic_of
from spark_kafka_sink.config.consumer_config import KafkaConsumerConfig
from spark_kafka_sink.config.format_arguments import FormatArguments
from spark_kafka_sink.consumer.consumer_calls import (
    CLOSE_TIMEOUT,
    ITERATION_TIMEOUT,
    ConsumerCalls,
    seconds_of,
    times_of,
)
from spark_kafka_sink.consumer.consumer_context import finish
from spark_kafka_sink.consumer.threaded_core import CallGuard, ThreadedCore
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.protocol.messages.list_offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from types import TracebackType

    import pyarrow as pa

    from spark_kafka_sink.consumer.group.rebalance_listener import ConsumerRebalanceListener
    from spark_kafka_sink.consumer.records.consumer_record import ConsumerRecord, ConsumerRecords
    from spark_kafka_sink.model import OffsetAndMetadata, PartitionInfo, TopicPartition


class KafkaConsumer(ConsumerCalls):
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

    _core: ThreadedCore
    _guard: CallGuard
    _awaits = False

    def __init__(self, config: KafkaConsumerConfig | Mapping[str, object]) -> None:
        """Create a consumer, which connects when it is first used.

        Raises ConfigError for invalid or unsupported settings.
        """
        if not isinstance(config, KafkaConsumerConfig):
            config = KafkaConsumerConfig.from_mapping(config)
        with ExitStack() as undo:
            self._build(config, ThreadedCore, undo)
            self._guard = CallGuard(self._polls.settle)
            self._core.start(undo)
            self._core.stop_with(self, self._plug_ins.close, undo)
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
        finish(self._subscribe(topics, pattern, broker_pattern, listener))

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these `partitions`, without a share for other members of the group.

        The call replaces an earlier one; without partitions it ends the subscription. With group.id
        reading starts at the group's committed offsets, and offsets can be committed.

        Raises IllegalStateError after `subscribe`.
        """
        finish(self._assign(partitions))

    def unsubscribe(self) -> None:
        """Leave the group, or end the assignment, and read nothing."""
        finish(self._unsubscribe())

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
        records = finish(self._poll(timeout))
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
        arguments = FormatArguments(
            key_format, value_format, key_schema, value_schema, schema_registry, format_options
        )
        table = finish(
            self._poll_arrow(timeout, columns, arguments, include_headers=include_headers)
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
                record = self._polls.take_made()
                records = (
                    finish(self._polls.next_record(ITERATION_TIMEOUT))
                    if record is None
                    else [record]
                )
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
        finish(self._commit(offsets, timeout))

    def committed(
        self, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the committed offsets of the group for `partitions`; None where there is none.

        `timeout` is in seconds, by default default.api.timeout.ms.
        """
        return finish(self._committed(partitions, timeout))

    # --- positions

    def position(self, partition: TopicPartition, *, timeout: float | None = None) -> int:
        """Return the offset of the next record to read, which may have to be looked up first.

        `partition` must be assigned. `timeout` is in seconds, by default default.api.timeout.ms.
        """
        return finish(self._position(partition, timeout))

    # --- questions to the brokers

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the first offset of each of the `partitions`.

        `timeout` is in seconds, by default default.api.timeout.ms.
        """
        return finish(self._ends(partitions, EARLIEST_TIMESTAMP, timeout))

    def end_offsets(
        self, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the offset after the last record of each of the `partitions`.

        `timeout` is in seconds, by default default.api.timeout.ms. With
        isolation.level=read_committed that is the last stable offset.
        """
        return finish(self._ends(partitions, LATEST_TIMESTAMP, timeout))

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int], *, timeout: float | None = None
    ) -> dict[TopicPartition, int | None]:
        """Return the first offset at or after a time; None if there is none.

        `times` has a time for each partition, in ms since 1970. `timeout` is in seconds, by default
        default.api.timeout.ms.
        """
        return finish(self._find_offsets(times_of(times), timeout))

    def partitions_for(self, topic: str, *, timeout: float | None = None) -> list[PartitionInfo]:
        """Return the partitions of `topic`, with their leaders.

        `timeout` is in seconds, by default default.api.timeout.ms. Raises BrokerError if the topic
        does not exist.
        """
        return finish(self._describe([topic_of(topic)], timeout))[topic]

    def list_topics(self, *, timeout: float | None = None) -> dict[str, list[PartitionInfo]]:
        """Return the partitions of all topics that this consumer may see, also of internal ones.

        `timeout` is in seconds, by default default.api.timeout.ms.
        """
        return finish(self._describe(None, timeout, includes_internal=True))

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
        self._close_here(seconds_of(timeout), commits=True)

    def _close_here(self, seconds: float, *, commits: bool) -> None:
        # The threads and connections of a process that was forked are those of the other one.
        if not self._guard.is_forked:
            finish(self._close(seconds, commits=commits))

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
            self._close_here(CLOSE_TIMEOUT, commits=exc_type is None)
        except KafkaError:
            if exc is None:
                raise

    def __reduce__(self) -> NoReturn:
        """Raise TypeError: sockets and threads cannot be pickled."""
        raise TypeError("a KafkaConsumer cannot be pickled: create it where it is used")

    def __repr__(self) -> str:
        """Show the group, the subscription and whether it is closed."""
        return self._described()
