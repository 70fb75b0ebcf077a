"""Heartbeat: a member of a consumer group is alive, and learns whether it must join again.

3 adds static members (KIP-345), 4 is flexible.
"""

from __future__ import annotations

from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.schema import (
    INT16,
    INT32,
    STRING,
    ApiMessage,
    VersionRange,
    field,
    message,
)


@message
class HeartbeatRequest(ApiMessage):
    """Asks the coordinator of the group."""

    api_key = ApiKey.HEARTBEAT
    versions = VersionRange(0, 4)

    group_id: str = field(STRING)
    generation_id: int = field(INT32)
    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, versions="3+", nullable="3+", default=None)


@message
class HeartbeatResponse(ApiMessage):
    """REBALANCE_IN_PROGRESS: join again."""

    api_key = ApiKey.HEARTBEAT
    versions = VersionRange(0, 4)

    throttle_time_ms: int = field(INT32, versions="1+", ignorable=True, default=0)
    error_code: int = field(INT16, default=0)
