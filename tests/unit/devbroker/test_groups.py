"""Consumer groups as members see them: joining, sharing, leaving, falling silent, and offsets.

The expected codes are those of Apache Kafka 4.3.1.
"""

from __future__ import annotations

import pytest

from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.delete_groups import DeleteGroupsRequest
from spark_kafka_sink.protocol.messages.describe_groups import DescribeGroupsRequest
from spark_kafka_sink.protocol.messages.leave_group import LeaveGroupRequest
from spark_kafka_sink.protocol.messages.list_groups import ListGroupsRequest
from spark_kafka_sink.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tests.support.broker_requests import NOW, broker_with
from tests.support.group_client import (
    GroupClient,
    Waiting,
    commit_request,
    join_request,
    txn_commit_request,
)
from tests.support.transactional_client import END_TV1, END_TV2, TransactionalClient

OK = ErrorCode.NONE
REBALANCE = ErrorCode.REBALANCE_IN_PROGRESS
UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID
ILLEGAL = ErrorCode.ILLEGAL_GENERATION
FENCED = ErrorCode.FENCED_INSTANCE_ID


@pytest.fixture
def client():
    return GroupClient(broker_with({"t": 2}))


def client_of(**settings):
    return GroupClient(broker_with({"t": 2}, **settings))


def alone(client, **fields):
    """Make a group of one; give the member's id."""
    answer = client.join(**fields)
    assert (OK, 1) == (answer.error_code, answer.generation_id)
    member_id = answer.member_id
    instance_id = {"instance_id": fields["instance_id"]} if "instance_id" in fields else {}
    protocol = ("consumer", fields.get("protocols", ("range",))[0])
    client.sync(member_id, 1, {member_id: b"all"}, protocol=protocol, **instance_id)
    assert "Stable" == client.state()
    return member_id


def pair(client, **fields):
    """Make a group of two; give the ids of the leader and the follower."""
    leader = alone(client, **fields)
    joining = client.join(**fields)
    assert isinstance(joining, Waiting)
    assert REBALANCE == client.heartbeat(leader, 1)
    again = client.join(leader, **fields)
    follower = joining.answer().member_id
    assert (2, leader, 2) == (again.generation_id, again.leader, len(again.members))
    waiting = client.sync(follower, 2)
    assert isinstance(waiting, Waiting)
    client.sync(leader, 2, {leader: b"mine", follower: b"theirs"})
    assert b"theirs" == waiting.answer().assignment
    return leader, follower


