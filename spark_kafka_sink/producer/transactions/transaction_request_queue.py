"""The queue of transactional requests, in sending order, and the coordinators they go to."""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING

from spark_kafka_sink.producer.transactions.transactional_request_result import (
    TransactionalRequestResult,
)
from spark_kafka_sink.producer.transactions.txn_request_handlers import (
    FindCoordinatorHandler,
    TxnRequestHandler,
    TxnRequestPriority,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.model import Node
    from spark_kafka_sink.protocol.messages.find_coordinator import CoordinatorType


class TransactionRequestQueue:
    """A priority queue, first in first out per priority, and the coordinators found so far."""

    def __init__(self) -> None:
        """Create an empty queue."""
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
