"""The consumer for asyncio: everything runs on the event loop of the task that creates it.

It has the parts of `KafkaConsumer`, and no network thread: `loop_core` holds the parts that talk to
the brokers, `consumer_calls` the calls, whose waits suspend the task.

A task may be cancelled wherever it waits. The records of a call that was cancelled are returned by
the next one: that a call has returned is known, and counts for commits, when the next one begins.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, NoReturn, Self

from spark_kafka_sink.config.arguments import partitions_of, topic_of
from spark_kafka_sink.config.consumer_config import KafkaConsumerConfig
from spark_kafka_sink.config.format_arguments import FormatArguments
from spark_kafka_sink.consumer.consumer_calls import (
    CLOSE_TIMEOUT,
    ITERATION_TIMEOUT,
    ConsumerCalls,
    seconds_of,
    times_of,
    topics_of,
)
from spark_kafka_sink.consumer.consumer_context import finish
from spark_kafka_sink.consumer.loop_core import LoopCore, TaskGuard, awaited, running_loop
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.protocol.messages.list_offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP

if TYPE_CHECKING:
    import re
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
    from types import TracebackType

    import pyarrow as pa

    from spark_kafka_sink.consumer.consumer_context import Waiting
    from spark_kafka_sink.consumer.group.rebalance_listener import ConsumerRebalanceListener
    from spark_kafka_sink.consumer.records.consumer_record import ConsumerRecord, ConsumerRecords
    from spark_kafka_sink.model import OffsetAndMetadata, PartitionInfo, TopicPartition


class AIOKafkaConsumer(ConsumerCalls):
    """A `KafkaConsumer` for asyncio, on one event loop. `await` its `close`, or use `async with`.

    >>> import asyncio
    >>> with KafkaProducer({"bootstrap.servers": "localhost:9092"}) as producer:
    ...     metadata = producer.send("payments", b"a book", key=b"alice").result(timeout=30)
    >>> settings = {
    ...     "bootstrap.servers": "localhost:9092",
    ...     "group.id": "asyncio-billing",
    ...     "auto.offset.reset": "earliest",
    ... }
    >>> async def main():
    ...     async with AIOKafkaConsumer(settings) as consumer:
    ...         consumer.subscribe(["payments"])
    ...         async for record in consumer:
    ...             return record.value
    >>> asyncio.run(main())
    b'a book'

    `config` has the settings of `KafkaConsumer`; errors and metrics are the same, too. Methods that
    wait for a broker, or that call a rebalance listener, are coroutines; so may be the listener's
    methods and the callbacks of `commit_async`. Deserializers and interceptors are functions, and
    must not block.

    A task may be cancelled wherever it waits: the next call returns the records that its call had
    taken. One call runs at a time: one of another task, except within a listener, raises
    IllegalStateError, and so does one on another event loop or thread than the one that created
    the consumer.

    A group expects that the loop is not blocked. If it is, for longer than half of
    session.timeout.ms, a warning is logged that shows where, before the group removes the member.
    """

    _core: LoopCore
    _guard: TaskGuard
    _awaits = True

    def __init__(self, config: KafkaConsumerConfig | Mapping[str, object]) -> None:
        """Create a consumer on the running event loop; it connects when it is first used.

        Raises IllegalStateError if no loop is running, and ConfigError for invalid or unsupported
        settings.
        """
        loop = running_loop()
        if not isinstance(config, KafkaConsumerConfig):
            config = KafkaConsumerConfig.from_mapping(config)
        with ExitStack() as undo:
            self._build(config, LoopCore, undo)
            self._guard = TaskGuard(self._polls.settle, loop, config.client_id)
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
        with group.protocol=consumer. The call replaces an earlier subscription; `await
        unsubscribe()` ends it. The methods of `listener`, which may be coroutine functions, are
        called by `poll`, `unsubscribe` and `close`.

        Raises ConfigError without group.id, IllegalStateError after `assign`, and ValueError
        without topics and pattern.
        """
        names = topics_of(topics)
        if pattern is None and broker_pattern is None and not names:
            raise ValueError("there is no topic to subscribe to: `await unsubscribe()` instead")
        finish(self._subscribe(names, pattern, broker_pattern, listener))
        self._core.watch()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these `partitions`, without a share for other members of the group.

        The call replaces an earlier one; `await unsubscribe()` ends it. With group.id reading
        starts at the group's committed offsets, and offsets can be committed.

        Raises IllegalStateError after `subscribe`, and ValueError without partitions.
        """
        topic_partitions = partitions_of(partitions)
        if not topic_partitions:
            raise ValueError("there is no partition to assign: `await unsubscribe()` instead")
        finish(self._assign(topic_partitions))

    async def unsubscribe(self) -> None:
        """Leave the group, or end the assignment, and read nothing."""
        await awaited(self._unsubscribe())

    # --- reading

    async def poll(self, timeout: float = 1.0) -> ConsumerRecords:
        """Return the next records by partition, at most max.poll.records; none after `timeout`.

        It waits for `timeout` seconds at most until there are records, and also does the work of a
        member: joining the group, calling the listener, committing if enable.auto.commit is set. A
        group expects a `poll` at least every max.poll.interval.ms.

        Raises NoOffsetForPartitionError and OffsetOutOfRangeError with auto.offset.reset=none,
        SerializationError and CorruptRecordError for a record that cannot be returned (`seek` past
        it to go on), BrokerError if a topic or the group may not be used, and
        IllegalStateError without a subscription.
        """
        records = await awaited(self._poll(timeout))
        self._polls.is_taking = False
        return records

    async def poll_arrow(
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
        table = await awaited(
            self._poll_arrow(timeout, columns, arguments, include_headers=include_headers)
        )
        self._polls.is_taking = False
        return table

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Yield records forever.

        Positions are those after the last record that was yielded, so that a loop can be left
        anywhere, and `commit` within it commits what was processed. Deserializers are called for
        some records ahead. `poll` is faster.
        """
        guard, polls = self._guard, self._polls
        while True:
            guard.begin()
            record = polls.take_made()
            polls.is_taking = False
            if record is not None:
                yield record
                continue
            records = await awaited(self._next_record())
            polls.is_taking = False
            for record in records:
                yield record

    def _next_record(self) -> Waiting[list[ConsumerRecord]]:
        with self._guard.call():
            return (yield from self._polls.next_record(ITERATION_TIMEOUT))

    # --- offsets of the group

    async def commit(
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
        await awaited(self._commit(offsets, timeout))

    async def committed(
        self, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the committed offsets of the group for `partitions`; None where there is none.

        `timeout` is in seconds, by default default.api.timeout.ms.
        """
        return await awaited(self._committed(partitions, timeout))

    # --- positions

    async def position(self, partition: TopicPartition, *, timeout: float | None = None) -> int:
        """Return the offset of the next record to read, which may have to be looked up first.

        `partition` must be assigned. `timeout` is in seconds, by default default.api.timeout.ms.
        """
        return await awaited(self._position(partition, timeout))

    # --- questions to the brokers

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the first offset of each of the `partitions`.

        `timeout` is in seconds, by default default.api.timeout.ms.
        """
        return await awaited(self._ends(partitions, EARLIEST_TIMESTAMP, timeout))

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the offset after the last record of each of the `partitions`.

        `timeout` is in seconds, by default default.api.timeout.ms. With
        isolation.level=read_committed that is the last stable offset.
        """
        return await awaited(self._ends(partitions, LATEST_TIMESTAMP, timeout))

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int], *, timeout: float | None = None
    ) -> dict[TopicPartition, int | None]:
        """Return the first offset at or after a time; None if there is none.

        `times` has a time for each partition, in ms since 1970. `timeout` is in seconds, by default
        default.api.timeout.ms.
        """
        return await awaited(self._find_offsets(times_of(times), timeout))

    async def partitions_for(
        self, topic: str, *, timeout: float | None = None
    ) -> list[PartitionInfo]:
        """Return the partitions of `topic`, with their leaders.

        `timeout` is in seconds, by default default.api.timeout.ms. Raises BrokerError if the topic
        does not exist.
        """
        return (await awaited(self._describe([topic_of(topic)], timeout)))[topic]

    async def list_topics(self, *, timeout: float | None = None) -> dict[str, list[PartitionInfo]]:
        """Return the partitions of all topics that this consumer may see, also of internal ones.

        `timeout` is in seconds, by default default.api.timeout.ms.
        """
        return await awaited(self._describe(None, timeout, includes_internal=True))

    # --- lifecycle

    async def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Commit if enable.auto.commit is set, leave the group, and close all connections.

        It takes at most `timeout` seconds; if the task is cancelled, it waits no more than a second
        for the group. A static member (group.instance.id) stays in the group until its session
        times out. A second call does no more than what a cancellation has prevented.
        """
        await awaited(self._close(seconds_of(timeout), commits=True))

    async def __aenter__(self) -> Self:
        """Return the consumer."""
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it; an error of the block is raised rather than one of closing.

        If the block has raised, or was cancelled, nothing is committed: not all records of its last
        poll may have been processed.
        """
        try:
            await awaited(self._close(CLOSE_TIMEOUT, commits=exc_type is None))
        except KafkaError:
            if exc is None:
                raise

    def __reduce__(self) -> NoReturn:
        """Raise TypeError: a consumer cannot be pickled."""
        raise TypeError(
            "an AIOKafkaConsumer cannot be pickled: create one on the loop that uses it"
        )

    def __repr__(self) -> str:
        """Show the group, the subscription and whether it is closed."""
        return self._described()
