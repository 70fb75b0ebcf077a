"""Groups of the new consumer protocol, with the time as an argument."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker.base import regular_expression
from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.groups import classic_group, consumer_groups
from spark_kafka_sink.devbroker.groups.classic_group import subscribed_topics
from spark_kafka_sink.devbroker.groups.consumer_groups import RegexResolution
from spark_kafka_sink.devbroker.groups.group_records import CONSUMER_GROUP_KEYS
from spark_kafka_sink.devbroker.log.coordinator_log import version_of
from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from spark_kafka_sink.protocol.messages.describe_groups import DescribeGroupsRequest
from spark_kafka_sink.protocol.messages.list_groups import ListGroupsRequest
from spark_kafka_sink.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tests.support.devbroker.broker_requests import NOW, ask, broker_with
from tests.support.devbroker.consumer_groups.consumer_group_client import (
    GROUP,
    SESSION,
    Members,
    consumer_heartbeat,
    joining,
)
from tests.support.devbroker.durable_cluster import DurableCluster
from tests.support.devbroker.faulty_disk import Failure, FaultyDisk
from tests.support.devbroker.group_client import GroupClient, commit_request, join_request


@pytest.fixture
def broker():
    return broker_with({"t": 4})


@pytest.fixture
def members(broker):
    return Members(broker)


def state(broker):
    group = broker.cluster.groups.find(GROUP)
    return None if group is None else str(group.state)


def test_a_group_without_members_has_no_assignment_to_wait_for(broker, members):
    """With the last member that leaves, the assignment's epoch rises as well (since Kafka 4.4)."""
    members.join("a")
    members.join("b")
    epochs = []
    for name in ("a", "b"):
        members.beat(name, -1)
        group = broker.cluster.groups.find_consumer_group(GROUP)
        epochs.append((group.group_epoch, group.assignment_epoch))
    assert [(4, 3), (5, 5)] == epochs


def test_a_partition_is_not_given_away_before_its_owner_confirms(broker, members):
    """A new member receives partitions only when the other no longer lists them as owned."""
    assert (0, 2, [0, 1, 2, 3]) == members.join("a")
    assert (0, 3, []) == members.join("b")
    assert (0, 3, None) == members.beat("b", 3)
    assert (0, 2, [0, 1]) == members.beat("a", 2)
    assert (0, 2, None) == members.beat("a", 2, [0, 1, 2])
    assert (0, 3, None) == members.beat("b", 3)
    assert (0, 3, None) == members.beat("a", 2, [0, 1])
    assert "Reconciling" == state(broker)
    assert (0, 3, [2, 3]) == members.beat("b", 3)
    assert "Stable" == state(broker)


def test_a_silent_member_is_removed_after_its_session(broker, members):
    """When the session is over, the others receive its partitions."""
    members.two()
    members.now += SESSION - 1
    members.beat("b", 3)
    broker.tick(members.now + 1)
    members.now += 2
    assert (0, 4, [0, 1, 2, 3]) == members.beat("b", 3)
    assert ErrorCode.UNKNOWN_MEMBER_ID == members.beat("a", 3)[0]


def test_a_member_that_does_not_revoke_is_removed(members):
    """A member that owns revoked partitions past its rebalance timeout loses all of them."""
    members.join("a", timeout_ms=5_000)
    members.join("b")
    members.beat("a", 2, range(4))
    for _ in range(4):
        members.now += 1
        assert (0, 2, None) == members.beat("a", 2, range(4))
    members.now += 1.5
    assert ErrorCode.UNKNOWN_MEMBER_ID == members.beat("a", 2, range(4))[0]
    assert (0, 4, [0, 1, 2, 3]) == members.beat("b", 3)


def test_the_rebalance_timeout_ends_with_the_revocation(members):
    """A member that has revoked its partitions keeps its membership."""
    members.join("a", timeout_ms=5_000)
    members.join("b")
    members.beat("a", 2)
    members.beat("a", 2, [0, 1])
    members.now += 6
    assert (0, 3, None) == members.beat("a", 3)


