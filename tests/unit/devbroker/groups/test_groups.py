"""Consumer groups of the embedded broker: joining, syncing and leaving."""

from __future__ import annotations

import pytest

from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.leave_group import LeaveGroupRequest
from tests.support.devbroker.group_client import Waiting, join_request
from tests.support.devbroker.groups_of_devbroker import (
    ILLEGAL,
    OK,
    REBALANCE,
    UNKNOWN,
    alone,
    client_of,
)

FENCED = ErrorCode.FENCED_INSTANCE_ID


def pair(client, **fields):
    """Build a group of two and return the ids of the leader and the follower."""
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


@pytest.fixture
def client():
    return client_of()


class TestJoining:
    """How a member joins a group."""

    def test_a_new_member_first_gets_an_id(self, client):
        """Since version 4 a member must join again with the id it was given (KIP-394)."""
        answer = client.ask(join_request("g"), 4)

        assert ErrorCode.MEMBER_ID_REQUIRED == answer.error_code
        assert answer.member_id.startswith("test-")
        assert "Empty" == client.state()

    @pytest.mark.parametrize("version", range(4))
    def test_an_old_member_gets_in_at_once(self, client, version):
        """Up to version 3 the first request makes it a member."""
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
        """Each member that joins within the delay extends it, up to the rebalance timeout."""
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

    def test_a_new_group_with_one_member_waits_once(self):
        """Its only member gets its generation after the delay."""
        client = client_of(group_initial_rebalance_delay_ms=3000)
        waiting = client.join()
        client.now += 2.9
        assert None is waiting.answer()
        client.now += 0.1

        assert 1 == waiting.answer().generation_id

    def test_a_member_of_a_full_group_may_ask_again_while_it_waits(self):
        """The member keeps its place, and no other member is admitted."""
        client = client_of(group_initial_rebalance_delay_ms=3000, group_max_size=2)
        first = client.join()
        client.join()
        full = ErrorCode.GROUP_MAX_SIZE_REACHED

        assert full == client.join().error_code
        assert isinstance(client.join(first.request.member_id), Waiting)

    def test_a_rebalance_waits_for_all_members(self, client):
        """The others must join again, and a member that does not is removed after the timeout."""
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
        """A member that shares no protocol with the others, or has another type, is refused."""
        alone(client, protocols=("a", "b"))

        refused = client.join(protocols=("c",))
        other_type = client.join(protocol_type="connect", protocols=("a",))
        joining = client.join(protocols=("b",))

        inconsistent = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert (inconsistent, inconsistent) == (refused.error_code, other_type.error_code)
        assert isinstance(joining, Waiting)

    @pytest.mark.parametrize("fields", [{"protocols": ()}, {"protocol_type": ""}])
    def test_a_member_must_have_a_protocol(self, client, fields):
        """This applies to the first member of a group too."""
        assert ErrorCode.INCONSISTENT_GROUP_PROTOCOL == client.join(**fields).error_code

    @pytest.mark.parametrize(
        ("protocols", "code"), [(100, OK), (101, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)]
    )
    def test_a_member_may_have_a_hundred_protocols(self, client, protocols, code):
        """Kafka accepts any number; here all groups share one thread."""
        answer = client.join(protocols=tuple(str(n) for n in range(protocols)))

        assert code == answer.error_code

    def test_a_new_member_is_forgotten_after_five_minutes(self, client):
        """It does not know its id yet, and would come back under another one."""
        leader = alone(client, rebalance_timeout_ms=600_000)
        joining = client.join(rebalance_timeout_ms=600_000)
        for _ in range(59):
            client.now += 5
            client.heartbeat(leader, 1)
        client.now += 4
        assert None is joining.answer()
        client.now += 1

        assert UNKNOWN == joining.answer().error_code

    @pytest.mark.parametrize("session_timeout_ms", [6_000, 1_800_000])
    def test_session_timeouts_may_be_at_their_bounds(self, client, session_timeout_ms):
        """Both bounds are included."""
        assert OK == client.join(session_timeout_ms=session_timeout_ms).error_code

    @pytest.mark.parametrize("session_timeout_ms", [5_999, 1_800_001])
    def test_session_timeouts_are_bounded(self, client, session_timeout_ms):
        """The bounds are group.min.session.timeout.ms and group.max.session.timeout.ms."""
        answer = client.join(session_timeout_ms=session_timeout_ms)

        assert ErrorCode.INVALID_SESSION_TIMEOUT == answer.error_code
        assert None is client.state()

    def test_a_full_group_accepts_no_new_member(self):
        """group.max.size limits a group; its members may join again."""
        client = client_of(group_max_size=1)
        leader = alone(client)

        refused = client.join()

        assert (ErrorCode.GROUP_MAX_SIZE_REACHED, "") == (refused.error_code, refused.member_id)
        assert OK == client.join(leader).error_code

    def test_an_unknown_member_is_refused(self, client):
        """This holds for a group that does not exist and for one that does."""
        before = client.join("nobody")
        alone(client)
        after = client.join("nobody")

        assert [(UNKNOWN, "nobody")] * 2 == [
            (answer.error_code, answer.member_id) for answer in (before, after)
        ]

    @pytest.mark.parametrize(("version", "expected"), [(6, ""), (7, None)])
    def test_an_error_names_no_protocol(self, client, version, expected):
        """The protocol name is empty, or null in versions that allow it."""
        assert expected == client.ask(join_request("g", "nobody"), version).protocol_name

    def test_a_group_must_have_a_name(self, client):
        """Every API for members refuses an empty group id."""
        client.group_id = ""
        bad = ErrorCode.INVALID_GROUP_ID

        assert bad == client.join().error_code
        assert bad == client.sync("m", 1).error_code
        assert bad == client.heartbeat("m", 1)
        assert bad == client.ask(LeaveGroupRequest(group_id="")).error_code

    def test_a_follower_that_joins_again_changes_nothing(self, client):
        """It may have missed the response; a leader that joins again causes a rebalance."""
        leader, follower = pair(client)

        again = client.join(follower)

        assert (OK, 2, ()) == (again.error_code, again.generation_id, again.members)
        assert isinstance(client.join(leader), Waiting)
        assert "PreparingRebalance" == client.state()

    def test_new_metadata_is_a_rebalance(self, client):
        """A follower with a new subscription makes all members join again."""
        _, follower = pair(client)

        assert isinstance(client.join(follower, metadata=b"other"), Waiting)

    def test_an_id_that_is_not_used_is_forgotten(self, client):
        """An unused id delays a rebalance for at most a session timeout."""
        leader = alone(client)
        client.ask(join_request("g"), 9)
        joining = client.join(leader)
        assert isinstance(joining, Waiting)
        client.now += 10

        assert 2 == joining.answer().generation_id


