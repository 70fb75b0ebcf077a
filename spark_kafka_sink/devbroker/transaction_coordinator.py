"""The transactions of all producers: who may write, what belongs together, and how it ends.

Kafka's TransactionCoordinator 4.3, decision for decision:

- A transactional id has one producer at a time. InitProducerId gives it out with a new epoch, which
  fences the one before; while a transaction is open it first aborts that one and answers
  CONCURRENT_TRANSACTIONS. Used-up epochs bring a new producer id.
- EndTxn of transaction.version 2 (version 5 of the API) bumps the epoch, and by the epoch it tells
  a repeated request from the end of the next transaction. An abort is then allowed where nothing
  was written. Before that, only the exact epoch is taken, and a repeated request may end the next
  transaction: that is what KIP-890 is about.
- The answer to EndTxn comes before the markers are written; until they are, whoever asks for the
  same id gets CONCURRENT_TRANSACTIONS. Here they are written at once, or after
  `transaction_marker_delay_ms`.
- A transaction that is open for longer than its timeout is aborted, and its producer fenced, by a
  check that runs every `transaction_abort_interval_ms`.

Every step is taken on a copy of what is known of an id, written to the log, where there is one
(`coordinator_log`), and then counts: a step that cannot be written has not been taken, and the
producer asks again. What has been decided is brought to its end however often that takes
(`transaction_marker_manager`). The log is read when the broker starts. Ids that have expired are
forgotten when they are next asked for.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.producer_state import MAX_EPOCH
from spark_kafka_sink.devbroker.refusal import RefusedError
from spark_kafka_sink.devbroker.transaction_log import encode_transaction, read_transactions
from spark_kafka_sink.devbroker.transaction_marker_manager import TransactionMarkerManager
from spark_kafka_sink.devbroker.transaction_metadata import (
    EPOCH_BUMP_VERSION,
    TransactionMetadata,
    is_epoch_exhausted,
)
from spark_kafka_sink.devbroker.transaction_state import EXPIRABLE, PREPARED, TransactionState
from spark_kafka_sink.model import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_PRODUCER_ID_AND_EPOCH,
    ProducerIdAndEpoch,
)
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.devbroker.broker_settings import BrokerSettings
    from spark_kafka_sink.devbroker.coordinator_log import CoordinatorLog
    from spark_kafka_sink.devbroker.timers import Timers
    from spark_kafka_sink.devbroker.transaction_marker_manager import WriteMarker
    from spark_kafka_sink.model import TopicPartition

logger = logging.getLogger(__name__)

_ENDS = {True: TransactionState.PREPARE_COMMIT, False: TransactionState.PREPARE_ABORT}
_DONE = {True: TransactionState.COMPLETE_COMMIT, False: TransactionState.COMPLETE_ABORT}


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction:
    """What a producer asks for at the end of its transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    #: 2 from EndTxn 5 on, otherwise 0.
    client_version: int


