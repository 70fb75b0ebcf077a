"""Keeps the order of each partition whole across retries: the idempotent half of a producer.

It decides which batch may go next and what an answer means for the order of a partition; it sends
nothing, reads no clock, and knows no lock: TransactionManager guards it. The rules are those of
Kafka's TransactionManager (canRetry, handleFailedBatch, maybeResolveSequences) but for `may_drain`
and for the moment of a restart, where the differences are explained.

A topic that is deleted and created again (another topic id, KIP-516) has an empty log. Java sends
the next number there, which brokers of 4.5 and newer refuse (KAFKA-15591), and older ones accept
from any batch that comes first, so that the retry of the one before it is refused for ever. Here an
idempotent producer starts the partition anew, as franz-go does. A transactional one keeps its
numbers, since within one epoch the broker would take new batches for duplicates of earlier ones.
Both count no acknowledgement of the deleted log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.model import (
    NO_PRODUCER_ID_AND_EPOCH,
    NO_SEQUENCE,
    UNKNOWN_OFFSET,
    ProducerIdAndEpoch,
)
from spark_kafka_sink.producer.txn_partition_map import TxnPartitionMap, increment_sequence
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from spark_kafka_sink.model import TopicPartition
    from spark_kafka_sink.network.metadata import TopicMetadata
    from spark_kafka_sink.producer.producer_batch import ProducerBatch
    from spark_kafka_sink.producer.txn_partition_map import TxnPartitionEntry

#: Batches of each producer that a broker keeps in mind for a partition (ProducerStateEntry).
REMEMBERED_BATCHES = 5
MAX_EPOCH = 2**15 - 1


class PartitionSequences:
    """The producer's id and epoch, and each partition's sequence numbers."""

    def __init__(self, *, is_transactional: bool) -> None:
        """Start without a producer id."""
        self.producer_id_and_epoch = NO_PRODUCER_ID_AND_EPOCH
        self._is_transactional = is_transactional
        self._partitions = TxnPartitionMap()
        self._restarting: set[TopicPartition] = set()
        self._unresolved: set[TopicPartition] = set()
        #: Partitions of topics that were, or may have been, created again, until their numbers fit
        #: the new log.
        self._replaced: set[TopicPartition] = set()
        #: The topics that were looked at last, and the ids that were known then.
        self._topics: Mapping[str, TopicMetadata] = {}
        self._topic_ids: dict[str, UUID] = {}

    # --- topics

    def follow_topics(self, topics: Mapping[str, TopicMetadata]) -> None:
        """Note which topics have another id than before: their logs have nothing of ours."""
        if topics is self._topics:
            return
        self._topics = topics
        for name, topic in topics.items():
            # All zero: not known, or the broker is older than topic ids.
            if not topic.topic_id.int:
                continue
            if self._topic_ids.get(name, topic.topic_id) != topic.topic_id:
                for topic_partition, _ in self._partitions.of_topic(name):
                    self._note_replaced(topic_partition)
            self._topic_ids[name] = topic.topic_id

    def _note_replaced(self, topic_partition: TopicPartition) -> None:
        self._partitions.entry(topic_partition).log_replaced = True
        self._replaced.add(topic_partition)

    def _withdraw_restarts(self) -> None:
        """Keep the numbers of partitions whose log may be another one and may have a batch of ours.

        A request that was lost since new numbers were asked for may have reached the new log. It
        goes again with its old number first; see `_leave_replaced_logs`.
        """
        for topic_partition in list(self._restarting):
            entry = self._partitions.entry(topic_partition)
            if not (entry.is_quiet and entry.may_have_unanswered):
                continue
            if entry.restarted_for in entry.in_flight:
                self._note_replaced(topic_partition)
            if entry.log_replaced:
                entry.restart_requested = False
                self._restarting.discard(topic_partition)

    def _leave_replaced_logs(self) -> None:
        """Make the numbers of partitions fit their new logs, where nothing is with a broker.

        A batch that may be in is sent with its old number first: where Produce names no topic ids,
        it may be in the new log.
        """
        for topic_partition in list(self._replaced):
            entry = self._partitions.entry(topic_partition)
            if not entry.is_quiet:
                continue
            entry.forget_acknowledged()
            if not self._is_transactional:
                if entry.may_have_unanswered:
                    continue
                self._request_restart(topic_partition)
            entry.log_replaced = False
            self._replaced.discard(topic_partition)

    # --- the way out

    def may_drain(self, first: ProducerBatch) -> bool:
        """Whether a partition's first queued batch may be sent now; see `TransactionManager`."""
        entry = self._partitions.entry(first.topic_partition)
        if entry.restart_requested:
            return False
        in_flight = entry.in_flight
        if entry.log_replaced:
            return bool(in_flight) and in_flight[0] is first and entry.is_quiet
        if not first.has_sequence and (
            entry.unresolved_sequence is not None
            or (in_flight and entry.producer_id_and_epoch != self.producer_id_and_epoch)
        ):
            return False
        if not in_flight or in_flight[0] is first:
            return True
        return (
            not first.has_sequence
            and entry.last_acked_sequence != NO_SEQUENCE
            # With none on its way overtaken by one behind it.
            and entry.is_next_sequence(in_flight[0].base_sequence)
            and in_flight[0].attempts == 0
            and len(in_flight) < REMEMBERED_BATCHES
        )

    def assign(self, batch: ProducerBatch) -> None:
        """Give a batch that is drained for the first time the next sequence numbers."""
        if not batch.has_sequence:
            self._partitions.entry(batch.topic_partition).assign(
                batch, self.producer_id_and_epoch, is_transactional=self._is_transactional
            )

    def in_retry_order(self, batches: Sequence[ProducerBatch]) -> list[ProducerBatch]:
        """Sort batches of one partition that wait for a retry by their sequence numbers."""
        in_flight = self._partitions.entry(batches[0].topic_partition).in_flight
        return sorted(batches, key=in_flight.index)

    def split(self, batch: ProducerBatch, parts: Sequence[ProducerBatch]) -> None:
        """Let parts take over the sequence numbers of a batch the broker found too large."""
        if not batch.has_sequence:
            return
        in_flight = self._partitions.entry(batch.topic_partition).in_flight
        sequence = batch.base_sequence
        for part in parts:
            part.set_producer_state(
                batch.producer_id_and_epoch, sequence, is_transactional=batch.is_transactional
            )
            sequence = increment_sequence(sequence, part.record_count)
        position = in_flight.index(batch)
        in_flight[position : position + 1] = parts

    # --- answers

    def acknowledge(self, batch: ProducerBatch) -> None:
        """Note that the broker has a batch."""
        self._partitions.entry(batch.topic_partition).acknowledge(batch)

    def note_offset(self, batch: ProducerBatch, base_offset: int) -> None:
        """Note where a batch was appended."""
        if base_offset != UNKNOWN_OFFSET:
            entry = self._partitions.entry(batch.topic_partition)
            last_offset = base_offset + batch.record_count - 1
            entry.last_acked_offset = max(entry.last_acked_offset, last_offset)

    def remove(self, batch: ProducerBatch) -> None:
        """Note that a batch will not be sent again."""
        if batch.has_sequence:
            self._partitions.entry(batch.topic_partition).remove(batch)

    def can_retry(self, batch: ProducerBatch, code: int, log_start_offset: int) -> bool:
        """Whether a batch answered OUT_OF_ORDER_SEQUENCE_NUMBER or UNKNOWN_PRODUCER_ID goes again.

        Most such answers are explained, and the batch goes again as it is or with new numbers. One
        that is not shows that the broker has lost records it had acknowledged: an idempotent
        producer goes on with a new epoch (KIP-360), a transaction must be aborted. A batch that is
        refused even as the first one of an epoch, which no broker may refuse, fails.

        So does one that may be in already, where Java sends it with a new number: of what it
        remembers of a producer, a broker keeps the last batch alone through a restart, and answers
        out of order to the others. They would be there twice. And so does one before another that
        may be in: where the topic was created again, and its new id is not known yet, the new log
        may have begun with that one.
        """
        entry = self._partitions.entry(batch.topic_partition)
        if self._is_transactional and entry.has_gap:
            return False
        if entry.restart_requested or (entry.log_replaced and not entry.may_have_unanswered):
            # An answer to the old numbers, as all of the partition's will be.
            return True
        if code == ErrorCode.UNKNOWN_PRODUCER_ID:
            return self._can_retry_unknown(entry, batch, log_start_offset)
        if entry.unresolved_sequence is None:
            # Unless it is the next, one before it is on its way, and it goes again in its turn.
            is_gap = entry.is_next_sequence(batch.base_sequence)
        else:
            # If it follows the batch that was given up, that one is not in; else wait for it.
            is_gap = batch.base_sequence == entry.unresolved_sequence
        return not is_gap or (not self._is_transactional and self._restart_for(entry, batch))

    def _can_retry_unknown(
        self, entry: TxnPartitionEntry, batch: ProducerBatch, log_start_offset: int
    ) -> bool:
        if log_start_offset < 0:
            # The partition has just moved: its new leader will say where its log begins.
            return True
        if self._is_transactional and entry.last_acked_offset >= log_start_offset:
            return False
        # Retention has deleted all that was ours, and with it what the broker knew of us; or, of
        # an idempotent producer, it has been lost otherwise.
        return self._restart_for(entry, batch)

    def _restart_for(self, entry: TxnPartitionEntry, batch: ProducerBatch) -> bool:
        if entry.restarted_for is batch or batch.may_be_in or entry.log_replaced:
            return False
        if entry.may_have_unanswered:
            # The new log, if it is one, may have begun with a batch behind this one.
            self._note_replaced(batch.topic_partition)
            return False
        entry.restarted_for = batch
        self._request_restart(batch.topic_partition)
        return True

    def _request_restart(self, topic_partition: TopicPartition) -> None:
        self._partitions.entry(topic_partition).restart_requested = True
        self._restarting.add(topic_partition)

    def fail(self, batch: ProducerBatch, *, outcome_known: bool) -> None:
        """Note that a batch with a number has failed, and what that means for those behind it.

        Refused for certain (`outcome_known`), it leaves a gap: the partition starts anew. Otherwise
        it may be in: wait for what the answers to those behind it tell.
        """
        entry = self._partitions.entry(batch.topic_partition)
        entry.remove(batch)
        if self._is_transactional:
            entry.has_gap = True
        elif outcome_known and not batch.may_be_in:
            # Numbers for a new log have to wait for a batch that may be in it with its old one.
            if not (entry.log_replaced and entry.may_have_unanswered):
                self._request_restart(batch.topic_partition)
        else:
            entry.mark_unresolved(batch)
            self._unresolved.add(batch.topic_partition)

    def resolve(self) -> None:
        """Look whether batches that were given up have turned out to be in; else start anew."""
        for topic_partition in list(self._unresolved):
            entry = self._partitions.entry(topic_partition)
            if entry.in_flight:
                continue
            self._unresolved.discard(topic_partition)
            entry.unresolved_sequence = None
            if not entry.is_next_sequence(entry.next_sequence):
                self._request_restart(topic_partition)

    # --- epochs

    def restart_quiet_partitions(self) -> bool:
        """Start anew where nothing is with a broker; False if the producer needs a new id first.

        An idempotent producer raises its epoch by itself: a number is never used twice within one.
        In a transaction the numbers start anew within the epoch, for the broker has forgotten it.
        """
        self._withdraw_restarts()
        self._leave_replaced_logs()
        quiet = [tp for tp in self._restarting if self._partitions.entry(tp).is_quiet]
        if not quiet or not self.producer_id_and_epoch.is_valid:
            return True
        entries = [self._partitions.entry(tp) for tp in quiet]
        producer_id, epoch = self.producer_id_and_epoch
        if not self._is_transactional and any(
            entry.producer_id_and_epoch == self.producer_id_and_epoch for entry in entries
        ):
            if epoch == MAX_EPOCH:
                self.producer_id_and_epoch = NO_PRODUCER_ID_AND_EPOCH
                return False
            self.producer_id_and_epoch = ProducerIdAndEpoch(producer_id, epoch + 1)
        for entry in entries:
            entry.restart(self.producer_id_and_epoch)
        self._restarting.difference_update(quiet)
        self._unresolved.difference_update(quiet)
        return True

    def reset(self) -> None:
        """Forget all numbers: the producer has a new epoch, and nothing is in flight."""
        self._partitions.reset()
        self._restarting.clear()
        self._unresolved.clear()
        self._replaced.clear()
