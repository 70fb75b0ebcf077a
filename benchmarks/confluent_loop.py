"""confluent-kafka at its fastest: a tuned `produce()` loop without delivery reports."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import confluent_kafka

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LINGER_MS = 50
BATCH_BYTES = 1_000_000


def produce_all(
    bootstrap_servers: str,
    topic: str,
    values: Iterable[bytes],
    *,
    codec: str,
    security: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write all values and flush; `security` has librdkafka's own settings."""
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "compression.type": codec,
            "enable.idempotence": True,
            "linger.ms": LINGER_MS,
            "batch.size": BATCH_BYTES,
            "batch.num.messages": 100_000,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1 << 20,
            **security,
        }
    )
    produce, poll = producer.produce, producer.poll
    for value in values:
        while True:
            try:
                produce(topic, value)
            except BufferError:
                poll(0.01)
            else:
                break
    producer.flush()
