"""AlterClientQuotas: sets and removes the quotas of users and clients (KIP-546).

Version 1 is flexible.
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class EntityData:
    """One part of an entity; null is the default for all names."""

    entity_type: str = field(STRING)
    entity_name: str | None = field(STRING, nullable="0+")


@message
class OpData:
    """A quota to set or to remove."""

    key: str = field(STRING)
    value: float = field(FLOAT64)
    remove: bool = field(BOOL)


@message
class EntryData:
    """An entity with the changes to its quotas."""

    entity: tuple[EntityData, ...] = field(array(EntityData))
    ops: tuple[OpData, ...] = field(array(OpData))


@message
class AlterClientQuotasRequest(ApiRequest["AlterClientQuotasResponse"]):
    """A request for the controller, which any broker forwards."""

    api_key = ApiKey.ALTER_CLIENT_QUOTAS
    versions = VersionRange(0, 1)

    entries: tuple[EntryData, ...] = field(array(EntryData))
    validate_only: bool = field(BOOL)


@message
class EntryResult:
    """The result for one entity."""

    error_code: int = field(INT16, default=0)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    entity: tuple[EntityData, ...] = field(array(EntityData))


@message
class AlterClientQuotasResponse(ApiResponse, request=AlterClientQuotasRequest):
    """A response with one result per entity."""

    throttle_time_ms: int = field(INT32, default=0)
    entries: tuple[EntryResult, ...] = field(array(EntryResult))
