"""Fixtures shared by several test modules."""

from __future__ import annotations

from functools import partial

import pytest

from spark_kafka_sink.consumer import range_reader
from spark_kafka_sink.record.arrow.record_decoder import RecordDecoder


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the record batches of readers smaller than the answers of the broker."""
    monkeypatch.setattr(range_reader, "RecordDecoder", partial(RecordDecoder, max_rows=10))
