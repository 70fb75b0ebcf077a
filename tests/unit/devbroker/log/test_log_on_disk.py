"""A log on disk behaves as one in memory, before and after it is reopened."""

from __future__ import annotations

import struct
import tempfile
from collections import deque
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
from spark_kafka_sink.devbroker.log.files import AppendFile, OpenFiles
from spark_kafka_sink.devbroker.log.leader_epoch_cache import (
    LeaderEpochCache,
    decode_leader_epochs,
    encode_leader_epochs,
)
from spark_kafka_sink.devbroker.log.partition_log import PartitionLog
from spark_kafka_sink.devbroker.log.producer_state import (
    MAX_SEQUENCE,
    BatchMetadata,
    ProducerStateEntry,
    decode_snapshot,
    encode_snapshot,
)
from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.record.record_batch import crc32c, decode_header
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
from tests.support.record.plain_batches import PlainRecord, plain_batch

BATCH = plain_batch([PlainRecord(b"x" * 30)])


def append(log, batch, now_ms=0):
    memory = memoryview(bytearray(batch))
    return log.append(memory, decode_header(memory), now_ms=now_ms)


def bases(log):
    return [segment.base_offset for segment in log.segments]


@settings(deadline=None, max_examples=60)
@given(steps=STEPS, more=STEPS)
def test_memory_and_disk_answer_alike_also_after_a_restart(steps, more):
    """Whatever was written, a log on disk reads like one in memory, reopened or not."""
    with tempfile.TemporaryDirectory() as directory:
        in_memory = LogWriter(PartitionLog(config=SMALL))
        on_disk = LogWriter(open_log(Path(directory)))
        in_memory.do(steps)
        on_disk.do(steps)

        assert picture(in_memory.log) == picture(on_disk.log)

        on_disk.log.close(0)
        on_disk.log = open_log(Path(directory))

        assert picture(in_memory.log) == picture(on_disk.log)
        assert producers_of(in_memory.log) == producers_of(on_disk.log)

        in_memory.do(more)
        on_disk.do(more)

        assert records_of(in_memory.log) == records_of(on_disk.log)
        assert producers_of(in_memory.log) == producers_of(on_disk.log)
        on_disk.log.directory.close()


def test_files_have_kafkas_names(tmp_path):
    """Segments are named by their first offset and snapshots by the offset they were taken at."""
    log = open_log(tmp_path / "t-0", config=TopicConfig(segment_bytes=250, index_interval_bytes=0))
    for _ in range(4):
        append(log, BATCH)
    log.close(0)

    assert [
        "00000000000000000000.index",
        "00000000000000000000.log",
        "00000000000000000000.timeindex",
        "00000000000000000002.index",
        "00000000000000000002.log",
        "00000000000000000002.snapshot",
        "00000000000000000002.timeindex",
        "00000000000000000004.snapshot",
        "leader-epoch-checkpoint",
    ] == sorted(path.name for path in (tmp_path / "t-0").iterdir())
    assert b"0\n1\n0 0\n" == (tmp_path / "t-0" / "leader-epoch-checkpoint").read_bytes()


def test_a_segment_is_rolled_when_the_next_batch_would_make_it_too_large():
    """No segment is larger than segment.bytes."""
    log = PartitionLog(config=TopicConfig(segment_bytes=2 * len(BATCH)))
    for _ in range(5):
        append(log, BATCH)

    assert [0, 2, 4] == bases(log)


def test_a_batch_larger_than_a_segment_is_refused():
    """No segment could hold such a batch."""
    log = PartitionLog(config=TopicConfig(segment_bytes=len(BATCH) - 1))

    with pytest.raises(RefusedError) as caught:
        append(log, BATCH)

    assert ErrorCode.RECORD_LIST_TOO_LARGE == caught.value.error_code
    assert 0 == log.log_end_offset


