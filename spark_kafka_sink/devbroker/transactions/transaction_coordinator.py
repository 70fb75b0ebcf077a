"""The coordinator of all transactions: their producers, their partitions, and how they end.

It makes the decisions of Kafka's TransactionCoordinator 4.3:

- A transactional id has one producer at a time. InitProducerId assigns it with a new epoch, which
  fences the previous producer; if a transaction is open, it first aborts that one and responds with
  CONCURRENT_TRANSACTIONS. When the epochs are exhausted, a new producer id is assigned.
- EndTxn with transaction.version 2 (version 5 of the API) bumps the epoch, which distinguishes a
  repeated request from the end of the next transaction. An abort is then allowed even if nothing
  was written. With older versions the epoch must match exactly, and a repeated request may end the
  next transaction: the problem that KIP-890 solves.
- The response to EndTxn precedes the markers; until they are written, further requests for the
  same id fail with CONCURRENT_TRANSACTIONS. Here they are written at once, or after
  `transaction_marker_delay_ms`.
- A transaction that stays open longer than its timeout is aborted, and its producer fenced, by a
  check that runs every `transaction_abort_interval_ms`.

Every step changes a copy of an id's metadata, which takes effect once it is written to the log, if
there is one (`coordinator_log`). A step that cannot be written is not taken, and the producer
retries. Once the outcome of a transaction is decided, its completion is retried until it succeeds:
markers that a partition cannot take now, and the record of the final state, are written again every
100 ms (Kafka's TransactionMarkerChannelManager), so that a full disk or a missing leader delays the
completion but never loses it. The log is read when the broker starts. Expired ids are removed when
they are next looked up.
"""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.topic_names import coordinator_partition
from spark_kafka_sink.devbroker.log.coordinator_log import (
    RecordKey,
    decode_versioned,
    encode_versioned,
)
from spark_kafka_sink.devbroker.log.producer_state import MAX_EPOCH, TransactionMarker
from spark_kafka_sink.devbroker.transactions.transaction_metadata import (
    EPOCH_BUMP_VERSION,
    EXPIRABLE,
    PREPARED,
    TransactionMetadata,
    TransactionState,
    is_epoch_exhausted,
)
from spark_kafka_sink.model import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_PRODUCER_ID_AND_EPOCH,
    ProducerIdAndEpoch,
    TopicPartition,
)
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.schema import (
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    Message,
    VersionRange,
    array,
    field,
    message,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spark_kafka_sink.devbroker.cluster.cluster_state import ClusterState
    from spark_kafka_sink.devbroker.log.coordinator_log import CoordinatorBatch, CoordinatorLog
    from spark_kafka_sink.protocol.messages.end_txn import EndTxnRequest

logger = logging.getLogger(__name__)

TRANSACTION_LOG_KEY = 0
_ENDS = {True: TransactionState.PREPARE_COMMIT, False: TransactionState.PREPARE_ABORT}
_DONE = {True: TransactionState.COMPLETE_COMMIT, False: TransactionState.COMPLETE_ABORT}
#: By Kafka's TransactionState.id.
_STATES = dict(enumerate(TransactionState))
_STATUS = {state: status for status, state in _STATES.items()}
#: Error codes after which writing a marker is retried, and the delay before the retry
#: (TransactionMarkerRequestCompletionHandler).
_RETRIABLE = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
_MARKER_BACKOFF_MS = 100


class TransactionCoordinator:
    """The coordinator of all transactional ids."""

    def __init__(self, cluster: ClusterState, log: CoordinatorLog) -> None:
        self._cluster = cluster
        self._settings = cluster.settings
        self._timers = cluster.timers
        self._log = log
        self._metadata: dict[str, TransactionMetadata] = {}

    def load(self, now: float) -> None:
        """Replace all ids by those in the log, and resume the transactions that were decided.

        The counterpart of TransactionStateManager.loadTransactionsForTxnTopicPartition.
        """
        self._metadata.clear()
        self._load(read_transactions(self._log), int(now * 1000))

    def load_partition(self, partition: int, now: float) -> None:
        """Load the ids of a partition that this broker begins to lead; see `load`."""
        self._load(read_transactions(self._log, partition), int(now * 1000))

    def unload_partition(self, partition: int) -> None:
        """Forget the ids of a partition that another broker leads now."""
        for name in [each for each in self._metadata if coordinator_partition(each) == partition]:
            del self._metadata[name]

    def _load(self, transactions: Mapping[str, TransactionMetadata], now_ms: int) -> None:
        self._metadata.update(transactions)
        for metadata in transactions.values():
            if metadata.state in PREPARED:
                self._complete_later(metadata, sorted(metadata.partitions), now_ms)
            elif metadata.state is TransactionState.ONGOING:
                self._schedule_timeout(metadata, now_ms)

    def _take_step(self, changed: TransactionMetadata) -> None:
        """Write changed metadata of an id, then apply it.

        Raises RefusedError with NOT_COORDINATOR if it cannot be written; then nothing has changed.
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
        """Return the metadata of an id; remove it if it has expired."""
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
                logger.warning(
                    "cannot expire transactional id %s yet: %s", transactional_id, refused
                )
            else:
                return None
        return metadata

    def all(self, now_ms: int) -> list[TransactionMetadata]:
        """Return the metadata of all ids, in the order of their creation."""
        found = [self.find(transactional_id, now_ms) for transactional_id in list(self._metadata)]
        return [metadata for metadata in found if metadata is not None]

    def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None,
        now_ms: int,
    ) -> ProducerIdAndEpoch:
        """Assign an id to a producer; `expected` is the producer's previous identity, if any.

        Raises RefusedError with INVALID_REQUEST, INVALID_TRANSACTION_TIMEOUT, PRODUCER_FENCED or
        CONCURRENT_TRANSACTIONS.
        """
        _check_transactional_id(transactional_id)
        if not 0 < timeout_ms <= self._settings.transaction_max_timeout_ms:
            raise RefusedError(
                ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                f"transaction.timeout.ms is {timeout_ms} but must be between 1 and "
                f"transaction.max.timeout.ms, {self._settings.transaction_max_timeout_ms}",
            )
        metadata = self.find(transactional_id, now_ms)
        if metadata is None:
            metadata = TransactionMetadata(
                transactional_id=transactional_id,
                producer_id=self._cluster.next_producer_id(),
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
                f"the open transaction of {transactional_id} is being aborted: retry",
            )
        changed = replace(metadata)
        if metadata.epoch_exhausted and (
            expected is None or expected.epoch == metadata.producer_epoch
        ):
            changed.rotate_producer_id(
                self._cluster.next_producer_id(),
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
        """Add partitions to the open transaction, or begin one with them.

        Raises RefusedError with INVALID_REQUEST, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED or
        CONCURRENT_TRANSACTIONS.
        """
        metadata = self._usable_by(transactional_id, producer, now_ms)
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
        """Return for each partition whether it belongs to the producer's transaction.

        The code is NONE or TRANSACTION_ABORTABLE. Raises RefusedError as `add_partitions`.
        """
        metadata = self._usable_by(transactional_id, producer, now_ms)
        return {
            partition: ErrorCode.NONE
            if partition in metadata.partitions
            else ErrorCode.TRANSACTION_ABORTABLE
            for partition in partitions
        }

    def end(
        self, request: EndTxnRequest, now_ms: int, *, client_version: int
    ) -> ProducerIdAndEpoch:
        """End a producer's transaction; return the producer's identity from now on.

        `client_version` is 2 from EndTxn version 5, otherwise 0. The identity is
        `NO_PRODUCER_ID_AND_EPOCH` for clients that keep their epoch. Raises RefusedError with
        INVALID_REQUEST, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, INVALID_TXN_STATE or
        CONCURRENT_TRANSACTIONS.
        """
        if client_version >= EPOCH_BUMP_VERSION:
            return self._end_and_bump(request, now_ms, client_version)
        metadata = self._owned_by(
            request.transactional_id,
            ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
            now_ms,
        )
        if metadata.state is TransactionState.ONGOING:
            self._end(metadata, client_version, now_ms, committed=request.committed)
        elif metadata.state is _ENDS[request.committed]:
            raise _concurrent(metadata)
        elif metadata.state is not _DONE[request.committed]:
            raise _invalid_state(metadata, request)
        return NO_PRODUCER_ID_AND_EPOCH

    def _end_and_bump(
        self, request: EndTxnRequest, now_ms: int, client_version: int
    ) -> ProducerIdAndEpoch:
        """End a transaction with transaction.version 2 (KIP-890)."""
        _check_transactional_id(request.transactional_id)
        metadata = self.find(request.transactional_id, now_ms)
        if metadata is None:
            raise _no_mapping(request.transactional_id, request.producer_id)
        overflowed = (
            metadata.previous_producer_id == request.producer_id
            and request.producer_epoch == MAX_EPOCH - 1
            and metadata.producer_epoch == 0
        )
        bumped = metadata.producer_epoch == request.producer_epoch + 1
        same = metadata.producer_epoch == request.producer_epoch
        if metadata.producer_id != request.producer_id and not overflowed:
            raise _no_mapping(request.transactional_id, request.producer_id)
        state = metadata.state
        if state in PREPARED:
            is_valid = bumped
        elif state in _DONE.values():
            is_valid = bumped or overflowed or same
        else:
            is_valid = same
        if not is_valid:
            raise _fenced(metadata, request.producer_epoch)
        if state is _ENDS[request.committed]:
            raise _concurrent(metadata)
        repeated = bumped or overflowed
        if repeated and state is _DONE[request.committed]:
            return metadata.identity
        nothing_to_abort = (
            not request.committed
            and not repeated
            and (state is TransactionState.EMPTY or state in _DONE.values())
        )
        if state is not TransactionState.ONGOING and not nothing_to_abort:
            raise _invalid_state(metadata, request)
        return self._end(metadata, client_version, now_ms, committed=request.committed)

    def _usable_by(
        self, transactional_id: str, producer: ProducerIdAndEpoch, now_ms: int
    ) -> TransactionMetadata:
        """Return the metadata of a producer that may use its transaction. Raises RefusedError."""
        metadata = self._owned_by(transactional_id, producer, now_ms)
        if metadata.state in PREPARED:
            raise _concurrent(metadata)
        return metadata

    def _owned_by(
        self, transactional_id: str, producer: ProducerIdAndEpoch, now_ms: int
    ) -> TransactionMetadata:
        """Return the metadata of an id that this producer has now. Raises RefusedError."""
        _check_transactional_id(transactional_id)
        metadata = self.find(transactional_id, now_ms)
        if metadata is None or metadata.producer_id != producer.producer_id:
            raise _no_mapping(transactional_id, producer.producer_id)
        if metadata.producer_epoch != producer.epoch:
            raise _fenced(metadata, producer.epoch)
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
            next_producer_id = self._cluster.next_producer_id()
        decided = replace(metadata)
        decided.prepare_end(_ENDS[committed], version, now_ms, next_producer_id=next_producer_id)
        self._take_step(decided)
        partitions = sorted(decided.partitions)
        if delay_ms := self._settings.transaction_marker_delay_ms:
            self._complete_later(decided, partitions, now_ms + delay_ms)
        else:
            self._complete(decided, partitions, now_ms)
        return decided.identity_after_completion

    def _schedule_timeout(self, metadata: TransactionMetadata, now_ms: int) -> None:
        """Schedule the abort of a transaction for the first regular check after its timeout."""
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
                return  # It has ended; a transaction that the id has now is a later one.
            logger.info("aborting the transaction of %s: it has timed out", transactional_id)
            try:
                self._fence_and_abort(current, int(now * 1000))
            except RefusedError as refused:
                logger.warning(
                    "cannot abort the transaction of %s yet: %s", transactional_id, refused
                )
                self._schedule_timeout(current, check_ms + 1)

        self._timers.schedule(check_ms / 1000, check)

    def _complete_later(
        self,
        decided: TransactionMetadata,
        partitions: Sequence[TopicPartition],
        when_ms: int,
        *,
        is_retry: bool = False,
    ) -> None:
        self._timers.schedule(
            when_ms / 1000,
            lambda now: self._complete(decided, partitions, int(now * 1000), is_retry=is_retry),
        )

    def _complete(
        self,
        decided: TransactionMetadata,
        partitions: Sequence[TopicPartition],
        now_ms: int,
        *,
        is_retry: bool = False,
    ) -> None:
        """Write the markers that the partitions can take; schedule a retry for the others.

        Until all markers and the final state are written, the id's metadata remains `decided`.
        """
        if self._metadata.get(decided.transactional_id) is not decided:
            return  # Another broker has become the coordinator, and completes it.
        marker = TransactionMarker(
            producer_id=decided.producer_id,
            producer_epoch=decided.producer_epoch,
            committed=decided.state is TransactionState.PREPARE_COMMIT,
            coordinator_epoch=self._cluster.coordinator_epoch(decided.transactional_id),
            transaction_version=decided.client_version,
            timestamp=now_ms,
        )

        def written(refusals: Mapping[TopicPartition, RefusedError], then: float) -> None:
            self._written(decided, refusals, int(then * 1000), is_retry=is_retry)

        self._cluster.write_markers(decided.transactional_id, partitions, marker, written)

    def _written(
        self,
        decided: TransactionMetadata,
        refusals: Mapping[TopicPartition, RefusedError],
        now_ms: int,
        *,
        is_retry: bool,
    ) -> None:
        """Handle that all partitions have their markers, except for those that refused them."""
        if self._metadata.get(decided.transactional_id) is not decided:
            return
        problem: RefusedError | None = None
        for refused in refusals.values():
            if refused.error_code not in _RETRIABLE:
                # As in TransactionMarkerRequestCompletionHandler: the partition has seen a newer
                # epoch, and this transaction is left as it is.
                logger.warning(
                    "cannot write the markers of %s: %s", decided.transactional_id, refused
                )
                return
            problem = refused
        left = list(refusals)
        if not left:
            completed = replace(decided)
            completed.complete(now_ms)
            try:
                self._take_step(completed)
            except RefusedError as refused:
                problem = refused
            else:
                return
        if not is_retry:
            logger.warning(
                "cannot complete the transaction of %s, retrying every %d ms: %s",
                decided.transactional_id,
                _MARKER_BACKOFF_MS,
                problem,
            )
        self._complete_later(decided, left, now_ms + _MARKER_BACKOFF_MS, is_retry=True)


def _may_continue(metadata: TransactionMetadata, expected: ProducerIdAndEpoch) -> bool:
    """Return whether a producer that names its identity owns the id, or may have owned it last."""
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
        f"the producer epoch of {metadata.transactional_id} is {metadata.producer_epoch}, "
        f"not {producer_epoch}",
    )


def _concurrent(metadata: TransactionMetadata) -> RefusedError:
    return RefusedError(
        ErrorCode.CONCURRENT_TRANSACTIONS,
        f"the previous transaction of {metadata.transactional_id} is not yet complete",
    )


def _invalid_state(metadata: TransactionMetadata, request: EndTxnRequest) -> RefusedError:
    return RefusedError(
        ErrorCode.INVALID_TXN_STATE,
        f"the transaction of {request.transactional_id} in state {metadata.state} cannot be "
        f"{'committed' if request.committed else 'aborted'}",
    )


# --- the records of __transaction_state (Kafka's TransactionLog)


@message
class TransactionLogKey(RecordKey):
    """The key of a transactional id."""

    versions = VersionRange(0, 0)

    transactional_id: str = field(STRING)


@message
class PartitionsSchema:
    """The partitions of a topic in a transaction."""

    topic: str = field(STRING)
    partition_ids: tuple[int, ...] = field(array(INT32))


@message
class TransactionLogValue(Message):
    """The state of a transactional id."""

    versions = VersionRange(0, 1)
    flexible_from = 1

    producer_id: int = field(INT64)
    previous_producer_id: int = field(INT64, versions="1+", tag=0, default=-1, ignorable=True)
    next_producer_id: int = field(INT64, versions="1+", tag=1, default=-1, ignorable=True)
    producer_epoch: int = field(INT16)
    transaction_timeout_ms: int = field(INT32)
    transaction_status: int = field(INT8)
    transaction_partitions: tuple[PartitionsSchema, ...] | None = field(
        array(PartitionsSchema), nullable="0+"
    )
    transaction_last_update_timestamp_ms: int = field(INT64)
    transaction_start_timestamp_ms: int = field(INT64)
    client_transaction_version: int = field(INT16, versions="1+", tag=2, default=0, ignorable=True)


def encode_transaction(
    metadata: TransactionMetadata, *, transaction_version: int
) -> tuple[bytes, bytes | None]:
    """Encode the metadata of an id; for a dead one, a tombstone.

    From transaction.version 1 the value's version is one that can hold other producer ids.
    """
    key = encode_versioned(
        TransactionLogKey(transactional_id=metadata.transactional_id), TRANSACTION_LOG_KEY
    )
    if metadata.state is TransactionState.DEAD:
        return key, None
    partitions = tuple(
        PartitionsSchema(topic=topic, partition_ids=tuple(index for _, index in group))
        for topic, group in groupby(sorted(metadata.partitions), key=attrgetter("topic"))
    )
    value = TransactionLogValue(
        producer_id=metadata.producer_id,
        previous_producer_id=metadata.previous_producer_id,
        next_producer_id=metadata.next_producer_id,
        producer_epoch=metadata.producer_epoch,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_status=_STATUS[metadata.state],
        # As in Kafka, an id without a transaction has null partitions, not an empty list.
        transaction_partitions=None if metadata.state is TransactionState.EMPTY else partitions,
        transaction_last_update_timestamp_ms=metadata.last_update_ms,
        transaction_start_timestamp_ms=metadata.start_ms,
        client_transaction_version=metadata.client_version,
    )
    return key, encode_versioned(value, min(transaction_version, 1))


def read_transactions(
    log: CoordinatorLog, partition: int | None = None
) -> dict[str, TransactionMetadata]:
    """Return the latest metadata of each id in the log, or in one partition of it.

    Raises CorruptRecordError.
    """
    transactions: dict[str, TransactionMetadata] = {}

    def apply(batch: CoordinatorBatch) -> None:
        for record in batch.records:
            key = decode_versioned(TransactionLogKey, record.key or b"")
            if record.value is None:
                transactions.pop(key.transactional_id, None)
            else:
                value = decode_versioned(TransactionLogValue, record.value)
                transactions[key.transactional_id] = _metadata(key.transactional_id, value)

    log.replay(apply, partition)
    return transactions


def _metadata(transactional_id: str, value: TransactionLogValue) -> TransactionMetadata:
    return TransactionMetadata(
        transactional_id=transactional_id,
        producer_id=value.producer_id,
        timeout_ms=value.transaction_timeout_ms,
        last_update_ms=value.transaction_last_update_timestamp_ms,
        producer_epoch=value.producer_epoch,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        state=_STATES[value.transaction_status],
        partitions={
            TopicPartition(partitions.topic, index)
            for partitions in value.transaction_partitions or ()
            for index in partitions.partition_ids
        },
        start_ms=value.transaction_start_timestamp_ms,
        client_version=value.client_transaction_version,
    )
