"""Ranges and offsets of real Kafka, as the consumer's parts read them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient

from spark_kafka_sink.config.offset_specs import Assign, Subscribe, SubscribePattern
from spark_kafka_sink.consumer.read_arrow import read_arrow
from spark_kafka_sink.errors import BrokerError, DataLossError, KafkaTimeoutError
from spark_kafka_sink.model import TopicPartition
from tests.support.consumer.reading import (
    PATIENCE,
    abort_a_transaction,
    fill,
    numbered,
    open_transaction,
    range_of,
    read_all,
    reading,
)
from tests.support.faults.recreated_topic import recreate_topic
from tests.support.producer.producing import refusal_after_patience

ALL = numbered(200)


@pytest.fixture
def topic(kafka, create_topic):
    """Return a topic of one partition that has `ALL`."""
    name: str = create_topic(1)
    fill(kafka.bootstrap_servers, name, ALL)
    return name


def delete_before(servers: str, topic: str, offset: int) -> None:
    """Delete the records of partition 0 before an offset."""
    # The request ends with the client, so it must be kept until the result is there.
    admin = AdminClient({"bootstrap.servers": servers})
    [deleted] = admin.delete_records([Place(topic, 0, offset)]).values()
    deleted.result(PATIENCE)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_range_is_read_in_small_answers(kafka, create_topic, codec):
    """Every codec is read, over many answers, between any two offsets."""
    topic = create_topic(1)
    fill(kafka.bootstrap_servers, topic, ALL, **{"compression.type": codec})
    with reading(kafka.bootstrap_servers, **{"max.partition.fetch.bytes": 500}) as client:
        which = range_of(client, topic)

        assert ALL == read_all(client, which)
        assert ALL[33:144] == read_all(client, replace(which, start=33, end=144))


def test_partitions_and_offsets_are_looked_up(kafka, create_topic):
    """Topics, patterns and times are resolved, and a topic that does not exist is an error."""
    topic = create_topic(3)
    fill(kafka.bootstrap_servers, topic, ALL, partition=1)
    places = tuple(TopicPartition(topic, number) for number in range(3))
    with reading(kafka.bootstrap_servers) as client:
        for selection in (Subscribe((topic,)), SubscribePattern(f"^{topic}$"), Assign(places)):
            assert places == client.list_partitions(selection, timeout=PATIENCE)
        ends = client.latest_offsets(places, timeout=PATIENCE)
        assert {places[0]: 0, places[1]: 200, places[2]: 0} == ends
        assert dict.fromkeys(places, 0) == client.earliest_offsets(places, timeout=PATIENCE)
        times = client.offsets_for_times({places[0]: 0, places[1]: 0}, timeout=PATIENCE)
        assert {places[0]: None, places[1]: 0} == times
        assert {} == client.commit_offsets(f"of {topic}", {places[1]: 200}, timeout=PATIENCE)
        with pytest.raises(BrokerError, match=f"topic '{topic}-x' does not exist"):
            client.list_partitions(Subscribe((f"{topic}-x",)), timeout=PATIENCE)


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_transactions_are_read_by_isolation_level(kafka, topic, level):
    """Aborted records are left out, and an open transaction ends a range, if it is committed."""
    servers, aborted, last = kafka.bootstrap_servers, numbered(50, 1000), numbered(50, 2000)
    is_committed = level == "read_committed"
    abort_a_transaction(servers, aborted, topic=topic)
    fill(servers, topic, last)
    with (
        open_transaction(servers, numbered(10, 3000), topic=topic),
        reading(servers, **{"isolation.level": level}) as client,
    ):
        which = range_of(client, topic)
        more = [] if is_committed else numbered(10, 3000)
        expected = [*ALL, *([] if is_committed else aborted), *last, *more]

        assert expected == read_all(client, which)
        if is_committed:
            # A pause of three seconds may also end the read before its cause is looked up.
            refusal_after_patience(
                lambda: read_all(client, replace(which, end=which.end + 10), poll_timeout=3.0),
                "An open transaction holds back",
                KafkaTimeoutError,
            )


def test_deleted_records_are_a_loss(kafka, topic):
    """Records that were deleted are an error, or are skipped and reported."""
    with reading(kafka.bootstrap_servers) as client:
        which = range_of(client, topic)
        delete_before(kafka.bootstrap_servers, topic, 50)
        losses = []

        assert ALL[50:] == read_all(
            client, which, fail_on_data_loss=False, on_data_loss=losses.append
        )
        assert [(0, 50, 50)] == [(it.wanted, it.available, it.lost) for it in losses]
        with pytest.raises(DataLossError, match="the log now begins at offset 50"):
            read_all(client, which)


def test_an_end_beyond_the_log_is_a_loss(kafka, topic):
    """Offsets that were never written are an error."""
    with reading(kafka.bootstrap_servers) as client:
        which = replace(range_of(client, topic), end=210)
        with pytest.raises(DataLossError, match="the log ends at offset 200"):
            read_all(client, which)


def test_a_topic_made_again_is_another_one(kafka, topic):
    """A range of a topic that was recreated is lost, even if the new one has its offsets."""
    with reading(kafka.bootstrap_servers) as client:
        which = range_of(client, topic)
        recreate_topic(kafka.bootstrap_servers, topic, 1)
        fill(kafka.bootstrap_servers, topic, numbered(200, 5000))
        with pytest.raises(DataLossError, match="deleted and recreated"):
            read_all(client, which)
        assert numbered(200, 5000) == read_all(client, range_of(client, topic))


def test_a_topic_is_read_into_arrow(kafka, topic):
    """`read_arrow` reads what there is."""
    table = read_arrow(kafka.bootstrap_servers, topic, columns=["offset", "value"]).read_all()

    assert ALL == table.column("value").to_pylist()
    assert list(range(200)) == table.column("offset").to_pylist()
