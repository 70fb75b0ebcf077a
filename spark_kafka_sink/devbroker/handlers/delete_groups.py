"""DeleteGroups 0-2: deletes consumer groups with their offsets.

A group with members gets NON_EMPTY_GROUP, one that does not exist GROUP_ID_NOT_FOUND.
"""

# ruff: noqa: ARG002 - every handler has the signatures of Handler

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.handlers.handler import Handler, RequestContext
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)

if TYPE_CHECKING:
    from collections.abc import Callable


class DeleteGroupsHandler(Handler[DeleteGroupsRequest, DeleteGroupsResponse]):
    """The handler that deletes consumer groups."""

    api_key = ApiKey.DELETE_GROUPS
    versions = DeleteGroupsRequest.versions

    def handle(self, context: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
        """Delete each group."""

        def delete(group_id: str) -> ErrorCode:
            try:
                context.cluster.check_group_coordinator(context.node_id, group_id)
                context.cluster.groups.delete(group_id)
            except RefusedError as refused:
                return refused.error_code
            return ErrorCode.NONE

        return _response(request, delete)

    def error_response(
        self,
        context: RequestContext,
        request: DeleteGroupsRequest,
        error_code: ErrorCode,
        message: str,
    ) -> DeleteGroupsResponse:
        """Return a response with the error for each group: none was deleted."""
        return _response(request, lambda _: error_code)


def _response(
    request: DeleteGroupsRequest, code_of: Callable[[str], ErrorCode]
) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=tuple(
            DeletableGroupResult(group_id=group_id, error_code=code_of(group_id))
            for group_id in dict.fromkeys(request.groups_names)
        )
    )
