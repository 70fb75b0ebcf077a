"""The positions of assigned partitions: seeks, resets, and validation by leader epochs."""

from __future__ import annotations

from uuid import UUID

import pytest

from spark_kafka_sink.consumer.subscription.partition_state import (
    EARLIEST,
    LATEST,
    NONE,
    TRANSITIONS,
    WITH_POSITION,
    FetchPosition,
    FetchState,
    LeaderAndEpoch,
    LogTruncation,
    PartitionState,
)
from spark_kafka_sink.consumer.subscription.subscription_state import SubscriptionState
from spark_kafka_sink.errors import IllegalStateError
from spark_kafka_sink.model import Node, OffsetAndMetadata, TopicPartition

TP0, TP1 = TopicPartition("test", 0), TopicPartition("test", 1)
BROKER = Node(1, "localhost", 9092)
LEADER = LeaderAndEpoch(BROKER, 10)
#: A position that LEADER has to confirm.
UNCONFIRMED = FetchPosition(10, 5, LEADER)


@pytest.fixture
def state() -> SubscriptionState:
    state = SubscriptionState(EARLIEST)
    state.assign_from_user([TP0])
    return state


@pytest.fixture
def without_reset() -> SubscriptionState:
    state = SubscriptionState(NONE)
    state.assign_from_user([TP0])
    return state


def fetch_state(state: SubscriptionState) -> FetchState:
    """Return the state of the partition, as the methods of its owner report it."""
    found = {
        FetchState.FETCHING: state.has_valid_position(TP0),
        FetchState.AWAIT_VALIDATION: state.awaits_validation(TP0),
        FetchState.AWAIT_RESET: state.is_offset_reset_needed(TP0),
        FetchState.INITIALIZING: TP0 in state.initializing_partitions,
    }
    [only] = [name for name, is_it in found.items() if is_it]
    return only


@pytest.mark.parametrize("source", FetchState, ids=lambda state: state.name)
@pytest.mark.parametrize("target", FetchState, ids=lambda state: state.name)
def test_only_transitions_of_the_table_are_possible(source, target):
    """A transition that is not in the table raises and changes nothing."""
    before = FetchPosition(1) if source in WITH_POSITION else None
    after = FetchPosition(2) if target in WITH_POSITION else None
    state = PartitionState(fetch_state=source, position=before)
    if target in TRANSITIONS[source]:
        state._transition(target, after)
        assert (target, after) == (state.fetch_state, state.position)
    else:
        with pytest.raises(IllegalStateError, match=f"{source.name} to {target.name}"):
            state._transition(target, after)
        assert (source, before) == (state.fetch_state, state.position)


@pytest.mark.parametrize("target", set(FetchState) - {FetchState.INITIALIZING}, ids=str)
def test_a_state_has_a_position_or_has_none(target):
    """A transition whose position does not go with the state raises and changes nothing."""
    state = PartitionState()
    wrong = None if target in WITH_POSITION else FetchPosition(0)
    with pytest.raises(IllegalStateError, match="does not go with"):
        state._transition(target, wrong)
    assert PartitionState() == state


def test_a_partition_is_fetchable_from_its_first_position_on(state):
    """An assigned partition has no position; a seek makes it fetchable."""
    assert FetchState.INITIALIZING is fetch_state(state)
    assert not state.has_all_fetch_positions
    assert not state.is_fetchable(TP0)
    assert state.position(TP0) is state.valid_position(TP0) is state.valid_offset(TP0) is None
    state.seek(TP0, 1)
    assert state.is_fetchable(TP0)
    assert state.has_all_fetch_positions
    assert FetchPosition(1) == state.position(TP0) == state.valid_position(TP0)
    assert 1 == state.valid_offset(TP0)


def test_the_position_moves_with_the_records(state):
    """The position after records that were read replaces the valid one."""
    state.seek(TP0, 1)
    state.set_position(TP0, FetchPosition(7, 3, LEADER))
    assert FetchPosition(7, 3, LEADER) == state.valid_position(TP0)


