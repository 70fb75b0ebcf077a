"""Topics and partitions, as the public admin client creates, changes and describes them."""

from __future__ import annotations

import pytest

from spark_kafka_sink import (
    AdminClient,
    AdminError,
    ConfigSource,
    KafkaProducer,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    TopicPartition,
)
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.net.faults import AnswerError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.admin.admin_errors import failed

FIRST, SECOND = TopicPartition("data", 0), TopicPartition("data", 1)
MISSING = TopicPartition("missing", 0)


def produce(settings, *values, topic="data", partition=0, **more):
    with KafkaProducer({**settings, **more}) as producer:
        for timestamp, value in enumerate(values):
            producer.send(topic, value, partition=partition, timestamp=timestamp * 1000)
        producer.flush()


# --- topics


def test_topics_are_only_validated(admin):
    """With `validate_only` no topic is created, but an invalid one is an error."""
    admin.create_topics([NewTopic("new")], validate_only=True)
    with pytest.raises(AdminError, match="the broker said"):
        admin.create_topics([NewTopic("new", 0)], validate_only=True)

    assert "new" not in admin.list_topics()


def test_the_same_topic_twice_is_rejected(admin):
    """Two topics of one name are an error before a request is sent."""
    with pytest.raises(ValueError, match="same name"):
        admin.create_topics([NewTopic("new"), NewTopic("new", 2)])


def test_a_topic_has_the_replicas_that_it_was_given(admin):
    """Assigned replicas are those of the described partitions."""
    admin.create_topics([NewTopic("new", replica_assignments={0: [1], 1: [1]})])

    topic = admin.describe_topics(["new"])["new"]

    assert [(0, (1,)), (1, (1,))] == [
        (it.partition, tuple(node.node_id for node in it.replicas)) for it in topic.partitions
    ]
    assert None is topic.authorized_operations


def test_settings_of_a_new_topic_are_returned(admin):
    """A new topic's settings come back with their sources."""
    created = admin.create_topics([NewTopic("new", configs={"cleanup.policy": "compact"})])["new"]

    assert "compact" == created.configs["cleanup.policy"].value
    assert ConfigSource.DYNAMIC_TOPIC_CONFIG is created.configs["cleanup.policy"].source
    assert created.topic_id == admin.list_topics()["new"].topic_id


def test_a_missing_topic_is_an_error_after_a_moment(admin, monkeypatch):
    """A topic that no broker knows is waited for only as long as a new one takes."""
    monkeypatch.setattr("spark_kafka_sink.admin.item_requests.FINAL_SECONDS", 0.2)
    with pytest.raises(AdminError) as caught:
        admin.describe_topics(["data", "missing"], timeout=120)

    assert {"missing": "UNKNOWN_TOPIC_OR_PARTITION"} == failed(caught)
    assert {"data"} == caught.value.results.keys()


def test_a_description_creates_no_topic(monkeypatch):
    """A missing topic that is described stays missing, also if brokers create topics on request."""
    monkeypatch.setattr("spark_kafka_sink.admin.item_requests.FINAL_SECONDS", 0.2)
    with (
        DevBroker(auto_create_topics=True) as broker,
        AdminClient({"bootstrap.servers": broker.bootstrap_servers}) as admin,
    ):
        with pytest.raises(AdminError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            admin.describe_topics(["missing"], timeout=120)
        assert {} == admin.list_topics()


def test_a_topic_that_appears_is_waited_for(broker, admin):
    """A topic that brokers do not know yet is described when they do."""
    hook = broker.on(ApiKey.METADATA, AnswerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), times=2)

    assert 2 == len(admin.describe_topics(["data"])["data"].partitions)
    assert 2 == hook.fired


def test_partitions_are_added(admin):
    """A topic grows to the new number; fewer partitions are an error."""
    admin.create_partitions({"data": NewPartitions(3, [[1]])})
    with pytest.raises(AdminError) as caught:
        admin.create_partitions({"data": NewPartitions(1), "more": NewPartitions(2)})

    assert {"data": "INVALID_PARTITIONS"} == failed(caught)
    assert [3, 2] == [
        len(admin.describe_topics([name])[name].partitions) for name in ("data", "more")
    ]