class TransactionCoordinator:
    """Looks after every transactional id."""

    def __init__(
        self,
        settings: BrokerSettings,
        timers: Timers,
        *,
        coordinator_epoch: Callable[[str], int],
        new_producer_id: Callable[[], int],
        write_marker: WriteMarker,
        log: CoordinatorLog,
    ) -> None:
        """Know no id; `coordinator_epoch` tells how often an id has changed hands."""
        self._settings = settings
        self._timers = timers
        self._new_producer_id = new_producer_id
        self._markers = TransactionMarkerManager(
            timers,
            coordinator_epoch=coordinator_epoch,
            write_marker=write_marker,
            take_step=self._take_step,
        )
        self._log = log
        self._metadata: dict[str, TransactionMetadata] = {}

    def load(self, now: float) -> None:
        """Know what is in the log, and nothing else; what was decided is brought to its end.

        TransactionStateManager.loadTransactionsForTxnTopicPartition.
        """
        now_ms = int(now * 1000)
        self._metadata = read_transactions(self._log)
        for metadata in self._metadata.values():
            if metadata.state in PREPARED:
                self._markers.begin_later(metadata, now_ms)
            elif metadata.state is TransactionState.ONGOING:
                self._schedule_timeout(metadata, now_ms)

    def _take_step(self, changed: TransactionMetadata) -> None:
        """Replace what is known of an id, once that is written.

        Raises RefusedError with NOT_COORDINATOR if it cannot be; then nothing has changed.
        """
        if self._log.is_durable:
            record = encode_transaction(
                changed, transaction_version=self._settings.transaction_version
            )
            self._log.append(changed.transactional_id, [record], now_ms=changed.last_update_ms)
        if changed.state is TransactionState.DEAD:
            del self._metadata[changed.transactional_id]
        else:
            self._metadata[changed.transactional_id] = changed

    def find(self, transactional_id: str, now_ms: int) -> TransactionMetadata | None:
        """Return what is known of an id; one that has expired is forgotten."""
        metadata = self._metadata.get(transactional_id)
        if (
            metadata is not None
            and metadata.state in EXPIRABLE
            and metadata.last_update_ms <= now_ms - self._settings.transactional_id_expiration_ms
        ):
            expired = replace(metadata)
            expired.expire()
            try:
                self._take_step(expired)
            except RefusedError as refused:
                logger.warning("%s expires later: %s", transactional_id, refused)
            else:
                return None
        return metadata

    def all(self, now_ms: int) -> list[TransactionMetadata]:
        """Return every id that is known, in the order in which they came."""
        found = [self.find(transactional_id, now_ms) for transactional_id in list(self._metadata)]
        return [metadata for metadata in found if metadata is not None]

    def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None,
        now_ms: int,
    ) -> ProducerIdAndEpoch:
        """Give an id to a producer; `expected` is what it was known by until now.

        Raises RefusedError with INVALID_REQUEST, INVALID_TRANSACTION_TIMEOUT, PRODUCER_FENCED or
        CONCURRENT_TRANSACTIONS.
        """
        _check_transactional_id(transactional_id)
        if not 0 < timeout_ms <= self._settings.transaction_max_timeout_ms:
            raise RefusedError(
                ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                f"a transaction timeout of {timeout_ms} ms is not within 1 to "
                f"{self._settings.transaction_max_timeout_ms} (transaction.max.timeout.ms)",
            )
        metadata = self.find(transactional_id, now_ms)
        if metadata is None:
            metadata = TransactionMetadata(
                transactional_id=transactional_id,
                producer_id=self._new_producer_id(),
                timeout_ms=timeout_ms,
                last_update_ms=now_ms,
            )
        if expected is not None and not _may_continue(metadata, expected):
            raise _fenced(metadata, expected.epoch)
        if metadata.state in PREPARED:
            raise _concurrent(metadata)
        if metadata.state is TransactionState.ONGOING:
            self._fence_and_abort(metadata, now_ms)
            raise RefusedError(
                ErrorCode.CONCURRENT_TRANSACTIONS,
                f"the open transaction of {transactional_id} is being aborted: ask again",
            )
        changed = replace(metadata)
        if metadata.epoch_exhausted and (
            expected is None or expected.epoch == metadata.producer_epoch
        ):
            changed.rotate_producer_id(
                self._new_producer_id(),
                timeout_ms,
                now_ms,
                record_last_epoch=expected is not None,
            )
        else:
            changed.increment_epoch(
                timeout_ms, None if expected is None else expected.epoch, now_ms
            )
        self._take_step(changed)
        return changed.identity

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: frozenset[TopicPartition],
        *,
        client_version: int,
        now_ms: int,
    ) -> None:
        """Let partitions take part in the open transaction, or begin one.

        Raises RefusedError with INVALID_REQUEST, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED or
        CONCURRENT_TRANSACTIONS.
        """
        metadata = self._known(transactional_id, producer, now_ms)
        if metadata.producer_epoch != producer.epoch:
            raise _fenced(metadata, producer.epoch)
        if metadata.state in PREPARED:
            raise _concurrent(metadata)
        begins = metadata.state is not TransactionState.ONGOING
        if begins or not partitions <= metadata.partitions:
            changed = replace(metadata)
            changed.add_partitions(partitions, client_version, now_ms)
            self._take_step(changed)
            if begins:
                self._schedule_timeout(changed, now_ms)

    def verify_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: frozenset[TopicPartition],
        *,
        now_ms: int,
    ) -> dict[TopicPartition, ErrorCode]:
        """Tell for each partition whether it belongs to the producer's transaction.

        NONE or TRANSACTION_ABORTABLE. Raises RefusedError as `add_partitions`.
        """
        metadata = self._known(transactional_id, producer, now_ms)
        if metadata.producer_epoch != producer.epoch:
            raise _fenced(metadata, producer.epoch)
        if metadata.state in PREPARED:
            raise _concurrent(metadata)
        return {
            partition: ErrorCode.NONE
            if partition in metadata.partitions
            else ErrorCode.TRANSACTION_ABORTABLE
            for partition in partitions
        }

    def end(self, asked: EndTransaction, now_ms: int) -> ProducerIdAndEpoch:
        """End a producer's transaction; give what the producer is known by from now on.

        Nothing is given (`NO_PRODUCER_ID_AND_EPOCH`) to clients that keep their epoch. Raises
        RefusedError with INVALID_REQUEST, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED,
        INVALID_TXN_STATE or CONCURRENT_TRANSACTIONS.
        """
        if asked.client_version >= EPOCH_BUMP_VERSION:
            return self._end_and_bump(asked, now_ms)
        metadata = self._known(
            asked.transactional_id,
            ProducerIdAndEpoch(asked.producer_id, asked.producer_epoch),
            now_ms,
        )
        if asked.producer_epoch != metadata.producer_epoch:
            raise _fenced(metadata, asked.producer_epoch)
        if metadata.state is TransactionState.ONGOING:
            self._end(metadata, asked.client_version, now_ms, committed=asked.committed)
        elif metadata.state is _ENDS[asked.committed]:
            raise _concurrent(metadata)
        elif metadata.state is not _DONE[asked.committed]:
            raise _invalid_state(metadata, asked)
        return NO_PRODUCER_ID_AND_EPOCH

    def _end_and_bump(self, asked: EndTransaction, now_ms: int) -> ProducerIdAndEpoch:
        """End a transaction as from transaction.version 2 on (KIP-890)."""
        _check_transactional_id(asked.transactional_id)
        metadata = self.find(asked.transactional_id, now_ms)
        if metadata is None:
            raise _no_mapping(asked.transactional_id, asked.producer_id)
        overflowed = (
            metadata.previous_producer_id == asked.producer_id
            and asked.producer_epoch == MAX_EPOCH - 1
            and metadata.producer_epoch == 0
        )
        bumped = metadata.producer_epoch == asked.producer_epoch + 1
        same = metadata.producer_epoch == asked.producer_epoch
        if metadata.producer_id != asked.producer_id and not overflowed:
            raise _no_mapping(asked.transactional_id, asked.producer_id)
        state = metadata.state
        if state in PREPARED:
            is_valid = bumped
        elif state in _DONE.values():
            is_valid = bumped or overflowed or same
        else:
            is_valid = same
        if not is_valid:
            raise _fenced(metadata, asked.producer_epoch)
        if state is _ENDS[asked.committed]:
            raise _concurrent(metadata)
        repeated = bumped or overflowed
        if repeated and state is _DONE[asked.committed]:
            return metadata.identity
        nothing_to_abort = (
            not asked.committed
            and not repeated
            and (state is TransactionState.EMPTY or state in _DONE.values())
        )
        if state is not TransactionState.ONGOING and not nothing_to_abort:
            raise _invalid_state(metadata, asked)
        return self._end(metadata, asked.client_version, now_ms, committed=asked.committed)

    def _known(
        self, transactional_id: str, producer: ProducerIdAndEpoch, now_ms: int
    ) -> TransactionMetadata:
        _check_transactional_id(transactional_id)
        metadata = self.find(transactional_id, now_ms)
        if metadata is None or metadata.producer_id != producer.producer_id:
            raise _no_mapping(transactional_id, producer.producer_id)
        return metadata

    def _fence_and_abort(self, metadata: TransactionMetadata, now_ms: int) -> None:
        version = self._settings.transaction_version
        fenced = replace(metadata)
        fenced.fence()
        if version < EPOCH_BUMP_VERSION:
            fenced.bump_fencing_epoch()
        self._end(fenced, version, now_ms, committed=False)

    def _end(
        self, metadata: TransactionMetadata, version: int, now_ms: int, *, committed: bool
    ) -> ProducerIdAndEpoch:
        next_producer_id = NO_PRODUCER_ID
        if version >= EPOCH_BUMP_VERSION and metadata.epoch_exhausted:
            next_producer_id = self._new_producer_id()
        decided = replace(metadata)
        decided.prepare_end(_ENDS[committed], version, now_ms, next_producer_id=next_producer_id)
        self._take_step(decided)
        self._markers.begin(decided, now_ms, delay_ms=self._settings.transaction_marker_delay_ms)
        return decided.identity_after_completion

    def _schedule_timeout(self, metadata: TransactionMetadata, now_ms: int) -> None:
        """Look at a transaction at the first regular check after its timeout."""
        transactional_id, start_ms = metadata.transactional_id, metadata.start_ms
        interval_ms = self._settings.transaction_abort_interval_ms
        timed_out_ms = max(start_ms + metadata.timeout_ms + 1, now_ms)
        check_ms = math.ceil(timed_out_ms / interval_ms) * interval_ms

        def check(now: float) -> None:
            current = self._metadata.get(transactional_id)
            if (
                current is None
                or current.state is not TransactionState.ONGOING
                or current.start_ms != start_ms
            ):
                return  # It has ended; if the id has a transaction, it is a later one.
            logger.info("the transaction of %s has timed out", transactional_id)
            try:
                self._fence_and_abort(current, int(now * 1000))
            except RefusedError as refused:
                logger.warning("%s is aborted with the next check: %s", transactional_id, refused)
                self._schedule_timeout(current, check_ms + 1)

        self._timers.schedule(check_ms / 1000, check)


