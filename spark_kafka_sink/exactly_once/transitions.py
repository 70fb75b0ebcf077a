"""What may follow upon what: the states of a write, and who may move it.

A *write* is known by its write id (a query, or a job). It has batches, numbered upwards, of which
one at a time is on its way; a job has the one batch 0. A driver *claims* a generation of the prefix
before its tasks start, and a decision counts only while no later generation is claimed.

    claimed --> decided --> done         every transaction committed
                        --> void         every transaction aborted: the batch is written again
                        --> mixed        some committed, some not, or nobody can tell

Pure, and small enough to be explored: the tests run the whole protocol over these functions, in
every order of events. Nothing else in this package decides what a state means.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from spark_kafka_sink.errors import IllegalStateError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: The batch before the first: nothing is in.
NOTHING_IN: Final = -1


class WriteState(Enum):
    """Where the last batch of a write is; the values are those in the ledger."""

    #: Nothing is decided. It is what a write is without a record, and never written down.
    CLAIMED = "claimed"
    #: All of the winners' transactions are to be committed, whoever does it.
    DECIDED = "decided"
    DONE = "done"
    VOID = "void"
    MIXED = "mixed"


_S = WriteState

#: What may follow; a batch that is done or void is followed by the next one, or by itself again.
TRANSITIONS: Final[Mapping[WriteState, frozenset[WriteState]]] = {
    _S.CLAIMED: frozenset({_S.DECIDED}),
    _S.DECIDED: frozenset({_S.DONE, _S.VOID, _S.MIXED}),
    _S.DONE: frozenset({_S.DECIDED}),
    _S.VOID: frozenset({_S.DECIDED}),
    # Only an operator gets a write out of this: what is missing is given up, or written again.
    _S.MIXED: frozenset({_S.DONE, _S.VOID}),
}


class Write(NamedTuple):
    """The last batch of a write that was decided, and what became of it."""

    batch_id: int
    #: The claim under which it was decided.
    generation: int
    state: WriteState
    #: The last batch before this one that is in: what counts if this one is void.
    in_before: int


class Standing(Enum):
    """What a driver or a task is to do with a batch."""

    WRITE = "write"
    #: It is in: a replay, to be skipped.
    IN = "in"
    #: A later batch is in: whoever counts the batches has gone back.
    ROLLED_BACK = "rolled back"
    #: Half of a batch is in, and nothing is written before an operator has said what to do.
    MIXED = "mixed"


class Verdict(Enum):
    """Whether a driver may decide."""

    DECIDE = "decide"
    #: A later generation was claimed: another driver has taken over.
    OVERTAKEN = "overtaken"
    #: The batch was decided before.
    DECIDED = "decided"
    MIXED = "mixed"
    ROLLED_BACK = "rolled back"


class Fate(Enum):
    """What became of one winner's transaction."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    #: The coordinator cannot tell, and the marker cannot be read.
    UNKNOWN = "unknown"


def next_generation(latest: int, now_ms: int) -> int:
    """Give the number of a claim: above the latest, and above those of a ledger that is gone.

    Counted from 1 again after such a loss, a number could be that of a driver which still runs.
    """
    return max(latest + 1, now_ms)


def last_in(write: Write | None) -> int:
    """Give the last batch that is in, or is bound to be; `NOTHING_IN` if none is."""
    if write is None:
        return NOTHING_IN
    return write.batch_id if write.state in {_S.DECIDED, _S.DONE} else write.in_before


def standing(write: Write | None, batch_id: int) -> Standing:
    """Tell what is to be done with a batch, once all that was decided is rolled forward."""
    if write is not None and write.state is _S.MIXED:
        return Standing.MIXED
    last = last_in(write)
    if batch_id > last:
        return Standing.WRITE
    return Standing.IN if batch_id == last else Standing.ROLLED_BACK


def verdict(latest_generation: int, generation: int, write: Write | None, batch_id: int) -> Verdict:
    """Tell whether the holder of `generation` may decide a batch, or abort what it wrote of it."""
    if write is not None and write.state is _S.MIXED:
        return Verdict.MIXED
    last = last_in(write)
    if batch_id == last:
        return Verdict.DECIDED
    if generation != latest_generation:
        return Verdict.OVERTAKEN
    return Verdict.DECIDE if batch_id > last else Verdict.ROLLED_BACK


def decided(write: Write | None, batch_id: int, generation: int) -> Write:
    """Decide that a batch is in.

    Raises IllegalStateError unless what was before has ended, and the batch is a later one.
    """
    state = _S.CLAIMED if write is None else write.state
    _check(state, _S.DECIDED)
    if batch_id <= last_in(write):
        raise IllegalStateError(f"batch {batch_id} is decided after batch {last_in(write)}")
    return Write(batch_id, generation, _S.DECIDED, last_in(write))


def ended(write: Write, state: WriteState) -> Write:
    """Note how a decided batch has ended; raises IllegalStateError where it cannot have."""
    _check(write.state, state)
    return write._replace(state=state)


def resolved(write: Write, *, skip: bool) -> Write:
    """End a mixed batch as an operator says: it is in as it is, or is written again.

    Raises IllegalStateError where there is nothing to resolve.
    """
    if write.state is not _S.MIXED:
        raise IllegalStateError(f"there is nothing to resolve: the write is {write.state.value}")
    return ended(write, _S.DONE if skip else _S.VOID)


def end_of(fates: Iterable[Fate]) -> WriteState:
    """Tell how a decided batch has ended by what became of its winners."""
    kinds = set(fates)
    if kinds <= {Fate.COMMITTED}:
        return _S.DONE
    return _S.VOID if kinds == {Fate.ABORTED} else _S.MIXED


def _check(state: WriteState, target: WriteState) -> None:
    if target not in TRANSITIONS[state]:
        raise IllegalStateError(f"a write that is {state.value} cannot become {target.value}")
