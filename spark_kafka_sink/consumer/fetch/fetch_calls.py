"""The calls of a reader to the brokers; each is one attempt. `RangeFetch` decides about retries.

Lives on the loop of its NetworkClient.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from spark_kafka_sink.consumer.fetch.fetch_sessions import (
    fetch_request,
    named_leader,
    named_nodes,
    partition_data,
)
from spark_kafka_sink.consumer.fetch.range_values import LogBounds, PartitionView
from spark_kafka_sink.consumer.offsets.offset_requests import list_offsets_request, read_offsets
from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.messages.list_offsets import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    FIRST_VERSION_WITH_EARLIEST_LOCAL,
    LATEST_TIMESTAMP,
    ListOffsetsPartition,
)

if TYPE_CHECKING:
    from spark_kafka_sink.config.consumer_config import ConsumerConfig
    from spark_kafka_sink.consumer.fetch.range_values import LookUpBounds, SendFetch
    from spark_kafka_sink.consumer.offsets.broker_requests import BrokerRequests
    from spark_kafka_sink.model import Node, TopicPartition
    from spark_kafka_sink.protocol.messages.fetch import PartitionData

#: A larger response is refused as not being one of Kafka's; a first batch always comes whole.
_MOST_BYTES: Final = 100 * 1024 * 1024


class FetchAnswer(NamedTuple):
    """The answer to a Fetch."""

    #: None if the answer lacks the partition.
    data: PartitionData | None
    #: Seconds for which the broker throttles this client.
    throttle: float


class FetchCalls:
    """The calls."""

    def __init__(self, requests: BrokerRequests, config: ConsumerConfig) -> None:
        self._requests = requests
        self._config = config
        self._client = requests.client
        self._loop = asyncio.get_running_loop()
        self._is_committed = config.is_read_committed
        self._refresh: asyncio.Task[None] | None = None

    def view(self, topic_partition: TopicPartition) -> PartitionView:
        """Return what the metadata say about a partition now; may be called on any thread."""
        snapshot = self._client.metadata.snapshot
        topic = snapshot.topics.get(topic_partition.topic)
        if topic is None:
            return PartitionView()
        partition = snapshot.partition(topic_partition)
        count = len(topic.partitions)
        if partition is None:
            return PartitionView(
                topic_id=topic.topic_id, topic_error=topic.error_code, partition_count=count
            )
        return PartitionView(
            leader=snapshot.nodes.get(partition.leader_id),
            leader_epoch=partition.leader_epoch,
            topic_id=topic.topic_id,
            topic_error=topic.error_code,
            partition_count=count,
            nodes=snapshot.nodes,
        )

    async def refresh(self, topic_partition: TopicPartition, deadline: float) -> None:
        """Request metadata, and wait for the response, until the deadline at the latest.

        Raises NetworkError or DecodeError if there is none, and AuthenticationError, ConfigError or
        UnsupportedVersionError if no connection can be made.
        """
        now = self._loop.time()
        self._client.metadata.add_topic(topic_partition.topic, now)
        self._client.metadata.request_update()
        await self._client.update_metadata(min(deadline, self._deadline()))

    async def fetch(self, topic_partition: TopicPartition, fetch: SendFetch) -> FetchAnswer:
        """Send a Fetch and return its answer.

        Raises NetworkError if there is none, DecodeError if it is malformed, and the errors of
        `refresh`.
        """
        self._keep_metadata(topic_partition)
        connection = await self._requests.connection_to(fetch.node, self._deadline())
        request, version = fetch_request(
            topic_partition,
            fetch,
            connection.api_versions,
            is_committed=self._is_committed,
            max_bytes=min(self._config.fetch_max_bytes, _MOST_BYTES),
            max_partition_bytes=min(self._config.max_partition_fetch_bytes, _MOST_BYTES),
            min_bytes=self._config.fetch_min_bytes,
            max_wait_ms=self._config.fetch_max_wait_ms,
            rack=self._config.client_rack,
        )
        response = await connection.send(request, max_version=version)
        data = partition_data(response, topic_partition, f"Fetch at {fetch.node}")
        leader = None if data is None else named_leader(data)
        if leader is not None:
            self._client.metadata.update_leaders({topic_partition: leader}, named_nodes(response))
        return FetchAnswer(data, response.throttle_time_ms / 1000)

    async def look_up_bounds(
        self, topic_partition: TopicPartition, step: LookUpBounds
    ) -> LogBounds:
        """Return the bounds of a log from its leader.

        Raises BrokerError, and the errors of `fetch`.
        """
        start, end, stable_end = await asyncio.gather(
            self._offset(topic_partition, step, EARLIEST_TIMESTAMP, is_committed=False),
            self._offset(topic_partition, step, LATEST_TIMESTAMP, is_committed=False),
            self._offset(topic_partition, step, LATEST_TIMESTAMP, is_committed=True),
        )
        local_start = start
        if step.needs_local_start and await self._knows_local_start(step.node):
            local_offset = await self._offset(
                topic_partition, step, EARLIEST_LOCAL_TIMESTAMP, is_committed=False
            )
            local_start = max(start, local_offset)
        return LogBounds(start, end, stable_end, local_start)

    async def _knows_local_start(self, node: Node) -> bool:
        """Return whether a broker may have remote storage: older ones do not know the question."""
        connection = await self._requests.connection_to(node, self._deadline())
        version = connection.api_versions.version_for(ApiKey.LIST_OFFSETS)
        return version >= FIRST_VERSION_WITH_EARLIEST_LOCAL

    async def _offset(
        self,
        topic_partition: TopicPartition,
        step: LookUpBounds,
        timestamp: int,
        *,
        is_committed: bool,
    ) -> int:
        question = ListOffsetsPartition(
            partition_index=topic_partition.partition,
            current_leader_epoch=step.leader_epoch,
            timestamp=timestamp,
        )
        request = list_offsets_request(
            {topic_partition.topic: [question]},
            is_committed=is_committed,
            timeout_ms=self._config.request_timeout_ms,
        )
        response = await self._requests.ask(step.node, request, self._deadline())
        answers = read_offsets(response, step.node, {topic_partition})
        if topic_partition in answers.failed:
            raise answers.failed[topic_partition]
        offset = answers.found.get(topic_partition)
        if offset is None:
            raise DecodeError(f"{step.node} returned no offset for {topic_partition}")
        return offset

    def _deadline(self) -> float:
        return self._loop.time() + self._config.request_timeout_ms / 1000

    def _keep_metadata(self, topic_partition: TopicPartition) -> None:
        """Keep the topic among those in use, and refresh old metadata without waiting for them."""
        now = self._loop.time()
        metadata = self._client.metadata
        metadata.add_topic(topic_partition.topic, now)
        if metadata.next_update_at() <= now and not self._client.is_updating_metadata:
            self._refresh = self._loop.create_task(self._client.update_metadata(self._deadline()))
            # Its error is that of the next request, too.
            self._refresh.add_done_callback(lambda task: task.cancelled() or task.exception())
