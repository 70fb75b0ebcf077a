"""A client that reads: its connections, and the thread on which they live.

The calls block, and may be made by any thread but the client's own. The event loop runs all the
time, so that answers are received while the caller handles earlier ones.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from spark_kafka_sink.consumer.fetch.fetch_calls import FetchCalls
from spark_kafka_sink.consumer.offsets.broker_requests import BrokerRequests
from spark_kafka_sink.consumer.offsets.epoch_requests import (
    EpochAnswers,
    EpochEnd,
    epoch_request,
    positions_by_leader,
    read_epochs,
    supports_validation,
    unauthorized_error,
)
from spark_kafka_sink.consumer.offsets.offset_calls import Attempt, OffsetCalls, no_leader
from spark_kafka_sink.consumer.subscription.partition_state import FetchPosition, LeaderAndEpoch
from spark_kafka_sink.errors import IllegalStateError, KafkaError, NetworkError
from spark_kafka_sink.model import NO_LEADER_EPOCH, UNKNOWN_OFFSET
from spark_kafka_sink.network.authentication.connection_security import read_security
from spark_kafka_sink.network.base.network_thread import NetworkThread
from spark_kafka_sink.network.network_client import NetworkClient
from spark_kafka_sink.protocol.messages.list_offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from spark_kafka_sink.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
    from concurrent.futures import Future
    from types import TracebackType
    from typing import Self
    from uuid import UUID

    from spark_kafka_sink.config.consumer_config import ConsumerConfig
    from spark_kafka_sink.config.offset_specs import Selection
    from spark_kafka_sink.consumer.offsets.offset_requests import FoundOffset
    from spark_kafka_sink.model import Node, TopicPartition

T = TypeVar("T")

_BUSY: Final = "although nothing should keep it busy for so long; is this machine overloaded?"
#: The answer of a leader that does not know where an epoch's log ends.
_UNKNOWN = EpochEnd(UNKNOWN_OFFSET, NO_LEADER_EPOCH)


class PartitionIds(NamedTuple):
    """What tells a partition apart from a later one of the same name."""

    #: None if the broker has no topic ids (before Kafka 2.8).
    topic_id: UUID | None
    #: -1 if it is not known.
    leader_epoch: int


class EpochCalls:
    """The calls that ask where the logs of leader epochs end (KIP-320).

    They are for a reader that stores its positions itself. Times are seconds of the loop's clock.
    """

    def __init__(self, requests: BrokerRequests, offsets: OffsetCalls) -> None:
        self._requests = requests
        self._offsets = offsets

    async def epoch_ends(
        self, epochs: Mapping[TopicPartition, int], deadline: float
    ) -> dict[TopicPartition, EpochEnd]:
        """Return where the logs of epochs end, by the partitions' leaders.

        A leader does not know it if it has no such epoch, or is older than 2.3.

        Raises BrokerError for topics that this user may not describe, KafkaTimeoutError if there is
        no answer in time.
        """

        async def ask(left: Sequence[TopicPartition]) -> Attempt[EpochEnd]:
            positions = {
                partition: self._position(partition, epochs[partition]) for partition in left
            }
            groups = positions_by_leader(positions)
            leaderless = [
                partition
                for partition in left
                if positions[partition].current_leader.leader is None
            ]
            cause: KafkaError | None = no_leader(leaderless) if leaderless else None
            ends: dict[TopicPartition, EpochEnd] = {}
            for answers in await asyncio.gather(
                *(
                    self._ask_leader(node, leader_positions, deadline)
                    for node, leader_positions in groups.items()
                )
            ):
                if isinstance(answers, KafkaError):
                    cause = answers
                    continue
                if answers.unauthorized:
                    raise unauthorized_error(answers.unauthorized)
                ends |= answers.found
            return Attempt(ends, cause)

        return await self._offsets.repeat("OffsetForLeaderEpoch", epochs, deadline, ask)

    def _position(self, partition: TopicPartition, epoch: int) -> FetchPosition:
        snapshot = self._requests.client.metadata.snapshot
        known = snapshot.partition(partition)
        leader = LeaderAndEpoch(
            snapshot.leader_of(partition),
            NO_LEADER_EPOCH if known is None else known.leader_epoch,
        )
        return FetchPosition(UNKNOWN_OFFSET, epoch, leader)

    async def _ask_leader(
        self, node: Node, positions: Mapping[TopicPartition, FetchPosition], deadline: float
    ) -> EpochAnswers | KafkaError:
        try:
            connection = await self._requests.connection_to(node, deadline)
            if not supports_validation(connection.api_versions):
                return EpochAnswers(dict.fromkeys(positions, _UNKNOWN), (), ())
            response = await self._requests.ask(node, epoch_request(positions), deadline)
        except NetworkError as error:
            return error
        return read_epochs(response, positions)


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
        self._fetches: FetchCalls
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

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections and end the thread; may be called more than once."""
        self._thread.stop()

    async def _serve(self) -> None:
        changed = asyncio.Event()
        self._client = NetworkClient(self.config, on_change=changed.set)
        requests = BrokerRequests(self._client, self.config, changed)
        self._fetches = FetchCalls(requests, self.config)
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

    @property
    def fetches(self) -> FetchCalls:
        """The calls of readers, to be passed to `submit`."""
        return self._fetches

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
