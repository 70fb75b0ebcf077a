"""The rights that a request needs as a whole, by API, as KafkaApis and ControllerApis check them.

They are checked before the request is handled, and without one of them all of it is refused. Where
the rights depend on what a request contains, or each of its parts is allowed or refused by itself,
the handler checks them.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from spark_kafka_sink.devbroker.base.authorizer import CLUSTER_NAME
from spark_kafka_sink.protocol.acl_codes import AclOperation, ResourceType
from spark_kafka_sink.protocol.api_keys import ApiKey

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_kafka_sink.devbroker.handlers.handler import RequestContext
    from spark_kafka_sink.protocol.schema import AnyRequest


class Right(NamedTuple):
    """An operation on a resource that a request names."""

    operation: AclOperation
    resource_type: ResourceType
    #: The field of the request with the name of the resource; empty for the cluster.
    field: str = ""


_READ_GROUP: Final = Right(AclOperation.READ, ResourceType.GROUP, "group_id")
_WRITE_TRANSACTION: Final = Right(
    AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, "transactional_id"
)


def _cluster(operation: AclOperation) -> tuple[Right]:
    return (Right(operation, ResourceType.CLUSTER),)


#: By API, in the order in which Kafka checks them.
RIGHTS: Final[Mapping[ApiKey, tuple[Right, ...]]] = MappingProxyType(
    {
        ApiKey.OFFSET_COMMIT: (_READ_GROUP,),
        ApiKey.JOIN_GROUP: (_READ_GROUP,),
        ApiKey.SYNC_GROUP: (_READ_GROUP,),
        ApiKey.HEARTBEAT: (_READ_GROUP,),
        ApiKey.LEAVE_GROUP: (_READ_GROUP,),
        ApiKey.CONSUMER_GROUP_HEARTBEAT: (_READ_GROUP,),
        ApiKey.OFFSET_DELETE: (Right(AclOperation.DELETE, ResourceType.GROUP, "group_id"),),
        ApiKey.ADD_OFFSETS_TO_TXN: (_WRITE_TRANSACTION, _READ_GROUP),
        ApiKey.END_TXN: (_WRITE_TRANSACTION,),
        ApiKey.TXN_OFFSET_COMMIT: (_WRITE_TRANSACTION, _READ_GROUP),
        ApiKey.DESCRIBE_ACLS: _cluster(AclOperation.DESCRIBE),
        ApiKey.CREATE_ACLS: _cluster(AclOperation.ALTER),
        ApiKey.DELETE_ACLS: _cluster(AclOperation.ALTER),
        ApiKey.ALTER_REPLICA_LOG_DIRS: _cluster(AclOperation.ALTER),
        ApiKey.DESCRIBE_LOG_DIRS: _cluster(AclOperation.DESCRIBE),
        ApiKey.ELECT_LEADERS: _cluster(AclOperation.ALTER),
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: _cluster(AclOperation.ALTER),
        ApiKey.LIST_PARTITION_REASSIGNMENTS: _cluster(AclOperation.DESCRIBE),
        ApiKey.DESCRIBE_CLIENT_QUOTAS: _cluster(AclOperation.DESCRIBE_CONFIGS),
        ApiKey.ALTER_CLIENT_QUOTAS: _cluster(AclOperation.ALTER_CONFIGS),
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _cluster(AclOperation.DESCRIBE),
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _cluster(AclOperation.ALTER),
        ApiKey.DESCRIBE_QUORUM: _cluster(AclOperation.DESCRIBE),
        ApiKey.UPDATE_FEATURES: _cluster(AclOperation.ALTER),
        ApiKey.UNREGISTER_BROKER: _cluster(AclOperation.ALTER),
        ApiKey.LIST_CONFIG_RESOURCES: _cluster(AclOperation.DESCRIBE_CONFIGS),
    }
)


def check_rights(context: RequestContext, request: AnyRequest) -> None:
    """Raise RefusedError if the client lacks a right that the whole request needs."""
    for right in RIGHTS.get(request.api_key, ()):
        name = getattr(request, right.field) if right.field else CLUSTER_NAME
        context.check_right(right.operation, right.resource_type, name)
