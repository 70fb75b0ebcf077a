"""A test's own transactional id prefix on a real Kafka, with checks of the final state."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from spark_kafka_sink.exactly_once import recovery
from tests.support.exactly_once.exactly_once_sites import KafkaSite
from tests.support.exactly_once.exactly_once_world import World

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.kafka.real_kafka import KafkaCluster


class ExactlyOnceCase:
    """A transactional id prefix, its ledger, and the topics that are written with it."""

    def __init__(self, kafka: KafkaCluster, topics: Sequence[str]) -> None:
        """Choose the prefix; nothing is written."""
        self.prefix = f"orders-{uuid.uuid4().hex[:8]}"
        self.topics = topics
        self._site = KafkaSite(kafka)
        self._ledger = f"ledger-{self.prefix}"
        #: The sink's options that every write needs, except for the topic.
        self.options = {
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            "deliveryGuarantee": "exactly_once",
            "transactionalIdPrefix": self.prefix,
            "ledgerTopic": self._ledger,
        }

    def check(self, numbers: Sequence[str]) -> None:
        """Check that librdkafka reads every value exactly once, and that no transaction is open."""
        visible = [value for topic in self.topics for value in self._site.read_committed(topic)]
        assert list(numbers) == sorted(visible)
        world = World(self._site)
        try:
            assert [] == recovery.list_open(world.admin, self.prefix, world.budget())
        finally:
            world.close()

    def close(self) -> None:
        """Delete the ledger's topic."""
        self._site.delete_topic(self._ledger)