class TestJoining:
    """How a member gets in."""

    def test_a_new_member_first_gets_an_id(self, client):
        """From version 4 on it must come back with the id it was given (KIP-394)."""
        answer = client.ask(join_request("g"), 4)

        assert ErrorCode.MEMBER_ID_REQUIRED == answer.error_code
        assert answer.member_id.startswith("test-")
        assert "Empty" == client.state()

    @pytest.mark.parametrize("version", range(4))
    def test_an_old_member_gets_in_at_once(self, client, version):
        """Up to version 3 it is a member with its first request."""
        fields = {} if version else {"rebalance_timeout_ms": -1}
        answer = client.ask(join_request("g", **fields), version)

        assert (OK, 1, "range", answer.member_id) == (
            answer.error_code,
            answer.generation_id,
            answer.protocol_name,
            answer.leader,
        )
        assert [b"m"] == [member.metadata for member in answer.members]

    def test_a_new_group_waits_for_more_members(self):
        """Each that comes within the delay prolongs it, up to the rebalance timeout."""
        client = client_of(group_initial_rebalance_delay_ms=3000)
        first = client.join()
        client.now += 2
        second = client.join()
        client.now += 2
        assert (None, None) == (first.answer(), second.answer())
        client.now += 2

        answers = first.answer(), second.answer()

        assert [1, 1] == [answer.generation_id for answer in answers]
        assert [2, 0] == [len(answer.members) for answer in answers]

    def test_a_rebalance_waits_for_all_members(self, client):
        """The others are told to join again, and whoever does not is out after the timeout."""
        leader, follower = pair(client)
        third = client.join()
        client.now += 5
        assert REBALANCE == client.heartbeat(follower, 2)
        assert REBALANCE == client.heartbeat(leader, 2)
        again = client.join(follower)
        assert (None, None) == (third.answer(), again.answer())
        for _ in range(3):
            client.now += 9
            client.heartbeat(leader, 2)

        assert {3} == {third.answer().generation_id, again.answer().generation_id}
        assert again.answer().leader == follower
        assert UNKNOWN == client.heartbeat(leader, 3)

    def test_members_must_share_a_protocol(self, client):
        """One that has none of the others' is refused; the most popular one is chosen."""
        alone(client, protocols=("a", "b"))

        refused = client.join(protocols=("c",))
        other_type = client.join(protocol_type="connect", protocols=("a",))
        joining = client.join(protocols=("b",))

        inconsistent = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert (inconsistent, inconsistent) == (refused.error_code, other_type.error_code)
        assert isinstance(joining, Waiting)

    @pytest.mark.parametrize("fields", [{"protocols": ()}, {"protocol_type": ""}])
    def test_a_member_must_have_a_protocol(self, client, fields):
        """The first member of a group, too."""
        assert ErrorCode.INCONSISTENT_GROUP_PROTOCOL == client.join(**fields).error_code

    @pytest.mark.parametrize("session_timeout_ms", [5_999, 1_800_001])
    def test_session_timeouts_are_bounded(self, client, session_timeout_ms):
        """By group.min.session.timeout.ms and group.max.session.timeout.ms."""
        answer = client.join(session_timeout_ms=session_timeout_ms)

        assert ErrorCode.INVALID_SESSION_TIMEOUT == answer.error_code
        assert None is client.state()

    def test_a_full_group_takes_nobody(self):
        """group.max.size bounds it; those who are in may join again."""
        client = client_of(group_max_size=1)
        leader = alone(client)

        refused = client.join()

        assert (ErrorCode.GROUP_MAX_SIZE_REACHED, "") == (refused.error_code, refused.member_id)
        assert OK == client.join(leader).error_code

    def test_an_unknown_member_is_refused(self, client):
        """In a group that does not exist, and in one that does."""
        before = client.join("nobody")
        alone(client)
        after = client.join("nobody")

        assert [(UNKNOWN, "nobody")] * 2 == [
            (answer.error_code, answer.member_id) for answer in (before, after)
        ]

    @pytest.mark.parametrize(("version", "expected"), [(6, ""), (7, None)])
    def test_an_error_names_no_protocol(self, client, version, expected):
        """By an empty name, or by null where that can be said."""
        assert expected == client.ask(join_request("g", "nobody"), version).protocol_name

    def test_a_group_must_have_a_name(self, client):
        """No API of members takes an empty one."""
        client.group_id = ""
        bad = ErrorCode.INVALID_GROUP_ID

        assert bad == client.join().error_code
        assert bad == client.sync("m", 1).error_code
        assert bad == client.heartbeat("m", 1)
        assert bad == client.ask(LeaveGroupRequest(group_id="")).error_code

    def test_a_follower_that_joins_again_changes_nothing(self, client):
        """It may have missed the answer; a leader that does so wants a rebalance."""
        leader, follower = pair(client)

        again = client.join(follower)

        assert (OK, 2, ()) == (again.error_code, again.generation_id, again.members)
        assert isinstance(client.join(leader), Waiting)
        assert "PreparingRebalance" == client.state()

    def test_new_metadata_is_a_rebalance(self, client):
        """A follower that subscribes to something else makes all join again."""
        _, follower = pair(client)

        assert isinstance(client.join(follower, metadata=b"other"), Waiting)

    def test_an_id_that_is_not_used_is_forgotten(self, client):
        """It holds up a rebalance for a session timeout at most."""
        leader = alone(client)
        client.ask(join_request("g"), 9)
        joining = client.join(leader)
        assert isinstance(joining, Waiting)
        client.now += 10

        assert 2 == joining.answer().generation_id


