"""A world of exactly-once writes on a real Kafka, whose processes can be killed."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support.exactly_once.exactly_once_processes import Child, Workers
from tests.support.exactly_once.exactly_once_sites import KafkaSite
from tests.support.exactly_once.exactly_once_world import each_once, rows, world_at
from tests.support.faults.broker_trace import BrokerTrace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.exactly_once.exactly_once_world import World
    from tests.support.kafka.proxied_kafka import ProxiedKafka

#: Rows per task, enough for several batches.
ROWS = 200


@dataclass
class Scene:
    """A world on a cluster behind a proxy, with the steps that tests share."""

    kafka: ProxiedKafka
    trace: BrokerTrace
    world: World
    worker: Child

    def driver(self) -> Child:
        """Start a driver behind the proxy; clear the trace, which records it from now on."""
        self.trace.forget()
        return Child("driver", self.kafka.bootstrap_servers, self.world.ledger, self.world.prefix)

    def new_worker(self) -> Child:
        """Start a worker behind the proxy; clear the trace, which records it from now on."""
        self.trace.forget()
        return Child("worker", self.kafka.bootstrap_servers, self.world.data, self.world.prefix)

    def restart_broker(self) -> None:
        """Kill the broker, and start it again."""
        (broker,) = self.kafka.cluster.brokers
        broker.kill()
        broker.start()
        self.kafka.cluster.wait_until_ready()

    def check(self, *batches: int) -> None:
        """Replay the query's last batch and write one more; check that each row is visible once.

        No transaction may be left open.
        """
        for batch_id in (batches[-1], len(batches)):
            self.world.finish(batch_id)
        seen = self.world.site.read_committed(self.world.data)
        assert each_once(*batches, len(batches), count=ROWS) == seen
        assert [] == self.world.left_open()


@contextmanager
def scene_on(kafka: ProxiedKafka) -> Iterator[Scene]:
    """Create a scene."""
    with world_at(KafkaSite(kafka.cluster)) as world:
        world.rows_per_task = ROWS
        child = Child("worker", kafka.bootstrap_servers, world.data, world.prefix)
        with child:
            world.worker = Workers(child, lambda batch_id, name: rows(batch_id, name, ROWS))
            yield Scene(kafka, BrokerTrace(kafka.proxy), world, child)
        kafka.disarm()
