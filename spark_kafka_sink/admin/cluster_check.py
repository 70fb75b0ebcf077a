"""What the driver asks before a job: does anybody answer, do the topics exist, may we write?

Blocking, over a short-lived event loop; no producer, no record and no kernel is loaded for it. The
loop runs on a thread of its own, since a notebook already runs one on the caller's.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_kafka_sink.network.network_client import NetworkClient

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_kafka_sink.config.producer_config import ProducerConfig

#: The longest that a check takes, however long max.block.ms is: somebody waits for the job to
#: start, and a topic that a broker creates on being asked for appears within moments.
CHECK_TIMEOUT = 15.0


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """What a broker says of a topic."""

    name: str
    partitions: int
    #: Whether this client may write to it; None where the broker does not tell.
    can_write: bool | None


def describe_topics(config: ProducerConfig, topics: Sequence[str]) -> dict[str, TopicDescription]:
    """Ask for topics, as a producer would: a broker that creates missing topics does so.

    With no topics it proves that a broker answers. Raises NetworkError when none can be reached,
    BrokerError when a topic is refused, KafkaTimeoutError when a topic does not exist; within
    `CHECK_TIMEOUT` seconds or max.block.ms, whichever is less.
    """
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(lambda: asyncio.run(_describe_topics(config, topics))).result()


async def _describe_topics(
    config: ProducerConfig, topics: Sequence[str]
) -> dict[str, TopicDescription]:
    timeout = min(config.max_block_ms / 1000, CHECK_TIMEOUT)
    deadline = asyncio.get_running_loop().time() + timeout
    client = NetworkClient(config, include_topic_authorized_operations=True)
    try:
        if topics:
            await client.wait_for_topics(topics, deadline)
        else:
            await client.update_metadata(deadline)
        known = client.metadata.snapshot.topics
        return {
            topic: TopicDescription(topic, len(known[topic].partitions), known[topic].can_write)
            for topic in topics
        }
    finally:
        await client.close()
