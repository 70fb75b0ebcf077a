"""A disk that fails at any operation: acknowledged changes persist, and nothing hangs."""

from __future__ import annotations

import shutil
from functools import partial

import pytest

from spark_kafka_sink.devbroker.log import coordinator_log
from tests.support.devbroker.disk_story import SMALL_COORDINATOR, Story
from tests.support.devbroker.faulty_disk import Failure, FaultyDisk

#: The step between the operations (about 900) at which the fast test makes the disk fail.
STRIDE = 197


@pytest.fixture
def disk(monkeypatch):
    monkeypatch.setattr(coordinator_log, "_CONFIG", SMALL_COORDINATOR)
    return FaultyDisk(monkeypatch)


def tell(path, disk, *, kills, fail=lambda: None):
    """Run the story on a disk on which `fail` sets a failure.

    Then free the disk, kill the broker, close it cleanly, and check its state after each step.
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
    """The story itself makes no request that a broker with a working disk refuses."""
    tell(tmp_path / "data", disk, kills=False)

    assert 800 < disk.count


@pytest.mark.parametrize("failure", Failure)
def test_nothing_is_lost_on_a_disk_that_fails_here_and_there(tmp_path, disk, failure):
    """Records, transactions, offsets and topics are as acknowledged, with and without a kill."""
    tell_with(tmp_path, disk, failure, range(0, 900, STRIDE))


@pytest.mark.slow
@pytest.mark.parametrize("every", [len(Failure), pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("failure", Failure)
def test_nothing_is_lost_whichever_operation_fails(tmp_path, disk, failure, every):
    """The disk fails once on each code path that leads to an operation, in one way or in each."""
    tell(tmp_path / "data", disk, kills=False)

    numbers = sorted(set(disk.first_by_way.values()))

    assert 80 < len(numbers)
    tell_with(tmp_path, disk, failure, numbers[list(Failure).index(failure) % every :: every])
