"""A cluster and its brokers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_kafka_sink.admin.values.acls import AclOperation
    from spark_kafka_sink.model import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    """A cluster and its brokers.

    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     cluster = admin.describe_cluster()
    >>> [node.node_id for node in cluster.nodes], cluster.controller.node_id
    ([1], 1)
    """

    #: The id that the cluster was formatted with.
    cluster_id: str
    #: The controller; with KRaft, any broker, which forwards to it. None if there is none.
    controller: Node | None
    #: The running brokers.
    nodes: tuple[Node, ...]
    #: What this user may do with the cluster; None unless it was requested.
    authorized_operations: frozenset[AclOperation] | None = None
