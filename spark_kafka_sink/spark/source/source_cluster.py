"""The cluster of a read: its clients, and the questions that the driver asks it.

Questions are asked with Spark's retries:

- A question that fails for a transient reason is asked again, up to fetchOffset.numRetries times.
  A stream asks again after a timeout, too: brokers that are briefly unavailable must not end it. A
  batch does not, since a user is waiting for it to start, and it ends soon if nothing listens at
  any broker's address.
- A latest offset below the known start is asked for again before it is believed (KAFKA-7703).
- A topic that a running stream has read, and that is gone for some seconds, is left out of the
  answer: whether that is an error is for failOnDataLoss to say.
- A pattern that no topic matches is not an error: topics may be created later.

Starts and ends are resolved here, too: offsets or timestamps of single partitions must name exactly
the partitions that are read, as for Spark's own source.
"""

from __future__ import annotations

import logging
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from spark_kafka_sink.config.offset_specs import (
    BATCH_END,
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    Assign,
    Earliest,
    GlobalTimestamp,
    Latest,
    SpecificOffsets,
    Subscribe,
    SubscribePattern,
    Timestamps,
    check_same_partitions,
    listed,
)
from spark_kafka_sink.errors import (
    BrokerError,
    ConfigError,
    KafkaError,
    KafkaTimeoutError,
    NetworkError,
)
from spark_kafka_sink.model import NO_LEADER_EPOCH, TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.spark.idle_cache import IDLE_SECONDS, IdleCache, fingerprint
from spark_kafka_sink.spark.source.first_batch import Start
from spark_kafka_sink.spark.source.offsets_json import Offsets, StreamOffsets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from uuid import UUID

    from spark_kafka_sink.config.consumer_config import ConsumerConfig
    from spark_kafka_sink.config.offset_specs import Accepted, OffsetSpec, Selection
    from spark_kafka_sink.config.source_options import SourceOptions
    from spark_kafka_sink.consumer.consumer_client import ConsumerClient, PartitionIds


logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")

#: How long a batch waits for brokers: short, since a user is waiting for the job to start.
_BATCH_SECONDS: Final = 15.0
#: For how long a partition must be gone before that is believed, and how often that is asked.
_SECONDS_UNTIL_GONE: Final = 3.0
_ASKS_UNTIL_GONE: Final = 6
_UNKNOWN_TOPIC: Final = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.name
#: How many partitions an error names.
_MOST_NAMED: Final = 5

# --- clients


def _start_client(config: ConsumerConfig) -> ConsumerClient:
    from spark_kafka_sink.consumer.consumer_client import ConsumerClient

    return ConsumerClient(config)


