"""The errors that a consumer of a group raises."""

from __future__ import annotations

import pickle

import pytest

from spark_kafka_sink.errors import (
    CommitFailedError,
    KafkaError,
    LogTruncationError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    RebalanceInProgressError,
    WakeupError,
)
from spark_kafka_sink.model import OffsetAndMetadata, TopicPartition

T = [TopicPartition("t", number) for number in range(8)]
ERRORS = [
    CommitFailedError("failed"),
    RebalanceInProgressError("rebalances"),
    NoOffsetForPartitionError(T[:2]),
    OffsetOutOfRangeError({T[0]: 5}),
    LogTruncationError({T[0]: 5, T[1]: 6}, {T[1]: OffsetAndMetadata(4, 2)}),
    WakeupError("woken"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling(error):
    """Its type, message and attributes are the same in another process."""
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes

    assert type(error) is type(copy)
    assert str(error) == str(copy)
    assert vars(error) == vars(copy)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_only_a_rebalance_passes(error):
    """After any other error the same call fails again."""
    assert isinstance(error, KafkaError)
    assert isinstance(error, RebalanceInProgressError) is error.retriable


def test_partitions_without_an_offset_are_listed():
    """They are sorted, in the message and in the attribute."""
    error = NoOffsetForPartitionError({T[1], T[0]})
    assert (T[0], T[1]) == error.partitions
    assert (
        "t-0, t-1: no offset is committed, and auto.offset.reset is none. Call seek with the "
        "offset to begin with, or set auto.offset.reset to earliest or latest"
    ) == str(error)


def test_a_message_lists_five_partitions():
    """An assignment may have thousands."""
    assert str(NoOffsetForPartitionError(T)).startswith("t-0, t-1, t-2, t-3, t-4 and 3 more: no")
    assert str(NoOffsetForPartitionError(T[:5])).startswith("t-0, t-1, t-2, t-3, t-4: no")
    assert T == list(NoOffsetForPartitionError(T).partitions)


def test_offsets_out_of_range_are_listed():
    """With their partitions, sorted."""
    error = OffsetOutOfRangeError({T[1]: 7, T[0]: 5})
    assert {T[0]: 5, T[1]: 7} == error.offsets
    assert (
        "t-0 at offset 5, t-1 at offset 7: the log does not have this offset, and "
        "auto.offset.reset is none. Call seek with another offset, or set auto.offset.reset to "
        "earliest or latest"
    ) == str(error)


def test_a_truncation_has_the_offsets_where_the_logs_differ():
    """It is an offset out of range, with another cause and one more attribute."""
    error = LogTruncationError({T[0]: 5}, {T[0]: OffsetAndMetadata(4, 2)})
    assert isinstance(error, OffsetOutOfRangeError)
    assert ({T[0]: 5}, {T[0]: OffsetAndMetadata(4, 2)}) == (error.offsets, error.divergent_offsets)
    assert str(error).startswith("t-0 at offset 5: the log was truncated, so that records read ")
