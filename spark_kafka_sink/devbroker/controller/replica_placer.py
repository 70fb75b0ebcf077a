"""Where the replicas of new partitions go (Kafka's StripedReplicaPlacer).

Replicas are spread over the racks first, then over the brokers of each rack, beginning at random
places and moving on by one with each partition. Fenced brokers get replicas only if there are too
few others, and never the first replica of a partition.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    import random
    from collections.abc import Collection

    from spark_kafka_sink.devbroker.metadata.records import RegisterBroker


def place_replicas(
    partitions: int,
    replication_factor: int,
    brokers: Collection[RegisterBroker],
    rng: random.Random,
) -> list[tuple[int, ...]]:
    """Return the replicas of each new partition, the preferred leader first.

    Brokers that shut down get none. Raises RefusedError with INVALID_REPLICATION_FACTOR if there
    are too few brokers, or all are fenced.
    """
    usable = [broker for broker in brokers if not broker.in_controlled_shutdown]
    if replication_factor <= 0:
        problem = f"Invalid replication factor {replication_factor}: it must be positive."
    elif all(broker.fenced for broker in usable):
        problem = "All brokers are currently fenced."
    elif replication_factor > len(usable):
        problem = (
            f"The target replication factor of {replication_factor} cannot be reached because "
            f"only {len(usable)} broker(s) are registered."
        )
    else:
        racks = _Racks(usable, rng)
        return [racks.place(replication_factor) for _ in range(partitions)]
    raise RefusedError(
        ErrorCode.INVALID_REPLICATION_FACTOR,
        f"Unable to replicate the partition {replication_factor} time(s): {problem}",
    )


class _Brokers:
    """Brokers in a circle, which begins one further with each partition."""

    def __init__(self, node_ids: list[int], rng: random.Random) -> None:
        self._node_ids = sorted(node_ids)
        self._offset = rng.randrange(len(node_ids)) if node_ids else 0
        self._round = 0
        self._taken = 0

    def shuffle(self, rng: random.Random) -> None:
        rng.shuffle(self._node_ids)

    def next(self, round_: int) -> int | None:
        """Return the next broker in this round; None if all were taken."""
        count = len(self._node_ids)
        if not count:
            return None
        if round_ != self._round:
            self._round = round_
            self._taken = 0
            self._offset = (self._offset + 1) % count
        if self._taken >= count:
            return None
        self._taken += 1
        return self._node_ids[(self._offset + self._taken - 1) % count]


class _Rack:
    """The brokers of a rack."""

    def __init__(self, brokers: list[RegisterBroker], rng: random.Random) -> None:
        self.unfenced = _Brokers([each.node_id for each in brokers if not each.fenced], rng)
        self._fenced = _Brokers([each.node_id for each in brokers if each.fenced], rng)

    def shuffle(self, rng: random.Random) -> None:
        self._fenced.shuffle(rng)
        self.unfenced.shuffle(rng)

    def next(self, round_: int) -> int | None:
        """Return the next broker, the fenced ones last."""
        node_id = self.unfenced.next(round_)
        return self._fenced.next(round_) if node_id is None else node_id


class _Racks:
    """All racks in a circle, which begins one further with each partition."""

    def __init__(self, brokers: list[RegisterBroker], rng: random.Random) -> None:
        self._rng = rng
        by_rack: dict[str, list[RegisterBroker]] = {}
        for broker in brokers:
            by_rack.setdefault(broker.rack or "", []).append(broker)
        self._racks = [_Rack(by_rack[name], rng) for name in sorted(by_rack)]
        self._unfenced = sum(not broker.fenced for broker in brokers)
        self._offset = rng.randrange(len(self._racks))
        self._round = 0

    def place(self, replication_factor: int) -> tuple[int, ...]:
        """Return the replicas of the next partition; there are enough brokers."""
        if self._round == self._unfenced > 1:
            # All orders have been used: take others.
            self._rng.shuffle(self._racks)
            for rack in self._racks:
                rack.shuffle(self._rng)
            self._round = 0
        start = self._offset % len(self._racks)
        circle = self._racks[start:] + self._racks[:start]
        replicas: list[int] = []
        leader_rack = None
        for rack in circle:
            node_id = rack.unfenced.next(self._round)
            if node_id is not None:
                replicas.append(node_id)
                leader_rack = rack
                break
        # The rack of the leader has had its turn in the first walk through the circle.
        walk = chain((rack for rack in circle if rack is not leader_rack), _endless(circle))
        while len(replicas) < replication_factor:
            node_id = next(walk).next(self._round)
            if node_id is not None:
                replicas.append(node_id)
        self._round += 1
        self._offset = start + 1
        return tuple(replicas)


def _endless(circle: list[_Rack]) -> chain[_Rack]:
    return chain.from_iterable(iter(lambda: circle, None))
