"""A topic that is deleted and created again while a consumer reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.consumer.consuming import consumer_for, poll_until
from tests.support.consumer.reading import fill
from tests.support.faults.recreated_topic import recreate_topic

if TYPE_CHECKING:
    from spark_kafka_sink.consumer.records.consumer_record import ConsumerRecord
    from tests.support.consumer.consuming import Bootstrap

OLD, NEW = 3, 6


def read_before_and_after(
    cluster: Bootstrap, topic: str, group: str, **settings: object
) -> list[bytes]:
    """Read a topic with few records, which then becomes one with more; return all values."""
    fill(cluster.bootstrap_servers, topic, [b"old %d" % number for number in range(OLD)])
    records: list[ConsumerRecord] = []

    def ends_with(value: bytes) -> bool:
        return bool(records) and records[-1].value == value

    with consumer_for(cluster, group, **settings) as consumer:
        consumer.subscribe([topic])
        poll_until(lambda: ends_with(b"old %d" % (OLD - 1)), consumer, found=records)
        recreate_topic(cluster.bootstrap_servers, topic, 1)
        fill(cluster.bootstrap_servers, topic, [b"new %d" % number for number in range(NEW)])
        poll_until(lambda: ends_with(b"new %d" % (NEW - 1)), consumer, found=records)
        fill(cluster.bootstrap_servers, topic, [b"last"])
        poll_until(lambda: ends_with(b"last"), consumer, found=records)
    return [record.value for record in records]


EXPECTED = [
    *(b"old %d" % number for number in range(OLD)),
    *(b"new %d" % number for number in range(NEW)),
    b"last",
]
