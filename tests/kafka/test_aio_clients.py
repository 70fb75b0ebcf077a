"""Both asyncio clients on real Kafka: copies in transactions, by tasks that are cancelled."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter
from contextlib import suppress
from itertools import chain

import pytest

from spark_kafka_sink.consumer.aio_kafka_consumer import AIOKafkaConsumer
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.aio_kafka_producer import AIOKafkaProducer
from tests.support.kafka.readers import read_with_confluent

SEED = 36
PARTITIONS = 3
WORKERS = 2
#: Seconds between two cancellations, at most.
PAUSE = 0.3
#: Seconds; more than a busy machine needs.
PATIENCE = 120

pytestmark = [pytest.mark.slow]


class Copy:
    """A topic that is written all the time, and its copy by workers of a group."""

    def __init__(self, kafka, source, target, protocol):
        """Copy nothing yet."""
        self.source, self.target = source, target
        self.count = 0
        self.errors = Counter()
        self.is_filled = False
        self._servers = {"bootstrap.servers": kafka.bootstrap_servers}
        self._group = {
            "group.id": f"copies-{uuid.uuid4().hex[:8]}",
            "group.protocol": protocol,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "max.poll.records": 20,
        }
        if protocol == "classic":
            self._group["heartbeat.interval.ms"] = 100

    async def fill(self):
        """Write numbers until `is_filled`."""
        async with AIOKafkaProducer(self._servers) as producer:
            while not self.is_filled:
                value = b"%d" % self.count
                await producer.send(self.source, value, partition=self.count % PARTITIONS)
                self.count += 1
                await asyncio.sleep(0.001)

    async def work(self, number):
        """Copy until cancelled, each poll in a transaction; begin again after an error."""
        while True:
            try:
                await self._copy(number)
            except KafkaError as error:
                # A rebalance has fenced the transaction's offsets, for example.
                self.errors[type(error).__name__] += 1

    async def _copy(self, number):
        transactional = {"transactional.id": f"{self._group['group.id']}-{number}"}
        async with (
            AIOKafkaProducer(self._servers | transactional) as producer,
            AIOKafkaConsumer(self._servers | self._group) as consumer,
        ):
            # The offsets of an open transaction, perhaps of a worker before, cannot be read.
            await producer.init_transactions()
            await producer.partitions_for(self.target)
            consumer.subscribe([self.source])
            while True:
                records = await consumer.poll(PATIENCE)
                if not records:
                    continue
                async with producer.transaction():
                    for record in chain(*records.values()):
                        producer.send_nowait(self.target, record.value)
                    await producer.send_offsets_to_transaction(
                        records.next_offsets, consumer.group_metadata()
                    )

    async def await_end(self):
        """Wait until all that was written is copied, by the offsets of the group."""
        partitions = [TopicPartition(self.source, number) for number in range(PARTITIONS)]
        async with AIOKafkaConsumer(self._servers | self._group) as consumer:
            while True:
                offsets = (await consumer.committed(partitions)).values()
                if self.count == sum(found.offset for found in offsets if found is not None):
                    return
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("cancellations", [20, pytest.param(1_000, marks=pytest.mark.soak)])
def test_copies_of_cancelled_tasks_are_exactly_once(kafka_4, protocol, cancellations):
    """Wherever a worker is cancelled, another one goes on, and leaves nothing behind."""
    rng = random.Random(SEED)
    source, target = kafka_4.create_topic(PARTITIONS), kafka_4.create_topic(PARTITIONS)
    copy = Copy(kafka_4, source, target, protocol)

    async def main():
        tasks = asyncio.all_tasks()
        filling = asyncio.create_task(copy.fill())
        workers = [asyncio.create_task(copy.work(number)) for number in range(WORKERS)]
        for _ in range(cancellations):
            await asyncio.sleep(rng.uniform(0, PAUSE))
            number = rng.randrange(WORKERS)
            workers[number].cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait_for(workers[number], PATIENCE)
            workers[number] = asyncio.create_task(copy.work(number))
        copy.is_filled = True
        await filling
        async with asyncio.timeout(PATIENCE):
            await copy.await_end()
        for worker in workers:
            worker.cancel()
        await asyncio.wait(workers)
        assert tasks == asyncio.all_tasks()

    asyncio.run(main())
    copied = read_with_confluent(kafka_4.bootstrap_servers, target)
    expected = {b"%d" % number: 1 for number in range(copy.count)}
    assert expected == Counter(record.value for record in copied), copy.errors
    kafka_4.delete_topics([source, target])
