"""The rules by which a partition changes, as Kafka's PartitionChangeBuilder has them."""

from __future__ import annotations

import random
import uuid
from dataclasses import replace

import pytest

from spark_kafka_sink.devbroker.controller.partition_change_builder import (
    Election,
    PartitionChangeBuilder,
    Reassignment,
)
from spark_kafka_sink.devbroker.metadata.records import (
    NO_LEADER,
    RECOVERED,
    RECOVERING,
    PartitionChange,
    PartitionRecord,
)

PARTITION = PartitionRecord(
    topic_id=uuid.UUID(int=1), partition=0, replicas=(1, 2, 3), isr=(1, 2, 3), leader=1
)
NOBODY_LEFT = replace(
    PARTITION, isr=(), leader=NO_LEADER, last_known_elr=(1,), leader_epoch=4, partition_epoch=9
)


def build(partition, *, alive=(1, 2, 3, 4, 5), min_isr=1, **target):
    """Build a change while some brokers may lead."""
    return PartitionChangeBuilder(
        partition=partition, is_acceptable_leader=set(alive).__contains__, min_isr=min_isr, **target
    ).build()


def changes(change: PartitionChange | None) -> dict[str, object]:
    """Return what a change changes."""
    if change is None:
        return {}
    names = [*PartitionChange.__dataclass_fields__][2:]
    return {name: value for name in names if (value := getattr(change, name)) is not None}


@pytest.mark.parametrize(
    ("partition", "target", "expected"),
    [
        (PARTITION, {}, {}),
        (PARTITION, {"election": Election.PREFERRED}, {}),
        (PARTITION, {"isr": (1, 2)}, {"isr": (1, 2)}),
        (PARTITION, {"isr": (2, 3), "alive": (2, 3)}, {"isr": (2, 3), "leader": 2}),
        # The leader is alive, but the second replica is not in sync.
        (PARTITION, {"isr": (3,), "alive": (2, 3)}, {"isr": (3,), "leader": 3}),
        # Another replica than the preferred one stays, unless the preferred one is asked for.
        (replace(PARTITION, leader=3), {}, {}),
        (replace(PARTITION, leader=3), {"election": Election.PREFERRED}, {"leader": 1}),
        (
            replace(PARTITION, leader=3, isr=(2, 3)),
            {"election": Election.PREFERRED},
            {},
        ),
    ],
)
def test_a_leader_that_may_lead_stays(partition, target, expected):
    """Otherwise the first replica in sync leads, and only a new leader raises the epoch."""
    assert expected == changes(build(partition, **target))


@pytest.mark.parametrize(
    ("min_isr", "before", "isr", "expected"),
    [
        # As long as enough are in sync, nobody else is eligible.
        (2, {}, (1, 2), {"isr": (1, 2)}),
        (2, {"isr": (1, 2)}, (1,), {"isr": (1,), "elr": (2,)}),
        (3, {"isr": (1, 2), "elr": (3,)}, (1,), {"isr": (1,), "elr": (2, 3)}),
        # Back in sync, and then enough again.
        (3, {"isr": (1,), "elr": (2, 3)}, (1, 3), {"isr": (1, 3), "elr": (2,)}),
        (2, {"isr": (1,), "elr": (2,)}, (1, 2), {"isr": (1, 2), "elr": ()}),
        # One that has not been in sync lately does not count.
        (2, {"isr": (1,), "elr": (2,)}, (1, 3), {"isr": (1, 3), "elr": ()}),
    ],
)
def test_replicas_that_leave_too_small_an_isr_remain_eligible(min_isr, before, isr, expected):
    """They have all that was acknowledged, as nothing is acknowledged by too few (KIP-966)."""
    partition = replace(PARTITION, **before)
    assert expected == changes(build(partition, min_isr=min_isr, isr=isr))


def test_the_last_replica_in_sync_is_eligible_when_it_leaves():
    """The partition has no leader then, and remembers the last one."""
    change = build(replace(PARTITION, isr=(1,)), isr=(), alive=(2, 3))
    assert {
        "leader": NO_LEADER,
        "isr": (),
        "elr": (1,),
        "last_known_elr": (1,),
    } == changes(change)


def test_an_eligible_replica_becomes_leader_and_is_then_alone_in_sync():
    """That is a clean election: the others may be behind it, but it lacks nothing."""
    partition = replace(NOBODY_LEFT, elr=(2, 3))
    assert {"leader": 3, "isr": (3,), "elr": (2,), "last_known_elr": ()} == changes(
        build(partition, alive=(1, 3), min_isr=2)
    )
    assert {} == changes(build(partition, alive=(1,), min_isr=2))


def test_a_replica_after_an_unclean_shutdown_is_not_eligible():
    """It may have lost records, so that a partition may be left without any eligible one."""
    partition = replace(NOBODY_LEFT, elr=(2, 3))
    change = build(partition, alive=(), min_isr=2, unclean_shutdowns=(2,))
    assert {"elr": (3,)} == changes(change)
    change = build(PARTITION, alive=(1,), min_isr=3, isr=(1, 2), unclean_shutdowns=(3,))
    assert {"isr": (1, 2)} == changes(change)


def test_the_last_leader_may_lead_again_if_nobody_is_eligible():
    """It may lack records, so it has to recover, as after an unclean election."""
    assert {
        "leader": 1,
        "isr": (1,),
        "last_known_elr": (),
        "leader_recovery_state": RECOVERING,
    } == changes(build(NOBODY_LEFT, alive=(1, 2, 3)))
    assert {} == changes(build(NOBODY_LEFT, alive=(2, 3)))
    assert {} == changes(build(replace(NOBODY_LEFT, elr=(3,)), alive=(1, 2), min_isr=2))


