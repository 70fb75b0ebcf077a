"""The order of each partition across retries: the idempotent half of a producer.

It decides which batch may be sent next and what an answer means for the order of a partition. It
sends nothing and reads no clock. TransactionManager's lock guards it: the methods that other
classes call take the lock, and the others are called with it held. The rules are those of Kafka's
TransactionManager (canRetry, handleFailedBatch, maybeResolveSequences) except `may_drain` and the
time of a restart, where the differences are explained.

A recreated topic (a new topic id, KIP-516) has an empty log. Java continues with the next number
there. Brokers from 4.5 on refuse it (KAFKA-15591); older ones accept any number in the first batch
to arrive, so that every retry of an earlier batch is refused. Here an idempotent producer
restarts the partition, as franz-go does. A transactional one keeps its numbers, because within one
epoch the broker would take new batches for duplicates of earlier ones. Both discard the
acknowledged state of the deleted log.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark_kafka_sink.model import (
    NO_PRODUCER_ID_AND_EPOCH,
    NO_SEQUENCE,
    UNKNOWN_OFFSET,
    ProducerIdAndEpoch,
)
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from spark_kafka_sink.model import TopicPartition
    from spark_kafka_sink.network.metadata import TopicMetadata
    from spark_kafka_sink.producer.batch.producer_batch import ProducerBatch

#: Sequence numbers wrap from 2**31 - 1 to 0.
SEQUENCE_MODULUS = 2**31
#: Batches of each producer that a broker remembers per partition (ProducerStateEntry).
REMEMBERED_BATCHES = 5
MAX_EPOCH = 2**15 - 1


def increment_sequence(sequence: int, increment: int) -> int:
    """Add to a sequence number, wrapping as Kafka's DefaultRecordBatch does."""
    return (sequence + increment) % SEQUENCE_MODULUS


def is_older_sequence(sequence: int, than: int) -> bool:
    """Return whether a number was assigned before another one, allowing for wrap-around."""
    # Half of the range is far more than can ever be in flight.
    return sequence != than and increment_sequence(than, -sequence) < SEQUENCE_MODULUS // 2


