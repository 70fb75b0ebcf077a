"""The requests of one producer for ids and transactions: those that wait, and the one in flight."""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING

from spark_kafka_sink.errors import TransactionAbortedError
from spark_kafka_sink.producer.transactions.transactional_request_result import (
    TransactionalRequestResult,
)
from spark_kafka_sink.producer.transactions.txn_request_handlers import (
    NO_TRANSACTION_TIMEOUT_MS,
    AddOffsetsToTxnHandler,
    AddPartitionsToTxnHandler,
    EndTxnHandler,
    FindCoordinatorHandler,
    InitProducerIdHandler,
    TxnOffsetCommitHandler,
    TxnRequestHandler,
    TxnRequestPriority,
)
from spark_kafka_sink.protocol.messages.find_coordinator import CoordinatorType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spark_kafka_sink.model import (
        ConsumerGroupMetadata,
        Node,
        OffsetAndMetadata,
        ProducerIdAndEpoch,
        TopicPartition,
    )

#: Seconds between attempts at a transaction's first request while the previous one is still ending.
ADD_PARTITIONS_RETRY_BACKOFF = 0.02


class TransactionRequestQueue:
    """The requests that wait, in sending order, and the coordinators found so far.

    The order is by priority, and first in first out per priority.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[TxnRequestPriority, int, TxnRequestHandler]] = []
        self._numbers = itertools.count()
        self._coordinators: dict[tuple[CoordinatorType, str], Node] = {}

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, handler: TxnRequestHandler) -> None:
        """Add a request to the queue; one that is put back gets its old place."""
        if handler.number is None:
            handler.number = next(self._numbers)
        heapq.heappush(self._heap, (handler.priority, handler.number, handler))

    def peek(self) -> TxnRequestHandler | None:
        """Return the next request without removing it; None if there is none."""
        return self._heap[0][-1] if self._heap else None

    def pop(self) -> TxnRequestHandler:
        """Remove and return the next request."""
        return heapq.heappop(self._heap)[-1]

    def drain(self) -> list[TxnRequestHandler]:
        """Remove and return all requests, in order."""
        return [self.pop() for _ in range(len(self._heap))]

    def holds(self, kind: type[TxnRequestHandler]) -> bool:
        """Return whether a request of this kind is waiting."""
        return any(isinstance(handler, kind) for _, _, handler in self._heap)

    def remove(self, matches: Callable[[TxnRequestHandler], bool]) -> list[TxnRequestHandler]:
        """Remove and return the matching requests, in no particular order."""
        removed = [entry for entry in self._heap if matches(entry[-1])]
        if removed:
            self._heap = [entry for entry in self._heap if not matches(entry[-1])]
            heapq.heapify(self._heap)
        return [handler for _, _, handler in removed]

    # --- coordinators

    def coordinator(self, handler: TxnRequestHandler) -> Node | None:
        """Return the coordinator that a request goes to, if it is known."""
        kind = handler.coordinator_type
        return None if kind is None else self._coordinators.get((kind, handler.coordinator_key))

    def found(self, handler: FindCoordinatorHandler, node: Node) -> None:
        """Store the coordinator of a key."""
        self._coordinators[handler.key_type, handler.key] = node

    def lookup(self, handler: TxnRequestHandler) -> None:
        """Look up a request's coordinator again, with one request however many need it."""
        kind, key = handler.coordinator_type, handler.coordinator_key
        if kind is None:
            return
        self._coordinators.pop((kind, key), None)
        pending = {
            (waiting.key_type, waiting.key)
            for _, _, waiting in self._heap
            if isinstance(waiting, FindCoordinatorHandler)
        }
        if (kind, key) not in pending:
            result = TransactionalRequestResult("FindCoordinator")
            self.put(FindCoordinatorHandler(result=result, key_type=kind, key=key))


