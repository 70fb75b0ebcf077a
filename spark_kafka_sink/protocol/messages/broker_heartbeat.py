"""BrokerHeartbeat: a broker tells the controller that it is alive, and what it wants (KIP-631).

Version 1 names log directories that have failed (KIP-858). Version 2 also names those that are to
get no new replicas, which this package does not have.
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class BrokerHeartbeatRequest(ApiRequest["BrokerHeartbeatResponse"]):
    """A request for the controller."""

    api_key = ApiKey.BROKER_HEARTBEAT
    versions = VersionRange(0, 1)

    broker_id: int = field(INT32)
    broker_epoch: int = field(INT64, default=-1)
    #: The offset of the last record of the metadata log that the broker has applied.
    current_metadata_offset: int = field(INT64)
    want_fence: bool = field(BOOL, default=False)
    want_shut_down: bool = field(BOOL, default=False)
    offline_log_dirs: tuple[Uuid, ...] = field(array(UUID), versions="1+", tag=0, default=())


@message
class BrokerHeartbeatResponse(ApiResponse, request=BrokerHeartbeatRequest):
    """A response with the state in which the controller sees the broker."""

    throttle_time_ms: int = field(INT32, default=0)
    error_code: int = field(INT16, default=0)
    is_caught_up: bool = field(BOOL, default=False)
    is_fenced: bool = field(BOOL, default=True)
    should_shut_down: bool = field(BOOL, default=False)
