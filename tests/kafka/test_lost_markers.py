"""Exactly-once writes when a partition has no leader while its marker is written (KAFKA-20734).

Kafka 4.3.1 then answers that the transaction is committed, but never writes the marker.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

import pytest

from spark_kafka_sink.exactly_once.two_phase_commit import Point
from tests.support.exactly_once.exactly_once_sites import KafkaSite
from tests.support.exactly_once.exactly_once_world import each_once, world_at
from tests.support.kafka.real_kafka import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.exactly_once.exactly_once_world import Driver, World
    from tests.support.kafka.real_kafka import Broker, KafkaCluster

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

_SECONDS = 120


class _OneReplica(KafkaSite):
    """Three brokers, with each partition on only one of them."""

    def create_topic(self, name: str, partitions: int = 1, **_: str) -> None:
        """Create a topic with one replica; see `Site`."""
        self._cluster.create_topic(partitions, name=name, replication_factor=1)


@pytest.fixture
def here(kafka_cluster: KafkaCluster) -> Iterator[World]:
    """Yield a world whose partitions are offline while their only broker is down."""
    with world_at(_OneReplica(kafka_cluster)) as made:
        yield made


class _Outage:
    """An outage of a leader, which is killed, and restarted after given transactions have ended."""

    def __init__(self, here: World, cluster: KafkaCluster, topic: str) -> None:
        self._here = here
        self._cluster = cluster
        self._topic = topic
        self._thread: threading.Thread | None = None

    def begin(self, transactional_ids: list[str]) -> None:
        """Kill the leader, and wait until the cluster has noticed."""
        assert self._thread is None
        leader = self._cluster.leader(self._topic)
        leader.kill()
        wait_until(
            lambda: self._leader_id() == -1, seconds=_SECONDS, what="a partition without leader"
        )
        self._thread = threading.Thread(target=self._end, args=(leader, transactional_ids))
        self._thread.start()

    def _leader_id(self) -> int:
        partitions = self._cluster.admin.list_topics(self._topic, timeout=_SECONDS)
        return int(partitions.topics[self._topic].partitions[0].leader)

    def _end(self, leader: Broker, transactional_ids: list[str]) -> None:
        with self._here.new_admin() as admin:
            wait_until(
                lambda: (
                    not any(
                        one is not None and one.is_open
                        for one in admin.describe_transactions(
                            transactional_ids, timeout=_SECONDS
                        ).values()
                    )
                ),
                seconds=_SECONDS,
                what="the end of transactions",
            )
        leader.start()
        self._cluster.wait_until_ready()

    def __enter__(self) -> Self:
        """Return the outage itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for an outage that a failed test has left: the cluster is not this file's alone."""
        if self._thread is not None:
            self._thread.join(_SECONDS)

    def join(self) -> None:
        """Wait until the outage is over; there must have been one."""
        assert self._thread is not None
        self._thread.join(_SECONDS)
        assert not self._thread.is_alive()


@contextmanager
def _before_an_append_ends(
    driver: Driver, number: int, outage: _Outage, own: str
) -> Iterator[None]:
    """Start the outage between the records and the EndTxn of one of the driver's ledger entries."""
    end_transaction, seen = driver.admin.end_transaction, []

    def end(*args, **kwargs):
        seen.append(args)
        if len(seen) == number:
            outage.begin([own])
        return end_transaction(*args, **kwargs)

    driver.admin.end_transaction = end  # type: ignore[method-assign]
    yield
    driver.admin.end_transaction = end_transaction  # type: ignore[method-assign]


def test_rows_in_a_partition_without_a_leader_are_committed_once_it_has_one(here, kafka_cluster):
    """A batch is done only when all of it is visible, even if the coordinator answered earlier."""
    prepared = []

    def begin(point: Point) -> None:
        if point is Point.DECIDED:
            outage.begin([one.transaction.transactional_id for one in prepared])

    with _Outage(here, kafka_cluster, here.data) as outage:
        driver = here.driver(observe=begin)
        plan = driver.plan()
        prepared += here.worker.run(plan)
        driver.commit(plan, prepared, timeout=_SECONDS)
        outage.join()
    assert each_once(0) == here.visible(stable=True)
    here.finish(1)
    assert each_once(0, 1) == here.visible(stable=True)


def test_a_decision_in_a_ledger_without_a_leader_is_made_again(here, kafka_cluster):
    """A ledger entry without a marker is not relied on, even if its EndTxn succeeded."""
    with _Outage(here, kafka_cluster, here.ledger) as outage:
        driver = here.driver()
        plan = driver.plan()
        prepared = here.worker.run(plan)
        with _before_an_append_ends(driver, 1, outage, f"{here.prefix}.ledger"):
            driver.commit(plan, prepared, timeout=_SECONDS)
        outage.join()
    here.finish(0)
    here.finish(1)
    assert each_once(0, 1) == here.visible(stable=True)
