"""The quotas of users and clients: DescribeClientQuotas and AlterClientQuotas (KIP-546).

The rates of producers and consumers are enforced, by each broker for itself: a client that exceeds
one is told to wait and is not read from for that time (KIP-219). All other quotas are stored only.
"""

from __future__ import annotations

import math
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.devbroker.base.client_quotas import (
    CLIENT_ID,
    CONSUMER_BYTE_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    USER,
    Entity,
    entity_of,
)
from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages import alter_client_quotas as altered
from spark_kafka_sink.protocol.messages import describe_client_quotas as described

if TYPE_CHECKING:
    from collections.abc import Mapping

_EXACT, _DEFAULT, _SPECIFIED = range(3)
_TYPES: Final = frozenset({USER, CLIENT_ID, IP})
#: The largest values of each quota; infinity for numbers with a fraction (QuotaConfig).
_OF_CLIENTS: Final = {
    PRODUCER_BYTE_RATE: 2.0**63,
    CONSUMER_BYTE_RATE: 2.0**63,
    "request_percentage": math.inf,
    "controller_mutation_rate": math.inf,
}
_OF_ADDRESSES: Final = {"connection_creation_rate": 2.0**31 - 1}
_SMALLEST_FRACTION: Final = 1e-6


@handles(described.DescribeClientQuotasRequest, when_failed={"entries": None})
def describe_client_quotas(
    context: RequestContext, request: described.DescribeClientQuotasRequest
) -> described.DescribeClientQuotasResponse:
    """Return the entities that match all components of a filter (DescribeClientQuotas 0-1).

    INVALID_REQUEST is for a contradictory filter, UNSUPPORTED_VERSION for an unknown entity type.
    """
    names: dict[str, str | None] = {}
    types: set[str] = set()
    for component in request.components:
        _check_component(component, names.keys() | types)
        if component.match_type == _SPECIFIED:
            types.add(component.entity_type)
        else:
            names[component.entity_type] = component.match
    asked = names.keys() | types
    if IP in asked and len(asked) > 1:
        raise _invalid(
            "Invalid entity filter component combination. IP filter component should not be used "
            "with user or clientId filter component."
        )

    def matches(entity: Entity) -> bool:
        parts = dict(entity)
        return (
            (not request.strict or parts.keys() == asked)
            and parts.keys() >= asked
            and all(parts[entity_type] == name for entity_type, name in names.items())
        )

    return described.DescribeClientQuotasResponse(
        entries=tuple(
            described.EntryData(
                entity=tuple(
                    described.EntityData(entity_type=entity_type, entity_name=name)
                    for entity_type, name in entity
                ),
                values=tuple(
                    described.ValueData(key=key, value=value) for key, value in values.items()
                ),
            )
            for entity, values in context.cluster.client_quotas.items()
            if matches(entity)
        )
    )


def _check_component(component: described.ComponentData, before: set[str]) -> None:
    """Raise RefusedError as ClientQuotasImage.describe does."""
    entity_type = component.entity_type
    if not entity_type:
        problem = "Invalid empty entity type."
    elif entity_type in before:
        problem = f"Entity type {entity_type} cannot appear more than once in the filter."
    elif entity_type not in _TYPES:
        raise RefusedError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {entity_type}")
    elif component.match_type not in {_EXACT, _DEFAULT, _SPECIFIED}:
        problem = f"Unknown match type {component.match_type}"
    elif (component.match is None) == (component.match_type == _EXACT):
        problem = "A match string is for the exact match of a name, and for nothing else."
    else:
        return
    raise _invalid(problem)


def _failed(
    _context: RequestContext,
    request: altered.AlterClientQuotasRequest,
    error_code: ErrorCode,
    message: str,
) -> altered.AlterClientQuotasResponse:
    """Return a response with the error for each entity."""
    refused = RefusedError(error_code, message)
    return altered.AlterClientQuotasResponse(
        entries=tuple(_result(entry.entity, refused) for entry in request.entries)
    )


