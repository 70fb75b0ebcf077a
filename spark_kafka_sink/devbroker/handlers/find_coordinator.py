"""FindCoordinator 0-6: finds the coordinator of a consumer group or transactional id.

- The coordinator is the broker that leads the id's partition of __consumer_offsets or
  __transaction_state; while no broker does, the error is COORDINATOR_NOT_AVAILABLE. Clients do not
  see these topics (`internal_topics`).
- Share groups, which this broker does not support, and all other key types get INVALID_REQUEST.
- Up to version 3 a request has one key; from version 4 on it has many, each with its own result.
"""

from __future__ import annotations

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.model import Node
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.find_coordinator import (
    Coordinator,
    CoordinatorType,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

_FIRST_VERSION_WITH_MANY_KEYS = 4
_NO_NODE_ID = -1
_NO_PORT = -1
_NO_NODE = Node(_NO_NODE_ID, "", _NO_PORT)
_KINDS = frozenset({CoordinatorType.GROUP, CoordinatorType.TRANSACTION})


@handles(FindCoordinatorRequest, when_failed={"node_id": _NO_NODE_ID, "port": _NO_PORT})
def find_coordinator(
    context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    """Return the coordinator of each key."""
    if request.key_type not in _KINDS:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST,
            f"this broker does not support coordinator key type {request.key_type}",
        )
    if context.version < _FIRST_VERSION_WITH_MANY_KEYS:
        node = context.nodes.get(_coordinator(context, request, request.key), _NO_NODE)
        error_code = _error_code(node)
        return FindCoordinatorResponse(
            error_code=error_code,
            error_message=error_code.name,
            node_id=node.node_id,
            host=node.host,
            port=node.port,
        )
    running = context.nodes
    nodes = [
        (key, running.get(_coordinator(context, request, key), _NO_NODE))
        for key in request.coordinator_keys
    ]
    return FindCoordinatorResponse(
        coordinators=tuple(
            Coordinator(
                key=key,
                node_id=node.node_id,
                host=node.host,
                port=node.port,
                error_code=_error_code(node),
                error_message="",
            )
            for key, node in nodes
        )
    )


def _coordinator(context: RequestContext, request: FindCoordinatorRequest, key: str) -> int:
    if request.key_type == CoordinatorType.GROUP:
        return context.cluster.group_coordinator(key)
    return context.cluster.transaction_coordinator(key)


def _error_code(node: Node) -> ErrorCode:
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if node is _NO_NODE else ErrorCode.NONE
