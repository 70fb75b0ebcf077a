"""The offsets where leader epochs begin and end in a log."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker.log.leader_epoch_cache import LeaderEpochCache


@pytest.fixture
def cache():
    cache = LeaderEpochCache()
    for epoch, start_offset in [(2, 0), (4, 10), (7, 30)]:
        cache.assign(epoch, start_offset)
    return cache


def test_an_empty_cache_knows_nothing():
    """Without entries no epoch has an end offset."""
    cache = LeaderEpochCache()

    assert (None, None, None) == (cache.latest, cache.end_of(0, 5), cache.epoch_at(0))


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (8, None),
        (7, (7, 99)),
        (6, (4, 30)),
        (4, (4, 30)),
        (3, (2, 10)),
        (2, (2, 10)),
        (1, (1, 0)),
    ],
)
def test_an_epoch_ends_where_the_next_begins(cache, epoch, expected):
    """The latest epoch ends at the log end; an epoch without an entry gets the previous one's."""
    assert expected == cache.end_of(epoch, 99)


@pytest.mark.parametrize(("offset", "expected"), [(0, 2), (9, 2), (10, 4), (29, 4), (30, 7)])
def test_an_offset_belongs_to_an_epoch(cache, offset, expected):
    """The epoch of an offset is the last one that began at or before it."""
    assert expected == cache.epoch_at(offset)


def test_an_epoch_that_wrote_nothing_is_replaced(cache):
    """If a leader appended nothing, the next leader's epoch replaces its entry."""
    cache.assign(9, 30)

    assert ((2, 0), (4, 10), (9, 30)) == cache.entries


@pytest.mark.parametrize("epoch", [7, 3])
def test_an_epoch_that_is_not_newer_changes_nothing(cache, epoch):
    """Each epoch begins once, in ascending order."""
    before = cache.entries
    cache.assign(epoch, 50)

    assert before == cache.entries


@pytest.mark.parametrize(
    ("start_offset", "expected"),
    [
        (5, ((2, 5), (4, 10), (7, 30))),
        (10, ((4, 10), (7, 30))),
        (40, ((7, 40),)),
    ],
)
def test_epochs_before_the_log_start_are_removed(cache, start_offset, expected):
    """The first remaining epoch begins at the log start offset."""
    cache.truncate_from_start(start_offset)

    assert expected == cache.entries


def test_no_epoch_has_no_end():
    """Epoch -1 stands for none, and is not older than all others."""
    cache = LeaderEpochCache()
    cache.assign(0, 0)

    assert None is cache.end_of(-1, 5)
