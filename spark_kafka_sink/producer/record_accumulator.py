"""Keeps closed batches until a broker has them (Kafka's RecordAccumulator).

Two threads meet here. The writing thread hands over batches that are closed; the network thread
takes them out in the order that each partition demands, puts back those to be tried again, and ends
each of them once. One lock guards the queues, held for moments only; `now` is monotonic seconds.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_kafka_sink.producer.producer_batch import FinalState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_kafka_sink.model import Node, TopicPartition
    from spark_kafka_sink.network.metadata import MetadataSnapshot
    from spark_kafka_sink.producer.buffer_pool import BufferPool
    from spark_kafka_sink.producer.producer_batch import ProducerBatch
    from spark_kafka_sink.producer.transaction_manager import TransactionManager

NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class ReadyCheckResult:
    """What could be sent (Kafka's class of the same name)."""

    #: Nodes that lead a partition with a batch to send.
    ready_nodes: tuple[Node, ...]
    #: When a batch that waits out its back-off may go; `NEVER` if none does.
    next_check_at: float
    #: Topics with batches for partitions whose leader is not known.
    unknown_leader_topics: frozenset[str]


class RecordAccumulator:
    """The queues of closed batches, one per partition."""

    def __init__(
        self,
        *,
        pool: BufferPool,
        delivery_timeout: float,
        transaction_manager: TransactionManager | None,
        guarantee_order: bool,
    ) -> None:
        """`guarantee_order`: one batch of a partition at a time (no idempotence, 1 in flight)."""
        self._pool = pool
        self._delivery_timeout = delivery_timeout
        self._transaction_manager = transaction_manager
        self._guarantee_order = guarantee_order
        self._lock = threading.Lock()
        self._all_done = threading.Condition(self._lock)
        #: Partitions with something queued, and only those.
        self._queues: dict[TopicPartition, deque[ProducerBatch]] = {}
        #: Every batch that is not done, in the order of closing, which is that of expiry.
        self._incomplete: dict[ProducerBatch, None] = {}
        self._muted: set[TopicPartition] = set()
        self._failed_by: Exception | None = None

    # --- from the writing thread

    def enqueue(self, batch: ProducerBatch) -> None:
        """Queue a batch just closed; raises the error that ended the producer, if one did."""
        with self._lock:
            self._raise_if_failed()
            self._queues.setdefault(batch.topic_partition, deque()).append(batch)
            self._incomplete[batch] = None

    def await_all_done(self, timeout: float | None) -> bool:
        """Wait until every batch is acknowledged; raise the first error; False on time-out."""
        with self._all_done:
            done = self._all_done.wait_for(
                lambda: self._failed_by is not None or not self._incomplete, timeout
            )
            self._raise_if_failed()
            return done

    def raise_if_failed(self) -> None:
        """Raise the error that ended the producer, if one did."""
        with self._lock:
            self._raise_if_failed()

    def _raise_if_failed(self) -> None:
        if self._failed_by is not None:
            raise self._failed_by

    def refuse(self, error: Exception) -> None:
        """Have every later call of the writing thread raise `error`, unless there was one before.

        What is queued already is still sent.
        """
        with self._all_done:
            if self._failed_by is None:
                self._failed_by = error
            self._all_done.notify_all()

    # --- from the network thread

    @property
    def has_incomplete(self) -> bool:
        """Whether any batch still waits for its end."""
        return bool(self._incomplete)

    def ready(self, snapshot: MetadataSnapshot, now: float) -> ReadyCheckResult:
        """Find the nodes to which something could be sent."""
        nodes: dict[Node, None] = {}
        unknown: set[str] = set()
        next_check_at = NEVER
        with self._lock:
            for topic_partition, queue in self._queues.items():
                if topic_partition in self._muted:
                    continue
                leader = snapshot.leader_of(topic_partition)
                if leader is None:
                    unknown.add(topic_partition.topic)
                elif queue[0].retry_at > now:
                    next_check_at = min(next_check_at, queue[0].retry_at)
                else:
                    nodes[leader] = None
        return ReadyCheckResult(tuple(nodes), next_check_at, frozenset(unknown))

    def drain(
        self, snapshot: MetadataSnapshot, node: Node, max_bytes: int, now: float
    ) -> list[ProducerBatch]:
        """Take out at most one batch of each partition that the node leads.

        Together they have at most `max_bytes`, but for a single batch that has more. A partition
        that was served goes to the end of the round, so none starves.
        """
        drained: list[ProducerBatch] = []
        size = 0
        with self._lock:
            for topic_partition in list(self._queues):
                if topic_partition in self._muted:
                    continue
                if snapshot.leader_of(topic_partition) != node:
                    continue
                first = self._queues[topic_partition][0]
                if first.retry_at > now or not self._may_drain(first):
                    continue
                if drained and size + first.size_bytes > max_bytes:
                    break
                self._take_first(topic_partition)
                size += first.size_bytes
                drained.append(first)
        for batch in drained:
            if self._transaction_manager is not None:
                self._transaction_manager.assign_sequence(batch)
            batch.is_in_flight = True
        return drained

    def _may_drain(self, first: ProducerBatch) -> bool:
        return self._transaction_manager is None or self._transaction_manager.may_drain(first)

    def _take_first(self, topic_partition: TopicPartition) -> None:
        queue = self._queues.pop(topic_partition)
        queue.popleft()
        if queue:
            self._queues[topic_partition] = queue
        if self._guarantee_order:
            self._muted.add(topic_partition)

    def reenqueue(self, batches: Sequence[ProducerBatch]) -> None:
        """Put batches back to be tried again, before all that were never sent, in their order."""
        with self._lock:
            for batch in batches:
                queue = self._queues.setdefault(batch.topic_partition, deque())
                self._muted.discard(batch.topic_partition)
                if self._transaction_manager is None:
                    queue.appendleft(batch)
                    continue
                waiting = [batch]
                while queue and queue[0].has_sequence:
                    waiting.append(queue.popleft())
                queue.extendleft(reversed(self._transaction_manager.in_retry_order(waiting)))

    def replace(self, batch: ProducerBatch, parts: Sequence[ProducerBatch]) -> None:
        """Let parts take the place of a batch that was too large for the broker."""
        if self._transaction_manager is not None:
            self._transaction_manager.split(batch, parts)
        self._pool.reserve(sum(part.size_bytes for part in parts))
        with self._lock:
            # The parts have the batch's time of closing, and so its place in the order of expiry.
            self._incomplete = {
                each: None
                for known in self._incomplete
                for each in ((known, *parts) if known is batch else (known,))
            }
            self._forget(batch)
        self.reenqueue(list(reversed(parts)))

    def expired_batches(self, now: float) -> list[ProducerBatch]:
        """List the batches whose delivery.timeout.ms, counted from their closing, has passed."""
        expired = []
        with self._lock:
            for batch in self._incomplete:
                if batch.closed_at + self._delivery_timeout > now:
                    break
                expired.append(batch)
        return expired

    def next_expiry_at(self) -> float:
        """When the oldest batch expires; `NEVER` if there is none."""
        with self._lock:
            oldest = next(iter(self._incomplete), None)
        return NEVER if oldest is None else oldest.closed_at + self._delivery_timeout

    def complete(self, batch: ProducerBatch) -> None:
        """End a batch that a broker has."""
        batch.finish(FinalState.SUCCEEDED)
        if self._transaction_manager is not None:
            self._transaction_manager.complete(batch)
        with self._lock:
            self._muted.discard(batch.topic_partition)
            self._forget(batch)

    def _forget(self, batch: ProducerBatch) -> None:
        del self._incomplete[batch]
        if batch.block is not None:
            # What a connection may still be reading must not be written over.
            self._pool.deallocate(batch.block, reusable=not batch.is_in_flight)
            batch.block = None
        else:
            self._pool.release(batch.size_bytes)
        if not self._incomplete:
            self._all_done.notify_all()

    def fail(self, error: Exception) -> None:
        """End everything that is not done; every later call of the writing thread raises `error`.

        The first error stays.
        """
        with self._lock:
            if self._failed_by is None:
                self._failed_by = error
            for batch in list(self._incomplete):
                batch.finish(FinalState.FAILED)
                if self._transaction_manager is not None:
                    self._transaction_manager.fail(batch)
                self._forget(batch)
            self._queues.clear()
            self._muted.clear()
            self._all_done.notify_all()
        self._pool.close(self._failed_by)