def test_what_was_taken_is_committed_when_it_was_returned(state):
    """Until then the offset to commit is that before it; afterwards nothing can be given back."""
    state.seek(TP0, 1)
    for offset in (7, 9):
        state.set_position(TP0, FetchPosition(offset, 3, LEADER))
        assert state.has_taken
        assert {TP0: OffsetAndMetadata(1)} == state.all_consumed()
    for are_returned in (True, False):
        state.end_taking(are_returned=are_returned)
        assert not state.has_taken
        assert {TP0: OffsetAndMetadata(9, 3)} == state.all_consumed()


def test_what_was_taken_and_not_returned_is_read_again(state):
    """A position that was set meanwhile stays; the leader is that of the last position."""
    state.seek(TP0, 1)
    state.set_position(TP0, FetchPosition(7, 3, LEADER))
    state.move_back(TP0, FetchPosition(5, 3, LEADER))
    state.end_taking(are_returned=False)
    assert FetchPosition(1, current_leader=LEADER) == state.valid_position(TP0)
    state.set_position(TP0, FetchPosition(7, 3, LEADER))
    state.seek(TP0, 4)
    state.end_taking(are_returned=False)
    assert FetchPosition(4) == state.valid_position(TP0)


OLD_ID, NEW_ID = UUID(int=1), UUID(int=2)


def test_a_new_topic_id_resets_the_position(state):
    """The first id that is noted belongs to the position; later ones are those of other topics."""
    state.seek(TP0, 3)
    state.update_offsets(TP0, high_watermark=3, last_stable_offset=3, log_start_offset=0)
    assert [None, None] == [state.note_topic_id(TP0, OLD_ID) for _ in range(2)]
    assert 3 == state.valid_offset(TP0)
    assert OLD_ID == state.note_topic_id(TP0, NEW_ID)
    assert (TP0,) == state.partitions_needing_reset(0.0)
    assert {} == state.all_consumed()
    assert None is state.partition_end_offset(TP0, is_committed=False)
    state.seek(TP0, 5)
    assert [None] * 3 == [state.note_topic_id(TP0, each) for each in (NEW_ID, OLD_ID, NEW_ID)]
    assert 5 == state.valid_offset(TP0)


def test_nothing_is_read_of_a_topic_that_the_coordinator_has_not_assigned(state):
    """The position is dropped at once, and looked up when the topic is assigned."""
    state.seek(TP0, 3)
    state.note_topic_id(TP0, OLD_ID)
    assert OLD_ID == state.note_topic_id(TP0, NEW_ID, is_assigned=False)
    assert ((), {}) == (state.partitions_needing_reset(0.0), state.all_consumed())
    assert None is state.note_topic_id(TP0, NEW_ID)
    assert (TP0,) == state.partitions_needing_reset(0.0)


def test_the_id_of_a_topic_that_is_not_assigned_is_not_that_of_the_position(state):
    """Metadata may be older than the assignment, and the position is one in the newer topic."""
    state.seek(TP0, 3)
    state.note_topic_id(TP0, OLD_ID, is_assigned=False)
    assert not state.is_fetchable(TP0)
    assert None is state.note_topic_id(TP0, NEW_ID)
    assert state.is_fetchable(TP0)
    assert 3 == state.valid_offset(TP0)


def test_the_position_does_not_move_without_a_valid_one(state):
    """Moving the position raises before a seek, during a reset and during a validation."""
    steps = [
        lambda: None,
        lambda: state.request_offset_reset(TP0),
        lambda: state.seek_unvalidated(TP0, UNCONFIRMED),
    ]
    for step in steps:
        step()
        before = state.position(TP0)
        with pytest.raises(IllegalStateError, match="no valid position"):
            state.set_position(TP0, FetchPosition(0))
        assert before == state.position(TP0)
        assert {} == state.all_consumed()


