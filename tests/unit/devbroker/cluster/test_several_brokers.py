"""Producers and consumers while leaders move and brokers stop, as in `test_three_nodes`.

There the brokers are processes of Apache Kafka, here they share one process, and each scenario
takes about a second.
"""

from __future__ import annotations

import itertools
import threading
import time
from contextlib import suppress

import confluent_kafka
import pytest

from spark_kafka_sink import AdminClient, KafkaProducer
from spark_kafka_sink.devbroker import DevBroker, Listener
from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.topic_names import (
    COORDINATOR_PARTITIONS,
    GROUP_METADATA_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from spark_kafka_sink.devbroker.net.faults import NeverAnswer
from spark_kafka_sink.errors import ConfigError, DeliveryError, KafkaError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.kafka.real_kafka import wait_until
from tests.support.record.numbered_rows import RowCheck, read_numbers
from tests.support.soaking.confluent_writer import ConfluentWriter
from tests.support.soaking.steady_writer import SteadyWriter
from tests.support.soaking.transactional_writer import TransactionalWriter

pytestmark = pytest.mark.slow

TOPIC = "t"
PARTITIONS = 6
NODES = (1, 2, 3)
#: Small batches cause many requests, and short back-offs keep the tests short.
SETTINGS = {
    "batch.size": 4_096,
    "compression.type": "none",
    "retry.backoff.ms": 5,
    "retry.backoff.max.ms": 50,
    "reconnect.backoff.ms": 5,
    "reconnect.backoff.max.ms": 50,
    "delivery.timeout.ms": 60_000,
}
ROWS = 300


@pytest.fixture
def cluster():
    with DevBroker(brokers=3, topics={TOPIC: PARTITIONS}) as cluster:
        yield cluster


def next_node(node_id):
    return node_id % len(NODES) + 1


def leaders(cluster, topic=TOPIC, partitions=PARTITIONS):
    return [cluster.leader(topic, index) for index in range(partitions)]


def leaders_move(cluster, write_on):
    """Move the leader of every partition several times."""
    for _ in range(10):
        for index, leader in enumerate(leaders(cluster)):
            cluster.move_leader(TOPIC, index, next_node(leader))
        write_on()


def coordinators_move(cluster, write_on):
    """Move the coordinator of every transactional id to the next broker several times."""
    for _ in range(5):
        for index, leader in enumerate(
            leaders(cluster, TRANSACTION_STATE_TOPIC, COORDINATOR_PARTITIONS)
        ):
            cluster.move_leader(TRANSACTION_STATE_TOPIC, index, next_node(leader))
        write_on()


def a_broker_stays_away(cluster, write_on):
    """Stop the first partition's leader for good."""
    cluster.stop(cluster.leader(TOPIC))
    write_on()


def brokers_restart(cluster, write_on):
    """Stop and start one broker after the other, as in a rolling upgrade."""
    for node_id in NODES:
        cluster.stop(node_id)
        write_on()
        cluster.start(node_id)
        write_on()


def brokers_blink(cluster, write_on):
    """Stop brokers and start them again at once."""
    for node_id in NODES * 2:
        cluster.stop(node_id)
        cluster.start(node_id)
        write_on()


MOVES = [leaders_move, a_broker_stays_away, brokers_restart, brokers_blink]
TRANSACTIONAL_MOVES = [*MOVES, coordinators_move]


def move_name(move):
    return move.__name__.replace("_", " ")


def disturb(cluster, writer, move):
    """Write before, during and after a move, and check the rows with another client."""
    with writer:
        writer.write_on(ROWS)
        move(cluster, lambda: writer.write_on(ROWS))
        writer.write_on(ROWS)
    return writer.check(cluster.bootstrap_servers)


@pytest.mark.parametrize("move", MOVES, ids=move_name)
def test_rows_are_written_once_and_in_order_while_leaders_move(cluster, move):
    """Our producer neither loses nor duplicates rows while leaders move and brokers stop."""
    assert RowCheck() == disturb(cluster, SteadyWriter(cluster, TOPIC, **SETTINGS), move)


def test_an_old_leader_that_owes_an_answer_costs_no_row(cluster):
    """When the batch is resent, the new leader recognizes what the old leader appended."""
    settings = SETTINGS | {
        "bootstrap.servers": cluster.bootstrap_servers,
        "request.timeout.ms": 3_000,
        "delivery.timeout.ms": 20_000,
        "metadata.max.age.ms": 100,
        "linger.ms": 0,
    }
    numbers = [b"%d" % number for number in range(20)]
    with KafkaProducer(settings) as producer:
        producer.send(TOPIC, numbers[0], partition=0).result(120)
        cluster.on(ApiKey.PRODUCE, NeverAnswer(handled=True), times=1)
        unanswered = producer.send(TOPIC, numbers[1], partition=0)
        wait_until(lambda: len(cluster.records(TOPIC)[0]) == 2, seconds=120, what="the append")
        leader = next_node(cluster.leader(TOPIC))
        cluster.move_leader(TOPIC, 0, leader)
        wait_until(
            lambda: producer.partitions_for(TOPIC)[0].leader.node_id == leader,
            seconds=30,
            what="the new leader",
        )
        sent = []
        for number in numbers[2:]:
            sent.append(producer.send(TOPIC, number, partition=0))
            with suppress(TimeoutError):
                sent[-1].result(0.3)
        assert list(range(1, 20)) == [future.result(60).offset for future in (unanswered, *sent)]
    assert numbers == [record.value for record in cluster.records(TOPIC)[0]]


@pytest.mark.parametrize("move", TRANSACTIONAL_MOVES, ids=move_name)
def test_exactly_the_committed_rows_are_visible_while_leaders_move(cluster, move):
    """Our transactions end as requested while leaders and coordinators move."""
    writer = TransactionalWriter(cluster, TOPIC, **SETTINGS, **{"transactional.id": "x"})

    assert RowCheck() == disturb(cluster, writer, move)


@pytest.mark.parametrize("move", MOVES, ids=move_name)
def test_rows_of_librdkafka_are_written_once_and_in_order(cluster, move):
    """A producer of another client finds the new leaders as well."""
    writer = ConfluentWriter(cluster.bootstrap_servers, TOPIC)

    assert RowCheck() == disturb(cluster, writer, move)


@pytest.mark.parametrize("move", TRANSACTIONAL_MOVES, ids=move_name)
def test_of_librdkafka_exactly_the_committed_rows_are_seen(cluster, move):
    """A producer of another client finds the new coordinators as well."""
    writer = ConfluentWriter(cluster.bootstrap_servers, TOPIC, **{"transactional.id": "y"})

    assert RowCheck() == disturb(cluster, writer, move)


def test_leadership_is_spread(cluster):
    """Each broker leads its share of the partitions, and rows are written to all of them."""
    assert [1, 2, 3, 1, 2, 3] == leaders(cluster)
    with SteadyWriter(cluster, TOPIC, **SETTINGS) as writer:
        writer.write_on(5_000)
    assert PARTITIONS == len(read_numbers(cluster.bootstrap_servers, TOPIC))


def test_a_consumer_group_continues_when_its_coordinator_stops(cluster):
    """Members find the next coordinator, which has the group and its offsets."""
    group = "g"
    with SteadyWriter(cluster, TOPIC, **SETTINGS) as writer:
        writer.write_on(1_000)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 60_000,
            "heartbeat.interval.ms": 100,
            "log_level": 0,
        }
    )
    consumer.subscribe([TOPIC])
    try:
        half = read(consumer, writer.rows // 2)
        consumer.commit(asynchronous=False)
        cluster.stop(cluster.call(lambda broker: broker.cluster.group_coordinator(group)))
        rest = read(consumer, writer.rows - len(half))
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    assert writer.rows == len({*half, *rest})
    with AdminClient({"bootstrap.servers": cluster.bootstrap_servers}) as admin:
        committed = admin.list_consumer_group_offsets(group)
    assert writer.rows == sum(offset.offset for offset in committed.values())


def read(consumer, count):
    """Read `count` messages and return their partitions and offsets."""
    places = []
    while len(places) < count:
        messages = consumer.consume(count - len(places), timeout=60)
        assert messages, f"{len(places)} of {count} messages came"
        places += [(m.partition(), m.offset()) for m in messages if m.error() is None]
    return places


def test_rows_wait_for_enough_replicas(cluster):
    """No rows are written while the ISR is below min.insync.replicas, and all of them later."""
    cluster.create_topic("strict", configs={"min.insync.replicas": "2"})
    with SteadyWriter(cluster, "strict", **SETTINGS) as writer:
        writer.write_on(ROWS)
        for node_id in (2, 3):
            cluster.stop(node_id)
        end = log_end(cluster, "strict")
        # The writer appends no more rows while one of its flushes waits, but the producer retries.
        requests = []
        cluster.on(ApiKey.PRODUCE, lambda request, _: requests.append(request))
        deadline = time.monotonic() + 60
        while len(requests) < 10:
            assert time.monotonic() < deadline
            assert end == log_end(cluster, "strict")
        cluster.start(3)
        writer.write_on(ROWS)
    assert RowCheck() == writer.check(cluster.bootstrap_servers)


def log_end(cluster, topic):
    return cluster.call(lambda b: b.cluster.topic(topic).partitions[0].log.log_end_offset)


def test_too_few_replicas_for_too_long_are_an_error(cluster):
    """After delivery.timeout.ms the error names the partition and NOT_ENOUGH_REPLICAS."""
    cluster.create_topic("strict", configs={"min.insync.replicas": "3"})
    settings = {**SETTINGS, "delivery.timeout.ms": 6_000, "request.timeout.ms": 2_000}
    writer = SteadyWriter(cluster, "strict", **settings)

    def write():
        with writer:
            cluster.stop(2)
            writer.write_on(10**9)
            writer.finish()

    with pytest.raises(DeliveryError, match=r"strict-0.*NOT_ENOUGH_REPLICAS"):
        write()


def test_a_topic_without_a_leader_waits_for_its_broker(cluster):
    """Rows for a single replica wait for its broker and are written once it is back."""
    cluster.create_topic("single", replication_factor=1)
    only = cluster.leader("single")
    with SteadyWriter(cluster, "single", **SETTINGS) as writer:
        cluster.stop(only)
        assert -1 == cluster.leader("single")
        threading.Timer(0.2, cluster.start, (only,)).start()
        writer.write_on(ROWS)
    assert only == cluster.leader("single")
    assert RowCheck() == writer.check(cluster.bootstrap_servers)


def test_a_commit_waits_for_partitions_without_a_leader(cluster):
    """A marker is written once the partition has a leader, and the transaction ends then."""
    cluster.create_topic("single", replication_factor=1)
    only = cluster.leader("single")
    # The coordinator must not be the broker that stops.
    name = next(
        name
        for name in map(str, range(100))
        if only != cluster.call(lambda b, name=name: b.cluster.transaction_coordinator(name))
    )
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": name, "log_level": 0}
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("single", b"a")
    assert 0 == producer.flush(60)
    cluster.stop(only)
    # As in Kafka, the response is sent before the markers are written.
    producer.commit_transaction(60)
    threading.Timer(0.2, cluster.start, (only,)).start()
    producer.begin_transaction()
    producer.produce("single", b"b")
    producer.commit_transaction(60)
    assert [b"a", b"b"] == [record.value for record in cluster.records("single")[0]]


def test_members_that_wait_for_a_group_ask_the_next_coordinator(cluster):
    """A waiting join ends when the coordinator moves, and is retried at the next one."""
    consumers = [
        confluent_kafka.Consumer(
            {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g", "log_level": 0}
        )
        for _ in range(2)
    ]
    try:
        for consumer in consumers:
            consumer.subscribe([TOPIC])
        for _ in range(20):
            for consumer in consumers:
                consumer.poll(0.02)
            for index, leader in enumerate(
                leaders(cluster, GROUP_METADATA_TOPIC, COORDINATOR_PARTITIONS)
            ):
                cluster.move_leader(GROUP_METADATA_TOPIC, index, next_node(leader))
        assigned = wait_for_shares(consumers)
    finally:
        for consumer in consumers:
            consumer.close()
    assert list(range(PARTITIONS)) == sorted(itertools.chain(*assigned))


def wait_for_shares(consumers):
    """Poll until all members have partitions and none is unassigned; return the assignments."""
    shares = []
    for _ in range(600):
        for consumer in consumers:
            consumer.poll(0.05)
        shares = [[place.partition for place in c.assignment()] for c in consumers]
        if all(shares) and PARTITIONS == sum(map(len, shares)):
            break
    return shares


def test_addresses_outlive_a_stop(cluster):
    """Each broker has a port of its own and keeps it."""
    before = cluster.addresses
    assert [1, 2, 3] == list(before)
    assert 3 == len(set(before.values()))

    cluster.stop(2)
    cluster.start(2)

    assert before == cluster.addresses
    assert ",".join(before.values()) == cluster.bootstrap_servers


def test_fixed_ports_are_consecutive():
    """On each listener a broker has its own port, and no two listeners share one."""
    listeners = [Listener(port=9092), Listener(name="other", port=9093)]
    cluster = DevBroker(brokers=3, listeners=listeners)

    assert "127.0.0.1:9092,127.0.0.1:9094,127.0.0.1:9096" == cluster.bootstrap_servers
    assert "127.0.0.1:9093,127.0.0.1:9095,127.0.0.1:9097" == cluster.address("other")


def test_an_advertised_port_is_for_one_broker():
    """With several brokers, clients would find all of them at one address."""
    with pytest.raises(ConfigError, match="advertised_port"):
        DevBroker(brokers=2, listeners=[Listener(advertised_port=9092)])


def test_a_broker_stops_once_and_starts_once(cluster):
    """Stopping a stopped broker, starting a running one, or an unknown id is an error."""
    with pytest.raises(KafkaError, match="broker 2 is already running"):
        cluster.start(2)
    cluster.stop(2)
    with pytest.raises(KafkaError, match="broker 2 is not running"):
        cluster.stop(2)
    with pytest.raises(KafkaError, match=r"broker 4 does not exist; the brokers are \[1, 2, 3\]"):
        cluster.stop(4)


def test_a_leader_moves_to_replicas_in_sync_only(cluster):
    """A stopped broker cannot become leader."""
    cluster.stop(3)
    with pytest.raises(RefusedError, match="is not in the ISR") as refused:
        cluster.move_leader(TOPIC, 0, 3)
    assert ErrorCode.INVALID_REPLICA_ASSIGNMENT == refused.value.error_code


def test_a_cluster_restarts_with_its_records():
    """After the restart of all brokers, the preferred replicas lead."""
    cluster = DevBroker(brokers=3, topics={TOPIC: PARTITIONS})
    with cluster, KafkaProducer({"bootstrap.servers": cluster.bootstrap_servers}) as producer:
        producer.send(TOPIC, b"a", partition=0).result(120)
        cluster.move_leader(TOPIC, 0, 3)
    with cluster:
        assert [1, 2, 3, 1, 2, 3] == leaders(cluster)
        assert [b"a"] == [record.value for record in cluster.records(TOPIC)[0]]


def test_a_cluster_kept_on_disk_is_led_by_all_of_its_brokers_again(tmp_path):
    """The first broker to start does not become the leader of everything; epochs increase."""
    before = [-1] * PARTITIONS
    for topics in ({TOPIC: PARTITIONS}, {}):
        with DevBroker(brokers=3, topics=topics, data_dir=tmp_path) as cluster:
            assert [1, 2, 3, 1, 2, 3] == leaders(cluster)
            after = cluster.call(
                lambda broker: [p.leader_epoch for p in broker.cluster.topic(TOPIC).partitions]
            )
        assert all(old < new for old, new in zip(before, after, strict=True))
        before = after


def test_a_directory_is_that_of_one_broker_or_of_several(tmp_path):
    """Neither kind of cluster opens the directory of the other one."""
    one, several = tmp_path / "one", tmp_path / "several"
    for path, brokers in ((one, 1), (several, 3)):
        with DevBroker(brokers=brokers, topics={TOPIC: 1}, data_dir=path):
            pass
    with pytest.raises(ConfigError, match="belongs to a single broker"):
        DevBroker(brokers=3, data_dir=one).start()
    with pytest.raises(ConfigError, match="belongs to several brokers"):
        DevBroker(data_dir=several).start()


@pytest.mark.parametrize("acks", ["1", "all"])
def test_only_acks_all_survives_a_leader_that_is_killed(cluster, acks):
    """A leader that cannot reach its followers acknowledges with acks=1 what dies with it."""
    leader = cluster.leader(TOPIC)
    others = [node_id for node_id in NODES if node_id != leader]
    settings = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "acks": acks,
        "enable.idempotence": "false",
        "request.timeout.ms": 2_000,
    }
    with KafkaProducer(settings) as producer:
        producer.send(TOPIC, b"a", partition=0).result(120)
        for other in others:
            cluster.cut(leader, other)
        sent = producer.send(TOPIC, b"b", partition=0)
        if acks == "1":
            assert 1 == sent.result(120).offset
        cluster.kill(leader)
        cluster.heal()
        wait_until(lambda: cluster.leader(TOPIC) in others, seconds=120, what="a new leader")
        if acks == "all":
            sent.result(120)
        producer.send(TOPIC, b"c", partition=0).result(120)
    values = [record.value for record in cluster.records(TOPIC)[0]]
    assert [b"a", b"c"] == values if acks == "1" else [b"a", b"b", b"c"] == values


def test_what_needs_several_brokers_says_so():
    """A single broker has nobody to replicate with."""
    with DevBroker() as broker:
        for act in (lambda: broker.kill(1), lambda: broker.cut(1, 2), broker.heal):
            with pytest.raises(KafkaError, match="needs several brokers"):
                act()


def test_a_cluster_has_a_broker():
    """A cluster without brokers is an error."""
    with pytest.raises(ConfigError, match="brokers must be at least 1, not 0"):
        DevBroker(brokers=0)
