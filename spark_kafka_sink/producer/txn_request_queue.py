"""The requests that wait to be sent, in the order in which they may go, and whom they go to."""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING

from spark_kafka_sink.producer.transactional_request_result import TransactionalRequestResult
from spark_kafka_sink.producer.txn_request_handlers import (
    FindCoordinatorHandler,
    TxnRequestHandler,
    TxnRequestPriority,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.model import Node
    from spark_kafka_sink.protocol.messages.find_coordinator import CoordinatorType


class TxnRequestQueue:
    """A queue by priority, first in first out within each, and the coordinators found so far."""

    def __init__(self) -> None:
        """Start empty."""
        self._heap: list[tuple[TxnRequestPriority, int, TxnRequestHandler]] = []
        self._numbers = itertools.count()
        self._coordinators: dict[tuple[CoordinatorType, str], Node] = {}

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, handler: TxnRequestHandler) -> None:
        """Let a request wait for its turn, which is the old one if it is put back."""
        if handler.number is None:
            handler.number = next(self._numbers)
        heapq.heappush(self._heap, (handler.priority, handler.number, handler))

    def peek(self) -> TxnRequestHandler | None:
        """Show the request that is next."""
        return self._heap[0][-1] if self._heap else None

    def pop(self) -> TxnRequestHandler:
        """Take out the request that is next."""
        return heapq.heappop(self._heap)[-1]

    def drain(self) -> list[TxnRequestHandler]:
        """Take out all, in order."""
        return [self.pop() for _ in range(len(self._heap))]

    def holds(self, kind: type[TxnRequestHandler]) -> bool:
        """Whether any request of a kind waits."""
        return any(isinstance(handler, kind) for _, _, handler in self._heap)

    def remove(self, is_meant: Callable[[TxnRequestHandler], bool]) -> list[TxnRequestHandler]:
        """Take out some, in no order."""
        removed = [entry for entry in self._heap if is_meant(entry[-1])]
        if removed:
            self._heap = [entry for entry in self._heap if not is_meant(entry[-1])]
            heapq.heapify(self._heap)
        return [handler for _, _, handler in removed]

    # --- coordinators

    def coordinator(self, handler: TxnRequestHandler) -> Node | None:
        """Give the coordinator that a request goes to, if it is known."""
        kind = handler.coordinator_type
        return None if kind is None else self._coordinators.get((kind, handler.coordinator_key))

    def found(self, handler: FindCoordinatorHandler, node: Node) -> None:
        """Note who looks after a key."""
        self._coordinators[handler.key_type, handler.key] = node

    def lookup(self, handler: TxnRequestHandler) -> None:
        """Have the coordinator of a request found anew; asked once, however many need it."""
        kind, key = handler.coordinator_type, handler.coordinator_key
        if kind is None:
            return
        self._coordinators.pop((kind, key), None)
        asked = {
            (waiting.key_type, waiting.key)
            for _, _, waiting in self._heap
            if isinstance(waiting, FindCoordinatorHandler)
        }
        if (kind, key) not in asked:
            result = TransactionalRequestResult("FindCoordinator")
            self.put(FindCoordinatorHandler(result=result, key_type=kind, key=key))
