"""Metadata requests and waits for topics (NetworkClient.DefaultMetadataUpdater, waitOnMetadata).

At most one request is under way; callers that need metadata in the meantime share it. The network
client chooses the node to send it to, `Metadata` decides what to request and when, and
`MetadataRecovery` when to start again from bootstrap.servers.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from spark_kafka_sink.display import counted
from spark_kafka_sink.errors import (
    AuthenticationError,
    ConfigError,
    DecodeError,
    KafkaError,
    KafkaTimeoutError,
    NetworkError,
)
from spark_kafka_sink.model import Node, TopicPartition
from spark_kafka_sink.network.exponential_backoff import NEVER
from spark_kafka_sink.network.timeout_check import done_by
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, broker_error
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from spark_kafka_sink.config.client_config import ClientConfig
    from spark_kafka_sink.network.connection.broker_connection import BrokerConnection
    from spark_kafka_sink.network.metadata import MetadataQuestion
    from spark_kafka_sink.network.network_client import NetworkClient
    from spark_kafka_sink.protocol.messages.metadata import MetadataResponse

#: The first Metadata version that returns the authorized operations of a topic (KIP-430).
TOPIC_RIGHTS_VERSION = 8


class MetadataRecovery:
    """The time for which metadata requests have failed, and when to rebootstrap because of it.

    To rebootstrap is to forget the known brokers and start again from bootstrap.servers. With
    metadata.recovery.strategy=rebootstrap there are four triggers: no known broker can be reached
    (KIP-899), or another broker answers at the address of one (KIP-1242), which the network client
    detects itself; a broker answers REBOOTSTRAP_REQUIRED; or brokers can be reached, but none has
    returned metadata for metadata.recovery.rebootstrap.trigger.ms (both KIP-1102), which is timed
    here. With `none` the client never rebootstraps. Reads no clock: callers pass times in seconds.
    """

    def __init__(self, *, enabled: bool, trigger: float) -> None:
        """Set whether the strategy is `rebootstrap`, and the trigger in seconds."""
        self.is_enabled = enabled
        self._trigger = trigger
        self._asking_since: float | None = None

    def asking(self, now: float) -> None:
        """Record that metadata is being requested."""
        if self._asking_since is None:
            self._asking_since = now

    def answered(self) -> None:
        """Record that metadata has arrived."""
        self._asking_since = None

    def due_at(self) -> float:
        """Return when to rebootstrap, whether or not brokers can be reached."""
        if not self.is_enabled or self._asking_since is None:
            return NEVER
        return self._asking_since + self._trigger

    def rebootstrapped(self, now: float) -> None:
        """Record that the known brokers were forgotten, and restart the timer."""
        self._asking_since = now


class MetadataUpdater:
    """The part of a network client that keeps its metadata up to date."""

    def __init__(
        self,
        config: ClientConfig,
        client: NetworkClient,
        *,
        on_change: Callable[[], None],
        include_topic_authorized_operations: bool,
    ) -> None:
        """Create the updater; `on_change` is called after every request."""
        self._client = client
        self._metadata = client.metadata
        self._on_change = on_change
        self._include_operations = include_topic_authorized_operations
        self._may_create = config.allow_auto_create_topics
        self._loop = asyncio.get_running_loop()
        self._question: asyncio.Task[None] | None = None
        #: Done when the next request has ended.
        self._request_ended: asyncio.Future[None] = self._loop.create_future()
        self._answered_by: Node | None = None
        self.recovery = MetadataRecovery(
            enabled=config.metadata_recovery_strategy == "rebootstrap",
            trigger=config.metadata_recovery_rebootstrap_trigger_ms / 1000,
        )

    # --- requesting

    @property
    def is_updating(self) -> bool:
        """Whether a request is under way."""
        return self._question is not None

    async def update(self, deadline: float) -> None:
        """Request metadata from any node, or join a request that is already under way.

        Raises NetworkError if no node answers by the deadline and DecodeError for a malformed
        response. Raises at once AuthenticationError, ConfigError or UnsupportedVersionError if a
        connection to a node fails permanently.
        """
        if self._question is None:
            self._question = self._loop.create_task(self._update(deadline))
            # There may be no waiter left for its error, which the client records anyway.
            self._question.add_done_callback(_retrieve_exception)
        # Other callers may be waiting for the same task, so it continues when this wait ends.
        question = self._question
        if not await done_by(question, deadline):
            raise self._client.unreachable()
        question.result()

    async def _update(self, deadline: float) -> None:
        try:
            self.recovery.asking(self._loop.time())
            connection = await self._client.least_loaded_connection(deadline)
            question = self._metadata.question(self._loop.time())
            response = await connection.send(self._request(question, connection))
            self._receive(question, response, connection.node)
        except (NetworkError, DecodeError, AuthenticationError, ConfigError) as error:
            self._client.last_error = error
            self._metadata.failed(self._loop.time())
            raise
        finally:
            self._question = None
            self._request_ended.set_result(None)
            self._request_ended = self._loop.create_future()
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
            refusal = broker_error(response.error_code, f"{node} refused Metadata")
            if response.error_code == ErrorCode.REBOOTSTRAP_REQUIRED and self.recovery.is_enabled:
                self._client.rebootstrap()
            raise NetworkError(str(refusal)) from refusal
        if not response.brokers:
            raise NetworkError(f"{node} returned no brokers: it is probably still starting")
        # Topics that were not requested would be kept for good.
        requested = frozenset(question.topics)
        topics = tuple(topic for topic in response.topics if topic.name in requested)
        answer = replace(response, topics=topics)
        self._metadata.update(answer, self._loop.time(), is_full=question.is_full)
        self._answered_by = node
        self.recovery.answered()

    # --- waiting

    async def refresh(self, deadline: float) -> None:
        """Request metadata for all topics, however recent it is, and wait for the response.

        Raises NetworkError or DecodeError if there is none by the deadline, and whatever `update`
        raises at once.
        """
        began = self._loop.time()
        self._metadata.expire()
        while (updated_at := self._metadata.updated_at) is None or updated_at < began:
            next_look = min(self._metadata.next_update_at(), deadline)
            if next_look > self._loop.time():
                await done_by(self._request_ended, next_look)
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
        """Wait until the partitions of all these topics are known, and `partition` if it is given.

        A partition beyond the known ones is requested as well, since the topic may have grown. For
        errors, `limit` names what sets the deadline, and `since` is when the wait began, if not
        now.

        Raises BrokerError at once if a broker permanently refuses a topic (not authorized, invalid
        name), KafkaTimeoutError with the last response if a topic is not known by the deadline
        (like the Java producer's max.block.ms), NetworkError if no broker answers, and whatever
        `update` raises at once.
        """
        names = list(topics)
        began = self._loop.time() if since is None else since
        for topic in names:
            self._want(topic, self._loop.time())
        failure: KafkaError | None = None
        while missing := [topic for topic in names if not self._is_known(topic, partition)]:
            if any(self._metadata.snapshot.partition_count(topic) for topic in missing):
                # The topic exists but the partition does not: only a new response can change that.
                self._metadata.request_update()
            now = self._loop.time()
            if now >= deadline:
                waited = f"{now - began:.1f} s ({limit})"
                raise self._timed_out(missing[0], partition, failure, waited)
            next_look = min(self._metadata.next_update_at(), deadline)
            if next_look > now:
                # Another caller may send a request in the meantime.
                await done_by(self._request_ended, next_look)
                continue
            try:
                await self.update(deadline)
                failure = None
            except (NetworkError, DecodeError) as error:
                failure = error

    def _want(self, topic: str, now: float) -> None:
        self._metadata.add_topic(topic, now)
        known = self._metadata.snapshot.topics.get(topic)
        # An invalid name stays invalid; a missing authorization may have been granted since.
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
            error = broker_error(known.error_code, f"{self._answered_by}: topic {topic!r}")
            error.topic = topic
            raise error
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
                f"{TopicPartition(topic, partition)} does not exist: for {waited}, "
                f"{self._answered_by} reported that topic {topic!r} has "
                f"{counted(len(known.partitions), 'partition')}, numbered from 0. Add partitions, "
                "or write to an existing one"
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
            return " and the brokers' auto.create.topics.enable"
        return "; in a Spark write autoCreateTopics=true lets the brokers create it"

    async def close(self) -> None:
        """Cancel the request that is under way, if there is one."""
        if self._question is not None:
            self._question.cancel()
            await asyncio.wait({self._question})


def _retrieve_exception(task: asyncio.Task[None]) -> None:
    """Retrieve the task's error, so that the loop does not report it as never retrieved."""
    if not task.cancelled():
        task.exception()
