"""ApiVersions: the supported APIs, and the responses to unsupported versions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_kafka_sink.devbroker.base.refusal import CloseConnectionError
from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest
from spark_kafka_sink.protocol.registry import RequestHeader, decode_response, encode_request
from tests.support.devbroker.broker_requests import NOW, ask, broker_with

REQUEST = ApiVersionsRequest(client_software_name="test", client_software_version="1.0")


def ranges(response):
    return {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}


@pytest.mark.parametrize("version", range(6))
def test_every_version_lists_all_apis(version):
    """All versions list the same APIs with the same version ranges."""
    response = ask(broker_with(), ApiVersionsRequest() if version < 3 else REQUEST, version)

    assert ErrorCode.NONE == response.error_code
    assert {
        ApiKey.PRODUCE: (0, 13),
        ApiKey.FETCH: (4, 17),
        ApiKey.LIST_OFFSETS: (1, 10),
        ApiKey.METADATA: (0, 13),
        ApiKey.FIND_COORDINATOR: (0, 6),
        ApiKey.SASL_HANDSHAKE: (0, 1),
        ApiKey.API_VERSIONS: (0, 5),
        ApiKey.CREATE_TOPICS: (2, 7),
        ApiKey.INIT_PRODUCER_ID: (0, 5),
        ApiKey.ADD_PARTITIONS_TO_TXN: (0, 5),
        ApiKey.ADD_OFFSETS_TO_TXN: (0, 4),
        ApiKey.END_TXN: (0, 5),
        ApiKey.WRITE_TXN_MARKERS: (1, 2),
        ApiKey.TXN_OFFSET_COMMIT: (0, 6),
        ApiKey.JOIN_GROUP: (0, 9),
        ApiKey.SYNC_GROUP: (0, 5),
        ApiKey.HEARTBEAT: (0, 4),
        ApiKey.LEAVE_GROUP: (0, 5),
        ApiKey.OFFSET_COMMIT: (2, 10),
        ApiKey.OFFSET_FETCH: (1, 10),
        ApiKey.LIST_GROUPS: (0, 5),
        ApiKey.DESCRIBE_GROUPS: (0, 6),
        ApiKey.DELETE_GROUPS: (0, 3),
        ApiKey.DELETE_TOPICS: (1, 6),
        ApiKey.SASL_AUTHENTICATE: (0, 2),
        ApiKey.CREATE_PARTITIONS: (0, 3),
        ApiKey.DELETE_RECORDS: (0, 2),
        ApiKey.DESCRIBE_CONFIGS: (1, 4),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: (2, 4),
        ApiKey.DESCRIBE_CLUSTER: (0, 2),
        ApiKey.DESCRIBE_PRODUCERS: (0, 0),
        ApiKey.DESCRIBE_TRANSACTIONS: (0, 0),
        ApiKey.LIST_TRANSACTIONS: (0, 2),
        ApiKey.OFFSET_DELETE: (0, 0),
        ApiKey.DESCRIBE_CLIENT_QUOTAS: (0, 1),
        ApiKey.ALTER_CLIENT_QUOTAS: (0, 1),
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (0, 0),
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (0, 0),
        ApiKey.CONSUMER_GROUP_HEARTBEAT: (0, 1),
        ApiKey.CONSUMER_GROUP_DESCRIBE: (0, 1),
        ApiKey.DESCRIBE_ACLS: (1, 3),
        ApiKey.CREATE_ACLS: (1, 3),
        ApiKey.DELETE_ACLS: (1, 3),
        ApiKey.ALTER_CONFIGS: (0, 2),
        ApiKey.ALTER_REPLICA_LOG_DIRS: (1, 2),
        ApiKey.DESCRIBE_LOG_DIRS: (1, 5),
        ApiKey.ELECT_LEADERS: (0, 2),
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: (0, 1),
        ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, 0),
        ApiKey.DESCRIBE_QUORUM: (0, 2),
        ApiKey.LIST_CONFIG_RESOURCES: (0, 1),
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: (0, 0),
    } == ranges(response)


@pytest.mark.parametrize(
    ("transaction_version", "expected"), [(2, [("transaction.version", 2, 2)]), (0, [])]
)
def test_the_level_of_transactions_is_a_finalized_feature(transaction_version, expected):
    """Clients learn from the finalized feature which transaction protocol to use (KIP-890)."""
    broker = broker_with(transaction_version=transaction_version)
    response = ask(broker, REQUEST, 4)

    assert expected == [
        (feature.name, feature.min_version_level, feature.max_version_level)
        for feature in response.finalized_features
    ]
    assert [("transaction.version", 0, 2)] == [
        (feature.name, feature.min_version, feature.max_version)
        for feature in response.supported_features
    ]
    assert () == ask(broker, REQUEST, 3).supported_features


@pytest.mark.parametrize("version", [6, 99, 32767])
def test_an_unknown_version_is_answered_in_version_0(version):
    """A client newer than the broker learns which version to use (KIP-511)."""
    header = RequestHeader(
        request_api_key=ApiKey.API_VERSIONS, request_api_version=5, correlation_id=3
    )
    frame = bytearray(b"".join(encode_request(header, REQUEST))[4:])
    frame[2:4] = version.to_bytes(2, "big")
    broker = broker_with()

    received, request = broker.decode_request(memoryview(frame))
    answer = broker.encode_response(received, broker.handle(received, request, NOW))
    correlation_id, response = decode_response(ApiKey.API_VERSIONS, 0, b"".join(answer)[4:])

    assert (3, ErrorCode.UNSUPPORTED_VERSION) == (correlation_id, response.error_code)
    assert {ApiKey.API_VERSIONS: (0, 5)} == ranges(response)


@pytest.mark.parametrize(
    ("name", "version"), [("", "1.0"), ("test", ""), ("-test", "1"), ("te st", "1"), ("t", "1.")]
)
def test_an_impossible_software_name_is_refused(name, version):
    """Since version 3 the name and version of the client software must have a valid form."""
    request = ApiVersionsRequest(client_software_name=name, client_software_version=version)

    assert ErrorCode.INVALID_REQUEST == ask(broker_with(), request).error_code


@pytest.mark.parametrize(
    ("cluster_id", "node_id", "code"),
    [
        ("own", 1, ErrorCode.NONE),
        (None, 9, ErrorCode.NONE),
        ("own", 2, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("other", 1, ErrorCode.REBOOTSTRAP_REQUIRED),
    ],
)
def test_a_client_that_means_another_broker_is_told(cluster_id, node_id, code):
    """The ids of cluster and node are compared if the client knows the cluster (KIP-1242)."""
    broker = broker_with()
    own = broker.cluster.cluster_id
    request = replace(
        REQUEST, cluster_id=own if cluster_id == "own" else cluster_id, node_id=node_id
    )
    response = ask(broker, request, 5)
    assert code == response.error_code
    assert bool(response.api_keys) == (code is ErrorCode.NONE)


def decode(api_key, version, body=b""):
    frame = api_key.to_bytes(2, "big") + version.to_bytes(2, "big") + b"\0\0\0\1\xff\xff" + body
    return broker_with().decode_request(frame)


@pytest.mark.parametrize(
    ("api_key", "version"),
    [(ApiKey.PRODUCE, 2), (ApiKey.PRODUCE, 14), (ApiKey.METADATA, 99), (ApiKey.FETCH, 3)],
)
def test_an_unsupported_version_closes_the_connection(api_key, version):
    """For any API but ApiVersions, Kafka does not respond to an unsupported version."""
    with pytest.raises(CloseConnectionError, match=f"version {version} of API .* is not supported"):
        decode(api_key, version, b"\0" * 20)


@pytest.mark.parametrize("api_key", [ApiKey.UPDATE_FEATURES, ApiKey.CREATE_DELEGATION_TOKEN])
def test_an_unsupported_api_closes_the_connection(api_key):
    """A Kafka API that this broker does not implement gets no response."""
    with pytest.raises(CloseConnectionError):
        decode(api_key, 0, b"\0" * 20)


def test_an_unknown_api_key_cannot_be_decoded():
    """A request with an API key that Kafka does not have cannot be decoded."""
    with pytest.raises(DecodeError):
        decode(12345, 0)
