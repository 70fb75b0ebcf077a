"""The leader of a partition, and which of its replicas are in sync.

It makes the decisions of Kafka's PartitionChangeBuilder, without replication: the cluster's one log
of a partition stands for every replica, so a replica on a running broker is in sync at once, as
long as there is a leader to follow.

- A running leader remains leader, even when the preferred leader returns.
- Otherwise the first in-sync replica of the list becomes leader; each change, including one to "no
  leader", raises the leader epoch.
- Replicas that leave while fewer than min.insync.replicas are in sync remain eligible (KIP-966):
  once no replica is in sync, only they may lead again, because only they surely have all records.
- A test can elect an unclean leader, whose log lacks records; the others truncate theirs at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Collection, Container

NO_LEADER = -1


@dataclass(slots=True)
class Leadership:
    """The leader and the replicas of one partition."""

    #: The brokers with a replica, the preferred leader first.
    replicas: tuple[int, ...]
    leader_id: int
    leader_epoch: int = 0
    #: The in-sync replicas.
    isr: tuple[int, ...] = ()
    #: Replicas that are not in sync but may still become leader.
    eligible: frozenset[int] = frozenset()

    @classmethod
    def begin(cls, replicas: tuple[int, ...], running: Container[int]) -> Self:
        """Return a leadership in which the first replica on a running broker leads."""
        isr = tuple(replica for replica in replicas if replica in running)
        return cls(replicas, isr[0] if isr else NO_LEADER, isr=isr)

    def update(self, running: Container[int], min_insync_replicas: int) -> bool:
        """Update the replicas for the running brokers; return whether the leader has changed."""
        known = {*self.isr, *self.eligible}
        alive = tuple(replica for replica in self.replicas if replica in running)
        leader_id = next(
            (
                replica
                for candidates in ((self.leader_id,), self.isr, self.eligible)
                for replica in self.replicas
                if replica in candidates and replica in running
            ),
            NO_LEADER,
        )
        self.isr = () if leader_id == NO_LEADER else alive
        enough = len(self.isr) >= min(min_insync_replicas, len(self.replicas))
        self.eligible = frozenset() if enough else frozenset(known.difference(self.isr))
        return self._lead(leader_id)

    def move_to(self, node_id: int) -> bool:
        """Make another replica the leader; return whether it was not the leader already.

        Raises ValueError if it is not in sync.
        """
        if node_id not in self.isr:
            raise ValueError(f"broker {node_id} is not in the ISR, {self.isr}")
        return self._lead(node_id)

    def elect_uncleanly(self, node_id: int, running: Container[int]) -> None:
        """Make a running replica the leader in a new epoch, even if it is the leader already."""
        self.leader_id = node_id
        self.leader_epoch += 1
        self.isr = tuple(replica for replica in self.replicas if replica in running)
        self.eligible = frozenset()

    def _lead(self, leader_id: int) -> bool:
        changed = leader_id != self.leader_id
        if changed:
            self.leader_id = leader_id
            self.leader_epoch += 1
        return changed


def place_replicas(
    index: int, count: int, running: Collection[int], brokers: Collection[int]
) -> tuple[int, ...]:
    """Return the replicas of a partition, spread as by StripedReplicaPlacer with one rack.

    Brokers that are not running get replicas if there are too few others. Raises RefusedError with
    INVALID_REPLICATION_FACTOR if there are too few brokers, or none is running.
    """
    check_replication_factor(count, running, brokers)
    stopped = {*brokers}.difference(running)
    replicas = (*_rotated(sorted(running), index), *_rotated(sorted(stopped), index))
    return replicas[:count]


def check_replication_factor(
    count: int, running: Collection[int], brokers: Collection[int]
) -> None:
    """Raise RefusedError with INVALID_REPLICATION_FACTOR if so many replicas cannot be placed."""
    if count > len(brokers):
        problem = f"the cluster has only {len(brokers)} broker(s)"
    elif not running:
        problem = "no broker is running"
    else:
        return
    raise RefusedError(
        ErrorCode.INVALID_REPLICATION_FACTOR,
        f"Unable to replicate the partition {count} time(s): {problem}.",
    )


def _rotated(brokers: list[int], count: int) -> list[int]:
    start = count % len(brokers) if brokers else 0
    return brokers[start:] + brokers[:start]
