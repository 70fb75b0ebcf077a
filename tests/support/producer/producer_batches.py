"""Batches and cluster snapshots for tests of the producer's pure parts."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING
from uuid import UUID

from spark_kafka_sink.model import Node, TopicPartition
from spark_kafka_sink.network.metadata import (
    MetadataSnapshot,
    PartitionMetadata,
    TopicMetadata,
)
from spark_kafka_sink.producer.batch.produce_result import ProduceResult
from spark_kafka_sink.producer.batch.producer_batch import ProducerBatch
from spark_kafka_sink.record.compression import CompressionType
from spark_kafka_sink.record.default_record import PayloadPart

if TYPE_CHECKING:
    from collections.abc import Callable

NODES = {node_id: Node(node_id, "127.0.0.1", 9092 + node_id) for node_id in range(3)}


def batch(
    partition: int = 0, *, records: int = 1, size: int = 100, created_at: float = 0.0
) -> ProducerBatch:
    """Create a closed batch of topic `t` with a meaningless payload of `size` bytes."""
    topic_partition = TopicPartition("t", partition)
    return ProducerBatch(
        topic_partition=topic_partition,
        result=ProduceResult(topic_partition),
        payload=memoryview(bytes(size)),
        record_count=records,
        base_timestamp=0,
        max_timestamp=0,
        uncompressed_bytes=size,
        max_record_bytes=size,
        compression=CompressionType.LZ4,
        first_row=0,
        last_row=records - 1,
        created_at=created_at,
    )


def halves_of(*record_counts: int) -> Callable[..., list[PayloadPart]]:
    """Return a stand-in for `BatchCompression.halves` that returns parts of this many records."""
    return lambda *_: [
        PayloadPart(memoryview(bytes(50)), 50, count, 0, 0) for count in record_counts
    ]


def snapshot(leaders: dict[int, int | None], topic_id: int = 0) -> MetadataSnapshot:
    """Create a cluster where topic `t` has partitions led by these nodes (None: no leader)."""
    partitions = tuple(
        PartitionMetadata(leader_id=-1 if leader is None else leader)
        for _, leader in sorted(leaders.items())
    )
    topic = TopicMetadata(
        name="t", topic_id=UUID(int=topic_id), error_code=0, partitions=partitions
    )
    return MetadataSnapshot(nodes=MappingProxyType(NODES), topics=MappingProxyType({"t": topic}))
