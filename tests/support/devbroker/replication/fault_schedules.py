"""Schedules of faults: everything that happens to a simulated cluster, by a seed."""

from __future__ import annotations

import random
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from tests.support.devbroker.replication.simulated_cluster import (
    REPLICATION_FACTOR,
    SimulatedCluster,
)

if TYPE_CHECKING:
    from collections.abc import Callable

#: The broker that loses its power, if any does.
_WITHOUT_UPS = 0
_ON_WIRE_EVERY = 8
#: How likely a transaction is to end between two faults, and to be committed then.
_ENDED_EACH_TIME = 0.4
_COMMITTED = 0.5


class Faults(Enum):
    """Which faults come together, so that Kafka promises to keep what it has acknowledged."""

    #: All, but for failures of power: whatever was written survives.
    PROCESSES = "processes"
    #: One broker loses its power, again and again; all others end cleanly (KIP-966). A write is
    #: acknowledged when two replicas have it.
    POWER = "power"
    #: As the first; but replicas that are not in sync may lead, so records may be lost.
    UNCLEAN = "unclean"


def run_schedule(seed: int, faults: Faults = Faults.PROCESSES) -> SimulatedCluster:
    """Run one schedule of faults, check the cluster all the time, and return it."""
    choose = random.Random(seed)
    cluster = SimulatedCluster(
        seed,
        brokers=choose.choice([3, 3, 3, 4]),
        partitions=choose.choice([1, 2]),
        min_insync_replicas=2 if faults is Faults.POWER else choose.choice([1, 2]),
        unclean=faults is Faults.UNCLEAN,
        on_wire=seed % _ON_WIRE_EVERY == 0,
    )
    cluster.run(1.3)
    for _ in range(choose.randrange(4, 14)):
        choose.choice(_FAULTS)(_Fault(cluster, choose, faults, choose.choice(list(cluster.disks))))
        for _ in range(choose.randrange(6)):
            at = cluster.now + choose.uniform(0, 0.2)
            key, acks = choose.choice(cluster.keys), choose.choice([-1, -1, 0, 1])
            cluster.at(at, lambda key=key, acks=acks: cluster.produce(key, acks))
        for _ in range(choose.randrange(3)):
            at = cluster.now + choose.uniform(0, 0.2)
            key = choose.choice(cluster.keys)
            cluster.at(at, lambda key=key: cluster.begin_transaction(key))
        for producer_id in list(cluster.open_transactions):
            if choose.random() < _ENDED_EACH_TIME:
                cluster.end_transaction(producer_id, committed=choose.random() < _COMMITTED)
        cluster.run(cluster.now + choose.choice([0.01, 0.05, 0.2, 0.5]))
    cluster.heal()
    cluster.settle()
    return cluster


class _Fault(NamedTuple):
    """What a fault needs to know."""

    cluster: SimulatedCluster
    choose: random.Random
    faults: Faults
    node: int

    @property
    def link(self) -> frozenset[int]:
        others = [each for each in self.cluster.disks if each != self.node]
        return frozenset((self.node, self.choose.choice(others)))


def _end(fault: _Fault) -> None:
    if fault.faults is not Faults.POWER:
        fault.cluster.kill(fault.node)
    elif fault.node == _WITHOUT_UPS:
        fault.cluster.fail_power(fault.node)
    else:
        fault.cluster.shut_down(fault.node)


def _restart(fault: _Fault) -> None:
    _end(fault)
    fault.cluster.start(fault.node)


def _start(fault: _Fault) -> None:
    fault.cluster.start(fault.node)


def _shut_down(fault: _Fault) -> None:
    fault.cluster.shut_down(fault.node)


def _pause(fault: _Fault) -> None:
    fault.cluster.pause(fault.node, fault.choose.uniform(0.05, 1.0))


def _cut(fault: _Fault) -> None:
    fault.cluster.cuts.add(fault.link)


def _isolate(fault: _Fault) -> None:
    others = [each for each in fault.cluster.disks if each != fault.node]
    fault.cluster.cuts.update(frozenset((fault.node, each)) for each in others)


def _join(fault: _Fault) -> None:
    fault.cluster.cuts.discard(fault.link)


def _join_all(fault: _Fault) -> None:
    fault.cluster.cuts.clear()


def _slow(fault: _Fault) -> None:
    fault.cluster.slow[fault.link] = fault.choose.uniform(0.02, 0.8)


def _move(fault: _Fault) -> None:
    key = fault.choose.choice(fault.cluster.keys)
    replicas = fault.choose.sample(list(fault.cluster.disks), REPLICATION_FACTOR)
    fault.cluster.move(key, replicas)


def _delete(fault: _Fault) -> None:
    fault.cluster.delete(fault.choose.choice(fault.cluster.keys))


_FAULTS: tuple[Callable[[_Fault], None], ...] = (
    _end,
    _restart,
    _start,
    _shut_down,
    _pause,
    _cut,
    _isolate,
    _join,
    _join_all,
    _slow,
    _move,
    _delete,
)
