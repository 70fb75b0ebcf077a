"""The transactional half of the producer's public calls (KIP-98).

    producer.init_transactions()
    producer.begin_transaction()
    producer.send(...)
    producer.commit_transaction()        or abort_transaction(), or prepare_transaction()

A call whose wait has timed out can be made again: it goes on waiting for the same operation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.errors import ConfigError, IllegalStateError, TransactionAbortedError
from spark_kafka_sink.producer.sender_metrics import TimedCall

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_kafka_sink.model import (
        ConsumerGroupMetadata,
        OffsetAndMetadata,
        PreparedTransaction,
        TopicPartition,
    )
    from spark_kafka_sink.producer.producer_core import ProducerCore
    from spark_kafka_sink.producer.transaction_manager import TransactionManager


class TransactionalCalls:
    """What a producer with a transactional.id can do besides sending."""

    _core: ProducerCore

    def _check_can_call(self) -> None:
        raise NotImplementedError

    def init_transactions(self) -> None:
        """Get the producer id of transactional.id; call it once, before anything else.

        And once after each `prepare_transaction`, before the next transaction.

        Ends what an earlier producer of this id left open, and fences that one. Raises
        KafkaTimeoutError after max.block.ms, IllegalStateError when called twice, and BrokerError.
        """
        manager = self._manager()
        give_up_at = self._core.give_up_at()
        with self._core.timed(TimedCall.INIT_TRANSACTIONS):
            self._core.await_transaction(manager.initialize_transactions(), give_up_at)

    def begin_transaction(self) -> None:
        """Begin a transaction; raises IllegalStateError while another one is open."""
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

        The offsets are those of the next records to be read. Raises KafkaTimeoutError after
        max.block.ms (called again with equal arguments it goes on waiting for the same request),
        IllegalStateError outside of a transaction, and what the brokers refuse.
        """
        manager = self._manager()
        give_up_at = self._core.give_up_at()
        with self._core.timed(TimedCall.SEND_OFFSETS_TO_TRANSACTION):
            if offsets:
                sent = manager.send_offsets_to_transaction(offsets, group_metadata)
                self._core.await_transaction(sent, give_up_at)

    def prepare_transaction(self) -> PreparedTransaction:
        """Flush, and leave the transaction open for another process to end.

        It is told which one it is. Whoever knows that its end was asked for, or may let it be
        aborted, begins the next one by `init_transactions`; closing the producer leaves it open.
        Raises the error of a record that was not delivered: then abort, or close.
        """
        manager = self._manager()
        with self._core.timed(TimedCall.PREPARE_TRANSACTION):
            self._core.flush(None)
            return manager.prepare_transaction()

    def commit_transaction(self) -> None:
        """Flush, and commit. Raises the error of a record that was not delivered: then abort.

        Raises KafkaTimeoutError after max.block.ms: call it again to go on waiting.
        """
        manager = self._manager()
        give_up_at = self._core.give_up_at()
        with self._core.timed(TimedCall.COMMIT_TRANSACTION):
            committed = self._core.gatherer.end_transaction(manager.begin_commit, give_up_at)
            self._core.await_transaction(committed, give_up_at)

    def abort_transaction(self) -> None:
        """Abort; what is not sent yet is dropped: its futures fail with TransactionAbortedError.

        So are offsets that no broker has seen yet, such as those of a group without a coordinator.

        Raises KafkaTimeoutError after max.block.ms: call it again to go on waiting.
        """
        manager = self._manager()
        give_up_at = self._core.give_up_at()
        with self._core.timed(TimedCall.ABORT_TRANSACTION):
            result = manager.begin_abort()
            # Who writes just now may wait for memory for long: the abort begins meanwhile.
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
