"""The generation that group_metadata names: it fences members that were removed."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.model import OffsetAndMetadata
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from tests.support.consumer.embedded_consuming import Recording, consuming, poll_until, take, tp
from tests.support.consumer.reading import fill, numbered
from tests.support.network.leaps import leap

CLASSIC = {"group.id": "g", "heartbeat.interval.ms": 50, "enable.auto.commit": False}
CONSUMER = {"group.id": "g", "group.protocol": "consumer", "enable.auto.commit": False}
BOTH = pytest.mark.parametrize("protocol", [CLASSIC, CONSUMER], ids=["classic", "consumer"])


@pytest.fixture
def broker():
    """Return a broker with ten records in topic `t` of one partition, and topic `v` of two."""
    with DevBroker(
        topics={"t": 1, "v": 2},
        auto_create_topics=False,
        group_consumer_heartbeat_interval_ms=50,
    ) as broker:
        fill(broker.bootstrap_servers, "t", numbered(10))
        yield broker


@BOTH
def test_a_removed_member_is_fenced_in_transactions(broker, protocol):
    """It keeps its generation, so that the broker refuses what it wants to commit."""
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "transactional.id": "zombie",
    }
    with (
        KafkaProducer(settings) as producer,
        consuming(broker, max_poll_interval_ms=15_000, **protocol) as zombie,
        consuming(broker, **protocol) as other,
    ):
        producer.init_transactions()
        zombie.subscribe("t")
        take(zombie, 10)
        before = zombie.group_metadata()
        # Longer than max.poll.interval.ms.
        leap(zombie)
        other.subscribe("t")
        poll_until(other, other.assignment)
        other.commit({tp(): 10})
        assert before == zombie.group_metadata()
        assert before.generation_id > 0
        assert before.member_id
        producer.begin_transaction()
        with pytest.raises(KafkaError):
            producer.send_offsets_to_transaction({tp(): OffsetAndMetadata(3)}, before)
        producer.abort_transaction()
        assert 10 == other.committed([tp()])[tp()].offset
        poll_until(zombie, lambda: zombie.group_metadata() != before, other)


@BOTH
def test_a_member_has_a_generation_once_it_has_joined(broker, protocol):
    """Before that it has none."""
    with consuming(broker, **protocol) as consumer:
        assert consumer.group_metadata().generation_id < 0
        consumer.subscribe("t")
        poll_until(consumer, consumer.assignment)
        assert consumer.group_metadata().generation_id > 0


def test_an_eager_rebalance_has_the_old_generation_until_it_ends(broker):
    """The partitions are revoked before the member joins the next generation."""
    seen = []
    with consuming(broker, **CLASSIC, partition_assignment_strategy="range") as consumer:

        def note(what, _):
            seen.append((what, consumer.group_metadata().generation_id))

        listener = Recording(note)
        consumer.subscribe("t", listener=listener)
        poll_until(consumer, consumer.assignment)
        consumer.subscribe(["t", "v"], listener=listener)
        poll_until(consumer, lambda: 3 == len(consumer.assignment()))
        assert [("assigned", 1), ("revoked", 1), ("assigned", 2)] == seen


def test_a_cooperative_revocation_has_the_generation_that_demands_it(broker):
    """A listener that commits in a transaction is a member of it (ConsumerCoordinator)."""
    seen = []
    settings = {**CLASSIC, "partition.assignment.strategy": "cooperative-sticky"}
    with consuming(broker, **settings) as one, consuming(broker, **settings) as two:

        def note(what, partitions):
            if what == "revoked" and partitions:
                seen.append(one.group_metadata().generation_id)
                one.commit(dict.fromkeys(partitions, 5))

        one.subscribe("v", listener=Recording(note))
        poll_until(one, one.assignment)
        two.subscribe("v")
        poll_until(one, lambda: two.assignment() or seen, two)
        assert [2] == seen
        poll_until(one, two.assignment, two)
        [moved] = two.assignment()
        assert 5 == two.committed([moved])[moved].offset
