"""DeleteAcls 1-3: would delete ACLs.

There is no authorizer, so there are no ACLs, and the response is SECURITY_DISABLED, as in Kafka.
"""

# ruff: noqa: ARG002 - every handler has the signatures of Handler

from __future__ import annotations

from spark_kafka_sink.devbroker.handlers.handler import NO_AUTHORIZER, Handler, RequestContext
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
)


class DeleteAclsHandler(Handler[DeleteAclsRequest, DeleteAclsResponse]):
    """The handler that would delete ACLs."""

    api_key = ApiKey.DELETE_ACLS
    versions = DeleteAclsRequest.versions

    def handle(self, context: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
        """Return an error: there is no authorizer."""
        return self.error_response(context, request, ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)

    def error_response(
        self,
        context: RequestContext,
        request: DeleteAclsRequest,
        error_code: ErrorCode,
        message: str,
    ) -> DeleteAclsResponse:
        """Return a response with the error for each filter."""
        result = DeleteAclsFilterResult(
            error_code=error_code, error_message=message, matching_acls=()
        )
        return DeleteAclsResponse(filter_results=(result,) * len(request.filters))
