"""How a partition changes: its leader, in-sync and eligible replicas (PartitionChangeBuilder).

Every change of a partition, whatever its reason, is built here. The reason sets the replicas that
shall be in sync, or assigned; the rules then complete a reassignment that has become possible,
decide who is eligible (KIP-966), and elect a leader:

- A leader that may lead stays, unless the preferred one is asked for.
- Otherwise the first replica of the list that is in sync leads; if none is in sync, the first
  eligible one, and the ISR is then this replica alone.
- If no replica is in sync or eligible, the last leader may lead again, and with unclean elections
  any replica. Such an election may lose records, and the leader is marked as recovering.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Self

from spark_kafka_sink.devbroker.metadata.records import (
    NO_LEADER,
    RECOVERING,
    PartitionChange,
    PartitionRecord,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence


class Election(Enum):
    """Which replica should lead, if there is a choice."""

    #: The first replica of the list, if it is in sync.
    PREFERRED = "preferred"
    #: The current leader, or else any replica that is in sync or eligible.
    ONLINE = "online"
    #: The same, or else any replica at all.
    UNCLEAN = "unclean"


class Reassignment(NamedTuple):
    """The replicas of a partition while some of them are added or removed (KIP-455).

    >>> Reassignment.plan((1, 2, 3), (3, 4))
    Reassignment(replicas=(3, 4, 1, 2), adding=(4,), removing=(1, 2))
    """

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @classmethod
    def plan(cls, current: Collection[int], target: Sequence[int]) -> Self:
        """Return the way from the current replicas to others."""
        removing = tuple(sorted(set(current).difference(target)))
        adding = tuple(sorted(set(target).difference(current)))
        return cls((*target, *removing), adding, removing)


@dataclass(slots=True, kw_only=True)
class PartitionChangeBuilder:
    """The change of one partition; targets that are None stay as they are."""

    partition: PartitionRecord
    #: Whether a broker may lead.
    is_acceptable_leader: Callable[[int], bool]
    #: The topic's min.insync.replicas, or the number of replicas if that is lower.
    min_isr: int
    election: Election = Election.ONLINE
    isr: tuple[int, ...] | None = None
    replicas: tuple[int, ...] | None = None
    adding: tuple[int, ...] | None = None
    removing: tuple[int, ...] | None = None
    leader_recovery_state: int | None = None
    #: Replicas on brokers that may have lost records: they are not eligible any more.
    unclean_shutdowns: Collection[int] = ()
    _isr: tuple[int, ...] = field(init=False, default=())
    _elr: tuple[int, ...] = field(init=False, default=())
    _replicas: tuple[int, ...] = field(init=False, default=())
    _adding: tuple[int, ...] = field(init=False, default=())
    _removing: tuple[int, ...] = field(init=False, default=())

    def build(self) -> PartitionChange | None:
        """Return the change, or None if there is none."""
        partition = self.partition
        self._isr = _or(self.isr, partition.isr)
        self._replicas = _or(self.replicas, partition.replicas)
        self._adding = _or(self.adding, partition.adding)
        self._removing = _or(self.removing, partition.removing)
        self._complete_reassignment()
        self._elr = self._eligible()
        leader, is_unclean = self._elect()
        recovery = self.leader_recovery_state
        raised_by: int | None = None
        if leader != partition.leader:
            raised_by = leader
            if leader in self._elr:
                self._isr = (leader,)
                self._elr = tuple(each for each in self._elr if each != leader)
            if is_unclean:
                self._isr = (leader,)
                self._elr = ()
                recovery = RECOVERING
        elif not set(partition.replicas).issubset(self._replicas):
            # A replica that is removed must not be taken for one of this leader's any more.
            raised_by = leader
        change = PartitionChange(
            topic_id=partition.topic_id,
            partition=partition.partition,
            leader=raised_by,
            isr=_changed(self._isr, partition.isr),
            replicas=_changed(self._replicas, partition.replicas),
            adding=_changed(self._adding, partition.adding),
            removing=_changed(self._removing, partition.removing),
            elr=_changed(self._elr, partition.elr),
            last_known_elr=self._last_known(raised_by),
            leader_recovery_state=(
                None if recovery in {None, partition.leader_recovery_state} else recovery
            ),
        )
        return None if change.is_empty else change

    def _complete_reassignment(self) -> None:
        """Remove the replicas to be removed, once the new ones are in sync.

        If more are removed than added, all that remain must be in sync.
        """
        if not self._adding and not self._removing:
            return
        isr = tuple(each for each in self._isr if each not in self._removing)
        replicas = tuple(each for each in self._replicas if each not in self._removing)
        needed = self._adding if len(self._adding) >= len(self._removing) else replicas
        if isr and replicas and set(isr).issuperset({*self._adding, *needed}):
            self._isr, self._replicas = isr, replicas
            self._adding = self._removing = ()

    def _eligible(self) -> tuple[int, ...]:
        """Return the replicas that have all records which were acknowledged, in sync or not.

        With acks=all, a write is acknowledged only while min.insync.replicas are in sync. A
        replica that leaves a smaller ISR has missed no such write (KIP-966).
        """
        if len(self._isr) >= self.min_isr:
            return ()
        candidates = {*self.partition.elr, *self.partition.isr}
        return tuple(sorted(candidates.difference(self._isr, self.unclean_shutdowns)))

    def _elect(self) -> tuple[int, bool]:
        """Return the leader, and whether it is elected uncleanly."""
        partition = self.partition
        candidates = [partition.leader, *self._replicas]
        if self.election is Election.PREFERRED:
            candidates.insert(0, self._replicas[0])
        for candidate in candidates:
            if self._may_lead(candidate):
                return candidate, False
        if not self._isr and not self._elr and len(partition.last_known_elr) == 1:
            (last_leader,) = partition.last_known_elr
            if self.is_acceptable_leader(last_leader):
                return last_leader, True
        if self.election is Election.UNCLEAN:
            for candidate in self._replicas:
                if self.is_acceptable_leader(candidate):
                    return candidate, True
        return NO_LEADER, False

    def _may_lead(self, replica: int) -> bool:
        return replica in (self._isr or self._elr) and self.is_acceptable_leader(replica)

    def _last_known(self, leader: int | None) -> tuple[int, ...] | None:
        """Return the last leader if there is none from now on, () if there is one again."""
        partition = self.partition
        if leader == NO_LEADER and not partition.last_known_elr:
            return (partition.leader,)
        if leader not in {None, NO_LEADER} and partition.last_known_elr:
            return ()
        return None


def _or(value: tuple[int, ...] | None, default: tuple[int, ...]) -> tuple[int, ...]:
    return default if value is None else value


def _changed(value: tuple[int, ...], before: tuple[int, ...]) -> tuple[int, ...] | None:
    return None if value == before else value
