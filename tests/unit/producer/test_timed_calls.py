"""The timed calls of a producer, each of which adds to its own metric."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.model import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.producer.sender_metrics import TimedCall

OFFSETS = {TopicPartition("events", 0): OffsetAndMetadata(7)}

#: Each call, with the calls that must precede it.
CALLS = {
    TimedCall.INIT_TRANSACTIONS: ((), lambda it: it.init_transactions()),
    TimedCall.BEGIN_TRANSACTION: (("init",), lambda it: it.begin_transaction()),
    TimedCall.METADATA_WAIT: (("init", "begin"), lambda it: it.partitions_for("events")),
    TimedCall.FLUSH: (("init", "begin"), lambda it: it.flush()),
    TimedCall.SEND_OFFSETS_TO_TRANSACTION: (
        ("init", "begin"),
        lambda it: it.send_offsets_to_transaction(OFFSETS, ConsumerGroupMetadata("group")),
    ),
    TimedCall.PREPARE_TRANSACTION: (("init", "begin"), lambda it: it.prepare_transaction()),
    TimedCall.COMMIT_TRANSACTION: (("init", "begin"), lambda it: it.commit_transaction()),
    TimedCall.ABORT_TRANSACTION: (("init", "begin"), lambda it: it.abort_transaction()),
}
BEFORE = {
    "init": KafkaProducer.init_transactions,
    "begin": KafkaProducer.begin_transaction,
}


@pytest.fixture(scope="module")
def broker():
    with DevBroker(topics={"events": 1}) as started:
        yield started


def _times(producer) -> dict[str, float]:
    names = {f"{call}-time-ns-total" for call in TimedCall}
    return {
        name.name: metric.value()
        for name, metric in producer.metrics().items()
        if name.name in names
    }


def test_every_timed_call_is_tested():
    """Every timed call is tested."""
    assert set(CALLS) == set(TimedCall)


@pytest.mark.parametrize("timed", CALLS, ids=str)
def test_a_call_adds_only_to_its_own_time(broker, timed):
    """A call adds to its own metric only, whatever other calls it makes."""
    before, call = CALLS[timed]
    settings = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "timed"}
    with KafkaProducer(settings) as producer:
        for step in before:
            BEFORE[step](producer)
        earlier = _times(producer)
        call(producer)
        later = _times(producer)
    assert [f"{timed}-time-ns-total"] == [name for name in later if later[name] > earlier[name]]
