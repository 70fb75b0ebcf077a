"""A follower's log is a copy of its leader's, and shows consumers only what is committed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kafka_sink.devbroker.log.leader_epoch_cache import EpochEntry
from spark_kafka_sink.devbroker.log.partition_log import PartitionLog
from spark_kafka_sink.devbroker.log.producer_state import TransactionMarker
from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.record.record_batch import decode_header
from tests.support.devbroker.log_script import (
    SMALL,
    STEPS,
    LogWriter,
    picture,
    producers_of,
    records_of,
)
from tests.support.record.plain_batches import plain_batch

_TRANSACTIONAL = 0x10


def append(log, **fields):
    batch = memoryview(bytearray(plain_batch(1, **fields)))
    return log.append(batch, decode_header(batch)).first_offset


def begin_transaction(log):
    log.producer_state.start_verification(9, 0, 0, supports_epoch_bump=False, now_ms=0)
    return append(log, producer_id=9, producer_epoch=0, base_sequence=0, attributes=_TRANSACTIONAL)


def end_transaction(log, *, committed):
    return log.append_marker(TransactionMarker(9, 0, committed, 0, 0, 0))


def follow(leader, follower):
    """Copy what the follower lacks, as its fetches do."""
    while follower.log_end_offset < leader.log_end_offset:
        read = leader.read(follower.log_end_offset, max_bytes=300, min_one_batch=True)
        for piece in read.batches:
            follower.append_as_follower(piece)


@settings(deadline=None, max_examples=40)
@given(steps=STEPS, cut=st.integers(0, 100), more=STEPS)
def test_a_follower_has_what_the_leader_has(steps, cut, more):
    """Records, producers, transactions and epochs are copied, also after a truncation."""
    leader, follower = PartitionLog(config=SMALL), PartitionLog(config=SMALL)
    writer = LogWriter(leader)
    writer.do(steps)
    follow(leader, follower)
    follower.truncate_as_follower(min(cut, follower.log_end_offset), 0)
    leader.begin_leader_epoch(4)
    writer.do(more)
    follow(leader, follower)

    assert records_of(leader) == records_of(follower)
    assert producers_of(leader) == producers_of(follower)
    assert picture(leader)["aborted"] == picture(follower)["aborted"]
    if leader.log_end_offset:
        assert leader.last_epoch == follower.last_epoch


def test_a_batch_that_overlaps_is_refused():
    """A batch from before the log end is an error and changes nothing."""
    leader, follower = PartitionLog(), PartitionLog()
    append(leader)
    follow(leader, follower)
    (piece,) = leader.read(0, max_bytes=1000, min_one_batch=True).batches
    with pytest.raises(CorruptRecordError, match="offset 0, but the log ends at 1"):
        follower.append_as_follower(piece)
    assert follower.log_end_offset == 1


def test_a_damaged_batch_is_refused():
    """A batch whose checksum is wrong is not appended."""
    leader, follower = PartitionLog(), PartitionLog()
    append(leader)
    (piece,) = leader.read(0, max_bytes=1000, min_one_batch=True).batches
    damaged = bytearray(piece)
    damaged[-1] ^= 1
    with pytest.raises(CorruptRecordError):
        follower.append_as_follower(memoryview(damaged))
    assert follower.log_end_offset == 0


def test_the_high_watermark_stays_within_the_log():
    """Whatever the leader says, it is neither below the log start nor above the log end."""
    log = PartitionLog()
    for _ in range(3):
        append(log)
    log.begin_replication(0)
    assert [log.update_high_watermark(offset) for offset in (2, 2, 9)] == [True, False, True]
    assert log.high_watermark == 3
    log.truncate_as_follower(1, 0)
    assert log.high_watermark == 1
    log.delete_records(1)
    log.update_high_watermark(0)
    assert log.high_watermark == 1


@pytest.mark.parametrize("committed", [True, False])
def test_a_transaction_is_stable_once_its_end_is_committed(committed):
    """Its records are hidden until the high watermark has passed its marker."""
    log = PartitionLog()
    log.begin_replication(0)
    append(log)
    first = begin_transaction(log)
    log.update_high_watermark(2)
    assert (log.high_watermark, log.last_stable_offset) == (2, first)
    marker = end_transaction(log, committed=committed)
    assert log.last_stable_offset == first
    log.update_high_watermark(marker)
    assert log.last_stable_offset == first
    log.update_high_watermark(marker + 1)
    assert log.last_stable_offset == marker + 1


def test_a_truncated_marker_opens_its_transaction_again():
    """Without the marker the transaction is open, and a later end counts."""
    log = PartitionLog()
    log.begin_replication(0)
    first = begin_transaction(log)
    marker = end_transaction(log, committed=True)
    log.truncate_as_follower(marker, 0)
    log.update_high_watermark(log.log_end_offset)
    assert log.last_stable_offset == first


def test_a_follower_forgets_epochs_in_which_it_wrote_nothing():
    """An epoch that begins at the log end would hide that of the leader's next record."""
    log = PartitionLog()
    append(log)
    log.begin_leader_epoch(3)
    log.truncate_as_follower(log.log_end_offset, 0)
    assert log.leader_epochs.entries == (EpochEntry(0, 0),)
    leader = PartitionLog()
    append(leader)
    leader.begin_leader_epoch(2)
    append(leader)
    follow(leader, log)
    assert log.leader_epochs.entries == (EpochEntry(0, 0), EpochEntry(2, 1))


def test_a_log_restarts_where_the_leader_begins():
    """A follower that is too far behind has nothing left, and continues at the leader's start."""
    leader, log = PartitionLog(), PartitionLog()
    log.begin_replication(0)
    append(log, producer_id=9, producer_epoch=0, base_sequence=0)
    for _ in range(5):
        append(leader)
    leader.delete_records(4)
    log.restart_at(leader.log_start_offset, 0)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (4, 4, 4)
    assert (log.last_epoch, producers_of(log)) == (-1, [])
    follow(leader, log)
    assert records_of(log) == records_of(leader)


def test_a_follower_restarts_if_the_leader_ends_before_its_start():
    """A truncation below the log start leaves an empty log at that offset."""
    log = PartitionLog()
    for _ in range(5):
        append(log)
    log.delete_records(4)
    log.truncate_as_follower(2, 0)
    assert (log.log_start_offset, log.log_end_offset) == (2, 2)
