"""The metadata log on disk keeps what was acknowledged, and reports damage."""

from __future__ import annotations

import errno
import uuid

import pytest

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.log import disk
from spark_kafka_sink.devbroker.log.data_directory import DataDirectory, StoredCluster
from spark_kafka_sink.devbroker.log.files import OpenFiles
from spark_kafka_sink.devbroker.log.metadata_log import MetadataLog
from spark_kafka_sink.devbroker.metadata.quorum import MetadataQuorum, StoredRecords
from spark_kafka_sink.devbroker.metadata.records import TopicRecord
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.protocol.error_codes import ErrorCode

TOPICS = tuple(TopicRecord(topic_id=uuid.UUID(int=index), name=f"t{index}") for index in range(4))
FIRST, SECOND = StoredRecords(1, TOPICS[:2]), StoredRecords(3, TOPICS[2:3])


@pytest.fixture
def path(tmp_path):
    """Return the path of a log with two appends."""
    path = tmp_path / "metadata.log"
    log = opened(path)
    for stored in (FIRST, SECOND):
        log.append(*stored)
    return path


def opened(path):
    """Return the log of a file, as a process finds it."""
    log = MetadataLog(path, OpenFiles())
    log.load()
    return log


def load(path):
    return MetadataLog(path, OpenFiles()).load()


def test_what_was_appended_is_loaded(path):
    """With the epochs of the controllers, and new appends follow it."""
    assert [FIRST, SECOND] == load(path)
    opened(path).append(4, TOPICS[3:])
    assert [FIRST, SECOND, StoredRecords(4, TOPICS[3:])] == load(path)


def test_a_new_log_is_empty(tmp_path):
    """And only its user can read it."""
    path = tmp_path / "metadata.log"
    assert [] == load(path)
    assert 0o600 == path.stat().st_mode & 0o777


def test_the_log_is_in_the_directory_of_the_cluster(tmp_path):
    """Next to the rest of what the cluster stores."""
    data = DataDirectory(tmp_path / "data")
    data.write_cluster(StoredCluster(cluster_id="c"))
    data.metadata_log().append(*FIRST)
    data.close()
    data = DataDirectory(tmp_path / "data")
    assert [FIRST] == data.metadata_log().load()
    data.close()


def test_an_interrupted_append_is_removed(path):
    """However much of it was written; the next append takes its place."""
    whole = path.read_bytes()
    first_size = len(whole) - (len(whole) - whole.index(b"\0" * 7 + b"\x02", 1))
    for size in range(first_size + 1, len(whole)):
        path.write_bytes(whole[:size])
        assert [FIRST] == load(path)
        assert first_size == path.stat().st_size
    opened(path).append(*SECOND)
    assert whole == path.read_bytes()


def test_zeros_at_the_end_are_an_interrupted_append(path):
    """A crash of the machine may leave a file longer than what was written."""
    path.write_bytes(path.read_bytes() + bytes(1000))
    assert [FIRST, SECOND] == load(path)


def test_damage_before_the_end_is_reported(path):
    """Without these records topics would be missing, so nothing starts and nothing is removed."""
    damaged = bytearray(path.read_bytes())
    damaged[100] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(ConfigError, match=r"metadata\.log is damaged at byte 0: .*checksum"):
        load(path)
    assert damaged == path.read_bytes()


def test_a_missing_part_is_reported(path):
    """The offsets of a log have no gaps."""
    whole = path.read_bytes()
    second = whole.index(b"\0" * 7 + b"\x02", 1)
    path.write_bytes(whole[second:] * 2)
    with pytest.raises(ConfigError, match="the batch has offset 2, not 0"):
        load(path)


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_an_append_that_fails_stores_nothing(path, monkeypatch, operation):
    """The controller answers with an error, and the next append is like the first try."""
    log = opened(path)
    whole = path.read_bytes()

    def fail(*_arguments):
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(disk, operation, fail)
        with pytest.raises(RefusedError, match="metadata of the cluster cannot be stored") as error:
            log.append(4, TOPICS[3:])
    assert ErrorCode.KAFKA_STORAGE_ERROR == error.value.error_code
    assert whole == path.read_bytes()
    log.append(4, TOPICS[3:])
    assert [FIRST, SECOND, StoredRecords(4, TOPICS[3:])] == load(path)


def test_a_quorum_continues_with_what_is_stored(path):
    """Its records have their offsets, and no epoch comes again."""
    quorum = MetadataQuorum(store=opened_store(path))
    assert TOPICS[:3] == quorum.read(0, 10)
    quorum.start(1)
    assert 4 == quorum.acquire(1, 0.0)
    assert 3 == quorum.append(4, TOPICS[3:])
    assert [FIRST, SECOND, StoredRecords(4, TOPICS[3:])] == load(path)


def opened_store(path):
    """Return a log that was not loaded yet: the quorum does that."""
    return MetadataLog(path, OpenFiles())


def test_a_quorum_has_nothing_that_is_not_stored(path, monkeypatch):
    """What brokers may fetch survives the process."""
    quorum = MetadataQuorum(store=opened_store(path))
    quorum.start(1)
    quorum.acquire(1, 0.0)

    def fail(*_arguments):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(disk, "write", fail)
    with pytest.raises(RefusedError):
        quorum.append(4, TOPICS[3:])
    assert 3 == quorum.end_offset
