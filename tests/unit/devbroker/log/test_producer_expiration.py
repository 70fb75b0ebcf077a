"""The expiration of the states of inactive producers in a partition."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker.log.producer_state import ProducerStateManager
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.devbroker.admin_requests import BROKER, describe_configs, describe_producers
from tests.support.devbroker.broker_requests import NOW, ask
from tests.support.devbroker.durable_cluster import DurableCluster
from tests.support.devbroker.transactional_client import TransactionalClient
from tests.support.devbroker.transactions_of_devbroker import client_of

OK, OUT_OF_ORDER = ErrorCode.NONE, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
HOUR = 3600
QUICK = {"producer_id_expiration_ms": 10_000, "producer_id_expiration_check_interval_ms": 1000}


def produce(client, sequence, *, producer_id=7):
    return client.produce((producer_id, 0), sequence, attributes=0)[0]


def known(client):
    (topic,) = ask(client.broker, describe_producers("t", 0), now=client.now).topics
    return [producer.producer_id for producer in topic.partitions[0].active_producers]


def at(client, seconds):
    """Advance the time by steps of a second, the longest interval between a broker's ticks."""
    while client.now < NOW + seconds:
        client.now = min(client.now + 1, NOW + seconds)
        client.broker.tick(client.now)


def test_a_producer_is_forgotten_after_its_time():
    """Before its expiration the sequence is checked; after it any sequence is accepted."""
    client = client_of(**QUICK)
    assert (OK, 0) == produce(client, 0)

    at(client, 9.9)
    assert (OUT_OF_ORDER, -1) == produce(client, 5)
    assert [7] == known(client)
    at(client, 11)

    assert [] == known(client)
    assert [(OK, 1), (OUT_OF_ORDER, -1)] == [produce(client, 5), produce(client, 5 + 2)]


def test_a_producer_that_writes_is_remembered():
    """Each batch extends the time to expiration, so a resent batch is recognized."""
    client = client_of(**QUICK)
    for number in range(4):
        at(client, 8 * number)
        client.timestamp = int(client.now * 1000)
        assert (OK, number) == produce(client, number)

    assert (OK, 2) == produce(client, 2)


def test_the_records_time_counts():
    """As in Kafka, a producer of old records expires at the next check."""
    client = client_of(**QUICK)
    client.timestamp -= 10_000
    produce(client, 0)
    assert [7] == known(client)

    at(client, 1)

    assert [] == known(client)


def test_a_producer_with_an_open_transaction_is_remembered():
    """The time to expiration starts with the marker that ends the transaction."""
    client = client_of(**QUICK)
    _, identity = client.init(timeout_ms=900_000)
    client.produce(identity, 0)
    at(client, 60)
    assert [identity[0]] == known(client)

    assert OK == client.end(identity, committed=True)[0]

    at(client, 69)
    assert [identity[0]] == known(client)
    at(client, 71)
    assert [] == known(client)
    assert [b"v"] == client.read_committed()


def test_a_transaction_that_was_only_announced_is_forgotten():
    """A later batch of the transaction needs a new verification by the coordinator."""
    state = ProducerStateManager()
    announce = {"supports_epoch_bump": True}
    assert state.start_verification(7, 0, 0, now_ms=1000, **announce)

    state.remove_expired(1999, 1000)
    assert [7] == list(state._verifications)
    state.remove_expired(2000, 1000)
    assert [] == list(state._verifications)


@pytest.mark.parametrize(("hours", "expected"), [(23, [7]), (25, [])])
def test_by_default_a_producer_is_remembered_for_a_day(tmp_path, hours, expected):
    """A restart neither restores an expired producer nor removes one that has not expired."""
    cluster = DurableCluster(tmp_path / "data")
    config = cluster.settings.topic_defaults
    cluster.broker.cluster.create_topic("t", partitions=1, config=config)
    client = TransactionalClient(cluster.broker)
    produce(client, 0)
    cluster.now = client.now = NOW + hours * HOUR

    client.broker = cluster.restart()

    assert expected == known(client)
    cluster.close()


def test_the_setting_is_described():
    """DescribeConfigs returns the expiration time of producer ids."""
    client = client_of(**QUICK)
    request = describe_configs((BROKER, "1"), keys=["producer.id.expiration.ms"])

    (result,) = ask(client.broker, request).results

    assert [("producer.id.expiration.ms", "10000")] == [
        (config.name, config.value) for config in result.configs
    ]