@pytest.mark.parametrize(
    "call",
    [
        lambda state: state.set_position(TP1, FetchPosition(1)),
        lambda state: state.seek(TP1, 1),
        lambda state: state.seek_unvalidated(TP1, FetchPosition(1)),
        lambda state: state.position(TP1),
        lambda state: state.valid_position(TP1),
        lambda state: state.request_offset_reset(TP1),
        lambda state: state.is_offset_reset_needed(TP1),
        lambda state: state.requested_reset(TP1),
        lambda state: state.awaits_validation(TP1),
        lambda state: state.complete_validation(TP1),
        lambda state: state.pause(TP1),
        lambda state: state.resume(TP1),
        lambda state: state.partition_lag(TP1, is_committed=False),
        lambda state: state.partition_lead(TP1),
        lambda state: state.partition_end_offset(TP1, is_committed=True),
        lambda state: state.request_end_offset(TP1),
        lambda state: state.is_end_offset_requested(TP1),
        lambda state: state.mark_pending_revocation([TP0, TP1]),
        lambda state: state.enable_partitions_awaiting_callback([TP0, TP1]),
    ],
)
def test_a_partition_has_to_be_assigned(state, call):
    """A call for a partition that is not assigned names it, and changes nothing."""
    state.seek(TP0, 3)
    with pytest.raises(IllegalStateError, match="test-1 is not assigned"):
        call(state)
    assert state.is_fetchable(TP0)
    assert (TP0,) == state.assigned_partitions


def test_a_late_position_of_a_removed_partition_is_none(state):
    """The position of a partition that is not assigned is None where answers may come late."""
    state.seek(TP0, 5)
    assert FetchPosition(5) == state.position_or_none(TP0)
    assert state.position_or_none(TP1) is None
    assert not state.has_valid_position(TP1)


# Resets


def test_a_reset_drops_the_position_until_a_seek(state):
    """A partition that waits for a reset has no position and is not fetchable."""
    state.seek(TP0, 5)
    state.request_offset_reset(TP0)
    assert FetchState.AWAIT_RESET is fetch_state(state)
    assert EARLIEST == state.requested_reset(TP0)
    assert state.position(TP0) is None
    assert not state.is_fetchable(TP0)
    state.seek(TP0, 0)
    assert FetchState.FETCHING is fetch_state(state)
    assert state.requested_reset(TP0) is None
    assert state.is_fetchable(TP0)


def test_a_reset_replaces_a_validation(state):
    """A reset that is requested during a validation ends it."""
    state.seek_unvalidated(TP0, UNCONFIRMED)
    assert FetchState.AWAIT_VALIDATION is fetch_state(state)
    state.request_offset_reset(TP0, LATEST)
    assert FetchState.AWAIT_RESET is fetch_state(state)
    assert LATEST == state.requested_reset(TP0)


def test_a_reset_of_a_removed_partition_is_skipped(state):
    """Only a partition that is assigned can wait for a reset."""
    state.request_offset_reset_if_assigned(TP0)
    state.request_offset_reset_if_assigned(TP1)
    assert FetchState.AWAIT_RESET is fetch_state(state)
    assert not state.is_assigned(TP1)


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.assign_from_user([TP1]),
        lambda state: state.seek(TP0, 3),
        lambda state: state.request_offset_reset(TP0, LATEST),
    ],
)
def test_a_late_result_of_a_reset_is_ignored(state, change):
    """An offset that was found does not apply once the partition waits for it no longer."""
    state.request_offset_reset(TP0, EARLIEST)
    change(state)
    before = state.position_or_none(TP0)
    assert not state.maybe_seek_unvalidated(TP0, FetchPosition(9), EARLIEST)
    assert before == state.position_or_none(TP0)


