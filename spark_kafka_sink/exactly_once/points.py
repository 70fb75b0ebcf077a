"""The named points of the protocol at which a driver can die, and what is durable at each.

docs/internals/exactly-once-protocol.md contains the table; the tests kill a driver at each point.
"""

from __future__ import annotations

from enum import Enum


class Point(Enum):
    """A point that a driver has reached; reported right after the step it names."""

    #: Plan: the ledger is fenced and read.
    PLAN_FENCED = "plan: ledger fenced and read"
    #: Plan: the winners of all decided writes are committed; the ledger does not record it yet.
    ROLLED_FORWARD = "plan: rolled forward"
    #: Plan: the transactions to abort are listed; no generation is claimed yet.
    LISTED = "plan: open transactions listed"
    #: Plan: the claim and the outcomes of decided writes are durable; nothing is aborted yet.
    CLAIMED = "plan: claimed"
    #: Plan: the listed transactions are aborted.
    SWEPT = "plan: orphans aborted"
    #: Commit: the ledger is fenced and read.
    COMMIT_FENCED = "commit: ledger fenced and read"
    #: Commit: every winner is open; the losers are listed.
    CHECKED = "commit: winners checked"
    #: Commit: the decision is durable; no winner is committed yet.
    DECIDED = "commit: decided"
    #: Commit: every winner is committed; the ledger does not record it yet.
    COMMITTED = "commit: winners committed"
    #: Commit: the ledger records that the batch is done; losers are still open.
    DONE = "commit: done"
    #: Abort: the ledger is fenced and read.
    ABORT_FENCED = "abort: ledger fenced and read"
    #: Abort: no older driver can decide any more; nothing is aborted yet.
    ABORT_CLAIMED = "abort: claimed"
