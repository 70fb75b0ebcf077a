"""What all tests of the sink's rooms need."""

from __future__ import annotations

import pytest

from spark_kafka_sink.admin import cluster_check
from spark_kafka_sink.spark.sink import dead_letters


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    """Make each test begin as a process does, which knows nothing of topics yet.

    Brokers that are asked which topics exist may take as long as other tests let them.
    """
    monkeypatch.setattr(cluster_check, "LIST_TIMEOUT", 120.0)
    monkeypatch.setattr(dead_letters, "_missing", {})
    monkeypatch.setattr(dead_letters, "_accepted", {})
