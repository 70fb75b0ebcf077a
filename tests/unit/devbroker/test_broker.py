"""The broker as a whole: error responses for entire requests, and unexpected errors."""

from __future__ import annotations

import logging

import pytest

from spark_kafka_sink.devbroker.base.refusal import CloseConnectionError
from spark_kafka_sink.devbroker.cluster.standalone_cluster import StandaloneCluster
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from spark_kafka_sink.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest
from spark_kafka_sink.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from spark_kafka_sink.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from spark_kafka_sink.protocol.messages.delete_groups import DeleteGroupsRequest
from spark_kafka_sink.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from spark_kafka_sink.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from spark_kafka_sink.protocol.messages.describe_cluster import DescribeClusterRequest
from spark_kafka_sink.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from spark_kafka_sink.protocol.messages.describe_groups import DescribeGroupsRequest
from spark_kafka_sink.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    TopicRequest,
)
from spark_kafka_sink.protocol.messages.describe_transactions import DescribeTransactionsRequest
from spark_kafka_sink.protocol.messages.end_txn import EndTxnRequest
from spark_kafka_sink.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from spark_kafka_sink.protocol.messages.find_coordinator import FindCoordinatorRequest
from spark_kafka_sink.protocol.messages.heartbeat import HeartbeatRequest
from spark_kafka_sink.protocol.messages.incremental_alter_configs import (
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.protocol.messages.join_group import JoinGroupRequest
from spark_kafka_sink.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from spark_kafka_sink.protocol.messages.list_groups import ListGroupsRequest
from spark_kafka_sink.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from spark_kafka_sink.protocol.messages.list_transactions import ListTransactionsRequest
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from spark_kafka_sink.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from spark_kafka_sink.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from spark_kafka_sink.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from spark_kafka_sink.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from spark_kafka_sink.protocol.messages.sync_group import SyncGroupRequest
from spark_kafka_sink.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from spark_kafka_sink.protocol.primitives import ZERO_UUID
from spark_kafka_sink.protocol.registry import RequestHeader
from tests.support.devbroker.broker_requests import NOW, ask, broker_with

ERROR = ErrorCode.UNKNOWN_SERVER_ERROR


def produce(acks=1):
    return ProduceRequest(
        acks=acks,
        timeout_ms=1,
        topic_data=(
            TopicProduceData(
                name="t",
                partition_data=(
                    PartitionProduceData(index=0, records=b""),
                    PartitionProduceData(index=1, records=b""),
                ),
            ),
        ),
    )


LIST_OFFSETS = ListOffsetsRequest(
    replica_id=-1,
    topics=(
        ListOffsetsTopic(
            name="t", partitions=(ListOffsetsPartition(partition_index=4, timestamp=-1),)
        ),
    ),
)

#: A request of each API, and where its response has error codes.
WHERE_ERRORS_ARE = [
    (produce(), lambda a: [p.error_code for p in a.responses[0].partition_responses]),
    (FetchRequest(max_wait_ms=0, min_bytes=0, topics=()), lambda a: [a.error_code]),
    (LIST_OFFSETS, lambda a: [p.error_code for p in a.topics[0].partitions]),
    (
        MetadataRequest(topics=(MetadataRequestTopic(name="t"),)),
        lambda a: [a.error_code, a.topics[0].error_code],
    ),
    (
        FindCoordinatorRequest(coordinator_keys=("a", "b")),
        lambda a: [c.error_code for c in a.coordinators],
    ),
    (ApiVersionsRequest(), lambda a: [a.error_code]),
    (
        CreateTopicsRequest(
            topics=(CreatableTopic(name="n", num_partitions=1, replication_factor=1),),
            timeout_ms=1,
        ),
        lambda a: [t.error_code for t in a.topics],
    ),
    (
        InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1),
        lambda a: [a.error_code],
    ),
    (
        AddPartitionsToTxnRequest(
            transactions=(
                AddPartitionsToTxnTransaction(
                    transactional_id="x",
                    producer_id=1,
                    producer_epoch=0,
                    topics=(AddPartitionsToTxnTopic(name="t", partitions=(0, 1)),),
                ),
            )
        ),
        lambda a: [
            a.error_code,
            *(
                p.partition_error_code
                for p in a.results_by_transaction[0].topic_results[0].results_by_partition
            ),
        ],
    ),
    (
        AddOffsetsToTxnRequest(transactional_id="x", producer_id=1, producer_epoch=0, group_id="g"),
        lambda a: [a.error_code],
    ),
    (
        EndTxnRequest(transactional_id="x", producer_id=1, producer_epoch=0, committed=True),
        lambda a: [a.error_code],
    ),
    (
        TxnOffsetCommitRequest(
            transactional_id="x",
            group_id="g",
            producer_id=1,
            producer_epoch=0,
            topics=(
                TxnOffsetCommitRequestTopic(
                    name="t",
                    partitions=(
                        TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1),
                    ),
                ),
            ),
        ),
        lambda a: [p.error_code for p in a.topics[0].partitions],
    ),
    (
        JoinGroupRequest(
            group_id="g", session_timeout_ms=1, member_id="", protocol_type="", protocols=()
        ),
        lambda a: [a.error_code],
    ),
    (
        SyncGroupRequest(group_id="g", generation_id=1, member_id="m", assignments=()),
        lambda a: [a.error_code],
    ),
    (
        HeartbeatRequest(group_id="g", generation_id=1, member_id="m"),
        lambda a: [a.error_code],
    ),
    (
        LeaveGroupRequest(group_id="g", members=(MemberIdentity(member_id="m"),)),
        lambda a: [a.error_code],
    ),
    (
        OffsetCommitRequest(
            group_id="g",
            member_id="",
            topics=(
                OffsetCommitRequestTopic(
                    partitions=(
                        OffsetCommitRequestPartition(
                            partition_index=0, committed_offset=1, committed_metadata=None
                        ),
                    ),
                ),
            ),
        ),
        lambda a: [p.error_code for p in a.topics[0].partitions],
    ),
    (
        OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id="g", topics=None),)),
        lambda a: [group.error_code for group in a.groups],
    ),
    (ListGroupsRequest(states_filter=(), types_filter=()), lambda a: [a.error_code]),
    (
        DescribeGroupsRequest(groups=("g",)),
        lambda a: [group.error_code for group in a.groups],
    ),
    (
        DeleteGroupsRequest(groups_names=("g",)),
        lambda a: [result.error_code for result in a.results],
    ),
    (
        DeleteTopicsRequest(topics=(DeleteTopicState(name="t", topic_id=ZERO_UUID),), timeout_ms=1),
        lambda a: [result.error_code for result in a.responses],
    ),
    (
        CreatePartitionsRequest(
            topics=(CreatePartitionsTopic(name="t", count=3, assignments=None),),
            timeout_ms=1,
            validate_only=False,
        ),
        lambda a: [result.error_code for result in a.results],
    ),
    (
        DeleteRecordsRequest(
            topics=(
                DeleteRecordsTopic(
                    name="t", partitions=(DeleteRecordsPartition(partition_index=0, offset=0),)
                ),
            ),
            timeout_ms=1,
        ),
        lambda a: [p.error_code for p in a.topics[0].partitions],
    ),
    (
        DescribeConfigsRequest(
            resources=(
                DescribeConfigsResource(
                    resource_type=2, resource_name="t", configuration_keys=None
                ),
            )
        ),
        lambda a: [result.error_code for result in a.results],
    ),
    (
        IncrementalAlterConfigsRequest(
            resources=(AlterConfigsResource(resource_type=2, resource_name="t", configs=()),),
            validate_only=False,
        ),
        lambda a: [response.error_code for response in a.responses],
    ),
    (
        OffsetForLeaderEpochRequest(
            topics=(
                OffsetForLeaderTopic(
                    topic="t", partitions=(OffsetForLeaderPartition(partition=0, leader_epoch=0),)
                ),
            )
        ),
        lambda a: [p.error_code for p in a.topics[0].partitions],
    ),
    (
        DescribeClusterRequest(include_cluster_authorized_operations=False),
        lambda a: [a.error_code],
    ),
    (
        DescribeProducersRequest(topics=(TopicRequest(name="t", partition_indexes=(0,)),)),
        lambda a: [p.error_code for p in a.topics[0].partitions],
    ),
    (
        DescribeTransactionsRequest(transactional_ids=("x",)),
        lambda a: [state.error_code for state in a.transaction_states],
    ),
    (
        ListTransactionsRequest(state_filters=(), producer_id_filters=()),
        lambda a: [a.error_code],
    ),
]


