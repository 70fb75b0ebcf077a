"""The fetched records that are not yet returned to the user.

This is Kafka's FetchBuffer, without its lock: it belongs to the thread that holds the consumer's
lock. Its rules:

- Fetches are used in the order in which they arrived. `next` returns one until it is removed, so
  that an error in it can be raised again if there were records to return before it.
- What a fetch says besides its records, such as an error, is handled even if the partition is
  paused (`initialize`); that is its initialization.
- After that, fetches of paused partitions are kept, and others that no longer continue at the
  position are dropped.
- A partition with a fetch here is not fetched again.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, cast

from spark_kafka_sink.consumer.fetch.fetch_rules import ADVICE, FetchAction, fetch_action
from spark_kafka_sink.consumer.subscription.subscription_state import UseOfFetched
from spark_kafka_sink.errors import CorruptRecordError, OffsetOutOfRangeError
from spark_kafka_sink.protocol.error_codes import broker_error
from spark_kafka_sink.protocol.primitives import ZERO_UUID, Buffer
from spark_kafka_sink.record.record_batch import split_record_batches

if TYPE_CHECKING:
    from collections.abc import Container
    from uuid import UUID

    from spark_kafka_sink.consumer.consumer_metrics import FetchedTotals
    from spark_kafka_sink.consumer.subscription.subscription_state import SubscriptionState
    from spark_kafka_sink.model import TopicPartition
    from spark_kafka_sink.network.exponential_backoff import ExponentialBackoff
    from spark_kafka_sink.network.metadata import MetadataSnapshot
    from spark_kafka_sink.protocol.messages.fetch import PartitionData

_NO_REPLICA: Final = -1


@dataclass(slots=True, eq=False)
class CompletedFetch:
    """The answer of a broker about one partition (Kafka's class of the same name)."""

    partition: TopicPartition
    data: PartitionData
    #: The offset that was requested; later that of the next record to return, which the reader of
    #: the records sets.
    next_offset: int
    #: The request and its broker, for errors.
    what: str
    #: Whether the broker is a follower (KIP-392).
    is_replica: bool
    #: Whether its records can be read: all else that it says has been handled.
    is_initialized: bool = False
    #: The id of the topic that was read; all zero if the broker has none.
    topic_id: UUID = ZERO_UUID
    #: The metrics of the whole answer, with the bytes and records that were read of this part.
    totals: FetchedTotals | None = None
    bytes_read: int = 0
    records_read: int = 0

    def is_of_other_topic(self, snapshot: MetadataSnapshot) -> bool:
        """Return whether the topic was deleted and created again since it was read."""
        return ZERO_UUID != self.topic_id != snapshot.topic_id(self.partition.topic)

    def drain(self) -> None:
        """Record the finished reading in the metrics. Only the first call counts.

        Source: CompletedFetch.drain.
        """
        if self.totals is not None:
            self.totals.partition_read(self.partition, self.bytes_read, self.records_read)

    @property
    def records(self) -> Buffer:
        """The record batches; the last one may be truncated."""
        # Those of a response that was received are a single buffer.
        return b"" if self.data.records is None else cast("Buffer", self.data.records)


class FetchBuffer:
    """The fetches, in the order in which they are used."""

    def __init__(self) -> None:
        self._fetches: deque[CompletedFetch] = deque()

    def __len__(self) -> int:
        return len(self._fetches)

    @property
    def buffered(self) -> frozenset[TopicPartition]:
        """The partitions that have a fetch here (FetchBuffer.bufferedPartitions)."""
        return frozenset(fetch.partition for fetch in self._fetches)

    def add(self, fetch: CompletedFetch) -> None:
        """Use a fetch after all others."""
        self._fetches.append(fetch)

    def next(self, subscriptions: SubscriptionState) -> CompletedFetch | None:
        """Return the first fetch to initialize or to read; None if there is none.

        Fetches that are no longer wanted are dropped on the way, and those of paused partitions go
        to the end. The fetch stays here until it is removed.

        Source: FetchCollector.collectFetch.
        """
        for _ in range(len(self._fetches)):
            fetch = self._fetches[0]
            if not fetch.is_initialized:
                return fetch
            use = subscriptions.use_of_fetched(fetch.partition, fetch.next_offset)
            if use is UseOfFetched.RETURN:
                return fetch
            self._fetches.popleft()
            if use is UseOfFetched.KEEP:
                self._fetches.append(fetch)
            else:
                fetch.drain()
        return None

    def remove(self, fetch: CompletedFetch) -> None:
        """Remove a fetch that has been used, unless it is gone already."""
        with suppress(ValueError):
            self._fetches.remove(fetch)

    def retain(self, partitions: Container[TopicPartition]) -> None:
        """Drop the fetches of all other partitions (FetchBuffer.retainAll)."""
        for fetch in self._fetches:
            if fetch.partition not in partitions:
                fetch.drain()
        self._fetches = deque(fetch for fetch in self._fetches if fetch.partition in partitions)

    def drop_other_topics(self, snapshot: MetadataSnapshot) -> None:
        """Drop the fetches of topics that were deleted and created again."""
        for fetch in list(self._fetches):
            if fetch.is_of_other_topic(snapshot):
                self.remove(fetch)
                fetch.drain()

    def has_available(self, subscriptions: SubscriptionState) -> bool:
        """Return whether there is a fetch of a partition whose records may be returned.

        Source: AbstractFetch.hasAvailableFetches.
        """
        return any(subscriptions.is_fetchable(fetch.partition) for fetch in self._fetches)


class FetchOutcome(Enum):
    """The outcome of an answer; unless it is READ, the answer has been used."""

    #: Its records can be read, if it has any.
    READ = auto()
    #: It is no longer wanted: the partition has another position, or none.
    DROP = auto()
    #: The partition is fetched again, after a refresh of the metadata that the caller requests.
    REFRESH = auto()
    #: The partition is fetched again.
    RETRY = auto()
    #: The position was dropped; auto.offset.reset finds another.
    RESET = auto()
    #: The log was truncated, and the position waits for validation, which finds out where.
    VALIDATE = auto()


def initialize(
    fetch: CompletedFetch,
    subscriptions: SubscriptionState,
    now: float,
    *,
    replica_lease: float,
    backoff: ExponentialBackoff,
) -> FetchOutcome:
    """Apply an answer to the state of its partition, and return the outcome.

    `now` is in seconds. `replica_lease` is metadata.max.age.ms in seconds: for so long the follower
    that a leader recommends is used (KIP-392). A partition with an error is fetched after all
    others. If the log does not even have the position that a reset has just found, the next reset
    waits for `backoff`; Java asks the broker again at once.

    Raise BrokerError for an error that no retry ends, OffsetOutOfRangeError if the log does not
    have the position and auto.offset.reset is `none`, and CorruptRecordError if there are bytes but
    no complete batch. The position is then unchanged.

    Source: FetchCollector.initialize, KIP-320, KIP-392.
    """
    partition, data = fetch.partition, fetch.data
    if data.error_code:
        subscriptions.move_to_end(partition)
    if not subscriptions.has_valid_position(partition):
        return FetchOutcome.DROP
    match fetch_action(data.error_code):
        case FetchAction.READ:
            return _succeeded(fetch, subscriptions, now + replica_lease)
        case FetchAction.REFRESH:
            subscriptions.clear_preferred_read_replica(partition)
            return FetchOutcome.REFRESH
        case FetchAction.WAIT:
            return FetchOutcome.RETRY
        case FetchAction.LOOK_UP_BOUNDS:
            return _out_of_range(fetch, subscriptions, now, backoff)
        case FetchAction.FATAL:
            code = data.error_code
            raise broker_error(code, f"{partition}: {fetch.what}", ADVICE.get(code))


def _succeeded(
    fetch: CompletedFetch, subscriptions: SubscriptionState, lease_end: float
) -> FetchOutcome:
    partition, data = fetch.partition, fetch.data
    position = subscriptions.position(partition)
    if position is None or position.offset != fetch.next_offset:
        return FetchOutcome.DROP
    if data.diverging_epoch.end_offset >= 0 and position.can_be_validated:
        subscriptions.seek_unvalidated(partition, position)
        return FetchOutcome.VALIDATE
    if _is_incomplete(fetch.records):
        raise CorruptRecordError(
            f"{partition}: {fetch.what} returned bytes without a complete batch, although a first "
            "batch always comes whole (KIP-74)"
        )
    subscriptions.note_in_range(partition)
    subscriptions.update_offsets(
        partition,
        high_watermark=_known(data.high_watermark),
        last_stable_offset=_known(data.last_stable_offset),
        log_start_offset=_known(data.log_start_offset),
    )
    if data.preferred_read_replica != _NO_REPLICA:
        subscriptions.update_preferred_read_replica(
            partition, data.preferred_read_replica, lease_end
        )
    fetch.is_initialized = True
    return FetchOutcome.READ


def _out_of_range(
    fetch: CompletedFetch, subscriptions: SubscriptionState, now: float, backoff: ExponentialBackoff
) -> FetchOutcome:
    replica = subscriptions.clear_preferred_read_replica(fetch.partition)
    if replica is not None or fetch.is_replica:
        # It may lag behind: the leader decides.
        return FetchOutcome.RETRY
    if subscriptions.valid_offset(fetch.partition) != fetch.next_offset:
        return FetchOutcome.DROP
    if not subscriptions.has_default_reset:
        raise OffsetOutOfRangeError({fetch.partition: fetch.next_offset})
    subscriptions.request_offset_reset(fetch.partition)
    failed = subscriptions.count_out_of_range(fetch.partition) - 1
    if failed:
        retry_at = now + backoff.delay(failed - 1)
        subscriptions.set_next_allowed_retry([fetch.partition], retry_at)
    return FetchOutcome.RESET


def _is_incomplete(records: Buffer) -> bool:
    """Return whether there are bytes, but not of a whole batch."""
    # A malformed batch is an error of whoever reads it, who can name its offset.
    with suppress(CorruptRecordError):
        return memoryview(records).nbytes > 0 and next(split_record_batches(records), None) is None
    return False


def _known(offset: int) -> int | None:
    return offset if offset >= 0 else None
