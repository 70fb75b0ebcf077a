"""A disk that fails at any operation: what was answered stays true, and nothing hangs."""

from __future__ import annotations

import shutil
from functools import partial

import pytest

from spark_kafka_sink.devbroker import coordinator_log
from tests.support.disk_story import SMALL_COORDINATOR, Story
from tests.support.faulty_disk import Failure, FaultyDisk

#: Of about 900 operations, those at which the fast test makes the disk fail.
STRIDE = 197


@pytest.fixture
def disk(monkeypatch):
    monkeypatch.setattr(coordinator_log, "_CONFIG", SMALL_COORDINATOR)
    return FaultyDisk(monkeypatch)


def tell(path, disk, *, kills, fail=lambda: None):
    """Run the story, with a disk that will `fail`.

    Then free the disk, kill the broker, and close it in order, and look.
    """
    story = Story(path, disk, kills=kills)
    disk.forget()
    fail()
    story.tell()
    disk.free()
    story.check()
    story.kill()
    story.check()
    story.produce("t", b"last")
    story.restart()
    story.check()
    story.cluster.close()
    shutil.rmtree(path)


def tell_with(path, disk, failure, numbers):
    """Run the story once for each number of operations after which the disk fails."""
    for number in numbers:
        fail = partial(disk.fail_after, number, failure)
        try:
            tell(path / str(number), disk, kills=number % 2 == 1, fail=fail)
        except BaseException as error:
            error.add_note(f"after {number} operations failed {disk.failed[:9]}")
            raise


def test_the_story_is_true_without_failures(tmp_path, disk):
    """The story itself asks for nothing that a broker with a good disk refuses."""
    tell(tmp_path / "data", disk, kills=False)

    assert 800 < disk.count


@pytest.mark.parametrize("failure", Failure)
def test_nothing_is_lost_on_a_disk_that_fails_here_and_there(tmp_path, disk, failure):
    """Records, transactions, offsets and topics are as answered, whether it is freed or killed."""
    tell_with(tmp_path, disk, failure, range(0, 900, STRIDE))


@pytest.mark.slow
@pytest.mark.parametrize("failure", Failure)
def test_nothing_is_lost_whichever_operation_fails(tmp_path, disk, failure):
    """The disk fails once at every operation that the broker comes to in a different way."""
    tell(tmp_path / "data", disk, kills=False)

    numbers = sorted(set(disk.first_by_way.values()))

    assert 80 < len(numbers)
    tell_with(tmp_path, disk, failure, numbers)
