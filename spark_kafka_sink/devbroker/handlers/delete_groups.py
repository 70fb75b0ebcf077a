"""DeleteGroups 0-2: deletes consumer groups with their offsets.

A group with members gets NON_EMPTY_GROUP, one that does not exist GROUP_ID_NOT_FOUND.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def _error_response(
    _context: RequestContext,
    request: DeleteGroupsRequest,
    error_code: ErrorCode,
    _message: str,
) -> DeleteGroupsResponse:
    """Return a response with the error for each group, which is in it once."""
    return _response(request, lambda _: error_code)


@handles(DeleteGroupsRequest, error_response=_error_response)
def delete_groups(context: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    """Delete each group."""

    def delete(group_id: str) -> ErrorCode:
        try:
            context.cluster.check_group_coordinator(context.node_id, group_id)
            context.cluster.groups.delete(group_id)
        except RefusedError as refused:
            return refused.error_code
        return ErrorCode.NONE

    return _response(request, delete)


def _response(
    request: DeleteGroupsRequest, code_of: Callable[[str], ErrorCode]
) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=tuple(
            DeletableGroupResult(group_id=group_id, error_code=code_of(group_id))
            for group_id in dict.fromkeys(request.groups_names)
        )
    )
