"""The state of a partition's idempotent producers, and the checks of their next batches.

The counterpart of Kafka's ProducerStateEntry, ProducerAppendInfo and ProducerStateManager. For
batches of clients:

- A batch with exactly the sequence range and epoch of one of the producer's last five batches is a
  duplicate. It is not appended again, and the response has the offsets of the first time.
- A lower epoch than the last one seen is INVALID_PRODUCER_EPOCH.
- A new epoch must begin at sequence 0, otherwise it is OUT_OF_ORDER_SEQUENCE_NUMBER.
- Within an epoch a batch must begin where the last one ended. Anything else (a gap, an overlap, a
  duplicate older than five batches) is OUT_OF_ORDER_SEQUENCE_NUMBER.
- An unknown producer id may begin with any sequence number: its state may have expired.
- Sequence numbers run from 0 to 2^31-1 and wrap around to 0, even within a batch.
- While a producer has a transaction open here, a batch outside of it is INVALID_TXN_STATE. Only a
  batch that the transaction coordinator has verified can begin a transaction (KIP-890):
  `start_verification` announces the first batches, and the one with the lowest sequence number
  must be appended first. If every transaction bumps the epoch, that number is 0.

For transaction markers: a lower epoch than the last one seen is INVALID_PRODUCER_EPOCH, and so is
an equal one with transaction.version 2, unless the marker repeats that of a transaction that has
ended (KAFKA-19999); a marker of an older coordinator is TRANSACTION_COORDINATOR_FENCED.

A batch is recorded only by `update`, so that one rejected for another reason leaves no trace.

A snapshot (`<offset>.snapshot`) is the state of all producers at one offset, as a file of Kafka's
(writeSnapshot, readSnapshot): the version, a CRC-32C of the rest, and for each producer its epoch,
only its last batch, the coordinator epoch of its last marker, and the first offset of its open
transaction. After a restart a log remembers only the last batch of those before the snapshot.

A producer without an open transaction expires `producer.id.expiration.ms` after the largest
timestamp of its last batch or marker, whatever the clock said when that was written.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.model import NO_PRODUCER_EPOCH, NO_SEQUENCE
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.record.record_batch import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_SEQUENCE = 2**31 - 1
MAX_EPOCH = 2**15 - 1
#: From this transaction.version, the end of every transaction bumps the producer's epoch (KIP-890).
_EPOCH_BUMP_VERSION = 2
#: The maximum number of batches in flight from a producer to one partition (KAFKA-5494).
NUM_BATCHES_TO_RETAIN = 5
_VERSION = 1
#: version and CRC
_HEADER = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_NONE = -1


def increment_sequence(sequence: int, increment: int) -> int:
    """Add to a sequence number, wrapping around to 0 (DefaultRecordBatch.incrementSequence)."""
    return (sequence + increment) & MAX_SEQUENCE


class ProducerBatchInfo(NamedTuple):
    """What the sequence rules need to know about a batch to append."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    is_transactional: bool = False

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record."""
        return increment_sequence(self.base_sequence, self.record_count - 1)


class BatchMetadata(NamedTuple):
    """What is stored about an appended batch, to detect its duplicates."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    #: Largest timestamp of the batch in milliseconds.
    timestamp: int


class TransactionMarker(NamedTuple):
    """A transaction marker, as the coordinator sends it."""

    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int
    #: The transaction.version of the producer, which decides whether the marker bumps the epoch.
    transaction_version: int
    #: Milliseconds since 1970.
    timestamp: int