@dataclass(slots=True)
class TxnPartitionEntry:
    """The sequence numbers of one partition (Kafka's TxnPartitionEntry).

    A broker accepts an idempotent producer's batches only in the order of their sequence numbers. A
    batch gets its number when it is first drained and keeps it through every retry. From then on it
    counts as in flight until it is acknowledged or has failed for good, even while it waits for a
    retry.

    Numbers change only if the partition *restarts*: an earlier batch was lost or refused, so that
    there would remain a gap, or the topic was recreated and its log is empty. The batches in flight
    then get numbers from 0 and the producer's newest epoch (KIP-360). Unlike Java, a restart waits
    until every batch sent to a broker has been answered: an answer for the old numbers must never
    be taken for one for the new ones.
    """

    #: The producer id and epoch that the numbers belong to.
    producer_id_and_epoch: ProducerIdAndEpoch = NO_PRODUCER_ID_AND_EPOCH
    next_sequence: int = 0
    #: The first number of this producer in the partition's current log.
    first_sequence: int = 0
    #: The last acknowledged number in the current log; NO_SEQUENCE if there is none.
    last_acked_sequence: int = NO_SEQUENCE
    #: Distinguishes a broker that deleted our records, and our state, from one that lost them.
    last_acked_offset: int = UNKNOWN_OFFSET
    #: Batches that have a sequence number and are not done, in the order of assignment.
    in_flight: list[ProducerBatch] = field(default_factory=list)
    #: The number after a batch that was given up with an unknown outcome; None if there is none.
    unresolved_sequence: int | None = None
    #: Whether numbers must be reassigned once no batch is waiting for an answer.
    restart_requested: bool = False
    #: The batch that caused the last restart: a broker that refuses it again will always do so.
    restarted_for: ProducerBatch | None = None
    #: Whether a numbered batch failed in the open transaction, so that no others can follow it.
    has_gap: bool = False
    #: Whether the topic was recreated while batches still have numbers for the deleted log.
    log_replaced: bool = False
    #: In a transaction, the first number that a refused batch has left unused, if the batches after
    #: it have not moved up yet.
    unused_from: int | None = None

    def is_next_sequence(self, sequence: int) -> bool:
        """Return whether everything before `sequence` has been acknowledged."""
        if self.last_acked_sequence == NO_SEQUENCE:
            return sequence == self.first_sequence
        return sequence == increment_sequence(self.last_acked_sequence, 1)

    @property
    def is_quiet(self) -> bool:
        """Whether no batch is waiting for an answer from a broker."""
        return not any(batch.is_in_flight for batch in self.in_flight)

    @property
    def may_have_unanswered(self) -> bool:
        """Whether a broker may have a batch that it has not acknowledged."""
        return any(batch.may_be_appended for batch in self.in_flight)

    def assign(
        self, batch: ProducerBatch, producer: ProducerIdAndEpoch, *, is_transactional: bool
    ) -> None:
        """Assign the next numbers to a batch; from 0 if the producer id or epoch has changed."""
        if self.producer_id_and_epoch != producer and not self.in_flight:
            self.restart(producer)
        batch.set_producer_state(
            self.producer_id_and_epoch, self.next_sequence, is_transactional=is_transactional
        )
        self.next_sequence = increment_sequence(self.next_sequence, batch.record_count)
        self.in_flight.append(batch)

    def restart(self, producer: ProducerIdAndEpoch) -> None:
        """Assign numbers from 0 to all batches in flight, and to those that follow."""
        sequence = 0
        for batch in self.in_flight:
            batch.set_producer_state(producer, sequence, is_transactional=batch.is_transactional)
            sequence = increment_sequence(sequence, batch.record_count)
        self.producer_id_and_epoch = producer
        self.next_sequence = sequence
        self.first_sequence = 0
        self.last_acked_sequence = NO_SEQUENCE
        self.unresolved_sequence = None
        self.restart_requested = False
        self.has_gap = False
        self.unused_from = None

    def has_unused_before(self, batch: ProducerBatch) -> bool:
        """Return whether a batch will get another number, as some before it are unused."""
        return self.unused_from is not None and not is_older_sequence(
            batch.base_sequence, self.unused_from
        )

    def move_up(self) -> None:
        """Assign the unused numbers to the batches after them."""
        if self.unused_from is None:
            return
        moved = [batch for batch in self.in_flight if self.has_unused_before(batch)]
        self.next_sequence, self.unused_from = self.unused_from, None
        for batch in moved:
            batch.set_producer_state(
                batch.producer_id_and_epoch,
                self.next_sequence,
                is_transactional=batch.is_transactional,
            )
            self.next_sequence = increment_sequence(self.next_sequence, batch.record_count)

    def forget_acknowledged(self) -> None:
        """Reset the acknowledged state: the current log has no such batch; the numbers continue."""
        self.first_sequence = (
            self.in_flight[0].base_sequence if self.in_flight else self.next_sequence
        )
        self.last_acked_sequence = NO_SEQUENCE
        self.last_acked_offset = UNKNOWN_OFFSET

    def acknowledge(self, batch: ProducerBatch) -> None:
        """Record that the broker has a batch."""
        if not self.remove(batch):
            return
        last = increment_sequence(batch.base_sequence, batch.record_count - 1)
        if self.last_acked_sequence == NO_SEQUENCE or not is_older_sequence(
            last, self.last_acked_sequence
        ):
            self.last_acked_sequence = last

    def remove(self, batch: ProducerBatch) -> bool:
        """Remove a batch; return False if it was not in flight."""
        if batch not in self.in_flight:
            return False
        self.in_flight.remove(batch)
        return True

    def mark_unresolved(self, batch: ProducerBatch) -> None:
        """Record that it will never be known whether the broker has this batch."""
        following = increment_sequence(batch.base_sequence, batch.record_count)
        known = self.unresolved_sequence
        if known is None or is_older_sequence(known, following):
            self.unresolved_sequence = following


