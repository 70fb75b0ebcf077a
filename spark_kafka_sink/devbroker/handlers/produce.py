"""Produce 3-12: record batches for partitions, appended or refused partition by partition.

In Kafka's order (KafkaApis.handleProduceRequest, ReplicaManager.appendToLocalLog): the partition
exists; one batch of format 2; acks is -1, 0 or 1; no transaction; no internal topic; enough in-sync
replicas for acks=all; then `log_validator` and the log itself, which knows the producer's sequence.

There is no transaction coordinator, so no transactional id is known to any: records that belong to
a transaction are INVALID_PRODUCER_ID_MAPPING, and without a transactional id in the request
TRANSACTIONAL_ID_AUTHORIZATION_FAILED for all partitions.

With acks=0 there is no answer; an error then closes the connection. The answer to a duplicate has
the offset of the first time, and the batch's largest timestamp in the place of the log append time,
whatever the topic's timestamp type: so does Kafka's (UnifiedLog.append).
"""

# ruff: noqa: ARG002 - every handler has the signatures of Handler

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from spark_kafka_sink.devbroker.handlers.handler import Handler, RequestContext
from spark_kafka_sink.devbroker.log_validator import is_transactional, only_batch, validate_batch
from spark_kafka_sink.devbroker.refusal import CloseConnectionError, RefusedError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from spark_kafka_sink.protocol.schema import VersionRange

if TYPE_CHECKING:
    from spark_kafka_sink.devbroker.cluster_state import Partition

ACKS_ALL = -1
NO_ACKS = 0
_VALID_ACKS = frozenset({ACKS_ALL, NO_ACKS, 1})
_NO_OFFSET = -1
_NO_TIMESTAMP = -1

#: Errors whose answer does not tell the log's start (ReplicaManager.appendToLocalLog).
_ERRORS_WITHOUT_LOG_START = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INVALID_REQUIRED_ACKS,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
)


class ProduceHandler(Handler[ProduceRequest, ProduceResponse]):
    """Appends record batches."""

    api_key = ApiKey.PRODUCE
    versions = VersionRange(3, 12)

    def handle(self, context: RequestContext, request: ProduceRequest) -> ProduceResponse | None:
        """Append each partition's batch, or say why not."""
        if request.transactional_id is None and any(
            is_transactional(_records(partition))
            for topic in request.topic_data
            for partition in topic.partition_data
        ):
            raise RefusedError(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                "transactional records need a transactional id",
            )
        responses = tuple(
            TopicProduceResponse(
                name=topic.name,
                partition_responses=tuple(
                    _append(
                        context, request, TopicPartition(topic.name, partition.index), partition
                    )
                    for partition in topic.partition_data
                ),
            )
            for topic in request.topic_data
        )
        if request.acks != NO_ACKS:
            return ProduceResponse(responses=responses)
        for topic in responses:
            for partition in topic.partition_responses:
                if partition.error_code != ErrorCode.NONE:
                    raise CloseConnectionError(
                        f"error {partition.error_code} of {topic.name}-{partition.index} has no "
                        "answer with acks=0"
                    )
        return None

    def error_response(
        self,
        context: RequestContext,
        request: ProduceRequest,
        error_code: ErrorCode,
        message: str,
    ) -> ProduceResponse | None:
        """Answer that no batch was appended."""
        if request.acks == NO_ACKS:
            return None
        return ProduceResponse(
            responses=tuple(
                TopicProduceResponse(
                    name=topic.name,
                    partition_responses=tuple(
                        PartitionProduceResponse(
                            index=partition.index,
                            error_code=error_code,
                            base_offset=_NO_OFFSET,
                            error_message=message,
                        )
                        for partition in topic.partition_data
                    ),
                )
                for topic in request.topic_data
            )
        )


def _records(data: PartitionProduceData) -> memoryview | None:
    # A decoded records field is a memoryview or None; the wider type is what may be encoded.
    return cast("memoryview | None", data.records)


def _append(
    context: RequestContext,
    request: ProduceRequest,
    topic_partition: TopicPartition,
    data: PartitionProduceData,
) -> PartitionProduceResponse:
    partition: Partition | None = None
    try:
        partition = context.cluster.partition(topic_partition)
        return _append_to_partition(context, request, partition, _records(data))
    except RefusedError as refused:
        log_start_offset = _NO_OFFSET
        if partition is not None and refused.error_code not in _ERRORS_WITHOUT_LOG_START:
            log_start_offset = partition.log.log_start_offset
        return PartitionProduceResponse(
            index=data.index,
            error_code=refused.error_code,
            base_offset=_NO_OFFSET,
            log_start_offset=log_start_offset,
            record_errors=tuple(
                BatchIndexAndErrorMessage(
                    batch_index=record.batch_index, batch_index_error_message=record.message
                )
                for record in refused.record_errors
            ),
            error_message=refused.message,
        )


def _append_to_partition(
    context: RequestContext,
    request: ProduceRequest,
    partition: Partition,
    records: memoryview | None,
) -> PartitionProduceResponse:
    topic = partition.topic
    batch = only_batch(records, api_version=context.version)
    if request.acks not in _VALID_ACKS:
        raise RefusedError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks cannot be {request.acks}")
    if is_transactional(batch):
        raise RefusedError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING
            if request.transactional_id
            else ErrorCode.INVALID_REQUEST,
            "this broker coordinates no transactions",
        )
    if topic.is_internal:
        raise RefusedError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"cannot append to internal topic {topic.name}"
        )
    if request.acks == ACKS_ALL and len(partition.replicas) < topic.config.min_insync_replicas:
        raise RefusedError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"{len(partition.replicas)} in-sync replicas are fewer than min.insync.replicas "
            f"{topic.config.min_insync_replicas}",
        )
    batch, header = validate_batch(
        batch,
        topic.config,
        now_ms=context.now_ms,
        validate_records=context.settings.validate_records,
    )
    result = partition.log.append(batch, header)
    if not result.duplicate:
        context.appended.add(TopicPartition(topic.name, partition.index))
    tells_time = result.duplicate or topic.config.log_append_time
    return PartitionProduceResponse(
        index=partition.index,
        error_code=ErrorCode.NONE,
        base_offset=result.first_offset,
        log_append_time_ms=result.timestamp if tells_time else _NO_TIMESTAMP,
        log_start_offset=partition.log.log_start_offset,
    )
