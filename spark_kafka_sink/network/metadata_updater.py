"""Asks for metadata, and waits for topics (NetworkClient.DefaultMetadataUpdater, waitOnMetadata).

At most one question is under way; who wants to know meanwhile joins it. Whom to ask is the network
client's choice, what to ask and when is `Metadata`'s.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from spark_kafka_sink.errors import (
    AuthenticationError,
    ConfigError,
    DecodeError,
    KafkaError,
    KafkaTimeoutError,
    NetworkError,
)
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.network.metadata_recovery import MetadataRecovery
from spark_kafka_sink.network.timeout_check import done_by
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, broker_error
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from spark_kafka_sink.config.producer_config import ProducerConfig
    from spark_kafka_sink.model import Node
    from spark_kafka_sink.network.broker_connection import BrokerConnection
    from spark_kafka_sink.network.metadata import MetadataQuestion
    from spark_kafka_sink.network.network_client import NetworkClient
    from spark_kafka_sink.protocol.messages.metadata import MetadataResponse

#: The first version of Metadata that tells what a client may do with a topic (KIP-430).
TOPIC_RIGHTS_VERSION = 8


class MetadataUpdater:
    """Keeps a client's metadata up to date."""

    def __init__(
        self,
        config: ProducerConfig,
        client: NetworkClient,
        *,
        on_change: Callable[[], None],
        include_topic_authorized_operations: bool,
    ) -> None:
        """Ask nothing yet. `on_change` is called after every question."""
        self._client = client
        self._metadata = client.metadata
        self._on_change = on_change
        self._include_operations = include_topic_authorized_operations
        self._may_create = config.allow_auto_create_topics
        self._loop = asyncio.get_running_loop()
        self._question: asyncio.Task[None] | None = None
        #: Done when the next question is over.
        self._asked: asyncio.Future[None] = self._loop.create_future()
        self._answered_by: Node | None = None
        self._recovery = MetadataRecovery(
            enabled=config.metadata_recovery_strategy == "rebootstrap",
            trigger=config.metadata_recovery_rebootstrap_trigger_ms / 1000,
        )

    # --- beginning anew

    @property
    def may_rebootstrap(self) -> bool:
        """Whether metadata.recovery.strategy is `rebootstrap`."""
        return self._recovery.is_enabled

    def rebootstrap_due_at(self) -> float:
        """When to rebootstrap because no metadata has come for too long (KIP-1102)."""
        return self._recovery.due_at()

    def rebootstrapped(self) -> None:
        """Note that the known nodes were forgotten."""
        self._recovery.rebootstrapped(self._loop.time())

    # --- asking

    @property
    def is_updating(self) -> bool:
        """Whether a question is under way."""
        return self._question is not None

    async def update(self, deadline: float) -> None:
        """Ask any node for the metadata; join a question that is already under way.

        Raises NetworkError when no node answers by the deadline, DecodeError for a wrong answer,
        AuthenticationError or ConfigError at once where a node cannot be connected to as things
        are.
        """
        if self._question is None:
            self._question = self._loop.create_task(self._update(deadline))
            # Nobody may be waiting for it any more; its error is kept by the client.
            self._question.add_done_callback(_retrieve_exception)
        # Ours is not the only wait for it: it goes on when ours ends.
        question = self._question
        if not await done_by(question, deadline):
            raise self._client.unreachable()
        question.result()

    async def _update(self, deadline: float) -> None:
        try:
            self._recovery.asking(self._loop.time())
            connection = await self._client.least_loaded_connection(deadline)
            question = self._metadata.question(self._loop.time())
            response = await connection.send(self._request(question, connection))
            self._receive(question, response, connection.node)
        except (NetworkError, DecodeError, AuthenticationError, ConfigError) as error:
            self._client.note_error(error)
            self._metadata.failed(self._loop.time())
            raise
        finally:
            self._question = None
            self._asked.set_result(None)
            self._asked = self._loop.create_future()
            self._on_change()

    def _request(self, question: MetadataQuestion, connection: BrokerConnection) -> MetadataRequest:
        version = connection.api_versions.version_for(ApiKey.METADATA)
        return MetadataRequest(
            topics=tuple(MetadataRequestTopic(name=topic) for topic in question.topics),
            allow_auto_topic_creation=self._may_create,
            include_topic_authorized_operations=self._include_operations
            and version >= TOPIC_RIGHTS_VERSION,
        )

    def _receive(self, question: MetadataQuestion, response: MetadataResponse, node: Node) -> None:
        if response.error_code:
            refusal = broker_error(response.error_code, f"{node} gives no metadata")
            if response.error_code == ErrorCode.REBOOTSTRAP_REQUIRED and self.may_rebootstrap:
                self._client.rebootstrap()
            raise NetworkError(str(refusal)) from refusal
        if not response.brokers:
            raise NetworkError(f"{node} knows of no brokers: it is still starting, it seems")
        self._metadata.update(response, self._loop.time(), is_full=question.is_full)
        self._answered_by = node
        self._recovery.answered()

    # --- waiting

    async def refresh(self, deadline: float) -> None:
        """Ask about all topics, however new the metadata is, and wait for the answer.

        Raises NetworkError or DecodeError where there is none by the deadline, and at once what
        `update` does.
        """
        began = self._loop.time()
        self._metadata.expire()
        while (updated_at := self._metadata.updated_at) is None or updated_at < began:
            next_look = min(self._metadata.next_update_at(), deadline)
            if next_look > self._loop.time():
                await done_by(self._asked, next_look)
                continue
            try:
                await self.update(deadline)
            except (NetworkError, DecodeError):
                if self._loop.time() >= deadline:
                    raise

    async def wait_for_topics(
        self,
        topics: Iterable[str],
        deadline: float,
        *,
        partition: int | None = None,
        limit: str = "max.block.ms",
        since: float | None = None,
    ) -> None:
        """Wait until the partitions of all these topics are known, and a partition if one is given.

        A partition beyond those known is asked for too: the topic may have grown. For errors,
        `limit` says what sets the deadline, and `since` when the wait began, if not now.

        Raises BrokerError at once where a broker refuses a topic for good (no right, bad name),
        KafkaTimeoutError with the last answer where it is not known by the deadline (as the Java
        producer's max.block.ms), NetworkError where nobody answers, and at once what `update` does.
        """
        wanted = list(topics)
        began = self._loop.time() if since is None else since
        for topic in wanted:
            self._want(topic, self._loop.time())
        failure: KafkaError | None = None
        while missing := [topic for topic in wanted if not self._is_known(topic, partition)]:
            now = self._loop.time()
            if now >= deadline:
                waited = f"{now - began:.1f} s ({limit})"
                raise self._timed_out(missing[0], partition, failure, waited)
            if any(self._metadata.snapshot.partition_count(topic) for topic in missing):
                # The topic is there, and the partition is not: only a new answer can tell more.
                self._metadata.request_update()
            next_look = min(self._metadata.next_update_at(), deadline)
            if next_look > now:
                # Another one may ask meanwhile.
                await done_by(self._asked, next_look)
                continue
            try:
                await self.update(deadline)
                failure = None
            except (NetworkError, DecodeError) as error:
                failure = error

    def _want(self, topic: str, now: float) -> None:
        self._metadata.add_topic(topic, now)
        known = self._metadata.snapshot.topics.get(topic)
        # A bad name stays bad; a right may have been granted since it was found missing.
        if (
            known is not None
            and known.is_refused
            and known.error_code != ErrorCode.INVALID_TOPIC_EXCEPTION
        ):
            self._metadata.ask_again(topic)

    def _is_known(self, topic: str, partition: int | None) -> bool:
        known = self._metadata.snapshot.topics.get(topic)
        if known is None or self._metadata.is_unanswered(topic):
            return False
        if known.is_refused:
            raise broker_error(known.error_code, f"{self._answered_by}: topic {topic!r}")
        return len(known.partitions) > (partition or 0)

    def _timed_out(
        self, topic: str, partition: int | None, failure: KafkaError | None, waited: str
    ) -> KafkaError:
        known = self._metadata.snapshot.topics.get(topic)
        if known is None:
            cause = failure or self._client.last_error or self._client.unreachable()
            error = f"topic {topic!r} is not known after {waited}: {cause}"
            timed_out: KafkaError = (
                KafkaTimeoutError(error) if failure is None else NetworkError(error)
            )
            timed_out.__cause__ = cause
            return timed_out
        if known.partitions and partition is not None:
            return KafkaTimeoutError(
                f"{TopicPartition(topic, partition)} does not exist: {self._answered_by} said for "
                f"{waited} that topic {topic!r} has {len(known.partitions)} "
                "partitions, numbered from 0. Add partitions, or write to those that there are"
            )
        answer = broker_error(known.error_code, f"{self._answered_by}: topic {topic!r}")
        timed_out = KafkaTimeoutError(
            f"topic {topic!r} is not known to the cluster after {waited}; "
            f"last cause: {answer}. Create the topic, or check its name{self._on_creation()}"
        )
        timed_out.__cause__ = answer
        return timed_out

    def _on_creation(self) -> str:
        if self._may_create:
            return " and that auto.create.topics.enable is what you expect"
        return "; in a Spark write autoCreateTopics=true lets the brokers create it"

    async def close(self) -> None:
        """End the question that is under way, if there is one."""
        if self._question is not None:
            self._question.cancel()
            await asyncio.wait({self._question})


def _retrieve_exception(task: asyncio.Task[None]) -> None:
    """Have the loop not take the task's error for one that nobody has seen."""
    if not task.cancelled():
        task.exception()
