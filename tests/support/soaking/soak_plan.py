"""The plan of a soak: what happens when, determined by the seed alone.

Two lanes run in parallel. The network lane strikes single requests and responses, and makes nodes
unreachable for moments. The cluster lane kills, restarts and freezes brokers, and moves leaders;
each of its events waits until the cluster has recovered from the previous one. So at most one
replica is missing at any time, and no acknowledged row may ever be lost.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum

from spark_kafka_sink.protocol.api_keys import ApiKey
from tests.support.faults.fault_rules import Action, Fault, Side

#: Seconds between the events of a lane, on average.
NETWORK_PAUSE = 0.4
CLUSTER_PAUSE = 6.0
#: The fraction of the time, at the end, in which no event begins.
CALM = 0.05


class Kind(Enum):
    """The kinds of events."""

    FAULT = "fault"
    OUTAGE = "outage"
    KILL = "kill"
    RESTART = "restart"
    FREEZE = "freeze"
    MOVE_LEADERS = "move leaders"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happens `at` seconds after the start, to one node (counted from 0)."""

    at: float
    kind: Kind
    node: int
    #: The duration of events that have one.
    seconds: float = 0
    fault: Fault | None = None

    def __str__(self) -> str:
        """Return a description for logs."""
        what = self.kind.value if self.fault is None else str(self.fault)
        return f"{self.at:7.2f} s  node {self.node + 1}  {what}  {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class Plan:
    """Both lanes, each in order of time."""

    network: list[Event]
    cluster: list[Event]
    #: Whether everything happens, however long it takes: then a fault follows when the one before
    #: it has struck, and the soak ends after the last event. Otherwise a soak ends after its time.
    is_complete: bool = False


#: The actions on responses. Requests are not garbled at random: only the records have a checksum,
#: so a bit flipped elsewhere may send them to another partition.
_ANSWER_ACTIONS = tuple(Action)
_REQUEST_ACTIONS = (
    Action.SWALLOW,
    Action.RESET,
    Action.HANG,
    Action.CUT,
    Action.DELAY,
    Action.STALL,
    Action.SPLIT,
    Action.MERGE,
)
_API_WEIGHTS = {
    ApiKey.PRODUCE: 80,
    ApiKey.METADATA: 10,
    ApiKey.API_VERSIONS: 4,
    ApiKey.INIT_PRODUCER_ID: 2,
    ApiKey.FIND_COORDINATOR: 1,
    ApiKey.ADD_PARTITIONS_TO_TXN: 1,
    ApiKey.END_TXN: 2,
}
_SIZES = (-1, 0, 7, 100_000, 2**31 - 1)
_CLUSTER_WEIGHTS = {Kind.KILL: 3, Kind.RESTART: 2, Kind.FREEZE: 3, Kind.MOVE_LEADERS: 4}


def make_plan(*, seed: int, seconds: float, nodes: int) -> Plan:
    """Create the plan; the same arguments give the same plan."""
    end = seconds * (1 - CALM)
    network = random.Random(f"network {seed}")
    cluster = random.Random(f"cluster {seed}")
    return Plan(
        network=[
            _network_event(network, at=at, nodes=nodes)
            for at in _times(network, pause=NETWORK_PAUSE, end=end)
        ],
        cluster=[
            _cluster_event(cluster, at=at, nodes=nodes)
            for at in _times(cluster, pause=CLUSTER_PAUSE, end=end)
        ],
    )


def each_kind_once(*, nodes: int) -> Plan:
    """Create a plan in which every kind of event happens, and each fault of a produce request.

    The first node is disturbed; the others lead partitions all the time, so that faults strike.
    """
    sides = {Side.REQUEST: _REQUEST_ACTIONS, Side.ANSWER: _ANSWER_ACTIONS}
    faults = [Fault(side=side, action=action) for side in sides for action in sides[side]]
    return Plan(
        network=[
            Event(at=0, kind=Kind.OUTAGE, node=1, seconds=0.3),
            *(
                Event(at=0, kind=Kind.FAULT, node=1 + i % (nodes - 1), fault=fault)
                for i, fault in enumerate(faults)
            ),
        ],
        cluster=[Event(at=0, kind=kind, node=0, seconds=0.5) for kind in _CLUSTER_WEIGHTS],
        is_complete=True,
    )


def _times(chance: random.Random, *, pause: float, end: float) -> list[float]:
    times = []
    at = chance.expovariate(1 / pause)
    while at < end:
        times.append(at)
        at += chance.expovariate(1 / pause)
    return times


def _network_event(chance: random.Random, *, at: float, nodes: int) -> Event:
    node = chance.randrange(nodes)
    if chance.random() < 0.05:
        return Event(at=at, kind=Kind.OUTAGE, node=node, seconds=chance.uniform(0.05, 2))
    side = chance.choice(list(Side))
    (api_key,) = chance.choices(list(_API_WEIGHTS), list(_API_WEIGHTS.values()))
    fault = Fault(
        side=side,
        action=chance.choice(_ANSWER_ACTIONS if side is Side.ANSWER else _REQUEST_ACTIONS),
        api_key=api_key,
        nth=chance.randint(1, 5),
        times=chance.choice((1, 1, 1, 2, 3)),
        # Sometimes longer than the writers' request.timeout.ms.
        seconds=chance.choice((0.01, 0.1, 0.5, 4)),
        at=chance.random(),
        size=chance.choice(_SIZES),
    )
    return Event(at=at, kind=Kind.FAULT, node=node, fault=fault)


def _cluster_event(chance: random.Random, *, at: float, nodes: int) -> Event:
    (kind,) = chance.choices(list(_CLUSTER_WEIGHTS), list(_CLUSTER_WEIGHTS.values()))
    # A broker that is frozen for over six seconds is considered dead.
    seconds = chance.uniform(0.2, 9) if kind is Kind.FREEZE else chance.uniform(0, 3)
    return Event(at=at, kind=kind, node=chance.randrange(nodes), seconds=seconds)
