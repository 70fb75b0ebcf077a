"""A small world for the exactly-once protocol: a broker, workers, drivers that die where told.

A driver is what one process would have: an admin client, a ledger, the protocol. To crash, it
raises `CrashError` at a named point and is never used again.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from spark_kafka_sink.admin.admin_client import AdminClient
from spark_kafka_sink.admin.partition_events import EndMarker
from spark_kafka_sink.admin.record_batches import KeyValue
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.exactly_once import recovery
from spark_kafka_sink.exactly_once.budget import Budget
from spark_kafka_sink.exactly_once.ledger import Ledger, ensure_ledger_topic
from spark_kafka_sink.exactly_once.ledger_records import OffsetRange, Winner
from spark_kafka_sink.exactly_once.transactional_ids import Slots, WorkerId
from spark_kafka_sink.exactly_once.two_phase_commit import Plan, Prepared, TwoPhaseCommit
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from spark_kafka_sink.exactly_once.ledger import LedgerState
    from spark_kafka_sink.exactly_once.points import Point

TIMEOUT = 20.0
TASKS = 2
PREFIX = "orders"
QUERY = "query-1"
LEDGER = "ledger"
TRANSACTION_TIMEOUT_MS = 600_000


class CrashError(Exception):
    """The process is gone."""


class Clock:
    """Seconds since 1970, as the world's processes see them; may be put forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        """Tell the time."""
        return time.time() + self.ahead


class Driver:
    """One driver process."""

    def __init__(
        self, world: World, name: str, prefix: str, observe: Callable[[Point], None] | None
    ) -> None:
        self.admin = world.new_admin()
        self.ledger = Ledger(self.admin, topic=LEDGER, prefix=prefix, clock=world.clock)
        self.reached: list[Point] = []
        self._observe = observe
        self.protocol = TwoPhaseCommit(
            self.admin, self.ledger, clock=world.clock, name=name, observe=self._note
        )

    def _note(self, point: Point) -> None:
        self.reached.append(point)
        if self._observe is not None:
            self._observe(point)

    def plan(self, write_id: str | None = QUERY, **settings: Any) -> Plan:
        """Plan a batch."""
        return self.protocol.plan(write_id, timeout=settings.get("timeout", TIMEOUT))

    def commit(
        self,
        plan: Plan,
        prepared: list[Prepared],
        batch_id: int = 0,
        write_id: str = QUERY,
        **settings: Any,
    ) -> None:
        """Commit a batch."""
        settings.setdefault("timeout", TIMEOUT)
        self.protocol.commit(plan, write_id, batch_id, prepared, **settings)

    def abort(
        self, plan: Plan, prepared: list[Prepared], batch_id: int = 0, write_id: str = QUERY
    ) -> bool:
        """Abort a batch."""
        return self.protocol.abort(plan, write_id, batch_id, prepared, timeout=TIMEOUT)


class Attempt:
    """A task attempt: its transaction is open from `begin` on."""

    def __init__(self, worker: Worker, plan: Plan, partition: int) -> None:
        self._worker = worker
        self._plan = plan
        self._place = TopicPartition("data", partition)
        self.worker_id: WorkerId = worker.slots.take(plan.generation)
        self._producer: ProducerIdAndEpoch = worker.admin.init_producer_id(
            str(self.worker_id), transaction_timeout_ms=TRANSACTION_TIMEOUT_MS, timeout=TIMEOUT
        )

    def write(self, *values: str) -> Prepared:
        """Write all rows of the attempt, flushed, and leave the transaction open."""
        admin = self._worker.admin
        first = admin.end_offset(self._place, timeout=TIMEOUT)
        records = [KeyValue(b"k", value.encode()) for value in values]
        rules = admin.write_to_transaction(
            str(self.worker_id), self._producer, self._place, records, now_ms=0, timeout=TIMEOUT
        )
        self._worker.slots.release(self.worker_id)
        written = OffsetRange(self._place, first, first + len(values) - 1, len(values))
        return Prepared(
            self._plan.generation,
            Winner(str(self.worker_id), self._producer, rules, (written,)),
        )


class Worker:
    """One Python worker, which lives on over many tasks."""

    def __init__(self, admin: AdminClient, prefix: str) -> None:
        self.admin = admin
        self.slots = Slots(prefix)

    def begin(self, plan: Plan, partition: int) -> Attempt:
        """Begin a task attempt: nothing is written yet."""
        return Attempt(self, plan, partition)

    def run(self, plan: Plan, batch_id: int = 0, name: str = "") -> list[Prepared]:
        """Write the rows of a batch: the same ones whenever it is written."""
        return [
            self.begin(plan, partition).write(*rows(batch_id, name)[partition])
            for partition in range(TASKS)
        ]


