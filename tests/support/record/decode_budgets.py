"""Budgets for decoding batches in tests that do not test budgets."""

from __future__ import annotations

from spark_kafka_sink.record.decode import DecodeBudget


def ample_budget() -> DecodeBudget:
    """Return a budget that no batch of a test uses up."""
    return DecodeBudget(1 << 30, 1 << 30)
