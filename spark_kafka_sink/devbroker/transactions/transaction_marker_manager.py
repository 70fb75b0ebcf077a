"""The completion of decided transactions: their markers, and the final state of the id.

The counterpart of Kafka's TransactionMarkerChannelManager. Once the outcome is decided, completion
is retried until it succeeds: markers that a partition cannot take now, and the record of the final
state, are written again every 100 ms, so that a full disk or a missing leader delays the completion
but never loses it.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.log.producer_state import TransactionMarker
from spark_kafka_sink.devbroker.transactions.transaction_state import TransactionState
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spark_kafka_sink.devbroker.base.timers import Timers
    from spark_kafka_sink.devbroker.transactions.transaction_metadata import TransactionMetadata
    from spark_kafka_sink.model import TopicPartition

    #: Writes a marker into a partition; raises RefusedError if the partition cannot take it.
    WriteMarker = Callable[[TopicPartition, TransactionMarker], None]

logger = logging.getLogger(__name__)

#: Error codes after which writing a marker is retried, and the delay before the retry
#: (TransactionMarkerRequestCompletionHandler).
_RETRIABLE = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
_MARKER_BACKOFF_MS = 100


class TransactionMarkerManager:
    """Writes the markers of transactions, and completes the transactions."""

    def __init__(
        self,
        timers: Timers,
        *,
        coordinator_epoch: Callable[[str], int],
        write_marker: WriteMarker,
        take_step: Callable[[TransactionMetadata], None],
    ) -> None:
        """Start without transactions.

        `coordinator_epoch` returns the epoch of an id's coordinator; `take_step` replaces the
        metadata of an id, or raises RefusedError.
        """
        self._timers = timers
        self._coordinator_epoch = coordinator_epoch
        self._write_marker = write_marker
        self._take_step = take_step

    def begin(self, decided: TransactionMetadata, now_ms: int, *, delay_ms: int) -> None:
        """Complete a transaction, now or after a delay."""
        if delay_ms:
            self.begin_later(decided, now_ms + delay_ms)
        else:
            self._complete(decided, sorted(decided.partitions), now_ms)

    def begin_later(self, decided: TransactionMetadata, when_ms: int) -> None:
        """Complete a transaction at the given time."""
        self._complete_later(decided, sorted(decided.partitions), when_ms)

    def _complete_later(
        self,
        decided: TransactionMetadata,
        partitions: Sequence[TopicPartition],
        when_ms: int,
        *,
        is_retry: bool = False,
    ) -> None:
        self._timers.schedule(
            when_ms / 1000,
            lambda now: self._complete(decided, partitions, int(now * 1000), is_retry=is_retry),
        )

    def _complete(
        self,
        decided: TransactionMetadata,
        partitions: Sequence[TopicPartition],
        now_ms: int,
        *,
        is_retry: bool = False,
    ) -> None:
        """Write the markers that the partitions can take; schedule a retry for the others.

        Until all markers and the final state are written, the id's metadata remains `decided`.
        """
        marker = TransactionMarker(
            producer_id=decided.producer_id,
            producer_epoch=decided.producer_epoch,
            committed=decided.state is TransactionState.PREPARE_COMMIT,
            coordinator_epoch=self._coordinator_epoch(decided.transactional_id),
            transaction_version=decided.client_version,
            timestamp=now_ms,
        )
        left = []
        problem: RefusedError | None = None
        for partition in partitions:
            try:
                self._write_marker(partition, marker)
            except RefusedError as refused:
                if refused.error_code not in _RETRIABLE:
                    # As in TransactionMarkerRequestCompletionHandler: the partition has seen a
                    # newer epoch, and this transaction is left as it is.
                    logger.warning(
                        "cannot write the markers of %s: %s", decided.transactional_id, refused
                    )
                    return
                left.append(partition)
                problem = refused
        if not left:
            completed = replace(decided)
            completed.complete(now_ms)
            try:
                self._take_step(completed)
            except RefusedError as refused:
                problem = refused
            else:
                return
        if not is_retry:
            logger.warning(
                "cannot complete the transaction of %s, retrying every %d ms: %s",
                decided.transactional_id,
                _MARKER_BACKOFF_MS,
                problem,
            )
        self._complete_later(decided, left, now_ms + _MARKER_BACKOFF_MS, is_retry=True)
