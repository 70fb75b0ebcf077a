"""Helpers shared by the tests of transactions over a network in memory."""

from __future__ import annotations

from spark_kafka_sink.model import ConsumerGroupMetadata, OffsetAndMetadata
from spark_kafka_sink.producer.sending.transaction_state import TransactionState
from tests.support.producer.sender_harness import (
    SenderHarness,
    place,
)

TRANSACTIONAL = {"transactional_id": "orders.7"}
GROUP = ConsumerGroupMetadata("readers", 4, "member-1")
OFFSETS = {place(0): OffsetAndMetadata(70, 3, "note"), place(1): OffsetAndMetadata(80)}
S = TransactionState


def answer_end(harness: SenderHarness, epoch: int) -> None:
    """Respond to EndTxn as the cluster's transaction.version requires."""
    harness.end_txn(epoch=epoch if harness.manager.epochs.is_transaction_v2 else None)


def is_ready(harness: SenderHarness) -> bool:
    """Run a whole transaction; return whether it succeeded."""
    harness.manager.begin_transaction()
    batch = harness.add()
    if not harness.manager.epochs.is_transaction_v2:
        harness.add_partitions()
    harness.step()
    harness.produce()
    result = harness.manager.begin_commit()
    answer_end(harness, epoch=batch.producer_id_and_epoch.epoch + 1)
    result.wait(0)
    return batch.result.error is None
