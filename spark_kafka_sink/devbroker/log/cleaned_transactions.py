"""The state of transactions during cleaning, batch by batch (Kafka's CleanedTransactionMetadata).

Records of aborted transactions are removed. A marker can be removed once no record of its
transaction is left: until then, consumers need it to know how the transaction ended.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from spark_kafka_sink.record.decode import ControlRecordType, decode_control_record

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spark_kafka_sink.devbroker.log.storage.transaction_index import (
        AbortedTxn,
        TransactionIndex,
    )
    from spark_kafka_sink.record.decode import RecordBatch
    from spark_kafka_sink.record.record_batch import RecordBatchHeader


class CleanedTransactions:
    """The transactions that are open at the cleaner's position in the log."""

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        """Start with the aborted transactions in the part of the log that is cleaned."""
        self._coming = deque(sorted(aborted, key=lambda txn: txn.first_offset))
        self._committed: set[int] = set()
        #: By producer id, with whether any of its batches were seen.
        self._aborted: dict[int, tuple[AbortedTxn, bool]] = {}

    def discards(self, header: RecordBatchHeader) -> bool:
        """Return whether the records of a data batch were aborted."""
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        found = self._aborted.get(header.producer_id)
        if found is None:
            self._committed.add(header.producer_id)
            return False
        self._aborted[header.producer_id] = (found[0], True)
        return True

    def may_discard_marker(self, batch: RecordBatch, index: TransactionIndex | None) -> bool:
        """Return whether no record is left of the transaction that a marker ends.

        An aborted transaction with records left is added to `index`, that of the cleaned segment.
        """
        header = batch.header
        self._begin_up_to(header.last_offset)
        if not batch.records:
            return True
        control = decode_control_record(batch.records[0])
        if control.type == ControlRecordType.ABORT:
            aborted, seen = self._aborted.pop(header.producer_id, (None, False))
            if aborted is not None and seen and index is not None:
                index.append(aborted)
            return not seen
        if header.producer_id in self._committed:
            self._committed.discard(header.producer_id)
            return False
        return True

    def _begin_up_to(self, offset: int) -> None:
        while self._coming and self._coming[0].first_offset <= offset:
            aborted = self._coming.popleft()
            self._aborted.setdefault(aborted.producer_id, (aborted, False))
