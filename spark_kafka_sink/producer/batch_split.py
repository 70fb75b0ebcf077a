"""Dividing a batch that turned out too large: before it is sent, or because a broker refused it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from spark_kafka_sink.producer.producer_batch import empty_header
from spark_kafka_sink.record.compression import CompressionType, Compressor, decompress
from spark_kafka_sink.record.split import split_payload

if TYPE_CHECKING:
    from spark_kafka_sink.producer.producer_batch import ProducerBatch

#: Our own batches never unpack to more; it only bounds a mistake.
MAX_UNCOMPRESSED_BYTES = 2**31 - 1


def split_batch(batch: ProducerBatch, records: memoryview, part_count: int) -> list[ProducerBatch]:
    """Divide a batch into about `part_count` smaller ones, whose payload is uncompressed yet.

    `records` are the batch's records, uncompressed.
    """
    parts = split_payload(
        records,
        record_count=batch.record_count,
        base_timestamp=batch.base_timestamp,
        max_bytes=-(-len(records) // part_count),
    )
    results = batch.result.divide([part.record_count for part in parts])
    batches = []
    rows = batch.rows
    for part, result in zip(parts, results, strict=True):
        batches.append(
            replace(
                batch,
                payload=memoryview(part.payload),
                uncompressed_bytes=len(part.payload),
                record_count=part.record_count,
                base_timestamp=part.base_timestamp,
                max_timestamp=part.max_timestamp,
                result=result,
                rows=rows,
                header=empty_header(),
                block=None,
            )
        )
        rows = rows and rows.behind(part.record_count)
    return batches


def split_refused_batch(batch: ProducerBatch, compressor: Compressor) -> list[ProducerBatch]:
    """Halve a closed batch that a broker refused as too large; the halves are ready to be sent."""
    if batch.compression is CompressionType.NONE:
        return split_batch(batch, batch.payload, 2)
    records = memoryview(decompress(batch.compression, batch.payload, MAX_UNCOMPRESSED_BYTES))
    halves = split_batch(batch, records, 2)
    for half in halves:
        half.payload = memoryview(compressor.compress(half.payload))
    return halves
