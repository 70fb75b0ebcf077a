"""APIs that the broker always refuses, as Kafka does in the same situation.

CreateAcls, DeleteAcls and DescribeAcls 1-3 get SECURITY_DISABLED: there is no authorizer, and so
there are no ACLs.

SaslHandshake 0-1 and SaslAuthenticate 0-2 get ILLEGAL_SASL_STATE. Those that belong to an
authentication never get here: the connection's SaslAuthenticator handles them. On a connection that
has authenticated, or does not need to, they are invalid.
"""

from __future__ import annotations

from typing import NoReturn

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.create_acls import CreateAclsRequest
from spark_kafka_sink.protocol.messages.delete_acls import DeleteAclsRequest
from spark_kafka_sink.protocol.messages.describe_acls import DescribeAclsRequest
from spark_kafka_sink.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from spark_kafka_sink.protocol.messages.sasl_handshake import SaslHandshakeRequest


def _refuse_acls(_context: RequestContext, _request: object) -> NoReturn:
    raise RefusedError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")


def _refuse_sasl(_context: RequestContext, _request: object) -> NoReturn:
    raise RefusedError(
        ErrorCode.ILLEGAL_SASL_STATE,
        "SaslAuthenticate request received after successful authentication",
    )


create_acls = handles(CreateAclsRequest)(_refuse_acls)
delete_acls = handles(DeleteAclsRequest)(_refuse_acls)
describe_acls = handles(DescribeAclsRequest)(_refuse_acls)
sasl_authenticate = handles(SaslAuthenticateRequest)(_refuse_sasl)
sasl_handshake = handles(SaslHandshakeRequest)(_refuse_sasl)
