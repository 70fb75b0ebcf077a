"""What a consumer asks the brokers for its user: topics, offsets and the lag."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.model import Node, PartitionInfo, TopicPartition
from spark_kafka_sink.protocol.messages.list_offsets import LATEST_TIMESTAMP

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_kafka_sink.consumer.consumer_core import ConsumerCore
    from spark_kafka_sink.protocol.messages.metadata import MetadataResponse

logger = logging.getLogger(__name__)


class BrokerQuestions:
    """The questions of one consumer; its methods are called without the lock."""

    def __init__(self, core: ConsumerCore) -> None:
        self._core = core
        self._context = core.context
        self._is_committed = core.config.is_read_committed

    def offsets(
        self, timestamps: Mapping[TopicPartition, int], seconds: float
    ) -> dict[TopicPartition, int | None]:
        """Return the first offsets at or after times in ms since 1970; None if there is none."""
        call = partial(
            self._context.calls.offsets,
            timestamps,
            self._core.clock() + seconds,
            is_committed=self._is_committed,
        )
        return self._core.call(call, seconds, "ListOffsets")

    def partitions_for(self, topic: str, seconds: float) -> list[PartitionInfo]:
        """Return the partitions of a topic; raises BrokerError if it does not exist."""
        call = partial(self._context.calls.describe, [topic], self._core.clock() + seconds)
        topics = _partitions(self._core.call(call, seconds, "Metadata"))
        return topics[topic]

    def list_topics(self, seconds: float) -> dict[str, list[PartitionInfo]]:
        """Return the partitions of all topics, also of internal ones."""
        deadline = self._core.clock() + seconds
        call = partial(self._context.calls.describe, None, deadline, includes_internal=True)
        return _partitions(self._core.call(call, seconds, "Metadata"))

    def current_lag(self, partition: TopicPartition) -> int | None:
        """Return the lag of an assigned partition; if the end is not known, begin to look it up.

        Source: OffsetFetcher.currentLag.
        """
        subscriptions, is_committed = self._core.subscriptions, self._is_committed
        with self._context.lock:
            lag = subscriptions.partition_lag(partition, is_committed=is_committed)
            is_known = (
                subscriptions.partition_end_offset(partition, is_committed=is_committed) is not None
            )
            if not is_known and not subscriptions.is_end_offset_requested(partition):
                subscriptions.request_end_offset(partition)
                self._context.start(partial(self._find_end, partition))
        return lag

    async def _find_end(self, partition: TopicPartition) -> None:
        context, subscriptions = self._context, self._core.subscriptions
        limit = self._core.config.request_timeout_ms / 1000
        end: int | None = None
        try:
            offsets = await context.calls.offsets(
                {partition: LATEST_TIMESTAMP},
                context.clock() + limit,
                is_committed=self._is_committed,
            )
            end = offsets[partition]
        except KafkaError as error:
            logger.info("the end of %s was not found for its lag: %s", partition, error)
        with context.lock:
            if end is None:
                # The next call looks it up again.
                subscriptions.clear_end_offset_request(partition)
            elif self._is_committed:
                subscriptions.update_offsets(partition, last_stable_offset=end)
            else:
                subscriptions.update_offsets(partition, high_watermark=end)


def _partitions(response: MetadataResponse) -> dict[str, list[PartitionInfo]]:
    nodes = {
        broker.node_id: Node(broker.node_id, broker.host, broker.port)
        for broker in response.brokers
    }
    return {
        topic.name or "": [
            PartitionInfo(
                topic.name or "", partition.partition_index, nodes.get(partition.leader_id)
            )
            for partition in sorted(topic.partitions, key=lambda item: item.partition_index)
        ]
        for topic in response.topics
    }
