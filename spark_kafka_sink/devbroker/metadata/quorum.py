"""The metadata log of a cluster, and the election of the controller that may append to it.

This is the one part of the cluster that is simulated. Kafka's controllers agree by Raft on a log
that each of them has; here all brokers of the process share one log, which is durable at once: in
a file (`MetadataStore`), or in memory by outliving the brokers. All that Raft guarantees holds:
there is one controller in each epoch, epochs only grow, a controller that has been replaced cannot
append any more, and a new one knows the whole log.

A controller holds its epoch by a lease, which it renews as long as it hears from most of the
running brokers (as a Raft leader resigns without its followers' fetches). When the lease has
ended, the running brokers may take it in the order of their ids, beginning after the last holder,
each a moment after the one before it. So a broker that cannot reach the others does not become
controller again and again.

Only controllers use this object. Brokers fetch the records from the controller
(`FetchMetadataRequest`), over links that a test can delay or cut. Time is an argument, in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from spark_kafka_sink.devbroker.base.timers import NEVER
from spark_kafka_sink.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_kafka_sink.devbroker.metadata.records import MetadataRecord

#: The controller while there is none.
NO_CONTROLLER: Final = -1


class NotControllerError(KafkaError):
    """An append by a controller whose epoch is over (Kafka's NotControllerException)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchMetadataRequest:
    """A request for the records of the metadata log from an offset on, for any broker.

    It stands for the Fetch request with which Kafka's brokers read the log.
    """

    node_id: int
    offset: int
    #: For how long the controller may hold the request while there are no such records, in seconds.
    max_wait: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchMetadataResponse:
    """The current controller and, if it is the one that responds, the requested records."""

    controller_id: int
    controller_epoch: int
    #: The offset of the first record.
    offset: int
    records: tuple[MetadataRecord, ...] = ()


class StoredRecords(NamedTuple):
    """What a controller has appended at once, and its epoch."""

    epoch: int
    records: tuple[MetadataRecord, ...]


class MetadataStore(Protocol):
    """Where the metadata log survives the process."""

    def load(self) -> Sequence[StoredRecords]:
        """Return what was appended, in its order. Raises OSError, ConfigError."""

    def append(self, epoch: int, records: Sequence[MetadataRecord]) -> None:
        """Store records before they take effect.

        Raises RefusedError with KAFKA_STORAGE_ERROR; then none of them is stored.
        """


class MetadataQuorum:
    """The metadata log, and who the controller is."""

    def __init__(
        self, lease: float = 2.0, stagger: float = 0.1, store: MetadataStore | None = None
    ) -> None:
        """Begin with an empty log, or with what is stored. Raises OSError, ConfigError.

        A controller that does not renew its lease for `lease` seconds may be replaced; `stagger` is
        the time between two brokers' turns to do so.
        """
        self.lease = lease
        self._stagger = stagger
        self._store = store
        self._records: list[MetadataRecord] = []
        self._running: set[int] = set()
        self._controller_id = NO_CONTROLLER
        #: An epoch in which nothing was appended may come again in the next process.
        self._controller_epoch = 0
        self._last_holder = NO_CONTROLLER
        #: When the lease of the controller ends, unless it is renewed.
        self.lease_ends_at = float("-inf")
        for stored in () if store is None else store.load():
            self._records += stored.records
            self._controller_epoch = stored.epoch

    @property
    def controller_id(self) -> int:
        """The broker that holds the lease, or held the last one, if it has not been taken since."""
        return self._controller_id

    @property
    def controller_epoch(self) -> int:
        """The epoch of the controller: how often one was elected."""
        return self._controller_epoch

    @property
    def end_offset(self) -> int:
        """The offset of the next record."""
        return len(self._records)

    @property
    def running(self) -> frozenset[int]:
        """The brokers that may be elected."""
        return frozenset(self._running)

    def start(self, node_id: int) -> None:
        """Make a broker a candidate."""
        self._running.add(node_id)

    def stop(self, node_id: int) -> None:
        """Remove a broker from the candidates; a controller keeps the rest of its lease."""
        self._running.discard(node_id)

    def acquire(self, node_id: int, now: float) -> int | None:
        """Return the new epoch if this broker becomes the controller now, or else None."""
        if now < self.turn_of(node_id):
            return None
        self._controller_id = self._last_holder = node_id
        self._controller_epoch += 1
        self.lease_ends_at = now + self.lease
        return self._controller_epoch

    def renew(self, epoch: int, now: float) -> bool:
        """Extend the lease of a controller; return whether its epoch is still the current one."""
        if not self._is_current(epoch):
            return False
        self.lease_ends_at = now + self.lease
        return True

    def resign(self, epoch: int, now: float) -> None:
        """End the lease of a controller that shuts down, so that another is elected at once."""
        if self._is_current(epoch):
            self._controller_id = NO_CONTROLLER
            self.lease_ends_at = now

    def append(self, epoch: int, records: Sequence[MetadataRecord]) -> int:
        """Append a controller's records, all or none; return the offset of the first one.

        Raises NotControllerError if another controller has been elected, or none is, and
        RefusedError with KAFKA_STORAGE_ERROR if they cannot be stored.
        """
        if not self._is_current(epoch):
            raise NotControllerError(
                f"controller epoch {epoch} is over: the current one is {self._controller_epoch}"
            )
        offset = len(self._records)
        if self._store is not None:
            self._store.append(epoch, records)
        self._records += records
        return offset

    def read(self, offset: int, limit: int) -> tuple[MetadataRecord, ...]:
        """Return the records from an offset on, at most `limit`."""
        return tuple(self._records[offset : offset + limit])

    def _is_current(self, epoch: int) -> bool:
        return epoch == self._controller_epoch and self._controller_id != NO_CONTROLLER

    def turn_of(self, node_id: int) -> float:
        """Return the time from which a broker may take the lease."""
        if node_id not in self._running:
            return NEVER
        after_last = sorted(self._running, key=lambda each: (each <= self._last_holder, each))
        return self.lease_ends_at + after_last.index(node_id) * self._stagger
