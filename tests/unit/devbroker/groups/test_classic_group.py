"""The rules of a group that need no clock: its members, its leader and their permissions."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker.base.refusal import IllegalTransitionError, RefusedError
from spark_kafka_sink.devbroker.base.timers import Timers
from spark_kafka_sink.devbroker.groups.classic_group import ClassicGroup, GroupState, Member
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.join_group import (
    JoinGroupRequestProtocol,
    JoinGroupResponseMember,
)

HERE = object()
EMPTY, PREPARING, COMPLETING, STABLE, DEAD = (
    GroupState.EMPTY,
    GroupState.PREPARING_REBALANCE,
    GroupState.COMPLETING_REBALANCE,
    GroupState.STABLE,
    GroupState.DEAD,
)
UNKNOWN, FENCED = ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID


def protocols_of(*names):
    """Return protocols with metadata made from their names."""
    return tuple(
        JoinGroupRequestProtocol(name=name, metadata=f"for {name}".encode()) for name in names
    )


def member_of(member_id, *, protocols=("range",), **fields):
    """Return a member that supports the given protocols."""
    return Member(
        **{
            "member_id": member_id,
            "group_instance_id": None,
            "client_id": "c",
            "client_host": "/127.0.0.1",
            "rebalance_timeout_ms": 30_000,
            "session_timeout_ms": 10_000,
            "protocols": protocols_of(*protocols),
        }
        | fields
    )


def group_with(*members, **fields):
    """Return a group that these members have joined in this order."""
    group = ClassicGroup("g", **fields)
    for member in members:
        group.add(member, "consumer")
    return group


def timer():
    """Return a timer that has not expired."""
    return Timers().schedule(1.0, lambda now: None)


def refusal_of(check, *args, **fields):
    """Return the error code that a check refuses with, or None."""
    try:
        check(*args, **fields)
    except RefusedError as refused:
        return refused.error_code
    return None


def group_of(**joined):
    """Return a group led by `b`, whose members have joined or not."""
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
    """Static members may be absent when their group begins a generation."""
    group = group_of(**joined)
    assert (elected, leader) == (group.elect_joined_leader(), group.leader_id)


class TestMembers:
    """The members of a group, and the state kept for each."""

    def test_a_new_group_has_no_members(self):
        """A new group has generation 0 and waits for no members."""
        group = ClassicGroup("g")

        assert (EMPTY, EMPTY, 0) == (group.state, group.previous_state, group.generation_id)
        assert (None, None, None) == (group.protocol_type, group.protocol_name, group.leader_id)
        assert ({}, {}, {}, set()) == (
            group.members,
            group.static_members,
            group.pending_members,
            group.pending_sync,
        )
        assert (False, None, None) == (group.new_member_added, group.join_timer, group.sync_timer)
        assert (0, 0, True) == (
            group.rebalance_timeout_ms,
            group.awaiting_join,
            group.all_have_joined,
        )

    def test_a_member_begins_as_a_new_one(self):
        """A new member has no assignment, no pending response and no session timer."""
        member = member_of("a")

        assert (b"", True, None, None, None) == (
            member.assignment,
            member.is_new,
            member.awaiting_join,
            member.awaiting_sync,
            member.timer,
        )

    @pytest.mark.parametrize("is_new", [False, True])
    @pytest.mark.parametrize("awaiting_join", [None, HERE])
    @pytest.mark.parametrize("awaiting_sync", [None, HERE])
    def test_a_known_member_that_is_owed_an_answer_need_not_beat(
        self, is_new, awaiting_join, awaiting_sync
    ):
        """A new member must send heartbeats, since it would come back under another id."""
        member = member_of(
            "a", is_new=is_new, awaiting_join=awaiting_join, awaiting_sync=awaiting_sync
        )
        owed = awaiting_join is HERE or awaiting_sync is HERE

        assert (owed and not is_new) == member.has_satisfied_heartbeat

    def test_a_member_says_something_for_each_of_its_protocols(self):
        """The metadata of a protocol that a member does not support is empty."""
        member = member_of("a", protocols=("range", "sticky"))

        assert ["range", "sticky"] == member.protocol_names
        assert [b"for range", b"for sticky", b""] == [
            member.metadata(name) for name in ("range", "sticky", "other")
        ]

    def test_the_first_member_leads_and_sets_the_protocol_type(self):
        """Later members change neither the leader nor the protocol type."""
        group = ClassicGroup("g")
        group.add(member_of("a"), "consumer")
        group.add(member_of("b", group_instance_id="i"), "connect")

        assert ("a", "consumer") == (group.leader_id, group.protocol_type)
        assert (["a", "b"], {"i": "b"}) == (list(group.members), group.static_members)

    def test_a_group_that_was_left_takes_the_type_of_the_next_member(self):
        """The first member to join an emptied group becomes its leader."""
        group = group_with(member_of("a"))
        group.remove("a")
        group.add(member_of("b"), "connect")

        assert ("b", "connect") == (group.leader_id, group.protocol_type)

    def test_a_member_that_comes_with_its_id_is_not_waited_for_any_more(self):
        """A member that joins is no longer pending; other pending members still are."""
        here, missing = timer(), timer()
        group = ClassicGroup("g", pending_members={"a": here, "b": missing})
        group.add(member_of("a"), "consumer")

        assert {"b": missing} == group.pending_members
        assert (False, True) == (here.is_pending, missing.is_pending)

    def test_of_a_member_that_goes_nothing_stays(self):
        """Removing a member frees its instance id, cancels its timers and ends all waits for it."""
        session, pending = timer(), timer()
        group = group_with(
            member_of("a"), member_of("b", group_instance_id="i", timer=session), member_of("c")
        )
        group.pending_members["b"] = pending
        group.pending_sync |= {"a", "b"}
        group.remove("b")

        assert (["a", "c"], {}, {}, {"a"}) == (
            list(group.members),
            group.static_members,
            group.pending_members,
            group.pending_sync,
        )
        assert (False, False) == (session.is_pending, pending.is_pending)
        assert "a" == group.leader_id

    @pytest.mark.parametrize(("leaves", "leader"), [(["a"], "b"), (["a", "b"], "c"), (["b"], "a")])
    def test_the_next_in_order_leads_when_the_leader_goes(self, leaves, leader):
        """The remaining members take over in order of joining, until the group is empty."""
        group = group_with(member_of("a"), member_of("b"), member_of("c"))
        for member_id in leaves:
            group.remove(member_id)

        assert leader == group.leader_id
        for member_id in list(group.members):
            group.remove(member_id)
        assert None is group.leader_id

    def test_removing_an_unknown_member_changes_nothing(self):
        """Removing an unknown id changes nothing, and removing a pending id forgets it."""
        pending = timer()
        group = group_with(member_of("a"), pending_members={"b": pending})
        group.remove("nobody")
        group.remove("b")

        assert (["a"], "a", {}, False) == (
            list(group.members),
            group.leader_id,
            group.pending_members,
            pending.is_pending,
        )

    @pytest.mark.parametrize(("returns", "leader"), [("a", "new"), ("b", "a")])
    def test_a_static_member_that_is_back_has_all_that_it_had(self, returns, leader):
        """All but its id, session and pending responses is kept, as is its place in the order."""
        session = timer()
        group = group_with(
            *(
                member_of(
                    name,
                    group_instance_id=f"static-{name}",
                    client_id="id",
                    client_host="/host",
                    rebalance_timeout_ms=1,
                    session_timeout_ms=2,
                    protocols=("x",),
                    assignment=b"part",
                    is_new=False,
                    awaiting_join=HERE,
                    awaiting_sync=HERE,
                    timer=session if name == returns else None,
                )
                for name in ("a", "b")
            )
        )
        before = group.members[returns]
        old, new = group.replace_static_member(f"static-{returns}", "new")

        assert (before, group.members["new"]) == (old, new)
        assert [{"a": "new"}.get(returns, "a"), {"b": "new"}.get(returns, "b")] == list(
            group.members
        )
        assert list(group.members) == [member.member_id for member in group.members.values()]
        assert (leader, "new") == (group.leader_id, group.static_members[f"static-{returns}"])
        assert not session.is_pending
        kept = (
            "group_instance_id",
            "client_id",
            "client_host",
            "rebalance_timeout_ms",
            "session_timeout_ms",
            "protocols",
            "assignment",
            "is_new",
        )
        assert [getattr(old, name) for name in kept] == [getattr(new, name) for name in kept]
        assert ("new", None, None, None) == (
            new.member_id,
            new.awaiting_join,
            new.awaiting_sync,
            new.timer,
        )


class TestGenerations:
    """How a group moves from one generation to the next."""

    @pytest.mark.parametrize("before", GroupState)
    @pytest.mark.parametrize("after", GroupState)
    def test_only_the_transitions_of_kafka_are_legal(self, before, after):
        """Any other transition raises an error and changes nothing."""
        group = ClassicGroup("g", state=before, previous_state=DEAD)
        if (before, after) in {
            (EMPTY, PREPARING),
            (PREPARING, COMPLETING),
            (PREPARING, EMPTY),
            (COMPLETING, STABLE),
            (COMPLETING, PREPARING),
            (STABLE, PREPARING),
            (EMPTY, DEAD),
            (PREPARING, DEAD),
            (COMPLETING, DEAD),
            (STABLE, DEAD),
        }:
            group.transition_to(after)
            assert (after, before) == (group.state, group.previous_state)
        else:
            with pytest.raises(IllegalTransitionError, match=f"from {before} to {after}"):
                group.transition_to(after)
            assert (before, DEAD) == (group.state, group.previous_state)

    @pytest.mark.parametrize(
        ("state", "expected"),
        [(EMPTY, True), (PREPARING, False), (COMPLETING, True), (STABLE, True), (DEAD, False)],
    )
    def test_a_rebalance_begins_where_none_is_on(self, state, expected):
        """A rebalance cannot begin while another is in progress, nor in a dead group."""
        assert expected == ClassicGroup("g", state=state).can_rebalance

    def test_a_rebalance_waits_as_long_as_the_most_patient_member(self):
        """The rebalance timeout of a group is the longest of its members'."""
        timeouts = {"a": 5, "b": 7, "c": 6}
        group = group_with(*(member_of(n, rebalance_timeout_ms=t) for n, t in timeouts.items()))

        assert 7 == group.rebalance_timeout_ms

    @pytest.mark.parametrize(
        ("waiting", "pending", "expected"),
        [
            ((HERE, HERE), {}, (2, True)),
            ((HERE, None), {}, (1, False)),
            ((None, HERE), {}, (1, False)),
            ((None, None), {}, (0, False)),
            ((HERE, HERE), {"c": timer()}, (2, False)),
        ],
    )
    def test_no_member_is_missing_once_all_have_joined(self, waiting, pending, expected):
        """A member that was given an id is missing until it joins with it."""
        group = group_with(
            *(member_of(n, awaiting_join=w) for n, w in zip("ab", waiting, strict=True)),
            pending_members=pending,
        )

        assert expected == (group.awaiting_join, group.all_have_joined)

    def test_a_generation_begins_with_a_protocol_for_all(self):
        """A new generation starts with no members to sync left over from the last one."""
        group = group_with(member_of("a"), state=PREPARING, generation_id=4, pending_sync={"x"})
        group.begin_generation()

        assert (5, "range", COMPLETING, set()) == (
            group.generation_id,
            group.protocol_name,
            group.state,
            group.pending_sync,
        )

    def test_a_generation_without_members_is_an_empty_group(self):
        """An empty generation increments the generation id and has no protocol."""
        group = ClassicGroup("g", state=PREPARING, generation_id=4, protocol_name="range")
        group.begin_generation()

        assert (5, None, EMPTY) == (group.generation_id, group.protocol_name, group.state)

    @pytest.mark.parametrize(
        ("protocols", "expected"),
        [
            ([("a",)], "a"),
            ([("a", "b"), ("b", "a"), ("b", "a")], "b"),
            ([("a", "b"), ("b", "c")], "b"),
            ([("x", "a", "b"), ("y", "a", "b"), ("b", "a")], "a"),
        ],
    )
    def test_most_members_like_the_protocol_best(self, protocols, expected):
        """The protocol with most votes wins among those that all members support."""
        group = group_with(
            *(member_of(str(n), protocols=names) for n, names in enumerate(protocols))
        )

        assert expected == group.select_protocol()

    @pytest.mark.parametrize(
        ("protocol_type", "names", "expected"),
        [
            ("consumer", ("a",), True),
            ("consumer", ("x", "b"), True),
            ("consumer", ("x",), False),
            ("consumer", ("c",), False),
            ("consumer", (), False),
            ("connect", ("a",), False),
        ],
    )
    def test_a_member_must_share_a_protocol_with_all(self, protocol_type, names, expected):
        """The protocol type must be the group's too."""
        members = member_of("1", protocols=("a", "b")), member_of("2", protocols=("a", "b", "c"))
        group = group_with(*members, state=STABLE)

        assert expected is group.supports(protocol_type, protocols_of(*names))

    @pytest.mark.parametrize(
        ("protocol_type", "names", "expected"),
        [("any", ("x",), True), ("", ("x",), False), ("any", (), False), ("", (), False)],
    )
    def test_an_empty_group_accepts_any_named_protocol(self, protocol_type, names, expected):
        """An empty group ignores the protocol type that it had before."""
        group = ClassicGroup("g", protocol_type="consumer")

        assert expected is group.supports(protocol_type, protocols_of(*names))

    def test_the_leader_gets_the_metadata_of_all_members(self):
        """The metadata is for the selected protocol, and empty if none is selected."""
        group = group_with(
            member_of("a", protocols=("x", "y")), member_of("b", group_instance_id="i")
        )

        def described():
            return [
                (m.member_id, m.group_instance_id, m.metadata) for m in group.described_members()
            ]

        assert [("a", None, b""), ("b", "i", b"")] == described()
        group.protocol_name = "y"
        assert [("a", None, b"for y"), ("b", "i", b"")] == described()
        assert JoinGroupResponseMember is type(group.described_members()[0])


