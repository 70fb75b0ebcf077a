"""FindCoordinator: the broker that coordinates a group or a transactional id.

Version 1 adds the type of key, 3 is flexible, 4 supports several keys at once (KIP-699), 5 adds
TRANSACTION_ABORTABLE, 6 share groups (KIP-932). Up to version 3 the single key and its coordinator
are fields of the messages themselves; from 4 on they are lists.
"""

from __future__ import annotations

from enum import IntEnum

from spark_kafka_sink.protocol.schema import *


class CoordinatorType(IntEnum):
    """The type of a key."""

    GROUP = 0
    TRANSACTION = 1
    SHARE = 2


@message
class FindCoordinatorRequest(ApiRequest["FindCoordinatorResponse"]):
    """A request to any broker."""

    api_key = ApiKey.FIND_COORDINATOR
    versions = VersionRange(0, 6)

    key: str = field(STRING, versions="0-3", default="")
    #: A `CoordinatorType`.
    key_type: int = field(INT8, versions="1+", default=CoordinatorType.GROUP)
    coordinator_keys: tuple[str, ...] = field(array(STRING), versions="4+", default=())


@message
class Coordinator:
    """The coordinator of one key, or the error."""

    key: str = field(STRING, versions="4+")
    node_id: int = field(INT32, versions="4+")
    host: str = field(STRING, versions="4+")
    port: int = field(INT32, versions="4+")
    error_code: int = field(INT16, versions="4+", default=0)
    error_message: str | None = field(
        STRING, versions="4+", nullable="4+", ignorable=True, default=None
    )


@message
class FindCoordinatorResponse(ApiResponse, request=FindCoordinatorRequest):
    """A response with the coordinators' ids and addresses."""

    throttle_time_ms: int = field(INT32, versions="1+", ignorable=True, default=0)
    error_code: int = field(INT16, versions="0-3", default=0)
    error_message: str | None = field(
        STRING, versions="1-3", nullable="1-3", ignorable=True, default=None
    )
    node_id: int = field(INT32, versions="0-3", default=0)
    host: str = field(STRING, versions="0-3", default="")
    port: int = field(INT32, versions="0-3", default=0)
    coordinators: tuple[Coordinator, ...] = field(array(Coordinator), versions="4+", default=())
