"""Reserved disk space for the operations that free space on a full disk."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace

import pytest

from spark_kafka_sink.devbroker.log import disk
from spark_kafka_sink.devbroker.log.data_directory import RESERVED_BYTES, Reserve

CAPACITY = 1_000_000


@pytest.fixture
def fill(tmp_path, monkeypatch):
    """Limit the size of the files in a directory, and return a function that fills it up."""
    real = disk.write

    def write(descriptor, buffer, position):
        used = sum(path.stat().st_size for path in tmp_path.iterdir())
        growth = position + len(buffer) - os.fstat(descriptor).st_size
        if growth > CAPACITY - used:
            if growth - len(buffer) >= CAPACITY - used:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            buffer = buffer[: len(buffer) - (growth - (CAPACITY - used))]
        return real(descriptor, buffer, position)

    def fill():
        used = sum(path.stat().st_size for path in tmp_path.iterdir())
        (tmp_path / "records").write_bytes(bytes(CAPACITY - used))

    monkeypatch.setattr(disk, "write", write)
    return fill


def sizes(path):
    return {entry.name: entry.stat().st_size for entry in path.iterdir()}


def test_a_file_is_replaced_on_a_full_disk_with_the_room_that_was_reserved(tmp_path, fill):
    """The space that the new content leaves free is reserved again."""
    reserve = Reserve(tmp_path / "reserve")
    reserve.replace_file(tmp_path / "topics", bytes(1000))
    assert {"reserve": 262_144, "topics": 1000} == sizes(tmp_path)
    fill()

    reserve.replace_file(tmp_path / "topics", bytes(3000))

    used = {"records": CAPACITY - 262_144 - 1000}
    assert used | {"reserve": 260_144, "topics": 3000} == sizes(tmp_path)


def test_space_is_reserved_again_once_there_is_some(tmp_path, fill):
    """The next replacement of a file restores the reserve."""
    reserve = Reserve(tmp_path / "reserve")
    reserve.replace_file(tmp_path / "topics", b"")
    fill()
    reserve.replace_file(tmp_path / "topics", bytes(5000))
    (tmp_path / "records").unlink()

    reserve.replace_file(tmp_path / "topics", bytes(4000))

    assert {"reserve": 262_144, "topics": 4000} == sizes(tmp_path)


def test_content_larger_than_the_reserve_is_refused_and_changes_nothing(tmp_path, fill):
    """The space is reserved again at once, so that records cannot use it."""
    reserve = Reserve(tmp_path / "reserve")
    reserve.replace_file(tmp_path / "topics", b"old")
    fill()

    with pytest.raises(OSError, match="No space left"):
        reserve.replace_file(tmp_path / "topics", bytes(RESERVED_BYTES + 1))

    assert b"old" == (tmp_path / "topics").read_bytes()
    assert 262_144 == sizes(tmp_path)["reserve"]
    reserve.replace_file(tmp_path / "topics", b"new")
    assert b"new" == (tmp_path / "topics").read_bytes()


def test_another_error_leaves_the_reserve_alone(tmp_path, monkeypatch):
    """Free space does not help with other disk errors."""
    reserve = Reserve(tmp_path / "reserve")
    reserve.replace_file(tmp_path / "topics", b"old")

    def broken(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(disk, "write", broken)
    with pytest.raises(OSError, match="Input/output error"):
        reserve.replace_file(tmp_path / "topics", b"new")

    assert {"reserve": 262_144, "topics": 3} == sizes(tmp_path)


def test_the_reserve_of_an_earlier_broker_is_reused(tmp_path):
    """The reserve is neither doubled nor allocated again."""
    for _ in range(2):
        Reserve(tmp_path / "reserve").replace_file(tmp_path / "topics", b"")
        assert {"reserve": 262_144, "topics": 0} == sizes(tmp_path)


def test_as_much_is_reserved_as_the_largest_file_takes(tmp_path):
    """Otherwise a list of many topics could not be replaced by a shorter one."""
    reserve = Reserve(tmp_path / "reserve")
    reserve.replace_file(tmp_path / "topics", bytes(300_000))
    reserve.replace_file(tmp_path / "small", b"")

    assert {"reserve": 300_000, "topics": 300_000, "small": 0} == sizes(tmp_path)


def test_a_sixteenth_of_the_free_space_of_a_small_disk_is_reserved(tmp_path, monkeypatch):
    """The rest of the disk is for records."""
    free = SimpleNamespace(f_bavail=50, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda _: free)

    Reserve(tmp_path / "reserve").replace_file(tmp_path / "topics", b"")

    assert {"reserve": 12_800, "topics": 0} == sizes(tmp_path)
