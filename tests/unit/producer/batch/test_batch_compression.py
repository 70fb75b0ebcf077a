"""Into how many parts a batch is split if it is still too large after compression."""

from __future__ import annotations

import pytest

from spark_kafka_sink.producer.batch import batch_compression
from spark_kafka_sink.producer.batch.batch_compression import BatchCompression, BatchSizes
from spark_kafka_sink.record.compression import CompressionType, Compressor
from spark_kafka_sink.record.default_record import PayloadPart
from tests.support.producer.producer_batches import batch


class _Codec:
    """A stand-in for a codec: the first batch compresses to `size` bytes, later ones to 10."""

    compression = CompressionType.LZ4

    def __init__(self, size: int) -> None:
        self._sizes = [size]

    def compress(self, records: memoryview) -> bytes:
        return bytes(self._sizes.pop() if self._sizes else min(len(records), 10))


@pytest.fixture
def part_counts(monkeypatch) -> list[int]:
    """Replace the splitting with dummy parts, and return the list of requested part counts."""
    counts: list[int] = []

    def split(records: object, *, part_count: int, **_: object) -> list[PayloadPart]:
        del records
        counts.append(part_count)
        return [PayloadPart(memoryview(bytes(20)), 20, 1, 0, 0)] * part_count

    monkeypatch.setattr(batch_compression, "split_records", split)
    return counts


@pytest.mark.parametrize(
    ("compressed", "parts"),
    [(1, []), (939, []), (987, []), (988, [2]), (1_939, [2]), (1_940, [3]), (9_939, [10])],
)
def test_an_oversized_batch_is_split_into_as_few_parts_as_possible(part_counts, compressed, parts):
    """A batch with its header may exceed batch.size, here 1,000 bytes, by at most 4.8 %."""
    compression = BatchCompression(_Codec(compressed), BatchSizes(1_000))
    found = compression.compressed(batch(records=20))
    assert parts == part_counts
    assert (parts or [1]) == [len(found)]
    assert ([10] * len(found) if parts else [compressed]) == [len(part.payload) for part in found]


@pytest.mark.parametrize("batch_size", [0, 1, 1_000])
def test_a_single_record_is_not_split(part_counts, batch_size):
    """A single record is never split, however large it is."""
    compression = BatchCompression(_Codec(5_000), BatchSizes(batch_size))
    [whole] = compression.compressed(batch(records=1))
    assert (5_000, []) == (len(whole.payload), part_counts)


def test_a_batch_rejected_by_the_broker_is_halved(part_counts):
    """A batch that the broker refuses is halved, and a half that is refused is halved again."""
    refused = batch(records=20)
    refused.compression = CompressionType.NONE
    compression = BatchCompression(Compressor(CompressionType.NONE), BatchSizes(1_000))
    assert [20, 20] == [len(half.payload) for half in compression.halves(refused)]
    assert [2] == part_counts


def test_the_estimated_ratio_without_compression_is_1():
    """Without compression the estimated ratio is 1."""
    assert 1.0 == BatchCompression(Compressor(CompressionType.NONE), BatchSizes(1)).estimated_ratio(
        "t"
    )


@pytest.mark.usefixtures("part_counts")
def test_a_split_sets_the_estimated_ratio_of_its_topic():
    """A split sets the estimate of the batch's topic, and no other, to the observed ratio."""
    compression = BatchCompression(_Codec(2_000), BatchSizes(1_000))
    large = batch(records=20, size=4_000)
    compression.compressed(large)
    assert 0.45 < compression.estimated_ratio("t") <= 0.5
    assert 1.0 == compression.estimated_ratio("u")
