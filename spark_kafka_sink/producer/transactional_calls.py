"""The transactional half of the producer's public calls (KIP-98).

    producer.init_transactions()
    producer.begin_transaction()
    producer.send(...)
    producer.commit_transaction()        or abort_transaction(), or prepare_transaction()

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
    """The methods of a producer with a transactional.id, besides those for sending."""

    _core: ProducerCore

    def _check_can_call(self) -> None:
        raise NotImplementedError

    def init_transactions(self) -> None:
        """Initialize the producer id of transactional.id; call this once, before any other call.

        Call it again after each `prepare_transaction`, before the next transaction.

        It ends any transaction that an earlier producer with this transactional.id left open, and
        fences that producer. Raises KafkaTimeoutError after max.block.ms, IllegalStateError when
        called twice, and BrokerError.
        """
        manager = self._manager()
        give_up_at = self._core.give_up_at()
        with self._core.timed(TimedCall.INIT_TRANSACTIONS):
            self._core.await_transaction(manager.initialize_transactions(), give_up_at)

    def begin_transaction(self) -> None:
        """Begin a transaction; raise IllegalStateError while another one is open."""
        with self._core.timed(TimedCall.BEGIN_TRANSACTION):
            self._core.gatherer.begin_transaction(
                self._manager().begin_transaction,
                IllegalStateError(
                    "the record was sent while its transaction ended: send it again in the next one"
                ),
                self._core.give_up_at(),
            )

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group_metadata: ConsumerGroupMetadata,
    ) -> None:
        """Commit a consumer group's offsets with this transaction.

        `offsets` are those of the next records to read; `group_metadata` names the group. Raises
        KafkaTimeoutError after max.block.ms (a repeated call with equal arguments continues to wait
        for the same request), IllegalStateError outside of a transaction, and BrokerError for
        offsets that the brokers refuse.
        """
        manager = self._manager()
        give_up_at = self._core.give_up_at()
        with self._core.timed(TimedCall.SEND_OFFSETS_TO_TRANSACTION):
            if offsets:
                sent = manager.send_offsets_to_transaction(offsets, group_metadata)
                self._core.await_transaction(sent, give_up_at)

    def prepare_transaction(self) -> PreparedTransaction:
        """Flush, and return the open transaction in a form that another process can end.

        Call `init_transactions` before the next transaction, but only once the other process has
        requested the end of this one: it aborts a transaction that is still open. Closing the
        producer leaves the transaction open. Raises the error of a record that was not delivered:
        then abort, or close.
        """
        manager = self._manager()
        with self._core.timed(TimedCall.PREPARE_TRANSACTION):
            self._core.flush(None)
            return manager.prepare_transaction()

    def commit_transaction(self) -> None:
        """Flush and commit; raise the error of a record that was not delivered: then abort.

        Raises KafkaTimeoutError after max.block.ms: call it again to continue waiting.
        """
        manager = self._manager()
        give_up_at = self._core.give_up_at()
        with self._core.timed(TimedCall.COMMIT_TRANSACTION):
            committed = self._core.gatherer.end_transaction(manager.begin_commit, give_up_at)
            self._core.await_transaction(committed, give_up_at)

    def abort_transaction(self) -> None:
        """Abort the transaction; unsent records fail with TransactionAbortedError.

        Offsets that no broker has received yet, such as those of a group without a coordinator, are
        dropped, too.

        Raises KafkaTimeoutError after max.block.ms: call it again to continue waiting.
        """
        manager = self._manager()
        give_up_at = self._core.give_up_at()
        with self._core.timed(TimedCall.ABORT_TRANSACTION):
            result = manager.begin_abort()
            # A thread that is writing may wait long for memory: the abort begins meanwhile.
            self._core.wake_network_thread()
            self._core.gatherer.abort(
                TransactionAbortedError("the record was not sent: its transaction was aborted"),
                give_up_at,
            )
            self._core.await_transaction(result, give_up_at)

    def _manager(self) -> TransactionManager:
        self._check_can_call()
        manager = self._core.transaction_manager
        if manager is None or not self._core.is_transactional:
            raise ConfigError("transactions need transactional.id to be set")
        return manager