def test_the_result_of_a_reset_is_the_position(state):
    """An offset that was found with epochs has to be confirmed, one without is read at once."""
    state.request_offset_reset(TP0, EARLIEST)
    assert state.maybe_seek_unvalidated(TP0, FetchPosition(9), EARLIEST)
    assert FetchPosition(9) == state.valid_position(TP0)
    state.request_offset_reset(TP0, EARLIEST)
    assert state.maybe_seek_unvalidated(TP0, UNCONFIRMED, EARLIEST)
    assert FetchState.AWAIT_VALIDATION is fetch_state(state)


def test_partitions_without_a_committed_offset_are_reset():
    """Partitions without a position are reset, if they are included and not to be revoked."""
    state = SubscriptionState(LATEST)
    partitions = [TopicPartition("test", number) for number in range(4)]
    state.assign_from_user(partitions)
    state.seek(partitions[0], 3)
    state.mark_pending_revocation([partitions[1]])
    assert () == state.reset_initializing_positions(lambda each: each != partitions[2])
    assert [False, False, False, True] == [state.is_offset_reset_needed(it) for it in partitions]
    assert LATEST == state.requested_reset(partitions[3])
    assert (partitions[2],) == state.initializing_partitions
    assert () == state.reset_initializing_positions()
    assert () == state.initializing_partitions


def test_partitions_that_cannot_be_reset_are_named(without_reset):
    """With auto.offset.reset=none the partitions without an offset are returned, unchanged."""
    without_reset.assign_from_user([TP0, TP1])
    without_reset.seek(TP1, 3)
    assert not without_reset.has_default_reset
    assert () == without_reset.reset_initializing_positions(lambda _: False)
    assert (TP0,) == without_reset.reset_initializing_positions()
    assert (TP0,) == without_reset.initializing_partitions


def test_look_ups_wait_for_their_back_off(state):
    """A partition is looked up again when its back-off is over, or at once after a new request."""
    state.request_offset_reset(TP0)
    state.set_next_allowed_retry([TP0, TP1], 5.0)
    assert () == state.partitions_needing_reset(4.9)
    assert (TP0,) == state.partitions_needing_reset(5.0)
    state.set_next_allowed_retry([TP0], 9.0)
    state.request_offset_reset(TP0)
    assert (TP0,) == state.partitions_needing_reset(0.0)
    assert {} == state.partitions_needing_validation(0.0)


def test_validations_wait_for_their_back_off(state):
    """A position is validated again when its back-off is over, or at once for a new leader."""
    state.seek_unvalidated(TP0, UNCONFIRMED)
    assert {TP0: UNCONFIRMED} == state.partitions_needing_validation(0.0)
    state.set_next_allowed_retry([TP0], 5.0)
    assert {} == state.partitions_needing_validation(4.9)
    assert {TP0: UNCONFIRMED} == state.partitions_needing_validation(5.0)
    newer = LeaderAndEpoch(BROKER, 11)
    assert state.maybe_validate_position(TP0, newer)
    assert {TP0: FetchPosition(10, 5, newer)} == state.partitions_needing_validation(0.0)
    assert () == state.partitions_needing_reset(9.0)


# Validation


def test_a_position_without_an_epoch_needs_no_validation(state):
    """Without the epoch of the record before it, a position is valid under any leader."""
    state.seek_unvalidated(TP0, FetchPosition(0, current_leader=LeaderAndEpoch(BROKER, 5)))
    assert FetchState.FETCHING is fetch_state(state)
    for leader in (LeaderAndEpoch(BROKER), LEADER):
        assert not state.maybe_validate_position(TP0, leader)
        assert FetchState.FETCHING is fetch_state(state)
        assert FetchPosition(0, current_leader=leader) == state.position(TP0)


