"""Members of the new consumer protocol: their epochs in requests, and how they leave or stay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_kafka_sink.devbroker.groups.consumer_group import MemberState, TopicIdPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.devbroker.broker_requests import ask, broker_with
from tests.support.devbroker.consumer_groups.consumer_group_client import (
    COMMIT,
    FETCH_OFFSETS,
    GROUP,
    SESSION,
    Members,
)
from tests.support.devbroker.durable_cluster import DurableCluster
from tests.support.devbroker.group_client import (
    GroupClient,
    commit_request,
    fetch_offsets_request,
    fetched_offsets,
    txn_commit_request,
)
from tests.support.devbroker.transactional_client import TransactionalClient

OK = ErrorCode.NONE
STALE = ErrorCode.STALE_MEMBER_EPOCH
UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID
ILLEGAL = ErrorCode.ILLEGAL_GENERATION
#: The member epoch of a static member that leaves for a while.
AWAY = -2
#: In seconds.
REBALANCE = 5


@pytest.fixture
def broker():
    return broker_with({"t": 4})


@pytest.fixture
def members(broker):
    return Members(broker)


def member(broker, member_id):
    return broker.cluster.groups.find_consumer_group(GROUP).members[member_id]


def partitions(epochs):
    """Return the epochs in which partitions were assigned, by number."""
    return {place.partition: epoch for place, epoch in epochs.items()}


# --- a static member that leaves for a while


def revoking(members, **fields):
    """Make member `a` own all partitions, two of which it must give to member `b`."""
    members.join("a", timeout_ms=REBALANCE * 1000, **fields)
    members.join("b")
    assert (OK, 2, [0, 1]) == members.beat("a", 2, range(4), **fields)
    before = member(members.broker, "a")
    assert MemberState.UNREVOKED_PARTITIONS is before.state
    assert ({0: 2, 1: 2}, {2: 2, 3: 2}) == (
        partitions(before.assigned),
        partitions(before.pending_revocation),
    )


def test_a_static_member_that_is_away_has_nothing_left_to_revoke(broker, members):
    """It keeps its assigned partitions, from epoch 0 on; those it had to revoke are free."""
    revoking(members, instance_id="i")
    before = member(broker, "a")
    assert (OK, 3, None) == members.beat("b", 3)

    assert (OK, AWAY, None) == members.beat("a", AWAY, instance_id="i")

    expected = replace(
        before,
        member_epoch=AWAY,
        assigned=dict.fromkeys(before.assigned, 0),
        pending_revocation={},
    )
    assert expected == member(broker, "a")
    assert (OK, 3, [2, 3]) == members.beat("b", 3)
    assert 3 == broker.cluster.groups.find(GROUP).group_epoch


def test_a_static_member_that_returns_may_commit_with_any_epoch(broker, members):
    """The partitions of the member that left are its own since epoch 0."""
    members.join("a", instance_id="i")
    members.beat("a", AWAY, instance_id="i")
    assert (OK, 2, [0, 1, 2, 3]) == members.join("c", instance_id="i")

    assert dict.fromkeys(range(4), 0) == partitions(member(broker, "c").assigned)
    request = commit_request(GROUP, {("t", 0): 1}, member_id="c", generation_id=1)
    assert OK == ask(broker, request, COMMIT).topics[0].partitions[0].error_code


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_a_static_member_that_is_away_survives_the_broker(tmp_path, how):
    """Its epochs are on disk, and its session starts anew with the next broker."""
    cluster = DurableCluster(tmp_path / "data")
    defaults = cluster.broker.settings.topic_defaults
    cluster.broker.cluster.create_topic("t", partitions=4, config=defaults)
    members = Members(cluster.broker)
    revoking(members, instance_id="i")
    members.beat("a", AWAY, instance_id="i")
    left = member(cluster.broker, "a")

    broker = members.broker = getattr(cluster, how)()

    assert (AWAY, left) == (left.member_epoch, member(broker, "a"))
    assert (OK, 3, [0, 1]) == members.join("c", instance_id="i")
    cluster.close()


@pytest.mark.parametrize(
    ("member_id", "instance_id", "expected"),
    [
        ("a", "other", UNKNOWN),
        ("b", "i", ErrorCode.FENCED_INSTANCE_ID),
        ("a", None, ErrorCode.INVALID_REQUEST),
    ],
)
def test_only_the_static_member_itself_leaves_for_a_while(
    broker, members, member_id, instance_id, expected
):
    """Another member or instance is refused, and the member stays what it was."""
    members.join("a", instance_id="i")
    before = member(broker, "a")

    assert expected == members.beat(member_id, AWAY, instance_id=instance_id)[0]
    assert before == member(broker, "a")


# --- timers that start again


@pytest.fixture(params=["restarted", "loaded"])
def again(request, tmp_path):
    """Return a cluster, and a function that makes its coordinator start all timers again."""
    cluster = DurableCluster(tmp_path / "data")
    defaults = cluster.broker.settings.topic_defaults
    cluster.broker.cluster.create_topic("t", partitions=4, config=defaults)

    def restart(now):
        cluster.broker.cluster.groups.restart(now)
        return cluster.broker

    def load(now):
        cluster.now = now
        return cluster.restart()

    yield cluster, restart if request.param == "restarted" else load
    cluster.close()


def test_a_member_has_its_rebalance_timeout_again(again):
    """A member that must revoke has as long as in the beginning, and is then removed."""
    cluster, start_again = again
    members = Members(cluster.broker)
    revoking(members)
    members.now += REBALANCE - 1

    members.broker = start_again(members.now)

    members.now += REBALANCE - 0.1
    members.broker.tick(members.now)
    assert (OK, 2, None) == members.beat("a", 2, range(4))
    members.now += 0.2
    members.broker.tick(members.now)
    assert ["b"] == list(members.broker.cluster.groups.find(GROUP).members)


def test_a_member_without_anything_to_revoke_has_only_its_session(again):
    """The rebalance timeout, though shorter than the session, does not remove it."""
    cluster, start_again = again
    members = Members(cluster.broker)
    members.join("a", timeout_ms=REBALANCE * 1000)

    members.broker = start_again(members.now)

    members.now += SESSION - 1
    members.broker.tick(members.now)
    assert (OK, 2, None) == members.beat("a", 2)
    members.now += SESSION + 1
    members.broker.tick(members.now)
    assert {} == members.broker.cluster.groups.find(GROUP).members


def test_a_member_that_revokes_in_time_stays(again):
    """The timeout that started again ends with the revocation."""
    cluster, start_again = again
    members = Members(cluster.broker)
    revoking(members)
    members.broker = start_again(members.now)

    assert (OK, 3, None) == members.beat("a", 2, [0, 1])

    members.now += REBALANCE + 1
    members.broker.tick(members.now)
    assert (OK, 3, None) == members.beat("a", 3, [0, 1])


# --- the epoch of a member that fetches offsets


@pytest.mark.parametrize(
    ("member_id", "epoch", "expected"),
    [
        (None, -1, OK),
        ("a", 3, OK),
        ("a", 2, STALE),
        ("a", 4, STALE),
        ("a", -1, STALE),
        ("c", 3, UNKNOWN),
        (None, 3, UNKNOWN),
        ("", -1, UNKNOWN),
    ],
)
def test_offsets_are_fetched_with_the_current_epoch_or_by_anyone(
    broker, members, member_id, epoch, expected
):
    """A client that gives an id or an epoch must be a member in its current epoch."""
    members.two()
    request = commit_request(GROUP, {("t", 0): 5}, member_id="a", generation_id=3)
    ask(broker, request, COMMIT)

    answer = ask(broker, fetching(member_id, epoch), FETCH_OFFSETS)

    assert expected == answer.groups[0].error_code
    offsets = {("t", 0): (OK, 5)} if expected is OK else {}
    assert offsets == fetched_offsets(answer)


def fetching(member_id, epoch):
    """Return a request for the offset of one partition by a member."""
    request = fetch_offsets_request(GROUP, "t", 0)
    (group,) = request.groups
    return replace(request, groups=(replace(group, member_id=member_id, member_epoch=epoch),))


def test_the_epoch_of_a_classic_group_does_not_matter(broker):
    """A classic group has no member epochs, and Kafka does not compare them."""
    GroupClient(broker, GROUP).commit({("t", 0): 5})

    answer = ask(broker, fetching("nobody", 7), FETCH_OFFSETS)

    assert {("t", 0): (OK, 5)} == fetched_offsets(answer)


# --- the epoch of a member that commits in a transaction


def commit_in_transaction(broker, partition, version=5, **fields):
    """Commit an offset in a transaction, and return the error code."""
    client = TransactionalClient(broker)
    _, identity = client.init()
    request = txn_commit_request(GROUP, identity, {("t", partition): 5}, **fields)
    if version > 5:
        topic_id = broker.cluster.existing_topic("t").topic_id
        request = replace(request, topics=(replace(request.topics[0], topic_id=topic_id),))
    answer = client.ask(request, version)
    (result,) = answer.topics[0].partitions
    return result.error_code


@pytest.mark.parametrize(
    ("sender", "partition", "expected"),
    [
        (("a", 3), 0, OK),
        (("a", 3), 3, OK),
        (("a", 2), 0, OK),
        (("a", 1), 0, ILLEGAL),
        (("a", 2), 3, ILLEGAL),
        (("b", 2), 3, ILLEGAL),
        (("a", 4), 0, ILLEGAL),
        (("a", -1), 0, ILLEGAL),
        (("c", 3), 0, UNKNOWN),
        (("", 3), 0, UNKNOWN),
        (("", -1), 0, OK),
    ],
)
def test_a_transaction_commits_with_the_epoch_of_the_assignment(
    broker, members, sender, partition, expected
):
    """An epoch may not be older than the partition's (KIP-1251); without a member none is given."""
    members.two()

    member_id, epoch = sender
    code = commit_in_transaction(broker, partition, member_id=member_id, generation_id=epoch)

    assert expected == code
    pending = broker.cluster.groups.offsets.unstable(GROUP)
    assert (expected is OK) == bool(pending)


@pytest.mark.parametrize(("epoch", "partition"), [(1, 0), (2, 3), (4, 0)])
def test_version_6_says_that_an_epoch_is_stale(broker, members, epoch, partition):
    """Earlier versions call it an illegal generation (KIP-1319)."""
    members.two()

    code = commit_in_transaction(broker, partition, 6, member_id="a", generation_id=epoch)

    assert ErrorCode.STALE_MEMBER_EPOCH == code


@pytest.mark.parametrize(("epoch", "expected"), [(-1, OK), (2, UNKNOWN)])
def test_anyone_commits_in_a_transaction_of_an_empty_group(broker, members, epoch, expected):
    """Without members there is no epoch to compare, unless one is given."""
    members.join("a")
    members.beat("a", -1)

    assert expected == commit_in_transaction(broker, 0, member_id="a", generation_id=epoch)


def test_a_partition_that_is_to_be_revoked_may_still_be_committed(broker, members):
    """The member owns it until it confirms the revocation, in transactions as well."""
    revoking(members)
    place = TopicIdPartition(members.topic_id, 3)
    assert place in member(broker, "a").pending_revocation

    assert OK == commit_in_transaction(broker, 3, member_id="a", generation_id=2)
