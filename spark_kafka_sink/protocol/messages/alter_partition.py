"""AlterPartition: a leader asks the controller to change the in-sync replicas (KIP-497).

Version 2 names topics by id (KIP-841); version 3 names the epoch of each broker too, so that a
broker that has restarted without its last records is not taken for in sync (KIP-903).
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class BrokerState:
    """A broker of the new ISR, in one incarnation."""

    broker_id: int = field(INT32, versions="3+")
    #: -1: the controller does not check it.
    broker_epoch: int = field(INT64, versions="3+", default=-1)


@message
class AlterPartitionRequestPartition:
    """The wish for one partition, and the epochs that it rests on."""

    partition_index: int = field(INT32)
    leader_epoch: int = field(INT32)
    new_isr: tuple[int, ...] = field(array(INT32), versions="0-2", default=())
    new_isr_with_epochs: tuple[BrokerState, ...] = field(
        array(BrokerState), versions="3+", default=()
    )
    #: 1: the leader is still recovering from an unclean election.
    leader_recovery_state: int = field(INT8, versions="1+", default=0)
    partition_epoch: int = field(INT32)


@message
class AlterPartitionRequestTopic:
    """Partitions of one topic."""

    topic_id: Uuid = field(UUID, versions="2+", ignorable=True)
    partitions: tuple[AlterPartitionRequestPartition, ...] = field(
        array(AlterPartitionRequestPartition)
    )


@message
class AlterPartitionRequest(ApiRequest["AlterPartitionResponse"]):
    """A request for the controller, from the leader of the partitions."""

    api_key = ApiKey.ALTER_PARTITION
    versions = VersionRange(2, 3)

    broker_id: int = field(INT32)
    broker_epoch: int = field(INT64, default=-1)
    topics: tuple[AlterPartitionRequestTopic, ...] = field(array(AlterPartitionRequestTopic))


@message
class AlterPartitionResponsePartition:
    """The resulting state of one partition, or an error."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16, default=0)
    leader_id: int = field(INT32, default=0)
    leader_epoch: int = field(INT32, default=0)
    isr: tuple[int, ...] = field(array(INT32), default=())
    leader_recovery_state: int = field(INT8, versions="1+", ignorable=True, default=0)
    partition_epoch: int = field(INT32, default=0)


@message
class AlterPartitionResponseTopic:
    """Partitions of one topic."""

    topic_id: Uuid = field(UUID, versions="2+", ignorable=True)
    partitions: tuple[AlterPartitionResponsePartition, ...] = field(
        array(AlterPartitionResponsePartition)
    )


@message
class AlterPartitionResponse(ApiResponse, request=AlterPartitionRequest):
    """A response with the state of each partition."""

    throttle_time_ms: int = field(INT32, default=0)
    error_code: int = field(INT16, default=0)
    topics: tuple[AlterPartitionResponseTopic, ...] = field(
        array(AlterPartitionResponseTopic), default=()
    )
