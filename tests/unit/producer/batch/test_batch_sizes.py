"""The largest batch of a topic is batch.size until a broker refuses one as too large."""

from __future__ import annotations

import pytest

from spark_kafka_sink.producer.batch.batch_compression import BatchSizes


@pytest.mark.parametrize("refused", [[1_000], [1_000, 5_000], [5_001, 1_001]], ids=str)
def test_a_rejected_batch_halves_the_batch_size_of_its_topic(refused):
    """Refusals only lower the batch size of a topic, and other topics keep batch.size."""
    sizes = BatchSizes(9_000)
    for size in refused:
        sizes.lower("t", size)
    assert (500, 9_000) == (sizes.size_of("t"), sizes.size_of("u"))
