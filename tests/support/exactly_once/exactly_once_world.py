"""A small world for the exactly-once protocol: a cluster, workers, and drivers that can crash.

A driver stands for one process: an admin client, a ledger, the protocol. To crash, it raises
`CrashError` at a named point, and is not used again.

The cluster is the embedded broker or a real Kafka (`exactly_once_sites`); tests run and check the
same on both. Every world has its own topics and its own prefix.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from spark_kafka_sink.admin.driver_client import DriverClient
from spark_kafka_sink.admin.records import DataRecord, EndMarker, KeyValue
from spark_kafka_sink.admin.transaction_values import TransactionEnd
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.exactly_once import operations, recovery
from spark_kafka_sink.exactly_once.ledger import Budget, Ledger, ensure_ledger_topic
from spark_kafka_sink.exactly_once.ledger_records import OffsetRange, Winner
from spark_kafka_sink.exactly_once.plan import Plan, Prepared
from spark_kafka_sink.exactly_once.transactional_ids import Slots, WorkerId
from spark_kafka_sink.exactly_once.two_phase_commit import Point, TwoPhaseCommit
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from tests.support.kafka.real_kafka import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from spark_kafka_sink.admin.records import PartitionEvent
    from spark_kafka_sink.devbroker import DevBroker
    from spark_kafka_sink.exactly_once.ledger_entries import LedgerState
    from spark_kafka_sink.exactly_once.ledger_records import WriteRecord
    from spark_kafka_sink.exactly_once.transitions import WriteState
    from tests.support.exactly_once.exactly_once_sites import Site

TIMEOUT = 60.0
TASKS = 2
ROWS_PER_TASK = 3
QUERY = "query-1"
TRANSACTION_TIMEOUT_MS = 600_000


class CrashError(Exception):
    """The simulated end of a process."""


class Clock:
    """The clock of the world's processes, in seconds since 1970; tests can advance it."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return time.time() + self.ahead


class Driver:
    """One driver process."""

    def __init__(
        self, world: World, name: str, prefix: str, observe: Callable[[Point], None] | None
    ) -> None:
        self.admin = world.new_admin()
        self.ledger = Ledger(self.admin, topic=world.ledger, prefix=prefix, clock=world.clock)
        self.reached: list[Point] = []
        self._observe = observe
        self.protocol = TwoPhaseCommit(
            self.admin,
            self.ledger,
            clock=world.clock,
            timer=time.monotonic,
            name=name,
            observe=self._note,
        )

    def _note(self, point: Point) -> None:
        self.reached.append(point)
        if self._observe is not None:
            self._observe(point)

    def plan(self, write_id: str | None = QUERY, **settings: Any) -> Plan:
        """Plan a batch."""
        return self.protocol.plan(write_id, **{"timeout": TIMEOUT, **settings})

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
    """A task attempt, whose transaction is open from `begin` on."""

    def __init__(self, worker: Worker, plan: Plan, partition: int) -> None:
        self._worker = worker
        self._plan = plan
        self._place = TopicPartition(worker.world.data, partition)
        self.worker_id: WorkerId = worker.slots.take(plan.generation)
        self._producer: ProducerIdAndEpoch = worker.world.admin.init_producer_id(
            str(self.worker_id),
            transaction_timeout_ms=worker.world.transaction_timeout_ms,
            timeout=TIMEOUT,
        )

    def write(self, *values: str) -> Prepared:
        """Write and flush all rows of the attempt, and leave the transaction open."""
        world = self._worker.world
        begin = world.admin.end_offset(self._place, timeout=TIMEOUT)
        rules = world.admin.write_to_transaction(
            str(self.worker_id),
            self._producer,
            self._place,
            [KeyValue(b"k", value.encode()) for value in values],
            now_ms=int(time.time() * 1000),
            timeout=TIMEOUT,
        )
        self._worker.slots.release(self.worker_id)
        # Another transaction's marker may have been appended before the rows.
        first = min(
            event.record.offset
            for event in world.events(self._place, begin)
            if isinstance(event, DataRecord) and event.transaction_of == self._producer.producer_id
        )
        written = OffsetRange(self._place, first, first + len(values) - 1, len(values))
        return Prepared(
            self._plan.generation,
            Winner(str(self.worker_id), self._producer, rules, (written,)),
        )


class Worker:
    """One Python worker, which runs many tasks."""

    def __init__(self, world: World, prefix: str) -> None:
        self.world = world
        self.slots = Slots(prefix)

    def begin(self, plan: Plan, partition: int) -> Attempt:
        """Begin a task attempt, which has written nothing yet."""
        return Attempt(self, plan, partition)

    def run(self, plan: Plan, batch_id: int = 0, name: str = "") -> list[Prepared]:
        """Write the rows of a batch, which are the same on every attempt."""
        return [
            self.begin(plan, partition).write(
                *rows(batch_id, name, self.world.rows_per_task)[partition]
            )
            for partition in range(TASKS)
        ]