def test_a_response_may_be_lost(members):
    """A member may repeat its previous epoch, with partitions that it still has."""
    members.two()
    assert ErrorCode.FENCED_MEMBER_EPOCH == members.beat("a", 2)[0]
    assert ErrorCode.FENCED_MEMBER_EPOCH == members.beat("a", 2, [0, 1, 2])[0]
    assert (0, 3, None) == members.beat("a", 2, [1])
    assert ErrorCode.FENCED_MEMBER_EPOCH == members.beat("a", 4)[0]


def test_a_fenced_member_joins_again(members):
    """A member that joins again with its id gets its assignment anew."""
    members.two()
    assert (0, 3, [0, 1]) == members.join("a")


def test_a_static_member_returns_to_its_partitions(broker, members):
    """A static member that left for a while gets its partitions back under another id."""
    members.join("a", instance_id="i")
    assert ErrorCode.UNRELEASED_INSTANCE_ID == members.join("c", instance_id="i")[0]
    assert (0, -2, None) == members.beat("a", -2, instance_id="i")
    assert (0, 2, [0, 1, 2, 3]) == members.join("c", instance_id="i")
    assert ErrorCode.FENCED_INSTANCE_ID == members.beat("a", 2, instance_id="i")[0]
    assert ["c"] == list(broker.cluster.groups.find(GROUP).members)


def test_a_static_member_that_stays_away_is_removed(broker, members):
    """The session of a static member that left for a while goes on."""
    members.join("a", instance_id="i")
    members.beat("a", -2, instance_id="i")
    broker.tick(NOW + SESSION + 1)
    assert "Empty" == state(broker)


def test_members_have_a_session_to_find_a_broker_that_was_away(broker, members):
    """The sessions of all members restart when the broker does."""
    members.join("a")
    members.now += SESSION - 1
    broker.cluster.groups.restart(members.now)
    broker.tick(members.now + SESSION - 1)
    assert "Stable" == state(broker)
    broker.tick(members.now + SESSION + 1)
    assert "Empty" == state(broker)


def test_new_partitions_are_assigned(broker, members):
    """A topic that grows makes a new target assignment."""
    members.join("a")
    with broker.cluster.change_topics() as changes:
        changes.add_partitions(broker.cluster.topic("t"), 6)
    assert (0, 3, [0, 1, 2, 3, 4, 5]) == members.beat("a", 2)


def test_a_topic_that_is_created_later_is_assigned():
    """A member may subscribe to a topic that does not exist yet."""
    broker = broker_with({"other": 1})
    members = Members(broker)
    assert (0, 2, []) == members.join("a")
    assert (0, 2, None) == members.beat("a", 2)
    broker.cluster.create_topic("t", partitions=1, config=broker.settings.topic_defaults)
    assert (0, 3, [0]) == members.beat("a", 2)


def test_new_topics_match_an_expression_after_ten_seconds(broker, members):
    """Expressions are resolved again when there are new topics, but not more often than that."""
    assert (0, 1, []) == members.join("a", regex="t.*")
    assert (0, 2, [0, 1, 2, 3]) == members.beat("a", 1)
    broker.cluster.create_topic("t2", partitions=1, config=broker.settings.topic_defaults)
    members.now += 9
    assert (0, 2, None) == members.beat("a", 2)
    members.now += 2
    assert (0, 2, None) == members.beat("a", 2)
    error_code, epoch, assigned = members.beat("a", 2)
    assert (0, 3, [0, 0, 1, 2, 3]) == (error_code, epoch, sorted(assigned))


@pytest.mark.parametrize("timeout_ms", [-2, 0, 300_000])
def test_a_heartbeat_with_all_fields_is_answered_with_the_assignment(members, timeout_ms):
    """Only -1 means that a heartbeat leaves the time-out out."""
    members.join("a")
    full = {"topics": ("t",), "timeout_ms": timeout_ms}
    assert (0, 2, [0, 1, 2, 3]) == members.beat("a", 2, [0, 1, 2, 3], **full)
    part = {**full, "timeout_ms": -1}
    assert (0, 2, None) == members.beat("a", 2, [0, 1, 2, 3], **part)