class ClientCache(IdleCache[str, "ConsumerClient"]):
    """The idle consumer clients of one process, by the rules of every `IdleCache`. Thread-safe.

    The key is a hash of the client's whole configuration. Drivers and tasks borrow a client for
    each step: its connections and its metadata live from one micro-batch to the next. A client that
    has failed is closed and not returned.
    """

    thread_name = "kafka-idle-clients"

    def __init__(
        self,
        idle_seconds: float = IDLE_SECONDS,
        *,
        start: Callable[[ConsumerConfig], ConsumerClient] = _start_client,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(idle_seconds, clock=clock, sleep=sleep)
        self._start = start

    def close_client(self, client: ConsumerClient) -> None:
        """Close a client; only log an error, so that it cannot hide why a read failed."""
        try:
            client.close()
        except Exception:
            logger.warning("could not close the consumer client cleanly", exc_info=True)

    @contextmanager
    def borrow(self, config: ConsumerConfig) -> Iterator[ConsumerClient]:
        """Yield a client for the block; a client that failed in it is closed.

        A reader that stops early leaves the client usable.
        """
        key = fingerprint(config)
        client = self.take(key) or self._start(config)
        try:
            yield client
        except GeneratorExit:
            self.put(key, client)
            raise
        except BaseException:
            self.close_client(client)
            raise
        self.put(key, client)


_cache = ClientCache()


def _start_empty_after_fork() -> None:
    global _cache  # noqa: PLW0603 -- one cache per process is the point
    _cache = ClientCache()


os.register_at_fork(after_in_child=_start_empty_after_fork)


def client_cache() -> ClientCache:
    """Return the cache of this process."""
    return _cache


# --- questions


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
        selection, before = self._options.selection, self._ids
        if self._is_incomplete:
            # The wait for a missing topic would delay every trigger.
            partitions = self._list(selection, skips_missing=True)
        else:
            try:
                partitions = self._list(selection)
            except BrokerError as error:
                if not _is_missing_topic(error):
                    raise
                logger.warning("%s", error)
                partitions = self._list(selection, skips_missing=True)
        for _ in range(_ASKS_UNTIL_GONE):
            if not self._may_exist(before):
                break
            self._sleep(_SECONDS_UNTIL_GONE / _ASKS_UNTIL_GONE)
            partitions = self._list(selection, skips_missing=True)
        self._is_incomplete = not _has_all(partitions, selection)
        return partitions

    def _may_exist(self, before: Mapping[TopicPartition, PartitionIds]) -> bool:
        """Return whether one of the partitions that were listed before may be there still.

        A topic never loses partitions, and a new topic or partition is not known to all brokers at
        once. If it were believed to be gone, it would be read from its start when it is back.
        """
        topic_ids = {partition.topic: ids.topic_id for partition, ids in self._ids.items()}
        return any(
            partition not in self._ids
            and topic_ids.get(partition.topic, known.topic_id) == known.topic_id
            for partition, known in before.items()
        )

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


# --- starts and ends


def starting_offsets(
    options: SourceOptions,
    partitions: Sequence[TopicPartition],
    cluster: SourceCluster,
    accepted: Accepted,
) -> Start:
    """Return where a read starts; `accepted` is what startingOffsets accepts, for errors.

    Raises ConfigError if the options name other partitions, or if no record matches a timestamp.
    """
    spec, option = options.starting, options.starting_option
    offsets, unmatched, latest = _resolve(spec, option, partitions, cluster, accepted)
    if unmatched and options.starting_timestamp_strategy != "latest":
        first = sorted(unmatched.items())[:_MOST_NAMED]
        times = ", ".join(f"{partition} ({time})" for partition, time in first)
        raise ConfigError(
            f"{option}: no record has the timestamp or a later one in {times}. Choose an earlier "
            "timestamp, or set startingOffsetsByTimestampStrategy=latest"
        )
    given: list[TopicPartition] = []
    if isinstance(spec, SpecificOffsets):
        given = [partition for partition, offset in spec.offsets.items() if offset >= 0]
    return Start(offsets, latest, frozenset(given))


def ending_offsets(
    options: SourceOptions, partitions: Sequence[TopicPartition], cluster: SourceCluster
) -> Offsets:
    """Return where a batch ends: for a timestamp without a match, at the latest offset."""
    spec, option = options.ending, options.ending_option
    offsets, _, _ = _resolve(spec, option, partitions, cluster, BATCH_END)
    return offsets


def _resolve(
    spec: OffsetSpec,
    option: str,
    partitions: Sequence[TopicPartition],
    cluster: SourceCluster,
    accepted: Accepted,
) -> tuple[StreamOffsets, Mapping[TopicPartition, int], frozenset[TopicPartition]]:
    """Return the offsets, the timestamps without a match, and which offsets are the latest."""
    unmatched: dict[TopicPartition, int] = {}
    match spec:
        case Earliest():
            positions = dict.fromkeys(partitions, EARLIEST_OFFSET)
        case Latest():
            positions = dict.fromkeys(partitions, LATEST_OFFSET)
        case SpecificOffsets():
            _check_topics(option, spec, partitions)
            positions = spec.of(partitions)
            check_same_partitions(option, positions, partitions, accepted.stand_ins)
        case Timestamps() | GlobalTimestamp():
            if isinstance(spec, Timestamps):
                check_same_partitions(option, spec.timestamps, partitions)
                times = dict(spec.timestamps)
            else:
                times = dict.fromkeys(partitions, spec.timestamp)
            matches = cluster.at_times(times)
            unmatched = {
                partition: times[partition]
                for partition in partitions
                if matches.get(partition) is None
            }
            positions = {
                partition: LATEST_OFFSET if (offset := matches.get(partition)) is None else offset
                for partition in partitions
            }
    latest = [partition for partition in partitions if positions[partition] == LATEST_OFFSET]
    earliest = [partition for partition in partitions if positions[partition] == EARLIEST_OFFSET]
    offsets = cluster.latest(latest)
    offsets = offsets.at({**positions, **offsets, **cluster.earliest(earliest)})
    return offsets, unmatched, frozenset(latest)


def _check_topics(option: str, spec: SpecificOffsets, partitions: Iterable[TopicPartition]) -> None:
    unknown = sorted(spec.topics.keys() - {partition.topic for partition in partitions})
    if unknown:
        raise ConfigError(
            f"{option} must name only topics that are read, but the read does not cover "
            f"{listed(unknown, _MOST_NAMED)}"
        )
