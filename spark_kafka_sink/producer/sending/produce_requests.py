"""The conversion of batches to a ProduceRequest, and of its answer beyond the error code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.model import Node, TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode, error_name
from spark_kafka_sink.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spark_kafka_sink.network.cluster.metadata import MetadataSnapshot
    from spark_kafka_sink.producer.batch.producer_batch import ProducerBatch
    from spark_kafka_sink.protocol.messages.produce import (
        PartitionProduceResponse,
        ProduceResponse,
    )

#: Errors with which a broker may name the leader it knows of (KIP-951).
_LEADER_MOVED = {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH}


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
    answers: Mapping[TopicPartition, PartitionProduceResponse],
) -> dict[TopicPartition, tuple[int, int]]:
    """Return the new leaders, and their epochs, of partitions that have moved."""
    return {
        topic_partition: (answer.current_leader.leader_id, answer.current_leader.leader_epoch)
        for topic_partition, answer in answers.items()
        if answer.error_code in _LEADER_MOVED
        and answer.current_leader.leader_id >= 0
        and answer.current_leader.leader_epoch >= 0
    }


def hinted_nodes(response: ProduceResponse) -> list[Node]:
    """Return the addresses of the leaders that the answer names."""
    return [Node(each.node_id, each.host, each.port) for each in response.node_endpoints]


def record_errors(answer: PartitionProduceResponse) -> dict[int, str]:
    """Return why single records were refused, by their index in the batch (KIP-467)."""
    return {
        each.batch_index: each.batch_index_error_message
        or answer.error_message
        or error_name(answer.error_code)
        for each in answer.record_errors
    }


def refusal(node: Node, answer: PartitionProduceResponse) -> str:
    """Return a message that names the broker that refused a batch, and its reason."""
    context = f"{node} rejected the batch"
    if answer.record_errors:
        first = answer.record_errors[0]
        return f"{context} (record {first.batch_index}: {first.batch_index_error_message})"
    if answer.error_message:
        return f"{context} ({answer.error_message})"
    return context
