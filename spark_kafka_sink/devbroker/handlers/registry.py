"""The table of request handlers: a new handler is registered here, and nowhere else.

The broker finds the handler of a request in it, and ApiVersions lists the APIs and versions in it.
ApiVersions itself is not in the table, since its handler is made from the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.devbroker.handlers.add_offsets_to_txn import AddOffsetsToTxnHandler
from spark_kafka_sink.devbroker.handlers.add_partitions_to_txn import AddPartitionsToTxnHandler
from spark_kafka_sink.devbroker.handlers.consumer_group_describe import (
    ConsumerGroupDescribeHandler,
)
from spark_kafka_sink.devbroker.handlers.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatHandler,
)
from spark_kafka_sink.devbroker.handlers.create_acls import CreateAclsHandler
from spark_kafka_sink.devbroker.handlers.create_partitions import CreatePartitionsHandler
from spark_kafka_sink.devbroker.handlers.create_topics import CreateTopicsHandler
from spark_kafka_sink.devbroker.handlers.delete_acls import DeleteAclsHandler
from spark_kafka_sink.devbroker.handlers.delete_groups import DeleteGroupsHandler
from spark_kafka_sink.devbroker.handlers.delete_records import DeleteRecordsHandler
from spark_kafka_sink.devbroker.handlers.delete_topics import DeleteTopicsHandler
from spark_kafka_sink.devbroker.handlers.describe_acls import DescribeAclsHandler
from spark_kafka_sink.devbroker.handlers.describe_cluster import DescribeClusterHandler
from spark_kafka_sink.devbroker.handlers.describe_configs import DescribeConfigsHandler
from spark_kafka_sink.devbroker.handlers.describe_groups import DescribeGroupsHandler
from spark_kafka_sink.devbroker.handlers.describe_producers import DescribeProducersHandler
from spark_kafka_sink.devbroker.handlers.describe_transactions import DescribeTransactionsHandler
from spark_kafka_sink.devbroker.handlers.end_txn import EndTxnHandler
from spark_kafka_sink.devbroker.handlers.fetch import FetchHandler
from spark_kafka_sink.devbroker.handlers.find_coordinator import FindCoordinatorHandler
from spark_kafka_sink.devbroker.handlers.heartbeat import HeartbeatHandler
from spark_kafka_sink.devbroker.handlers.incremental_alter_configs import (
    IncrementalAlterConfigsHandler,
)
from spark_kafka_sink.devbroker.handlers.init_producer_id import InitProducerIdHandler
from spark_kafka_sink.devbroker.handlers.join_group import JoinGroupHandler
from spark_kafka_sink.devbroker.handlers.leave_group import LeaveGroupHandler
from spark_kafka_sink.devbroker.handlers.list_groups import ListGroupsHandler
from spark_kafka_sink.devbroker.handlers.list_offsets import ListOffsetsHandler
from spark_kafka_sink.devbroker.handlers.list_transactions import ListTransactionsHandler
from spark_kafka_sink.devbroker.handlers.metadata import MetadataHandler
from spark_kafka_sink.devbroker.handlers.offset_commit import OffsetCommitHandler
from spark_kafka_sink.devbroker.handlers.offset_delete import OffsetDeleteHandler
from spark_kafka_sink.devbroker.handlers.offset_fetch import OffsetFetchHandler
from spark_kafka_sink.devbroker.handlers.offset_for_leader_epoch import OffsetForLeaderEpochHandler
from spark_kafka_sink.devbroker.handlers.produce import ProduceHandler
from spark_kafka_sink.devbroker.handlers.sasl_authenticate import SaslAuthenticateHandler
from spark_kafka_sink.devbroker.handlers.sasl_handshake import SaslHandshakeHandler
from spark_kafka_sink.devbroker.handlers.sync_group import SyncGroupHandler
from spark_kafka_sink.devbroker.handlers.txn_offset_commit import TxnOffsetCommitHandler

if TYPE_CHECKING:
    from spark_kafka_sink.devbroker.handlers.handler import Handler

#: The handlers have no state: all brokers of a process share them.
HANDLERS: Final[tuple[Handler[Any, Any], ...]] = (
    ProduceHandler(),
    FetchHandler(),
    ListOffsetsHandler(),
    MetadataHandler(),
    FindCoordinatorHandler(),
    CreateTopicsHandler(),
    InitProducerIdHandler(),
    AddPartitionsToTxnHandler(),
    AddOffsetsToTxnHandler(),
    EndTxnHandler(),
    IncrementalAlterConfigsHandler(),
    DescribeConfigsHandler(),
    DescribeClusterHandler(),
    OffsetForLeaderEpochHandler(),
    DeleteRecordsHandler(),
    CreatePartitionsHandler(),
    DeleteTopicsHandler(),
    DescribeProducersHandler(),
    ListTransactionsHandler(),
    DescribeTransactionsHandler(),
    DescribeAclsHandler(),
    CreateAclsHandler(),
    DeleteAclsHandler(),
    DeleteGroupsHandler(),
    DescribeGroupsHandler(),
    HeartbeatHandler(),
    JoinGroupHandler(),
    LeaveGroupHandler(),
    ListGroupsHandler(),
    OffsetCommitHandler(),
    OffsetDeleteHandler(),
    OffsetFetchHandler(),
    SyncGroupHandler(),
    ConsumerGroupHeartbeatHandler(),
    ConsumerGroupDescribeHandler(),
    TxnOffsetCommitHandler(),
    SaslHandshakeHandler(),
    SaslAuthenticateHandler(),
)
