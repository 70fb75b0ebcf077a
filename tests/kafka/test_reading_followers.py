"""Followers of real Kafka that are read and fail meanwhile, or become leaders and lack records."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_kafka_sink.consumer.read_arrow import read_arrow
from spark_kafka_sink.errors import DataLossError
from tests.support.consumer.reading import fill, numbered
from tests.support.kafka.leadership import elect_uncleanly, replicas_of
from tests.support.producer.producing import produce
from tests.support.record.text_rows import numbered_batches
from tests.support.spark.read_stream import read_stream

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

ROWS = 100_000
#: Many answers are needed, and a broker that does not answer is given up soon.
SETTINGS = {"max_partition_fetch_bytes": 50_000, "request_timeout_ms": 1500}


@pytest.mark.parametrize("failure", ["kill", "freeze"])
def test_a_follower_that_fails_loses_and_repeats_no_row(kafka_in_racks, failure):
    """The leader is read in place of a follower that dies, or does not answer any more."""
    topic = kafka_in_racks.create_topic(1)
    produce(kafka_in_racks, numbered_batches(ROWS), topic=topic, **{"batch.size": 10_000})
    leader = kafka_in_racks.leader(topic)
    follower = next(each for each in kafka_in_racks.brokers if each.node_id != leader.node_id)
    reader = read_arrow(
        kafka_in_racks.bootstrap_servers,
        topic,
        columns=["offset"],
        client_rack=f"r{follower.node_id}",
        **SETTINGS,
    )
    first = reader.read_next_batch()
    getattr(follower, failure)()
    try:
        rest = reader.read_all()
    finally:
        if failure == "freeze":
            follower.thaw()
        else:
            follower.start()
        kafka_in_racks.settle(topic)

    read = pa.Table.from_batches([first, *rest.to_batches()])
    assert 0 < first.num_rows < ROWS
    assert list(range(ROWS)) == read["offset"].to_pylist()


def test_a_stream_notices_that_an_unclean_leader_lacks_records(kafka_in_racks):
    """A log that was cut and is longer by now is a loss, or is read from the cut on."""
    cluster = kafka_in_racks
    topic = cluster.create_topic(1, replication_factor=2, config={"min.insync.replicas": "1"})
    first, second, other = numbered(60), numbered(40, 60), numbered(100, 1000)
    fill(cluster.bootstrap_servers, topic, first)
    leader, follower = replicas_of(cluster, topic)
    try:
        follower.stop()
        fill(cluster.bootstrap_servers, topic, second)
        with read_stream(cluster.bootstrap_servers, topic) as query:
            found, checkpoint = query.read()
            assert [*first, *second] == found
            leader.kill()
            follower.start()
            elect_uncleanly(cluster, topic, follower)
            fill(cluster.bootstrap_servers, topic, other)
            message = f"{topic}-0: the log was cut at offset 60, before offset 100"
            with pytest.raises(DataLossError, match=message):
                query.read(checkpoint)
        with read_stream(cluster.bootstrap_servers, topic, failOnDataLoss="false") as query:
            assert other == query.read(checkpoint)[0]
    finally:
        for each in (leader, follower):
            if not each.is_running:
                each.start()
        cluster.settle(topic)
