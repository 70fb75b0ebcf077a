"""Heartbeat: keeps a member in its consumer group, and reports whether it must rejoin.

Version 3 adds static members (KIP-345), 4 is flexible.
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class HeartbeatRequest(ApiRequest["HeartbeatResponse"]):
    """A request to the group's coordinator."""

    api_key = ApiKey.HEARTBEAT
    versions = VersionRange(0, 4)

    group_id: str = field(STRING)
    generation_id: int = field(INT32)
    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, versions="3+", nullable="3+", default=None)


@message
class HeartbeatResponse(ApiResponse, request=HeartbeatRequest):
    """A response with the result; REBALANCE_IN_PROGRESS means that the member must rejoin."""

    throttle_time_ms: int = field(INT32, versions="1+", ignorable=True, default=0)
    error_code: int = field(INT16, default=0)
