"""Splitting a batch that turned out too large: before it is sent, or because a broker refused it.

Cutting and compressing take time but do not change the batch, so any thread may do both. The parts
become batches where the outcome of the original batch is decided.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.producer.batch.producer_batch import empty_header
from spark_kafka_sink.record.split import split_payload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_kafka_sink.producer.batch.producer_batch import ProducerBatch


class BatchPart(NamedTuple):
    """Some or all of a batch's records, as they will be sent once compressed."""

    payload: memoryview
    uncompressed_bytes: int
    record_count: int
    base_timestamp: int
    max_timestamp: int


def split_records(
    records: memoryview, *, record_count: int, base_timestamp: int, part_count: int
) -> list[BatchPart]:
    """Split uncompressed records into about `part_count` uncompressed parts."""
    return [
        BatchPart(
            payload=memoryview(part.payload),
            uncompressed_bytes=len(part.payload),
            record_count=part.record_count,
            base_timestamp=part.base_timestamp,
            max_timestamp=part.max_timestamp,
        )
        for part in split_payload(
            records,
            record_count=record_count,
            base_timestamp=base_timestamp,
            max_bytes=-(-len(records) // part_count),
        )
    ]


def batches_of(batch: ProducerBatch, parts: Sequence[BatchPart]) -> list[ProducerBatch]:
    """Create batches from the final parts of `batch`; a single part updates `batch` itself.

    The block that held its records still belongs to the original batch.
    """
    if len(parts) == 1:
        batch.payload = parts[0].payload
        batch.is_compressed = True
        return [batch]
    results = batch.result.divide([part.record_count for part in parts])
    batches = []
    rows = batch.rows
    for part, result in zip(parts, results, strict=True):
        batches.append(
            replace(
                batch,
                payload=part.payload,
                uncompressed_bytes=part.uncompressed_bytes,
                record_count=part.record_count,
                base_timestamp=part.base_timestamp,
                max_timestamp=part.max_timestamp,
                result=result,
                rows=rows,
                header=empty_header(),
                block=None,
                is_compressed=True,
            )
        )
        rows = rows and rows.behind(part.record_count)
    return batches
