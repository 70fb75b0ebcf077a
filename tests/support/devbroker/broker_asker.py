"""A client of one broker and one connection, for Kafka and for the embedded broker.

It sends exactly the bytes that it is given. Its methods return the parts of a response that should
be equal for both brokers: error codes, offsets, visible records. Error messages are left out, since
each broker has its own.
"""

from __future__ import annotations

import time
import uuid
from contextlib import closing
from typing import TYPE_CHECKING, Any

from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from spark_kafka_sink.protocol.messages.describe_transactions import DescribeTransactionsRequest
from spark_kafka_sink.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
)
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
from spark_kafka_sink.record.record_batch import decode_header, split_record_batches
from tests.support.network.raw_client import RawClient
from tests.support.record.plain_batches import PlainRecord, plain_batch

if TYPE_CHECKING:
    from collections.abc import Callable

#: The newest versions that Kafka 3.9 supports.
PRODUCE, FETCH, LIST_OFFSETS, METADATA, CREATE_TOPICS = 11, 17, 9, 12, 7


class Asker:
    """A client of one broker, with one connection."""

    def __init__(self, port):
        self.port = port
        self.client = RawClient(port)

    def close(self):
        """Close the connection."""
        self.client.close()

    def ask(self, request, version):
        """Send a request and return its response."""
        return self.client.ask(request, version)

    def is_closed_by(self, data):
        """Send bytes on a separate connection; return whether the broker closes it."""
        with RawClient(self.port) as client:
            client.send_bytes(data)
            return client.is_closed()

    def create(self, *topics, validate_only=False):
        """Create topics; return the results."""
        request = CreateTopicsRequest(topics=topics, timeout_ms=20_000, validate_only=validate_only)
        return self.ask(request, CREATE_TOPICS).topics

    def topic(self, partitions=1, **configs):
        """Create a topic, wait until it is writable, and return its name."""
        name = f"conformance-{uuid.uuid4().hex}"
        # Otherwise Kafka's retention may remove records with old timestamps at any time.
        configs = {"retention_ms": "-1"} | configs
        (result,) = self.create(
            creatable(name, partitions, **{key.replace("_", "."): v for key, v in configs.items()})
        )
        assert 0 == result.error_code
        asked = [(name, index, -1) for index in range(partitions)]
        deadline = time.monotonic() + 20
        while any(answer[0] for answer in self.offsets(*asked)):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return name

    def topic_id(self, topic):
        """Look up the id of a topic."""
        request = MetadataRequest(topics=(MetadataRequestTopic(name=topic),))
        return self.ask(request, METADATA).topics[0].topic_id

    def produce(self, topic, *records, acks=-1, transactional_id=None, version=PRODUCE):
        """Append to partitions 0, 1, ... of a topic; return each partition's result."""
        answer = self.ask(
            produce_request(topic, *records, acks=acks, transactional_id=transactional_id), version
        )
        return sorted(
            (
                partition.index,
                partition.error_code,
                partition.base_offset,
                partition.log_append_time_ms,
                partition.log_start_offset,
                [error.batch_index for error in partition.record_errors],
            )
            for topic in answer.responses
            for partition in topic.partition_responses
        )

    def wait_for_coordinators(self):
        """Wait until a Kafka that has just started can serve transactions and producer ids."""
        asked = FindCoordinatorRequest(key_type=1, coordinator_keys=("anyone",))
        # So many ids are in all partitions of the transaction log.
        described = DescribeTransactionsRequest(transactional_ids=tuple(map(str, range(200))))
        init = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
        deadline = time.monotonic() + 30
        while (
            self.ask(asked, 4).coordinators[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
            or self.ask(init, 4).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            or any(
                state.error_code
                in {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}
                for state in self.ask(described, 0).transaction_states
            )
        ):
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def offsets(self, *partitions, version=LIST_OFFSETS):
        """List offsets of (topic, partition, timestamp[, leader epoch])."""
        request = ListOffsetsRequest(
            replica_id=-1,
            topics=tuple(
                ListOffsetsTopic(
                    name=topic,
                    partitions=(
                        ListOffsetsPartition(
                            partition_index=index,
                            timestamp=timestamp,
                            current_leader_epoch=epoch[0] if epoch else -1,
                        ),
                    ),
                )
                for topic, index, timestamp, *epoch in partitions
            ),
        )
        return sorted(
            (p.error_code, p.timestamp, p.offset, p.leader_epoch)
            for topic in self.ask(request, version).topics
            for p in topic.partitions
        )

    def fetch(
        self,
        topic,
        offsets,
        *,
        version=FETCH,
        partition_max_bytes=10**8,
        current_leader_epoch=-1,
        last_fetched_epoch=-1,
        **fields,
    ):
        """Fetch partitions 0, 1, ... of a topic from these offsets; return each one's result."""
        (known,) = self.ask(
            MetadataRequest(
                topics=(MetadataRequestTopic(name=topic),), allow_auto_topic_creation=False
            ),
            METADATA,
        ).topics
        by_id = known.topic_id if known.error_code == 0 else uuid.UUID(int=77)
        request = FetchRequest(
            **{
                "max_wait_ms": 0,
                "min_bytes": 1,
                "topics": (
                    FetchTopic(
                        **({"topic": topic} if version < 13 else {"topic_id": by_id}),
                        partitions=tuple(
                            FetchPartition(
                                partition=index,
                                fetch_offset=offset,
                                partition_max_bytes=partition_max_bytes,
                                current_leader_epoch=current_leader_epoch,
                                last_fetched_epoch=last_fetched_epoch,
                            )
                            for index, offset in enumerate(offsets)
                        ),
                    ),
                ),
            }
            | fields
        )
        answer = self.ask(request, version)
        return answer.error_code, sorted(
            (
                p.partition_index,
                p.error_code,
                p.high_watermark,
                p.last_stable_offset,
                p.log_start_offset,
                p.aborted_transactions,
                (p.diverging_epoch.epoch, p.diverging_epoch.end_offset),
                p.current_leader.leader_epoch,
                [decode_header(b).base_offset for b in split_record_batches(p.records or b"")],
            )
            for topic in answer.responses
            for p in topic.partitions
        )


def creatable(
    name: str,
    partitions: int = 1,
    replication: int = -1,
    assignments: Any = (),
    **configs: str | None,
) -> CreatableTopic:
    """Describe a topic to create; assignments are pairs of a partition and its brokers."""
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication,
        assignments=tuple(
            CreatableReplicaAssignment(partition_index=index, broker_ids=tuple(brokers))
            for index, brokers in assignments
        ),
        configs=tuple(CreatableTopicConfig(name=k, value=v) for k, v in configs.items()),
    )


def produce_request(
    topic: str, *records: bytes, acks: int = -1, transactional_id: str | None = None
) -> ProduceRequest:
    """Create a request to append to partitions 0, 1, ... of a topic."""
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=10_000,
        topic_data=(
            TopicProduceData(
                name=topic,
                partition_data=tuple(
                    PartitionProduceData(index=index, records=data)
                    for index, data in enumerate(records)
                ),
            ),
        ),
    )


def sequenced(
    sequence: int, count: int = 1, *, epoch: int = 0, producer_id: int = 4_000_000, **fields: Any
) -> bytes:
    """Create a batch of an idempotent producer."""
    return plain_batch(
        [PlainRecord(timestamp=1000)] * count,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        **fields,
    )


def observe(scenario: Callable[[Asker], Any], port: int) -> Any:
    """Return what a scenario observes at the broker with this port."""
    with closing(Asker(port)) as asker:
        return scenario(asker)
