"""A range that is read in memory, step by step, on a simulated clock."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from spark_kafka_sink.consumer.fetch.range_fetch import (
    Batches,
    LogBounds,
    LookUpBounds,
    PartitionRange,
    PartitionView,
    RangeFetch,
    Refresh,
    SendFetch,
    Wait,
)
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.exponential_backoff import ExponentialBackoff
from spark_kafka_sink.protocol.messages.fetch import PartitionData

if TYPE_CHECKING:
    from spark_kafka_sink.consumer.fetch.range_fetch import Rows, Step

LEADER, FOLLOWER, OTHER = (Node(n, f"broker-{n}", 9092) for n in (1, 2, 3))
NODES = MappingProxyType({node.node_id: node for node in (LEADER, FOLLOWER, OTHER)})
#: In seconds.
TIMEOUT = 60.0
BACKOFF = 0.1
REPLICA_MAX_AGE = 300.0
END = 100


def partition_data(**fields: object) -> PartitionData:
    """Build the answer for partition 0, without records."""
    given = {"partition_index": 0, "high_watermark": END, "last_stable_offset": END, "records": b""}
    return PartitionData(**{**given, **fields})


def view(**fields: object) -> PartitionView:
    """Build a view of a partition led by `LEADER` in epoch 5."""
    given = {"leader": LEADER, "leader_epoch": 5, "partition_count": 1, "nodes": NODES}
    return PartitionView(**{**given, **fields})


class RangeScript:
    """The state of a range from 0 to `END`, its metadata, and the clock."""

    def __init__(self, *, is_committed: bool = False, **fields: object) -> None:
        """Start at time 0; `fields` are those of `PartitionRange`."""
        given = {"topic": "t", "partition": 0, "start": 0, "end": END, **fields}
        self.now = 0.0
        self.view = view()
        self.state = RangeFetch(
            PartitionRange(**given),
            is_committed=is_committed,
            backoff=ExponentialBackoff(BACKOFF, BACKOFF),
            timeout=TIMEOUT,
            replica_max_age=REPLICA_MAX_AGE,
            now=self.now,
        )

    def step(self) -> Step:
        """Return the next step."""
        return self.state.step(self.view, self.now)

    def until(self, *kinds: type) -> Step:
        """Wait and refresh, with the same metadata, until the next step is of another kind."""
        while True:
            step = self.step()
            if isinstance(step, Wait) and Wait not in kinds:
                assert self.now < step.until
                self.now = step.until
            elif isinstance(step, Refresh) and Refresh not in kinds:
                self.refresh()
            elif isinstance(step, LookUpBounds) and LookUpBounds not in kinds:
                self.state.bounds_found(LogBounds(0, END, END), self.now)
            else:
                return step

    def until_fetch(self) -> SendFetch:
        """Do what is needed until the next Fetch, and return it."""
        step = self.until()
        assert isinstance(step, SendFetch), step
        return step

    def refresh(self, **fields: object) -> None:
        """Return metadata to the state; `fields` are what has changed."""
        if fields:
            self.view = view(**fields)
        self.state.refreshed(self.view, self.now)

    def answer(
        self,
        data: PartitionData | None,
        *,
        next_offset: int | None = None,
        batch_count: int = 1,
        leader_epoch: int = 5,
        throttle: float = 0.0,
    ) -> Rows | None:
        """Return an answer to the next Fetch; with `next_offset`, by batches that end before it."""
        batches = None if next_offset is None else Batches(batch_count, next_offset, leader_epoch)
        return self.state.answered(
            self.until_fetch(), data, throttle=throttle, batches=batches, now=self.now
        )

    def read(self, next_offset: int, **more: int) -> Rows | None:
        """Return batches that end before an offset for the next Fetch."""
        return self.answer(partition_data(), next_offset=next_offset, **more)

    def redirect(self) -> None:
        """Return a recommendation of the follower for the next Fetch."""
        self.answer(partition_data(preferred_read_replica=FOLLOWER.node_id))