def test_an_expression_is_resolved_again_after_the_refresh_interval(broker, members):
    """Without new topics, expressions are resolved again after a time that can be set."""
    members.join("a", regex="t.*")
    members.beat("a", 1)
    first_ms = broker.cluster.groups.find(GROUP).last_resolved_ms
    for _ in range(60):
        # Within the session of the member.
        members.now += 10
        members.beat("a", 2)
    assert first_ms == broker.cluster.groups.find(GROUP).last_resolved_ms
    members.now += 1
    members.beat("a", 2)
    assert first_ms + 601_000 == broker.cluster.groups.find(GROUP).last_resolved_ms


def test_a_hostile_expression_is_resolved_a_portion_at_a_time(broker, members, monkeypatch):
    """A heartbeat takes a limited number of steps; later ones continue, and nothing is lost."""
    portions = []
    advance = RegexResolution.advance

    def count(resolution):
        before = len(resolution._left)
        is_done = advance(resolution)
        portions.append((before, is_done))
        return is_done

    monkeypatch.setattr(RegexResolution, "advance", count)
    names = [f"{index:02}" + "ab" * 119 for index in range(20)]
    for name in names:
        broker.cluster.create_topic(name, partitions=1, config=broker.settings.topic_defaults)
    members.join("a", regex="(.?){250}(.{0,9}b){20}|t")
    while not portions[-1][1]:
        assert (0, 1) == members.beat("a", 1)[:2]
    lefts = [left for left, _ in portions]
    assert len(lefts) > 3
    assert sorted(lefts, reverse=True) == lefts
    error_code, epoch, assigned = members.beat("a", 1)
    assert (0, 2, [0] * 21 + [1, 2, 3]) == (error_code, epoch, sorted(assigned))
    members.now += 5
    members.beat("a", 2)
    assert len(lefts) == len(portions)


def test_each_heartbeat_of_a_resolution_gets_further(monkeypatch):
    """An expression that takes more steps than a heartbeat has for one name gets more."""
    monkeypatch.setattr(consumer_groups, "MAX_WORK", 10_000)
    resolution = RegexResolution("g", ["(.?){25}(.{0,9}b){20}"], frozenset({"ab" * 40}))
    heartbeats = 1
    while not resolution.advance():
        heartbeats += 1
        assert heartbeats < 20
    assert heartbeats > 2
    assert frozenset({"ab" * 40}) == resolution.topics["(.?){25}(.{0,9}b){20}"]


def test_an_expression_that_is_no_longer_valid_matches_no_topics(
    broker, members, monkeypatch, caplog
):
    """A member of an earlier version of the broker keeps its heartbeats, but gets no topics."""
    with monkeypatch.context() as patch:
        patch.setattr(regular_expression, "_MAX_CHARACTERS", 3)
        long_ago = "t.*"
        members.join("a", regex=long_ago)
        assert (0, 2, [0, 1, 2, 3]) == members.beat("a", 1)
        patch.setattr(regular_expression, "_MAX_CHARACTERS", 2)
        broker.cluster.create_topic("t2", partitions=1, config=broker.settings.topic_defaults)
        members.now += 11

        assert (0, 2, None) == members.beat("a", 2)

        [warning] = caplog.messages
        assert f"group {GROUP} matches no topics: SubscribedTopicRegex `{long_ago}`" in warning
        assert (0, 2, []) == members.beat("a", 2)
        assert (0, 3, None) == members.beat("a", 2, [])
        members.now += 11
        assert (0, 3, None) == members.beat("a", 3)
        assert 1 == len(caplog.messages)
        regex = ErrorCode.INVALID_REGULAR_EXPRESSION
        assert regex == members.join("b", regex="u.*")[0]