@pytest.mark.parametrize(
    ("request_", "codes_of"), WHERE_ERRORS_ARE, ids=[r.api_key.name for r, _ in WHERE_ERRORS_ARE]
)
def test_every_api_can_answer_that_all_failed(request_, codes_of):
    """The error code is set in every place where the response has one."""
    broker = broker_with({"t": 2})
    header = RequestHeader(
        request_api_key=request_.api_key,
        request_api_version=request_.versions.max,
        correlation_id=1,
    )

    answer = broker.error_response(header, request_, ERROR, NOW)
    broker.encode_response(header, answer)

    codes = codes_of(answer)
    assert codes
    assert {ERROR} == set(codes)


@pytest.mark.parametrize(
    ("request_", "answers_of"),
    [
        (
            DescribeConfigsRequest(
                resources=(
                    DescribeConfigsResource(
                        resource_type=4, resource_name="1", configuration_keys=None
                    ),
                )
                * 3
            ),
            lambda a: a.results,
        ),
        (DescribeGroupsRequest(groups=("g",) * 3), lambda a: a.groups),
        (
            OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id="g", topics=None),) * 3),
            lambda a: a.groups,
        ),
        (
            OffsetFetchRequest(
                groups=tuple(
                    OffsetFetchRequestGroup(group_id="g", member_id=name, topics=None)
                    for name in ("a", "b", "c")
                )
            ),
            lambda a: a.groups,
        ),
        (
            DescribeProducersRequest(
                topics=(TopicRequest(name="t", partition_indexes=(0, 0)),) * 3
            ),
            lambda a: [p for topic in a.topics for p in topic.partitions],
        ),
        (
            FetchRequest(
                max_wait_ms=0,
                min_bytes=0,
                topics=(
                    FetchTopic(
                        topic_id=ZERO_UUID,
                        partitions=(
                            FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1),
                        )
                        * 2,
                    ),
                )
                * 3,
            ),
            lambda a: [p for topic in a.responses for p in topic.partitions],
        ),
    ],
    ids=lambda value: getattr(type(value), "__name__", None),
)
def test_duplicates_in_one_request_are_answered_once(request_, answers_of):
    """A short request cannot cause a much longer response by repeating itself."""
    assert 1 == len(answers_of(ask(broker_with(), request_)))


def test_an_error_that_has_no_answer_closes_the_connection():
    """With acks=0 there is no response that could carry the error."""
    header = RequestHeader(request_api_key=ApiKey.PRODUCE, request_api_version=9, correlation_id=1)

    with pytest.raises(CloseConnectionError):
        broker_with().error_response(header, produce(acks=0), ERROR, NOW)


def test_an_unsupported_version_of_api_versions_gets_a_version_0_response():
    """An ApiVersions request of a future version gets a version 0 response, even from a fault."""
    header = RequestHeader(
        request_api_key=ApiKey.API_VERSIONS, request_api_version=99, correlation_id=1
    )

    answer = broker_with().error_response(header, ApiVersionsRequest(), ERROR, NOW)

    assert ErrorCode.UNSUPPORTED_VERSION == answer.error_code


def test_an_unexpected_error_is_answered_and_logged(monkeypatch, caplog):
    """A bug in the broker is UNKNOWN_SERVER_ERROR to the client and a traceback in the log."""

    def fail(self):
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(StandaloneCluster, "next_producer_id", fail)
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)

    with caplog.at_level(logging.ERROR):
        assert ERROR == ask(broker_with(), request).error_code
    assert "a defect" in caplog.text