def rows(batch_id: int, name: str = "") -> list[list[str]]:
    """Give the rows of a batch, by partition."""
    return [[f"{name}b{batch_id}.p{place}.{row}" for row in range(3)] for place in range(TASKS)]


class World:
    """Everything; see the module."""

    def __init__(self, broker: DevBroker) -> None:
        self.broker = broker
        self.clock = Clock()
        self._admins: list[AdminClient] = []
        self.admin = self.new_admin()
        self.worker = Worker(self.admin, PREFIX)

    def new_admin(self) -> AdminClient:
        """Give the connections of one more process."""
        admin = AdminClient(
            ProducerConfig.from_mapping(
                {"bootstrap.servers": self.broker.bootstrap_servers, "retry.backoff.ms": 5}
            )
        )
        self._admins.append(admin)
        return admin

    def driver(
        self,
        name: str = "driver",
        *,
        prefix: str = PREFIX,
        observe: Callable[[Point], None] | None = None,
    ) -> Driver:
        """Start a driver process."""
        return Driver(self, name, prefix, observe)

    def dying(self, point: Point) -> Driver:
        """Make a driver that is gone as soon as it has got to a point."""

        def die(reached: Point) -> None:
            if reached is point:
                raise CrashError(point.value)

        return self.driver(f"dies at {point.value}", observe=die)

    def finish(self, batch_id: int = 0, *, driver: Driver | None = None) -> None:
        """Do what Spark does after a restart: plan, write what has to be, commit."""
        driver = driver or self.driver("restarted")
        plan = driver.plan()
        if plan.must_write(QUERY, batch_id):
            driver.commit(plan, self.worker.run(plan, batch_id), batch_id)

    # --- what can be seen

    def visible(self) -> list[str]:
        """Give what a read_committed consumer of all data has seen, sorted."""
        seen: list[str] = []
        for partition in range(TASKS):
            pending: dict[int | None, list[str]] = {}
            for event in self._events(TopicPartition("data", partition)):
                if isinstance(event, EndMarker):
                    values = pending.pop(event.producer_id, [])
                    seen += values if event.committed else []
                else:
                    value = (event.record.value or b"").decode()
                    pending.setdefault(event.transaction_of, []).append(value)
        return sorted(seen)

    def _events(self, place: TopicPartition) -> Iterator[Any]:
        offset = 0
        end = self.admin.end_offset(place, timeout=TIMEOUT)
        while offset < end:
            chunk = self.admin.read_partition(place, offset, timeout=TIMEOUT)
            yield from chunk.events
            offset = chunk.next_offset

    def left_open(self, prefix: str = PREFIX) -> list[str]:
        """Name the transactions of the prefix's tasks that are open."""
        listed = recovery.list_open(self.admin, prefix, self.budget())
        return [one.transactional_id for one in listed]

    def ledger_state(self, prefix: str = PREFIX) -> LedgerState:
        """Read the ledger without fencing anybody."""
        ledger = Ledger(self.admin, topic=LEDGER, prefix=prefix, clock=self.clock)
        return ledger.read(self.budget())

    def budget(self) -> Budget:
        """Give enough time for anything."""
        return Budget.of(self.clock, TIMEOUT)

    def time_out_everything(self) -> None:
        """Have the broker abort what is open, as if its time-out had passed."""
        later = time.time() + TRANSACTION_TIMEOUT_MS / 1000 + 60
        self.broker.call(lambda broker: broker.tick(later))

    def close(self) -> None:
        """End all processes."""
        for admin in self._admins:
            admin.close()


@contextmanager
def world(**settings: Any) -> Iterator[World]:
    """Begin with a broker, two partitions of data, and an empty ledger."""
    with DevBroker(topics={"data": TASKS}, auto_create_topics=False, **settings) as broker:
        made = World(broker)
        try:
            ensure_ledger_topic(made.admin, LEDGER, replication_factor=1, timeout=TIMEOUT)
            yield made
        finally:
            made.close()


def each_once(*batches: int, name: str = "") -> list[str]:
    """Give what is visible when these batches are in once each."""
    return sorted(value for batch in batches for part in rows(batch, name) for value in part)


def duplicates(values: list[str]) -> dict[str, int]:
    """Count what is there more than once."""
    return {value: count for value, count in Counter(values).items() if count > 1}