def test_assignments_can_be_limited_in_time():
    """Within the assignment interval a new member gets no new target assignment (KIP-1263)."""
    broker = broker_with({"t": 4}, group_consumer_assignment_interval_ms=1000)
    members = Members(broker)
    members.join("a")
    assert (0, 2, []) == members.join("b")
    members.now += 1.1
    assert (0, 2, [0, 1]) == members.beat("a", 2)


def test_a_full_group_refuses_further_members():
    """GROUP_MAX_SIZE_REACHED is for new members only."""
    broker = broker_with({"t": 4}, group_consumer_max_size=1)
    members = Members(broker)
    members.join("a")
    assert ErrorCode.GROUP_MAX_SIZE_REACHED == members.join("b")[0]
    assert 0 == members.join("a")[0]


def test_protocols_do_not_mix(broker, members):
    """A group with members of one protocol refuses those of the other."""
    client = GroupClient(broker, GROUP)
    client.join()
    assert ErrorCode.GROUP_ID_NOT_FOUND == members.join("a")[0]
    client.group_id = "h"
    members.ask(joining("h", "a", topics=["t"]))
    assert ErrorCode.INCONSISTENT_GROUP_PROTOCOL == ask(broker, join_request("h"), 9).error_code


def test_a_group_is_listed_with_its_type(broker, members):
    """The filter by type distinguishes both protocols."""
    GroupClient(broker, "classic").join()
    members.join("a")
    request = ListGroupsRequest(types_filter=("Consumer",))
    assert [(GROUP, "Stable", "Consumer")] == [
        (group.group_id, group.group_state, group.group_type)
        for group in ask(broker, request).groups
    ]


def test_a_commit_needs_the_epoch_of_the_assignment(broker, members):
    """A member may commit with an older epoch than its own, but not older than the assignment."""
    members.two()

    def commit(member_id, epoch, partition):
        request = commit_request(
            GROUP, {("t", partition): 1}, member_id=member_id, generation_id=epoch
        )
        return ask(broker, request, 9).topics[0].partitions[0].error_code

    assert 0 == commit("a", 3, 0)
    assert 0 == commit("a", 2, 0)
    assert ErrorCode.STALE_MEMBER_EPOCH == commit("a", 2, 3)
    assert ErrorCode.STALE_MEMBER_EPOCH == commit("b", 2, 3)
    assert ErrorCode.STALE_MEMBER_EPOCH == commit("b", 4, 3)
    assert ErrorCode.UNKNOWN_MEMBER_ID == commit("c", 3, 3)


def delete_offsets(broker, *partitions, topics=("t",)):
    """Delete offsets of these partitions of each topic; return their error codes."""
    request = OffsetDeleteRequest(
        group_id=GROUP,
        topics=tuple(
            OffsetDeleteRequestTopic(
                name=topic,
                partitions=tuple(
                    OffsetDeleteRequestPartition(partition_index=p) for p in partitions
                ),
            )
            for topic in topics
        ),
    )
    return [p.error_code for topic in ask(broker, request).topics for p in topic.partitions]


def subscription(topic):
    """Return the metadata of a classic member that subscribes to one topic."""
    name = topic.encode()
    return b"\0\0" + b"\0\0\0\1" + len(name).to_bytes(2, "big") + name


SUBSCRIBED = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


def test_offsets_are_deleted_unless_the_group_subscribes(broker):
    """OffsetDelete deletes offsets, but not of subscribed or missing topics."""
    client = GroupClient(broker, GROUP)
    client.commit({("t", 0): 5})

    assert [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] == delete_offsets(broker, 0, 9)
    assert (0, -1) == client.offsets("t", 0)["t", 0]
    client.join(metadata=subscription("t"))
    assert [SUBSCRIBED] == delete_offsets(broker, 0)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"metadata": subscription("t")}, [SUBSCRIBED, 0]),
        ({"metadata": subscription("u")}, [0, SUBSCRIBED]),
        ({"metadata": b"?"}, [SUBSCRIBED, SUBSCRIBED]),
    ],
    ids=["t", "u", "hidden"],
)
def test_a_subscription_that_cannot_be_read_is_one_to_all_topics(fields, expected):
    """A classic member protects the offsets of its topics, or all if the topics are not known."""
    broker = broker_with({"t": 1, "u": 1})
    GroupClient(broker, GROUP).join(**fields)

    assert expected == delete_offsets(broker, 0, topics=("t", "u"))


