"""A cluster that consists only of the offsets of its partitions, for the reader of a stream."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_kafka_sink.config.offset_specs import Assign, Subscribe, SubscribePattern
from spark_kafka_sink.config.source_options import SourceOptions
from spark_kafka_sink.consumer.offsets.offset_requests import FoundOffset
from spark_kafka_sink.errors import BrokerError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from spark_kafka_sink.model import TopicPartition

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}


class Ids(NamedTuple):
    """What tells a partition from a later one of the same name."""

    topic_id: UUID | None
    leader_epoch: int


class FakeClient:
    """A `ConsumerClient` over logs that a test changes."""

    def __init__(self) -> None:
        """Begin without topics."""
        #: For each partition, the earliest and the latest offset.
        self.logs: dict[TopicPartition, tuple[int, int]] = {}
        #: For each partition, the offset of the first record at or after any time, or by time.
        self.times: dict[TopicPartition, int | dict[int, int]] = {}
        #: The ids of topics, where the broker has them.
        self.topic_ids: dict[str, UUID] = {}
        #: The leader epochs of partitions, if not 3, and where the logs of earlier ones end.
        self.epochs: dict[TopicPartition, int] = {}
        self.epoch_ends_of: dict[tuple[TopicPartition, int], int] = {}
        #: The errors of the next calls, one for each call.
        self.errors: list[Exception] = []
        #: The partitions that the brokers do not know yet that list them next, one set for each.
        self.unknown: list[set[TopicPartition]] = []
        #: The latest offsets of the next calls, instead of those of the logs.
        self.stale: list[dict[TopicPartition, int]] = []
        self.calls: list[str] = []
        self.commits: list[tuple[str, dict[TopicPartition, int]]] = []
        self.refusals: dict[TopicPartition, BrokerError] = {}
        self.closed = 0
        #: Whether the last listing of partitions would have failed early.
        self.failed_early: bool | None = None
        self._listed: set[TopicPartition] = set()

    def list_partitions(
        self,
        selection: Any,
        *,
        timeout: float,
        skips_missing: bool = False,
        fails_early: bool = False,
    ) -> tuple[TopicPartition, ...]:
        """Return the partitions of a selection, sorted."""
        self._call("list_partitions")
        self.failed_early = fails_early
        unknown = self.unknown.pop(0) if self.unknown else set()
        known = self.logs.keys() - unknown
        self._listed |= known
        match selection:
            case Subscribe(topics):
                names = set(topics)
                wanted = {one for one in known if one.topic in names}
            case SubscribePattern(pattern):
                return tuple(sorted(one for one in known if _matches(pattern, one.topic)))
            case Assign(partitions):
                names = {one.topic for one in partitions}
                wanted = set(partitions)
        if skips_missing:
            return tuple(sorted(wanted & known))
        for name in sorted(names - {one.topic for one in known}):
            raise BrokerError(
                f"topic {name!r} does not exist",
                code=3,
                name="UNKNOWN_TOPIC_OR_PARTITION",
                retriable=True,
            )
        return tuple(sorted(wanted))

    def earliest_offsets(self, partitions: Any, *, timeout: float) -> dict[TopicPartition, int]:
        """Return the log starts."""
        self._call("earliest_offsets")
        return {one: self.logs[one][0] for one in partitions}

    def log_ends(self, partitions: Any, *, timeout: float) -> dict[TopicPartition, FoundOffset]:
        """Return the log ends."""
        self._call("log_ends")
        ends = self.stale.pop(0) if self.stale else {one: self.logs[one][1] for one in partitions}
        return {one: FoundOffset(end, self._epoch(one)) for one, end in ends.items()}

    def epoch_ends(self, epochs: Any, *, timeout: float) -> dict[TopicPartition, int]:
        """Return the ends of the logs of epochs."""
        self._call("epoch_ends")
        found = {one: self.epoch_ends_of.get((one, epoch)) for one, epoch in epochs.items()}
        return {one: end for one, end in found.items() if end is not None}

    def offsets_for_times(self, times: Any, *, timeout: float) -> dict[TopicPartition, int | None]:
        """Return the offsets of the times."""
        self._call("offsets_for_times")
        found = {one: self.times.get(one) for one in times}
        return {
            one: offset.get(times[one]) if isinstance(offset, dict) else offset
            for one, offset in found.items()
        }

    def partition_ids(self, partitions: Any) -> dict[TopicPartition, Ids]:
        """Return the ids of partitions that were listed once."""
        self._call("partition_ids")
        return {
            one: Ids(self.topic_ids.get(one.topic), self._epoch(one))
            for one in partitions
            if one in self._listed
        }

    def commit_offsets(
        self, group_id: str, offsets: dict[TopicPartition, int], *, timeout: float
    ) -> dict[TopicPartition, BrokerError]:
        """Record a commit."""
        self._call("commit_offsets")
        self.commits.append((group_id, dict(offsets)))
        return self.refusals

    def close(self) -> None:
        """Count that it was closed."""
        self.closed += 1

    def _epoch(self, partition: TopicPartition) -> int:
        return self.epochs.get(partition, 3)

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if self.errors:
            raise self.errors.pop(0)


def _matches(pattern: str, name: str) -> bool:
    return re.search(pattern, name) is not None


class FakeClients:
    """A `ClientCache` that lends one client."""

    def __init__(self, client: FakeClient) -> None:
        """Store the client."""
        self.client = client

    @contextmanager
    def borrow(self, _: Any) -> Iterator[FakeClient]:
        """Yield the client."""
        yield self.client


def source_options(*, is_stream: bool = True, **options: Any) -> SourceOptions:
    """Parse options; those with dots are given by `**`."""
    selected = any(name in options for name in ("subscribe", "subscribePattern", "assign"))
    given = {**SERVERS, **({} if selected else {"subscribe": "t"}), **options}
    return SourceOptions.from_mapping(given, is_stream=is_stream)
