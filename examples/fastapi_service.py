"""A web service (FastAPI) that sends what it receives, and shows what was sent, on one event loop.

python examples/fastapi_service.py [--bootstrap-servers HOST:PORT]

It runs until Ctrl-C, and needs `pip install fastapi uvicorn`. Try it from another terminal:

    curl -X PUT localhost:8000/orders/1 -H 'content-type: application/json' -d '{"books": 2}'
    curl localhost:8000/orders/1
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import uvicorn
from cluster import kafka_for
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from spark_kafka_sink import AIOKafkaConsumer, AIOKafkaProducer, KafkaError, TopicPartition

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TOPIC = "orders"


class Order(BaseModel):
    """What a customer wants."""

    books: int


class Receipt(BaseModel):
    """Where an order is in the topic."""

    partition: int
    offset: int


async def follow(consumer: AIOKafkaConsumer, orders: dict[str, Order]) -> None:
    """Keep the last order of each number, also of those that other processes have sent."""
    async for record in consumer:
        orders[record.key] = Order.model_validate(record.value)


def service(bootstrap_servers: str) -> FastAPI:
    """Return the web service; its clients are open as long as it runs."""
    orders: dict[str, Order] = {}
    servers = {"bootstrap.servers": bootstrap_servers}
    sending = {
        "key.serializer": "string",
        "value.serializer": "json",
        # An order that cannot be sent is refused after 5 seconds: its customer waits.
        "request.timeout.ms": 2_000,
        "delivery.timeout.ms": 5_000,
        "max.block.ms": 5_000,
    }
    reading = {
        "key.deserializer": "string",
        "value.deserializer": "json",
        "auto.offset.reset": "earliest",
    }

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with (
            AIOKafkaProducer(servers | sending) as app.state.producer,
            AIOKafkaConsumer(servers | reading) as consumer,
        ):
            partitions = await consumer.partitions_for(TOPIC)
            consumer.assign([TopicPartition(TOPIC, each.partition) for each in partitions])
            following = asyncio.create_task(follow(consumer, orders))
            yield
            following.cancel()
            await asyncio.wait([following])

    app = FastAPI(title="Orders", lifespan=lifespan)

    @app.put("/orders/{number}", status_code=201)
    async def put(number: str, order: Order) -> Receipt:
        try:
            sent = await app.state.producer.send(TOPIC, order.model_dump(), key=number)
        except KafkaError as error:
            raise HTTPException(503, f"the order was not taken: {error}") from error
        # The brokers have it: nobody gets a receipt for an order that may be lost.
        return Receipt(partition=sent.partition, offset=sent.offset)

    @app.get("/orders/{number}")
    async def get(number: str) -> Order:
        if (order := orders.get(number)) is None:
            raise HTTPException(404, f"there is no order {number}")
        return order

    return app


def main() -> None:
    """Run the service until Ctrl-C."""
    with kafka_for(TOPIC, partitions=3) as bootstrap_servers:
        uvicorn.run(service(bootstrap_servers), port=8000)


if __name__ == "__main__":
    main()
