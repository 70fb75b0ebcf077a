"""What all tests of the sink's rooms need."""

from __future__ import annotations

import pytest

from spark_kafka_sink.spark.sink import dead_letters


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    """Make each test begin as a process does, which knows nothing of topics yet."""
    monkeypatch.setattr(dead_letters, "_missing", {})
    monkeypatch.setattr(dead_letters, "_accepted", {})
