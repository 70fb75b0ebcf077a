"""The ledger of a prefix: its claims and decisions, in a compacted topic.

A driver fences first (InitProducerId of `{prefix}.ledger`), *then* reads, then appends in a
transaction. What it read is therefore current when it appends: another driver can append in between
only after fencing this one, whose append is then refused. If it read before fencing, it could miss
a decision appended between the two.

A driver trusts only those of its own entries that it has read back. If the topic is deleted and
recreated while the driver runs, the driver's claim is lost, however many entries were appended
since, and the driver can no longer decide.

Reads go to the high watermark, past open transactions, and interpret the markers themselves.
Reading only to the last stable offset would miss the latest entries, or wait, while another
prefix's ledger transaction is open. The markers of this prefix's own transactions have been written
by then, since the coordinator answers InitProducerId only afterwards.

Entries are kept between steps, so each step reads only new records; `ledger_entries` describes how
a step avoids looking at the rest.

Only markers count. A coordinator that finds a partition without a leader may acknowledge EndTxn and
never write the marker (KAFKA-20734). So an append is complete only when its marker has been *read*,
and no driver acts on it before. If a driver that has just fenced finds entries of its own producer
without a marker, it writes an abort marker for them: otherwise the marker of its next append would
commit them.

If the EndTxn of an append was not answered, was refused on a retry, or has left no marker yet, the
entry may still have been appended. This raises `LedgerOutcomeUnknownError`, and the only remedy is
to start again with the fence. Each append has its own epoch, so that under TV1 a delayed copy of
its EndTxn cannot commit the next one.

All prefixes are in partition 0, so that no prefix moves when partitions are added.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from spark_kafka_sink.admin.transaction_values import EndAnswer, EndOutcome, TransactionEnd
from spark_kafka_sink.admin.values import NewTopic
from spark_kafka_sink.errors import (
    BrokerError,
    ConfigError,
    KafkaError,
    KafkaTimeoutError,
    ProducerFencedError,
)
from spark_kafka_sink.exactly_once import ledger_records
from spark_kafka_sink.exactly_once.errors import (
    LedgerFencedError,
    LedgerFormatError,
    LedgerOutcomeUnknownError,
)
from spark_kafka_sink.exactly_once.ledger_entries import KeyOffsets, LedgerFold, LedgerState
from spark_kafka_sink.exactly_once.transactional_ids import check_prefix, ledger_id
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spark_kafka_sink.admin.driver_client import DriverClient
    from spark_kafka_sink.admin.records import KeyValue

logger = logging.getLogger(__name__)

#: Seconds to wait for the marker of an append. A later marker is not lost: the driver starts again
#: with the fence, which waits for it.
MARKER_SECONDS: Final = 2.0
#: How long an append may take. If the driver dies during it, the coordinator aborts the transaction
#: after this time.
LEDGER_TRANSACTION_TIMEOUT_MS: Final = 60_000
LEDGER_PARTITION: Final = 0
#: The error names that this module handles.
_UNKNOWN_TOPIC: Final = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.name
_OUT_OF_RANGE: Final = ErrorCode.OFFSET_OUT_OF_RANGE.name
#: Nothing was appended in these cases either: our transaction was ended by another client, or timed
#: out.
_ENDED_BY_OTHERS: Final = frozenset(
    {ErrorCode.INVALID_TXN_STATE.name, ErrorCode.TRANSACTION_ABORTABLE.name}
)
_READING: Final = "reading the ledger"
_CLEANUP_POLICY: Final = "cleanup.policy"
_COMPACT: Final = {_CLEANUP_POLICY: "compact"}
#: Small segments, compacted early: a driver that starts reads everything not yet compacted.
_TOPIC_CONFIGS: Final = {
    **_COMPACT,
    "segment.bytes": str(16 * 1024 * 1024),
    "min.cleanable.dirty.ratio": "0.1",
}


@dataclass(frozen=True, slots=True)
class Budget:
    """A timeout shared by many requests; `clock` returns seconds, and is never set back."""

    clock: Callable[[], float]
    ends_at: float

    @classmethod
    def of(cls, clock: Callable[[], float], seconds: float) -> Budget:
        """Start a budget of this many seconds now."""
        return cls(clock, clock() + seconds)

    def left(self, what: str) -> float:
        """Return the seconds left; raise KafkaTimeoutError, naming `what`, if there are none."""
        left = self.ends_at - self.clock()
        if left <= 0:
            raise KafkaTimeoutError(f"{what} timed out")
        return left


def ensure_ledger_topic(
    admin: DriverClient, topic: str, *, replication_factor: int, timeout: float
) -> None:
    """Create the compacted topic unless it exists.

    A replication factor of -1 is the cluster's default. Raises ConfigError if retention would
    delete the topic's entries, and BrokerError if the topic is missing and cannot be created.
    """
    try:
        configs = admin.topic_configs(topic, timeout=timeout)
    except BrokerError as error:
        if error.name != _UNKNOWN_TOPIC:
            raise
        try:
            admin.create_topic(
                NewTopic(topic, 1, replication_factor, _TOPIC_CONFIGS), timeout=timeout
            )
        except BrokerError as refused:
            # Managed clusters do not let clients set some of these.
            if refused.name not in {"INVALID_CONFIG", "POLICY_VIOLATION"}:
                raise
            admin.create_topic(NewTopic(topic, 1, replication_factor, _COMPACT), timeout=timeout)
        admin.partition_count(topic, timeout=timeout)
        return
    policy = configs.get(_CLEANUP_POLICY) or ""
    if "compact" not in policy or "delete" in policy:
        raise ConfigError(
            f"ledgerTopic {topic!r} has {_CLEANUP_POLICY}={policy}, which would delete recorded "
            f"decisions: set {_CLEANUP_POLICY}=compact on the topic, or use another one"
        )


def read_all_prefixes(admin: DriverClient, topic: str, budget: Budget) -> dict[str, LedgerState]:
    """Read the state of every prefix in a ledger without fencing; see `Ledger.read`.

    Raises BrokerError with UNKNOWN_TOPIC_OR_PARTITION if the topic does not exist.
    """
    # Fails at once for a missing topic; the requests that follow would wait for it to appear.
    admin.topic_configs(topic, timeout=budget.left(_READING))
    fold = LedgerFold()
    _read_all(admin, TopicPartition(topic, LEDGER_PARTITION), fold, budget)
    _report_ignored(fold, topic)
    return dict(sorted(fold.prefixes.items()))


class UnreadableEntry(NamedTuple):
    """An unreadable entry of a prefix."""

    topic_partition: TopicPartition
    #: The offset of its batch; None if compaction or a driver has since removed the entry.
    offset: int | None
    #: None for a claim.
    write_id: str | None
    #: What is wrong with the entry, and what to do.
    reason: str

    def __str__(self) -> str:
        at = "" if self.offset is None else f", offset {self.offset}"
        what = "the claim" if self.write_id is None else f"write {self.write_id}"
        return f"{self.topic_partition}{at}, {what}: {self.reason}"


def unreadable_entries(
    admin: DriverClient,
    topic: str,
    errors: Mapping[ledger_records.EntryKey, LedgerFormatError],
    budget: Budget,
) -> list[UnreadableEntry]:
    """Find where the unreadable entries are."""
    if not errors:
        return []
    partition = TopicPartition(topic, LEDGER_PARTITION)
    key_offsets = KeyOffsets(map(ledger_records.encode_key, errors))
    # The offsets of entries are not stored. This case is rare enough to read the topic again.
    _read_all(admin, partition, key_offsets, budget)
    return [
        UnreadableEntry(
            partition,
            key_offsets.offsets.get(ledger_records.encode_key(key)),
            key.write_id if key.kind == ledger_records.WRITE else None,
            str(error),
        )
        for key, error in errors.items()
    ]


def _read_all(
    admin: DriverClient, partition: TopicPartition, sink: LedgerFold | KeyOffsets, budget: Budget
) -> None:
    end = admin.end_offset(partition, timeout=budget.left(_READING))
    offset = admin.start_offset(partition, timeout=budget.left(_READING))
    while offset < end:
        offset = admin.read_log(partition, offset, sink, timeout=budget.left(_READING))


def _report_ignored(fold: LedgerFold, topic: str) -> None:
    for why, (count, first_offset) in fold.take_ignored().items():
        logger.warning(
            "%d records of ledger topic %r are ignored, the first at offset %d: %s. No driver "
            "wrote them: check which other clients may write to the topic",
            count,
            topic,
            first_offset,
            why,
        )


class LedgerChanges(NamedTuple):
    """The changes that one append makes atomically."""

    writes: Mapping[str, ledger_records.WriteRecord] = {}
    claim: ledger_records.Claim | None = None
    forget: frozenset[str] = frozenset()


class Ledger:
    """The ledger of one prefix; the module docstring describes the protocol."""

    def __init__(
        self, admin: DriverClient, *, topic: str, prefix: str, clock: Callable[[], float]
    ) -> None:
        """Store the arguments; send no request. `clock` returns seconds since 1970."""
        self._admin = admin
        self._partition = TopicPartition(topic, LEDGER_PARTITION)
        self.prefix = check_prefix(prefix)
        self._transactional_id = ledger_id(prefix)
        self._clock = clock
        self._fold = LedgerFold(prefix)
        self._next_offset: int | None = None
        self._producer: ProducerIdAndEpoch | None = None
        #: The number of pieces of appended decisions not read back yet, by write id.
        self._own_pieces: dict[str, int] = {}
        #: The offset up to which their markers were searched for.
        self._read_up_to = 0
        #: Whether the producer's epoch has been used for an append.
        self._is_used = False

    @property
    def topic(self) -> str:
        """The ledger's topic."""
        return self._partition.topic

    def fence_and_read(self, budget: Budget) -> LedgerState:
        """Fence every other writer of this prefix, then read the ledger to its end.

        Repeated calls fetch only new records. Raises LedgerFormatError, KafkaTimeoutError and
        BrokerError.
        """
        while True:
            self._producer = self._admin.init_producer_id(
                self._transactional_id,
                transaction_timeout_ms=LEDGER_TRANSACTION_TIMEOUT_MS,
                timeout=budget.left("fencing the ledger"),
            )
            self._is_used = False
            state = self.read(budget)
            if not self._fold.is_open(self._producer.producer_id):
                return state
            # InitProducerId has ended every transaction of this producer, so an entry still
            # without a marker means that the marker was never written.
            end = TransactionEnd(self._transactional_id, self._producer, committed=False)
            answer = self._admin.write_markers(
                end, [self._partition], timeout=budget.left("aborting a ledger entry")
            )
            logger.warning(
                "Kafka has lost the transaction marker of an entry of prefix %r in ledger topic %r "
                "(KAFKA-20734), so the entry is aborted; the coordinator's answer: %s",
                self.prefix,
                self.topic,
                answer,
            )

    def read(self, budget: Budget) -> LedgerState:
        """Read to the high watermark without fencing, for read-only use.

        The latest entries may be missing, as long as their markers are not written.
        """
        try:
            is_read = self._read_on(budget)
        except BrokerError as error:
            if error.name != _OUT_OF_RANGE:
                raise
            is_read = False
        if not is_read:
            # Since the last read the topic was recreated, or its records were deleted.
            self._forget()
            self._read_on(budget)
        self._own_pieces.clear()
        self._read_up_to = 0
        _report_ignored(self._fold, self.topic)
        return self._fold.entries(self.prefix)

    def _read_on(self, budget: Budget) -> bool:
        """Read to the high watermark; return False if that is below what was read before."""
        if self._next_offset is None:
            self._next_offset = self._admin.start_offset(
                self._partition, timeout=budget.left(_READING)
            )
        first = self._next_offset
        self._next_offset, end = self._admin.read_log_and_end(
            self._partition, first, self._fold, timeout=budget.left(_READING)
        )
        while self._next_offset < end:
            self._next_offset = self._admin.read_log(
                self._partition, self._next_offset, self._fold, timeout=budget.left(_READING)
            )
        return first <= end

    def _forget(self) -> None:
        self._fold = LedgerFold(self.prefix)
        self._next_offset = None

    def append(self, changes: LedgerChanges, budget: Budget) -> None:
        """Append the changes atomically; they are durable when this returns.

        Raises LedgerFencedError if another driver has fenced this one since it read: nothing was
        appended. Raises LedgerOutcomeUnknownError if the changes may have been appended. After
        either, fence and read again.
        """
        producer = self._fresh_epoch(budget)
        entries = self._entries(changes)
        try:
            version = self._admin.write_to_transaction(
                self._transactional_id,
                producer,
                self._partition,
                entries,
                now_ms=int(self._clock() * 1000),
                timeout=budget.left("writing the ledger"),
            )
        except ProducerFencedError as error:
            raise self._fenced() from error
        except BrokerError as error:
            if error.name not in _ENDED_BY_OTHERS:
                raise
            raise self._fenced() from error
        answer = self._end(TransactionEnd(self._transactional_id, producer, True, version), budget)
        if answer.outcome is not EndOutcome.ENDED:
            raise LedgerOutcomeUnknownError(
                f"the entry of prefix {self.prefix!r} in ledger topic {self.topic!r} may not have "
                f"been committed; the coordinator's answer: {answer}"
            )
        if answer.producer is not None:
            # TV2: this epoch has not ended a transaction yet, and a restarted coordinator accepts
            # no older one.
            self._producer, self._is_used = answer.producer, False
        # The entries themselves are not added to the fold: the next read returns them, or the
        # ledger has lost them.
        for key, value in entries:
            entry = ledger_records.decode_key(key)
            if entry.kind == ledger_records.WINNERS and value is not None:
                pieces = self._own_pieces.get(entry.write_id, 0)
                self._own_pieces[entry.write_id] = max(pieces, entry.piece + 1)
        self._wait_for_marker(producer.producer_id, budget)

    def _wait_for_marker(self, producer_id: int, budget: Budget) -> None:
        """Read on until the marker of the append has been read."""
        fold, offset = LedgerFold(self.prefix), max(self._next_offset or 0, self._read_up_to)
        patience = Budget.of(budget.clock, min(MARKER_SECONDS, budget.left("reading the ledger")))
        try:
            while (committed := fold.end_of(producer_id)) is None:
                # At the end of the log the broker delays its answer (max_wait_ms), so this does not
                # spin.
                self._read_up_to = offset = self._admin.read_log(
                    self._partition, offset, fold, timeout=patience.left("waiting for its marker")
                )
        except KafkaError as error:
            raise LedgerOutcomeUnknownError(
                f"ledger topic {self.topic!r} has no marker yet of the entry of prefix "
                f"{self.prefix!r}: {error}"
            ) from error
        if not committed:
            raise self._fenced()

    def _end(self, end: TransactionEnd, budget: Budget) -> EndAnswer:
        try:
            return self._admin.end_transaction(end, timeout=budget.left("committing to the ledger"))
        except KafkaError as error:
            raise LedgerOutcomeUnknownError(
                f"the entry of prefix {self.prefix!r} in ledger topic {self.topic!r} may or may "
                f"not have been committed: {error}"
            ) from error

    def _fresh_epoch(self, budget: Budget) -> ProducerIdAndEpoch:
        """Return an epoch that has not ended a transaction; raise LedgerFencedError if fenced."""
        if self._producer is None:
            raise self._fenced()
        if self._is_used:
            try:
                self._producer = self._admin.init_producer_id(
                    self._transactional_id,
                    transaction_timeout_ms=LEDGER_TRANSACTION_TIMEOUT_MS,
                    timeout=budget.left("writing the ledger"),
                    current=self._producer,
                )
            except ProducerFencedError as error:
                raise self._fenced() from error
        self._is_used = True
        return self._producer

    def _fenced(self) -> LedgerFencedError:
        """Build the error, naming the last claimant.

        The ledger does not record a driver that has fenced but not claimed.
        """
        return LedgerFencedError(
            f"another driver now writes the ledger of prefix {self.prefix!r} (topic "
            f"{self.topic!r}). {self._last_claim()}. Look for other queries, jobs and operators "
            f"with transactionalIdPrefix {self.prefix!r}; the log of the broker that coordinates "
            f"transactional id {self._transactional_id!r} shows which client called "
            "InitProducerId. Give each query and job its own prefix"
        )

    def _last_claim(self) -> str:
        try:
            claim = self._fold.entries(self.prefix).claim
        except LedgerFormatError as error:
            return f"That driver is unknown: the last claim of the prefix cannot be read: {error}"
        if claim is None:
            return "The ledger does not identify that driver, since the prefix has no claim yet"
        at = datetime.fromtimestamp(claim.claimed_at_ms / 1000, UTC)
        return (
            f"The prefix was last claimed by {claim.claimed_by} at {at:%Y-%m-%dT%H:%M:%SZ} "
            f"(generation {claim.generation}); if that was this query or job, the ledger does "
            "not identify the other driver"
        )

    def _entries(self, changes: LedgerChanges) -> list[KeyValue]:
        known = self._fold.entries(self.prefix)

        def pieces(write_id: str) -> int:
            return max(known.pieces(write_id), self._own_pieces.get(write_id, 0))

        entries: list[KeyValue] = []
        for write_id, record in changes.writes.items():
            entries += ledger_records.encode_write(
                self.prefix, write_id, record, pieces_before=pieces(write_id)
            )
        for write_id in sorted(changes.forget):
            entries += ledger_records.forget_write(
                self.prefix, write_id, pieces_before=pieces(write_id)
            )
        if changes.claim is not None:
            entries.append(ledger_records.encode_claim(self.prefix, changes.claim))
        return entries
