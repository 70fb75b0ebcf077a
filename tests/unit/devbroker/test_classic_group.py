"""The rules of a group that need no clock: who leads its next generation."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker.classic_group import ClassicGroup, Member

HERE = object()


def group_of(**joined):
    """Return a group that is led by `b`; the members have joined, or not."""
    group = ClassicGroup("g")
    for member_id, has_joined in joined.items():
        member = Member(
            member_id=member_id,
            group_instance_id=f"static-{member_id}",
            client_id="c",
            client_host="/127.0.0.1",
            rebalance_timeout_ms=1,
            session_timeout_ms=1,
            protocols=(),
        )
        member.awaiting_join = HERE if has_joined else None
        group.members[member_id] = member
    group.leader_id = "b"
    return group


@pytest.mark.parametrize(
    ("joined", "elected", "leader"),
    [
        ({"a": True, "b": True, "c": True}, True, "b"),
        ({"a": False, "b": True, "c": False}, True, "b"),
        ({"a": True, "b": False, "c": True}, True, "a"),
        ({"a": False, "b": False, "c": True}, True, "c"),
        ({"a": False, "b": False, "c": False}, False, "b"),
        ({"a": True, "c": True}, False, "b"),
    ],
)
def test_a_leader_that_has_joined_stays_and_another_is_replaced(joined, elected, leader):
    """Static members may be away when their group begins a generation."""
    group = group_of(**joined)
    assert (elected, leader) == (group.elect_joined_leader(), group.leader_id)
