"""Produce 3-12: record batches for partitions, appended or refused partition by partition.

In Kafka's order (KafkaApis.handleProduceRequest, ReplicaManager.appendToLocalLog): the partition
exists; one batch of format 2; acks is -1, 0 or 1; no transaction; no internal topic; then
`log_validator` and the log itself, which knows the producer's sequence. min.insync.replicas cannot
be missed: Kafka asks for no more replicas than a partition has, and here it has one.

There is no transaction coordinator, so no transactional id is known to any: records that belong to
a transaction are INVALID_PRODUCER_ID_MAPPING, and without a transactional id in the request
TRANSACTIONAL_ID_AUTHORIZATION_FAILED for all partitions. Looking for them comes first, and so a
batch that does not even begin like one is CORRUPT_MESSAGE for all partitions, too.

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

NO_ACKS = 0
_VALID_ACKS = frozenset({-1, NO_ACKS, 1})
_NO_OFFSET = -1
_NO_TIMESTAMP = -1

#: The log's errors whose answer does not tell where it starts (ReplicaManager.appendToLocalLog).
_ERRORS_WITHOUT_LOG_START = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.CORRUPT_MESSAGE})


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
    try:
        partition = context.cluster.partition(topic_partition)
        batch = _acceptable_batch(context, request, partition, _records(data))
    except RefusedError as refused:
        return _refused_partition(data.index, refused, log_start_offset=_NO_OFFSET)
    try:
        return _append_batch(context, partition, batch)
    except RefusedError as refused:
        return _refused_partition(
            data.index,
            refused,
            log_start_offset=_NO_OFFSET
            if refused.error_code in _ERRORS_WITHOUT_LOG_START
            else partition.log.log_start_offset,
        )


def _acceptable_batch(
    context: RequestContext,
    request: ProduceRequest,
    partition: Partition,
    records: memoryview | None,
) -> memoryview:
    """Check what can be checked before the partition's log is asked."""
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
    if partition.topic.is_internal:
        raise RefusedError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"cannot append to internal topic {partition.topic.name}",
        )
    return batch


def _append_batch(
    context: RequestContext, partition: Partition, batch: memoryview
) -> PartitionProduceResponse:
    topic = partition.topic
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


def _refused_partition(
    index: int, refused: RefusedError, *, log_start_offset: int
) -> PartitionProduceResponse:
    return PartitionProduceResponse(
        index=index,
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