@dataclass(slots=True)
class ProducerStateEntry:
    """One producer's epoch and last batches in one partition."""

    producer_id: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    #: Oldest first.
    batches: deque[BatchMetadata] = field(
        default_factory=lambda: deque(maxlen=NUM_BATCHES_TO_RETAIN)
    )
    #: Largest timestamp of the last batch in milliseconds, -1 before there is one.
    last_timestamp: int = -1
    #: Epoch of the coordinator that wrote the last marker, -1 before there is one.
    coordinator_epoch: int = -1
    #: Where the transaction open in this partition began, None if there is none.
    current_txn_first_offset: int | None = None

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record in this epoch, `NO_SEQUENCE` if there is none."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        """The offset of the last record in this epoch, -1 if there is none."""
        return self.batches[-1].last_offset if self.batches else -1

    def is_expired(self, now_ms: int, expiration_ms: int) -> bool:
        """Return whether the producer has expired (isProducerExpired)."""
        return (
            self.current_txn_first_offset is None and now_ms - self.last_timestamp >= expiration_ms
        )

    def find_duplicate(self, batch: ProducerBatchInfo) -> BatchMetadata | None:
        """Return the stored batch with exactly this epoch and sequence range, None if none has."""
        if batch.producer_epoch != self.producer_epoch:
            return None
        last_sequence = batch.last_sequence
        for known in self.batches:
            if known.first_sequence == batch.base_sequence and known.last_sequence == last_sequence:
                return known
        return None

    def add_batch(self, producer_epoch: int, metadata: BatchMetadata) -> None:
        """Add a batch that was appended; a new epoch removes the batches of the old one."""
        self._update_epoch(producer_epoch)
        self.batches.append(metadata)
        self.last_timestamp = metadata.timestamp

    def end_transaction(self, marker: TransactionMarker) -> None:
        """Record a marker that was appended."""
        self._update_epoch(marker.producer_epoch)
        self.coordinator_epoch = marker.coordinator_epoch
        self.last_timestamp = marker.timestamp
        self.current_txn_first_offset = None

    def _update_epoch(self, producer_epoch: int) -> None:
        if producer_epoch != self.producer_epoch:
            self.batches.clear()
            self.producer_epoch = producer_epoch


@dataclass(slots=True)
class _Verification:
    """A transaction's first batches, before any of them is appended (VerificationStateEntry)."""

    producer_epoch: int
    lowest_sequence: int
    supports_epoch_bump: bool
    #: When the first one was announced, in milliseconds since 1970.
    timestamp: int


