"""Requests with changed bytes: they get a response or close the connection, nothing else."""

from __future__ import annotations

import logging

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_kafka_sink.devbroker.base.refusal import CloseConnectionError
from spark_kafka_sink.devbroker.handlers.handler import Delayed
from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest
from spark_kafka_sink.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from spark_kafka_sink.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from spark_kafka_sink.protocol.messages.find_coordinator import FindCoordinatorRequest
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from spark_kafka_sink.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from spark_kafka_sink.protocol.registry import RequestHeader, encode_request
from spark_kafka_sink.record.compression import CompressionType
from tests.support.devbroker.broker_requests import NOW, broker_with
from tests.support.record.plain_batches import plain_batch


def frame(request, version):
    header = RequestHeader(
        request_api_key=request.api_key,
        request_api_version=version,
        correlation_id=1,
        client_id="fuzz",
    )
    return b"".join(encode_request(header, request))[4:]


def produce(batch):
    return ProduceRequest(
        acks=1,
        timeout_ms=1,
        topic_data=(
            TopicProduceData(
                name="t", partition_data=(PartitionProduceData(index=0, records=batch),)
            ),
        ),
    )


FRAMES = [
    frame(ApiVersionsRequest(client_software_name="x", client_software_version="1"), 4),
    frame(MetadataRequest(topics=(MetadataRequestTopic(name="t"),)), 12),
    frame(MetadataRequest(topics=None), 4),
    frame(produce(plain_batch(3)), 12),
    frame(
        produce(
            plain_batch(
                3,
                compression=CompressionType.LZ4,
                producer_id=1,
                producer_epoch=0,
                base_sequence=0,
            )
        ),
        3,
    ),
    frame(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1), 5),
    frame(FindCoordinatorRequest(key_type=0, coordinator_keys=("g",)), 6),
    frame(
        FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            topics=(
                FetchTopic(
                    topic="t",
                    partitions=(
                        FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=100),
                    ),
                ),
            ),
        ),
        12,
    ),
    frame(
        ListOffsetsRequest(
            replica_id=-1,
            topics=(
                ListOffsetsTopic(
                    name="t", partitions=(ListOffsetsPartition(partition_index=0, timestamp=0),)
                ),
            ),
        ),
        10,
    ),
    frame(
        CreateTopicsRequest(
            topics=(
                CreatableTopic(
                    name="n",
                    num_partitions=1,
                    replication_factor=1,
                    assignments=(CreatableReplicaAssignment(partition_index=0, broker_ids=(1,)),),
                    configs=(CreatableTopicConfig(name="cleanup.policy", value="compact"),),
                ),
            ),
            timeout_ms=1,
        ),
        7,
    ),
]


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    original=st.sampled_from(FRAMES),
    changes=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=4),
    cut=st.one_of(st.none(), st.integers(0, 400)),
)
def test_changed_requests_are_answered_or_close_the_connection(caplog, original, changes, cut):
    """Any bytes lead to a response or a closed connection, and no error is logged."""
    broker = broker_with({"t": 1})
    changed = bytearray(original)
    for position, value in changes:
        changed[position % len(changed)] = value
    caplog.clear()

    try:
        header, request = broker.decode_request(memoryview(changed)[:cut])
        outcome = broker.handle(header, request, NOW)
        if outcome is not None and not isinstance(outcome, Delayed):
            broker.encode_response(header, outcome)
    except (DecodeError, CloseConnectionError):
        pass

    assert [] == [record for record in caplog.records if record.levelno >= logging.ERROR]
