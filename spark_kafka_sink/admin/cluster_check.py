"""The driver's checks before a job: do brokers answer, do the topics exist, may we write?

Blocking, over a short-lived event loop, without loading a producer, records or kernels. The loop
runs on a thread of its own, since a notebook already runs one on the caller's thread.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from spark_kafka_sink.config.config_def import nearest_names
from spark_kafka_sink.errors import BrokerError, KafkaError, KafkaTimeoutError, NetworkError
from spark_kafka_sink.model import host_and_port
from spark_kafka_sink.network.connection_waits import Patience, wait_for_answer, wait_for_leaders
from spark_kafka_sink.network.network_client import NetworkClient
from spark_kafka_sink.protocol.error_codes import ErrorCode, broker_error
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from spark_kafka_sink.config.client_config import ClientConfig
    from spark_kafka_sink.config.producer_config import ProducerConfig
    from spark_kafka_sink.protocol.messages.metadata import MetadataResponseTopic

T = TypeVar("T")

#: Seconds for listing all topic names for an error.
LIST_TIMEOUT: Final = 3.0
#: The least time for connecting to the leaders, in seconds: more than it takes to find that their
#: addresses are wrong.
LEADERS_SECONDS: Final = 5.0
#: The most existing names that an error about a missing topic suggests.
_MOST_NAMES: Final = 3


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic as a broker describes it."""

    name: str
    partitions: int
    #: Whether this client may write to it; None if the broker does not say.
    can_write: bool | None


def describe_topics(
    config: ProducerConfig, topics: Sequence[str], *, is_dry_run: bool, timeout: float
) -> dict[str, TopicDescription]:
    """Return descriptions of topics, whose leaders can be connected to.

    Without topics, this proves that a broker answers.

    A missing topic is an error that suggests the nearest existing names, unless the configuration
    lets brokers create topics. In that case they are requested to create it, except in a dry run,
    whose result omits the topic.

    Raises NetworkError if no broker, or not every leader, can be reached, BrokerError if a topic is
    missing or refused, KafkaTimeoutError if a topic is not created in time: within `timeout`
    seconds or max.block.ms, whichever is less, and sooner if waiting will not help
    (`connection_waits`). The leaders have at least `LEADERS_SECONDS` of that, even if the first
    answer has taken longer.
    """
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(
            lambda: asyncio.run(
                _describe_topics(
                    config, topics, is_dry_run=is_dry_run, patience=_patience(config, timeout)
                )
            )
        ).result()


async def _describe_topics(
    config: ProducerConfig, topics: Sequence[str], *, is_dry_run: bool, patience: Patience
) -> dict[str, TopicDescription]:
    creates = config.allow_auto_create_topics and not is_dry_run
    client = NetworkClient(
        replace(config, allow_auto_create_topics=creates),
        include_topic_authorized_operations=True,
        # It is an error here.
        warns=False,
    )
    loop = asyncio.get_running_loop()
    began = loop.time()

    def missing() -> list[str]:
        known = client.metadata.snapshot.topics
        return [
            topic
            for topic in topics
            if not creates
            and topic in known
            and known[topic].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        ]

    try:
        try:
            await wait_for_answer(client, topics, patience, is_final=lambda: bool(missing()))
        except KafkaTimeoutError:
            if not missing():
                raise
            if not config.allow_auto_create_topics:
                raise await _missing_topic_error(client, missing()[0], config) from None
        await wait_for_leaders(
            client,
            lambda: client.metadata.snapshot.leaders(topics),
            rest(patience, loop.time() - began),
        )
        known = client.metadata.snapshot.topics
        return {
            topic: TopicDescription(topic, len(known[topic].partitions), known[topic].can_write)
            for topic in topics
            if known[topic].partitions
        }
    finally:
        await client.close()


def _patience(config: ProducerConfig, timeout: float) -> Patience:
    max_block = config.max_block_ms / 1000
    if max_block <= timeout:
        return Patience(max_block, "max.block.ms")
    return Patience(timeout, "the limit of the driver's check")


def rest(patience: Patience, waited: float) -> Patience:
    """Return the patience that is left for the leaders."""
    left = max(patience.seconds - waited, min(patience.seconds, LEADERS_SECONDS))
    return replace(patience, seconds=left)


async def _missing_topic_error(
    client: NetworkClient, topic: str, config: ClientConfig
) -> BrokerError:
    servers = ", ".join(host_and_port(*address) for address in config.bootstrap_servers)
    try:
        suggestion = similar_names(topic, await _all_topics(client))
    except KafkaError as error:
        suggestion = f"its topics could not be listed ({error})"
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return BrokerError(
        f"topic {topic!r} does not exist in the cluster at {servers}; {suggestion}. Check the "
        "name, create the topic, or set autoCreateTopics=true to let the brokers create it",
        code=code,
        name=code.name,
    )


def similar_names(topic: str, existing: Sequence[str]) -> str:
    """Return a text that names the existing topics with names similar to a missing one."""
    names = ", ".join(map(repr, nearest_names(topic, existing, most=_MOST_NAMES)))
    return f"similar names: {names}" if names else "no topic has a similar name"


def list_topics(config: ClientConfig) -> list[str]:
    """List the topics that this client may see, without internal ones, for an error.

    Raises KafkaError, within LIST_TIMEOUT seconds.
    """
    return _asked(config, _all_topics)


def missing_topics(config: ClientConfig, topics: Sequence[str]) -> set[str]:
    """Return which topics do not exist; those that this client may not see are not among them.

    Raises KafkaError, within LIST_TIMEOUT seconds.
    """

    async def ask(client: NetworkClient) -> set[str]:
        found = await _topics(client, tuple(MetadataRequestTopic(name=topic) for topic in topics))
        return {
            topic.name
            for topic in found
            if topic.name is not None and topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        }

    return _asked(config, ask)


def _asked(config: ClientConfig, ask: Callable[[NetworkClient], Coroutine[Any, Any, T]]) -> T:
    async def run() -> T:
        client = NetworkClient(config)
        try:
            return await ask(client)
        finally:
            await client.close()

    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(lambda: asyncio.run(run())).result()


async def _all_topics(client: NetworkClient) -> list[str]:
    return [
        topic.name
        for topic in await _topics(client, None)
        if topic.name is not None and not topic.is_internal
    ]


async def _topics(
    client: NetworkClient, topics: tuple[MetadataRequestTopic, ...] | None
) -> Sequence[MetadataResponseTopic]:
    """Return what a broker says of topics; None for all that this client may see."""
    deadline = asyncio.get_running_loop().time() + LIST_TIMEOUT
    connection = await client.least_loaded_connection(deadline)
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
    try:
        async with asyncio.timeout_at(deadline):
            response = await connection.send(request)
    except TimeoutError:
        raise NetworkError(f"no answer within {LIST_TIMEOUT:g} s") from None
    if response.error_code:
        raise broker_error(response.error_code, f"{connection.node} refused to list topics")
    return response.topics
