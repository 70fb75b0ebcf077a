"""Estimates of how well records compress."""

from __future__ import annotations

import pytest

from spark_kafka_sink.producer.batch.batch_compression import CompressionRatioEstimator
from spark_kafka_sink.record.compression import CompressionType

LZ4 = CompressionType.LZ4


@pytest.fixture
def estimator():
    return CompressionRatioEstimator()


def test_records_are_assumed_incompressible_at_first(estimator):
    """Before the first batch, records are assumed to be incompressible."""
    assert 1.0 == estimator.estimation("t", LZ4)


@pytest.mark.parametrize(("observed", "expected"), [(0.3, 0.35), (1.1, 1.15)])
def test_the_first_batch_sets_the_estimate(estimator, observed, expected):
    """The first batch of a topic sets the estimate to its own ratio, plus a margin of 0.05."""
    assert pytest.approx(expected) == estimator.update_estimation("t", LZ4, observed)
    assert pytest.approx(expected) == estimator.estimation("t", LZ4)


@pytest.mark.parametrize(
    ("current", "observed", "expected"),
    [
        (0.8, 0.5, 0.795),
        (0.8, 0.798, 0.798),
        (0.8, 0.8, 0.8),
        (0.8, 0.82, 0.85),
        (0.8, 0.9, 0.9),
    ],
)
def test_later_the_estimate_changes_as_in_java(estimator, current, observed, expected):
    """From the second batch on it falls by at most 0.005 and rises by at least 0.05."""
    estimator.set_estimation("t", LZ4, current)
    assert pytest.approx(expected) == estimator.update_estimation("t", LZ4, observed)
    assert pytest.approx(expected) == estimator.estimation("t", LZ4)


def test_each_topic_and_codec_has_its_own_estimate(estimator):
    """Each topic and codec has its own estimate."""
    estimator.set_estimation("t", LZ4, 0.5)
    assert 1.0 == estimator.estimation("u", LZ4)
    assert 1.0 == estimator.estimation("t", CompressionType.ZSTD)