class TestSharing:
    """How the assignment gets to the members."""

    def test_members_get_their_parts(self, client):
        """Whoever asks before the leader waits, whoever asks after gets it at once."""
        _, follower = pair(client)

        assert (OK, b"theirs") == (
            client.sync(follower, 2).error_code,
            client.sync(follower, 2).assignment,
        )

    def test_a_rebalance_ends_the_wait(self, client):
        """A member that waits for its part is told to join again."""
        _, follower = pair(client)
        client.join(follower, metadata=b"x")
        leader = client.join(client.broker.cluster.groups.find("g").leader_id)
        waiting = client.sync(follower, 3)
        assert isinstance(waiting, Waiting)

        client.join()

        assert leader.error_code == OK
        assert REBALANCE == waiting.answer().error_code
        assert REBALANCE == client.sync(follower, 3).error_code

    @pytest.mark.parametrize(
        ("member_id", "generation_id", "protocol", "expected"),
        [
            (None, 2, ("consumer", "range"), ILLEGAL),
            ("nobody", 1, ("consumer", "range"), UNKNOWN),
            (None, 1, ("connect", "range"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
            (None, 1, ("consumer", "sticky"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
            (None, 1, (None, "range"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ],
    )
    def test_only_members_of_the_generation_get_a_part(
        self, client, member_id, generation_id, protocol, expected
    ):
        """With the protocol that the group uses."""
        member = alone(client)

        answer = client.sync(member_id or member, generation_id, protocol=protocol)

        assert expected == answer.error_code

    def test_a_group_that_is_not_there_has_no_parts(self, client):
        """Nor has one without members."""
        before = client.sync("m", 1)
        client.commit({("t", 0): 1})
        after = client.sync("m", 1)

        assert [UNKNOWN, UNKNOWN] == [before.error_code, after.error_code]

    def test_a_member_that_never_asks_for_its_part_is_removed(self, client):
        """After the rebalance timeout, though its heart beats."""
        leader = alone(client)
        joining = client.join()
        client.join(leader)
        other = joining.answer().member_id
        client.sync(leader, 2, {leader: b"a"})
        for _ in range(4):
            client.now += 8
            codes = client.heartbeat(leader, 2), client.heartbeat(other, 2)

        assert (REBALANCE, UNKNOWN) == codes


class TestLeaving:
    """How a member gets out."""

    def test_a_member_that_leaves_is_missed(self, client):
        """The others are to join again."""
        leader, follower = pair(client)

        assert [OK] == client.leave((leader, None))

        assert (UNKNOWN, REBALANCE) == (client.heartbeat(leader, 2), client.heartbeat(follower, 2))
        again = client.join(follower)
        assert (3, follower) == (again.generation_id, again.leader)

    def test_the_last_one_leaves_an_empty_group(self, client):
        """It keeps its generation, and is still there."""
        member = alone(client)
        client.leave((member, None))

        assert "Empty" == client.state()
        assert UNKNOWN == client.join(member).error_code
        assert 3 == client.join().generation_id

    def test_who_is_not_there_cannot_leave(self, client):
        """Neither from a group nor from none."""
        before = client.leave(("nobody", None), ("", "static"))
        alone(client)
        after = client.leave(("nobody", None), ("", "static"))

        assert [[UNKNOWN, UNKNOWN]] * 2 == [before, after]

    def test_old_members_leave_one_at_a_time(self, client):
        """Up to version 2 the answer is the one member's."""
        member = alone(client)
        request = LeaveGroupRequest(group_id="g", member_id=member)

        assert [OK, UNKNOWN] == [client.ask(request, 2).error_code for _ in range(2)]

    def test_an_id_that_was_never_used_can_leave(self, client):
        """A client that gives up joining says so."""
        pending = client.ask(join_request("g"), 9).member_id

        assert [OK] == client.leave((pending, None))

    def test_a_silent_member_is_removed(self, client):
        """After its session timeout, unless a heartbeat comes in time."""
        leader, follower = pair(client)
        client.now += 8
        assert OK == client.heartbeat(leader, 2)
        client.now += 8

        assert (REBALANCE, UNKNOWN) == (client.heartbeat(leader, 2), client.heartbeat(follower, 2))

    def test_a_member_that_waits_need_not_beat(self, client):
        """While the coordinator owes it an answer it cannot fall silent."""
        leader = alone(client, rebalance_timeout_ms=60_000)
        joining = client.join(rebalance_timeout_ms=60_000)
        waiting = client.join(leader, rebalance_timeout_ms=60_000)
        assert OK == waiting.error_code
        follower = client.sync(joining.answer().member_id, 2)
        client.now += 11

        assert UNKNOWN == client.heartbeat(leader, 2)
        assert REBALANCE == follower.answer().error_code

    def test_a_heartbeat_must_be_of_the_generation(self, client):
        """And of a group that exists."""
        assert UNKNOWN == client.heartbeat("m", 1)
        member = alone(client)

        assert (ILLEGAL, OK) == (client.heartbeat(member, 7), client.heartbeat(member, 1))


class TestStaticMembers:
    """Members with a group.instance.id (KIP-345)."""

    def test_a_restarted_member_takes_its_own_place(self, client):
        """No rebalance, a new id, and the old one is fenced."""
        member = alone(client, instance_id="i")

        again = client.join(instance_id="i")

        assert (OK, 1, True) == (again.error_code, again.generation_id, again.skip_assignment)
        assert member != again.member_id
        assert b"all" == client.sync(again.member_id, 1, instance_id="i").assignment
        assert FENCED == client.heartbeat(member, 1, instance_id="i")
        assert FENCED == client.join(member, instance_id="i").error_code
        assert [FENCED] == client.leave((member, "i"))

    def test_an_old_client_does_not_learn_that_it_leads(self, client):
        """Up to version 8 the answer names the leader that was, so that it assigns nothing."""
        member = alone(client, instance_id="i")

        again = client.join(instance_id="i", version=8)

        assert (member, ()) == (again.leader, again.members)

    def test_a_restart_while_a_rebalance_is_on(self, client):
        """The one that still waits is fenced, the new one waits in its place."""
        alone(client, instance_id="i")
        other = client.join()
        waiting = client.join(instance_id="i")
        answer = other.answer()
        assert (2, 2) == (answer.generation_id, waiting.generation_id)
        pending = client.sync(answer.member_id, 2)

        again = client.join(instance_id="i")

        assert isinstance(again, Waiting)
        assert REBALANCE == pending.answer().error_code

    def test_an_administrator_removes_it_by_name(self, client):
        """Without knowing its id."""
        member = alone(client, instance_id="i")

        assert [OK] == client.leave(("", "i"))
        assert UNKNOWN == client.heartbeat(member, 1, instance_id="i")


class TestOffsets:
    """How far the group has read."""

    def test_offsets_are_kept(self, client):
        """By anyone while the group has no members; others are -1."""
        assert [OK, OK] == client.commit({("t", 0): 5, ("t", 1): 6})
        assert [OK] == client.commit({("t", 0): 7})

        assert {("t", 0): (OK, 7), ("t", 1): (OK, 6), ("t", 9): (OK, -1)} == client.offsets(
            "t", 0, 1, 9
        )
        assert {("t", 0): (OK, 7), ("t", 1): (OK, 6)} == client.offsets(None)
        client.group_id = "other"
        assert {("t", 0): (OK, -1)} == client.offsets("t", 0)

    @pytest.mark.parametrize("version", range(1, 8))
    def test_old_clients_ask_about_one_group(self, client, version):
        """Up to version 7 the group is the request's own; null topics (2+) are all."""
        client.commit({("t", 1): 6})
        topics = (OffsetFetchRequestTopic(name="t", partition_indexes=(0, 1)),)
        request = OffsetFetchRequest(group_id="g", topics=topics)

        answer = client.ask(request, version)

        assert [(0, -1), (1, 6)] == [
            (p.partition_index, p.committed_offset) for p in answer.topics[0].partitions
        ]
        if version >= 2:
            everything = client.ask(OffsetFetchRequest(group_id="g", topics=None), version)
            assert [1] == [p.partition_index for p in everything.topics[0].partitions]

    def test_topics_are_named_by_id_from_version_10_on(self, client):
        """An id that is not known is UNKNOWN_TOPIC_ID, in both directions."""
        topic_id = client.broker.cluster.topic("t").topic_id
        committed = client.ask(commit_request("g", {("t", 1): 6}), 10)
        request = commit_request("g", {("t", 1): 6})
        known = type(request.topics[0])(topic_id=topic_id, partitions=request.topics[0].partitions)
        client.ask(type(request)(group_id="g", member_id="", topics=(known,)), 10)

        answer = client.ask(
            OffsetFetchRequest(
                groups=(
                    OffsetFetchRequestGroup(
                        group_id="g",
                        topics=(
                            OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=(1,)),
                            OffsetFetchRequestTopics(partition_indexes=(1,)),
                        ),
                    ),
                    OffsetFetchRequestGroup(group_id="g", topics=None),
                )
            ),
            10,
        )

        unknown = ErrorCode.UNKNOWN_TOPIC_ID
        assert unknown == committed.topics[0].partitions[0].error_code
        assert [[(OK, 6)], [(unknown, -1)]] == [
            [(p.error_code, p.committed_offset) for p in topic.partitions]
            for topic in answer.groups[0].topics
        ]
        assert [topic_id] == [topic.topic_id for topic in answer.groups[1].topics]

    def test_only_members_commit_where_there_are_some(self, client):
        """Of the current generation, and not before the assignment is known."""
        member = alone(client)

        assert [UNKNOWN] == client.commit({("t", 0): 1})
        assert [UNKNOWN] == client.commit({("t", 0): 1}, member_id="nobody", generation_id=1)
        assert [ILLEGAL] == client.commit({("t", 0): 1}, member_id=member, generation_id=0)
        assert [OK] == client.commit({("t", 0): 1}, member_id=member, generation_id=1)

    def test_a_commit_in_the_middle_of_a_rebalance_is_refused(self, client):
        """A member that has joined and not been assigned anything commits nothing."""
        answer = client.join()

        assert [REBALANCE] == client.commit(
            {("t", 0): 1}, member_id=answer.member_id, generation_id=1
        )

    def test_a_commit_is_a_heartbeat(self, client):
        """It prolongs the member's session."""
        member = alone(client)
        for _ in range(3):
            client.now += 8
            client.commit({("t", 0): 1}, member_id=member, generation_id=1)

        assert OK == client.heartbeat(member, 1)

    @pytest.mark.parametrize(
        ("version", "expected"), [(8, ILLEGAL), (9, ErrorCode.GROUP_ID_NOT_FOUND)]
    )
    def test_a_generation_of_no_group_is_refused(self, client, version, expected):
        """In the words of the version."""
        request = commit_request("g", {("t", 0): 1}, member_id="m", generation_id=3)

        assert expected == client.ask(request, version).topics[0].partitions[0].error_code

    def test_bad_partitions_are_refused_by_themselves(self, client):
        """Unknown ones, and those with too much metadata; the others are taken."""
        missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

        assert [OK, missing, missing] == client.commit(
            {("t", 0): 1, ("t", 9): 1, ("no-such", 0): 1}
        )
        assert [ErrorCode.OFFSET_METADATA_TOO_LARGE] == client.commit(
            {("t", 0): 2}, metadata="x" * 4097
        )
        assert {("t", 0): (OK, 1)} == client.offsets("t", 0)


class TestOffsetsOfTransactions:
    """TxnOffsetCommit, and what others see of it."""

    @pytest.fixture(params=[2, 0], ids=["TV2", "TV1"])
    def producer(self, request):
        """Give a transactional producer of a cluster with and without transaction.version 2."""
        producer = TransactionalClient(broker_with({"t": 2}, transaction_version=request.param))
        producer.version = 5 if request.param == 2 else 4
        return producer

    def commit(self, producer, identity, *, group_id="g", version=None, offset=5, **fields):
        """Commit an offset with the transaction; give the error code."""
        request = txn_commit_request(group_id, identity, {("t", 0): offset}, **fields)
        answer = producer.ask(request, version or producer.version)
        return answer.topics[0].partitions[0].error_code

    def begin(self, producer):
        """Begin a transaction with the group in it; give the identity."""
        _, identity = producer.init()
        if producer.version < 5:
            assert OK == producer.add_offsets(identity, "g")
        return identity

    @pytest.mark.parametrize("committed", [True, False])
    def test_offsets_count_when_the_transaction_is_committed(self, producer, committed):
        """Until then the old ones are told, or none to those who want stable ones."""
        client = GroupClient(producer.broker)
        client.commit({("t", 0): 1})
        identity = self.begin(producer)

        assert OK == self.commit(producer, identity)
        before = client.offsets("t", 0), client.offsets("t", 0, require_stable=True)
        version = END_TV2 if producer.version == 5 else END_TV1
        assert OK == producer.end(identity, committed=committed, version=version)[0]

        unstable = ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert ({("t", 0): (OK, 1)}, {("t", 0): (unstable, -1)}) == before
        expected = {("t", 0): (OK, 5 if committed else 1)}
        assert expected == client.offsets("t", 0, require_stable=True)

    @pytest.mark.parametrize(
        ("version", "expected"),
        [(3, ErrorCode.INVALID_TXN_STATE), (4, ErrorCode.TRANSACTION_ABORTABLE)],
    )
    def test_a_group_must_be_added_first(self, producer, version, expected):
        """By clients before TV2; the newest ones need not."""
        _, identity = producer.init()

        assert expected == self.commit(producer, identity, version=version)

    def test_a_fenced_producer_commits_nothing(self, producer):
        """Its epoch is too old."""
        identity = self.begin(producer)
        producer.init()
        producer.init()

        assert ErrorCode.INVALID_PRODUCER_EPOCH == self.commit(producer, identity)

    def test_members_must_be_of_the_generation(self, producer):
        """Whoever says who it is must be right; the others are trusted (KIP-447)."""
        client = GroupClient(producer.broker)
        identity = self.begin(producer)
        assert ILLEGAL == self.commit(producer, identity, member_id="m", generation_id=1)
        member = alone(client)

        assert UNKNOWN == self.commit(producer, identity, member_id="m", generation_id=1)
        assert ILLEGAL == self.commit(producer, identity, member_id=member, generation_id=2)
        assert OK == self.commit(producer, identity, member_id=member, generation_id=1)
        assert OK == self.commit(producer, identity)

    def test_bad_requests_are_refused(self, producer):
        """No group, no partition, no transactional id."""
        identity = self.begin(producer)

        assert ErrorCode.INVALID_GROUP_ID == self.commit(producer, identity, group_id="")
        request = txn_commit_request("g", identity, {("t", 9): 1})
        answer = producer.ask(request, producer.version)
        missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert missing == answer.topics[0].partitions[0].error_code
        stranger = self.commit(producer, identity, group_id="h", transactional_id="nobody")
        assert ErrorCode.INVALID_PRODUCER_ID_MAPPING == stranger


class TestAdministration:
    """What administrators see and do."""

    def test_groups_are_listed(self, client):
        """By state and type, in any case of letters."""
        alone(client)
        client.group_id = "h"
        client.commit({("t", 0): 1})

        def listed(states=(), types=()):
            request = ListGroupsRequest(states_filter=states, types_filter=types)
            return [
                (group.group_id, group.group_state, group.protocol_type, group.group_type)
                for group in client.ask(request).groups
            ]

        stable, empty = ("g", "Stable", "consumer", "Classic"), ("h", "Empty", "", "Classic")
        assert [stable, empty] == listed()
        assert [stable] == listed(states=("stable", "Dead"))
        assert [stable, empty] == listed(types=("classic",))
        assert [] == listed(types=("consumer",))

    def test_groups_are_described(self, client):
        """Members with what they read, while the group is stable."""
        member = alone(client)

        (group,) = client.ask(
            DescribeGroupsRequest(groups=("g",), include_authorized_operations=True)
        ).groups

        assert (OK, "Stable", "consumer", "range", 0b110101001000) == (
            group.error_code,
            group.group_state,
            group.protocol_type,
            group.protocol_data,
            group.authorized_operations,
        )
        assert [(member, "test", b"m", b"all")] == [
            (m.member_id, m.client_id, m.member_metadata, m.member_assignment)
            for m in group.members
        ]
        client.join()
        (group,) = client.ask(DescribeGroupsRequest(groups=("g",))).groups
        assert ("PreparingRebalance", "", -(2**31)) == (
            group.group_state,
            group.protocol_data,
            group.authorized_operations,
        )
        assert {b""} == {m.member_assignment for m in group.members}

    @pytest.mark.parametrize(("version", "expected"), [(5, OK), (6, ErrorCode.GROUP_ID_NOT_FOUND)])
    def test_a_group_that_is_not_there_is_dead(self, client, version, expected):
        """From version 6 on with an error as well (KIP-1043)."""
        (group,) = client.ask(DescribeGroupsRequest(groups=("g",)), version).groups

        assert (expected, "Dead") == (group.error_code, group.group_state)

    def test_groups_without_members_can_be_deleted(self, client):
        """With their offsets."""
        alone(client)

        def delete(*names):
            results = client.ask(DeleteGroupsRequest(groups_names=names)).results
            return [(result.group_id, result.error_code) for result in results]

        assert [("g", ErrorCode.NON_EMPTY_GROUP), ("h", ErrorCode.GROUP_ID_NOT_FOUND)] == delete(
            "g", "h"
        )
        client.group_id = "h"
        client.commit({("t", 0): 1})
        assert [("h", OK)] == delete("h")
        assert {("t", 0): (OK, -1)} == client.offsets("t", 0)


def test_an_idle_group_of_nobody_needs_no_time():
    """An empty group has nothing to be done later."""
    client = client_of()
    member = alone(client)
    client.leave((member, None))

    assert None is client.broker.tick(NOW + 1)
