"""JoinGroup: a member takes part in a consumer group, and waits until all others do.

1 has a timeout of its own for rebalances, 4 lets a new member come back with an id (KIP-394), 5
adds static members (KIP-345), 6 is flexible, 7 tells the protocol type (KIP-559), 8 takes a reason
(KIP-800), 9 lets the leader leave the assignment as it is (KIP-814).
"""

from __future__ import annotations

from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.schema import (
    BOOL,
    BYTES,
    INT16,
    INT32,
    STRING,
    ApiMessage,
    VersionRange,
    array,
    field,
    message,
)


@message
class JoinGroupRequestProtocol:
    """A way to assign partitions that the member knows, and what it says about itself."""

    name: str = field(STRING)
    #: A subscription of the consumer protocol.
    metadata: bytes = field(BYTES)


@message
class JoinGroupRequest(ApiMessage):
    """Asks the coordinator of the group."""

    api_key = ApiKey.JOIN_GROUP
    versions = VersionRange(0, 9)

    group_id: str = field(STRING)
    #: After so long without a heartbeat the member is out.
    session_timeout_ms: int = field(INT32)
    #: So long the others wait for the member; -1: as long as for its heartbeats.
    rebalance_timeout_ms: int = field(INT32, versions="1+", ignorable=True, default=-1)
    #: Empty for a new member.
    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, versions="5+", nullable="5+", default=None)
    protocol_type: str = field(STRING)
    #: Best first.
    protocols: tuple[JoinGroupRequestProtocol, ...] = field(array(JoinGroupRequestProtocol))
    reason: str | None = field(STRING, versions="8+", nullable="8+", ignorable=True, default=None)


@message
class JoinGroupResponseMember:
    """A member, for the leader."""

    member_id: str = field(STRING)
    group_instance_id: str | None = field(
        STRING, versions="5+", nullable="5+", ignorable=True, default=None
    )
    metadata: bytes = field(BYTES)


@message
class JoinGroupResponse(ApiMessage):
    """Tells generation, protocol and leader; the leader also learns who is in the group."""

    api_key = ApiKey.JOIN_GROUP
    versions = VersionRange(0, 9)

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
    #: Empty but for the leader.
    members: tuple[JoinGroupResponseMember, ...] = field(array(JoinGroupResponseMember))
