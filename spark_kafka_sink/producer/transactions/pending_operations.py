"""The operations that a caller has begun and whose outcome it has not received.

After a timeout the caller repeats the call, and waits for the same operation. Until the outcome is
received, no other operation may begin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.errors import IllegalStateError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_kafka_sink.model import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
    from spark_kafka_sink.producer.transactions.transaction_state import TransactionState
    from spark_kafka_sink.producer.transactions.transactional_request_result import (
        TransactionalRequestResult,
    )


class _PendingOffsets(NamedTuple):
    """Offsets that were sent to a transaction, and their result."""

    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    group_metadata: ConsumerGroupMetadata
    result: TransactionalRequestResult


class PendingOperations:
    """The caller's latest operation, and the offsets it has sent to the open transaction."""

    def __init__(self) -> None:
        """Start without an operation."""
        #: The latest operation, and the state that it led to.
        self._latest: tuple[TransactionalRequestResult, TransactionState] | None = None
        self._offsets: list[_PendingOffsets] = []

    # --- operations that change the state

    def begin(self, result: TransactionalRequestResult, target: TransactionState) -> None:
        """Record an operation that has begun and led to the state `target`."""
        self._latest = (result, target)

    def pending(self, target: TransactionState) -> TransactionalRequestResult | None:
        """Return the pending operation if it led to the state `target`, for another wait."""
        if self._latest is None:
            return None
        result, state = self._latest
        return result if state is target and not result.is_acked else None

    def raise_if_pending(self, operation: str, *, offsets: bool = False) -> None:
        """Raise IllegalStateError for `operation` if the outcome of another one is not known.

        With `offsets`, those that were sent to the transaction count, too.
        """
        results = [] if self._latest is None else [self._latest[0]]
        if offsets:
            results += [each.result for each in self._offsets]
        for result in results:
            if not result.is_acked:
                raise IllegalStateError(
                    f"{operation} is not possible while the outcome of {result.operation} is "
                    f"unknown: call {result.operation} again to wait for it"
                )
        self._latest = None

    def fail(self, error: Exception) -> None:
        """Fail the latest operation, unless it has ended already."""
        if self._latest is not None:
            self._latest[0].fail(error)

    # --- offsets

    def add_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group_metadata: ConsumerGroupMetadata,
        result: TransactionalRequestResult,
    ) -> None:
        """Record offsets that were sent to the open transaction."""
        self._offsets.append(_PendingOffsets(dict(offsets), group_metadata, result))

    def pending_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group_metadata: ConsumerGroupMetadata,
    ) -> TransactionalRequestResult | None:
        """Return the pending operation with equal arguments, for another wait."""
        self._offsets = [each for each in self._offsets if not each.result.is_acked]
        for each in self._offsets:
            if each.offsets == offsets and each.group_metadata == group_metadata:
                return each.result
        return None

    def forget_offsets(self) -> None:
        """Forget the offsets of earlier transactions."""
        self._offsets.clear()
