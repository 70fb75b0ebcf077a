"""Retention by age or size, and what compaction removes."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
from spark_kafka_sink.devbroker.log import disk
from spark_kafka_sink.devbroker.log.log_cleaner import clean, needs_cleaning
from spark_kafka_sink.devbroker.log.partition_log import PartitionLog
from spark_kafka_sink.devbroker.log.producer_state import TransactionMarker
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.record.compression import CompressionType
from spark_kafka_sink.record.decode import decode_record_batch
from tests.support.devbroker.durable_cluster import DurableCluster
from tests.support.devbroker.faulty_disk import Failure, FaultyDisk
from tests.support.devbroker.log_script import LogWriter, Step, open_log, producers_of
from tests.support.devbroker.transactional_client import TransactionalClient
from tests.support.record.plain_batches import PlainRecord, plain_batch

TRANSACTIONAL = 0x10
DAY = 24 * 3_600_000
COMPACTED = TopicConfig(cleanup_policy="compact", segment_bytes=400, index_interval_bytes=100)


def bases(log):
    return [segment.base_offset for segment in log.segments]


def log_of_segments(*timestamps, **config):
    """Return a log with one batch in each segment."""
    size = len(plain_batch([PlainRecord(timestamp=timestamps[0])]))
    log = PartitionLog(config=TopicConfig(segment_bytes=size, **config))
    writer = LogWriter(log)
    for timestamp in timestamps:
        writer.append(plain_batch([PlainRecord(timestamp=timestamp)]))
    return log


class TestRetention:
    """Whole segments are deleted, the oldest first."""

    @pytest.mark.parametrize(
        ("now_ms", "expected"), [(1010, [0, 1, 2]), (1011, [1, 2]), (1021, [2]), (1031, [3])]
    )
    def test_segments_whose_records_are_all_too_old_are_deleted(self, now_ms, expected):
        """If the active segment is too old as well, a new one is started."""
        log = log_of_segments(10, 20, 30, retention_ms=1000)

        log.delete_old_segments(now_ms)

        assert (expected, expected[0], 3) == (bases(log), log.log_start_offset, log.log_end_offset)

    def test_a_segment_that_stays_keeps_those_behind_it(self):
        """Timestamps may decrease, but the log has no gaps: later segments are kept too."""
        log = log_of_segments(10, 5000, 10, retention_ms=1000)

        assert 1 == log.delete_old_segments(2000)
        assert [1, 2] == bases(log)

    def test_segments_beyond_retention_bytes_are_deleted(self):
        """Segments are deleted while the remaining ones have at least retention.bytes."""
        size = len(plain_batch(1))
        log = log_of_segments(0, 0, 0, 0, retention_ms=-1, retention_bytes=2 * size)

        log.delete_old_segments(10**15)

        assert [2, 3] == bases(log)

    def test_nothing_is_deleted_without_limits(self):
        """A limit of -1 means no limit."""
        log = log_of_segments(0, 0, retention_ms=-1)

        assert 0 == log.delete_old_segments(10**15)
        assert 0 == PartitionLog().delete_old_segments(10**15)

    def test_the_broker_looks_every_five_minutes(self, tmp_path):
        """Deleted segments stay deleted after a restart, even after a kill."""
        cluster = DurableCluster(tmp_path)
        config = TopicConfig(retention_ms=60_000)
        cluster.broker.cluster.create_topic("t", partitions=1, config=config)
        client = TransactionalClient(cluster.broker)
        client.produce((7, 0), 0, attributes=0)
        log = cluster.broker.cluster.topic("t").partitions[0].log

        cluster.broker.tick(cluster.now + 299)
        assert 0 == log.log_start_offset
        cluster.broker.tick(cluster.now + 300)
        assert (1, 1) == (log.log_start_offset, log.log_end_offset)

        log = cluster.kill().cluster.topic("t").partitions[0].log
        assert (1, 1) == (log.log_start_offset, log.log_end_offset)
        cluster.close()


def write(log, *records, sequence=-1, producer_id=-1, compression=CompressionType.NONE):
    """Append a batch of records with these keys and values."""
    transactional = producer_id >= 100
    if transactional:
        log.producer_state.start_verification(
            producer_id, 0, sequence, supports_epoch_bump=False, now_ms=0
        )
    LogWriter(log).append(
        plain_batch(
            [PlainRecord(value, key, timestamp=1000) for key, value in records],
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=sequence,
            attributes=TRANSACTIONAL if transactional else 0,
            compression=compression,
        )
    )


def end(log, producer_id, *, committed):
    log.append_marker(TransactionMarker(producer_id, 0, committed, 0, 0, 1000))


def batches_of(log):
    return [decode_record_batch(batch) for batch in log.batches()]


def records_of(log):
    return [
        (record.offset, record.key, record.value)
        for batch in batches_of(log)
        for record in batch.records
        if not batch.header.is_control
    ]


def visible(log):
    """Return each key's last value, including tombstones, as seen with read_committed."""
    found = {}
    aborted = log.aborted_transactions(0, log.log_end_offset)
    for batch in batches_of(log):
        header = batch.header
        hidden = header.is_control or any(
            txn.producer_id == header.producer_id
            and txn.first_offset <= header.last_offset <= txn.last_offset
            for txn in aborted
        )
        if not hidden:
            found |= {record.key: record.value for record in batch.records}
    return found