class TestSharing:
    """How members get their assignments."""

    def test_members_get_their_parts(self, client):
        """A member that syncs before the leader waits; one that syncs later is answered at once."""
        _, follower = pair(client)

        assert (OK, b"theirs") == (
            client.sync(follower, 2).error_code,
            client.sync(follower, 2).assignment,
        )

    def test_a_rebalance_ends_the_wait(self, client):
        """A member that waits for its assignment has to join again."""
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
        """A member must also name the protocol that the group uses."""
        member = alone(client)

        answer = client.sync(member_id or member, generation_id, protocol=protocol)

        assert expected == answer.error_code

    def test_an_unknown_group_has_no_assignment(self, client):
        """Neither has a group without members."""
        before = client.sync("m", 1)
        client.commit({("t", 0): 1})
        after = client.sync("m", 1)

        assert [UNKNOWN, UNKNOWN] == [before.error_code, after.error_code]

    def test_a_member_that_never_asks_for_its_part_is_removed(self, client):
        """It is removed after the rebalance timeout, although it sends heartbeats."""
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
    """How a member leaves a group."""

    def test_a_member_that_leaves_is_missed(self, client):
        """The other members have to join again."""
        leader, follower = pair(client)

        assert [OK] == client.leave((leader, None))

        assert (UNKNOWN, REBALANCE) == (client.heartbeat(leader, 2), client.heartbeat(follower, 2))
        again = client.join(follower)
        assert (3, follower) == (again.generation_id, again.leader)

    def test_the_last_one_leaves_an_empty_group(self, client):
        """The empty group still exists and keeps its generation."""
        member = alone(client)
        client.leave((member, None))

        assert "Empty" == client.state()
        assert UNKNOWN == client.join(member).error_code
        assert 3 == client.join().generation_id

    def test_an_unknown_member_cannot_leave(self, client):
        """An unknown member cannot leave, whether or not the group exists."""
        before = client.leave(("nobody", None), ("", "static"))
        alone(client)
        after = client.leave(("nobody", None), ("", "static"))

        assert [[UNKNOWN, UNKNOWN]] * 2 == [before, after]

    def test_old_members_leave_one_at_a_time(self, client):
        """Up to version 2 a request removes one member, and the response has its error code."""
        member = alone(client)
        request = LeaveGroupRequest(group_id="g", member_id=member)

        assert [OK, UNKNOWN] == [client.ask(request, 2).error_code for _ in range(2)]

    def test_an_id_that_was_never_used_can_leave(self, client):
        """A client that stops joining may give its id back."""
        pending = client.ask(join_request("g"), 9).member_id

        assert [OK] == client.leave((pending, None))

    def test_a_silent_member_is_removed(self, client):
        """It is removed after its session timeout unless it sends a heartbeat in time."""
        leader, follower = pair(client)
        client.now += 8
        assert OK == client.heartbeat(leader, 2)
        client.now += 8

        assert (REBALANCE, UNKNOWN) == (client.heartbeat(leader, 2), client.heartbeat(follower, 2))

    def test_a_member_that_waits_need_not_beat(self, client):
        """A member that waits for a response of the coordinator does not time out."""
        leader = alone(client, rebalance_timeout_ms=60_000)
        joining = client.join(rebalance_timeout_ms=60_000)
        waiting = client.join(leader, rebalance_timeout_ms=60_000)
        assert OK == waiting.error_code
        follower = client.sync(joining.answer().member_id, 2)
        client.now += 11

        assert UNKNOWN == client.heartbeat(leader, 2)
        assert REBALANCE == follower.answer().error_code

    def test_a_heartbeat_must_be_of_the_generation(self, client):
        """The group must exist too."""
        assert UNKNOWN == client.heartbeat("m", 1)
        member = alone(client)

        assert (ILLEGAL, OK) == (client.heartbeat(member, 7), client.heartbeat(member, 1))