def test_a_segment_is_rolled_when_its_records_span_more_than_segment_ms():
    """The age of a segment is derived from its records."""
    log = PartitionLog(config=TopicConfig(segment_ms=10))
    for timestamp in (100, 110, 111, 121, 122):
        append(log, plain_batch([PlainRecord(timestamp=timestamp)]))

    assert [0, 2, 4] == bases(log)


def test_the_age_of_a_segment_is_known_after_a_restart(tmp_path):
    """The first batch of a file that was opened again counts, as when it was written."""
    config = TopicConfig(segment_ms=10)
    log = open_log(tmp_path, config=config)
    append(log, plain_batch([PlainRecord(timestamp=100)]))
    log.close(0)
    log = open_log(tmp_path, config=config)
    for timestamp in (110, 111):
        append(log, plain_batch([PlainRecord(timestamp=timestamp)]))

    assert [0, 2] == bases(log)
    log.directory.close()


def test_a_segment_without_timestamps_ages_by_the_clock():
    """The timestamp of a record may be missing (-1)."""
    log = PartitionLog(config=TopicConfig(segment_ms=10), now_ms=1000)
    for now_ms in (1000, 1010, 1011):
        append(log, plain_batch([PlainRecord(timestamp=-1)]), now_ms=now_ms)

    assert [0, 2] == bases(log)


def test_a_segment_is_rolled_when_an_index_is_full():
    """The size of an index limits its number of entries."""
    log = PartitionLog(config=TopicConfig(index_interval_bytes=0, segment_index_bytes=36))
    for _ in range(8):
        append(log, BATCH)

    # The first batch needs no entry, since lookups start at the beginning of the segment.
    assert [0, 5] == bases(log)


def test_an_offset_too_far_from_the_segments_begins_a_new_one():
    """Indexes store the difference to the base offset in 31 bits."""
    log = PartitionLog()
    far = 2**31 - 1
    append(log, BATCH)
    append(log, plain_batch(1, last_offset_delta=far - 1))
    append(log, BATCH)

    assert [0, far + 1] == bases(log)


def test_a_batch_that_cannot_be_written_leaves_the_log_as_it_was(tmp_path, monkeypatch):
    """A full disk is KAFKA_STORAGE_ERROR, and the next batch gets the same offset."""
    log = open_log(tmp_path)
    append(log, BATCH)

    def full(self, buffer):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(AppendFile, "append", full)
        with pytest.raises(RefusedError) as caught:
            append(log, BATCH)
    again = append(log, BATCH)

    assert ErrorCode.KAFKA_STORAGE_ERROR == caught.value.error_code
    assert 1 == again.first_offset
    assert [0, 1] == [offset for offset, _, _ in records_of(log)]
    log.directory.close()


def test_an_incomplete_write_is_truncated(tmp_path, monkeypatch):
    """The bytes that were written before the error are truncated."""
    file = AppendFile(tmp_path / "x", OpenFiles())
    file.append(b"before")
    real = __import__("os").pwrite
    answers = iter([3, OSError(28, "No space left on device")])

    def partly(descriptor, buffer, position):
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return real(descriptor, bytes(buffer)[:answer], position)

    with monkeypatch.context() as patch:
        patch.setattr("spark_kafka_sink.devbroker.log.files.os.pwrite", partly)
        with pytest.raises(OSError, match="No space"):
            file.append(b"more bytes")

    assert b"before" == (tmp_path / "x").read_bytes()
    assert 6 == file.size
    file.delete()


def test_more_files_than_may_be_open_are_used_in_turn(tmp_path):
    """A file that was closed to limit open files is reopened when it is needed."""
    open_files = OpenFiles(max_open_files=2)
    files = [AppendFile(tmp_path / str(number), open_files) for number in range(5)]
    for _ in range(2):
        for number, file in enumerate(files):
            file.append(bytes([number]))

    assert [bytes([n, n]) for n in range(5)] == [file.read(0, 10) for file in files]
    open_files.close_all()