def rows(batch_id: int, name: str = "", count: int = ROWS_PER_TASK) -> list[list[str]]:
    """Return the rows of a batch by partition."""
    return [[f"{name}b{batch_id}.p{place}.{row}" for row in range(count)] for place in range(TASKS)]


class World:
    """The site, the topics, and the processes of one test."""

    def __init__(self, site: Site) -> None:
        self.site = site
        name = uuid.uuid4().hex[:8]
        self.prefix = f"orders-{name}"
        self.data = f"data-{name}"
        self.ledger = f"ledger-{name}"
        self.transaction_timeout_ms = TRANSACTION_TIMEOUT_MS
        self.rows_per_task = ROWS_PER_TASK
        self.clock = Clock()
        self._admins: list[DriverClient] = []
        self.admin = self.new_admin()
        self.worker = Worker(self, self.prefix)

    @property
    def broker(self) -> DevBroker:
        """The embedded broker, for tests that manipulate it."""
        assert self.site.embedded is not None
        return self.site.embedded

    def new_admin(self) -> DriverClient:
        """Create the admin client of one more process."""
        admin = DriverClient(
            ProducerConfig.from_mapping(
                {"bootstrap.servers": self.site.bootstrap_servers, "retry.backoff.ms": 5}
            )
        )
        self._admins.append(admin)
        return admin

    def driver(
        self,
        name: str = "driver",
        *,
        prefix: str | None = None,
        observe: Callable[[Point], None] | None = None,
    ) -> Driver:
        """Start a driver process."""
        return Driver(self, name, prefix or self.prefix, observe)

    def dying(self, point: Point) -> Driver:
        """Create a driver that crashes when it reaches a point."""

        def die(reached: Point) -> None:
            if reached is point:
                raise CrashError(point.value)

        return self.driver(f"dies at {point.value}", observe=die)

    def finish(self, batch_id: int = 0, *, driver: Driver | None = None) -> None:
        """Do what Spark does after a restart: plan, write if necessary, commit."""
        driver = driver or self.driver("restarted")
        plan = driver.plan()
        if plan.must_write(QUERY, batch_id):
            driver.commit(plan, self.worker.run(plan, batch_id), batch_id)

    def decide_and_die(self, batch_id: int = 0) -> list[Winner]:
        """Crash a driver after its decision is durable, before any winner is committed."""
        driver = self.dying(Point.DECIDED)
        plan = driver.plan()
        prepared = self.worker.run(plan, batch_id)
        with suppress(CrashError):
            driver.commit(plan, prepared, batch_id)
        assert driver.reached[-1] is Point.DECIDED
        return [one.transaction for one in prepared]

    def abort_by_hand(self, transaction: Winner) -> None:
        """End a transaction as an operator would who does not know the protocol."""
        end = TransactionEnd(transaction.transactional_id, transaction.producer, committed=False)
        self.admin.end_transaction(end, timeout=TIMEOUT)

    def mix(self) -> list[Winner]:
        """Abort one of two winners after the decision, as an operator might."""
        winners = self.decide_and_die()
        self.abort_by_hand(winners[1])
        return winners

    def resolve(self, *, skip: bool, write_id: str = QUERY) -> WriteRecord:
        """Resolve a mixed write."""
        return operations.resolve(
            self.driver().ledger, write_id, skip=skip, now_ms=0, budget=self.budget()
        )

    # --- what can be observed

    def state(self, write_id: str = QUERY) -> WriteState:
        """Return the state of a write according to the ledger."""
        return self.ledger_state().writes[write_id].write.state

    def visible(self, *, stable: bool = False, topic: str | None = None) -> list[str]:
        """Return the committed values, sorted; with `stable` only those below the LSO.

        A read_committed consumer reads only up to the LSO, the beginning of the first open
        transaction. `topic` is another one than the data topic, with as many partitions.
        """
        self._settle()
        seen: list[str] = []
        for own in self.places:
            place = own._replace(topic=topic or own.topic)
            end = self.admin.last_stable_offset(place, timeout=TIMEOUT) if stable else None
            pending: dict[int | None, list[str]] = {}
            start = self.admin.start_offset(place, timeout=TIMEOUT)
            for event in self.events(place, start, end):
                if isinstance(event, EndMarker):
                    values = pending.pop(event.producer_id, [])
                    seen += values if event.committed else []
                else:
                    value = (event.record.value or b"").decode()
                    pending.setdefault(event.transaction_of, []).append(value)
        return sorted(seen)

    @property
    def places(self) -> list[TopicPartition]:
        """The data topic's partitions."""
        return [TopicPartition(self.data, partition) for partition in range(TASKS)]

    def events(
        self, place: TopicPartition, offset: int, end: int | None = None
    ) -> Iterator[PartitionEvent]:
        """Read a partition from an offset to `end`, by default the end of the log."""
        if end is None:
            end = self.admin.end_offset(place, timeout=TIMEOUT)
        while offset < end:
            chunk = self.admin.read_partition(place, offset, timeout=TIMEOUT)
            for event in chunk.events:
                at = event.offset if isinstance(event, EndMarker) else event.record.offset
                if at < end:
                    yield event
            offset = chunk.next_offset

    def _settle(self) -> None:
        """Wait for the markers of ended transactions: Kafka responds before it has written them."""
        wait_until(
            lambda: (
                not self.admin.list_transactions(
                    lambda name: name.startswith(self.prefix),
                    states=("PrepareCommit", "PrepareAbort"),
                    timeout=TIMEOUT,
                )
            ),
            seconds=TIMEOUT,
            what="transaction markers",
        )

    def forge(self, *records: tuple[bytes, bytes | None]) -> int:
        """Write into the ledger as any client with rights on its topic can; return the offset.

        All records are in one batch, in a transaction that does not belong to any prefix.
        """
        name, place = f"{self.prefix}-stranger", TopicPartition(self.ledger, 0)
        offset = self.admin.end_offset(place, timeout=TIMEOUT)
        producer = self.admin.init_producer_id(
            name, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS, timeout=TIMEOUT
        )
        rules = self.admin.write_to_transaction(
            name,
            producer,
            place,
            [KeyValue(*record) for record in records],
            now_ms=int(self.clock() * 1000),
            timeout=TIMEOUT,
        )
        self.admin.end_transaction(TransactionEnd(name, producer, True, rules), timeout=TIMEOUT)
        # The response comes only after the marker is written.
        self.admin.init_producer_id(
            name, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS, timeout=TIMEOUT
        )
        return offset

    def left_open(self, prefix: str | None = None) -> list[str]:
        """Return the transactional ids of the prefix's tasks whose transactions are open."""
        listed = recovery.list_open(self.admin, prefix or self.prefix, self.budget())
        return [one.transactional_id for one in listed]

    def ledger_state(self, prefix: str | None = None) -> LedgerState:
        """Read the ledger without fencing other drivers."""
        self._settle()
        ledger = Ledger(
            self.admin, topic=self.ledger, prefix=prefix or self.prefix, clock=self.clock
        )
        return ledger.read(self.budget())

    def budget(self) -> Budget:
        """Return a budget that is long enough for any step."""
        return Budget.of(time.monotonic, TIMEOUT)

    def time_out_everything(self) -> None:
        """Make the brokers abort all open transactions by timeout; on Kafka, wait for it."""
        self.site.pass_time(self.transaction_timeout_ms / 1000 + 60)
        wait_until(lambda: not self.left_open(), seconds=120, what="time-outs of transactions")

    def wait_for_time_out(self, transactional_id: str, timeout_ms: int) -> None:
        """Make the brokers abort a transaction by timeout, and wait for it."""
        self.site.pass_time(timeout_ms / 1000 + 60)

        def has_ended() -> bool:
            found = self.admin.describe_transactions([transactional_id], timeout=TIMEOUT)
            return found[transactional_id].state == "CompleteAbort"

        wait_until(has_ended, seconds=120, what=f"the time-out of {transactional_id}")

    def recreate_ledger(self) -> None:
        """Delete the ledger's topic, and create it again."""
        self.site.delete_topic(self.ledger)
        self.create_ledger()

    def create_ledger(self) -> None:
        """Create the ledger's topic, as a driver does."""
        ensure_ledger_topic(self.admin, self.ledger, replication_factor=1, timeout=TIMEOUT)

    def close(self) -> None:
        """Close all processes' clients, and delete the topics."""
        for admin in self._admins:
            admin.close()
        self.site.drop_topics(self.data, self.ledger)


@contextmanager
def world_at(site: Site, **configs: str) -> Iterator[World]:
    """Yield a world with an empty ledger and a data topic of two partitions with these settings.

    In the end, a librdkafka consumer must read the same values as `World.visible` returns.
    """
    made = World(site)
    try:
        site.create_topic(made.data, TASKS, **configs)
        made.create_ledger()
        yield made
        assert made.visible(stable=True) == site.read_committed(made.data)
    finally:
        made.close()


def each_once(*batches: int, name: str = "", count: int = ROWS_PER_TASK) -> list[str]:
    """Return the values that are visible if these batches were written exactly once."""
    return sorted(value for batch in batches for part in rows(batch, name, count) for value in part)


def duplicates(values: list[str]) -> dict[str, int]:
    """Count the values that occur more than once."""
    return {value: count for value, count in Counter(values).items() if count > 1}
