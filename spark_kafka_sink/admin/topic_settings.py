"""Settings of topics that a write has to know, where this client may describe them."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.admin.cluster_calls import ClusterCalls
from spark_kafka_sink.admin.requests.configs import describe_topic_configs_call
from spark_kafka_sink.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_kafka_sink.config.client_config import ClientConfig

#: How long the brokers may take, in seconds.
_TIMEOUT: Final = 10.0


def max_message_bytes(config: ClientConfig, topics: Sequence[str]) -> dict[str, int]:
    """Return max.message.bytes of topics, as far as `topic_setting` does."""
    found = topic_setting(config, topics, "max.message.bytes")
    return {topic: int(value) for topic, value in found.items()}


def topic_setting(
    config: ClientConfig, topics: Sequence[str], name: str, timeout: float = _TIMEOUT
) -> dict[str, str]:
    """Return a setting of topics, waiting for brokers up to `timeout` seconds.

    Topics are left out that do not exist or whose settings this client may not see, and all of them
    if no broker answers.
    """

    async def run() -> dict[str, str]:
        calls = ClusterCalls(config)
        try:
            deadline = asyncio.get_running_loop().time() + timeout
            answers = await calls.call_all(
                [describe_topic_configs_call(topic) for topic in topics], deadline
            )
        finally:
            await calls.close()
        return {
            topic: setting.value
            for topic, answer in zip(topics, answers, strict=True)
            if not isinstance(answer, KafkaError)
            for result in answer.results
            for setting in result.configs
            if setting.name == name and setting.value is not None
        }

    # A thread of its own, since the caller's may run a loop already.
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(lambda: asyncio.run(run())).result()