def test_members_without_a_protocol_in_common_yet_may_subscribe_to_anything():
    """Before its first generation a group has no protocol, so its subscriptions are not known."""
    broker = broker_with({"t": 1}, group_initial_rebalance_delay_ms=3000)
    GroupClient(broker, GROUP).join(metadata=subscription("u"))

    assert [SUBSCRIBED] == delete_offsets(broker, 0)


def test_members_of_the_new_protocol_protect_their_topics():
    """Topics that a member names, or that match its expression, are subscribed; others are not."""
    broker = broker_with({"t": 1, "u": 1, "v": 1})
    members = Members(broker)
    members.join("a", topics=["t"])
    members.join("b", regex="u.*")

    assert [SUBSCRIBED, SUBSCRIBED, 0] == delete_offsets(broker, 0, topics=("t", "u", "v"))


def test_each_subscription_is_read_once(monkeypatch):
    """The cost is that of the members and the topics, not of each member for each topic."""
    topics = {f"t{number}": 1 for number in range(20)}
    broker = broker_with(topics)
    GroupClient(broker, GROUP).join(metadata=subscription("t"))
    read = []

    def count(metadata):
        read.append(metadata)
        return subscribed_topics(metadata)

    monkeypatch.setattr(classic_group, "subscribed_topics", count)

    assert [0] * len(topics) == delete_offsets(broker, 0, topics=tuple(topics))
    assert 1 == len(read)


def test_a_subscription_may_end_after_no_topics():
    """Nothing has to follow the number of topics if it is 0."""
    assert () == subscribed_topics(bytes(6))


@pytest.mark.parametrize("metadata", [b"", b"\0", b"\xff\xff" + bytes(4), b"\0\0\0\0\0\2\0\1t"])
def test_metadata_that_is_not_a_subscription_is_an_error(metadata):
    """Other bytes than those of a subscription raise DecodeError."""
    with pytest.raises(DecodeError):
        subscribed_topics(metadata)


def snapshot(broker):
    """Return everything that the broker knows of the group."""
    group = broker.cluster.groups.find(GROUP)
    return {
        name: getattr(group, name)
        for name in group.__slots__
        if name not in {"known_topics", "protocol_type"}
    }


def described(broker):
    request = ConsumerGroupDescribeRequest(group_ids=(GROUP,), include_authorized_operations=False)
    return ask(broker, request, 1)


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_a_group_survives_the_broker(tmp_path, how):
    """Members, epochs, assignments and expressions are read back from disk."""
    cluster = DurableCluster(tmp_path / "data")
    defaults = cluster.broker.settings.topic_defaults
    cluster.broker.cluster.create_topic("t", partitions=4, config=defaults)
    members = Members(cluster.broker)
    members.join("a", instance_id="i", rack_id="r", assignor="range")
    members.join("b", regex="t.*")
    members.beat("b", 3)
    members.beat("a", 2, instance_id="i")
    members.join("c")
    members.beat("c", -1)
    expected = snapshot(cluster.broker), described(cluster.broker)

    broker = getattr(cluster, how)()

    assert expected == (snapshot(broker), described(broker))
    members.broker = broker
    assert ErrorCode.UNKNOWN_MEMBER_ID == members.beat("c", 5)[0]
    assert 0 == members.beat("a", 2, instance_id="i")[0]
    cluster.now += SESSION + 1
    broker.tick(cluster.now)
    assert "Empty" == state(broker)
    broker.cluster.groups.delete(GROUP)
    assert cluster.restart().cluster.groups.find(GROUP) is None
    cluster.close()