class TestStaticMembers:
    """Members with a group.instance.id (KIP-345)."""

    def test_a_restarted_static_member_keeps_its_place(self, client):
        """It gets a new id without a rebalance, and the old id is fenced."""
        member = alone(client, instance_id="i")

        again = client.join(instance_id="i")

        assert (OK, 1, True) == (again.error_code, again.generation_id, again.skip_assignment)
        assert member != again.member_id
        assert b"all" == client.sync(again.member_id, 1, instance_id="i").assignment
        assert FENCED == client.heartbeat(member, 1, instance_id="i")
        assert FENCED == client.join(member, instance_id="i").error_code
        assert [FENCED] == client.leave((member, "i"))

    def test_an_old_client_does_not_learn_that_it_leads(self, client):
        """Up to version 8 the response names the old leader, so that the client assigns nothing."""
        member = alone(client, instance_id="i")

        again = client.join(instance_id="i", version=8)

        assert (member, ()) == (again.leader, again.members)

    def test_a_restart_while_a_rebalance_is_on(self, client):
        """The waiting request is fenced, and the new one waits in its place."""
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
        """The administrator does not need to know the member id."""
        member = alone(client, instance_id="i")

        assert [OK] == client.leave(("", "i"))
        assert UNKNOWN == client.heartbeat(member, 1, instance_id="i")
