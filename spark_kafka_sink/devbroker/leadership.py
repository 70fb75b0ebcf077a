"""Who leads a partition, and which of its replicas are in sync.

The decisions of Kafka's PartitionChangeBuilder, with nothing replicated: the one log that the
cluster keeps of a partition is what each of its replicas would have, so a replica whose broker runs
is in sync at once, as long as there is a leader to follow.

- A leader that runs stays leader: it is not taken back by the preferred one that returns.
- Otherwise the first replica in the list that is in sync leads; each change raises the epoch, also
  the one to "no leader".
- Replicas that leave while fewer than min.insync.replicas are in sync stay eligible (KIP-966):
  where all are gone only they may lead again, for only they would surely have everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

NO_LEADER = -1


@dataclass(slots=True)
class Leadership:
    """The leader and the replicas of one partition."""

    #: Brokers that keep the partition, the preferred leader first.
    replicas: tuple[int, ...]
    leader_id: int
    leader_epoch: int = 0
    #: Replicas that are in sync.
    isr: tuple[int, ...] = ()
    #: Replicas that are not in sync and may lead even so.
    eligible: frozenset[int] = frozenset()

    @classmethod
    def begin(cls, replicas: tuple[int, ...], running: Container[int]) -> Self:
        """Let the first replica lead whose broker runs."""
        isr = tuple(replica for replica in replicas if replica in running)
        return cls(replicas, isr[0] if isr else NO_LEADER, isr=isr)

    def update(self, running: Container[int], min_insync_replicas: int) -> bool:
        """Take note of which brokers run; tell whether the leader has changed."""
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
        """Let another replica lead; tell whether it did not do so already.

        Raises ValueError if it is not in sync.
        """
        if node_id not in self.isr:
            raise ValueError(f"broker {node_id} is not one of the replicas in sync, {self.isr}")
        return self._lead(node_id)

    def _lead(self, leader_id: int) -> bool:
        changed = leader_id != self.leader_id
        if changed:
            self.leader_id = leader_id
            self.leader_epoch += 1
        return changed


def place_replicas(index: int, count: int, brokers: Sequence[int]) -> tuple[int, ...]:
    """Give a partition's replicas, spread as by StripedReplicaPlacer with one rack."""
    return tuple(brokers[(index + i) % len(brokers)] for i in range(count))