def _result(
    entity: tuple[altered.EntityData, ...], refused: RefusedError | None
) -> altered.EntryResult:
    return altered.EntryResult(
        error_code=ErrorCode.NONE if refused is None else refused.error_code,
        error_message=None if refused is None else refused.message,
        entity=entity,
    )


@handles(altered.AlterClientQuotasRequest, error_response=_failed)
def alter_client_quotas(
    context: RequestContext, request: altered.AlterClientQuotasRequest
) -> altered.AlterClientQuotasResponse:
    """Set and remove quotas, all of an entity or none (AlterClientQuotas 0-1).

    INVALID_REQUEST is for an invalid entity, an unknown quota or an invalid value, and for a quota
    or an entity that occurs twice. All changes are written to disk at once; if that fails, nothing
    has changed and each entity gets KAFKA_STORAGE_ERROR.
    """
    quotas = {entity: dict(values) for entity, values in context.cluster.client_quotas.items()}
    seen: set[frozenset[tuple[str, str | None]]] = set()
    results = []
    for entry in request.entries:
        try:
            parts = frozenset((part.entity_type, part.entity_name) for part in entry.entity)
            if parts in seen:
                raise _invalid("Ignoring duplicate entity")
            seen.add(parts)
            entity, values = _changed(entry, quotas)
        except RefusedError as refused:
            results.append(_result(entry.entity, refused))
            continue
        quotas[entity] = values
        results.append(_result(entry.entity, None))
    if not request.validate_only:
        context.cluster.change_client_quotas(
            {entity: values for entity, values in quotas.items() if values}
        )
    return altered.AlterClientQuotasResponse(entries=tuple(results))


def _changed(
    entry: altered.EntryData, quotas: Mapping[Entity, Mapping[str, float]]
) -> tuple[Entity, dict[str, float]]:
    """Return an entity and its new quotas. Raises RefusedError."""
    names = _names(entry.entity)
    known = _OF_ADDRESSES if IP in names else _OF_CLIENTS
    entity = entity_of(names)
    values = dict(quotas.get(entity, {}))
    if len({op.key for op in entry.ops}) < len(entry.ops):
        raise _invalid("Duplicate quota key, not updating quota for this entity")
    for op in entry.ops:
        if op.remove:
            values.pop(op.key, None)
        else:
            _check_value(op.key, op.value, known)
            values[op.key] = op.value
    return entity, values


def _names(parts: tuple[altered.EntityData, ...]) -> dict[str, str | None]:
    """Return the names of a valid entity by their types. Raises RefusedError."""
    names: dict[str, str | None] = {}
    for part in parts:
        if part.entity_type not in _TYPES:
            raise _invalid(f"Unhandled client quota entity type: {part.entity_type}")
        if part.entity_type in names:
            raise _invalid(
                f"Invalid client quota entity, duplicate entity entry {part.entity_type}"
            )
        if part.entity_name == "":
            raise _invalid(f"Empty {part.entity_type} not supported")
        names[part.entity_type] = part.entity_name
    if not names:
        raise _invalid("Invalid empty client quota entity")
    if IP in names:
        if len(names) > 1:
            raise _invalid(
                "Invalid quota entity combination, IP entity should not be combined with User or "
                "ClientId"
            )
        _check_address(names[IP])
    return names


def _check_address(address: str | None) -> None:
    try:
        ip_address(address or "127.0.0.1")
    except ValueError:
        raise _invalid(f"{address} is not a valid IP") from None


def _check_value(key: str, value: float, known: Mapping[str, float]) -> None:
    largest = known.get(key)
    if largest is None:
        raise _invalid(f"Invalid configuration key {key}")
    if not value > 0:
        raise _invalid(f"Quota {key} must be greater than 0")
    if value > largest:
        raise _invalid(f"Proposed value for {key} is too large")
    if largest < math.inf and value % 1 > _SMALLEST_FRACTION:
        raise _invalid(f"{key} cannot be a fractional value.")


def _invalid(message: str) -> RefusedError:
    return RefusedError(ErrorCode.INVALID_REQUEST, message)
