"""Responses to requests that failed as a whole, as they follow from the schemas."""

from __future__ import annotations

import uuid

import pytest

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.handlers.handler import failed_response, failed_result
from spark_kafka_sink.protocol.codec import encode_bytes
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from spark_kafka_sink.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from spark_kafka_sink.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from spark_kafka_sink.protocol.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from spark_kafka_sink.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from spark_kafka_sink.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from spark_kafka_sink.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from spark_kafka_sink.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from spark_kafka_sink.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from spark_kafka_sink.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from spark_kafka_sink.protocol.primitives import ZERO_UUID

ERROR = ErrorCode.UNKNOWN_SERVER_ERROR
TOPIC_ID = uuid.UUID(int=5)


def _described(group_id, **fields):
    return DescribedGroup(
        error_code=ERROR,
        group_id=group_id,
        group_state="",
        protocol_type="",
        protocol_data="",
        members=(),
        **fields,
    )


FAILED = {
    "one error code for all": (
        SyncGroupRequest(group_id="g", generation_id=1, member_id="m", assignments=()),
        5,
        SyncGroupResponse(error_code=ERROR, assignment=b""),
    ),
    "with a message": (
        DescribeClusterRequest(include_cluster_authorized_operations=False),
        2,
        DescribeClusterResponse(error_code=ERROR, error_message="why", cluster_id="", brokers=()),
    ),
    "partitions of topics": (
        OffsetCommitRequest(
            group_id="g",
            member_id="m",
            topics=(
                OffsetCommitRequestTopic(
                    topic_id=TOPIC_ID,
                    partitions=(
                        OffsetCommitRequestPartition(
                            partition_index=7, committed_offset=1, committed_metadata=None
                        ),
                        OffsetCommitRequestPartition(
                            partition_index=8, committed_offset=1, committed_metadata=None
                        ),
                    ),
                ),
                OffsetCommitRequestTopic(topic_id=ZERO_UUID, partitions=()),
            ),
        ),
        10,
        OffsetCommitResponse(
            topics=(
                OffsetCommitResponseTopic(
                    topic_id=TOPIC_ID,
                    partitions=(
                        OffsetCommitResponsePartition(partition_index=7, error_code=ERROR),
                        OffsetCommitResponsePartition(partition_index=8, error_code=ERROR),
                    ),
                ),
                OffsetCommitResponseTopic(topic_id=ZERO_UUID, partitions=()),
            )
        ),
    ),
    "partitions by number": (
        OffsetFetchRequest(
            group_id="g", topics=(OffsetFetchRequestTopic(name="t", partition_indexes=(3,)),)
        ),
        1,
        OffsetFetchResponse(
            topics=(
                OffsetFetchResponseTopic(
                    name="t",
                    partitions=(
                        OffsetFetchResponsePartition(
                            partition_index=3, committed_offset=0, metadata="", error_code=ERROR
                        ),
                    ),
                ),
            )
        ),
    ),
    "topics by name": (
        DeleteTopicsRequest(topic_names=("a", "b"), timeout_ms=1),
        5,
        DeleteTopicsResponse(
            responses=(
                DeletableTopicResult(name="a", error_code=ERROR, error_message="why"),
                DeletableTopicResult(name="b", error_code=ERROR, error_message="why"),
            )
        ),
    ),
    "topics by name or id": (
        DeleteTopicsRequest(topics=(DeleteTopicState(topic_id=TOPIC_ID),), timeout_ms=1),
        6,
        DeleteTopicsResponse(
            responses=(
                DeletableTopicResult(
                    name=None, topic_id=TOPIC_ID, error_code=ERROR, error_message="why"
                ),
            )
        ),
    ),
    "not what else they have in common": (
        CreateTopicsRequest(
            topics=(CreatableTopic(name="t", num_partitions=3, replication_factor=2),)
        ),
        7,
        CreateTopicsResponse(
            topics=(CreatableTopicResult(name="t", error_code=ERROR, error_message="why"),)
        ),
    ),
    "resources": (
        DescribeConfigsRequest(
            resources=(
                DescribeConfigsResource(
                    resource_type=2, resource_name="t", configuration_keys=("k",)
                ),
            )
        ),
        4,
        DescribeConfigsResponse(
            results=(
                DescribeConfigsResult(
                    error_code=ERROR,
                    error_message="why",
                    resource_type=2,
                    resource_name="t",
                    configs=(),
                ),
            )
        ),
    ),
    "results without names": (
        CreateAclsRequest(
            creations=(
                AclCreation(
                    resource_type=2,
                    resource_name="t",
                    principal="User:a",
                    host="*",
                    operation=3,
                    permission_type=3,
                ),
            )
            * 2
        ),
        3,
        CreateAclsResponse(results=(AclCreationResult(error_code=ERROR, error_message="why"),) * 2),
    ),
    "a message, in versions with one": (
        DescribeGroupsRequest(groups=("g",)),
        6,
        DescribeGroupsResponse(groups=(_described("g", error_message="why"),)),
    ),
    "no message before": (
        DescribeGroupsRequest(groups=("g",)),
        5,
        DescribeGroupsResponse(groups=(_described("g"),)),
    ),
}


@pytest.mark.parametrize(("request_", "version", "expected"), FAILED.values(), ids=FAILED)
def test_a_failure_is_said_where_the_schema_has_a_place_for_it(request_, version, expected):
    """Each result has the error and names its item, and the version can represent it."""
    failed = failed_response(request_, version, {"error_code": ERROR, "error_message": "why"})

    assert expected == failed
    assert encode_bytes(expected, version) == encode_bytes(failed, version)


@pytest.mark.parametrize(("version", "message"), [(6, "why"), (5, None)])
def test_a_refused_item_has_its_error_and_nothing_else(version, message):
    """A result has the names, the error and, in versions with a field for it, the message."""
    refused = RefusedError(ERROR, "why")

    failed = failed_result(DescribedGroup, version, refused, {"group_id": "g"})

    assert _described("g", error_message=message) == failed


def test_other_values_are_those_of_the_version():
    """A field has its value at whatever depth the version has it."""
    values = {"error_code": ERROR, "node_id": -1, "port": -2}

    one = failed_response(FindCoordinatorRequest(key="k"), 3, values)
    many = failed_response(FindCoordinatorRequest(coordinator_keys=("k",)), 4, values)

    assert FindCoordinatorResponse(error_code=ERROR, node_id=-1, port=-2) == one
    assert many == FindCoordinatorResponse(
        coordinators=(Coordinator(key="k", node_id=-1, host="", port=-2, error_code=ERROR),)
    )
