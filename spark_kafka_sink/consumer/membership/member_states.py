"""The states of a member of a group: one table for each of the two group protocols.

A transition that is not in the table is refused and changes nothing.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


class ClassicMemberState(Enum):
    """The states of a member in the classic protocol (AbstractCoordinator.MemberState)."""

    #: It is in no group.
    UNJOINED = auto()
    #: It has sent JoinGroup.
    PREPARING_REBALANCE = auto()
    #: It has joined a generation, and waits for its assignment.
    COMPLETING_REBALANCE = auto()
    #: It has its assignment.
    STABLE = auto()


_C = ClassicMemberState

#: The states of the classic protocol that may follow each state.
CLASSIC_TRANSITIONS: dict[ClassicMemberState, frozenset[ClassicMemberState]] = {
    _C.UNJOINED: frozenset({_C.UNJOINED, _C.PREPARING_REBALANCE}),
    _C.PREPARING_REBALANCE: frozenset(
        {_C.UNJOINED, _C.PREPARING_REBALANCE, _C.COMPLETING_REBALANCE}
    ),
    _C.COMPLETING_REBALANCE: frozenset({_C.UNJOINED, _C.PREPARING_REBALANCE, _C.STABLE}),
    _C.STABLE: frozenset({_C.UNJOINED, _C.PREPARING_REBALANCE}),
}
#: The states in which the member belongs to a generation, and sends heartbeats.
JOINED: Final = frozenset({_C.COMPLETING_REBALANCE, _C.STABLE})
