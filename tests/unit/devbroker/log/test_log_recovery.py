"""Recovery of a log that was not closed: whole batches are kept, torn ones are removed."""

from __future__ import annotations

import shutil
import tempfile
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
from spark_kafka_sink.devbroker.log.partition_log import PartitionLog
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.record.record_batch import split_record_batches
from tests.support.devbroker.log_script import (
    SMALL,
    STEPS,
    LogWriter,
    Step,
    open_log,
    picture,
    producers_of,
    records_of,
)
from tests.support.record.plain_batches import plain_batch

ONE_SEGMENT = TopicConfig(index_interval_bytes=100)
STORY = [
    Step(0, 2, 1, committed=True),
    Step(1, 1, 2, committed=True),
    Step(2, 3, 9, committed=True),
    Step(1, 0, 4, committed=False),
    Step(3, 2, 5, committed=True),
    Step(2, 1, 3, committed=True),
    Step(1, 2, 7, committed=True),
    Step(1, 0, 8, committed=True),
]


@pytest.fixture
def written(tmp_path):
    """Write a log of one segment and leave it behind as a killed broker does."""
    writer = LogWriter(open_log(tmp_path / "written", config=ONE_SEGMENT))
    writer.do(STORY)
    writer.log.directory.close()
    return tmp_path / "written"


def reopened(source, tmp_path, log_bytes):
    """Open a copy of a log whose segment has other bytes."""
    copy = tmp_path / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(source, copy)
    (copy / f"{0:020d}.log").write_bytes(log_bytes)
    return open_log(copy, config=ONE_SEGMENT, clean=False)


def prefix_in_memory(whole, size):
    """Return a log in memory with as many of the story's steps as fit in `size` bytes."""
    ends = []
    for batch in split_record_batches(whole):
        ends.append((ends[-1] if ends else 0) + len(batch))
    return beginning_in_memory(sum(end <= size for end in ends))


@cache
def beginning_in_memory(count):
    """Return a log in memory with the first `count` steps of the story; callers only read it."""
    writer = LogWriter(PartitionLog(config=ONE_SEGMENT))
    writer.do(STORY[:count])
    return writer.log


def test_a_tail_cut_at_every_byte_leaves_the_longest_valid_prefix(written, tmp_path):
    """Wherever the write stopped, whole batches are kept with their producer states."""
    whole = (written / f"{0:020d}.log").read_bytes()
    for size in range(len(whole) + 1):
        log = reopened(written, tmp_path, whole[:size])
        expected = prefix_in_memory(whole, size)

        assert picture(expected) == picture(log), size
        assert producers_of(expected) == producers_of(log), size
        log.directory.close()


def test_a_changed_byte_ends_the_log_before_its_batch(written, tmp_path):
    """Whatever byte is wrong, no wrong record is read, and no earlier record is lost."""
    whole = (written / f"{0:020d}.log").read_bytes()
    starts = [0]
    for batch in split_record_batches(whole):
        starts.append(starts[-1] + len(batch))
    for position in range(0, len(whole), 7):
        start = max(start for start in starts if start <= position)
        if position - start in range(12, 16):
            continue  # The checksum does not cover the leader epoch, and recovery does not fix it.
        if position - start in range(8):
            continue  # Nor the offset: a lower offset is detected, a higher one leaves a gap.
        broken = bytearray(whole)
        broken[position] ^= 0x81
        log = reopened(written, tmp_path, bytes(broken))

        assert records_of(prefix_in_memory(whole, start)) == records_of(log), position
        log.directory.close()


def test_zeros_behind_the_last_batch_are_cut_off(written, tmp_path):
    """A file system may leave a file longer than its written content."""
    whole = (written / f"{0:020d}.log").read_bytes()
    log = reopened(written, tmp_path, whole + bytes(5000))

    assert records_of(prefix_in_memory(whole, len(whole))) == records_of(log)
    assert len(whole) == (tmp_path / "copy" / f"{0:020d}.log").stat().st_size
    log.directory.close()


@settings(deadline=None, max_examples=60)
@given(steps=STEPS, more=STEPS)
def test_a_log_that_was_not_closed_is_recovered_whole(steps, more):
    """Segments, indexes, producers and transactions are restored completely."""
    with tempfile.TemporaryDirectory() as name:
        in_memory = LogWriter(PartitionLog(config=SMALL))
        on_disk = LogWriter(open_log(Path(name)))
        in_memory.do(steps)
        on_disk.do(steps)
        recovery_point = on_disk.log.recovery_point
        on_disk.log.directory.close()
        on_disk.log = open_log(Path(name), clean=False, recovery_point=recovery_point)

        assert picture(in_memory.log) == picture(on_disk.log)
        assert producers_of(in_memory.log) == producers_of(on_disk.log)

        in_memory.do(more)
        on_disk.do(more)

        assert picture(in_memory.log) == picture(on_disk.log)
        on_disk.log.directory.close()