def test_segments_before_the_log_start_are_removed(tmp_path):
    """Files are deleted as soon as none of their records can be read any more."""
    log = open_log(tmp_path)
    writer = LogWriter(log)
    writer.do([Step(0, 1, 0, committed=True)] * 20)
    assert [0, 7, 14] == bases(log)

    log.delete_records(14)

    assert [14] == bases(log)
    assert ["00000000000000000014.log"] == [path.name for path in tmp_path.glob("*.log")]
    assert list(range(14, 20)) == [offset for offset, _, _ in records_of(log)]
    log.directory.close()


def test_leader_epochs_end_where_the_next_one_begins(tmp_path):
    """The log keeps the epochs of all its records, also after a restart."""
    log = open_log(tmp_path)
    append(log, plain_batch(3))
    log.begin_leader_epoch(2)
    append(log, plain_batch(4))
    log.close(0)
    log = open_log(tmp_path)

    assert 2 == log.leader_epoch
    assert [(0, 3), (0, 3), (2, 7), None] == [log.end_offset_for_epoch(epoch) for epoch in range(4)]
    log.directory.close()


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=8))
def test_a_leader_epoch_checkpoint_can_be_read_again(assigned):
    """Decoding returns what was encoded."""
    cache = LeaderEpochCache()
    for epoch, start_offset in assigned:
        cache.assign(epoch, start_offset)

    assert cache.entries == decode_leader_epochs(encode_leader_epochs(cache)).entries


@pytest.mark.parametrize("content", [b"", b"1\n0\n", b"0\n2\n0 0\n", b"0\n1\nx y\n", b"0\n1\n5\n"])
def test_a_broken_leader_epoch_checkpoint_is_refused(content):
    """Invalid content raises CorruptRecordError and no other error."""
    with pytest.raises(CorruptRecordError):
        decode_leader_epochs(content)


def test_every_changed_byte_of_a_snapshot_is_noticed():
    """A snapshot is used only if its checksum is right."""
    writer = LogWriter(PartitionLog())
    writer.do([Step(1, 2, 5, committed=True), Step(2, 3, 6, committed=True)])
    content = encode_snapshot(writer.log.producer_state.entries())

    assert [1, 2] == [entry.producer_id for entry in decode_snapshot(content)]
    for position in range(len(content)):
        broken = bytearray(content)
        broken[position] ^= 0x40
        with pytest.raises(CorruptRecordError):
            decode_snapshot(bytes(broken))
    for size in range(len(content)):
        with pytest.raises(CorruptRecordError):
            decode_snapshot(content[:size])


def test_a_snapshot_has_as_many_entries_as_it_says():
    """Kafka would misread what follows the last one, although the checksum is right."""
    body = encode_snapshot([ProducerStateEntry(producer_id=1)])[6:]
    for wrong in (body + bytes(1), body[:-1]):
        content = struct.pack(">hI", 1, crc32c(wrong)) + wrong
        with pytest.raises(CorruptRecordError, match="does not have 1 entries"):
            decode_snapshot(content)


@st.composite
def last_batches(draw):
    """Return the last batch of a producer; one of a marker has no sequence numbers."""
    records = draw(st.integers(1, 1000))
    last, first_offset = draw(st.integers(-1, MAX_SEQUENCE)), draw(st.integers(0, 2**40))
    # The numbers wrap.
    first = (last - records + 1) & MAX_SEQUENCE if last >= 0 else -1
    return BatchMetadata(first, last, first_offset, first_offset + records - 1, timestamp=7)


@given(st.lists(st.tuples(last_batches(), st.none() | st.integers(0, 2**40)), max_size=3))
def test_a_snapshot_has_the_last_batch_of_each_producer(batches):
    """Its sequence numbers, offsets and time come back, and the start of an open transaction."""
    entries = [
        ProducerStateEntry(
            producer_id=number,
            producer_epoch=number,
            batches=deque([batch], maxlen=5),
            last_timestamp=7,
            coordinator_epoch=number,
            current_txn_first_offset=first_of_transaction,
        )
        for number, (batch, first_of_transaction) in enumerate(batches)
    ]
    assert entries == decode_snapshot(encode_snapshot(entries))