class TestPermissions:
    """What each member may do."""

    @pytest.mark.parametrize(
        ("member_id", "instance_id", "expected"),
        [
            ("a", None, None),
            ("b", None, None),
            ("b", "i", None),
            ("a", "i", FENCED),
            ("nobody", "i", FENCED),
            ("a", "other", UNKNOWN),
            ("nobody", None, UNKNOWN),
            ("", None, UNKNOWN),
        ],
    )
    def test_a_member_has_its_id_and_its_name(self, member_id, instance_id, expected):
        """A wrong member id for a static member is fenced; an unknown instance id is unknown."""
        group = group_with(member_of("a"), member_of("b", group_instance_id="i"))

        assert expected == refusal_of(group.check_member, member_id, instance_id)
        if expected is None:
            assert group.members[member_id] is group.check_member(member_id, instance_id)

    @pytest.mark.parametrize(
        ("state", "who", "transactional", "expected"),
        [
            # No particular member: the group is empty, or the commit is transactional.
            (EMPTY, ("", None, -1), False, None),
            (EMPTY, ("", None, -1), True, None),
            (EMPTY, ("nobody", None, -1), False, None),
            (STABLE, ("", None, -1), False, UNKNOWN),
            (STABLE, ("", None, -1), True, None),
            (COMPLETING, ("", None, -1), True, None),
            # A member of the current generation.
            (STABLE, ("a", None, 3), False, None),
            (STABLE, ("a", "i", 3), False, None),
            (PREPARING, ("a", None, 3), False, None),
            (COMPLETING, ("a", None, 3), False, ErrorCode.REBALANCE_IN_PROGRESS),
            (COMPLETING, ("a", None, 3), True, None),
            # All others.
            (STABLE, ("a", None, 2), False, ErrorCode.ILLEGAL_GENERATION),
            (STABLE, ("a", None, 4), False, ErrorCode.ILLEGAL_GENERATION),
            (STABLE, ("a", None, -1), False, ErrorCode.ILLEGAL_GENERATION),
            (STABLE, ("a", None, 2), True, ErrorCode.ILLEGAL_GENERATION),
            (STABLE, ("nobody", None, 3), False, UNKNOWN),
            (STABLE, ("", None, 3), False, UNKNOWN),
            (STABLE, ("", None, 0), True, UNKNOWN),
            (STABLE, ("nobody", "i", 3), False, FENCED),
            (STABLE, ("", "i", -1), True, FENCED),
            (EMPTY, ("a", None, 2), False, ErrorCode.ILLEGAL_GENERATION),
            (EMPTY, ("nobody", None, 0), False, UNKNOWN),
        ],
    )
    def test_offsets_may_be_committed_by_members_or_to_an_empty_group(
        self, state, who, transactional, expected
    ):
        """Members may commit once their generation has begun; anyone may in an empty group."""
        group = group_with(member_of("a", group_instance_id="i"), state=state, generation_id=3)
        member_id, instance_id, generation_id = who

        assert expected == refusal_of(
            group.check_offset_commit,
            member_id,
            instance_id,
            generation_id,
            transactional=transactional,
        )