def _may_continue(metadata: TransactionMetadata, expected: ProducerIdAndEpoch) -> bool:
    """Tell whether a producer that names its id is, or may have been, the last one to have it."""
    return (
        metadata.producer_epoch == NO_PRODUCER_EPOCH
        or expected.producer_id == metadata.producer_id
        or (
            expected.producer_id == metadata.previous_producer_id
            and is_epoch_exhausted(expected.epoch)
        )
    )


def _check_transactional_id(transactional_id: str) -> None:
    if not transactional_id:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "a transactional id cannot be empty")


def _no_mapping(transactional_id: str, producer_id: int) -> RefusedError:
    return RefusedError(
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        f"{transactional_id} does not belong to producer {producer_id}",
    )


def _fenced(metadata: TransactionMetadata, producer_epoch: int) -> RefusedError:
    return RefusedError(
        ErrorCode.PRODUCER_FENCED,
        f"{metadata.transactional_id} belongs to a producer of epoch {metadata.producer_epoch}, "
        f"not {producer_epoch}",
    )


def _concurrent(metadata: TransactionMetadata) -> RefusedError:
    return RefusedError(
        ErrorCode.CONCURRENT_TRANSACTIONS,
        f"the last transaction of {metadata.transactional_id} is still being ended",
    )


def _invalid_state(metadata: TransactionMetadata, asked: EndTransaction) -> RefusedError:
    return RefusedError(
        ErrorCode.INVALID_TXN_STATE,
        f"{asked.transactional_id} is {metadata.state} and cannot be "
        f"{'committed' if asked.committed else 'aborted'}",
    )