class TestCompaction:
    """Of all records with the same key, the last one is kept."""

    @pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.LZ4])
    def test_the_last_record_of_each_key_stays_where_it_is(self, compression):
        """Offsets do not change, and the active segment is not cleaned."""
        log = PartitionLog(config=COMPACTED)
        write(log, (b"a", b"1"), (b"b", b"2"), (b"a", b"3"), compression=compression)
        write(log, (b"c", b"4"), (b"b", b"5"), compression=compression)
        log.roll(0)
        write(log, (b"a", b"6"), (b"a", b"7"))

        assert needs_cleaning(log, 0)
        clean(log, 0)

        assert [(2, b"a", b"3"), (3, b"c", b"4"), (4, b"b", b"5"), (5, b"a", b"6")] == records_of(
            log
        )[:4]
        assert [2, 4] == [batch.header.last_offset for batch in batches_of(log)][:2]
        assert not needs_cleaning(log, 0)
        assert [0, 5] == bases(log)

    def test_small_segments_become_one(self):
        """Segments are merged as long as the result fits into segment.bytes."""
        log = PartitionLog(config=COMPACTED)
        for number in range(12):
            write(log, (b"key", b"%d" % number))
        assert [0, 5, 10] == bases(log)
        clean(log, 0)
        assert [0, 5, 10] == bases(log)
        clean(log, 0)
        assert [0, 10] == bases(log)

        assert records_of(log)[-1] == (11, b"key", b"11")
        for offset in range(12):
            assert log.read(offset, max_bytes=10**6, min_one_batch=True).end_offset > offset

    def test_a_tombstone_goes_a_while_after_its_key(self):
        """Consumers have delete.retention.ms to read the tombstone."""
        log = PartitionLog(config=COMPACTED)
        write(log, (b"a", b"1"))
        write(log, (b"a", None), (b"b", b"2"))
        log.roll(0)
        write(log, (b"z", b"9"))
        clean(log, 5)
        assert [(1, b"a", None), (2, b"b", b"2")] == records_of(log)[:2]
        horizons = [b.header.base_timestamp for b in batches_of(log) if b.header.has_delete_horizon]
        assert [5 + DAY] == horizons

        clean(log, 4 + DAY)
        assert (1, b"a", None) in records_of(log)
        clean(log, 5 + DAY)

        assert [(2, b"b", b"2"), (3, b"z", b"9")] == records_of(log)
        assert [1000, 1000] == [r.timestamp for b in batches_of(log) for r in b.records]

    def test_the_last_batch_that_was_cleaned_stays_without_records(self):
        """Otherwise the offsets up to which a log was cleaned would be gone from it."""
        log = PartitionLog(config=COMPACTED)
        for key in (b"a", b"b", b"b"):
            write(log, (key, None))
        log.roll(0)
        write(log, (b"z", b"9"))
        clean(log, 5)
        clean(log, 5 + DAY)

        assert [(2, 0), (3, 1)] == [(b.header.base_offset, len(b.records)) for b in batches_of(log)]

    def test_nothing_of_an_aborted_transaction_stays(self):
        """Its marker is kept until its delete horizon has passed."""
        log = PartitionLog(config=COMPACTED)
        write(log, (b"a", b"kept"))
        write(log, (b"a", b"aborted"), producer_id=101, sequence=0)
        end(log, 101, committed=False)
        write(log, (b"b", b"committed"), producer_id=103, sequence=0)
        end(log, 103, committed=True)
        log.roll(0)
        write(log, (b"z", b"9"))

        clean(log, 0)

        assert {b"a": b"kept", b"b": b"committed", b"z": b"9"} == visible(log)
        assert (1, b"a", b"aborted") not in records_of(log)
        markers = [b.header for b in batches_of(log) if b.header.is_control]
        assert [2, 4] == [marker.base_offset for marker in markers]
        # Both transactions had records until now, and a marker must not go before them.
        assert [False, False] == [marker.has_delete_horizon for marker in markers]

    def test_nothing_from_an_open_transaction_on_is_cleaned(self):
        """The outcome of the transaction is not known yet."""
        log = PartitionLog(config=COMPACTED)
        write(log, (b"a", b"1"))
        write(log, (b"a", b"2"), producer_id=101, sequence=0)
        write(log, (b"a", b"3"))
        log.roll(0)

        clean(log, 0)

        assert [0, 1, 2] == [offset for offset, _, _ in records_of(log)]
        assert 1 == log.first_dirty_offset

    def test_the_last_batch_of_a_producer_stays_without_its_records(self, tmp_path):
        """The producer's last sequence number is needed, also after a restart."""
        log = open_log(tmp_path, config=COMPACTED)
        write(log, (b"a", b"1"), (b"a", b"2"), producer_id=8, sequence=0)
        write(log, (b"a", b"3"))
        log.roll(0)
        clean(log, 0)
        assert [(2, b"a", b"3")] == records_of(log)
        for path in tmp_path.glob("*.snapshot"):
            path.unlink()
        log.directory.close()

        log = open_log(tmp_path, config=COMPACTED, clean=False)

        write(log, (b"b", b"4"), producer_id=8, sequence=2)
        with pytest.raises(RefusedError) as caught:
            write(log, (b"b", b"4"), producer_id=8, sequence=9)
        assert ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER == caught.value.error_code
        log.directory.close()

    def test_young_records_are_left_alone(self):
        """min.compaction.lag.ms is for consumers that have to read every change."""
        config = TopicConfig(cleanup_policy="compact", min_compaction_lag_ms=500)
        log = PartitionLog(config=config)
        write(log, (b"a", b"1"))
        log.roll(0)
        write(log, (b"a", b"2"))

        assert not needs_cleaning(log, 1499)
        assert needs_cleaning(log, 1500)

    def test_little_that_is_new_is_not_worth_it(self):
        """min.cleanable.dirty.ratio defines how much new data is needed."""
        log = PartitionLog(config=TopicConfig(cleanup_policy="compact"))
        write(log, *[(b"%d" % number, b"x") for number in range(50)])
        log.roll(0)
        write(log, (b"0", b"y"))
        log.roll(0)
        clean(log, 0)
        write(log, (b"0", b"z"))
        log.roll(0)

        assert not needs_cleaning(log, 0)
        log.config = TopicConfig(cleanup_policy="compact", min_cleanable_dirty_ratio=0)
        assert needs_cleaning(log, 0)

    def test_the_broker_looks_every_fifteen_seconds(self, tmp_path):
        """The offset up to which the log is clean is stored in a checkpoint."""
        cluster = DurableCluster(tmp_path)
        cluster.broker.cluster.create_topic("t", partitions=1, config=COMPACTED)
        log = cluster.broker.cluster.topic("t").partitions[0].log
        for number in range(12):
            write(log, (b"key", b"%d" % number))

        cluster.broker.tick(cluster.now + 15)

        first_dirty = log.first_dirty_offset
        assert 0 < first_dirty == bases(log)[-1]
        kept = (tmp_path / "cleaner-offset-checkpoint").read_text()
        assert f"0\n1\nt 0 {first_dirty}\n" == kept
        assert first_dirty == cluster.kill().cluster.topic("t").partitions[0].log.first_dirty_offset
        cluster.close()


