"""Simulated clusters keep what they acknowledge, whatever fails and in which order."""

from __future__ import annotations

import pytest

from tests.support.devbroker.replication.simulated_cluster import run_schedule

#: How many schedules the fast half runs; `make soak` runs more.
_FAST = 150
_PARTS = 100
_PART = 1000
_UNCLEAN = 40


def run(seeds, unclean_every=None):
    """Run schedules; return how many records were acknowledged with acks=all."""
    acknowledged = 0
    for seed in seeds:
        unclean = unclean_every is not None and seed % unclean_every == 0
        try:
            cluster = run_schedule(seed, unclean=unclean)
        except Exception as error:
            error.add_note(f"seed {seed}, unclean {unclean}")
            raise
        acknowledged += sum(each.acknowledged for each in cluster.written.values())
    return acknowledged


def test_schedules_of_faults_keep_all_invariants():
    """Acknowledged records survive, replicas agree, one broker leads, and all catch up at last."""
    assert run(range(_FAST)) > 2 * _FAST


def test_unclean_elections_end_with_equal_replicas():
    """With unclean elections records may be lost, but replicas agree at last, with one leader."""
    run(range(_UNCLEAN), unclean_every=1)


def test_a_schedule_repeats_by_its_seed():
    """The same seed gives the same events, records and metadata."""
    first, again = run_schedule(5), run_schedule(5)
    assert first.events == again.events
    assert first.written == again.written
    assert first.controller.records == again.controller.records


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("part", range(_PARTS))
def test_many_more_schedules_keep_all_invariants(part):
    """A hundred thousand other schedules keep the invariants, a tenth with unclean elections."""
    run(range(_FAST + part * _PART, _FAST + (part + 1) * _PART), unclean_every=10)