def test_deleted_topics_are_gone(admin):
    """Deleted topics are no longer listed."""
    admin.delete_topics(["data", "more"])

    assert {} == admin.list_topics()


# --- partitions


def test_offsets_are_looked_up_by_time_and_place(admin, settings):
    """The first, the last, a timestamp, one that is too late, and the highest timestamp."""
    produce(settings, b"a", b"b", b"c")
    specs = [OffsetSpec.EARLIEST, OffsetSpec.LATEST, 1500, 9999, OffsetSpec.MAX_TIMESTAMP]

    found = [admin.list_offsets({FIRST: spec})[FIRST] for spec in specs]

    assert [(0, -1), (3, -1), (2, 2000), (-1, -1), (2, 2000)] == [
        (it.offset, it.timestamp) for it in found
    ]


def test_the_isolation_level_decides_what_the_end_is(admin, settings):
    """Read_committed ends before the first open transaction."""
    with KafkaProducer({**settings, "transactional.id": "t"}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("data", b"a", partition=0).result(timeout=120)
        latest = {FIRST: OffsetSpec.LATEST, SECOND: OffsetSpec.LATEST}
        committed = admin.list_offsets(latest, isolation_level="read_committed")
        everything = admin.list_offsets(latest)
        producer.abort_transaction()

    assert {FIRST: 0, SECOND: 0} == {place: it.offset for place, it in committed.items()}
    assert {FIRST: 1, SECOND: 0} == {place: it.offset for place, it in everything.items()}
    with pytest.raises(ValueError, match="read_uncommitted, read_committed"):
        admin.list_offsets(latest, isolation_level="serializable")


def test_records_are_deleted_up_to_an_offset(admin, settings):
    """Records before the offset are gone; -1 deletes all; others are as they were."""
    produce(settings, b"a", b"b", b"c")
    produce(settings, b"d", partition=1)

    assert {FIRST: 2, SECOND: 1} == admin.delete_records({FIRST: 2, SECOND: -1})
    assert 2 == admin.list_offsets({FIRST: OffsetSpec.EARLIEST})[FIRST].offset
    with pytest.raises(AdminError) as caught:
        admin.delete_records({FIRST: 9, TopicPartition("more", 0): 0})
    assert {FIRST: "OFFSET_OUT_OF_RANGE"} == failed(caught)


def test_a_partition_that_does_not_exist_does_not_affect_others(admin, monkeypatch):
    """A missing topic and a missing partition are errors, and the others have their offsets."""
    monkeypatch.setattr("spark_kafka_sink.admin.item_requests.FINAL_SECONDS", 0.2)
    beyond = TopicPartition("data", 9)
    with pytest.raises(AdminError) as caught:
        admin.list_offsets(dict.fromkeys([FIRST, MISSING, beyond], OffsetSpec.LATEST))

    assert dict.fromkeys([MISSING, beyond], "UNKNOWN_TOPIC_OR_PARTITION") == failed(caught)
    assert {FIRST} == caught.value.results.keys()


def test_requests_go_to_the_leaders():
    """Each partition is asked of its leader, and looked up again if that has moved."""
    with DevBroker(brokers=3, topics={"data": 6}) as broker:
        settings = {"bootstrap.servers": broker.bootstrap_servers, "retry.backoff.ms": 10}
        with AdminClient(settings) as admin:
            places = [TopicPartition("data", number) for number in range(6)]
            leaders = {it.leader for it in admin.describe_topics(["data"])["data"].partitions}
            assert 3 == len(leaders) == len(admin.describe_cluster().nodes)
            assert set(places) == admin.list_offsets(dict.fromkeys(places, -1)).keys()
            assert set(places) == admin.describe_producers(places).keys()
