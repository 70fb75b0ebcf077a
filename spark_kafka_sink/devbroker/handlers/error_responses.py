"""Responses to requests that failed, and results of items that did, as the schemas define them.

A response that has an error code gets the error there. Any other mirrors the request: for each item
it has a result, which names the item and gets the error. The result for a topic has no error code
if each of its partitions has a result.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

from spark_kafka_sink.protocol.field_types import (
    Array,
    BytesType,
    String,
    Struct,
    declared_fields,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spark_kafka_sink.devbroker.base.refusal import RefusedError
    from spark_kafka_sink.protocol.schema import AnyRequest, ApiResponse

ResultT = TypeVar("ResultT")

#: The fields with which a result names its item.
_NAMES: Final = frozenset(
    {
        "group_id",
        "index",
        "key",
        "name",
        "partition",
        "partition_index",
        "resource_name",
        "resource_type",
        "topic",
        "topic_id",
        "transactional_id",
    }
)
#: The values of fields without a default; a number is 0.
_EMPTY: Final[Mapping[type, object]] = {Array: (), BytesType: b"", String: ""}


def failed_result(
    result_class: type[ResultT], version: int, refused: RefusedError, names: Mapping[str, object]
) -> ResultT:
    """Return the result of an item that was refused; `names` are the fields that name the item."""
    empty = _empty_result(result_class, version)  # type: ignore[arg-type]  # a class is hashable
    values: dict[str, Any] = {**empty, **names}
    values["error_code"] = refused.error_code
    if "error_message" in values:
        values["error_message"] = refused.message
    return result_class(**values)


@cache
def _empty_result(result_class: type, version: int) -> dict[str, object]:
    """Return the fields that have no default, and the error message if the version has one."""
    return {
        declared.name: _EMPTY.get(type(declared.spec.type), 0)
        for declared in declared_fields(result_class)
        if declared.default is dataclasses.MISSING
        or (declared.name == "error_message" and version in declared.spec.versions)
    }


def failed_response(request: AnyRequest, version: int, values: Mapping[str, object]) -> ApiResponse:
    """Return the response to a request that failed as a whole, as Kafka's getErrorResponse.

    `values` are those of the response's fields, the error code and others, at whatever depth.
    """
    request_class = type(request)
    fail = _failing(request_class.response_class(), request_class, version, values)
    response: ApiResponse = fail(request)
    return response


def _failing(
    result_class: type, item_class: type | None, version: int, values: Mapping[str, object]
) -> Callable[[Any], Any]:
    """Return the function from an item to its failed result; no class means plain values."""
    fields = {
        declared.name: declared
        for declared in declared_fields(result_class)
        if version in declared.spec.versions
    }
    constants = {
        name: values.get(name, _EMPTY.get(type(declared.spec.type), 0))
        for name, declared in fields.items()
        if name in values or declared.default is dataclasses.MISSING
    }
    names = fields.keys() & _NAMES
    if item_class is not None:
        names &= {declared.name for declared in declared_fields(item_class)}

    def named(item: Any) -> dict[str, Any]:
        if item_class is None:
            return dict.fromkeys(names, item)
        return {name: getattr(item, name) for name in names}

    if "error_code" in fields:
        return lambda item: result_class(**constants | named(item))
    results, class_of_results = _array(result_class, version)
    items, class_of_items = _array(item_class, version)
    fail = _failing(class_of_results, class_of_items, version, values)

    def mirror(item: Any) -> Any:
        mirrored = tuple(map(fail, getattr(item, items)))
        return result_class(**constants | named(item) | {results: mirrored})

    return mirror


def _array(message_class: Any, version: int) -> tuple[str, Any]:
    """Return the name of the only array, and the class of its elements; None for plain values."""
    [(name, element)] = [
        (declared.name, declared.spec.type.element)
        for declared in declared_fields(message_class)
        if isinstance(declared.spec.type, Array)
        and version in declared.spec.versions
        and declared.spec.tag is None
    ]
    return name, element.message_class if isinstance(element, Struct) else None
