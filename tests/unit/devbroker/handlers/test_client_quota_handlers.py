"""The quotas of users and clients: how they are set, and that they are enforced."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings
from spark_kafka_sink.devbroker.brokers.clusters import cluster_of
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from spark_kafka_sink.protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
)
from spark_kafka_sink.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.support.devbroker.broker_asker import produce_request
from tests.support.devbroker.broker_requests import NOW, ask, broker_with
from tests.support.network.raw_client import RawClient
from tests.support.record.plain_batches import PlainRecord, plain_batch

PRODUCED, CONSUMED = "producer_byte_rate", "consumer_byte_rate"
EXACT, DEFAULT, SPECIFIED = range(3)


def entry(entity, **quotas):
    return EntryData(
        entity=tuple(EntityData(entity_type=kind, entity_name=name) for kind, name in entity),
        ops=tuple(
            OpData(key=key, value=value or 0.0, remove=value is None)
            for key, value in quotas.items()
        ),
    )


def alteration(*entries, validate_only=False):
    return AlterClientQuotasRequest(entries=entries, validate_only=validate_only)


def altered(broker, *entries, **options):
    answer = ask(broker, alteration(*entries, **options))
    return [ErrorCode(result.error_code).name for result in answer.entries]


def described(broker, *components, strict=False):
    request = DescribeClientQuotasRequest(
        components=tuple(
            ComponentData(entity_type=kind, match_type=match_type, match=match)
            for kind, match_type, match in components
        ),
        strict=strict,
    )
    answer = ask(broker, request)
    if answer.error_code:
        return ErrorCode(answer.error_code).name
    return [
        (
            {part.entity_type: part.entity_name for part in each.entity},
            {value.key: value.value for value in each.values},
        )
        for each in answer.entries
    ]


ALICE, ANYONE = [("user", "alice")], [("user", None)]
APP = [("client-id", "app")]


@pytest.fixture
def broker():
    return broker_with({"t": 1})


def test_quotas_are_set_and_removed(broker):
    """An entity has the quotas that were set for it, and is gone without any."""
    assert ["NONE"] == altered(broker, entry(ALICE, producer_byte_rate=5.0, request_percentage=0.5))
    assert ["NONE"] == altered(broker, entry(ALICE, producer_byte_rate=6.0))
    both = {PRODUCED: 6.0, "request_percentage": 0.5}
    assert [({"user": "alice"}, both)] == described(broker)

    altered(broker, entry(ALICE, producer_byte_rate=None, request_percentage=None))

    assert [] == described(broker)


def test_a_validation_changes_nothing(broker):
    """With `validate_only` the results are the same, and nothing is set."""
    entries = (entry(ALICE, producer_byte_rate=5.0), entry(ANYONE, unknown=1.0))

    assert ["NONE", "INVALID_REQUEST"] == altered(broker, *entries, validate_only=True)
    assert [] == described(broker)


@pytest.mark.parametrize(
    "invalid",
    [
        entry([], producer_byte_rate=1.0),
        entry([("topic", "t")], producer_byte_rate=1.0),
        entry([("user", "")], producer_byte_rate=1.0),
        entry([*ALICE, *ANYONE], producer_byte_rate=1.0),
        entry([("ip", "127.0.0.1"), *ALICE], connection_creation_rate=1.0),
        entry([("ip", "not an address")], connection_creation_rate=1.0),
        entry([("ip", "127.0.0.1")], producer_byte_rate=1.0),
        entry(ALICE, connection_creation_rate=1.0),
        entry(ALICE, producer_byte_rate=0.0001),
        entry(ALICE, producer_byte_rate=-1.0),
        entry(ALICE, producer_byte_rate=float("nan")),
        entry(ALICE, producer_byte_rate=1e19),
    ],
)
def test_an_invalid_quota_is_refused_and_others_are_set(broker, invalid):
    """Each entity is changed or refused by itself."""
    results = altered(broker, invalid, entry(APP, consumer_byte_rate=1.0))

    assert ["INVALID_REQUEST", "NONE"] == results
    assert [({"client-id": "app"}, {CONSUMED: 1.0})] == described(broker)


def test_what_occurs_twice_is_refused(broker):
    """A second entry of an entity, and a quota that an entry sets twice, are mistakes."""
    twice = EntryData(
        entity=(EntityData(entity_type="user", entity_name="bob"),),
        ops=(OpData(key=PRODUCED, value=1.0, remove=False),) * 2,
    )

    results = altered(
        broker, entry(ALICE, producer_byte_rate=1.0), entry(ALICE, producer_byte_rate=2.0), twice
    )

    assert ["NONE", "INVALID_REQUEST", "INVALID_REQUEST"] == results
    assert [({"user": "alice"}, {PRODUCED: 1.0})] == described(broker)


def test_a_filter_finds_names_defaults_and_any_names(broker):
    """Components are conditions on types of entities; a strict filter has all types."""
    for entity in (ALICE, ANYONE, APP, [*ALICE, *APP]):
        altered(broker, entry(entity, producer_byte_rate=1.0))

    def found(*components, **options):
        return [names for names, _ in described(broker, *components, **options)]

    alice_and_app = {"client-id": "app", "user": "alice"}
    assert [{"user": "alice"}, alice_and_app] == found(("user", EXACT, "alice"))
    assert [{"user": "alice"}] == found(("user", EXACT, "alice"), strict=True)
    assert [{"user": None}] == found(("user", DEFAULT, None))
    assert 3 == len(found(("user", SPECIFIED, None)))
    assert [alice_and_app] == found(("user", SPECIFIED, None), ("client-id", EXACT, "app"))


@pytest.mark.parametrize(
    ("components", "expected"),
    [
        ([("", EXACT, "a")], "INVALID_REQUEST"),
        ([("topic", EXACT, "a")], "UNSUPPORTED_VERSION"),
        ([("user", 3, None)], "INVALID_REQUEST"),
        ([("user", EXACT, None)], "INVALID_REQUEST"),
        ([("user", DEFAULT, "a")], "INVALID_REQUEST"),
        ([("user", EXACT, "a"), ("user", DEFAULT, None)], "INVALID_REQUEST"),
        ([("user", EXACT, "a"), ("ip", SPECIFIED, None)], "INVALID_REQUEST"),
    ],
)
def test_a_contradictory_filter_is_refused(broker, components, expected):
    """A filter that Kafka refuses is refused with its error."""
    assert expected == described(broker, *components)


def test_quotas_survive_a_restart(tmp_path):
    """Quotas are in the data directory."""

    def opened():
        (broker,) = cluster_of(BrokerSettings(), 1, data_dir=tmp_path / "data").brokers
        broker.cluster.open(NOW)
        return broker

    broker = opened()
    altered(broker, entry([*ALICE, ("client-id", None)], producer_byte_rate=5.0))
    before = described(broker)
    broker.cluster.close(NOW)

    broker = opened()

    assert before == described(broker)
    broker.cluster.close(NOW)


BATCH = plain_batch([PlainRecord(timestamp=int(NOW * 1000), value=b"v" * 2000)])


def fetch():
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=10**6)
    topic = FetchTopic(topic="t", partitions=(partition,))
    return FetchRequest(max_wait_ms=0, min_bytes=0, topics=(topic,))


def test_a_consumer_above_its_quota_gets_nothing_and_the_time_to_wait(broker):
    """The response is empty and the next one has the records, as the quota is free again."""
    for _ in range(3):
        ask(broker, produce_request("t", BATCH), 12)
    altered(broker, entry([("client-id", "test")], consumer_byte_rate=len(BATCH) / 10 + 1))

    def fetched(now):
        answer = ask(broker, fetch(), 12, now=now)
        sizes = [len(p.records or b"") for topic in answer.responses for p in topic.partitions]
        return answer.throttle_time_ms, sum(sizes)

    # A response has at most what is allowed in ten seconds: one batch.
    assert (0, len(BATCH)) == fetched(NOW)
    throttle_time_ms, size = fetched(NOW)
    assert 0 == size
    assert 9_000 < throttle_time_ms < 11_000
    assert (0, len(BATCH)) == fetched(NOW + 11)


def test_a_producer_above_its_quota_is_told_to_wait():
    """Its records are appended, and its next request is handled, after the time."""
    # Time stands still for the quota, and passes for the connection that is not read from.
    with (
        DevBroker(topics={"t": 1}, clock=lambda: NOW) as broker,
        RawClient(broker.port) as client,
    ):
        limit = entry([("client-id", None)], producer_byte_rate=len(BATCH) * 2.0)
        assert [0] == [result.error_code for result in client.ask(alteration(limit), 1).entries]

        def throttle_time_ms():
            return client.ask(produce_request("t", BATCH), 12).throttle_time_ms

        # Twenty batches are allowed at once, including the requests that they are in.
        assert [0] * 19 == [throttle_time_ms() for _ in range(19)]
        first, second = throttle_time_ms(), throttle_time_ms()

        assert 0 < first < second < 2_000
        assert 21 == len(broker.records("t")[0])
