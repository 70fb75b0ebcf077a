"""The state machine of a write: its states, the transitions, and which driver may make them.

A *write* is a query or a job, identified by its write id. Its batches have increasing numbers, and
only one is in progress at a time; a job has the single batch 0. A driver *claims* a generation of
the prefix before its tasks start, and may decide only while no later generation is claimed.

    claimed --> decided --> done         every transaction committed
                        --> void         every transaction aborted: the batch is written again
                        --> mixed        some committed and some not, or the outcome is unknown

The functions are pure, and few enough to explore exhaustively: the tests run the whole protocol
over them, in every order of events. No other module of this package interprets the states.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from spark_kafka_sink.errors import IllegalStateError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: The batch id before the first batch: nothing is committed.
NOTHING_COMMITTED: Final = -1


class WriteState(Enum):
    """The state of a write's last batch; the values are those in the ledger."""

    #: Nothing is decided: the state of a write without a record, so never in the ledger.
    CLAIMED = "claimed"
    #: All winners' transactions must be committed, by any driver.
    DECIDED = "decided"
    DONE = "done"
    VOID = "void"
    MIXED = "mixed"


_S = WriteState

#: The legal transitions. After done, the next batch is decided; after void, possibly the same one.
TRANSITIONS: Final[Mapping[WriteState, frozenset[WriteState]]] = {
    _S.CLAIMED: frozenset({_S.DECIDED}),
    _S.DECIDED: frozenset({_S.DONE, _S.VOID, _S.MIXED}),
    _S.DONE: frozenset({_S.DECIDED}),
    _S.VOID: frozenset({_S.DECIDED}),
    # Only an operator can resolve this: the missing part is given up, or the batch written again.
    _S.MIXED: frozenset({_S.DONE, _S.VOID}),
}


class Write(NamedTuple):
    """The last decided batch of a write, and its state."""

    batch_id: int
    #: The claim under which it was decided.
    generation: int
    state: WriteState
    #: The last committed batch before this one, which counts if this one is void.
    in_before: int


class Standing(Enum):
    """What a driver or a task must do with a batch."""

    WRITE = "write"
    #: The batch is already committed: a replay, to be skipped.
    IN = "in"
    #: A later batch is committed: the checkpoint was rolled back.
    ROLLED_BACK = "rolled back"
    #: The last batch is partly visible: nothing is written until an operator resolves it.
    MIXED = "mixed"


class Verdict(Enum):
    """Whether a driver may decide a batch."""

    DECIDE = "decide"
    #: A later generation was claimed: another driver has taken over.
    OVERTAKEN = "overtaken"
    #: The batch has already been decided.
    DECIDED = "decided"
    MIXED = "mixed"
    ROLLED_BACK = "rolled back"


class Fate(Enum):
    """The outcome of a winner's transaction."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    #: The coordinator does not know it, and the marker is missing or unreadable.
    UNKNOWN = "unknown"


def next_generation(latest: int, now_ms: int) -> int:
    """Return the generation of a new claim: above the latest, and at least the current time.

    If the ledger was lost and generations restarted at 1, a driver that is still running could have
    the same generation.
    """
    return max(latest + 1, now_ms)


def last_committed(write: Write | None) -> int:
    """Return the last batch that is committed or decided; `NOTHING_COMMITTED` if there is none."""
    if write is None:
        return NOTHING_COMMITTED
    return write.batch_id if write.state in {_S.DECIDED, _S.DONE} else write.in_before


def standing(write: Write | None, batch_id: int) -> Standing:
    """Return what to do with a batch, once every decided batch is rolled forward."""
    if write is not None and write.state is _S.MIXED:
        return Standing.MIXED
    last = last_committed(write)
    if batch_id > last:
        return Standing.WRITE
    return Standing.IN if batch_id == last else Standing.ROLLED_BACK


def verdict(latest_generation: int, generation: int, write: Write | None, batch_id: int) -> Verdict:
    """Return whether the holder of `generation` may decide a batch, or abort its transactions."""
    if write is not None and write.state is _S.MIXED:
        return Verdict.MIXED
    last = last_committed(write)
    if batch_id == last:
        return Verdict.DECIDED
    if generation != latest_generation:
        return Verdict.OVERTAKEN
    return Verdict.DECIDE if batch_id > last else Verdict.ROLLED_BACK


def decided(write: Write | None, batch_id: int, generation: int) -> Write:
    """Return the write with this batch decided.

    Raises IllegalStateError unless the previous batch has ended and this one is later than the last
    committed one.
    """
    state = _S.CLAIMED if write is None else write.state
    _check(state, _S.DECIDED)
    if batch_id <= last_committed(write):
        raise IllegalStateError(
            f"batch {batch_id} cannot be decided after batch {last_committed(write)}"
        )
    return Write(batch_id, generation, _S.DECIDED, last_committed(write))


def ended(write: Write, state: WriteState) -> Write:
    """Return the write in its end state; raise IllegalStateError for an illegal transition."""
    _check(write.state, state)
    return write._replace(state=state)


def resolved(write: Write, *, skip: bool) -> Write:
    """Return a mixed write as resolved: done as it is if `skip`, otherwise void.

    Raises IllegalStateError if the write is not mixed.
    """
    if write.state is not _S.MIXED:
        raise IllegalStateError(f"there is nothing to resolve: the write is {write.state.value}")
    return ended(write, _S.DONE if skip else _S.VOID)


def end_of(fates: Iterable[Fate]) -> WriteState:
    """Return the end state of a decided batch from its winners' fates."""
    kinds = set(fates)
    if kinds <= {Fate.COMMITTED}:
        return _S.DONE
    return _S.VOID if kinds == {Fate.ABORTED} else _S.MIXED


def _check(state: WriteState, target: WriteState) -> None:
    if target not in TRANSITIONS[state]:
        raise IllegalStateError(f"a write that is {state.value} cannot become {target.value}")
