"""Consume in tasks of asyncio: members of a group on one event loop, and calls that time out.

python examples/consume_from_asyncio.py [--bootstrap-servers HOST:PORT]
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from cluster import kafka_for

from spark_kafka_sink import (
    AIOKafkaConsumer,
    AIOKafkaProducer,
    ConsumerRebalanceListener,
    TopicPartition,
)

if TYPE_CHECKING:
    from collections.abc import Collection

TOPIC = "jobs"
JOBS = 300


class Committing(ConsumerRebalanceListener):
    """Commits what was done before another member gets the partitions."""

    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self.consumer = consumer

    async def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Commit, and wait for it."""
        if partitions:
            await self.consumer.commit()


async def send_jobs(bootstrap_servers: str) -> None:
    """Send the jobs of all workers."""
    settings = {"bootstrap.servers": bootstrap_servers, "value.serializer": "json"}
    async with AIOKafkaProducer(settings) as producer:
        await producer.partitions_for(TOPIC)
        futures = [producer.send_nowait(TOPIC, {"job": n}, key=b"%d" % n) for n in range(JOBS)]
        await asyncio.gather(*futures)


async def work(bootstrap_servers: str, done: set[int], all_done: asyncio.Event) -> None:
    """Do jobs until the task is cancelled; then leave the group."""
    settings = {
        "bootstrap.servers": bootstrap_servers,
        "group.id": "workers",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        # So that members soon hear of one another.
        "heartbeat.interval.ms": 200,
        "value.deserializer": "json",
    }
    async with AIOKafkaConsumer(settings) as consumer:
        consumer.subscribe([TOPIC], listener=Committing(consumer))
        async for record in consumer:
            # Other tasks run while this one waits, and so do the heartbeats of the group.
            await asyncio.sleep(0.001)
            done.add(record.value["job"])
            if len(done) == JOBS:
                all_done.set()


async def share_work(bootstrap_servers: str) -> None:
    """Do all jobs in three tasks, each a member of the group."""
    done: set[int] = set()
    all_done = asyncio.Event()
    workers = [asyncio.create_task(work(bootstrap_servers, done, all_done)) for _ in range(3)]
    await all_done.wait()
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    print(f"{len(done)} of {JOBS} jobs were done by {len(workers)} workers")


async def time_out(bootstrap_servers: str) -> None:
    """Cancel polls at any moment: the next one returns what they had taken."""
    settings = {"bootstrap.servers": bootstrap_servers, "auto.offset.reset": "earliest"}
    async with AIOKafkaConsumer(settings) as consumer:
        partitions = [TopicPartition(TOPIC, number) for number in range(3)]
        consumer.assign(partitions)
        count = 0
        milliseconds = 1
        while count < JOBS:
            try:
                async with asyncio.timeout(milliseconds / 1000):
                    count += len(await consumer.poll_arrow(timeout=60))
            except TimeoutError:
                milliseconds *= 2
        ends = await consumer.end_offsets(partitions)
        print(f"{count} records were read, and {sum(ends.values())} are there")


def main() -> None:
    """Read the topic in two ways."""
    with kafka_for(TOPIC, partitions=3) as bootstrap_servers:
        for step in (send_jobs, share_work, time_out):
            asyncio.run(step(bootstrap_servers))


if __name__ == "__main__":
    main()
