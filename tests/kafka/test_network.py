"""The network layer alone, with real brokers: topic ids, and recreated topics."""

from __future__ import annotations

import asyncio
import select
from typing import TYPE_CHECKING

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.network.network_client import NetworkClient
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
    partition_responses,
)
from spark_kafka_sink.protocol.primitives import ZERO_UUID
from tests.support.record.plain_batches import plain_batch

if TYPE_CHECKING:
    import uuid

    from tests.support.kafka.real_kafka import KafkaCluster

PATIENCE = 30.0


def _client(kafka: KafkaCluster) -> NetworkClient:
    return NetworkClient(
        ProducerConfig.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
    )


def _deadline() -> float:
    return asyncio.get_running_loop().time() + PATIENCE


async def _produce(
    client: NetworkClient, topic: str, topic_id: uuid.UUID
) -> PartitionProduceResponse:
    """Append a record to a topic's first partition, by name or by id, depending on the version."""
    request = ProduceRequest(
        acks=-1,
        timeout_ms=10_000,
        topic_data=(
            TopicProduceData(
                name=topic,
                topic_id=topic_id,
                partition_data=(PartitionProduceData(index=0, records=plain_batch(1)),),
            ),
        ),
    )
    connection = await client.least_loaded_connection(_deadline())
    response = await connection.send(request)
    return partition_responses(request, response)[TopicPartition(topic, 0)]


def test_records_are_written_by_topic_id(kafka):
    """Produce uses topic ids if both sides support them, and the topic name otherwise."""
    topic = kafka.create_topic(1)

    async def write() -> tuple[bool, bool, list[int]]:
        client = _client(kafka)
        try:
            await client.wait_for_topics([topic], _deadline())
            topic_id = client.metadata.snapshot.topic_id(topic)
            answers = [await _produce(client, topic, it) for it in (topic_id, ZERO_UUID)]
            connection = await client.least_loaded_connection(_deadline())
            by_id = connection.api_versions.version_for(ApiKey.PRODUCE) >= 13
            return topic_id != ZERO_UUID, by_id, [answer.base_offset for answer in answers]
        finally:
            await client.close()

    has_id, by_id, offsets = asyncio.run(write())
    assert has_id
    assert by_id is not kafka.version.startswith("3.")
    assert [0, 1] == offsets


def test_a_recreated_topic_has_a_new_id(kafka_4):
    """The old id is rejected, and the next metadata has the new id and fewer partitions."""
    topic = kafka_4.create_topic(3)

    async def write() -> None:
        client = _client(kafka_4)
        try:
            await client.wait_for_topics([topic], _deadline())
            old_id = client.metadata.snapshot.topic_id(topic)
            kafka_4.delete_topics([topic])
            kafka_4.create_topic(1, name=topic)
            refused = await _produce(client, topic, old_id)
            assert ErrorCode.UNKNOWN_TOPIC_ID == refused.error_code
            client.metadata.request_update()
            await client.update_metadata(_deadline())
            assert 1 == client.metadata.snapshot.partition_count(topic)
            new_id = client.metadata.snapshot.topic_id(topic)
            assert new_id != old_id
            assert ErrorCode.NONE == (await _produce(client, topic, new_id)).error_code
        finally:
            await client.close()

    asyncio.run(write())


def test_metadata_that_arrived_during_a_pause_of_the_process_ends_the_wait(kafka):
    """After a pause beyond the deadline, an answer is read before the timeout is checked."""
    known, wanted = kafka.create_topic(1), kafka.create_topic(2)

    async def wait() -> int:
        client, loop, pause = _client(kafka), asyncio.get_running_loop(), 0.0
        real_time = loop.time
        try:
            await client.wait_for_topics([known], _deadline())
            loop.time = lambda: real_time() + pause
            waiting = loop.create_task(client.wait_for_topics([wanted], _deadline()))
            [connection] = client._connections.values()
            while not connection.in_flight_count:  # noqa: ASYNC110  no time passes
                await asyncio.sleep(0)
            # This blocks the event loop until the answer has arrived.
            select.select([connection._transport._socket], [], [], PATIENCE)
            pause = 2 * PATIENCE
            await waiting
            return client.metadata.snapshot.partition_count(wanted)
        finally:
            await client.close()

    assert 2 == asyncio.run(wait())
