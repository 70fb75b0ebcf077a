"""A client that reads: its connections, and the thread on which they live.

The calls block, and may be made by any thread but the client's own. The event loop runs all the
time, so that answers are received while the caller handles earlier ones.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar

from spark_kafka_sink.consumer.fetch.fetch_sessions import (
    fetch_request,
    named_leader,
    named_nodes,
    partition_data,
)
from spark_kafka_sink.consumer.fetch.range_fetch import LogBounds, PartitionView
from spark_kafka_sink.consumer.offsets.offset_calls import BrokerRequests, EpochCalls, OffsetCalls
from spark_kafka_sink.consumer.offsets.offset_requests import list_offsets_request, read_offsets
from spark_kafka_sink.errors import DecodeError, IllegalStateError, KafkaError
from spark_kafka_sink.network.authentication.connection_security import read_security
from spark_kafka_sink.network.network_client import NetworkClient
from spark_kafka_sink.network.network_thread import NetworkThread
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.messages.list_offsets import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    FIRST_VERSION_WITH_EARLIEST_LOCAL,
    LATEST_TIMESTAMP,
    ListOffsetsPartition,
)
from spark_kafka_sink.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping
    from concurrent.futures import Future
    from uuid import UUID

    from spark_kafka_sink.config.consumer_config import ConsumerConfig
    from spark_kafka_sink.config.offset_specs import Selection
    from spark_kafka_sink.consumer.fetch.range_fetch import LookUpBounds, SendFetch
    from spark_kafka_sink.consumer.offsets.offset_requests import FoundOffset
    from spark_kafka_sink.model import Node, TopicPartition
    from spark_kafka_sink.protocol.messages.fetch import PartitionData

#: A larger response is refused as not being one of Kafka's; a first batch always comes whole.
_MOST_BYTES: Final = 100 * 1024 * 1024
_BUSY: Final = "although nothing should keep it busy for so long; is this machine overloaded?"


class FetchAnswer(NamedTuple):
    """The answer to a Fetch."""

    #: None if the answer lacks the partition.
    data: PartitionData | None
    #: Seconds for which the broker throttles this client.
    throttle: float


class FetchCalls:
    """The calls of a reader. Each is one attempt: `RangeFetch` decides about retries."""

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


T = TypeVar("T")


class PartitionIds(NamedTuple):
    """The ids that distinguish a partition from a later one of the same name."""

    #: None if the broker has no topic ids (before Kafka 2.8).
    topic_id: UUID | None
    #: -1 if it is not known.
    leader_epoch: int


class ConsumerClient:
    """The connections to one cluster, for calls about offsets and for `read_range`; `close` it.

    It is not pickled: each process creates its own.
    """

    def __init__(self, config: ConsumerConfig) -> None:
        """Start the client's thread; connections are opened when they are needed.

        Raises ConfigError for TLS and SASL settings that cannot be used.
        """
        read_security(config.security)
        # A read must not create the topic whose name was misspelt.
        self.config = replace(config, allow_auto_create_topics=False)
        #: The calls of readers, to be passed to `submit`.
        self.fetches: FetchCalls
        self._offsets: OffsetCalls
        self._epochs: EpochCalls
        self._client: NetworkClient
        self._thread = NetworkThread(
            self._serve,
            name=f"kafka-consumer-network-thread | {config.client_id}",
            closed=_closed,
            busy=_BUSY,
        )
        with ExitStack() as undo:
            self._thread.start(undo)
            undo.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections and end the thread; may be called more than once."""
        self._thread.stop()

    async def _serve(self) -> None:
        changed = asyncio.Event()
        self._client = NetworkClient(self.config, on_change=changed.set)
        requests = BrokerRequests(self._client, self.config, changed)
        self.fetches = FetchCalls(requests, self.config)
        self._offsets = OffsetCalls(requests)
        self._epochs = EpochCalls(requests, self._offsets)
        self._thread.started()
        try:
            await asyncio.Event().wait()
        finally:
            await self._client.close()

    # --- partitions and offsets

    def list_partitions(
        self,
        selection: Selection,
        *,
        timeout: float,
        skips_missing: bool = False,
        fails_early: bool = False,
    ) -> tuple[TopicPartition, ...]:
        """Return the partitions of a selection as of now, sorted; times are in seconds.

        With `skips_missing` it returns those that exist, without waiting for the others. With
        `fails_early` it connects to their leaders, too, and waits for only a few seconds if nothing
        listens at any broker's address, or at the one that a leader advertises.

        Raises BrokerError for a topic or partition that does not exist or may not be read,
        NetworkError or KafkaTimeoutError if no broker answers in time.
        """
        return self._ask(
            lambda calls, by: calls.partitions(
                selection, by, skips_missing=skips_missing, fails_early=fails_early
            ),
            timeout,
        )

    def earliest_offsets(
        self, partitions: Iterable[TopicPartition], *, timeout: float
    ) -> dict[TopicPartition, int]:
        """Return the first offset that there is of each partition; see `list_partitions`."""
        return self._bounds(partitions, EARLIEST_TIMESTAMP, timeout)

    def latest_offsets(
        self, partitions: Iterable[TopicPartition], *, timeout: float
    ) -> dict[TopicPartition, int]:
        """Return the offset after the last record of each partition; see `list_partitions`.

        With isolation.level=read_committed that is the last stable offset.
        """
        return self._bounds(partitions, LATEST_TIMESTAMP, timeout)

    def log_ends(
        self, partitions: Iterable[TopicPartition], *, timeout: float
    ) -> dict[TopicPartition, FoundOffset]:
        """Return the latest offsets with the epochs of the leaders in whose logs they are."""
        return self._found_offsets(dict.fromkeys(partitions, LATEST_TIMESTAMP), timeout)

    def epoch_ends(
        self, epochs: Mapping[TopicPartition, int], *, timeout: float
    ) -> dict[TopicPartition, int]:
        """Return where the logs of leader epochs end; leaders may not know it (KIP-320).

        A log that ends before an offset which was once in it, in that epoch, has been truncated.
        """
        deadline = self.clock() + timeout
        ends = self._thread.run(self._epochs.epoch_ends(epochs, deadline), timeout)
        return {partition: end.end_offset for partition, end in ends.items() if end.end_offset >= 0}

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int], *, timeout: float
    ) -> dict[TopicPartition, int | None]:
        """Return the first offset at or after a time, in ms since 1970, None if there is none."""
        return self._offsets_of(times, timeout)

    def partition_ids(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, PartitionIds]:
        """Return topic ids and leader epochs as last seen, without a request."""
        snapshot = self._client.metadata.snapshot
        ids = {}
        for topic_partition in partitions:
            topic_id = snapshot.topic_id(topic_partition.topic)
            known = snapshot.partition(topic_partition)
            ids[topic_partition] = PartitionIds(
                None if topic_id == ZERO_UUID else topic_id,
                -1 if known is None else known.leader_epoch,
            )
        return ids

    def commit_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int], *, timeout: float
    ) -> dict[TopicPartition, KafkaError]:
        """Commit offsets of a consumer group without members; return the refusals."""
        return self._ask(lambda calls, by: calls.commit(group_id, offsets, by), timeout)

    def _bounds(
        self, partitions: Iterable[TopicPartition], timestamp: int, timeout: float
    ) -> dict[TopicPartition, int]:
        offsets = self._offsets_of(dict.fromkeys(partitions, timestamp), timeout)
        return {partition: offset or 0 for partition, offset in offsets.items()}

    def _offsets_of(
        self, timestamps: Mapping[TopicPartition, int], timeout: float
    ) -> dict[TopicPartition, int | None]:
        return {
            partition: found.offset
            for partition, found in self._found_offsets(timestamps, timeout).items()
        }

    def _found_offsets(
        self, timestamps: Mapping[TopicPartition, int], timeout: float
    ) -> dict[TopicPartition, FoundOffset]:
        is_committed = self.config.is_read_committed
        return self._ask(
            lambda calls, by: calls.found_offsets(timestamps, by, is_committed=is_committed),
            timeout,
        )

    def _ask(
        self, call: Callable[[OffsetCalls, float], Coroutine[Any, Any, T]], timeout: float
    ) -> T:
        deadline = self.clock() + timeout
        return self._thread.run(call(self._offsets, deadline), timeout)

    # --- for readers

    def submit(self, call: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a call; its future can be waited for, or cancelled.

        Raises IllegalStateError if the client is closed.
        """
        return self._thread.submit(call)

    def clock(self) -> float:
        """Return the time of the client's loop, in seconds."""
        return self._thread.clock()


def _closed() -> IllegalStateError:
    return IllegalStateError("the consumer client is closed: create another one")