KEYED = st.lists(
    st.tuples(
        st.sampled_from([-1, 8, 9, 101, 103]),
        st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.booleans()), max_size=3),
        st.booleans(),
    ),
    max_size=40,
)


def play(log, script):
    """Write a script of batches and transaction ends; each value is written once."""
    sequences = {}
    for number, (producer_id, keys, committed) in enumerate(script):
        if not keys:
            if producer_id >= 100:
                end(log, producer_id, committed=committed)
            continue
        records = [(key, b"%d" % number if has_value else None) for key, has_value in keys]
        sequence = sequences.get(producer_id, 0) if producer_id >= 0 else -1
        write(log, *records, producer_id=producer_id, sequence=sequence)
        sequences[producer_id] = sequence + len(keys)


# Enough batches for several segments, the first of which is older than the others.
@example(script=[(-1, [(b"a", False)] * 3, False)] * 40, now_ms=0)
@settings(deadline=None, max_examples=100)
@given(script=KEYED, now_ms=st.sampled_from([0, 3 * DAY]))
def test_readers_see_the_same_after_cleaning_and_after_a_restart(script, now_ms):
    """The last value of every key, the offsets and the producer states do not change."""
    with tempfile.TemporaryDirectory() as name:
        log = open_log(Path(name), config=COMPACTED)
        play(log, script)
        before = {key: value for key, value in visible(log).items() if value is not None}
        offsets = (log.log_end_offset, log.last_stable_offset)
        # As in Kafka, the epoch of a producer with only markers left may be removed.
        producers = [each[:4] for each in producers_of(log) if each[3] >= 0]
        for round_ms in (now_ms, now_ms + 2 * DAY, now_ms + 4 * DAY):
            clean(log, round_ms)
            after = {key: value for key, value in visible(log).items() if value is not None}
            assert (before, offsets) == (after, (log.log_end_offset, log.last_stable_offset))
        log.directory.close()

        log = open_log(Path(name), config=COMPACTED, clean=False)

        after = {key: value for key, value in visible(log).items() if value is not None}
        assert (before, offsets) == (after, (log.log_end_offset, log.last_stable_offset))
        assert producers == [each[:4] for each in producers_of(log) if each[3] >= 0]
        log.directory.close()


