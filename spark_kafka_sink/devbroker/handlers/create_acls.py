"""CreateAcls 1-3: would create ACLs.

There is no authorizer, so there are no ACLs, and the response is SECURITY_DISABLED, as in Kafka.
"""

# ruff: noqa: ARG002 - every handler has the signatures of Handler

from __future__ import annotations

from spark_kafka_sink.devbroker.handlers.handler import NO_AUTHORIZER, Handler, RequestContext
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.create_acls import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)


class CreateAclsHandler(Handler[CreateAclsRequest, CreateAclsResponse]):
    """The handler that would create ACLs."""

    api_key = ApiKey.CREATE_ACLS
    versions = CreateAclsRequest.versions

    def handle(self, context: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
        """Return an error: there is no authorizer."""
        return self.error_response(context, request, ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)

    def error_response(
        self,
        context: RequestContext,
        request: CreateAclsRequest,
        error_code: ErrorCode,
        message: str,
    ) -> CreateAclsResponse:
        """Return a response with the error for each ACL."""
        result = AclCreationResult(error_code=error_code, error_message=message)
        return CreateAclsResponse(results=(result,) * len(request.creations))