@pytest.mark.parametrize(
    ("suffix", "clean"),
    [
        # After a clean shutdown Kafka requires only the offset index, too.
        (".index", True),
        (".snapshot", True),
        (".index", False),
        (".timeindex", False),
        (".txnindex", False),
        (".snapshot", False),
    ],
)
def test_missing_indexes_and_snapshots_are_rebuilt(tmp_path, suffix, clean):
    """Missing indexes and snapshots are rebuilt from the batches."""
    on_disk = LogWriter(open_log(tmp_path))
    on_disk.do(STORY * 3)
    expected, producers = picture(on_disk.log), producers_of(on_disk.log)
    on_disk.log.close(0)
    for path in tmp_path.glob(f"*{suffix}"):
        path.unlink()

    log = open_log(tmp_path, clean=clean)

    assert expected == picture(log)
    assert producers == producers_of(log)
    log.directory.close()


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex", ".snapshot"])
def test_broken_indexes_are_rebuilt(tmp_path, suffix):
    """An implausible index is rebuilt, even after a clean shutdown."""
    on_disk = LogWriter(open_log(tmp_path))
    on_disk.do(STORY * 3)
    expected, producers = picture(on_disk.log), producers_of(on_disk.log)
    on_disk.log.close(0)
    for path in tmp_path.glob(f"*{suffix}"):
        path.write_bytes(b"\x7f\xff\xff\xff" * 34)

    log = open_log(tmp_path)

    assert expected == picture(log)
    assert producers == producers_of(log)
    log.directory.close()


@pytest.mark.parametrize(
    ("clean", "recovery_point", "flushed"),
    [(True, 20, [0, 7]), (False, 20, [0, 7]), (False, 7, [0])],
)
def test_rebuilt_indexes_of_flushed_segments_are_stored(tmp_path, clean, recovery_point, flushed):
    """The next start need not rebuild them again, even if this broker is killed."""
    on_disk = LogWriter(open_log(tmp_path))
    on_disk.do([Step(0, 1, 0, committed=True)] * 20)
    on_disk.log.close(0)
    for path in tmp_path.glob("*.index"):
        path.unlink()

    open_log(tmp_path, clean=clean, recovery_point=recovery_point).directory.close()

    stored = [int(path.stem) for path in tmp_path.glob("*.index") if path.stat().st_size]
    assert flushed == sorted(stored)


def test_segments_behind_a_bad_batch_are_removed(tmp_path):
    """The log ends before the first bad batch, whatever follows it."""
    on_disk = LogWriter(open_log(tmp_path))
    on_disk.do([Step(0, 1, 0, committed=True)] * 20)
    assert [0, 7, 14] == [segment.base_offset for segment in on_disk.log.segments]
    on_disk.log.directory.close()
    middle = tmp_path / f"{7:020d}.log"
    middle.write_bytes(middle.read_bytes()[:-1])

    log = open_log(tmp_path, clean=False)

    assert list(range(13)) == [offset for offset, _, _ in records_of(log)]
    assert 13 == log.log_end_offset
    assert not list(tmp_path.glob(f"{14:020d}.*"))
    log.directory.close()


def test_duplicates_and_gaps_are_judged_as_before(tmp_path):
    """The producer's state is rebuilt from the log if it was not stored."""
    on_disk = LogWriter(open_log(tmp_path, config=ONE_SEGMENT))
    batches = [
        plain_batch(2, producer_id=8, producer_epoch=0, base_sequence=2 * number)
        for number in range(6)
    ]
    for batch in batches:
        on_disk.append(batch)
    on_disk.log.directory.close()

    log = open_log(tmp_path, config=ONE_SEGMENT, clean=False)
    on_disk.log = log
    for number in range(1, 6):
        on_disk.append(batches[number])
    assert 12 == log.log_end_offset
    for refused in (batches[0], plain_batch(1, producer_id=8, producer_epoch=0, base_sequence=13)):
        with pytest.raises(RefusedError) as caught:
            on_disk.append(refused)
        assert ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER == caught.value.error_code
    on_disk.append(plain_batch(1, producer_id=8, producer_epoch=0, base_sequence=12))
    assert 13 == log.log_end_offset
    log.directory.close()


@pytest.mark.parametrize("renamed", [(".log",), (".log", ".index"), (".log", ".timeindex")])
def test_a_swap_that_a_kill_has_interrupted_is_finished(written, renamed):
    """The files of a cleaned segment that still wait for their names get them."""
    log = open_log(written, config=ONE_SEGMENT, clean=False)
    expected = records_of(log)
    log.directory.close()
    for suffix in renamed:
        file = written / f"{0:020d}{suffix}"
        file.rename(f"{file}.swap")

    log = open_log(written, config=ONE_SEGMENT, clean=False)

    assert expected == records_of(log)
    assert [] == [*written.glob("*.swap")]
    log.directory.close()


def test_of_empty_segments_only_the_last_remains(tmp_path):
    """A failed roll leaves an empty file; offsets go on where the last one begins."""
    open_log(tmp_path, config=ONE_SEGMENT).directory.close()
    for offset in (0, 5, 9):
        (tmp_path / f"{offset:020d}.log").touch()

    log = open_log(tmp_path, config=ONE_SEGMENT, clean=False)

    assert [f"{9:020d}.log"] == [each.name for each in tmp_path.glob("*.log")]
    assert 9 == log.log_end_offset
    log.directory.close()


def test_a_log_without_records_restarts_at_its_log_start_offset(tmp_path):
    """No offset is assigned twice, even if deleted records are lost as well."""
    on_disk = LogWriter(open_log(tmp_path, config=ONE_SEGMENT))
    on_disk.do([Step(0, 1, 0, committed=True)] * 4)
    on_disk.log.directory.close()
    segment = tmp_path / f"{0:020d}.log"
    segment.write_bytes(segment.read_bytes()[:100])

    log = open_log(tmp_path, config=ONE_SEGMENT, clean=False, log_start_offset=3)

    assert (3, 3) == (log.log_start_offset, log.log_end_offset)
    log.directory.close()