def test_an_unclean_election_takes_any_replica_that_is_alive():
    """Who was eligible is forgotten: the log of the new leader is the one that counts."""
    partition = replace(NOBODY_LEFT, elr=(1,))
    change = build(partition, alive=(3,), min_isr=2, election=Election.UNCLEAN)
    assert {
        "leader": 3,
        "isr": (3,),
        "elr": (),
        "last_known_elr": (),
        "leader_recovery_state": RECOVERING,
    } == changes(change)
    # A clean election comes first.
    change = build(partition, alive=(1, 3), min_isr=2, election=Election.UNCLEAN)
    assert 1 == change.leader
    assert change.leader_recovery_state is None
    assert {} == changes(build(partition, alive=(), min_isr=2, election=Election.UNCLEAN))


def test_a_leader_says_that_it_has_recovered():
    """The state changes only if it is another one."""
    recovering = replace(PARTITION, isr=(1,), leader_recovery_state=RECOVERING)
    change = build(recovering, leader_recovery_state=RECOVERED)
    assert {"leader_recovery_state": RECOVERED} == changes(change)
    assert {} == changes(build(recovering, leader_recovery_state=RECOVERING))


@pytest.mark.parametrize(
    ("current", "target", "expected"),
    [
        ((1, 2, 3), (1, 2, 4), ((1, 2, 4, 3), (4,), (3,))),
        ((1, 2, 3), (3, 2, 1), ((3, 2, 1), (), ())),
        ((1, 2, 3), (1,), ((1, 2, 3), (), (2, 3))),
        ((1,), (5, 4), ((5, 4, 1), (4, 5), (1,))),
    ],
)
def test_a_reassignment_lists_the_new_replicas_first(current, target, expected):
    """Those that are to be removed stay until then, at the end."""
    assert expected == Reassignment.plan(current, target)


def test_a_reassignment_ends_when_all_its_replicas_are_in_sync():
    """Until then both the old and the new replicas are assigned."""
    plan = Reassignment.plan(PARTITION.replicas, (4, 5))
    started = build(PARTITION, **plan._asdict())
    assert {"replicas": (4, 5, 1, 2, 3), "adding": (4, 5), "removing": (1, 2, 3)} == changes(
        started
    )
    moving = started.apply_to(PARTITION)
    half = build(moving, isr=(1, 2, 3, 4))
    assert {"isr": (1, 2, 3, 4)} == changes(half)
    moving = half.apply_to(moving)
    assert {
        "leader": 4,
        "isr": (4, 5),
        "replicas": (4, 5),
        "adding": (),
        "removing": (),
    } == changes(build(moving, isr=(1, 2, 3, 4, 5)))


@pytest.mark.parametrize(
    ("target", "isr", "ends"),
    [
        # The new one is enough, whatever the others do.
        ((1, 2, 4), (1, 4), True),
        ((1, 2, 4), (1, 2), False),
        # With fewer replicas than before, all of them count.
        ((1, 2), (1, 3), False),
        ((1, 2), (1, 2), True),
        ((4,), (1, 4), True),
        ((4,), (1, 2, 3), False),
        # No replica would be in sync.
        ((2, 3), (1,), False),
    ],
)
def test_a_reassignment_waits_for_the_new_replicas_only(target, isr, ends):
    """It waits for all that remain if it removes more than it adds."""
    plan = Reassignment.plan(PARTITION.replicas, target)
    moving = replace(PARTITION, isr=(1,), **plan._asdict())
    partition = build(moving, isr=isr)
    assert ends == (partition is not None and partition.removing == ())


def test_replicas_in_another_order_need_no_move():
    """The leader stays, and so does its epoch."""
    assert {"replicas": (3, 1, 2)} == changes(build(PARTITION, replicas=(3, 1, 2)))


def test_removing_a_replica_raises_the_epoch_of_the_leader():
    """Otherwise it could count a fetch of the removed replica."""
    change = build(PARTITION, replicas=(1, 2, 3), removing=(3,))
    assert {"leader": 1, "isr": (1, 2), "replicas": (1, 2)} == changes(change)
    assert 1 == change.apply_to(PARTITION).leader_epoch


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_a_partition_makes_sense(seed):
    """The leader is in sync, and nobody is both in sync and eligible."""
    rng = random.Random(seed)
    partition = PARTITION
    for _ in range(60):
        alive = [each for each in range(1, 6) if rng.random() < 0.6]
        isr = tuple(
            each
            for each in partition.replicas
            if each in alive and (each in partition.isr or partition.has_leader)
        )
        target = {"isr": isr} if rng.random() < 0.8 else {}
        if rng.random() < 0.1:
            new = rng.sample(range(1, 6), rng.randint(1, 4))
            target |= Reassignment.plan(partition.replicas, new)._asdict()
        change = build(
            partition,
            alive=alive,
            min_isr=rng.randint(1, 3),
            election=rng.choice(list(Election)),
            **target,
        )
        if change is None:
            continue
        before, partition = partition, change.apply_to(partition)
        assert partition.leader in {*partition.isr, NO_LEADER}
        assert not {*partition.isr}.intersection(partition.elr)
        assert partition.replicas
        assert len(set(partition.replicas)) == len(partition.replicas)
        assert before.leader_epoch < partition.leader_epoch or before.leader == partition.leader
        assert before.partition_epoch + 1 == partition.partition_epoch
        if before.leader != partition.leader != NO_LEADER:
            assert partition.leader in alive
