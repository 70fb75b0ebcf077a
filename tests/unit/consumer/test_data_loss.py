"""The error for offsets that can no longer be read."""

from __future__ import annotations

import pickle

from spark_kafka_sink.errors import DataLossError


def test_a_data_loss_can_be_pickled():
    """A data loss keeps its message and attributes when Spark passes it to the driver."""
    error = DataLossError(
        "t-1: 5 offsets are lost", topic="t", partition=1, wanted=2, available=7, lost=5
    )

    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes

    assert DataLossError is type(copy)
    assert str(error) == str(copy)
    assert vars(error) == vars(copy)
