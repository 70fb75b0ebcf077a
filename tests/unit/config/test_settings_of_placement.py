"""The effect of settings on the choice of the sticky partition for keyless rows."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.network.metadata import MetadataSnapshot
from spark_kafka_sink.producer.records.open_batches import OpenBatches
from spark_kafka_sink.producer.records.partitioner import NodeLatencies
from spark_kafka_sink.producer.records.row_placement import RowPlacement
from spark_kafka_sink.record.key_hashes import DEFAULT_KEY_RULE

PARTITIONS = 3
CHOICES = 300
BYTES = 1_000
NO_RACKS = {}


class _Core:
    """A producer of a cluster with one node per partition; many batches of 0 are queued."""

    key_sample = None

    def __init__(self, racks):
        self.accumulator = self
        self.snapshot = MetadataSnapshot(racks=racks)

    def leaders(self, topic):
        return range(PARTITIONS)

    def queue_sizes(self, topic):
        return {0: 50, 1: 1}


def _chosen(*, node_0_stuck_for=0.0, racks=NO_RACKS, **settings):
    """Choose the sticky partition repeatedly; return how many bytes each partition may get."""
    named = {name.replace("_", "."): value for name, value in settings.items()}
    config = ProducerConfig.from_mapping({"bootstrap.servers": "127.0.0.1:9", **named})
    latencies = NodeLatencies(config.partitioner_availability_timeout_ms / 1000)
    for node in range(PARTITIONS):
        latencies.update(node, 0.0, can_drain=True)
        latencies.update(node, node_0_stuck_for, can_drain=node != 0)
    open_batches = OpenBatches()
    placement = RowPlacement(
        config,
        open_batches,
        partitioner=DEFAULT_KEY_RULE,
        core=_Core(racks),
        latencies=latencies,
        rng=random.Random(7),
    )
    topic = open_batches.topic("t", PARTITIONS)
    counts = Counter()
    for _ in range(CHOICES):
        sticky = open_batches.sticky[topic.index]
        placement.move_sticky(sticky, "t", topic, batch_size=BYTES)
        counts[int(sticky["slot"]) - topic.first_slot] += int(sticky["limit"])
    return counts


def test_adaptive_partitioning_avoids_long_queues():
    """With adaptive partitioning, a partition with a long queue receives less."""
    adaptive = _chosen(partitioner_adaptive_partitioning_enable=True)
    assert adaptive[0] < adaptive[1] / 10
    uniform = _chosen(partitioner_adaptive_partitioning_enable=False)
    assert [CHOICES / PARTITIONS * BYTES] * PARTITIONS == [uniform[p] for p in range(PARTITIONS)]


@pytest.mark.parametrize(("timeout", "is_chosen"), [(0, True), (900, False), (1_100, True)])
def test_the_partitions_of_a_stuck_node_are_not_chosen(timeout, is_chosen):
    """The partitions of a node that is stuck for longer than the timeout are not chosen."""
    counts = _chosen(node_0_stuck_for=1.0, partitioner_availability_timeout_ms=timeout)
    assert is_chosen == (counts[0] > 0)


@pytest.mark.parametrize("by_load", [True, False])
@pytest.mark.parametrize(
    ("racks", "chosen"),
    [
        ({0: "a", 1: "b", 2: "b"}, {1, 2}),
        ({0: "b"}, {0}),
        ({0: "a", 1: "a"}, {0, 1, 2}),
        ({}, {0, 1, 2}),
    ],
)
def test_partitions_of_the_clients_rack_are_chosen(racks, chosen, by_load):
    """Partitions with a leader in the rack get all, unless there is none (KIP-1123)."""
    counts = _chosen(
        racks=racks,
        partitioner_rack_aware=True,
        client_rack="b",
        partitioner_adaptive_partitioning_enable=by_load,
    )
    assert chosen == {partition for partition, used in counts.items() if used}


def test_racks_do_not_matter_unless_asked_for():
    """With client.rack alone, all partitions are chosen, as in Java's producer."""
    assert {0, 1, 2} == set(_chosen(racks={0: "b"}, client_rack="b"))


def test_rack_awareness_needs_a_rack():
    """Java's producer refuses the setting without one, too."""
    with pytest.raises(ConfigError, match=r"partitioner\.rack\.aware=true requires client\.rack"):
        _chosen(partitioner_rack_aware=True, client_rack=" ")
