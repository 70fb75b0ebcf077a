"""The error and the warning for offsets that can no longer be read."""

from __future__ import annotations

import pickle

import pytest

from spark_kafka_sink.consumer.fetch.range_fetch import DataLoss
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


@pytest.mark.parametrize(
    ("wanted", "available", "expected"),
    [
        (2, 7, "offset 2 was wanted, and offset 7 is the next that there is: why"),
        (2, -1, "offset 2 was wanted, and there is none after it: why"),
        (50, 1, "why"),
    ],
)
def test_a_warning_says_which_offset_is_the_next_if_there_is_one(wanted, available, expected):
    """An offset is only called the next one if it is not before the one that was wanted."""
    loss = DataLoss("t", 1, wanted, available, 5, "why")
    assert f"t-1: 5 offsets are lost: {expected}" == str(loss)
