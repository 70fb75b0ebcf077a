"""A log that is truncated continues as if its last batches had never been appended."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.log.partition_log import PartitionLog
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.devbroker.log_script import (
    SMALL,
    STEPS,
    LogWriter,
    open_log,
    picture,
    producers_of,
    records_of,
)
from tests.support.record.plain_batches import plain_batch

#: What depends on the place at which segments were rolled.
_BY_SEGMENT = {"segments", "committed"}


def seen(log):
    return {key: value for key, value in picture(log).items() if key not in _BY_SEGMENT}


@settings(deadline=None, max_examples=60)
@given(kept=STEPS, lost=STEPS, more=STEPS, durable=st.booleans())
def test_a_truncated_log_is_as_if_nothing_had_followed(kept, lost, more, durable):
    """Records, producers, transactions and lookups are those of a log that was never longer."""
    with tempfile.TemporaryDirectory() as directory:
        shorter = LogWriter(PartitionLog(config=SMALL))
        shorter.do(kept)
        path = Path(directory)
        writer = LogWriter(open_log(path) if durable else PartitionLog(config=SMALL))
        writer.do(kept)
        sequences = dict(writer.sequences)
        writer.do(lost)

        writer.log.truncate_to(shorter.log.log_end_offset)

        assert seen(shorter.log) == seen(writer.log)
        assert producers_of(shorter.log) == producers_of(writer.log)
        writer.sequences = sequences
        for each in (shorter, writer):
            each.do(more)
        assert seen(shorter.log) == seen(writer.log)
        if durable:
            writer.log.close(0)
            reopened = open_log(path)
            assert seen(shorter.log) == seen(reopened)
            assert producers_of(shorter.log) == producers_of(reopened)
            reopened.close(0)


def log_of(*counts):
    writer = LogWriter(PartitionLog(config=SMALL))
    for count in counts:
        writer.append(plain_batch(count))
    return writer.log


def test_a_batch_is_lost_as_a_whole():
    """The log ends where the batch with the first lost record began."""
    log = log_of(2, 3, 1)

    log.truncate_to(3)

    assert (2, [0, 1]) == (log.log_end_offset, [offset for offset, *_ in records_of(log)])


def test_the_log_may_lose_nothing_or_everything():
    """A truncation at the end changes nothing, and one at the start leaves an empty log."""
    log = log_of(2, 3)
    log.truncate_to(5)
    assert 5 == log.log_end_offset

    log.truncate_to(0)

    assert (0, 0, []) == (log.log_end_offset, log.size_in_bytes, records_of(log))


def test_the_log_start_stays_within_the_log():
    """If the batch began before the log start, the log is empty and starts where it ends."""
    log = log_of(4)
    log.delete_records(2)

    log.truncate_to(3)

    assert (0, 0) == (log.log_start_offset, log.log_end_offset)


@pytest.mark.parametrize("offset", [-1, 1, 5])
def test_a_log_is_truncated_within_its_offsets(offset):
    """An offset before the log start or after the log end is out of range."""
    log = log_of(4)
    log.delete_records(2)

    with pytest.raises(RefusedError) as caught:
        log.truncate_to(offset)

    assert ErrorCode.OFFSET_OUT_OF_RANGE == caught.value.error_code


def test_later_leader_epochs_are_forgotten():
    """An epoch that began after the new end is unknown; the next one begins at the end."""
    log = log_of(2)
    log.begin_leader_epoch(1)
    log = log_of_more(log, 3)
    log.begin_leader_epoch(2)

    log.truncate_to(2)
    log.begin_leader_epoch(3)

    assert [(0, 2), (0, 2), (3, 2)] == [log.end_offset_for_epoch(epoch) for epoch in (0, 1, 3)]


def log_of_more(log, count):
    LogWriter(log).append(plain_batch(count))
    return log