class TransactionRequests:
    """The planner of requests: it builds them, keeps them in order, and repeats them.

    Only one is in flight: the next is taken once this one was answered, put back, or has failed.
    """

    def __init__(self, transactional_id: str | None, transaction_timeout_ms: int) -> None:
        """Start without requests; `transactional_id` is None without transactions."""
        #: The id of the requests that follow.
        self.transactional_id = transactional_id
        self._transaction_timeout_ms = transaction_timeout_ms
        self._queue = TransactionRequestQueue()
        #: The request that was taken to be sent and is not done.
        self.in_flight: TxnRequestHandler | None = None

    @property
    def transaction_timeout_ms(self) -> int:
        """The time after which the coordinator aborts a transaction."""
        return self._transaction_timeout_ms

    # --- new requests

    def init_producer_id(
        self, result: TransactionalRequestResult, producer: ProducerIdAndEpoch
    ) -> None:
        """Request a producer id, or a new epoch of the given `producer`."""
        self._queue.put(
            InitProducerIdHandler(
                result=result,
                transactional_id=self.transactional_id,
                transaction_timeout_ms=(
                    NO_TRANSACTION_TIMEOUT_MS
                    if self.transactional_id is None
                    else self._transaction_timeout_ms
                ),
                producer=producer,
            )
        )

    def add_partitions(
        self, producer: ProducerIdAndEpoch, partitions: frozenset[TopicPartition]
    ) -> None:
        """Add partitions to the transaction."""
        self._queue.put(
            AddPartitionsToTxnHandler(
                result=TransactionalRequestResult("AddPartitionsToTxn"),
                transactional_id=self.transactional_id or "",
                producer=producer,
                partitions=partitions,
            )
        )

    def add_group(
        self,
        result: TransactionalRequestResult,
        producer: ProducerIdAndEpoch,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group_metadata: ConsumerGroupMetadata,
    ) -> None:
        """Add a consumer group to the transaction, before its offsets are committed (TV1)."""
        self._queue.put(
            AddOffsetsToTxnHandler(
                result=result,
                transactional_id=self.transactional_id or "",
                producer=producer,
                offsets=offsets,
                group_metadata=group_metadata,
            )
        )

    def commit_offsets(
        self,
        result: TransactionalRequestResult,
        producer: ProducerIdAndEpoch,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group_metadata: ConsumerGroupMetadata,
        *,
        is_transaction_v2: bool,
    ) -> None:
        """Commit a consumer group's offsets with the transaction."""
        self._queue.put(
            TxnOffsetCommitHandler(
                result=result,
                transactional_id=self.transactional_id or "",
                producer=producer,
                group_metadata=group_metadata,
                is_transaction_v2=is_transaction_v2,
                offsets=dict(offsets),
            )
        )

    def end_transaction(
        self,
        result: TransactionalRequestResult,
        producer: ProducerIdAndEpoch,
        *,
        committed: bool,
        is_transaction_v2: bool,
    ) -> None:
        """Commit or abort the transaction."""
        self._queue.put(
            EndTxnHandler(
                result=result,
                transactional_id=self.transactional_id or "",
                producer=producer,
                committed=committed,
                is_transaction_v2=is_transaction_v2,
            )
        )

    # --- the order of sending

    def peek(self) -> TxnRequestHandler | None:
        """Return the next request without removing it; None if there is none."""
        return self._queue.peek()

    def pop(self) -> TxnRequestHandler:
        """Remove and return the next request."""
        return self._queue.pop()

    def coordinator(self, handler: TxnRequestHandler) -> Node | None:
        """Return the broker that a request goes to, if it is known."""
        return self._queue.coordinator(handler)

    def found(self, handler: FindCoordinatorHandler, node: Node) -> None:
        """Store the coordinator that a request was to find."""
        self._queue.found(handler, node)

    # --- requests that are repeated or dropped

    def retry(self, handler: TxnRequestHandler) -> None:
        """Put back a request that was not answered, or that must be resent."""
        self.in_flight = None
        handler.attempts += 1
        self._queue.put(handler)

    def find_coordinator(self, handler: TxnRequestHandler) -> None:
        """Put a request back until its coordinator is known."""
        self.in_flight = None
        self._queue.lookup(handler)
        self._queue.put(handler)

    def find_coordinator_and_retry(self, handler: TxnRequestHandler) -> None:
        """Put back a request that failed to reach its coordinator, until that is found again."""
        self._queue.lookup(handler)
        self.retry(handler)

    def drop_unsent_offsets(self) -> None:
        """Drop offset requests: an abort must not wait for an unreachable group coordinator.

        Requests that a broker may have seen must be answered first: they must not arrive after the
        end of the transaction.
        """
        for handler in self._queue.remove(_is_unsent_offsets):
            handler.result.fail(
                TransactionAbortedError(
                    "the offsets were not sent because the transaction was aborted"
                )
            )
        if not self._queue.holds(TxnOffsetCommitHandler):
            self._queue.remove(_is_group_lookup)

    def fail(self, error: Exception) -> None:
        """Fail the requests that wait, which are dropped, and the one in flight."""
        for handler in self._queue.drain():
            handler.result.fail(error)
        if self.in_flight is not None:
            self.in_flight.result.fail(error)


def _is_unsent_offsets(handler: TxnRequestHandler) -> bool:
    is_offsets = isinstance(handler, AddOffsetsToTxnHandler | TxnOffsetCommitHandler)
    return is_offsets and not handler.was_sent


def _is_group_lookup(handler: TxnRequestHandler) -> bool:
    return isinstance(handler, FindCoordinatorHandler) and handler.key_type == CoordinatorType.GROUP
