"""ListGroups: the groups that a broker coordinates.

Version 3 is flexible, 4 can filter by state (KIP-518), 5 by type (KIP-848).
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class ListGroupsRequest(ApiRequest["ListGroupsResponse"]):
    """A request to one broker."""

    api_key = ApiKey.LIST_GROUPS
    versions = VersionRange(0, 5)

    #: Empty: any state.
    states_filter: tuple[str, ...] = field(array(STRING), versions="4+", default=())
    #: Empty: any type.
    types_filter: tuple[str, ...] = field(array(STRING), versions="5+", default=())


@message
class ListedGroup:
    """A group."""

    group_id: str = field(STRING)
    protocol_type: str = field(STRING)
    group_state: str = field(STRING, versions="4+", ignorable=True, default="")
    group_type: str = field(STRING, versions="5+", ignorable=True, default="")


@message
class ListGroupsResponse(ApiResponse, request=ListGroupsRequest):
    """A response with the broker's groups."""

    throttle_time_ms: int = field(INT32, versions="1+", ignorable=True, default=0)
    error_code: int = field(INT16, default=0)
    groups: tuple[ListedGroup, ...] = field(array(ListedGroup))
