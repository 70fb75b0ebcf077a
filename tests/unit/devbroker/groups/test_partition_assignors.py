"""The server-side assignors."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.devbroker.groups.consumer_group import TopicIdPartition
from spark_kafka_sink.devbroker.groups.partition_assignors import ASSIGNORS, AssignedMember, assign

TOPICS = [uuid.UUID(int=number) for number in range(1, 4)]
T1, T2, T3 = TOPICS


def member(member_id, *topic_ids, assigned=(), instance_id=None):
    partitions = frozenset(TopicIdPartition(*partition) for partition in assigned)
    return AssignedMember(member_id, instance_id, frozenset(topic_ids), partitions)


def indexes(assigned, topic_id=T1):
    return {
        member_id: sorted(p.partition for p in partitions if p.topic_id == topic_id)
        for member_id, partitions in assigned.items()
    }


def test_ranges_are_the_same_of_each_topic():
    """Members get consecutive partitions, the same ones of topics of the same size."""
    assigned = assign("range", [member("b", T1, T2), member("a", T1, T2)], {T1: 3, T2: 3})
    for topic_id in (T1, T2):
        assert {"a": [0, 1], "b": [2]} == indexes(assigned, topic_id)


def test_static_members_get_the_first_ranges():
    """Static members come first, in the order of their instance ids, whatever their member ids."""
    members = [member("a", T1), member("c", T1, instance_id="i"), member("b", T1, instance_id="j")]
    assert {"c": [0], "b": [1], "a": [2]} == indexes(assign("range", members, {T1: 3}))


def test_uniform_moves_only_what_a_new_member_needs():
    """The first member keeps as many partitions as it may have."""
    first = member("a", T1, assigned=[(T1, n) for n in range(4)])
    assigned = assign("uniform", [first, member("b", T1)], {T1: 4})
    assert {"a": [0, 1], "b": [2, 3]} == indexes(assigned)


def test_uniform_lets_a_member_keep_its_extra_partition():
    """A partition that does not divide evenly stays where it is."""
    second = member("b", T1, assigned=[(T1, 1), (T1, 2)])
    members = [member("a", T1, assigned=[(T1, 0)]), second]
    assert {"a": [0], "b": [1, 2]} == indexes(assign("uniform", members, {T1: 3}))


def test_uniform_balances_members_with_different_topics():
    """A member with a topic of its own gets less of the topics that it shares."""
    members = [member("a", T1, T2), member("b", T1)]
    assigned = assign("uniform", members, {T1: 4, T2: 2})
    assert {"a": 3, "b": 3} == {m: len(partitions) for m, partitions in assigned.items()}
    assert [0, 1] == indexes(assigned, T2)["a"]


def test_uniform_moves_partitions_to_balance_different_topics():
    """Partitions move away from the member that got the most."""
    members = [member("a", T1, T2, assigned=[(T1, n) for n in range(4)]), member("b", T1)]
    assigned = assign("uniform", members, {T1: 4, T2: 2})
    assert {"a": 3, "b": 3} == {m: len(partitions) for m, partitions in assigned.items()}


def test_without_members_nothing_is_assigned():
    """A group without members has an empty assignment."""
    assert {} == assign("range", [], {})


@given(
    assignor=st.sampled_from(sorted(ASSIGNORS)),
    subscriptions=st.lists(st.frozensets(st.sampled_from(TOPICS)), min_size=1, max_size=5),
    counts=st.fixed_dictionaries({topic_id: st.integers(1, 6) for topic_id in TOPICS}),
    leaves=st.booleans(),
)
def test_each_partition_has_one_owner_that_subscribes(assignor, subscriptions, counts, leaves):
    """Every partition of a subscribed topic has exactly one owner, also after a change."""
    members = [member(f"m{n}", *topic_ids) for n, topic_ids in enumerate(subscriptions)]
    assigned = assign(assignor, members, counts)
    if leaves:
        members = [m._replace(assigned=assigned[m.member_id]) for m in members[1:]]
        assigned = assign(assignor, members, {t: count + 1 for t, count in counts.items()})
        counts = {t: count + 1 for t, count in counts.items()}
    owned = sorted(p for partitions in assigned.values() for p in partitions)
    subscribed = {topic_id for m in members for topic_id in m.topic_ids}
    assert owned == sorted(
        TopicIdPartition(topic_id, index)
        for topic_id in subscribed
        for index in range(counts[topic_id])
    )
    for each in members:
        assert {p.topic_id for p in assigned[each.member_id]} <= each.topic_ids


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_uniform_differs_by_one_at_most(count):
    """All members that subscribe to the same topics have the same number, give or take one."""
    members = [member(f"m{n}", T1, T2) for n in range(count)]
    assigned = assign("uniform", members, {T1: 5, T2: 6})
    sizes = [len(partitions) for partitions in assigned.values()]
    assert max(sizes) - min(sizes) <= 1
