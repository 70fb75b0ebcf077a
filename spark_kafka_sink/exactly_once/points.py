"""The named points of the protocol: where a driver can die, and what is durable there.

docs/exactly-once.md has the table; the tests kill a driver at each of them.
"""

from __future__ import annotations

from enum import Enum


class Point(Enum):
    """Where a driver has got to; it is told right after what the name says."""

    #: Plan: the ledger is ours, and read.
    PLAN_FENCED = "plan: ledger fenced and read"
    #: Plan: the winners of all decided writes are committed; the ledger does not say so yet.
    ROLLED_FORWARD = "plan: rolled forward"
    #: Plan: the transactions to abort are listed, and nothing is claimed.
    LISTED = "plan: open transactions listed"
    #: Plan: the claim, with what has become of decided writes, is durable; nothing is aborted.
    CLAIMED = "plan: claimed"
    #: Plan: what was listed is aborted.
    SWEPT = "plan: orphans aborted"
    #: Commit: the ledger is ours, and read.
    COMMIT_FENCED = "commit: ledger fenced and read"
    #: Commit: every winner is open, and the losers are listed.
    CHECKED = "commit: winners checked"
    #: Commit: the decision is durable, and no winner is committed.
    DECIDED = "commit: decided"
    #: Commit: every winner is committed; the ledger does not say so yet.
    COMMITTED = "commit: winners committed"
    #: Commit: the ledger says so; losers are still open.
    DONE = "commit: done"
    #: Abort: the ledger is ours, and read.
    ABORT_FENCED = "abort: ledger fenced and read"
    #: Abort: no older driver can decide any more; nothing is aborted.
    ABORT_CLAIMED = "abort: claimed"
