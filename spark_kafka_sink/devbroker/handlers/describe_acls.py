"""DescribeAcls 1-3: would list ACLs.

There is no authorizer, so there are no ACLs, and the response is SECURITY_DISABLED, as in Kafka.
"""

from __future__ import annotations

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.handlers.handler import NO_AUTHORIZER, RequestContext, handles
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.describe_acls import (
    DescribeAclsRequest,
    DescribeAclsResponse,
)


@handles(DescribeAclsRequest)
def describe_acls(_context: RequestContext, _request: DescribeAclsRequest) -> DescribeAclsResponse:
    """Raise RefusedError: there is no authorizer."""
    raise RefusedError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
