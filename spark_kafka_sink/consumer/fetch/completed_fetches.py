"""What was fetched but not yet returned to the user.

This is Kafka's FetchBuffer, without its lock: it belongs to the thread that holds the consumer's
lock. Its rules:

- Fetches are used in the order in which they arrived. `next` returns one until it is removed, so
  that an error in it can be raised again if there were records to return before it.
- What a fetch says besides its records, such as an error, is handled even if the partition is
  paused (`fetch_outcomes`); that is its initialization.
- After that, fetches of paused partitions are kept, and others that no longer continue at the
  position are dropped.
- A partition with a fetch here is not fetched again.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from spark_kafka_sink.consumer.subscription.subscription_state import UseOfFetched
from spark_kafka_sink.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Container
    from uuid import UUID

    from spark_kafka_sink.consumer.measures.fetch_metrics import FetchedTotals
    from spark_kafka_sink.consumer.subscription.subscription_state import SubscriptionState
    from spark_kafka_sink.model import TopicPartition
    from spark_kafka_sink.network.cluster.metadata import MetadataSnapshot
    from spark_kafka_sink.protocol.messages.fetch import PartitionData
    from spark_kafka_sink.protocol.primitives import Buffer


@dataclass(slots=True, eq=False)
class CompletedFetch:
    """The answer of a broker about one partition (Kafka's class of the same name)."""

    partition: TopicPartition
    data: PartitionData
    #: The offset that was requested; later that of the next record to return, which the reader of
    #: the records sets.
    next_offset: int
    #: What was asked of whom, for errors.
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
        """Record in the metrics what was read: there is nothing left. Only the first call counts.

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
        """The partitions that have a fetch here.

        Source: FetchBuffer.bufferedPartitions.
        """
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
        """Drop the fetches of all other partitions.

        Source: FetchBuffer.retainAll.
        """
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
