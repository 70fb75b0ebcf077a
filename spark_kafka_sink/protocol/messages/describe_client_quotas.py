"""DescribeClientQuotas: the quotas of users and clients that match a filter (KIP-546).

Version 1 is flexible.
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class ComponentData:
    """A condition on the name of one type of entity."""

    entity_type: str = field(STRING)
    #: 0 is the name in `match`, 1 the default, 2 any name.
    match_type: int = field(INT8)
    match: str | None = field(STRING, nullable="0+")


@message
class DescribeClientQuotasRequest(ApiRequest["DescribeClientQuotasResponse"]):
    """A request to any broker."""

    api_key = ApiKey.DESCRIBE_CLIENT_QUOTAS
    versions = VersionRange(0, 1)

    components: tuple[ComponentData, ...] = field(array(ComponentData))
    #: Whether to leave out entities of other types besides.
    strict: bool = field(BOOL)


@message
class EntityData:
    """One part of an entity; null is the default for all names."""

    entity_type: str = field(STRING)
    entity_name: str | None = field(STRING, nullable="0+")


@message
class ValueData:
    """One quota of an entity."""

    key: str = field(STRING)
    value: float = field(FLOAT64)


@message
class EntryData:
    """An entity with its quotas."""

    entity: tuple[EntityData, ...] = field(array(EntityData))
    values: tuple[ValueData, ...] = field(array(ValueData))


@message
class DescribeClientQuotasResponse(ApiResponse, request=DescribeClientQuotasRequest):
    """A response with the matching entities; null after an error."""

    throttle_time_ms: int = field(INT32, default=0)
    error_code: int = field(INT16, default=0)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    entries: tuple[EntryData, ...] | None = field(array(EntryData), nullable="0+")
