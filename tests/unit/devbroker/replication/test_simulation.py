"""Simulated clusters keep what they acknowledge, whatever fails and in which order."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker.log import partition_log
from spark_kafka_sink.devbroker.log.partition_log import PartitionLog
from spark_kafka_sink.devbroker.replication.leader_replica import LeaderReplica
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.devbroker.replication.fault_schedules import Faults, run_schedule
from tests.support.devbroker.replication.simulated_cluster import InvariantError

#: How many schedules of each kind the fast tests run.
_FAST = {Faults.PROCESSES: 80, Faults.POWER: 40, Faults.UNCLEAN: 25}
#: `make soak` runs a hundred thousand.
_PARTS = 100
_PART = 1000


def run(faults, seeds):
    """Run schedules; return how many records were acknowledged with acks=all."""
    acknowledged = 0
    for seed in seeds:
        try:
            cluster = run_schedule(seed, faults)
        except Exception as error:
            error.add_note(f"seed {seed} of {faults}")
            raise
        acknowledged += sum(each.acknowledged for each in cluster.written.values())
    return acknowledged


@pytest.mark.parametrize("faults", [Faults.PROCESSES, Faults.POWER])
def test_schedules_of_faults_keep_all_invariants(faults):
    """Acknowledged records survive, replicas agree, one broker leads, and all catch up at last."""
    assert run(faults, range(_FAST[faults])) > 2 * _FAST[faults]


@pytest.mark.parametrize(
    ("faults", "seed"),
    [(Faults.POWER, 2281), (Faults.PROCESSES, 49626), (Faults.PROCESSES, 79633)],
    ids=["ended before it was registered", "deleted and truncated", "removed but eligible"],
)
def test_rare_schedules_keep_all_invariants(faults, seed):
    """One schedule in thousands has these faults in this order."""
    run(faults, [seed])


def test_unclean_elections_end_with_equal_replicas():
    """With unclean elections records may be lost, but replicas agree at last, with one leader."""
    run(Faults.UNCLEAN, range(_FAST[Faults.UNCLEAN]))


def test_a_schedule_repeats_by_its_seed():
    """The same seed gives the same events, records and metadata."""
    first, again = run_schedule(8), run_schedule(8)
    assert first.events == again.events
    assert first.written == again.written
    assert first.controller.image == again.controller.image


def commit_everything(leader, _image, _now):
    return leader.log.update_high_watermark(leader.log.log_end_offset)


def truncate_to_high_watermark(log, _offset, _now_ms):
    log.truncate_to(log.high_watermark)
    log.leader_epochs.remove_from(log.log_end_offset)


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (LeaderReplica, "maybe_increment_high_watermark", commit_everything),
        (LeaderReplica, "check_replicated", lambda _leader, _offset: ErrorCode.NONE),
        # What followers did before KIP-101.
        (PartitionLog, "truncate_as_follower", truncate_to_high_watermark),
        (partition_log, "replay_batch", lambda _batch, _header, _producers: None),
    ],
    ids=["not replicated", "not waited for", "truncated too far", "transactions not followed"],
)
def test_schedules_find_a_broken_rule(monkeypatch, owner, name, broken):
    """Without one of the rules of replication an invariant fails after a few schedules."""
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(InvariantError):
        run(Faults.PROCESSES, range(30, 50))


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("part", range(_PARTS))
def test_many_more_schedules_keep_all_invariants(part):
    """A hundred thousand other schedules keep the invariants, of all kinds."""
    faults = list(Faults)[part % len(Faults)]
    run(faults, range((part + 1) * _PART, (part + 2) * _PART))
