"""DeleteGroups: deletes consumer groups that have no members, and their offsets.

Version 2 is flexible, 3 adds error messages.
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class DeleteGroupsRequest(ApiRequest["DeleteGroupsResponse"]):
    """A request to the groups' coordinator."""

    api_key = ApiKey.DELETE_GROUPS
    versions = VersionRange(0, 3)

    groups_names: tuple[str, ...] = field(array(STRING))


@message
class DeletableGroupResult:
    """The result for one group."""

    group_id: str = field(STRING)
    error_code: int = field(INT16, default=0)
    error_message: str | None = field(
        STRING, versions="3+", nullable="3+", ignorable=True, default=None
    )


@message
class DeleteGroupsResponse(ApiResponse, request=DeleteGroupsRequest):
    """A response with one result per group."""

    throttle_time_ms: int = field(INT32, default=0)
    results: tuple[DeletableGroupResult, ...] = field(array(DeletableGroupResult))
