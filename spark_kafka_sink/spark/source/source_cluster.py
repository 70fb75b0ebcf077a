"""The questions that the driver asks the cluster about a source, with Spark's retries.

- A question that fails for a transient reason is asked again, up to fetchOffset.numRetries times.
  A stream asks again after a timeout, too: brokers that are briefly unavailable must not end it. A
  batch does not, since a user is waiting for it to start, and it ends soon if nothing listens at
  any broker's address.
- A latest offset below the known start is asked for again before it is believed (KAFKA-7703).
- A topic that a running stream has read, and that is gone, is left out of the answer: whether that
  is an error is for failOnDataLoss to say.
- A pattern that no topic matches is not an error: topics may be created later.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, TypeVar

from spark_kafka_sink.config.offset_specs import Assign, Subscribe, SubscribePattern
from spark_kafka_sink.errors import BrokerError, KafkaError, KafkaTimeoutError, NetworkError
from spark_kafka_sink.model import NO_LEADER_EPOCH
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.spark.source.client_cache import client_cache
from spark_kafka_sink.spark.source.offsets_json import StreamOffsets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from uuid import UUID

    from spark_kafka_sink.config.offset_specs import Selection
    from spark_kafka_sink.config.source_options import SourceOptions
    from spark_kafka_sink.consumer.consumer_client import ConsumerClient, PartitionIds
    from spark_kafka_sink.model import TopicPartition
    from spark_kafka_sink.spark.source.client_cache import ClientCache
    from spark_kafka_sink.spark.source.offsets_json import Offsets

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")

#: How long a batch waits for brokers: short, since a user is waiting for the job to start.
_BATCH_SECONDS: Final = 15.0
_UNKNOWN_TOPIC: Final = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.name


class SourceCluster:
    """The cluster of one read; it lives on the driver and is never pickled."""

    def __init__(
        self,
        options: SourceOptions,
        *,
        is_stream: bool,
        clients: ClientCache | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Store the options; nothing is asked yet."""
        self._options = options
        self._is_stream = is_stream
        self._clients = clients or client_cache()
        self._sleep = sleep
        #: Those of the partitions that were listed last. Another client of the cache may have older
        #: ones, or none.
        self._ids: Mapping[TopicPartition, PartitionIds] = {}
        self._topic_ids: dict[str, UUID] = {}
        #: The ids of topics that were deleted and created again.
        self._replaced: set[UUID] = set()
        #: Whether something of the selection was missing when a running stream last asked.
        self._is_incomplete = False
        #: Whether the pattern of the selection matched nothing at the last question.
        self._is_unmatched = False
        timeout = options.consumer.default_api_timeout_ms / 1000
        self._timeout = timeout if is_stream else min(timeout, _BATCH_SECONDS)

    def partitions(self) -> tuple[TopicPartition, ...]:
        """Return the partitions to read; a missing topic is an error."""
        return self._list(self._options.selection)

    def remaining_partitions(self) -> tuple[TopicPartition, ...]:
        """Return those of the partitions to read that exist, for a stream that has begun."""
        selection = self._options.selection
        if not self._is_incomplete:
            try:
                return self._list(selection)
            except BrokerError as error:
                if not _is_missing_topic(error):
                    raise
                logger.warning("%s", error)
            # The wait for a missing topic would delay every trigger.
            self._is_incomplete = True
        partitions = self._list(selection, skips_missing=True)
        self._is_incomplete = not _has_all(partitions, selection)
        return partitions

    def earliest(self, partitions: Sequence[TopicPartition]) -> Offsets:
        """Return the earliest offsets of some partitions."""
        if not partitions:
            return {}
        return self._ask(lambda client: client.earliest_offsets(partitions, timeout=self._timeout))

    def latest(
        self, partitions: Sequence[TopicPartition], known: Offsets | None = None
    ) -> StreamOffsets:
        """Return the latest offsets of some partitions, and the logs in which they are.

        `known` are offsets that have been reached already.
        """
        if not partitions:
            return StreamOffsets({})
        attempts = self._options.fetch_offset_num_retries
        for attempt in range(1, max(attempts, 1) + 1):
            ends = self._ask(lambda client: client.log_ends(partitions, timeout=self._timeout))
            offsets = {partition: end.offset or 0 for partition, end in ends.items()}
            below = [
                f"{partition} (known {known[partition]}, found {offset})"
                for partition, offset in sorted(offsets.items())
                if known is not None and offset < known.get(partition, 0)
            ]
            if not below:
                break
            logger.warning(
                "the latest offsets of some partitions are below the known ones: %s",
                ", ".join(below),
            )
            if attempt < attempts:
                self._sleep(self._options.fetch_offset_retry_interval_ms / 1000)
        epochs = {
            partition: end.leader_epoch
            for partition, end in ends.items()
            if end.leader_epoch != NO_LEADER_EPOCH
        }
        return StreamOffsets(offsets, self.topic_ids(offsets), epochs)

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> Offsets:
        """Return where the logs of leader epochs end; leaders may not know it."""
        if not epochs:
            return {}
        return self._ask(lambda client: client.epoch_ends(epochs, timeout=self._timeout))

    def at_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return the first offsets at or after the times (ms), None where there is none."""
        if not times:
            return {}
        return self._ask(lambda client: client.offsets_for_times(times, timeout=self._timeout))

    def ids(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, PartitionIds]:
        """Return what tells the partitions of a topic from those of a later one of its name."""
        topic_partitions = tuple(partitions)
        if not self._ids.keys() >= set(topic_partitions):
            # A batch that Spark replays begins without a question about its partitions.
            self.remaining_partitions()
        return {
            partition: self._ids[partition]
            for partition in topic_partitions
            if partition in self._ids
        }

    def topic_ids(self, partitions: Iterable[TopicPartition]) -> dict[str, UUID]:
        """Return the ids of the topics of partitions, as far as brokers have them (Kafka 2.8)."""
        return {
            partition.topic: ids.topic_id
            for partition, ids in self.ids(partitions).items()
            if ids.topic_id is not None
        }

    def commit(self, group_id: str, offsets: Offsets) -> Mapping[TopicPartition, KafkaError]:
        """Commit offsets to a group, and return which were refused; asked once only."""
        with self._clients.borrow(self._options.consumer) as client:
            return client.commit_offsets(group_id, offsets, timeout=self._timeout)

    def _list(
        self, selection: Selection, *, skips_missing: bool = False
    ) -> tuple[TopicPartition, ...]:
        def question(client: ConsumerClient) -> tuple[TopicPartition, ...]:
            partitions = client.list_partitions(
                selection,
                timeout=self._timeout,
                skips_missing=skips_missing,
                fails_early=not self._is_stream,
            )
            self._ids = self._without_replaced(client.partition_ids(partitions))
            return partitions

        partitions = self._ask(question)
        if isinstance(selection, SubscribePattern):
            self._report_matches(selection.pattern, partitions)
        return partitions

    def _without_replaced(
        self, ids: Mapping[TopicPartition, PartitionIds]
    ) -> dict[TopicPartition, PartitionIds]:
        """Return the ids, without those of a broker that does not know the latest topic yet.

        An id never comes back. Believed, it would make the topic look as if it had been created
        two times more, and a stream would read it from its start again.
        """
        latest = self._topic_ids
        for topic, topic_id in {
            (partition.topic, partition_ids.topic_id) for partition, partition_ids in ids.items()
        }:
            if topic_id is None or topic_id in self._replaced:
                continue
            before = latest.get(topic, topic_id)
            if before != topic_id:
                self._replaced.add(before)
            latest[topic] = topic_id
        return {
            partition: partition_ids._replace(
                topic_id=latest[partition.topic], leader_epoch=NO_LEADER_EPOCH
            )
            if partition_ids.topic_id in self._replaced
            else partition_ids
            for partition, partition_ids in ids.items()
        }

    def _report_matches(self, pattern: str, partitions: Sequence[TopicPartition]) -> None:
        """Log it once if a pattern matches nothing."""
        if not partitions and not self._is_unmatched:
            logger.warning(
                "Kafka: subscribePattern %r matches no topic that this user may describe; %s",
                pattern,
                "the query waits for one" if self._is_stream else "nothing is read",
            )
        self._is_unmatched = not partitions

    def _ask(self, question: Callable[[ConsumerClient], Answer]) -> Answer:
        attempt = 1
        while True:
            try:
                with self._clients.borrow(self._options.consumer) as client:
                    return question(client)
            except KafkaError as error:
                if not self._may_help(error) or attempt >= self._options.fetch_offset_num_retries:
                    raise
                logger.warning("attempt %d to ask for the offsets failed: %s", attempt, error)
            attempt += 1
            self._sleep(self._options.fetch_offset_retry_interval_ms / 1000)

    def _may_help(self, error: KafkaError) -> bool:
        """Return whether to ask again; the client has waited for a missing topic already."""
        is_timeout = isinstance(error, KafkaTimeoutError | NetworkError)
        return (
            error.retriable and not _is_missing_topic(error) and (self._is_stream or not is_timeout)
        )


def _is_missing_topic(error: KafkaError) -> bool:
    return isinstance(error, BrokerError) and error.name == _UNKNOWN_TOPIC


def _has_all(existing: Iterable[TopicPartition], selection: Selection) -> bool:
    """Return whether nothing that a selection names is missing."""
    match selection:
        case Subscribe(topics):
            return {partition.topic for partition in existing}.issuperset(topics)
        case Assign(partitions):
            return set(existing).issuperset(partitions)
        case SubscribePattern():
            return True