def test_a_position_with_an_epoch_has_to_be_confirmed(state):
    """A position is validated by each leader, unless the leader's epoch is not known."""
    state.seek_unvalidated(TP0, FetchPosition(0, 2, LeaderAndEpoch(BROKER, 5)))
    assert FetchState.AWAIT_VALIDATION is fetch_state(state)
    for epoch in (5, 15):
        assert state.maybe_validate_position(TP0, LeaderAndEpoch(BROKER, epoch))
        assert FetchState.AWAIT_VALIDATION is fetch_state(state)
        assert FetchPosition(0, 2, LeaderAndEpoch(BROKER, epoch)) == state.position(TP0)
    assert not state.maybe_validate_position(TP0, LeaderAndEpoch(BROKER))
    assert FetchState.FETCHING is fetch_state(state)


def test_a_valid_position_is_validated_by_the_next_leader(state):
    """A change of the leader starts a validation; the same leader and none at all do not."""
    state.seek_validated(TP0, UNCONFIRMED)
    assert not state.maybe_validate_position(TP0, LEADER)
    assert not state.maybe_validate_position(TP0, LeaderAndEpoch(None, 11))
    assert FetchState.FETCHING is fetch_state(state)
    assert state.maybe_validate_position(TP0, LeaderAndEpoch(BROKER, 11))
    assert not state.is_fetchable(TP0)


def test_a_new_leader_replaces_the_preferred_follower(state):
    """A follower was recommended by the former leader, so a change of the leader ends that."""
    state.seek(TP0, 1)
    state.update_preferred_read_replica(TP0, 42, 100.0)
    state.maybe_validate_position(TP0, LEADER)
    assert state.preferred_read_replica(TP0, 0.0) is None


def test_a_seek_to_a_position_without_an_epoch_ends_the_validation(state):
    """A position without an epoch is read at once, even if the one before had one."""
    state.seek_unvalidated(TP0, FetchPosition(0, 2, LEADER))
    state.seek_unvalidated(TP0, FetchPosition(0, current_leader=LEADER))
    assert FetchState.FETCHING is fetch_state(state)


def test_a_validated_seek_ends_the_validation(state):
    """A position that needs no validation replaces one that does."""
    state.seek_unvalidated(TP0, UNCONFIRMED)
    state.seek_validated(TP0, FetchPosition(8, 4, LEADER))
    assert FetchState.FETCHING is fetch_state(state)
    assert 8 == state.valid_offset(TP0)


def test_a_completed_validation_keeps_the_position(state):
    """A position that was confirmed is read; without a position there is nothing to confirm."""
    state.complete_validation(TP0)
    assert FetchState.INITIALIZING is fetch_state(state)
    state.seek_unvalidated(TP0, UNCONFIRMED)
    assert state.valid_position(TP0) is None
    state.complete_validation(TP0)
    assert UNCONFIRMED == state.valid_position(TP0)


def test_old_brokers_validate_nothing(state):
    """A leader without a usable OffsetForLeaderEpoch ends the validation; others do not."""
    state.seek_unvalidated(TP0, UNCONFIRMED)
    assert not state.maybe_validate_position(TP0, LEADER, is_supported=False)
    assert UNCONFIRMED == state.valid_position(TP0)
    state.seek_unvalidated(TP0, UNCONFIRMED)
    assert state.maybe_validate_position(TP0, LEADER)
    assert not state.has_valid_position(TP0)
    assert not state.maybe_validate_position(TP0, LeaderAndEpoch(), is_supported=False)
    assert FetchState.AWAIT_VALIDATION is fetch_state(state)
    assert not state.maybe_validate_position(TP1, LEADER)
    assert not state.is_assigned(TP1)


