"""A world of exactly-once writes on a real Kafka, whose processes can be killed.

One of a hundred rows is bad, some of them only for their broker: it must be in the topic of dead
letters once, as the others must be in the data topic.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.consumer.read_arrow import read_arrow
from spark_kafka_sink.spark.sink.dead_letters import OWN
from tests.support.exactly_once.exactly_once_processes import (
    BAD_ROWS,
    MOST_AGE,
    Child,
    Workers,
    letters_of,
)
from tests.support.exactly_once.exactly_once_sites import KafkaSite
from tests.support.exactly_once.exactly_once_world import TASKS, rows, world_at
from tests.support.faults.broker_trace import BrokerTrace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.exactly_once.exactly_once_world import World
    from tests.support.kafka.proxied_kafka import ProxiedKafka

_KIND = f"{OWN}kind"
#: Rows per task, enough for several batches.
ROWS = 200


class Seen(NamedTuple):
    """The values that a consumer sees, sorted."""

    data: list[str]
    letters: list[str]


def seen_once(*batches: int) -> Seen:
    """Return what is visible if these batches were written exactly once."""
    tasks = [task for batch in batches for task in rows(batch, count=ROWS)]
    bad = {value for task in tasks for value in task[BAD_ROWS]}
    good = {value for task in tasks for value in task} - bad
    return Seen(sorted(good), sorted(bad))


@dataclass
class Scene:
    """A world on a cluster behind a proxy, if there is one, with the steps that tests share."""

    kafka: ProxiedKafka
    traces: list[BrokerTrace]
    world: World
    worker: Child

    @property
    def trace(self) -> BrokerTrace:
        """What passes the proxy."""
        (trace,) = self.traces
        return trace

    def _forget(self) -> None:
        for trace in self.traces:
            trace.forget()

    def driver(self) -> Child:
        """Start a driver behind the proxy; clear the trace, which records it from now on."""
        self._forget()
        return Child("driver", self.kafka.bootstrap_servers, self.world.ledger, self.world.prefix)

    def new_worker(self) -> Child:
        """Start a worker behind the proxy; clear the trace, which records it from now on."""
        self._forget()
        return Child("worker", self.kafka.bootstrap_servers, self.world.data, self.world.prefix)

    @property
    def letters(self) -> str:
        """The topic of the dead letters."""
        return letters_of(self.world.data)

    def visible(self) -> Seen:
        """Return the committed values."""
        return Seen(self.world.visible(), self.world.visible(topic=self.letters))

    def read_committed(self) -> Seen:
        """Return what a read_committed librdkafka consumer reads."""
        read = self.world.site.read_committed
        return Seen(read(self.world.data), read(self.letters))

    def letters_by_kind(self) -> Counter[str]:
        """Count the committed dead letters by what is wrong with their rows."""
        letters = read_arrow(
            self.world.site.bootstrap_servers,
            self.letters,
            columns=["headers"],
            include_headers=True,
            settings={"isolation.level": "read_committed"},
        ).read_all()
        return Counter(
            header["value"].decode()
            for headers in letters["headers"].to_pylist()
            for header in headers
            if header["key"] == _KIND
        )

    def restart_broker(self, index: int = 0) -> None:
        """Kill a broker, and start it again."""
        broker = self.kafka.cluster.brokers[index]
        broker.kill()
        broker.start()
        self.kafka.cluster.wait_until_ready()

    def check(self, *batches: int) -> None:
        """Replay the query's last batch and write one more; check that each row is visible once.

        No transaction may be left open.
        """
        for batch_id in (batches[-1], len(batches)):
            self.world.finish(batch_id)
        assert seen_once(*batches, len(batches)) == self.read_committed()
        assert [] == self.world.left_open()


@contextmanager
def scene_on(kafka: ProxiedKafka) -> Iterator[Scene]:
    """Create a scene."""
    site = KafkaSite(kafka.cluster)
    with world_at(site, message_timestamp_before_max_ms=str(MOST_AGE)) as world:
        site.create_topic(letters_of(world.data), TASKS)
        world.rows_per_task = ROWS
        child = Child("worker", kafka.bootstrap_servers, world.data, world.prefix)
        with child:
            world.worker = Workers(child, lambda batch_id, name: rows(batch_id, name, ROWS))
            yield Scene(kafka, [BrokerTrace(proxy) for proxy in kafka.proxies], world, child)
        kafka.disarm()
        site.drop_topics(letters_of(world.data))