@pytest.mark.parametrize("stop", range(12))
def test_a_broker_killed_while_it_swaps_segments_loses_nothing(tmp_path, monkeypatch, stop):
    """Whichever file was renamed or removed last, the log is either the old or the new one."""
    log = open_log(tmp_path, config=COMPACTED)
    writer = LogWriter(log)
    for number in range(12):
        write(log, (b"key%d" % (number % 3), b"%d" % number))
    writer.do([Step(1, 1, 0, committed=True), Step(1, 0, 0, committed=False)])
    expected = visible(log)
    steps = iter(range(stop))

    def counted(real):
        def act(*args):
            if next(steps, None) is None:
                raise KeyboardInterrupt
            return real(*args)

        return act

    with monkeypatch.context() as patch:
        patch.setattr(disk, "rename", counted(disk.rename))
        patch.setattr(disk, "remove", counted(disk.remove))
        with pytest.raises(KeyboardInterrupt):
            clean(log, 0)
    log.directory.close()

    log = open_log(tmp_path, config=COMPACTED, clean=False)

    assert expected == visible(log)
    assert 14 == log.log_end_offset
    assert not [path.name for path in tmp_path.iterdir() if path.suffix in {".swap", ".cleaned"}]
    log.directory.close()


@pytest.mark.parametrize("failure", Failure)
@pytest.mark.parametrize("number", range(26))
def test_a_disk_that_fails_while_segments_are_swapped_loses_nothing(
    tmp_path, monkeypatch, number, failure
):
    """The log reads as before or as cleaned, can be appended to, and is the same after a kill."""
    log = open_log(tmp_path, config=COMPACTED)
    writer = LogWriter(log)
    for key in range(12):
        write(log, (b"key%d" % (key % 3), b"%d" % key))
    writer.do([Step(1, 1, 0, committed=True), Step(1, 0, 0, committed=False)])
    expected = visible(log)
    broken = FaultyDisk(monkeypatch)
    broken.fail_after(number, failure)

    try:
        clean(log, 0)
    except OSError:
        assert expected == visible(log)
    assert expected == visible(log)
    broken.free()
    write(log, (b"key0", b"later"))
    expected[b"key0"] = b"later"
    recovery_point = log.recovery_point
    clean(log, 0)
    assert expected == visible(log)
    log.directory.close()

    log = open_log(tmp_path, config=COMPACTED, clean=False, recovery_point=recovery_point)
    assert (expected, 15) == (visible(log), log.log_end_offset)
    assert not [path.name for path in tmp_path.iterdir() if path.suffix in {".swap", ".cleaned"}]
    log.directory.close()
