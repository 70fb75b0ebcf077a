"""The requests of a member of a classic group in each version, and their answers."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.consumer.group.group_requests import (
    Generation,
    GroupSettings,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    SyncGroup,
    heartbeat_request,
    join_request,
    leave_request,
    read_leave,
    sync_request,
)
from spark_kafka_sink.errors import UnsupportedVersionError
from spark_kafka_sink.network.exponential_backoff import ExponentialBackoff
from spark_kafka_sink.protocol.codec import decode, encode_bytes
from spark_kafka_sink.protocol.messages.heartbeat import HeartbeatRequest
from spark_kafka_sink.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from spark_kafka_sink.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from spark_kafka_sink.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

GENERATION = Generation(7, "member-1", "range")
JOIN = JoinGroup(1, GENERATION, "why", 35.0)
SYNC = SyncGroup(2, GENERATION, {"member-1": b"one", "member-2": b"two"})
HEARTBEAT = Heartbeat(3, GENERATION)
LEAVE = LeaveGroup("member-1", "bye")
#: Those of Kafka 2.1 (JoinGroup 3, the others 2), and of the first brokers with static members.
OLD_AND_STATIC = {JoinGroupRequest: (3, 5), SyncGroupRequest: (2, 3), HeartbeatRequest: (2, 3)}


def settings_of(group_instance_id: str | None = None) -> GroupSettings:
    """Return the settings of a member, each time with another number of milliseconds."""
    return GroupSettings(
        group_id="g",
        group_instance_id=group_instance_id,
        session_timeout=10.001,
        rebalance_timeout=300.002,
        heartbeat_interval=3.0,
        request_timeout=30.0,
        backoff=ExponentialBackoff(0.1, 1.0, random.Random(1)),
        protocol_type="consumer",
    )


def sent(request, version):
    """Return the request that arrives when it is sent in a version."""
    return decode(type(request), encode_bytes(request, version), version)


def built(request_class, settings, version):
    """Return the request of a class for a version."""
    match request_class.__name__:
        case "JoinGroupRequest":
            return join_request(JOIN, settings, [("range", b"r"), ("sticky", b"s")], version)
        case "SyncGroupRequest":
            return sync_request(SYNC, settings, version)
        case "HeartbeatRequest":
            return heartbeat_request(HEARTBEAT, settings, version)
        case _:
            return leave_request(LEAVE, settings, version)


EXPECTED = {
    (JoinGroupRequest, 0): JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_001,
        member_id="member-1",
        protocol_type="consumer",
        protocols=(
            JoinGroupRequestProtocol(name="range", metadata=b"r"),
            JoinGroupRequestProtocol(name="sticky", metadata=b"s"),
        ),
    ),
    (JoinGroupRequest, 9): JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_001,
        rebalance_timeout_ms=300_002,
        member_id="member-1",
        protocol_type="consumer",
        protocols=(
            JoinGroupRequestProtocol(name="range", metadata=b"r"),
            JoinGroupRequestProtocol(name="sticky", metadata=b"s"),
        ),
        reason="why",
    ),
    (SyncGroupRequest, 0): SyncGroupRequest(
        group_id="g",
        generation_id=7,
        member_id="member-1",
        assignments=(
            SyncGroupRequestAssignment(member_id="member-1", assignment=b"one"),
            SyncGroupRequestAssignment(member_id="member-2", assignment=b"two"),
        ),
    ),
    (SyncGroupRequest, 5): SyncGroupRequest(
        group_id="g",
        generation_id=7,
        member_id="member-1",
        protocol_type="consumer",
        protocol_name="range",
        assignments=(
            SyncGroupRequestAssignment(member_id="member-1", assignment=b"one"),
            SyncGroupRequestAssignment(member_id="member-2", assignment=b"two"),
        ),
    ),
    (HeartbeatRequest, 0): HeartbeatRequest(group_id="g", generation_id=7, member_id="member-1"),
    (HeartbeatRequest, 4): HeartbeatRequest(group_id="g", generation_id=7, member_id="member-1"),
    (LeaveGroupRequest, 0): LeaveGroupRequest(group_id="g", member_id="member-1"),
    (LeaveGroupRequest, 2): LeaveGroupRequest(group_id="g", member_id="member-1"),
    (LeaveGroupRequest, 3): LeaveGroupRequest(
        group_id="g", members=(MemberIdentity(member_id="member-1"),)
    ),
    (LeaveGroupRequest, 5): LeaveGroupRequest(
        group_id="g", members=(MemberIdentity(member_id="member-1", reason="bye"),)
    ),
}


@pytest.mark.parametrize(("request_class", "version"), EXPECTED)
def test_a_request_has_what_its_version_can_carry(request_class, version):
    """What an old version lacks is dropped; the newest carries everything."""
    request = built(request_class, settings_of(), version)
    assert EXPECTED[request_class, version] == sent(request, version)


@pytest.mark.parametrize("request_class", [*OLD_AND_STATIC, LeaveGroupRequest])
def test_every_version_can_be_encoded(request_class):
    """No field of a dynamic member keeps a request from being sent to an old broker."""
    for version in range(request_class.versions.min, request_class.versions.max + 1):
        assert "g" == sent(built(request_class, settings_of(), version), version).group_id


@pytest.mark.parametrize(("request_class", "versions"), OLD_AND_STATIC.items())
def test_a_static_member_is_named_from_the_first_version_on_that_can(request_class, versions):
    """An older broker would take it for a dynamic member, so that is an error with advice."""
    old, first = versions
    request = built(request_class, settings_of("i"), first)
    assert "i" == sent(request, first).group_instance_id
    with pytest.raises(
        UnsupportedVersionError,
        match=rf"^group.instance.id 'i' cannot be used: .* version {first - 1}\), .* Kafka 2.3 .* "
        "unset group.instance.id$",
    ):
        built(request_class, settings_of("i"), first - 1)
    with pytest.raises(UnsupportedVersionError):
        built(request_class, settings_of("i"), old)


@pytest.mark.parametrize("version", [2, 3, 5])
def test_a_static_member_leaves_by_its_member_id(version):
    """As in Java, so that another member with the same group.instance.id stays."""
    assert built(LeaveGroupRequest, settings_of("i"), version) == built(
        LeaveGroupRequest, settings_of(), version
    )


def test_long_reasons_are_cut():
    """Brokers refuse a reason of more than 255 characters."""
    joins = JoinGroup(1, GENERATION, "j" * 256, 1.0)
    assert "j" * 255 == join_request(joins, settings_of(), [], 9).reason
    leaves = LeaveGroup("m", "l" * 256)
    assert "l" * 255 == leave_request(leaves, settings_of(), 5).members[0].reason


NAMES = st.text(max_size=5)


@given(
    numbers=st.tuples(st.integers(-1, 130), st.integers(-1, 9)),
    names=st.tuples(NAMES, NAMES, NAMES),
    protocol_type=st.none() | NAMES,
    members=st.lists(
        st.builds(
            JoinGroupResponseMember,
            member_id=NAMES,
            group_instance_id=st.none() | NAMES,
            metadata=st.binary(max_size=5),
        )
    ),
    skip_assignment=st.booleans(),
)
def test_all_of_a_join_answer_is_read(numbers, names, protocol_type, members, skip_assignment):
    """Each field arrives with the newest response."""
    (code, generation_id), (member_id, protocol, leader) = numbers, names
    response = JoinGroupResponse(
        error_code=code,
        generation_id=generation_id,
        protocol_type=protocol_type,
        protocol_name=protocol,
        leader=leader,
        skip_assignment=skip_assignment,
        member_id=member_id,
        members=tuple(members),
    )
    assert response == sent(response, 9)


def test_an_old_join_answer_has_no_protocol_type():
    """The membership then trusts the coordinator, as Java does."""
    response = JoinGroupResponse(
        protocol_type="consumer", protocol_name="range", leader="m", member_id="m", members=()
    )
    assert sent(response, 0).protocol_type is None


def test_a_sync_answer_is_read():
    """The assignment, and both parts of the protocol if the broker sends them."""
    response = SyncGroupResponse(
        error_code=27, protocol_type="consumer", protocol_name="range", assignment=b"mine"
    )
    assert response == sent(response, 5)
    old = sent(response, 0)
    assert (27, b"mine", None, None) == (
        old.error_code,
        old.assignment,
        old.protocol_type,
        old.protocol_name,
    )


@pytest.mark.parametrize(
    ("expected", "code", "members"), [(0, 0, ()), (0, 0, (0,)), (25, 0, (25,)), (16, 16, (25,))]
)
def test_leaving_fails_with_the_error_of_the_request_or_of_the_member(expected, code, members):
    """The error of the whole request takes precedence."""
    response = LeaveGroupResponse(
        error_code=code,
        members=tuple(
            MemberResponse(member_id="m", group_instance_id=None, error_code=it) for it in members
        ),
    )
    assert expected == read_leave(response)
