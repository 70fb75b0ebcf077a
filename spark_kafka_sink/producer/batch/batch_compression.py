"""The compression and the splitting of closed batches, on a thread that can afford the time.

A thread that writes records compresses the batches it closes, so a slow codec slows down the
writer. The network thread never compresses; it leaves that to a worker. A batch is split if it
turned out too large: before it is sent, or because a broker refused it.

Splitting and compressing take time but do not change the batch, so any thread may do both. The
parts become batches (`batches_of`) where the outcome of the original batch is decided.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.producer.batch.producer_batch import empty_header
from spark_kafka_sink.record.compression import decompress
from spark_kafka_sink.record.compression_ratio import CompressionRatioEstimator
from spark_kafka_sink.record.default_record import split_payload
from spark_kafka_sink.record.record_batch import RECORD_BATCH_OVERHEAD

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spark_kafka_sink.producer.batch.producer_batch import ProducerBatch
    from spark_kafka_sink.record.compression import Compressor

#: A closed batch may exceed batch.size by this factor (a broker's default message.max.bytes exceeds
#: our default batch.size by as much); a larger one is split before it gets a sequence number.
OVERSHOOT = 1.048
#: Our own batches never decompress to more; the limit only bounds the effect of a bug.
MAX_UNCOMPRESSED_BYTES = 2**31 - 1


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


class BatchCompression:
    """One codec, and its estimated ratio for each topic. Any thread may use it."""

    def __init__(self, compressor: Compressor, batch_size_of: Callable[[str], int]) -> None:
        """Use `compressor`; `batch_size_of` returns the largest batch size of a topic in bytes."""
        self.codec = compressor.compression
        self._compressor = compressor
        self._batch_size_of = batch_size_of
        self._ratios = CompressionRatioEstimator()

    def estimated_ratio(self, topic: str) -> float:
        """Return the expected compression ratio of a topic's next batch; 1 before the first."""
        return self._ratios.estimation(topic, self.codec)

    def compressed(self, batch: ProducerBatch) -> list[BatchPart]:
        """Compress a batch, in as many parts as needed for each to be about batch.size."""
        return self._compressed(
            batch.topic_partition.topic,
            BatchPart(
                payload=batch.payload,
                uncompressed_bytes=batch.uncompressed_bytes,
                record_count=batch.record_count,
                base_timestamp=batch.base_timestamp,
                max_timestamp=batch.max_timestamp,
            ),
        )

    def _compressed(self, topic: str, part: BatchPart) -> list[BatchPart]:
        # batch.size=0 turns batching off; any record exceeds 1 as well.
        batch_size = max(self._batch_size_of(topic), 1)
        whole = part._replace(payload=memoryview(self._compressor.compress(part.payload)))
        size = RECORD_BATCH_OVERHEAD + len(whole.payload)
        ratio = len(whole.payload) / part.uncompressed_bytes
        self._ratios.update_estimation(topic, self.codec, ratio)
        if size <= batch_size * OVERSHOOT or part.record_count == 1:
            return [whole]
        self._ratios.set_estimation(topic, self.codec, ratio)
        smaller_parts = split_records(
            part.payload,
            record_count=part.record_count,
            base_timestamp=part.base_timestamp,
            part_count=-(-size // batch_size),
        )
        return [result for smaller in smaller_parts for result in self._compressed(topic, smaller)]

    def halves(self, batch: ProducerBatch) -> list[BatchPart]:
        """Split a closed batch that a broker refused as too large into two compressed halves."""
        records = memoryview(decompress(batch.compression, batch.payload, MAX_UNCOMPRESSED_BYTES))
        return [
            half._replace(payload=memoryview(self._compressor.compress(half.payload)))
            for half in split_records(
                records,
                record_count=batch.record_count,
                base_timestamp=batch.base_timestamp,
                part_count=2,
            )
        ]
