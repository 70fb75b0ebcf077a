"""Promises of the assignors, for any group, and the groups for which Java breaks them."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kafka_sink.consumer.assignors.assignment_strategies import assignor_instances
from spark_kafka_sink.consumer.assignors.partition_assignor import (
    Cluster,
    GroupSubscription,
    Subscription,
)
from tests.support.consumer.assignor_cases import (
    ASSIGNORS,
    STICKY,
    partitions_of,
    random_case,
    user_data,
)
from tests.support.consumer.assignor_results import OurGroup, faults_of

SEEDS = st.integers(0, 2**32)
# An example may be a group of twelve members in several rounds.
few = settings(max_examples=40)


def group_of(seed, assignor, **changes):
    """Return the first round of a random case, with changes to all members."""
    round_ = random_case(random.Random(seed), assignor)["rounds"][0]
    for member in round_["members"]:
        member.update(changes)
    return round_


def settled(group, round_):
    """Assign until nothing changes; return the result and the number of rebalances."""
    last = None
    for count in range(1, 20):
        result = group.assign(round_)
        group.receive(result)
        if result == last:
            return result, count
        last = result
        for member in round_["members"]:
            member["carry"] = True
    pytest.fail("the assignment changes again and again")


@pytest.mark.parametrize("assignor", ASSIGNORS)
@few
@given(seed=SEEDS)
def test_every_partition_has_one_owner(assignor, seed):
    """Each partition goes to one member that wants it, or waits for its owner to give it up."""
    round_ = group_of(seed, assignor)
    group = OurGroup(assignor)
    withholds = assignor == "cooperative-sticky"
    subscriptions = group.subscriptions(round_)
    assert [] == faults_of(round_, subscriptions, group.assign(round_), withholds=withholds)


@pytest.mark.parametrize("assignor", STICKY)
@few
@given(seed=SEEDS)
def test_sticky_assignments_settle(assignor, seed):
    """Without a change the same members keep the same partitions, and all are assigned."""
    # With racks, some groups of Java's cooperative assignor never settle, and nor do ours.
    round_ = group_of(seed, assignor, rack=None)
    group = OurGroup(assignor)
    result, _ = settled(group, round_)
    assert [] == faults_of(round_, group.subscriptions(round_), result, withholds=False)


@pytest.mark.parametrize("assignor", ["roundrobin", *STICKY])
@few
@given(seed=SEEDS)
def test_equal_subscriptions_are_balanced(assignor, seed):
    """Members that want the same topics have as many partitions, or one more."""
    round_ = group_of(seed, assignor, topics=["t", "orders", "a"])
    group = OurGroup(assignor)
    result, _ = settled(group, round_)
    sizes = [len(partitions_of(words)) for words in result.values()]
    assert max(sizes) - min(sizes) <= 1


@few
@given(seed=SEEDS)
def test_ranges_are_balanced_in_each_topic(seed):
    """The subscribers of a topic have as many partitions of it, or one more."""
    round_ = group_of(seed, "range")
    result = OurGroup("range").assign(round_)
    for topic in round_["topics"]:
        sizes = [
            Counter(it.topic for it in partitions_of(result[member["id"]]))[topic]
            for member in round_["members"]
            if topic in member["topics"]
        ]
        assert not sizes or max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("assignor", STICKY)
@few
@given(seed=SEEDS)
def test_members_that_stay_keep_partitions(assignor, seed):
    """After a member has left, the others keep all that they had, if racks do not matter."""
    round_ = group_of(seed, assignor, topics=["t", "orders", "a"], rack=None)
    group = OurGroup(assignor)
    before, _ = settled(group, round_)
    if len(round_["members"]) > 1:
        round_["members"].pop(seed % len(round_["members"]))
    after = group.assign(round_)
    for member, words in after.items():
        assert set(partitions_of(before[member])) <= set(partitions_of(words))


def test_topics_whose_subscribers_have_no_rack_are_divided_as_without_racks():
    """Racks that help with one topic do not change the ranges of others."""
    plain = {"c1": {"topics": ["a", "b"]}, "c2": {"topics": ["a", "b"]}}
    near = {"c3": {"topics": ["r"], "rack": "x"}, "c4": {"topics": ["r"], "rack": "y"}}
    round_ = simple({"a": 4, "b": 4}, {**plain, **near})
    round_["topics"]["r"] = [["y"], ["x"]]
    expected = {"c1": "a 0 1 b 0 1", "c2": "a 2 3 b 2 3", "c3": "r 1", "c4": "r 0"}
    assert expected == OurGroup("range").assign(round_)


def test_a_cluster_may_have_no_racks():
    """Numbers of partitions are enough where brokers have no racks."""
    [assignor] = assignor_instances(["roundrobin"])
    subscriptions = {"c1": Subscription(topics=("t",)), "c2": Subscription(topics=("t", "gone"))}
    assigned = assignor.assign(Cluster.without_racks({"t": 3}), GroupSubscription(subscriptions))
    expected = {"c1": (("t", 0), ("t", 2)), "c2": (("t", 1),)}
    assert expected == {member: it.partitions for member, it in assigned.assignments.items()}


# --- where Java fails


def simple(topics, members):
    """Build a round of topics without racks; members have topics, and fields of the cases."""
    return {
        "topics": {name: [[]] * count for name, count in topics.items()},
        "members": [{"id": name, **fields} for name, fields in members.items()],
    }


def test_partitions_that_no_longer_exist_are_ignored():
    """A member that owned more partitions than a new topic has gets only those that exist."""
    owned = {"topics": ["t"], "owned": "t 0 1 7 8", "generation": 3}
    round_ = simple({"t": 4}, {"c1": owned, "c2": {"topics": ["t"]}})
    assert {"c1": "t 0 1", "c2": "t 2 3"} == OurGroup("cooperative-sticky").assign(round_)


def test_partitions_that_no_longer_exist_are_ignored_with_different_topics():
    """The same holds for members that want different topics."""
    owned = {"topics": ["t"], "owned": "t 0 1 7 8", "generation": 3}
    round_ = simple({"t": 4, "u": 1}, {"c1": owned, "c2": {"topics": ["t", "u"]}})
    assert {"c1": "t 0 1 3", "c2": "u 0 t 2"} == OurGroup("cooperative-sticky").assign(round_)


def test_a_member_without_topics_gets_nothing():
    """A pattern that matches no topic yet takes no partitions from the others."""
    round_ = simple({"t": 4}, {"c1": {"topics": []}, "c2": {"topics": ["t"]}})
    assert {"c1": "", "c2": "t 0 1 2 3"} == OurGroup("sticky").assign(round_)


def test_an_earlier_owner_that_wants_other_topics_gets_nothing_back():
    """A partition never returns to a member that has unsubscribed from its topic."""
    earlier = user_data(partitions_of("t 0 1 2 3"), 1, 1).hex()
    newest = user_data(partitions_of("t 0 1 2 3"), 1, 2).hex()
    round_ = simple(
        {"t": 4, "u": 1},
        {
            "c1": {"topics": ["u"], "data": earlier, "generation": 1},
            "c2": {"topics": ["t"], "data": newest, "generation": 2},
            "c3": {"topics": ["t", "u"]},
        },
    )
    group = OurGroup("sticky")
    result = group.assign(round_)
    assert [] == faults_of(round_, group.subscriptions(round_), result, withholds=False)


def test_a_partition_passes_through_an_earlier_owner_that_no_longer_wants_it():
    """As in Java it moves there first and then on, which decides the order of the others."""
    round_ = simple(
        {"t": 3, "u": 3},
        {
            "a": {"topics": ["u"], "data": user_data(partitions_of("t 0 2 u 0"), 1, 1).hex()},
            "b": {"topics": ["t"], "data": user_data([], 1, 2).hex()},
            "c": {
                "topics": ["t", "u"],
                "data": user_data(partitions_of("u 1 t 2 1 0"), 1, 2).hex(),
            },
        },
    )
    group = OurGroup("sticky")
    assert {"a": "u 0 2", "b": "t 1 0", "c": "u 1 t 2"} == group.assign(round_)


def test_movements_in_a_circle_end():
    """Earlier owners that pull partitions in a circle do not keep the leader busy for ever."""
    racks = {
        "log": "b",
        "payments": "bc ab bc ac ab",
        "a": "c a c",
        "x_y": "abc abc abc abc abc abc abc abc abc abc abc abc abc abc abc",
        "t": "b b a b",
        "zz": "b b a",
    }
    members = {
        "c-cb9961": {"topics": ["zz"], "rack": "c", "generation": 1},
        "größe-3150d5": {"topics": ["payments", "zz", "a", "t"], "generation": 1},
        "consumer-group-844706": {
            "topics": ["payments", "log", "a", "x_y"],
            "rack": "elsewhere",
            "data": user_data([], 1, 1).hex(),
        },
        "client-c54745": {
            "topics": ["x_y", "zz", "payments", "a"],
            "rack": "b",
            "data": user_data(partitions_of("payments 3 2 0"), 1, -1).hex(),
        },
        "\U0001f5dd-9a394a": {"topics": ["a"], "rack": "a", "generation": 1},
    }
    round_ = simple({}, members)
    round_["topics"] = {name: [list(each) for each in it.split()] for name, it in racks.items()}
    group = OurGroup("sticky")
    result = group.assign(round_)
    assert [] == faults_of(round_, group.subscriptions(round_), result, withholds=False)
