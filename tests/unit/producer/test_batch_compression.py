"""Into how many parts a batch is divided that compression leaves too large."""

from __future__ import annotations

import pytest

from spark_kafka_sink.producer import batch_compression
from spark_kafka_sink.producer.batch_compression import BatchCompression
from spark_kafka_sink.producer.batch_split import BatchPart
from spark_kafka_sink.record.compression import CompressionType, Compressor
from tests.support.producer_batches import batch


class _Codec:
    """Stands in for a codec: the first batch takes so many bytes, and everything else 10."""

    compression = CompressionType.LZ4

    def __init__(self, size: int) -> None:
        self._sizes = [size]

    def compress(self, records: memoryview) -> bytes:
        return bytes(self._sizes.pop() if self._sizes else min(len(records), 10))


@pytest.fixture
def part_counts(monkeypatch) -> list[int]:
    """Cut batches into parts of no meaning, and note how many were asked for."""
    asked: list[int] = []

    def split(records: object, *, part_count: int, **_: object) -> list[BatchPart]:
        del records
        asked.append(part_count)
        return [BatchPart(memoryview(bytes(20)), 20, 1, 0, 0)] * part_count

    monkeypatch.setattr(batch_compression, "split_records", split)
    return asked


@pytest.mark.parametrize(
    ("compressed", "parts"),
    [(1, []), (939, []), (987, []), (988, [2]), (1_939, [2]), (1_940, [3]), (9_939, [10])],
)
def test_a_batch_that_is_too_large_is_divided_into_as_few_parts_as_it_takes(
    part_counts, compressed, parts
):
    """With its header it may exceed batch.size, 1,000 bytes here, by 4.8 % and no more."""
    compression = BatchCompression(_Codec(compressed), lambda _: 1_000)
    found = compression.compressed(batch(records=20))
    assert parts == part_counts
    assert (parts or [1]) == [len(found)]
    assert ([10] * len(found) if parts else [compressed]) == [len(part.payload) for part in found]


@pytest.mark.parametrize("batch_size", [0, 1, 1_000])
def test_a_single_record_is_not_divided(part_counts, batch_size):
    """However large it is."""
    compression = BatchCompression(_Codec(5_000), lambda _: batch_size)
    [whole] = compression.compressed(batch(records=1))
    assert (5_000, []) == (len(whole.payload), part_counts)


def test_a_batch_that_a_broker_refuses_is_halved(part_counts):
    """A larger part of it may be small enough; if not, it is halved again."""
    refused = batch(records=20)
    refused.compression = CompressionType.NONE
    compression = BatchCompression(Compressor(CompressionType.NONE), lambda _: 1_000)
    assert [20, 20] == [len(half.payload) for half in compression.halves(refused)]
    assert [2] == part_counts


def test_a_batch_without_compression_is_expected_to_take_what_it_takes():
    """Any other codec is expected to do as well as it did before."""
    assert 1.0 == BatchCompression(Compressor(CompressionType.NONE), len).estimated_ratio("t")


@pytest.mark.usefixtures("part_counts")
def test_what_a_batch_shrank_to_is_expected_of_the_next_one():
    """At once where it did less than hoped, and else by and by; of its own topic only."""
    compression = BatchCompression(_Codec(2_000), lambda _: 1_000)
    large = batch(records=20, size=4_000)
    compression.compressed(large)
    assert 0.45 < compression.estimated_ratio("t") <= 0.5
    assert 1.0 == compression.estimated_ratio("u")