def test_a_heartbeat_that_cannot_be_written_changes_nothing(tmp_path, monkeypatch):
    """On a full disk a member gets an error, and the group is what it was before."""
    cluster = DurableCluster(tmp_path / "data")
    defaults = cluster.broker.settings.topic_defaults
    cluster.broker.cluster.create_topic("t", partitions=4, config=defaults)
    members = Members(cluster.broker)
    members.join("a")
    before = snapshot(cluster.broker)
    with monkeypatch.context() as patch:
        FaultyDisk(patch).fail_after(0, Failure.READ_ONLY)
        assert ErrorCode.NOT_COORDINATOR == members.join("b")[0]
    assert before == snapshot(cluster.broker)
    assert (0, 3, []) == members.join("b")
    cluster.close()


def test_a_resolution_that_cannot_be_stored_is_made_again(tmp_path, monkeypatch, caplog):
    """The heartbeat that made it is answered, and a later one resolves the expressions again."""
    cluster = DurableCluster(tmp_path / "data")
    defaults = cluster.broker.settings.topic_defaults
    cluster.broker.cluster.create_topic("t", partitions=2, config=defaults)
    members = Members(cluster.broker)
    members.join("a", regex="t.*")
    members.beat("a", 1)
    cluster.broker.cluster.create_topic("t2", partitions=1, config=defaults)
    members.now += 11
    with monkeypatch.context() as patch:
        FaultyDisk(patch).fail_after(0, Failure.READ_ONLY)
        assert (0, 2, None) == members.beat("a", 2)
    assert "cannot store the resolved regular expressions of group g: " in caplog.text
    assert (0, 2, None) == members.beat("a", 2)
    error_code, epoch, assigned = members.beat("a", 2)
    assert (0, 3, [0, 0, 1]) == (error_code, epoch, sorted(assigned))
    cluster.close()


@pytest.mark.parametrize(("version", "has_message"), [(0, False), (5, False), (6, True)])
def test_another_coordinator_is_said_in_every_version(broker, monkeypatch, version, has_message):
    """The field for a message came with version 6 of DescribeGroups."""

    def refuse(*_):
        raise RefusedError(ErrorCode.NOT_COORDINATOR, "why")

    monkeypatch.setattr(broker.cluster, "check_group_coordinator", refuse)
    [group] = ask(broker, DescribeGroupsRequest(groups=(GROUP,)), version).groups
    assert (ErrorCode.NOT_COORDINATOR, "why" if has_message else None) == (
        group.error_code,
        group.error_message,
    )


def test_an_empty_group_changes_its_protocol_on_disk(tmp_path):
    """A group that was empty is read back with the protocol of its last member."""
    cluster = DurableCluster(tmp_path / "data")
    defaults = cluster.broker.settings.topic_defaults
    cluster.broker.cluster.create_topic("t", partitions=1, config=defaults)
    members, client = Members(cluster.broker), GroupClient(cluster.broker, GROUP)
    member = client.join().member_id
    client.sync(member, 1, {member: b""})
    client.commit({("t", 0): 5}, member_id=member, generation_id=1)
    client.leave((member, None))
    assert (0, 2, [0]) == members.join("a")
    expected = snapshot(cluster.broker)

    broker = cluster.restart()
    assert ("Stable", expected) == (state(broker), snapshot(broker))
    members.broker = client.broker = broker
    assert (0, 5) == client.offsets("t", 0)["t", 0]
    members.beat("a", -1)
    member = client.join().member_id
    client.sync(member, 1, {member: b""})

    assert [member] == list(cluster.restart().cluster.groups.find_classic(GROUP).members)
    cluster.close()


def last_values(broker):
    """Return the last value of each record of a group of the new protocol, by key."""
    found = {}

    def apply(batch):
        found.update((it.key, it.value) for it in batch.records)

    broker.cluster.groups._log.replay(apply)
    return {key: it for key, it in found.items() if version_of(key) in CONSUMER_GROUP_KEYS}


