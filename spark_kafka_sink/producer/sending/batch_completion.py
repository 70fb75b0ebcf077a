"""The request in which batches are sent, and the outcome of each batch: done or put back.

This runs on the network thread. `BatchCompletion` is Kafka's Sender from completeBatch on: every
answered or unanswered batch is completed, put back for a retry, split, or failed, according to the
table of `error_rules`. Nothing here sends, waits or reads a clock.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from spark_kafka_sink.errors import (
    BrokerError,
    DecodeError,
    IllegalStateError,
    KafkaError,
    NetworkError,
)
from spark_kafka_sink.model import UNKNOWN_OFFSET, Node, PartitionAcks, TopicPartition
from spark_kafka_sink.producer.batch.batch_compression import batches_of
from spark_kafka_sink.producer.batch.error_rules import (
    MAY_BE_APPENDED,
    ProduceAction,
    delivery_error,
    produce_action,
    refused_records,
)
from spark_kafka_sink.producer.batch.interrupts import interruption_error
from spark_kafka_sink.producer.batch.produce_result import NO_LOG_APPEND_TIME, RefusedRecords
from spark_kafka_sink.producer.batch.set_aside import SetAsideRows, own_errors
from spark_kafka_sink.producer.sending.transaction_manager import ADD_PARTITIONS_RETRY_BACKOFF
from spark_kafka_sink.protocol.error_codes import ErrorCode, broker_error, error_name, is_retriable
from spark_kafka_sink.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
    partition_responses,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from spark_kafka_sink.network.exponential_backoff import ExponentialBackoff
    from spark_kafka_sink.network.metadata import Metadata, MetadataSnapshot
    from spark_kafka_sink.producer.batch.batch_compression import (
        BatchCompression,
        DividedBatch,
        WorkOutcome,
    )
    from spark_kafka_sink.producer.batch.producer_batch import ProducerBatch
    from spark_kafka_sink.producer.batch.set_aside import SetAsideTray
    from spark_kafka_sink.producer.sender_metrics import SenderMetrics
    from spark_kafka_sink.producer.sending.record_accumulator import RecordAccumulator
    from spark_kafka_sink.producer.sending.transaction_manager import TransactionManager
    from spark_kafka_sink.protocol.messages.produce import PartitionProduceResponse, ProduceResponse

#: Errors with which a broker may name the leader it knows of (KIP-951).
_LEADER_MOVED = {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH}


class BatchCompletion:
    """The handling of batches that were sent, or could not be sent."""

    def __init__(
        self,
        *,
        metadata: Metadata,
        accumulator: RecordAccumulator,
        transaction_manager: TransactionManager | None,
        compression: BatchCompression,
        run_aside: Callable[[Callable[[], Any], Callable[[WorkOutcome, float], None]], None],
        retries: int,
        retry_backoff: ExponentialBackoff,
        listener: SenderMetrics,
        tray: SetAsideTray,
    ) -> None:
        """Create the handler; see `Sender`. `run_aside` also passes the time of each outcome."""
        self._tray = tray
        self._metadata = metadata
        self._accumulator = accumulator
        self._transaction_manager = transaction_manager
        self._compression = compression
        self._run_aside = run_aside
        self._retries = retries
        self._retry_backoff = retry_backoff
        self._listener = listener
        #: The acknowledgements since the last `take_acks`, by partition.
        self.acks: dict[TopicPartition, PartitionAcks] = {}

    def take_acks(self) -> dict[TopicPartition, PartitionAcks]:
        """Return `acks` and reset them; any thread may call this after a flush."""
        taken_acks, self.acks = self.acks, {}
        return taken_acks

    def on_unanswered(
        self, batches: Sequence[ProducerBatch], error: BaseException, now: float
    ) -> None:
        """Retry unanswered batches after a NetworkError; fail them after any other error."""
        failure = error if isinstance(error, Exception) else KafkaError(repr(error))
        self._accumulator.no_longer_held(batches)
        for batch in batches:
            if not batch.is_done:
                self._retry_or_fail(
                    batch, failure, can_retry=isinstance(error, NetworkError), now=now
                )

    def on_sent_without_response(self, batches: Sequence[ProducerBatch]) -> None:
        """Complete batches whose offsets will never be known (acks=0)."""
        self._accumulator.no_longer_held(batches)
        for batch in batches:
            if not batch.is_done:
                self._complete(batch, UNKNOWN_OFFSET, NO_LOG_APPEND_TIME)

    def on_too_large(self, batch: ProducerBatch, now: float) -> None:
        """Split a batch of several records that its broker does not accept."""
        self._accumulator.no_longer_held([batch])
        self._split(batch, now)

    def on_response(
        self,
        node: Node,
        request: ProduceRequest,
        batches: Sequence[ProducerBatch],
        response: ProduceResponse,
        now: float,
    ) -> None:
        """Handle each batch of a request as its broker answered."""
        self._accumulator.no_longer_held(batches)
        responses = partition_responses(request, response)
        hints = leader_hints(responses)
        moved = self._metadata.update_leaders(hints, hinted_nodes(response)) if hints else set()
        for batch in batches:
            if not batch.is_done:
                partition_response = responses.get(batch.topic_partition)
                self._on_partition_response(
                    node,
                    batch,
                    partition_response,
                    now,
                    has_new_leader=batch.topic_partition in moved,
                )

    def _on_partition_response(
        self,
        node: Node,
        batch: ProducerBatch,
        response: PartitionProduceResponse | None,
        now: float,
        *,
        has_new_leader: bool,
    ) -> None:
        if response is None:
            error = DecodeError(f"the response of {node} does not include {batch.topic_partition}")
            self._retry_or_fail(batch, error, can_retry=True, now=now)
            return
        code = response.error_code
        action = produce_action(code)
        if action is ProduceAction.COMPLETE:
            # A duplicate of a batch that the broker no longer remembers: it was appended, but its
            # offset is not known.
            offset = response.base_offset if code == ErrorCode.NONE else UNKNOWN_OFFSET
            # For a duplicate the broker returns the latest timestamp, no matter who set it.
            is_replaced = response.log_append_time_ms != batch.max_timestamp
            append_time = response.log_append_time_ms if is_replaced else NO_LOG_APPEND_TIME
            self._complete(batch, offset, append_time)
            return
        if action is ProduceAction.REFRESH_METADATA:
            self._metadata.request_update()
        if action is ProduceAction.SPLIT and batch.record_count > 1:
            self._split(batch, now)
            return
        messages = record_errors(response)
        refused_by = broker_error(code, refusal(node, response))
        if self._tray.is_open:
            own = own_errors(batch, code, str(refused_by), messages)
            if own and self._may_set_aside(batch):
                self._set_aside(batch, own, refused_by)
                return
        self._retry_or_fail(
            batch,
            refused_by,
            can_retry=self._can_retry(batch, action, response),
            now=now,
            at_once=has_new_leader,
            outcome_known=not is_retriable(code),
            refused=refused_records(batch, messages),
        )

    def _can_retry(
        self, batch: ProducerBatch, action: ProduceAction, response: PartitionProduceResponse
    ) -> bool:
        if action is ProduceAction.BUMP_EPOCH and self._transaction_manager is not None:
            # The partition may have to restart.
            return self._transaction_manager.sequences.can_retry(
                batch, response.error_code, response.log_start_offset
            )
        return action in {ProduceAction.RETRY, ProduceAction.REFRESH_METADATA}

    def compress(self, batch: ProducerBatch) -> None:
        """Start compressing a queued batch; it keeps its place in the queue meanwhile."""
        batch.is_with_worker = True
        self._run_aside(
            partial(self._compression.compressed, batch), partial(self._on_compressed, batch)
        )

    def _on_compressed(self, batch: ProducerBatch, outcome: WorkOutcome, now: float) -> None:
        if self._take_back(batch, outcome, now):
            self._accumulator.put_compressed(batch, batches_of(batch, outcome.result))

    def _split(self, batch: ProducerBatch, now: float) -> None:
        self._compression.sizes.lower(batch.topic_partition.topic, batch.size_bytes)
        # The batches after it would only be refused as out of order.
        self._accumulator.hold_back(batch.topic_partition)
        batch.is_with_worker = True
        self._run_aside(partial(self._compression.halves, batch), partial(self._on_split, batch))
        self._listener.on_batch_split(now)

    def _on_split(self, batch: ProducerBatch, outcome: WorkOutcome, now: float) -> None:
        if self._take_back(batch, outcome, now):
            self._accumulator.replace(batch, batches_of(batch, outcome.result))

    # --- records that their broker refused for themselves

    def _may_set_aside(self, batch: ProducerBatch) -> bool:
        """Return whether the others of the batch may be sent again.

        An earlier attempt without an answer may have been appended, or may be appended yet.
        """
        manager = self._transaction_manager
        return not batch.may_be_appended and (manager is None or manager.may_set_aside(batch))

    def _set_aside(
        self, batch: ProducerBatch, errors: Mapping[int, str], error: BrokerError
    ) -> None:
        # The batches after it would only be refused as out of order.
        self._accumulator.hold_back(batch.topic_partition)
        batch.is_with_worker = True
        self._run_aside(
            partial(self._compression.divided, batch, errors),
            partial(self._on_divided, batch, errors, error),
        )

    def _on_divided(
        self,
        batch: ProducerBatch,
        errors: Mapping[int, str],
        error: BrokerError,
        outcome: WorkOutcome,
        now: float,
    ) -> None:
        if not self._take_back(batch, outcome, now):
            return
        divided: DividedBatch | None = outcome.result
        # Meanwhile, a later batch may have been left without an answer.
        if divided is None or not self._may_set_aside(batch):
            refused = refused_records(batch, errors)
            self.fail_batch(batch, error, now=now, outcome_known=True, refused=refused)
            return
        self._tray.add(
            SetAsideRows(
                batch.topic_partition,
                error.code,
                list(errors.values()),
                divided.rows,
                divided.taken,
            )
        )
        self._accumulator.set_aside(batch, divided.rest)

    def _take_back(self, batch: ProducerBatch, outcome: WorkOutcome, now: float) -> bool:
        """Take a batch back from the worker; return False if it has failed, there or meanwhile."""
        self._accumulator.no_longer_held([batch])
        if not batch.is_done and outcome.error is not None:
            self.fail_batch(batch, interruption_error(outcome.error), now=now, outcome_known=True)
        return not batch.is_done

    def _complete(self, batch: ProducerBatch, offset: int, log_append_time_ms: int) -> None:
        known = offset != UNKNOWN_OFFSET
        acks = PartitionAcks(
            first_offset=offset,
            last_offset=offset + batch.record_count - 1 if known else UNKNOWN_OFFSET,
            records=batch.record_count,
            bytes=batch.size_bytes,
            log_append_time=log_append_time_ms != NO_LOG_APPEND_TIME,
        )
        so_far = self.acks
        earlier = so_far.get(batch.topic_partition)
        so_far[batch.topic_partition] = acks if earlier is None else earlier.merged(acks)
        self._accumulator.complete(batch, base_offset=offset, log_append_time_ms=log_append_time_ms)

    def _retry_or_fail(
        self,
        batch: ProducerBatch,
        error: Exception,
        *,
        can_retry: bool,
        now: float,
        at_once: bool = False,
        outcome_known: bool = False,
        refused: RefusedRecords | None = None,
    ) -> None:
        """Put a batch back, or fail it. A batch that has expired by now fails at the next check."""
        may_be_appended = not isinstance(error, BrokerError) or error.code in MAY_BE_APPENDED
        if may_be_appended and self._loses_number(batch):
            can_retry = False
        if not can_retry or batch.attempts >= self._retries:
            self.fail_batch(batch, error, now=now, outcome_known=outcome_known, refused=refused)
            return
        batch.last_error = error
        if may_be_appended:
            batch.may_be_appended = True
        batch.retry_at = now + (0.0 if at_once else self._retry_delay(batch, error))
        batch.attempts += 1
        self._accumulator.reenqueue([batch])
        self._listener.on_batch_retried(batch, now)

    def _loses_number(self, batch: ProducerBatch) -> bool:
        manager = self._transaction_manager
        return manager is not None and manager.sequences.loses_number(batch)

    def _retry_delay(self, batch: ProducerBatch, error: Exception) -> float:
        if getattr(error, "code", None) == ErrorCode.CONCURRENT_TRANSACTIONS:
            # The markers of the previous transaction are still being written, which takes only a
            # moment.
            return ADD_PARTITIONS_RETRY_BACKOFF
        return self._retry_backoff.delay(batch.attempts)

    def fail_batch(
        self,
        batch: ProducerBatch,
        cause: Exception,
        *,
        now: float,
        outcome_known: bool,
        refused: RefusedRecords | None = None,
    ) -> None:
        """Fail one batch, and end the transaction or producer that depends on it."""
        error = delivery_error(batch, cause, refused)
        manager = self._transaction_manager
        if manager is not None:
            try:
                manager.handle_failed_batch(batch, cause, outcome_known=outcome_known)
            except IllegalStateError as illegal:
                # The manager has ended the producer with this error (KAFKA-14831).
                error = delivery_error(batch, illegal)
        self._listener.on_batch_failed(batch, now)
        self._accumulator.fail_batch(batch, error, refused=refused)
        if manager is not None and manager.state.has_fatal_error:
            self._accumulator.fail(error)


# --- the request, and what its answer says beyond the error code


def produce_request(
    batches: Sequence[ProducerBatch],
    snapshot: MetadataSnapshot,
    *,
    transactional_id: str | None,
    acks: int,
    timeout_ms: int,
) -> ProduceRequest:
    """Build one request from batches of different partitions, all led by one broker."""
    topics: dict[str, list[PartitionProduceData]] = {}
    for batch in batches:
        topics.setdefault(batch.topic_partition.topic, []).append(
            PartitionProduceData(index=batch.topic_partition.partition, records=batch.buffers())
        )
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=tuple(
            TopicProduceData(
                name=topic, topic_id=snapshot.topic_id(topic), partition_data=tuple(partitions)
            )
            for topic, partitions in topics.items()
        ),
    )


def leader_hints(
    responses: Mapping[TopicPartition, PartitionProduceResponse],
) -> dict[TopicPartition, tuple[int, int]]:
    """Return the new leaders, and their epochs, of partitions that have moved."""
    return {
        topic_partition: (response.current_leader.leader_id, response.current_leader.leader_epoch)
        for topic_partition, response in responses.items()
        if response.error_code in _LEADER_MOVED
        and response.current_leader.leader_id >= 0
        and response.current_leader.leader_epoch >= 0
    }


def hinted_nodes(response: ProduceResponse) -> list[Node]:
    """Return the addresses of the leaders that the answer names."""
    return [Node(leader.node_id, leader.host, leader.port) for leader in response.node_endpoints]


def record_errors(response: PartitionProduceResponse) -> dict[int, str]:
    """Return why single records were refused, by their index in the batch (KIP-467)."""
    return {
        error.batch_index: error.batch_index_error_message
        or response.error_message
        or error_name(response.error_code)
        for error in response.record_errors
    }


def refusal(node: Node, response: PartitionProduceResponse) -> str:
    """Return a message that names the broker that refused a batch, and its reason."""
    context = f"{node} rejected the batch"
    if response.record_errors:
        first = response.record_errors[0]
        return f"{context} (record {first.batch_index}: {first.batch_index_error_message})"
    if response.error_message:
        return f"{context} ({response.error_message})"
    return context
