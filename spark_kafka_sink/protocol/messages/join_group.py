"""JoinGroup: a member joins a consumer group and waits until all other members have joined.

Version 1 adds a rebalance timeout, 4 makes a new member rejoin with an id (KIP-394), 5 adds static
members (KIP-345), 6 is flexible, 7 returns the protocol type (KIP-559), 8 accepts a reason
(KIP-800), 9 lets the leader skip the assignment (KIP-814).
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class JoinGroupRequestProtocol:
    """An assignment strategy that the member supports, with the member's metadata for it."""

    name: str = field(STRING)
    #: A Subscription of the consumer protocol.
    metadata: bytes = field(BYTES)


@message
class JoinGroupRequest(ApiRequest["JoinGroupResponse"]):
    """A request to the group's coordinator."""

    api_key = ApiKey.JOIN_GROUP
    versions = VersionRange(0, 9)

    group_id: str = field(STRING)
    #: The member is removed from the group after this time without a heartbeat.
    session_timeout_ms: int = field(INT32)
    #: How long a rebalance waits for the member; -1: the session timeout.
    rebalance_timeout_ms: int = field(INT32, versions="1+", ignorable=True, default=-1)
    #: Empty for a new member.
    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, versions="5+", nullable="5+", default=None)
    protocol_type: str = field(STRING)
    #: In order of preference.
    protocols: tuple[JoinGroupRequestProtocol, ...] = field(array(JoinGroupRequestProtocol))
    reason: str | None = field(STRING, versions="8+", nullable="8+", ignorable=True, default=None)


@message
class JoinGroupResponseMember:
    """A member of the group, as reported to the leader."""

    member_id: str = field(STRING)
    group_instance_id: str | None = field(
        STRING, versions="5+", nullable="5+", ignorable=True, default=None
    )
    metadata: bytes = field(BYTES)


@message
class JoinGroupResponse(ApiResponse, request=JoinGroupRequest):
    """A response with generation, protocol and leader, and for the leader with all members."""

    throttle_time_ms: int = field(INT32, versions="2+", ignorable=True, default=0)
    error_code: int = field(INT16, default=0)
    generation_id: int = field(INT32, default=-1)
    protocol_type: str | None = field(
        STRING, versions="7+", nullable="7+", ignorable=True, default=None
    )
    protocol_name: str | None = field(STRING, nullable="7+")
    leader: str = field(STRING)
    skip_assignment: bool = field(BOOL, versions="9+", default=False)
    member_id: str = field(STRING)
    #: Empty except for the leader.
    members: tuple[JoinGroupResponseMember, ...] = field(array(JoinGroupResponseMember))