def test_a_reset_ends_without_validation_on_old_brokers(state):
    """A reset is not ended by old brokers; its position is valid at once, or after the skip."""
    state.request_offset_reset(TP0)
    assert not state.maybe_validate_position(TP0, LeaderAndEpoch(BROKER), is_supported=False)
    assert not state.maybe_validate_position(TP0, LeaderAndEpoch(BROKER))
    assert FetchState.AWAIT_RESET is fetch_state(state)
    state.seek_unvalidated(TP0, FetchPosition(10))
    assert FetchState.FETCHING is fetch_state(state)
    state.request_offset_reset(TP0)
    state.seek_unvalidated(TP0, FetchPosition(10, 10, LeaderAndEpoch(BROKER, 2)))
    assert FetchState.AWAIT_VALIDATION is fetch_state(state)
    assert not state.maybe_validate_position(TP0, LeaderAndEpoch(BROKER, 2), is_supported=False)
    assert FetchState.FETCHING is fetch_state(state)


@pytest.mark.parametrize("end_offset", [10, 15])
def test_a_log_that_reaches_the_position_confirms_it(state, end_offset):
    """The position is valid if the log of its epoch does not end before it."""
    state.seek_unvalidated(TP0, UNCONFIRMED)
    assert state.maybe_complete_validation(TP0, UNCONFIRMED, end_offset=end_offset, epoch=5) is None
    assert UNCONFIRMED == state.valid_position(TP0)


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.seek_unvalidated(TP0, FetchPosition(20, 8, LEADER)),
        lambda state: state.request_offset_reset(TP0),
        lambda state: state.seek_validated(TP0, UNCONFIRMED),
        lambda state: state.assign_from_user([TP1]),
    ],
)
@pytest.mark.parametrize(("end_offset", "epoch"), [(15, 5), (5, 5), (-1, -1)])
def test_a_late_answer_to_a_validation_is_ignored(state, change, end_offset, epoch):
    """An answer about a position does not apply to another one, nor without a validation."""
    state.seek_unvalidated(TP0, UNCONFIRMED)
    change(state)
    before = repr(state), state.position_or_none(TP0)
    answer = {"end_offset": end_offset, "epoch": epoch}
    assert state.maybe_complete_validation(TP0, UNCONFIRMED, **answer) is None
    assert before == (repr(state), state.position_or_none(TP0))


def test_reading_continues_where_a_truncated_log_diverges(state):
    """With a default reset the position moves back to the first offset that differs."""
    state.seek_unvalidated(TP0, UNCONFIRMED)
    assert state.maybe_complete_validation(TP0, UNCONFIRMED, end_offset=5, epoch=7) is None
    assert FetchPosition(5, 7, LEADER) == state.valid_position(TP0)


def test_a_truncation_is_reported_without_a_reset(without_reset):
    """Without a default reset the truncation is returned, and the position stays unconfirmed."""
    without_reset.seek_unvalidated(TP0, UNCONFIRMED)
    truncation = without_reset.maybe_complete_validation(TP0, UNCONFIRMED, end_offset=5, epoch=7)
    assert LogTruncation(TP0, UNCONFIRMED, OffsetAndMetadata(5, 7)) == truncation
    assert FetchState.AWAIT_VALIDATION is fetch_state(without_reset)


@pytest.mark.parametrize(("end_offset", "epoch"), [(-1, -1), (20, -1), (-1, 5)])
def test_an_unknown_epoch_is_a_truncation(state, without_reset, end_offset, epoch):
    """If the leader knows no such epoch, the reset decides, or an unknown offset is reported."""
    answer = {"end_offset": end_offset, "epoch": epoch}
    state.seek_unvalidated(TP0, UNCONFIRMED)
    assert state.maybe_complete_validation(TP0, UNCONFIRMED, **answer) is None
    assert FetchState.AWAIT_RESET is fetch_state(state)
    assert EARLIEST == state.requested_reset(TP0)

    without_reset.seek_unvalidated(TP0, UNCONFIRMED)
    truncation = without_reset.maybe_complete_validation(TP0, UNCONFIRMED, **answer)
    assert LogTruncation(TP0, UNCONFIRMED, None) == truncation
    assert FetchState.AWAIT_VALIDATION is fetch_state(without_reset)