class PartitionSequences:
    """The producer's id and epoch, and the sequence numbers of each partition."""

    def __init__(self, lock: threading.RLock, *, is_transactional: bool) -> None:
        #: That of the manager, which guards its other parts, too.
        self.lock = lock
        self.producer_id_and_epoch = NO_PRODUCER_ID_AND_EPOCH
        self._is_transactional = is_transactional
        #: The entries of all partitions; a new one starts at 0.
        self._partitions: defaultdict[TopicPartition, TxnPartitionEntry] = defaultdict(
            TxnPartitionEntry
        )
        self._restarting: set[TopicPartition] = set()
        #: Partitions whose batches in flight get numbers that a refused batch has left unused.
        self._moving_up: set[TopicPartition] = set()
        self._unresolved: set[TopicPartition] = set()
        #: Partitions of topics that were, or may have been, recreated, until their numbers fit the
        #: new log.
        self._replaced: set[TopicPartition] = set()
        #: The topics checked last, and the ids known at that time.
        self._topics: Mapping[str, TopicMetadata] = {}
        self._topic_ids: dict[str, UUID] = {}

    # --- topics

    def follow_topics(self, topics: Mapping[str, TopicMetadata]) -> None:
        """Find topics with a new id: their logs contain nothing from this producer."""
        with self.lock:
            if topics is self._topics:
                return
            self._topics = topics
            for name, topic in topics.items():
                # All zeros: unknown, or the broker is older than topic ids.
                if not topic.topic_id.int:
                    continue
                if self._topic_ids.get(name, topic.topic_id) != topic.topic_id:
                    for topic_partition in self._partitions:
                        if topic_partition.topic == name:
                            self._note_replaced(topic_partition)
                self._topic_ids[name] = topic.topic_id

    def _note_replaced(self, topic_partition: TopicPartition) -> None:
        self._partitions[topic_partition].log_replaced = True
        self._replaced.add(topic_partition)

    def _withdraw_restarts(self) -> None:
        """Keep the numbers of partitions whose log may be new and may contain one of our batches.

        A request that was lost after the restart was requested may have reached the new log. Its
        batch is first resent with the old number; see `_leave_replaced_logs`.
        """
        for topic_partition in list(self._restarting):
            entry = self._partitions[topic_partition]
            if not (entry.is_quiet and entry.may_have_unanswered):
                continue
            if entry.restarted_for in entry.in_flight:
                self._note_replaced(topic_partition)
            if entry.log_replaced:
                entry.restart_requested = False
                self._restarting.discard(topic_partition)

    def _leave_replaced_logs(self) -> None:
        """Adapt the numbers of partitions to their new logs, where no request is unanswered.

        A batch that may have been appended is first resent with its old number: if Produce names no
        topic ids, it may be in the new log.
        """
        for topic_partition in list(self._replaced):
            entry = self._partitions[topic_partition]
            if not entry.is_quiet:
                continue
            entry.forget_acknowledged()
            if not self._is_transactional:
                if entry.may_have_unanswered:
                    continue
                self._request_restart(topic_partition)
            entry.log_replaced = False
            self._replaced.discard(topic_partition)

    # --- sending

    def may_drain(self, first: ProducerBatch) -> bool:
        """Return whether a partition's first queued batch may be sent now.

        A batch that was never sent waits while older ones have another epoch, or were given up with
        an unknown outcome (RecordAccumulator.shouldStopDrainBatchesForPartition).

        A retried batch is sent when it is the oldest one in flight: the broker would refuse any
        other as out of order. A batch that was never sent must wait in four more cases in which
        Java sends it, because every retry of an older one might then be refused:

        - Nothing in the partition has been acknowledged yet, or nothing since its topic was
          recreated. A broker that does not know a producer accepts any sequence number in its first
          batch. If it refused the first batch for a moment, as the leader of a new topic does, the
          second would be accepted as the first.
        - An older one is being retried.
        - A newer one was acknowledged before an older one, because the leader has moved while the
          old leader still owes an answer.
        - Five are in flight. A broker recognizes duplicates only among the last five batches. (They
          are counted here, because a connection also counts answers that were not processed yet.)
        """
        entry = self._partitions[first.topic_partition]
        if entry.restart_requested or entry.unused_from is not None:
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
            # None of those in flight has been overtaken by a later batch.
            and entry.is_next_sequence(in_flight[0].base_sequence)
            and in_flight[0].attempts == 0
            and len(in_flight) < REMEMBERED_BATCHES
        )

    def assign(self, batch: ProducerBatch) -> None:
        """Assign the next sequence numbers to a batch that is drained for the first time."""
        with self.lock:
            if not batch.has_sequence:
                self._partitions[batch.topic_partition].assign(
                    batch, self.producer_id_and_epoch, is_transactional=self._is_transactional
                )

    def in_retry_order(self, batches: Sequence[ProducerBatch]) -> list[ProducerBatch]:
        """Return the batches of one partition that await a retry, sorted by sequence number."""
        with self.lock:
            in_flight = self._partitions[batches[0].topic_partition].in_flight
            return sorted(batches, key=in_flight.index)

    def split(self, batch: ProducerBatch, parts: Sequence[ProducerBatch]) -> None:
        """Assign a batch's sequence numbers to the parts it was split into."""
        with self.lock:
            if not batch.has_sequence:
                return
            in_flight = self._partitions[batch.topic_partition].in_flight
            sequence = batch.base_sequence
            for part in parts:
                part.set_producer_state(
                    batch.producer_id_and_epoch, sequence, is_transactional=batch.is_transactional
                )
                sequence = increment_sequence(sequence, part.record_count)
            position = in_flight.index(batch)
            in_flight[position : position + 1] = parts

    def may_set_aside(self, batch: ProducerBatch) -> bool:
        """Return whether a batch that was refused may be replaced; see `set_aside`."""
        if not self._is_transactional:
            return True
        with self.lock:
            entry = self._partitions[batch.topic_partition]
            if entry.has_gap or entry.log_replaced or batch not in entry.in_flight:
                return False
            behind = entry.in_flight[entry.in_flight.index(batch) + 1 :]
            return not any(other.may_be_appended for other in behind)

    def set_aside(self, batch: ProducerBatch, rest: ProducerBatch | None) -> None:
        """Replace a batch that was refused, and so has left numbers unused, by its other records.

        An idempotent producer restarts the partition. A transaction has one epoch, in which the
        batches behind move up to the unused numbers, once all of them have been answered. None of
        them is in the log then: a broker accepts no batch after a gap. One that was not answered
        might still be on its way, and be accepted when its old number is the next one, so that its
        records would be there twice. So `may_set_aside` forbids that, and `loses_number` to wait
        for it.
        """
        with self.lock:
            if not batch.has_sequence:
                return
            entry = self._partitions[batch.topic_partition]
            position = entry.in_flight.index(batch)
            entry.in_flight[position : position + 1] = [] if rest is None else [rest]
            if rest is not None:
                # The batch may have moved up itself while it was divided.
                rest.set_producer_state(
                    batch.producer_id_and_epoch,
                    batch.base_sequence,
                    is_transactional=batch.is_transactional,
                )
            if self._is_transactional:
                if not entry.has_unused_before(batch):
                    entry.unused_from = batch.base_sequence
                self._moving_up.add(batch.topic_partition)
            elif not (entry.log_replaced and entry.may_have_unanswered):
                self._request_restart(batch.topic_partition)

    def loses_number(self, batch: ProducerBatch) -> bool:
        """Return whether a batch must not be sent again if it may be in the log."""
        with self.lock:
            entry = self._partitions[batch.topic_partition]
            return batch in entry.in_flight and entry.has_unused_before(batch)

    # --- answers

    def acknowledge(self, batch: ProducerBatch, base_offset: int = UNKNOWN_OFFSET) -> None:
        """Record that the broker has a batch, and at which offset, if it is known."""
        with self.lock:
            entry = self._partitions[batch.topic_partition]
            entry.acknowledge(batch)
            if base_offset != UNKNOWN_OFFSET:
                last_offset = base_offset + batch.record_count - 1
                entry.last_acked_offset = max(entry.last_acked_offset, last_offset)

    def remove(self, batch: ProducerBatch) -> None:
        """Remove a batch that will not be resent."""
        with self.lock:
            if batch.has_sequence:
                self._partitions[batch.topic_partition].remove(batch)

    def can_retry(self, batch: ProducerBatch, code: int, log_start_offset: int) -> bool:
        """Return whether to resend after OUT_OF_ORDER_SEQUENCE_NUMBER or UNKNOWN_PRODUCER_ID.

        Most such answers have an explanation, and the batch is resent unchanged or with new
        numbers. One without an explanation shows that the broker has lost acknowledged records: an
        idempotent producer continues with a new epoch (KIP-360), a transaction must be aborted. A
        batch that is refused even as the first one of an epoch, which no broker may refuse, fails.

        A batch that may have been appended fails, too, where Java resends it with a new number:
        after a restart a broker remembers only a producer's last batch, and answers
        OUT_OF_ORDER_SEQUENCE_NUMBER to the others, which would then be duplicated. A batch also
        fails if another batch that may have been appended follows it: if the topic was recreated
        and its new id is not known yet, the new log may have begun with that one.
        """
        with self.lock:
            entry = self._partitions[batch.topic_partition]
            if self._is_transactional and entry.has_gap:
                return False
            if (
                entry.restart_requested
                or entry.has_unused_before(batch)
                or (entry.log_replaced and not entry.may_have_unanswered)
            ):
                # An answer to the old numbers; all answers for the partition's batches will be like
                # it.
                return True
            if code == ErrorCode.UNKNOWN_PRODUCER_ID:
                return self._can_retry_unknown(entry, batch, log_start_offset)
            if entry.unresolved_sequence is None:
                # Unless it is the next, an earlier batch is in flight, and this one is resent in
                # its turn.
                is_gap = entry.is_next_sequence(batch.base_sequence)
            else:
                # If it directly follows the batch that was given up, that one was not appended.
                # Otherwise it must wait for the batches before it.
                is_gap = batch.base_sequence == entry.unresolved_sequence
            return not is_gap or (not self._is_transactional and self._restart_for(entry, batch))

    def _can_retry_unknown(
        self, entry: TxnPartitionEntry, batch: ProducerBatch, log_start_offset: int
    ) -> bool:
        if log_start_offset < 0:
            # The partition has just moved: its new leader will report where its log begins.
            return True
        if self._is_transactional and entry.last_acked_offset >= log_start_offset:
            return False
        # Retention has deleted all our records, and the broker's producer state with them; or, for
        # an idempotent producer, they were lost in some other way.
        return self._restart_for(entry, batch)

    def _restart_for(self, entry: TxnPartitionEntry, batch: ProducerBatch) -> bool:
        if entry.restarted_for is batch or batch.may_be_appended or entry.log_replaced:
            return False
        if entry.may_have_unanswered:
            # If the log is new, it may have begun with a batch that follows this one.
            self._note_replaced(batch.topic_partition)
            return False
        entry.restarted_for = batch
        self._request_restart(batch.topic_partition)
        return True

    def _request_restart(self, topic_partition: TopicPartition) -> None:
        self._partitions[topic_partition].restart_requested = True
        self._restarting.add(topic_partition)

    def fail(self, batch: ProducerBatch, *, outcome_known: bool) -> None:
        """Record the failure of a numbered batch, and its effect on the batches after it.

        If it was certainly refused (`outcome_known`), it leaves a gap: the partition restarts.
        Otherwise it may have been appended, which the answers to the later batches will show.
        """
        entry = self._partitions[batch.topic_partition]
        entry.remove(batch)
        if self._is_transactional:
            entry.has_gap = True
        elif outcome_known and not batch.may_be_appended:
            # Numbers for a new log must wait for a batch that may be in it with its old number.
            if not (entry.log_replaced and entry.may_have_unanswered):
                self._request_restart(batch.topic_partition)
        else:
            entry.mark_unresolved(batch)
            self._unresolved.add(batch.topic_partition)

    def resolve(self) -> None:
        """Restart partitions whose given-up batches turned out not to have been appended."""
        for topic_partition in list(self._unresolved):
            entry = self._partitions[topic_partition]
            if entry.in_flight:
                continue
            self._unresolved.discard(topic_partition)
            entry.unresolved_sequence = None
            if not entry.is_next_sequence(entry.next_sequence):
                self._request_restart(topic_partition)

    # --- epochs

    @property
    def are_settled(self) -> bool:
        """Whether `resolve` and `restart_quiet_partitions` have nothing to do."""
        return not (self._restarting or self._unresolved or self._replaced or self._moving_up)

    def restart_quiet_partitions(self) -> bool:
        """Restart partitions without unanswered batches; return False if a new id is needed first.

        An idempotent producer bumps its own epoch: a number is never used twice within one epoch.
        In a transaction the numbers restart within the epoch, because the broker has forgotten it.
        """
        for topic_partition in list(self._moving_up):
            entry = self._partitions[topic_partition]
            if entry.is_quiet:
                entry.move_up()
                self._moving_up.discard(topic_partition)
        self._withdraw_restarts()
        self._leave_replaced_logs()
        quiet = [
            topic_partition
            for topic_partition in self._restarting
            if self._partitions[topic_partition].is_quiet
        ]
        if not quiet or not self.producer_id_and_epoch.is_valid:
            return True
        entries = [self._partitions[topic_partition] for topic_partition in quiet]
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
        """Remove all numbers: the producer has a new epoch, and nothing is in flight."""
        self._partitions.clear()
        self._moving_up.clear()
        self._restarting.clear()
        self._unresolved.clear()
        self._replaced.clear()
