"""The table of states of KIP-848, compared with Kafka's, which names the previous states."""

from __future__ import annotations

import pytest

from spark_kafka_sink.consumer.group.group_member import (
    ACCEPTS_ASSIGNMENT,
    NOT_IN_GROUP,
    TRANSITIONS,
    MemberState,
)

#: The states before each state in Kafka 4.3.1 (MemberState.previousValidStates).
PREVIOUS = {
    "STABLE": "JOINING ACKNOWLEDGING RECONCILING",
    "RECONCILING": "STABLE JOINING ACKNOWLEDGING RECONCILING",
    "ACKNOWLEDGING": "RECONCILING",
    "FATAL": "JOINING STABLE RECONCILING ACKNOWLEDGING PREPARE_LEAVING LEAVING UNSUBSCRIBED",
    "FENCED": "JOINING STABLE RECONCILING ACKNOWLEDGING PREPARE_LEAVING LEAVING",
    "JOINING": "FENCED UNSUBSCRIBED STALE",
    "PREPARE_LEAVING": "JOINING STABLE RECONCILING ACKNOWLEDGING UNSUBSCRIBED",
    "LEAVING": "PREPARE_LEAVING",
    "UNSUBSCRIBED": "PREPARE_LEAVING LEAVING FENCED",
    "STALE": "LEAVING",
}


@pytest.mark.parametrize("state", MemberState, ids=lambda state: state.name)
def test_a_state_follows_the_same_states_as_in_java(state):
    """Each state can be reached from exactly those states that Kafka allows."""
    before = {source.name for source, targets in TRANSITIONS.items() if state in targets}
    assert set(PREVIOUS[state.name].split()) == before


def test_assignments_are_accepted_where_they_can_be_reconciled():
    """A target assignment is accepted in the states that RECONCILING may follow."""
    before = {state for state, to in TRANSITIONS.items() if MemberState.RECONCILING in to}
    assert before == ACCEPTS_ASSIGNMENT
    assert not ACCEPTS_ASSIGNMENT & NOT_IN_GROUP
