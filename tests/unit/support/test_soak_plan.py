"""The plan of a soak test, as far as it can be tested without running it."""

from __future__ import annotations

import pytest

from tests.support.faults.fault_rules import Action, Side
from tests.support.soaking.soak_plan import CALM, Kind, each_kind_once, make_plan


def test_the_seed_decides_everything():
    """The same seed makes the same plan, and another seed makes another one."""
    assert make_plan(seed=7, seconds=60, nodes=3) == make_plan(seed=7, seconds=60, nodes=3)
    assert make_plan(seed=7, seconds=60, nodes=3) != make_plan(seed=8, seconds=60, nodes=3)


def test_a_long_plan_has_every_kind_of_event_for_every_node():
    """A plan of a quarter of an hour contains every kind of event."""
    plan = make_plan(seed=1, seconds=900, nodes=3)
    events = plan.network + plan.cluster
    assert set(Kind) == {event.kind for event in events}
    assert {0, 1, 2} == {event.node for event in plan.network}
    assert {0, 1, 2} == {event.node for event in plan.cluster}
    answers = {event.fault.action for event in events if event.fault and is_answer(event)}
    assert set(Action) == answers


def is_answer(event):
    return event.fault.side is Side.ANSWER


def test_a_complete_plan_has_every_kind_once():
    """It has every kind of event, every fault of an answer, and each fault only once."""
    plan = each_kind_once(nodes=3)
    events = plan.network + plan.cluster
    assert set(Kind) == {event.kind for event in events}
    answers = {event.fault.action for event in events if event.fault and is_answer(event)}
    assert set(Action) == answers
    faults = [event.fault for event in events if event.fault]
    assert len(faults) == len(set(faults))


@pytest.mark.parametrize(
    "plan", [make_plan(seed=1, seconds=900, nodes=3), each_kind_once(nodes=3)], ids=["long", "once"]
)
def test_no_request_is_altered(plan):
    """Requests are lost, delayed or split; an altered one could validly be stored elsewhere."""
    altered = {Action.GARBLE, Action.WRONG_CORRELATION_ID, Action.REPEAT, Action.WRONG_SIZE}
    requests = {e.fault.action for e in plan.network if e.fault and not is_answer(e)}
    assert not requests & altered


def test_events_come_in_order_and_leave_a_calm_end():
    """Each lane is sorted by time, and its last part has no events."""
    plan = make_plan(seed=3, seconds=100, nodes=3)
    for lane in (plan.network, plan.cluster):
        times = [event.at for event in lane]
        assert sorted(times) == times
        assert times[-1] <= 100 * (1 - CALM)
