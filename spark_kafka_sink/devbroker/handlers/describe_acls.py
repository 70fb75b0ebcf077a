"""DescribeAcls 1-3: would list ACLs.

There is no authorizer, so there are no ACLs, and the response is SECURITY_DISABLED, as in Kafka.
"""

# ruff: noqa: ARG002 - every handler has the signatures of Handler

from __future__ import annotations

from spark_kafka_sink.devbroker.handlers.handler import NO_AUTHORIZER, Handler, RequestContext
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.describe_acls import (
    DescribeAclsRequest,
    DescribeAclsResponse,
)


class DescribeAclsHandler(Handler[DescribeAclsRequest, DescribeAclsResponse]):
    """The handler that would list ACLs."""

    api_key = ApiKey.DESCRIBE_ACLS
    versions = DescribeAclsRequest.versions

    def handle(self, context: RequestContext, request: DescribeAclsRequest) -> DescribeAclsResponse:
        """Return an error: there is no authorizer."""
        return self.error_response(context, request, ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)

    def error_response(
        self,
        context: RequestContext,
        request: DescribeAclsRequest,
        error_code: ErrorCode,
        message: str,
    ) -> DescribeAclsResponse:
        """Return a response with the error."""
        return DescribeAclsResponse(error_code=error_code, error_message=message, resources=())
