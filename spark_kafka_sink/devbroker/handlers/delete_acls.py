"""DeleteAcls 1-3: would delete ACLs.

There is no authorizer, so there are no ACLs, and the response is SECURITY_DISABLED, as in Kafka.
"""

from __future__ import annotations

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.handlers.handler import NO_AUTHORIZER, RequestContext, handles
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.delete_acls import (
    DeleteAclsRequest,
    DeleteAclsResponse,
)


@handles(DeleteAclsRequest)
def delete_acls(_context: RequestContext, _request: DeleteAclsRequest) -> DeleteAclsResponse:
    """Raise RefusedError: there is no authorizer."""
    raise RefusedError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
