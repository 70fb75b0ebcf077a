"""The transition table of a write, and what each state permits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import IllegalStateError
from spark_kafka_sink.exactly_once.transitions import (
    NOTHING_COMMITTED,
    TRANSITIONS,
    Fate,
    Standing,
    Verdict,
    Write,
    WriteState,
    decided,
    end_of,
    ended,
    last_committed,
    next_generation,
    resolved,
    standing,
    verdict,
)

S = WriteState


def _write(state, batch_id=5, generation=3, in_before=4):
    return Write(batch_id, generation, state, in_before)


@pytest.mark.parametrize(
    ("state", "expected"), [(S.DECIDED, 5), (S.DONE, 5), (S.VOID, 4), (S.MIXED, 4)]
)
def test_the_last_committed_batch_follows_from_the_state(state, expected):
    """A decided or done batch counts as committed, and a void or mixed one leaves the previous."""
    assert expected == last_committed(_write(state))


def test_nothing_is_committed_before_the_first_decision():
    """A write without a record has no committed batch, so its first batch is written."""
    assert NOTHING_COMMITTED == last_committed(None)
    assert Standing.WRITE is standing(None, 0)


@pytest.mark.parametrize(
    ("state", "batch_id", "expected"),
    [
        (S.DONE, 6, Standing.WRITE),
        (S.DONE, 5, Standing.IN),
        (S.DONE, 4, Standing.ROLLED_BACK),
        (S.VOID, 5, Standing.WRITE),
        (S.VOID, 4, Standing.IN),
        (S.VOID, 3, Standing.ROLLED_BACK),
        (S.MIXED, 5, Standing.MIXED),
        (S.MIXED, 6, Standing.MIXED),
    ],
)
def test_new_batches_are_written_replays_skipped_and_older_ones_rejected(state, batch_id, expected):
    """A replay is skipped, an older batch is refused, and nothing is written after a mixed one."""
    assert expected is standing(_write(state), batch_id)


@pytest.mark.parametrize(
    ("latest", "state", "batch_id", "expected"),
    [
        (9, S.DONE, 6, Verdict.DECIDE),
        (10, S.DONE, 6, Verdict.OVERTAKEN),
        (9, S.DONE, 5, Verdict.DECIDED),
        (10, S.DECIDED, 5, Verdict.DECIDED),
        (9, S.DONE, 4, Verdict.ROLLED_BACK),
        (9, S.VOID, 5, Verdict.DECIDE),
        (10, S.VOID, 5, Verdict.OVERTAKEN),
        (9, S.MIXED, 6, Verdict.MIXED),
    ],
)
def test_only_the_latest_generation_may_decide(latest, state, batch_id, expected):
    """Only the holder of the latest generation may decide, and only an uncommitted batch."""
    assert expected is verdict(latest, 9, _write(state), batch_id)


def test_a_decision_stores_the_last_committed_batch_before_it():
    """A decision stores the last committed batch before it, skipping void ones."""
    first = decided(None, 0, 1)
    assert Write(0, 1, S.DECIDED, NOTHING_COMMITTED) == first
    void = ended(decided(ended(first, S.DONE), 1, 2), S.VOID)
    assert Write(1, 3, S.DECIDED, 0) == decided(void, 1, 3)


@pytest.mark.parametrize("batch_id", [4, 5])
def test_no_batch_is_decided_twice(batch_id):
    """Deciding a batch that is committed, or older than one, is refused."""
    with pytest.raises(IllegalStateError, match="cannot be decided after batch 5"):
        decided(_write(S.DONE), batch_id, 9)


@pytest.mark.parametrize("state", S)
@pytest.mark.parametrize("target", S)
def test_transitions_outside_the_table_are_rejected(state, target):
    """Every transition is either in the table or refused."""
    moves = {
        S.DECIDED: lambda: decided(None if state is S.CLAIMED else _write(state), 6, 9),
        S.CLAIMED: lambda: ended(_write(state), target),
    }
    move = moves.get(target, lambda: ended(_write(state), target))
    if target in TRANSITIONS[state]:
        assert target is move().state
    else:
        with pytest.raises(IllegalStateError):
            move()


@pytest.mark.parametrize(
    ("fates", "expected"),
    [
        ([], S.DONE),
        ([Fate.COMMITTED, Fate.COMMITTED], S.DONE),
        ([Fate.ABORTED, Fate.ABORTED], S.VOID),
        ([Fate.COMMITTED, Fate.ABORTED], S.MIXED),
        ([Fate.ABORTED, Fate.UNKNOWN], S.MIXED),
        ([Fate.COMMITTED, Fate.UNKNOWN], S.MIXED),
        ([Fate.UNKNOWN], S.MIXED),
    ],
)
def test_the_fates_of_the_winners_determine_the_final_state(fates, expected):
    """A decision is done or void if all winners share that fate, and otherwise mixed."""
    assert expected is end_of(fates)


@pytest.mark.parametrize(("skip", "after"), [(True, 5), (False, 4)])
def test_an_operator_resolves_a_mixed_batch(skip, after):
    """A skipped batch counts as committed, and a replayed one does not."""
    assert after == last_committed(resolved(_write(S.MIXED), skip=skip))


@pytest.mark.parametrize("state", [S.DECIDED, S.DONE, S.VOID])
def test_only_a_mixed_batch_can_be_resolved(state):
    """Only a mixed batch can be resolved, since a void batch marked as done would be lost."""
    with pytest.raises(IllegalStateError, match="nothing to resolve"):
        resolved(_write(state), skip=True)


@given(latest=st.integers(0), now=st.integers(0))
def test_generations_increase(latest, now):
    """The next generation is above the latest and at least the current time."""
    assert next_generation(latest, now) > latest
    assert next_generation(latest, now) >= now
