"""Java's own producer and consumer, idempotent and transactional, with the embedded broker.

ProducerPerformance stands in for Java's transactional copier: it commits a transaction every
`--transaction-duration-ms`, and waits for the last one.
"""

from __future__ import annotations

import os

import pytest

from benchmarks.request_counts import counted
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.protocol.api_keys import ApiKey
from tests.support.kafka.java_tools import consume_with_java, produce_with_java, run_java_tool
from tests.support.kafka.kafka_files import KAFKA_4, java_command, kafka_jars
from tests.support.kafka.kafka_unavailable import KafkaUnavailableError, skip_or_fail
from tests.support.kafka.readers import read_with_confluent
from tests.support.producer.producing import producer_for

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

RECORDS = 5_000
RECORD_BYTES = 100


@pytest.fixture(scope="module")
def broker():
    with DevBroker() as broker:
        yield broker


@pytest.fixture(scope="module", autouse=True)
def _java():
    try:
        java_command()
        kafka_jars(KAFKA_4)
    except KafkaUnavailableError as error:
        skip_or_fail(error, os.environ)


def perform(broker, topic, *arguments, **settings):
    """Write with ProducerPerformance; return how many records it reports as sent."""
    properties = {"bootstrap.servers": broker.bootstrap_servers, "acks": "all", **settings}
    output = run_java_tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", str(RECORDS), "--record-size", str(RECORD_BYTES)),
        *("--throughput", "-1", *arguments, "--producer-props"),
        *(f"{name.replace('_', '.')}={value}" for name, value in properties.items()),
    )
    return int(output.strip().splitlines()[-1].split()[0])


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_the_idempotent_java_producer_writes_every_codec(broker, codec):
    """The records of ProducerPerformance are there once, with each codec."""
    topic = f"java-{codec}"
    broker.create_topic(topic, partitions=3)
    assert RECORDS == perform(broker, topic, compression_type=codec)
    records = read_with_confluent(broker.bootstrap_servers, topic)
    assert RECORDS == len(records)
    assert {RECORD_BYTES} == {len(record.value) for record in records}


@pytest.mark.parametrize("version", [0, 2])
def test_java_transactions_are_committed(version):
    """Java's read_committed consumer sees all records of all transactions."""
    with DevBroker(topics={"t": 3}, transaction_version=version) as broker:
        sent = perform(
            broker, "t", "--transactional-id", "copier", "--transaction-duration-ms", "50"
        )
        output = run_java_tool(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--bootstrap-server", broker.bootstrap_servers, "--topic", "t", "--from-beginning"),
            *("--max-messages", str(RECORDS), "--timeout-ms", "60000"),
            *("--isolation-level", "read_committed"),
        )
        assert (RECORDS, RECORDS) == (sent, len(output.splitlines()))


def test_a_transactional_producer_sets_itself_up_with_no_more_requests_than_javas():
    """Before its first transaction, our producer sends no more requests of a kind than Java's."""
    # Java's sometimes sends a third METADATA request, where ours sends two.
    setup = (
        ApiKey.API_VERSIONS,
        ApiKey.METADATA,
        ApiKey.FIND_COORDINATOR,
        ApiKey.INIT_PRODUCER_ID,
    )
    with DevBroker(topics={"t": 1}) as broker, counted(broker) as requests:
        perform(broker, "t", "--transactional-id", "java")
        allowed = {key: requests.taken()[key] for key in setup}
        requests.clear()
        with producer_for(broker, **{"transactional.id": "ours"}) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", b"value")
            producer.commit_transaction()
        sent = requests.taken()
    assert [] == [key for key in setup if not 0 < sent[key] <= allowed[key]]


def test_java_console_tools_and_librdkafka_read_the_same_records(broker):
    """Java's console consumer and librdkafka read what Java's console producer has written."""
    broker.create_topic("console", partitions=3)
    values = {f"schlüssel {i}": f"wert {i}" for i in range(100)}
    produce_with_java(broker.bootstrap_servers, "console", values)
    records = consume_with_java(broker.bootstrap_servers, "console", len(values))
    assert values == {record.key.decode(): record.value.decode() for record in records}
    assert records == read_with_confluent(broker.bootstrap_servers, "console")


def test_javas_consumer_and_administrators_use_the_new_group_protocol(broker):
    """A member with group.protocol=consumer commits what it reads, and the tools describe it."""
    topic, group = "java-groups", "java-group"
    broker.create_topic(topic, partitions=3)
    values = {f"k{n}": f"v{n}" for n in range(20)}
    produce_with_java(broker.bootstrap_servers, topic, values)
    server = ("--bootstrap-server", broker.bootstrap_servers)

    output = run_java_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *(*server, "--include", "java-gr.*", "--from-beginning", "--max-messages", "20"),
        *("--command-property", "group.protocol=consumer", "--timeout-ms", "60000"),
        *("--command-property", f"group.id={group}"),
    )
    assert set(values.values()) == set(output.split())

    def groups(*arguments):
        tool = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
        return run_java_tool(tool, *server, *arguments)

    def offsets():
        rows = [row.split() for row in groups("--describe", "--group", group).splitlines()]
        return {int(row[2]): int(row[3]) for row in rows if row[:2] == [group, topic]}

    assert [group, "Consumer"] in [row.split() for row in groups("--list", "--type").splitlines()]
    before = offsets()
    assert 20 == sum(before.values())
    groups("--delete-offsets", "--group", group, "--topic", f"{topic}:0")
    assert {index: offset for index, offset in before.items() if index} == offsets()
    groups("--delete", "--group", group)
    assert group not in groups("--list")