#: Requests of new members, and the errors with which they are refused.
REFUSED = [
    pytest.param({}, ErrorCode.MEMBER_ID_REQUIRED, id="without an id"),
    pytest.param({"protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, id="without protocols"),
]


@pytest.fixture
def durable(tmp_path):
    """Return a cluster with a topic on disk."""
    cluster = DurableCluster(tmp_path / "data")
    defaults = cluster.broker.settings.topic_defaults
    cluster.broker.cluster.create_topic("t", partitions=1, config=defaults)
    yield cluster
    cluster.close()


def emptied(cluster):
    """Create a group of the new protocol whose only member has committed an offset and left."""
    members = Members(cluster.broker)
    members.join("a")
    request = commit_request(GROUP, {("t", 0): 5}, member_id="a", generation_id=2)
    assert 0 == ask(cluster.broker, request, 9).topics[0].partitions[0].error_code
    members.beat("a", -1)


def kind(broker):
    """Return the type, the state and the offset of the group; None if there is no group."""
    group = broker.cluster.groups.find(GROUP)
    if group is None:
        return None
    return group.group_type, str(group.state), GroupClient(broker, GROUP).offsets("t", 0)["t", 0]


@pytest.mark.parametrize(("fields", "code"), REFUSED)
def test_a_refused_classic_member_has_changed_the_protocol_of_an_empty_group(durable, fields, code):
    """As in Kafka, the group is a classic one after the request, also after a restart."""
    emptied(durable)

    assert code == ask(durable.broker, join_request(GROUP, **fields), 9).error_code

    expected = ("Classic", "Empty", (0, 5))
    assert (expected, expected) == (kind(durable.broker), kind(durable.restart()))
    assert {None} == set(last_values(durable.broker).values())
    members = Members(durable.broker)
    assert (0, 2, [0]) == members.join("a")


@pytest.mark.parametrize(("fields", "code"), REFUSED)
def test_a_refused_classic_member_has_created_its_group(durable, fields, code):
    """A group that did not exist is an empty one after the request, also after a restart."""
    assert code == ask(durable.broker, join_request(GROUP, **fields), 9).error_code

    expected = ("Classic", "Empty", (0, -1))
    assert (expected, expected) == (kind(durable.broker), kind(durable.restart()))


@pytest.mark.parametrize("group_exists", [False, True])
def test_a_classic_member_that_has_an_id_creates_no_group(durable, group_exists):
    """A client that believes to be a member is told that it is not, and changes nothing."""
    if group_exists:
        emptied(durable)
    before = kind(durable.broker)

    answer = ask(durable.broker, join_request(GROUP, "a"), 9)

    assert ErrorCode.UNKNOWN_MEMBER_ID == answer.error_code
    assert (before, before) == (kind(durable.broker), kind(durable.restart()))
    assert group_exists == (before is not None)


@pytest.mark.parametrize("group_exists", [False, True])
def test_a_group_whose_new_protocol_cannot_be_written_stays_what_it_was(
    durable, monkeypatch, group_exists
):
    """On a full disk a new classic member must look up its coordinator again."""
    if group_exists:
        emptied(durable)
    before = kind(durable.broker)

    with monkeypatch.context() as patch:
        FaultyDisk(patch).fail_after(0, Failure.READ_ONLY)
        answer = ask(durable.broker, join_request(GROUP), 9)

    assert ErrorCode.NOT_COORDINATOR == answer.error_code
    assert (before, before) == (kind(durable.broker), kind(durable.restart()))
    assert group_exists == (before is not None)


def test_a_heartbeat_to_a_group_that_is_not_there_says_which(broker):
    """The message is Kafka's."""
    answer = ask(broker, consumer_heartbeat("missing", "a", 3))
    assert ErrorCode.GROUP_ID_NOT_FOUND == answer.error_code
    assert "Consumer group missing not found." == answer.error_message
