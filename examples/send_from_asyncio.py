"""Send records from asyncio: one by one, many at a time, and in transactions.

python examples/send_from_asyncio.py [--bootstrap-servers HOST:PORT]
"""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

from cluster import kafka_for

from spark_kafka_sink import AIOKafkaProducer, KafkaError

if TYPE_CHECKING:
    from spark_kafka_sink import RecordMetadata

TOPIC = "visits"
VISITORS = 200


async def handle_visit(producer: AIOKafkaProducer, visitor: int) -> RecordMetadata:
    """Handle a request as a web server does: answer when its record is acknowledged."""
    return await producer.send(TOPIC, {"visitor": visitor, "page": "/"}, key=f"visitor-{visitor}")


async def send_visits(bootstrap_servers: str) -> None:
    """Send the records of many tasks at the same time, and of one task without waiting."""
    settings = {
        "bootstrap.servers": bootstrap_servers,
        "key.serializer": "string",
        "value.serializer": "json",
    }
    async with AIOKafkaProducer(settings) as producer:
        visits = await asyncio.gather(*(handle_visit(producer, n) for n in range(VISITORS)))
        print(f"{len(visits)} visits are in partitions {sorted({v.partition for v in visits})}")
        futures = [producer.send_nowait(TOPIC, {"page": f"/{n}"}) for n in range(10_000)]
        await producer.flush()
        failed = sum(future.exception() is not None for future in futures)
        print(f"{len(futures)} more were sent without waiting, {failed} of them failed")


async def send_orders(bootstrap_servers: str) -> None:
    """Write each order with its items in a transaction; a cancelled one leaves nothing."""
    settings = {
        "bootstrap.servers": bootstrap_servers,
        "transactional.id": f"orders-{uuid.uuid4().hex[:8]}",
        "value.serializer": "json",
    }
    async with AIOKafkaProducer(settings) as producer:

        async def order(number: int, seconds: float) -> None:
            async with producer.transaction():
                await producer.send(TOPIC, {"order": number, "item": "a book"})
                await asyncio.sleep(seconds)
                await producer.send(TOPIC, {"order": number, "item": "a pen"})

        await order(1, seconds=0)
        print("the first order is committed")
        try:
            await asyncio.wait_for(order(2, seconds=3600), timeout=0.5)
        except TimeoutError:
            print("the second order took too long: its transaction is aborted")
        await order(3, seconds=0)
        print("the third order is committed")


async def send_too_much(bootstrap_servers: str) -> None:
    """Show that the error of a record is raised where it was sent."""
    async with AIOKafkaProducer({"bootstrap.servers": bootstrap_servers}) as producer:
        try:
            await producer.send(TOPIC, bytes(2_000_000))
        except KafkaError as error:
            print(f"refused: {error}")


def main() -> None:
    """Send to the topic in three ways."""
    with kafka_for(TOPIC, partitions=3) as bootstrap_servers:
        for send in (send_visits, send_orders, send_too_much):
            asyncio.run(send(bootstrap_servers))


if __name__ == "__main__":
    main()
