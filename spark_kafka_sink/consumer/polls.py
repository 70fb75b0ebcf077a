"""The work of the user's side: `poll`, and leaving the group.

It runs the listener, decodes and deserializes; all that waits for brokers is done by the network
side. Its methods are called without the lock.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa

from spark_kafka_sink.consumer.group.group_member import Assign
from spark_kafka_sink.consumer.group.group_requests import CompleteJoin, LeaveOperation
from spark_kafka_sink.consumer.payload_columns import PayloadColumns, resolved_columns
from spark_kafka_sink.consumer.records.consumer_record import ConsumerRecord, ConsumerRecords
from spark_kafka_sink.consumer.records.fetched_records import FetchedRecords, RecordDecoders
from spark_kafka_sink.consumer.subscription.partition_state import FetchPosition
from spark_kafka_sink.consumer.subscription.subscription import SubscriptionType
from spark_kafka_sink.consumer.subscription.subscription_state import UseOfFetched
from spark_kafka_sink.consumer.topic_updates import why_missing
from spark_kafka_sink.errors import IllegalStateError, KafkaError, KafkaTimeoutError
from spark_kafka_sink.model import NO_LEADER_EPOCH, OffsetAndMetadata, TopicPartition
from spark_kafka_sink.record.arrow.schema import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from spark_kafka_sink.config.format_arguments import FormatArguments
    from spark_kafka_sink.consumer.commits import Commits, Offsets
    from spark_kafka_sink.consumer.consumer_context import Waiting
    from spark_kafka_sink.consumer.consumer_core import ConsumerCore
    from spark_kafka_sink.consumer.fetch.completed_fetches import CompletedFetch
    from spark_kafka_sink.consumer.interceptors import ConsumerInterceptors
    from spark_kafka_sink.consumer.records.deserializers import Deserializers

T = TypeVar("T")

#: How many arguments of `poll_arrow` have their schemas kept.
_MOST_PAYLOADS: Final = 100
#: Seconds after which an iteration does again all that a poll does.
_CALM_SECONDS: Final = 0.01
#: The wait, at the end of a `close`, for those who are told of it.
_LAST_SECONDS: Final = 1.0


class Polls:
    """The user's side of one consumer."""

    def __init__(
        self,
        core: ConsumerCore,
        commits: Commits,
        deserializers: Deserializers,
        interceptors: ConsumerInterceptors,
    ) -> None:
        self._core = core
        self._commits = commits
        self._deserializers = deserializers
        self._interceptors = interceptors
        self._context = core.context
        self._subscriptions = core.subscriptions
        config = core.config
        self._max_records = config.max_poll_records
        self._is_committed = config.is_read_committed
        self._decoders = RecordDecoders(
            check_crcs=config.check_crcs,
            max_uncompressed_batch_bytes=config.max_uncompressed_batch_bytes,
        )
        #: The fetch that is being read, and its records.
        self._reading: tuple[CompletedFetch, FetchedRecords] | None = None
        #: An error that the next poll raises: of the record at an offset of a partition, and for
        #: which columns, if it is one of its payload.
        self._postponed: tuple[TopicPartition, int, KafkaError, PayloadColumns | None] | None = None
        #: The typed columns that the current poll returns, if any.
        self._asked: PayloadColumns | None = None
        #: Whether records are being taken that have not reached the user. The last call clears it
        #: when nothing that Ctrl-C may interrupt comes before its return.
        self.is_taking = False
        #: The typed columns of `poll_arrow`, by its arguments and the topics.
        self._payloads: dict[Hashable, PayloadColumns | None] = {}
        #: How much larger than its bytes the last answer for Arrow was in memory.
        self._inflation = 1.0
        #: Whether there is room for another fetch, which the network side does not know yet.
        self._has_room = False
        #: Until when the next record may be returned without a poll, if there are no more changes.
        self._calm_until = 0.0
        self._calm_changes = 0

    # --- polling

    def poll(self, timeout: float) -> Waiting[ConsumerRecords]:
        """Return the next records, at most max.poll.records; none after `timeout` seconds."""
        records = yield from self._wait_for(partial(self._take_records, self._max_records), timeout)
        return ConsumerRecords() if records is None else self._interceptors.on_consume(records)

    def next_record(self, timeout: float) -> Waiting[list[ConsumerRecord]]:
        """Return the next record of an iteration; none after `timeout`, or if a plug-in took it.

        Most of them need no poll: see `take_made`.
        """
        records = yield from self._wait_for(
            partial(self._take_records, 1, makes_more=True), timeout
        )
        if records is None:
            return []
        if self._interceptors.is_empty:
            self._calm_until = self._core.stopwatch() + _CALM_SECONDS
        return self._interceptors.on_consume(records).records()

    def end_calm(self) -> None:
        """Make the next record of an iteration need a poll: the user calls something else."""
        self._calm_until = 0.0

    def poll_arrow(
        self,
        timeout: float,
        columns: Sequence[str] | None,
        *,
        include_headers: bool,
        arguments: FormatArguments,
    ) -> Waiting[pa.Table]:
        """Return all records that have been fetched, as one table."""
        payloads = None
        if arguments.are_given:
            payloads = yield from self._payload_columns(
                arguments, columns, include_headers=include_headers
            )
        schema = (
            arrow_schema(columns, include_headers=include_headers)
            if payloads is None
            else payloads.schema
        )
        self._asked = payloads
        try:
            batches = yield from self._wait_for(
                partial(self._take_arrow, schema, payloads), timeout
            )
        finally:
            self._asked = None
        return pa.Table.from_batches(batches or [], schema)

    def _payload_columns(
        self, arguments: FormatArguments, columns: Sequence[str] | None, *, include_headers: bool
    ) -> Waiting[PayloadColumns | None]:
        """Return the typed columns for a poll; their schemas are looked up by the first one."""
        self._check_subscribed()
        with self._context.lock:
            topics = self._topics()
        names = None if columns is None else tuple(columns)
        key = arguments.key(), names, include_headers, topics
        if key not in self._payloads:
            payloads = yield from self._context.block(
                partial(
                    resolved_columns,
                    arguments.of_read(),
                    columns,
                    topics,
                    include_headers=include_headers,
                )
            )
            if len(self._payloads) >= _MOST_PAYLOADS:
                del self._payloads[next(iter(self._payloads))]
            self._payloads[key] = payloads
        return self._payloads[key]

    def _topics(self) -> tuple[str, ...] | None:
        """Return the topics that are read; None if a pattern selects them. Needs the lock."""
        subscription = self._subscriptions.subscription
        if subscription.type is SubscriptionType.USER_ASSIGNED:
            assigned = self._subscriptions.assigned_partitions
            return tuple(sorted({partition.topic for partition in assigned}))
        if subscription.type is SubscriptionType.AUTO_TOPICS:
            return tuple(sorted(subscription.topics))
        return None

    def settle(self) -> None:
        """Begin a call of the user's: the records of the last one were returned, or come again.

        They come again if Ctrl-C has interrupted it, or if memory ran out. Only now is that known:
        after all that a call does, Python may still raise before it returns.
        """
        if not (self.is_taking or self._subscriptions.has_taken):
            return
        with self._context.lock:
            if self.is_taking and self._reading is not None:
                fetch, records = self._reading
                self._core.fetcher.buffer.remove(fetch)
                records.close()
                self._reading = None
            self._subscriptions.end_taking(are_returned=not self.is_taking)
        if self.is_taking:
            self._context.wake()
            self.is_taking = False

    def _wait_for(self, take: Callable[[], Waiting[T | None]], timeout: float) -> Waiting[T | None]:
        """Do what a member has to do until `take` returns something, or the time is over."""
        measures, clock = self._context.measures, self._core.clock
        measures.poll_started(clock())
        try:
            return (yield from self._wait(take, timeout))
        except KafkaError:
            # What was taken before it is returned, or had no records.
            self.is_taking = False
            raise
        finally:
            measures.poll_ended(clock())

    def _wait(self, take: Callable[[], Waiting[T | None]], timeout: float) -> Waiting[T | None]:
        core, context = self._core, self._context
        deadline = core.clock() + timeout
        self._check_subscribed()
        yield from context.give_turn()
        while True:
            yield from self._commits.run_callbacks()
            step = None
            with context.lock:
                core.raise_wakeup()
                context.raise_failure()
                # Before a step is taken, which would be lost.
                self._raise_postponed()
                now = core.clock()
                seen = context.changes
                until = deadline
                if core.coordinator is not None:
                    core.coordinator.member.poll(now)
                    until = min(until, core.coordinator.advance(now, may_join=self._may_join()))
                    for_user = core.coordinator.for_user
                    if for_user and core.coordinator.may_run(for_user[0], now):
                        step = for_user[0]
                        context.may_look_up = False
                if step is None:
                    self._begin_look_ups()
                    until = min(until, self._commits.commit_if_due(now))
            if step is not None and core.coordinator is not None:
                if isinstance(step, CompleteJoin | Assign):
                    self._commits.restart_interval(now)
                yield from core.coordinator.run(step)
                continue
            self.is_taking = True
            if (taken := (yield from take())) is not None:
                self._calm_changes = seen
                return taken
            now = core.clock()
            if now >= deadline:
                yield from context.give_turn(is_idle=True)
                return None
            if seen == context.changes and not core.is_woken and context.failure is None:
                yield from context.wait(until - now)

    def _check_subscribed(self) -> None:
        with self._context.lock:
            if self._subscriptions.subscription.type is SubscriptionType.NONE:
                raise IllegalStateError(
                    "the consumer reads nothing: subscribe to topics or assign partitions first"
                )

    def _may_join(self) -> bool:
        coordinator = self._core.coordinator
        return (
            coordinator is not None
            and self._subscriptions.subscription.is_auto_assigned
            and self._core.topics.is_ready(is_joining=coordinator.is_joining)
        )

    def _begin_look_ups(self) -> None:
        if not self._context.may_look_up:
            self._context.may_look_up = True
            self._context.wake()

    # --- taking what was fetched

    def _next_fetch(self, *, has_records: bool) -> CompletedFetch | None:
        """Return the next fetch with records to return; needs the lock.

        Raises OffsetOutOfRangeError, BrokerError and CorruptRecordError. If there are records to
        return before it, the fetch stays, so that the next call raises the error again.
        """
        fetcher = self._core.fetcher
        while (fetch := self._next_buffered()) is not None:
            if fetch.is_initialized:
                return fetch
            try:
                is_readable = fetcher.apply(fetch)
            except KafkaError:
                if not has_records:
                    self._remove(fetch)
                raise
            if not is_readable:
                self._remove(fetch)
        return None

    def _next_buffered(self) -> CompletedFetch | None:
        """Return the next fetch; if others were dropped, their partitions are fetched again."""
        buffer = self._core.fetcher.buffer
        count = len(buffer)
        fetch = buffer.next(self._subscriptions)
        if len(buffer) < count:
            self._context.wake()
        return fetch

    def _remove(self, fetch: CompletedFetch) -> None:
        """Remove a fetch that has no records to return."""
        self._core.fetcher.buffer.remove(fetch)
        fetch.drain()
        self._context.wake()

    def _records_of(self, fetch: CompletedFetch) -> FetchedRecords:
        """Return the remaining records of a fetch."""
        if self._reading is None or self._reading[0] is not fetch:
            if self._reading is not None:
                # A paused partition, whose rest is decoded again.
                self._reading[1].close()
            records = FetchedRecords(
                fetch.partition,
                fetch.records,
                fetch.next_offset,
                aborted=[
                    (transaction.producer_id, transaction.first_offset)
                    for transaction in fetch.data.aborted_transactions or ()
                ],
                is_committed=self._is_committed,
                decoders=self._decoders,
            )
            self._reading = fetch, records
        return self._reading[1]

    def take_made(self) -> ConsumerRecord | None:
        """Return the next record if it is made, and a poll would do nothing else."""
        core, context = self._core, self._context
        if self._reading is None or core.stopwatch() >= self._calm_until:
            return None
        fetch, reading = self._reading
        with context.lock:
            if (
                context.changes != self._calm_changes
                or core.is_woken
                or context.failure is not None
            ):
                return None
            self.is_taking = True
            record = reading.take_made()
            if record is not None and self._took(fetch, reading, 1) is None:
                record = None
        self._offer_room()
        return record

    def _take_records(
        self, most: int, *, makes_more: bool = False
    ) -> Waiting[ConsumerRecords | None]:
        """Return up to `most` records; None if there are none.

        With `makes_more`, it is one record, and those after it are made for `take_made`.
        """
        yield from ()
        records: dict[TopicPartition, list[ConsumerRecord]] = {}
        moved: Offsets = {}
        left = most
        left_bytes: float = self._decoders.poll_bytes
        try:
            while left > 0 and left_bytes > 0:
                try:
                    with self._context.lock:
                        fetch = self._next_fetch(has_records=bool(records))
                    if fetch is None:
                        break
                    reading = self._records_of(fetch)
                    taken = self._take_of(
                        fetch, reading, None if makes_more else left, left_bytes, moved
                    )
                except KafkaError:
                    if records:
                        # It is raised by the next call.
                        break
                    raise
                if taken:
                    records.setdefault(fetch.partition, []).extend(taken)
                    left -= len(taken)
                    left_bytes -= reading.taken_bytes
        finally:
            # Not before: the network thread would hold the lock while it sends the next fetch.
            self._offer_room()
        return ConsumerRecords(records, moved) if moved else None

    def _take_of(
        self,
        fetch: CompletedFetch,
        reading: FetchedRecords,
        most: int | None,
        most_bytes: float,
        moved: Offsets,
    ) -> list[ConsumerRecord]:
        """Return records of one fetch, and note the new position in `moved`.

        Without `most` it is the first one, and those after it are made.
        """
        taken: list[ConsumerRecord] = []
        try:
            if most is None:
                taken = reading.take_first(self._deserializers)
            else:
                taken = reading.take(most, self._deserializers, most_bytes)
        finally:
            with self._context.lock:
                position = self._took(fetch, reading, len(taken))
                if position is not None:
                    self._note_lag(fetch.partition)
        if position is None:
            return []
        moved[fetch.partition] = OffsetAndMetadata(position.offset, position.offset_epoch)
        return taken

    def _took(
        self, fetch: CompletedFetch, reading: FetchedRecords, count: int
    ) -> FetchPosition | None:
        """Set the position after the records taken (see `_move`), and drop an exhausted fetch."""
        fetch.bytes_read = reading.size
        fetch.records_read += count
        position = self._move(fetch, reading.next_offset, reading.last_epoch)
        if reading.is_exhausted or position is None:
            self._drop(fetch)
            fetch.drain()
        return position

    def _move(self, fetch: CompletedFetch, offset: int, epoch: int) -> FetchPosition | None:
        """Set the position after the records taken; None if they are no longer wanted.

        Needs the lock.
        """
        partition = fetch.partition
        use = self._subscriptions.use_of_fetched(partition, fetch.next_offset)
        before = self._subscriptions.position_or_none(partition)
        if use is not UseOfFetched.RETURN or before is None:
            return None
        position = FetchPosition(
            offset,
            before.offset_epoch if epoch == NO_LEADER_EPOCH else epoch,
            before.current_leader,
        )
        self._subscriptions.set_position(partition, position)
        fetch.next_offset = offset
        return position

    def _note_lag(self, partition: TopicPartition) -> None:
        """Measure how far the position is from both ends of the log; needs the lock."""
        self._context.measures.fetches.position_moved(
            partition,
            lag=self._subscriptions.partition_lag(partition, is_committed=self._is_committed),
            lead=self._subscriptions.partition_lead(partition),
        )

    def _drop(self, fetch: CompletedFetch) -> None:
        """Make room for the next fetch of the partition, after those of all others."""
        self._core.fetcher.buffer.remove(fetch)
        self._subscriptions.move_to_end(fetch.partition)
        if self._reading is not None and self._reading[0] is fetch:
            self._reading[1].close()
            self._reading = None
        self._has_room = True

    def _offer_room(self) -> None:
        """Make the network thread fetch again if `_drop` has made room."""
        if self._has_room:
            self._has_room = False
            self._context.wake()

    def _take_arrow(
        self, schema: pa.Schema, payloads: PayloadColumns | None
    ) -> Waiting[list[pa.RecordBatch] | None]:
        """Return all that was fetched, as far as it fits into memory; None if that is nothing."""
        taken: list[tuple[CompletedFetch, FetchedRecords]] = []
        error: KafkaError | None = None
        expected_bytes = 0.0
        with self._context.lock:
            while error is None:
                try:
                    fetch = self._next_fetch(has_records=bool(taken))
                    if fetch is None:
                        break
                    records = self._records_of(fetch)
                except KafkaError as raised:
                    error = raised
                    break
                expected_bytes += records.size * self._inflation
                if taken and expected_bytes > self._decoders.poll_bytes:
                    break
                # Not closed by `_drop`, since it is still to be read.
                self._reading = None
                # The next records can be fetched while these are decoded.
                if self._move(fetch, records.end_offset, records.end_epoch) is not None:
                    self._note_lag(fetch.partition)
                    taken.append((fetch, records))
                self._drop(fetch)
        self._offer_room()
        batches, failed = yield from self._decode_arrow(taken, schema, payloads)
        if batches:
            return batches
        error = error or failed
        if error is not None:
            self._postponed = None
            raise error
        return None

    def _decode_arrow(
        self,
        taken: Sequence[tuple[CompletedFetch, FetchedRecords]],
        schema: pa.Schema,
        payloads: PayloadColumns | None,
    ) -> Waiting[tuple[list[pa.RecordBatch], KafkaError | None]]:
        """Decode as many records as fit into memory; the rest is fetched again."""
        batches: list[pa.RecordBatch] = []
        error: KafkaError | None = None
        most_bytes = left_bytes = float(self._decoders.poll_bytes)
        read_bytes = 0
        for fetch, records in taken:
            failed: KafkaError | None = None
            #: Where to go on, if not all records that were decoded have values.
            next_offset: int | None = None
            if left_bytes > 0:
                fetch.bytes_read = records.size
                read_bytes += records.size
            try:
                while not records.is_exhausted and left_bytes > 0 and next_offset is None:
                    if payloads is None:
                        decoded = records.take_arrow(schema, max_bytes=left_bytes)
                    else:
                        # One batch: otherwise payloads alone could take all of the memory, again
                        # in each poll, and leave no room for a single value.
                        raw = records.take_arrow(payloads.raw_schema, max_bytes=1)
                        values = yield from self._context.block(
                            partial(payloads.values, raw, fetch.partition, left_bytes)
                        )
                        decoded, next_offset = values.batches, values.next_offset
                        failed, left_bytes = values.error, left_bytes - values.size
                        error = error or failed
                    left_bytes -= records.taken_bytes
                    fetch.records_read += sum(batch.num_rows for batch in decoded)
                    batches += decoded
            except KafkaError as raised:
                failed = raised
                error = error or raised
            with self._context.lock:
                if next_offset is not None or not records.is_exhausted:
                    is_of_payload = next_offset is not None
                    self._go_back(
                        fetch.partition,
                        records,
                        records.next_offset if next_offset is None else next_offset,
                        None if failed is None else (failed, payloads if is_of_payload else None),
                    )
                    records.close()
                fetch.drain()
            yield from self._context.give_turn()
        if read_bytes:
            self._inflation = (most_bytes - left_bytes) / read_bytes
        return batches, error

    def _go_back(
        self,
        partition: TopicPartition,
        records: FetchedRecords,
        offset: int,
        error: tuple[KafkaError, PayloadColumns | None] | None,
    ) -> None:
        """Set the position to the next record, which was not returned; needs the lock.

        Its error, if any, is raised now or, if there are records to return, by the next call.
        """
        position = self._subscriptions.position_or_none(partition)
        if position is not None and position.offset == records.end_offset:
            # The records before it have not reached the user yet.
            self._subscriptions.move_back(partition, position._replace(offset=offset))
            if error is not None:
                self._postponed = partition, offset, *error

    def _raise_postponed(self) -> None:
        """Raise the error of the last poll, unless the user has moved on; needs the lock."""
        if self._postponed is not None:
            (partition, offset, error, asked), self._postponed = self._postponed, None
            position = self._subscriptions.position_or_none(partition)
            is_there = position is not None and position.offset == offset
            if is_there and (asked is None or asked is self._asked):
                raise error

    # --- positions

    def position(self, partition: TopicPartition, timeout: float) -> Waiting[int]:
        """Return the position of a partition, which may have to be looked up first."""
        core, context = self._core, self._context
        deadline = core.clock() + timeout
        while True:
            with context.lock:
                core.raise_wakeup()
                context.raise_failure()
                if not self._subscriptions.is_assigned(partition):
                    raise IllegalStateError(f"{partition} is not assigned to this consumer")
                offset = self._subscriptions.valid_offset(partition)
                if offset is not None:
                    return offset
                self._begin_look_ups()
            left = deadline - core.clock()
            if left <= 0:
                client = context.client
                cause = why_missing(partition, client.metadata.snapshot) or client.cause()
                raise KafkaTimeoutError(
                    f"{partition}: no position was found in {timeout:g} s"
                    + ("" if cause is None else f"; last cause: {cause}")
                )
            yield from context.wait(left)

    # --- leaving

    def leave(
        self, reason: str, operation: LeaveOperation, timeout: float | None = None
    ) -> Waiting[None]:
        """Release everything and leave the group; errors of the listener are raised at the end."""
        coordinator = self._core.coordinator
        if coordinator is not None:
            limit = self._core.config.request_timeout_ms / 1000
            try:
                yield from self._commits.begin_pending()
            finally:
                # Otherwise Ctrl-C would leave a member without partitions, which would not join
                # again after a later `subscribe` to the same topics.
                yield from coordinator.leave(
                    reason, operation, limit if timeout is None else timeout
                )

    def close(self, timeout: float, *, commits: bool = True) -> Waiting[None]:
        """Commit, leave the group, and end the fetch sessions within `timeout` seconds.

        As in Java, it takes no longer than one request. Without `commits`, positions are not
        committed, although enable.auto.commit may be set.
        """
        timeout = min(timeout, self._core.config.request_timeout_ms / 1000)
        deadline = self._core.clock() + timeout
        with self._context.lock:
            self._core.ignores_wakeups = True
            is_subscribed = self._subscriptions.subscription.is_auto_assigned
        try:
            try:
                if commits:
                    yield from self._commits.commit_before_close(timeout)
                # Afterwards it would be none of the group that commits.
                yield from self._commits.await_pending(deadline)
                yield from self._commits.call_back()
            except BaseException as error:
                if not isinstance(error, Exception):
                    # Ctrl-C, or a cancelled task: the group is told, but the user waits no longer
                    # for its answer.
                    deadline = min(deadline, self._core.clock() + _LAST_SECONDS)
                raise
            finally:
                # Also if a callback of a commit has raised: the other members need the partitions.
                if is_subscribed:
                    left = max(deadline - self._core.clock(), 0)
                    yield from self.leave(
                        "the consumer is being closed", LeaveOperation.DEFAULT, left
                    )
                yield from self._await_leaves(deadline)
            yield from self._commits.await_pending(deadline)
            yield from self._commits.call_back()
        finally:
            left = max(min(deadline - self._core.clock(), _LAST_SECONDS), 0)
            yield from self._core.call(self._core.fetcher.close, left, "Fetch", is_wakeable=False)

    def _await_leaves(self, deadline: float) -> Waiting[None]:
        """Wait for the answers to LeaveGroup."""
        coordinator = self._core.coordinator
        while (
            coordinator is not None
            and coordinator.is_leaving
            and (left := deadline - self._core.clock()) > 0
        ):
            yield from self._context.wait(left)
