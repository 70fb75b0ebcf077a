"""What a group of consumers has committed for partition 0 of topic `t`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.consumer.embedded_consuming import GROUP, consuming, tp

if TYPE_CHECKING:
    from spark_kafka_sink.consumer.kafka_consumer import KafkaConsumer
    from spark_kafka_sink.devbroker import DevBroker

#: Settings of members whose offsets are committed only by calls.
BY_HAND = {**GROUP, "enable.auto.commit": False}


def committed(broker: DevBroker) -> int | None:
    """Return the offset that the group has committed."""
    with consuming(broker, **BY_HAND) as consumer:
        return committed_by(consumer)


def committed_by(consumer: KafkaConsumer) -> int | None:
    """Return the offset that the consumer's group has committed."""
    found = consumer.committed([tp()])[tp()]
    return None if found is None else found.offset
