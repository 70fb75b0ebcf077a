"""The store of closed batches until a broker has acknowledged them (Kafka's RecordAccumulator).

It is shared by two threads. The writing thread adds closed batches; the network thread drains them
in each partition's order, puts back those to be retried, and completes or fails each of them once.
One lock guards the queues and is only held briefly; `now` is monotonic seconds.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.model import UNKNOWN_OFFSET, Node, TopicPartition
from spark_kafka_sink.network.exponential_backoff import NEVER
from spark_kafka_sink.producer.batch.interrupts import interruption_error
from spark_kafka_sink.producer.batch.produce_result import NO_LOG_APPEND_TIME
from spark_kafka_sink.producer.batch.producer_batch import FinalState, ProducerBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spark_kafka_sink.network.metadata import MetadataSnapshot
    from spark_kafka_sink.producer.batch.buffer_pool import BufferPool
    from spark_kafka_sink.producer.batch.produce_result import ProduceResult, RefusedRecords
    from spark_kafka_sink.producer.sending.transaction_manager import TransactionManager

logger = logging.getLogger(__name__)

#: The number of expiries of completed batches that may remain before they are removed.
MAX_STALE = 64


@dataclass(frozen=True, slots=True)
class ReadyCheckResult:
    """The batches that could be sent (Kafka's class of the same name)."""

    #: Nodes that lead a partition with a batch to send.
    ready_nodes: tuple[Node, ...]
    #: When the first batch that is backing off may be sent; `NEVER` if there is none.
    next_check_at: float
    #: Topics with batches for partitions whose leader is unknown.
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
        on_failed: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        """Create empty queues; `guarantee_order` allows one batch of a partition at a time.

        That is needed without idempotence, with one request in flight. `on_failed` is called on the
        network thread with the error that ended the producer.
        """
        self._pool = pool
        self._delivery_timeout = delivery_timeout
        self._transaction_manager = transaction_manager
        self._guarantee_order = guarantee_order
        # Reentrant: `refuse`, `fail`, `fail_batch` and `enqueue` call methods that take it.
        self._lock = threading.RLock()
        #: Partitions with queued batches, and only those.
        self._queues: dict[TopicPartition, deque[ProducerBatch]] = {}
        #: Every batch that is not done (Kafka's IncompleteBatches), with its position in the order
        #: of closing: a number; for a part of a batch, the batch's position and the part's number.
        self._incomplete: dict[ProducerBatch, tuple[int, ...]] = {}
        #: Results of batches that are done, until all their callbacks have been called.
        self._settling: deque[ProduceResult] = deque()
        self._by_position: dict[tuple[int, ...], ProducerBatch] = {}
        #: When each batch expires, and its position. Entries of some completed batches remain. They
        #: refer to a position instead of the batch, because one batch that cannot be sent would
        #: otherwise keep all later ones in memory until it expires.
        self._expiries: list[tuple[float, tuple[int, ...]]] = []
        self._numbers = count()
        self._remembers_losses = False
        self._muted: set[TopicPartition] = set()
        #: The error that ended the producer; every later call raises it.
        #: The error that ended the producer, set with the lock held; every later call raises it.
        self.failed_by: Exception | None = None
        #: The first error that lost rows without futures.
        self._lost_by: Exception | None = None
        self._on_failed = on_failed

    # --- called by the writing threads

    def enqueue(self, batch: ProducerBatch) -> bool:
        """Add a batch just closed to its queue; raise the error that ended the producer, if any.

        Returns whether the sender must look for it. It need not if the batch is behind another:
        whatever lets that one be sent, such as an answer, wakes the sender, which then goes on with
        this one. A batch that its transaction no longer accepts fails instead. So does one for
        which this raises.
        """
        try:
            with self._lock:
                self.raise_if_failed()
                refusal = self._refusal(batch)
                is_first = batch.topic_partition not in self._queues
                if refusal is None:
                    self._queues.setdefault(batch.topic_partition, deque()).append(batch)
                    self._add_incomplete(batch, (next(self._numbers),))
        except BaseException as error:
            with self._lock:
                self._remove_from_queue(batch)
                self._by_position.pop(self._incomplete.pop(batch, ()), None)
            self.refuse_batch(batch, interruption_error(error))
            raise
        if refusal is not None:
            self.refuse_batch(batch, refusal)
        return is_first

    def _refusal(self, batch: ProducerBatch) -> KafkaError | None:
        # Called with the lock held: a transaction whose end has begun knows all of its batches.
        if self._transaction_manager is not None:
            try:
                self._transaction_manager.maybe_add_partition(batch.topic_partition)
            except KafkaError as error:
                return error
        return None

    def _add_incomplete(self, batch: ProducerBatch, position: tuple[int, ...]) -> None:
        self._incomplete[batch] = position
        self._by_position[position] = batch
        if len(self._expiries) > 2 * len(self._by_position) + MAX_STALE:
            self._expiries = [expiry for expiry in self._expiries if expiry[1] in self._by_position]
            heapify(self._expiries)
        heappush(self._expiries, (batch.created_at + self._delivery_timeout, position))

    def _replace_incomplete(self, batch: ProducerBatch, parts: Sequence[ProducerBatch]) -> None:
        position = self._incomplete[batch]
        for number, part in enumerate(parts):
            self._add_incomplete(part, (*position, number))
        self._forget(batch)

    def refuse_batch(self, batch: ProducerBatch, error: Exception) -> None:
        """Fail a batch instead of queueing it."""
        batch.finish(FinalState.FAILED)
        self._release(batch)
        batch.result.fail(error)

    def remember_losses(self) -> None:
        """Make the first batch that is lost from now on fail every later call.

        This is for rows without futures.
        """
        self._remembers_losses = True

    def note_loss(self, error: Exception) -> None:
        """Record a batch that was lost before it could be queued."""
        with self._lock:
            if self._remembers_losses:
                self.failed_by = self.failed_by or error
                self._lost_by = self._lost_by or error

    def queue_sizes(self, topic: str) -> dict[int, int]:
        """Count the queued batches of each partition of a topic that has any."""
        with self._lock:
            return {
                topic_partition.partition: len(queue)
                for topic_partition, queue in self._queues.items()
                if topic_partition.topic == topic
            }

    def is_queue_empty(self, topic_partition: TopicPartition) -> bool:
        """Return whether a batch of this partition, if closed now, would be the next to be sent."""
        with self._lock:
            return topic_partition not in self._queues and topic_partition not in self._muted

    def unsettled(self) -> list[ProduceResult]:
        """Return what a flush waits for: incomplete batches and results with pending callbacks."""
        with self._lock:
            settling = (result for result in self._settling if not result.is_settled)
            return [*settling, *(batch.result for batch in self._incomplete)]

    @property
    def incomplete_records(self) -> int:
        """The number of records in batches that are not done."""
        with self._lock:
            return sum(batch.record_count for batch in self._incomplete)

    @property
    def has_failed(self) -> bool:
        """Whether every later call will raise an error."""
        return self.failed_by is not None

    def raise_if_failed(self) -> None:
        """Raise the error that ended the producer, if any."""
        with self._lock:
            if self.failed_by is not None:
                raise self.failed_by

    def raise_if_lost(self) -> None:
        """Raise the error that lost rows without futures, if any."""
        with self._lock:
            if self._lost_by is not None:
                raise self._lost_by

    def refuse(self, error: Exception) -> None:
        """Make every later call of the writing thread raise `error`, unless an earlier one applies.

        Batches that are already queued are still sent.
        """
        with self._lock:
            if self.failed_by is None:
                self.failed_by = error
            self.note_loss(error)

    # --- called by the network thread

    @property
    def has_incomplete(self) -> bool:
        """Whether any batch is not done. Without the lock, it may be out of date at once."""
        return bool(self._incomplete)

    @property
    def has_queued(self) -> bool:
        """Whether any batch is waiting to be sent."""
        return bool(self._queues)

    def ready(self, snapshot: MetadataSnapshot, now: float) -> ReadyCheckResult:
        """Return the nodes to which batches could be sent."""
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
                elif queue[0].is_compressed:
                    nodes[leader] = None
        return ReadyCheckResult(tuple(nodes), next_check_at, frozenset(unknown))

    def drain(
        self, snapshot: MetadataSnapshot, node: Node, max_bytes: int, now: float
    ) -> list[ProducerBatch]:
        """Remove and return at most one batch of each partition that the node leads.

        Together they have at most `max_bytes`, unless a single batch is larger. A partition that
        was drained moves to the end of the round, so none starves.
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
                self._transaction_manager.sequences.assign(batch)
            batch.is_in_flight = True
        return drained

    def _may_drain(self, first: ProducerBatch) -> bool:
        if not first.is_compressed:
            return False
        return self._transaction_manager is None or self._transaction_manager.may_drain(first)

    def _take_first(self, topic_partition: TopicPartition) -> None:
        queue = self._queues.pop(topic_partition)
        queue.popleft()
        if queue:
            self._queues[topic_partition] = queue
        if self._guarantee_order:
            self._muted.add(topic_partition)

    def reenqueue(self, batches: Sequence[ProducerBatch]) -> None:
        """Put batches back to be retried, in order, before all that were never sent."""
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
                queue.extendleft(
                    reversed(self._transaction_manager.sequences.in_retry_order(waiting))
                )

    def put_compressed(self, batch: ProducerBatch, batches: Sequence[ProducerBatch]) -> None:
        """Replace a queued batch by its compressed form: itself, or its parts."""
        self._pool.reserve(sum(compressed.size_bytes for compressed in batches))
        with self._lock:
            if batch not in batches:
                queue = self._queues[batch.topic_partition]
                index = queue.index(batch)
                del queue[index]
                for part in reversed(batches):
                    queue.insert(index, part)
                self._replace_incomplete(batch, batches)
            elif batch.block is not None:
                self._pool.deallocate(batch.block)
                batch.block = None

    def hold_back(self, topic_partition: TopicPartition) -> None:
        """Hold back a partition's batches until one of it has been put back, or has ended."""
        with self._lock:
            self._muted.add(topic_partition)

    def replace(self, batch: ProducerBatch, parts: Sequence[ProducerBatch]) -> None:
        """Replace a batch that was too large for the broker by its parts."""
        if self._transaction_manager is not None:
            self._transaction_manager.sequences.split(batch, parts)
        self._pool.reserve(sum(part.size_bytes for part in parts))
        with self._lock:
            self._replace_incomplete(batch, parts)
        self.reenqueue(list(reversed(parts)))

    def set_aside(self, batch: ProducerBatch, rest: ProducerBatch | None) -> None:
        """Replace a refused batch by the records that were not refused; None if there are none."""
        if self._transaction_manager is not None:
            self._transaction_manager.sequences.set_aside(batch, rest)
        if rest is not None:
            self._pool.reserve(rest.size_bytes)
            with self._lock:
                self._replace_incomplete(batch, [rest])
            self.reenqueue([rest])
            return
        batch.finish(FinalState.SUCCEEDED)
        with self._lock:
            self._muted.discard(batch.topic_partition)
            self._settle(batch)
        batch.result.complete(UNKNOWN_OFFSET)

    def expired_batches(self, now: float) -> list[ProducerBatch]:
        """Return the batches older than delivery.timeout.ms."""
        with self._lock:
            due = []
            while self._expiries and self._expiries[0][0] <= now:
                expiry = heappop(self._expiries)
                if expiry[1] in self._by_position:
                    due.append(expiry)
            # The caller may keep some, such as a batch whose broker throttles.
            for expiry in due:
                heappush(self._expiries, expiry)
            return [self._by_position[position] for _, position in due]

    def next_expiry_at(self) -> float:
        """Return when the oldest batch expires; `NEVER` if there is none."""
        with self._lock:
            while self._expiries and self._expiries[0][1] not in self._by_position:
                heappop(self._expiries)
            return self._expiries[0][0] if self._expiries else NEVER

    def complete(
        self,
        batch: ProducerBatch,
        *,
        base_offset: int = UNKNOWN_OFFSET,
        log_append_time_ms: int = NO_LOG_APPEND_TIME,
    ) -> None:
        """Complete a batch that a broker has; `log_append_time_ms` is the broker's, if any."""
        batch.finish(FinalState.SUCCEEDED)
        if self._transaction_manager is not None:
            self._transaction_manager.sequences.acknowledge(batch, base_offset)
        with self._lock:
            self._muted.discard(batch.topic_partition)
            self._settle(batch)
        batch.result.complete(base_offset, log_append_time_ms)

    def fail_batch(
        self,
        batch: ProducerBatch,
        error: Exception,
        *,
        refused: RefusedRecords | None = None,
    ) -> None:
        """Fail a batch that cannot be delivered; `refused` are the records to blame, if known."""
        with self._lock:
            self._end_failed(batch)
            self.note_loss(error)
        # The sender of the records receives the error from a future or from the next call.
        logger.debug("%s", error)
        batch.result.fail(error, refused)

    def _end_failed(self, batch: ProducerBatch) -> None:
        batch.finish(FinalState.FAILED)
        if self._transaction_manager is not None:
            self._transaction_manager.sequences.remove(batch)
        self._remove_from_queue(batch)
        self._muted.discard(batch.topic_partition)
        self._settle(batch)

    def _remove_from_queue(self, batch: ProducerBatch) -> None:
        queue = self._queues.get(batch.topic_partition)
        if queue is not None and batch in queue:
            queue.remove(batch)
            if not queue:
                del self._queues[batch.topic_partition]

    def abort_undrained_batches(self, error: Exception) -> bool:
        """Fail every batch that has never been sent (RecordAccumulator.abortUndrainedBatches).

        Returns whether there was any.
        """
        with self._lock:
            batches = [batch for batch in self._in_order() if not batch.has_sequence]
            for batch in batches:
                batch.last_error = error
                self._end_failed(batch)
        for batch in batches:
            batch.result.fail(error)
        return bool(batches)

    def _in_order(self) -> list[ProducerBatch]:
        """Return all incomplete batches in the order of closing, in which their results end."""
        return sorted(self._incomplete, key=self._incomplete.__getitem__)

    def _settle(self, batch: ProducerBatch) -> None:
        """Remove a batch whose result is about to be completed."""
        while self._settling and self._settling[0].is_settled:
            self._settling.popleft()
        self._settling.append(batch.result)
        self._forget(batch)

    def _forget(self, batch: ProducerBatch) -> None:
        del self._by_position[self._incomplete.pop(batch)]
        self._release(batch)

    def _release(self, batch: ProducerBatch) -> None:
        if not batch.is_held:  # see `no_longer_held`
            batch.free(self._pool)

    def no_longer_held(self, batches: Sequence[ProducerBatch]) -> None:
        """Record that no connection or worker reads the bytes of these batches any more.

        The memory of a batch that has failed meanwhile is freed only now (KAFKA-19012).
        """
        for batch in batches:
            batch.is_in_flight = batch.is_with_worker = False
            if batch.is_done:
                self._release(batch)

    def fail(self, error: Exception) -> None:
        """Fail all incomplete batches; every later call of the writing thread raises `error`.

        If there was an error before, that one is raised.
        """
        with self._lock:
            if self.failed_by is None:
                self.failed_by = error
            failed = self._in_order()
            if failed:
                self.note_loss(self.failed_by)
            for batch in failed:
                batch.finish(FinalState.FAILED)
                if self._transaction_manager is not None:
                    self._transaction_manager.sequences.remove(batch)
                self._settle(batch)
            self._queues.clear()
            self._expiries.clear()
            self._muted.clear()
        self._pool.close(self.failed_by)
        for batch in failed:
            batch.result.fail(self.failed_by)
        self._on_failed(self.failed_by)