class ProducerStateManager:
    """The idempotent producers of one partition."""

    def __init__(self) -> None:
        self._entries: dict[int, ProducerStateEntry] = {}
        self._verifications: dict[int, _Verification] = {}
        #: First offsets of the open transactions by producer id, lowest first.
        self._ongoing: dict[int, int] = {}

    @property
    def first_undecided_offset(self) -> int | None:
        """Where the oldest open transaction began, None if there is none."""
        return next(iter(self._ongoing.values()), None)

    def load(self, entries: list[ProducerStateEntry]) -> None:
        """Replace all producers by these."""
        self._entries = {entry.producer_id: entry for entry in entries}
        self._verifications.clear()
        ongoing = [
            (entry.current_txn_first_offset, entry.producer_id)
            for entry in entries
            if entry.current_txn_first_offset is not None
        ]
        self._ongoing = {producer_id: offset for offset, producer_id in sorted(ongoing)}

    def entries(self) -> list[ProducerStateEntry]:
        """Return the entries of all producers."""
        return list(self._entries.values())

    def remove_expired(self, now_ms: int, expiration_ms: int) -> None:
        """Remove expired producers and verifications (removeExpiredProducers)."""
        self._entries = {
            producer_id: entry
            for producer_id, entry in self._entries.items()
            if not entry.is_expired(now_ms, expiration_ms)
        }
        self._verifications = {
            producer_id: verification
            for producer_id, verification in self._verifications.items()
            if now_ms - verification.timestamp < expiration_ms
        }

    def has_ongoing_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Return whether the producer has, in this epoch, a transaction open in the partition."""
        entry = self._entries.get(producer_id)
        return (
            entry is not None
            and entry.current_txn_first_offset is not None
            and entry.producer_epoch == producer_epoch
        )

    def start_verification(
        self,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        *,
        supports_epoch_bump: bool,
        now_ms: int,
    ) -> bool:
        """Announce a transactional batch; return whether the coordinator must verify it first.

        Raises RefusedError with INVALID_PRODUCER_EPOCH for a stale epoch
        (UnifiedLog.maybeStartTransactionVerification).
        """
        self._check_epoch(producer_id, producer_epoch)
        if self.has_ongoing_transaction(producer_id, producer_epoch):
            return False
        known = self._verifications.setdefault(
            producer_id, _Verification(producer_epoch, base_sequence, supports_epoch_bump, now_ms)
        )
        if producer_epoch > known.producer_epoch:
            known.producer_epoch = producer_epoch
            known.lowest_sequence = base_sequence
        elif producer_epoch == known.producer_epoch:
            known.lowest_sequence = min(known.lowest_sequence, base_sequence)
        return True

    def find_duplicate(self, batch: ProducerBatchInfo) -> BatchMetadata | None:
        """Return where the batch was appended before, if it is one of the last five."""
        entry = self._entries.get(batch.producer_id)
        return None if entry is None else entry.find_duplicate(batch)

    def validate(self, batch: ProducerBatchInfo) -> None:
        """Check epoch, transaction and sequence of a batch that is not a duplicate.

        Raises RefusedError with INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER or
        INVALID_TXN_STATE (ProducerAppendInfo.checkProducerEpoch, checkSequence, appendDataBatch).
        """
        self._check_epoch(batch.producer_id, batch.producer_epoch)
        if (
            batch.is_transactional
            and batch.producer_id not in self._verifications
            and not self.has_ongoing_transaction(batch.producer_id, batch.producer_epoch)
        ):
            raise RefusedError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {batch.producer_id} has no open transaction for this batch",
            )
        entry = self._entries.get(batch.producer_id)
        self._check_first_sequence(batch, entry)
        if entry is None:
            return
        if batch.producer_epoch > entry.producer_epoch:
            if batch.base_sequence != 0:
                raise RefusedError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"the first sequence of producer {batch.producer_id} in epoch "
                    f"{batch.producer_epoch} must be 0, not {batch.base_sequence}",
                )
        else:
            # -1 is NO_SEQUENCE: an epoch without stored batches begins at 0.
            expected = increment_sequence(entry.last_sequence, 1)
            if batch.base_sequence != expected:
                raise RefusedError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"the next sequence of producer {batch.producer_id} must be {expected}, not "
                    f"{batch.base_sequence}",
                )
        if entry.current_txn_first_offset is not None and not batch.is_transactional:
            raise RefusedError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {batch.producer_id} has an open transaction; this batch is not in it",
            )

    def validate_marker(self, marker: TransactionMarker) -> None:
        """Check the epochs of a marker.

        Raises RefusedError with INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED
        (ProducerAppendInfo.checkProducerEpoch and checkCoordinatorEpoch).
        """
        entry = self._entries.get(marker.producer_id)
        if entry is None:
            return
        current = entry.producer_epoch
        repeated = marker.producer_epoch == current and (
            entry.current_txn_first_offset is None or current == MAX_EPOCH
        )
        if marker.producer_epoch < current or (
            marker.transaction_version >= _EPOCH_BUMP_VERSION
            and marker.producer_epoch == current
            and not repeated
        ):
            raise RefusedError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {marker.producer_id} has epoch {current}, but this marker has epoch "
                f"{marker.producer_epoch}",
            )
        if entry.coordinator_epoch > marker.coordinator_epoch:
            raise RefusedError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"the last marker of producer {marker.producer_id} has coordinator epoch "
                f"{entry.coordinator_epoch}, but this one has {marker.coordinator_epoch}",
            )

    def update(self, batch: ProducerBatchInfo, *, first_offset: int, timestamp: int) -> None:
        """Record a batch that has just been appended at `first_offset`."""
        entry = self._entry(batch.producer_id)
        entry.add_batch(
            batch.producer_epoch,
            BatchMetadata(
                first_sequence=batch.base_sequence,
                last_sequence=batch.last_sequence,
                first_offset=first_offset,
                last_offset=first_offset + batch.record_count - 1,
                timestamp=timestamp,
            ),
        )
        if batch.is_transactional:
            self._verifications.pop(batch.producer_id, None)
            if entry.current_txn_first_offset is None:
                entry.current_txn_first_offset = first_offset
                self._ongoing[batch.producer_id] = first_offset

    def end_transaction(self, marker: TransactionMarker) -> int | None:
        """Record a marker that has just been appended; return where its transaction began.

        None means that the producer had no transaction open here.
        """
        entry = self._entry(marker.producer_id)
        first_offset = entry.current_txn_first_offset
        entry.end_transaction(marker)
        self._ongoing.pop(marker.producer_id, None)
        verification = self._verifications.get(marker.producer_id)
        # The next transaction may have been announced already: if every transaction bumps the
        # epoch, in the marker's own epoch.
        if verification is not None and not (
            verification.supports_epoch_bump
            and verification.producer_epoch == marker.producer_epoch
        ):
            del self._verifications[marker.producer_id]
        return first_offset

    def _entry(self, producer_id: int) -> ProducerStateEntry:
        return self._entries.setdefault(producer_id, ProducerStateEntry(producer_id=producer_id))

    def _check_epoch(self, producer_id: int, producer_epoch: int) -> None:
        entry = self._entries.get(producer_id)
        if entry is not None and producer_epoch < entry.producer_epoch:
            raise RefusedError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} has epoch {entry.producer_epoch}, but this batch has "
                f"epoch {producer_epoch}",
            )

    def _check_first_sequence(
        self, batch: ProducerBatchInfo, entry: ProducerStateEntry | None
    ) -> None:
        """Raise RefusedError for a batch that would overtake the first one of its transaction."""
        verification = self._verifications.get(batch.producer_id)
        if verification is None:
            return
        nothing_known = entry is None or not entry.batches
        if verification.supports_epoch_bump and nothing_known:
            latest = 0
        else:
            latest = verification.lowest_sequence
        if batch.base_sequence > latest:
            raise RefusedError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"sequence {batch.base_sequence} of producer {batch.producer_id} arrived before "
                f"{latest}, the first sequence of its transaction",
            )


_ENTRY = struct.Struct(
    ">"
    "q"  # producerId
    "h"  # epoch
    "i"  # lastSequence
    "q"  # lastOffset
    "i"  # offsetDelta
    "q"  # timestamp
    "i"  # coordinatorEpoch
    "q"  # currentTxnFirstOffset
)


def encode_snapshot(entries: Iterable[ProducerStateEntry]) -> bytes:
    """Encode a snapshot."""
    packed = []
    for entry in entries:
        last = entry.batches[-1] if entry.batches else None
        packed.append(
            _ENTRY.pack(
                entry.producer_id,
                entry.producer_epoch,
                entry.last_sequence,
                entry.last_offset,
                0 if last is None else last.last_offset - last.first_offset,
                entry.last_timestamp,
                entry.coordinator_epoch,
                _NONE if entry.current_txn_first_offset is None else entry.current_txn_first_offset,
            )
        )
    body = _COUNT.pack(len(packed)) + b"".join(packed)
    return _HEADER.pack(_VERSION, crc32c(body)) + body


def decode_snapshot(content: bytes) -> list[ProducerStateEntry]:
    """Decode a snapshot. Raises CorruptRecordError."""
    body = content[_HEADER.size :]
    if len(content) < _HEADER.size + _COUNT.size:
        raise CorruptRecordError(f"a producer snapshot cannot have only {len(content)} bytes")
    version, crc = _HEADER.unpack_from(content)
    if version != _VERSION:
        raise CorruptRecordError(f"producer snapshot version {version} is not supported")
    if crc != crc32c(body):
        raise CorruptRecordError("the producer snapshot does not match its checksum")
    (count,) = _COUNT.unpack_from(body)
    if len(body) != _COUNT.size + count * _ENTRY.size:
        raise CorruptRecordError(f"the producer snapshot does not have {count} entries")
    return [_entry(*values) for values in _ENTRY.iter_unpack(body[_COUNT.size :])]


def _entry(  # noqa: PLR0917 - the fields of an entry, in their order
    producer_id: int,
    producer_epoch: int,
    last_sequence: int,
    last_offset: int,
    offset_delta: int,
    timestamp: int,
    coordinator_epoch: int,
    current_txn_first_offset: int,
) -> ProducerStateEntry:
    batches: deque[BatchMetadata] = deque(maxlen=NUM_BATCHES_TO_RETAIN)
    if last_offset >= 0:
        batches.append(
            BatchMetadata(
                # Without a last sequence number there is no first one either.
                first_sequence=last_sequence
                if last_sequence < 0
                else (last_sequence - offset_delta) & MAX_SEQUENCE,
                last_sequence=last_sequence,
                first_offset=last_offset - offset_delta,
                last_offset=last_offset,
                timestamp=timestamp,
            )
        )
    return ProducerStateEntry(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        batches=batches,
        last_timestamp=timestamp,
        coordinator_epoch=coordinator_epoch,
        current_txn_first_offset=None
        if current_txn_first_offset == _NONE
        else current_txn_first_offset,
    )
