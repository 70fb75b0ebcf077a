"""Asyncio consumers of an embedded broker, and what they read."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from spark_kafka_sink.consumer.aio_kafka_consumer import AIOKafkaConsumer
from spark_kafka_sink.consumer.group.rebalance_listener import ConsumerRebalanceListener
from tests.support.consumer.embedded_consuming import GROUP, PATIENCE
from tests.support.consumer.reading import FAST

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection

    from spark_kafka_sink.consumer.records.consumer_record import ConsumerRecord
    from spark_kafka_sink.devbroker import DevBroker
    from spark_kafka_sink.model import TopicPartition


def settings_of(protocol: str, **more: object) -> dict[str, object]:
    """Return the settings of a member of a group of this protocol; `_` stands for a dot."""
    group: dict[str, object] = dict(GROUP)
    if protocol == "consumer":
        # The broker's settings apply.
        group = {"group.id": GROUP["group.id"], "group.protocol": "consumer"}
    return group | {name.replace("_", "."): value for name, value in more.items()}


def aio_consumer(broker: DevBroker, **settings: object) -> AIOKafkaConsumer:
    """Create a consumer on the running loop that starts at the beginning; `_` stands for a dot."""
    given = {name.replace("_", "."): value for name, value in settings.items()}
    base = {"bootstrap.servers": broker.bootstrap_servers, "auto.offset.reset": "earliest"}
    return AIOKafkaConsumer({**base, **FAST, "fetch.max.wait.ms": 50, **given})


@asynccontextmanager
async def aio_consuming(broker: DevBroker, **settings: object) -> AsyncIterator[AIOKafkaConsumer]:
    """Yield such a consumer, and close it."""
    async with aio_consumer(broker, **settings) as consumer:
        yield consumer


async def take(consumer: AIOKafkaConsumer, count: int) -> list[ConsumerRecord]:
    """Poll until there are `count` records."""
    records: list[ConsumerRecord] = []
    async with asyncio.timeout(PATIENCE):
        while len(records) < count:
            for some in (await consumer.poll(PATIENCE)).values():
                records += some
    return records


async def poll_until(
    condition: Callable[[], object], *consumers: AIOKafkaConsumer
) -> list[ConsumerRecord]:
    """Poll the consumers in turn until the condition is met; return what they have read."""
    records: list[ConsumerRecord] = []
    async with asyncio.timeout(PATIENCE):
        while not condition():
            for each in consumers:
                for some in (await each.poll(0.02)).values():
                    records += some
    return records


class AwaitingListener(ConsumerRebalanceListener):
    """A listener of coroutines that records its calls."""

    def __init__(
        self, do: Callable[[str, tuple[TopicPartition, ...]], Awaitable[object]] | None = None
    ) -> None:
        """Call and await `do` with each event and its partitions, before recording them."""
        self.calls: list[tuple[str, tuple[TopicPartition, ...]]] = []
        self._do = do

    async def _record(self, what: str, partitions: Collection[TopicPartition]) -> None:
        concerned = tuple(sorted(partitions))
        await asyncio.sleep(0)
        if self._do is not None:
            await self._do(what, concerned)
        self.calls.append((what, concerned))

    async def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Record it."""
        await self._record("assigned", partitions)

    async def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Record it."""
        await self._record("revoked", partitions)

    async def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        """Record it."""
        await self._record("lost", partitions)
