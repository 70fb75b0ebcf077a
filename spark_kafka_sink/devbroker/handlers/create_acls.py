"""CreateAcls 1-3: would create ACLs.

There is no authorizer, so there are no ACLs, and the response is SECURITY_DISABLED, as in Kafka.
"""

from __future__ import annotations

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.handlers.handler import NO_AUTHORIZER, RequestContext, handles
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.create_acls import (
    CreateAclsRequest,
    CreateAclsResponse,
)


@handles(CreateAclsRequest)
def create_acls(_context: RequestContext, _request: CreateAclsRequest) -> CreateAclsResponse:
    """Raise RefusedError: there is no authorizer."""
    raise RefusedError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
