"""The transactional half of the producer's calls (KIP-98); `KafkaProducer` documents each of them.

It waits for the results of TransactionManager, and keeps apart the records of two transactions.
After a timeout the call can be repeated: it continues to wait for the same operation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.errors import ConfigError, IllegalStateError, TransactionAbortedError
from spark_kafka_sink.producer.measures.sender_metrics import TimedCall

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_kafka_sink.model import (
        ConsumerGroupMetadata,
        OffsetAndMetadata,
        PreparedTransaction,
        TopicPartition,
    )
    from spark_kafka_sink.producer.producer_core import ProducerCore
    from spark_kafka_sink.producer.transactions.transaction_manager import TransactionManager


class TransactionalCalls:
    """The transactional calls of one producer."""

    def __init__(self, core: ProducerCore) -> None:
        """Create the calls of the producer with these parts, with or without transactional.id."""
        self._core = core

    def init_transactions(self, transactional_id: str | None = None) -> None:
        """Request the producer id, of another transactional id if one is given, and wait for it."""
        manager = self._manager()
        give_up_at = self._core.give_up_at()
        with self._core.timed(TimedCall.INIT_TRANSACTIONS):
            self._core.find_brokers(give_up_at)
            self._core.await_transaction(
                manager.initialize_transactions(transactional_id), give_up_at
            )

    def begin_transaction(self) -> None:
        """Begin a transaction once no thread is writing records of the last one."""
        with self._core.timed(TimedCall.BEGIN_TRANSACTION):
            self._core.gatherer.begin_transaction(
                self._manager().begin_transaction,
                IllegalStateError(
                    "the record was sent while its transaction was ending: send it again in the "
                    "next transaction"
                ),
                self._core.give_up_at(),
            )

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group_metadata: ConsumerGroupMetadata,
    ) -> None:
        """Send a consumer group's offsets, and wait until the brokers have accepted them."""
        manager = self._manager()
        give_up_at = self._core.give_up_at()
        with self._core.timed(TimedCall.SEND_OFFSETS_TO_TRANSACTION):
            if offsets:
                sent = manager.send_offsets_to_transaction(offsets, group_metadata)
                self._core.await_transaction(sent, give_up_at)

    def prepare_transaction(self) -> PreparedTransaction:
        """Flush, and return the open transaction."""
        manager = self._manager()
        with self._core.timed(TimedCall.PREPARE_TRANSACTION):
            self._core.flush(None)
            return manager.prepare_transaction()

    def commit_transaction(self) -> None:
        """Write the staged records, commit, and wait for the end."""
        manager = self._manager()
        give_up_at = self._core.give_up_at()
        with self._core.timed(TimedCall.COMMIT_TRANSACTION):
            committed = self._core.gatherer.end_transaction(manager.begin_commit, give_up_at)
            self._core.await_transaction(committed, give_up_at)

    def abort_transaction(self) -> None:
        """Abort, drop what has not been sent, and wait for the end."""
        manager = self._manager()
        give_up_at = self._core.give_up_at()
        with self._core.timed(TimedCall.ABORT_TRANSACTION):
            result = manager.begin_abort()
            # A thread that is writing may wait long for memory: the abort begins meanwhile.
            self._core.wake_network_thread()
            self._core.gatherer.abort(
                TransactionAbortedError(
                    "the record was not sent because its transaction was aborted"
                ),
                give_up_at,
            )
            self._core.await_transaction(result, give_up_at)

    def _manager(self) -> TransactionManager:
        manager = self._core.transaction_manager
        if manager is None or not self._core.is_transactional:
            raise ConfigError("transactions require transactional.id to be set")
        return manager
