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


class MemberState(Enum):
    """The states of a member in the protocol of KIP-848 (Kafka's MemberState)."""

    #: It is in no group, and sends no heartbeats.
    UNSUBSCRIBED = auto()
    #: It sends heartbeats with epoch 0 until the coordinator accepts it.
    JOINING = auto()
    #: It has a new target assignment, and is applying it.
    RECONCILING = auto()
    #: It has applied an assignment, which the next heartbeat acknowledges at once.
    ACKNOWLEDGING = auto()
    #: It has applied all assignments.
    STABLE = auto()
    #: The coordinator has removed it: it gives up its partitions, then joins again.
    FENCED = auto()
    #: It is about to leave: its callbacks run, and heartbeats go on.
    PREPARE_LEAVING = auto()
    #: The next heartbeat, at once, is the one with which it leaves.
    LEAVING = auto()
    #: An error has ended the membership for good.
    FATAL = auto()
    #: It left because `poll` was not called in time, and joins again with the next `poll`.
    STALE = auto()


_M = MemberState

#: The states of the protocol of KIP-848 that may follow each state. Staying in a state is no
#: transition, except in RECONCILING, where another target assignment may arrive.
TRANSITIONS: dict[MemberState, frozenset[MemberState]] = {
    _M.UNSUBSCRIBED: frozenset({_M.JOINING, _M.PREPARE_LEAVING, _M.FATAL}),
    _M.JOINING: frozenset({_M.STABLE, _M.RECONCILING, _M.FENCED, _M.PREPARE_LEAVING, _M.FATAL}),
    _M.RECONCILING: frozenset(
        {
            _M.RECONCILING,
            _M.ACKNOWLEDGING,
            _M.STABLE,
            _M.FENCED,
            _M.PREPARE_LEAVING,
            _M.FATAL,
        }
    ),
    _M.ACKNOWLEDGING: frozenset(
        {_M.STABLE, _M.RECONCILING, _M.FENCED, _M.PREPARE_LEAVING, _M.FATAL}
    ),
    _M.STABLE: frozenset({_M.RECONCILING, _M.FENCED, _M.PREPARE_LEAVING, _M.FATAL}),
    _M.FENCED: frozenset({_M.JOINING, _M.UNSUBSCRIBED}),
    _M.PREPARE_LEAVING: frozenset({_M.LEAVING, _M.UNSUBSCRIBED, _M.FENCED, _M.FATAL}),
    # STALE follows if the member leaves because `poll` was not called in time.
    _M.LEAVING: frozenset({_M.UNSUBSCRIBED, _M.STALE, _M.FENCED, _M.FATAL}),
    _M.FATAL: frozenset(),
    _M.STALE: frozenset({_M.JOINING}),
}
#: The states in which a new target assignment is accepted (MemberState.canHandleNewAssignment).
ACCEPTS_ASSIGNMENT: Final = frozenset({_M.STABLE, _M.JOINING, _M.ACKNOWLEDGING, _M.RECONCILING})
#: The states without heartbeats.
NOT_IN_GROUP: Final = frozenset({_M.UNSUBSCRIBED, _M.FENCED, _M.FATAL, _M.STALE})
