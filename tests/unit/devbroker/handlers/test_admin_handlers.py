"""The broker's admin APIs: topics, partitions, records, configs, producers and transactions."""

from __future__ import annotations

import uuid

import pytest

from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.delete_topics import DeleteTopicsRequest
from spark_kafka_sink.protocol.messages.describe_cluster import DescribeClusterRequest
from spark_kafka_sink.protocol.messages.describe_transactions import DescribeTransactionsRequest
from spark_kafka_sink.protocol.primitives import ZERO_UUID
from tests.support.devbroker.admin_requests import (
    APPEND,
    BROKER,
    DELETE,
    SET,
    SUBTRACT,
    TOPIC,
    alter_configs,
    create_partitions,
    delete_records,
    delete_topics,
    describe_configs,
    describe_producers,
    list_transactions,
    offset_for_epoch,
)
from tests.support.devbroker.broker_requests import NOW, ask, broker_with
from tests.support.devbroker.group_client import GroupClient
from tests.support.devbroker.transactional_client import TransactionalClient
from tests.support.record.decode_budgets import ample_budget
from tests.support.record.plain_batches import PlainRecord, plain_batch

OK = ErrorCode.NONE
MISSING = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
BAD = ErrorCode.INVALID_REQUEST
NOW_MS = int(NOW * 1000)


@pytest.fixture
def broker():
    return broker_with({"t": 2})


def append(broker, *batches):
    log = broker.cluster.topic("t").partitions[0].log
    for batch in batches:
        client = TransactionalClient(broker)
        request = client.produce_request((-1, -1), -1, attributes=0)
        (topic,) = request.topic_data
        (partition,) = topic.partition_data
        partition = type(partition)(index=0, records=batch)
        topic = type(topic)(name="t", partition_data=(partition,))
        client.ask(type(request)(acks=-1, timeout_ms=1, topic_data=(topic,)))
    return log


class TestDeleteTopics:
    """DeleteTopics."""

    @pytest.mark.parametrize("version", range(1, 6))
    def test_topics_go_by_name(self, broker, version):
        """Up to version 5, DeleteTopics identifies topics by name only."""
        request = DeleteTopicsRequest(topic_names=("t", "no-such"), timeout_ms=1)

        answer = ask(broker, request, version)

        assert [("t", OK), ("no-such", MISSING)] == [
            (result.name, result.error_code) for result in answer.responses
        ]
        assert None is broker.cluster.topic("t")

    def test_topics_go_by_id(self, broker):
        """A topic is deleted by its id, and the response contains both name and id."""
        topic_id = broker.cluster.topic("t").topic_id
        stranger = uuid.UUID(int=7)

        answer = ask(broker, delete_topics(topic_id, stranger))

        assert [("t", topic_id, OK), (None, stranger, ErrorCode.UNKNOWN_TOPIC_ID)] == [
            (result.name, result.topic_id, result.error_code) for result in answer.responses
        ]

    def test_a_topic_must_be_named_once_and_one_way(self, broker):
        """A topic that is named twice, or by both name and id, or by neither, is not deleted."""
        topic_id = broker.cluster.topic("t").topic_id

        for topics in (("t", topic_id), (("t", topic_id),), ((None, ZERO_UUID),)):
            answer = ask(broker, delete_topics(*topics))
            assert {BAD} == {result.error_code for result in answer.responses}
        assert None is not broker.cluster.topic("t")

    def test_nothing_is_left_of_it(self, broker):
        """A topic's records and committed offsets are deleted too; its successor begins empty."""
        append(broker, plain_batch(1))
        client = GroupClient(broker)
        client.commit({("t", 0): 1})
        broker.cluster.take_changed()
        ask(broker, delete_topics("t"))

        assert {("t", 0), ("t", 1)} == broker.cluster.take_changed()
        assert {("t", 0): (OK, -1)} == client.offsets("t", 0)


class TestCreatePartitions:
    """CreatePartitions."""

    def test_partitions_are_added(self, broker):
        """New partitions are numbered after the existing ones."""
        answer = ask(broker, create_partitions(("t", 4)))

        assert [OK] == [result.error_code for result in answer.results]
        assert [0, 1, 2, 3] == [p.index for p in broker.cluster.topic("t").partitions]

    @pytest.mark.parametrize(
        ("topic", "expected"),
        [
            (("no-such", 3), MISSING),
            (("t", 2), ErrorCode.INVALID_PARTITIONS),
            (("t", 1), ErrorCode.INVALID_PARTITIONS),
            (("t", 4, [[1]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            (("t", 3, [[9]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            (("t", 3, [[1, 1]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            (("t", 3, [[1]]), OK),
        ],
    )
    def test_what_cannot_be_is_refused(self, broker, topic, expected):
        """A count that is not an increase and an unsuitable replica assignment are refused."""
        answer = ask(broker, create_partitions(topic))

        assert [expected] == [result.error_code for result in answer.results]
        assert (3 if expected is OK else 2) == len(broker.cluster.topic("t").partitions)

    def test_a_topic_that_is_named_twice_is_refused(self, broker):
        """A topic that is named twice gets a single INVALID_REQUEST result."""
        answer = ask(broker, create_partitions(("t", 3), ("t", 4)))

        assert [("t", BAD)] == [(result.name, result.error_code) for result in answer.results]

    def test_validation_creates_nothing(self, broker):
        """With validate_only the broker reports the result and creates nothing."""
        answer = ask(broker, create_partitions(("t", 3), validate_only=True))

        assert [OK] == [result.error_code for result in answer.results]
        assert 2 == len(broker.cluster.topic("t").partitions)


class TestDeleteRecords:
    """DeleteRecords, and which records consumers can still read."""

    def delete(self, broker, offset, *, topic="t", partition=0):
        """Delete records and return the error code and the new log start offset."""
        (topic,) = ask(broker, delete_records((topic, partition, offset))).topics
        (answer,) = topic.partitions
        return answer.error_code, answer.low_watermark

    def test_the_log_starts_later(self, broker):
        """The log starts at the requested offset, even in the middle of a batch."""
        log = append(broker, plain_batch(3), plain_batch(3))

        assert (OK, 4) == self.delete(broker, 4)
        assert (OK, 4) == self.delete(broker, 2)
        assert (4, 6) == (log.log_start_offset, log.log_end_offset)
        client = TransactionalClient(broker)
        assert ErrorCode.OFFSET_OUT_OF_RANGE == client.fetch(3).error_code
        assert plain_batch(3)[16:] == bytes(client.fetch(4).records)[16:]

    def test_everything_can_be_deleted(self, broker):
        """Offset -1 deletes up to the high watermark; later records are readable as usual."""
        log = append(broker, plain_batch(3))
        assert (OK, 3) == self.delete(broker, -1)

        append(broker, plain_batch(2))

        assert (3, 5) == (log.log_start_offset, log.log_end_offset)
        assert b"" != bytes(TransactionalClient(broker).fetch(3).records)

    def test_times_are_looked_up_behind_the_start(self, broker):
        """A lookup by timestamp ignores records before the log start offset."""
        log = append(
            broker, plain_batch([PlainRecord(timestamp=t) for t in (50, 10, 20)]), plain_batch(1)
        )
        assert 0 == log.offset_for_timestamp(30, ample_budget()).offset
        self.delete(broker, 1)

        assert 2 == log.offset_for_timestamp(15, ample_budget()).offset
        assert None is log.offset_for_timestamp(30, ample_budget())

    @pytest.mark.parametrize(
        ("where", "expected"),
        [
            ({"offset": 2}, ErrorCode.OFFSET_OUT_OF_RANGE),
            ({"offset": -2}, ErrorCode.OFFSET_OUT_OF_RANGE),
            ({"offset": 0, "partition": 9}, MISSING),
            ({"offset": 0, "topic": "no-such"}, MISSING),
        ],
    )
    def test_missing_records_and_partitions_cannot_be_deleted(self, broker, where, expected):
        """Offsets out of range and partitions that do not exist are refused."""
        append(broker, plain_batch(1))

        assert (expected, -1) == self.delete(broker, **where)

    def test_a_compacted_topic_keeps_its_records(self):
        """DeleteRecords needs `delete` in cleanup.policy; with `compact` it is POLICY_VIOLATION."""
        broker = broker_with({"t": 1}, configs={"cleanup.policy": "compact"})

        assert (ErrorCode.POLICY_VIOLATION, -1) == self.delete(broker, 0)

    def test_an_open_transaction_may_begin_before_the_start(self, broker):
        """If an open transaction began before it, the log start is the last stable offset."""
        client = TransactionalClient(broker)
        _, identity = client.init()
        client.produce(identity, 0, count=4)

        self.delete(broker, 2)

        assert 2 == client.fetch(2).last_stable_offset


class TestSettings:
    """DescribeConfigs and IncrementalAlterConfigs."""

    def described(self, broker, *, resource=(TOPIC, "t"), version=None, **fields):
        """Return the result of DescribeConfigs for a resource."""
        (result,) = ask(broker, describe_configs(resource, **fields), version).results
        return result

    def alter(self, broker, *configs, resource=(TOPIC, "t"), **fields):
        """Alter configs and return the error code."""
        request = alter_configs((*resource, configs), **fields)
        (response,) = ask(broker, request).responses
        return response.error_code

    @pytest.mark.parametrize("version", range(1, 5))
    def test_settings_come_with_their_source(self, version):
        """Each config comes with its value and whether the topic set it or it is the default."""
        broker = broker_with({"t": 1})
        self.alter(broker, ("max.message.bytes", SET, "1000"))

        keys = ["max.message.bytes", "cleanup.policy"]
        result = self.described(broker, version=version, keys=keys, synonyms=True)

        assert [
            ("cleanup.policy", "delete", 5, [("delete", 5)]),
            ("max.message.bytes", "1000", 1, [("1000", 1), ("1048588", 5)]),
        ] == [
            (c.name, c.value, c.config_source, [(s.value, s.source) for s in c.synonyms])
            for c in result.configs
        ]
        if version >= 3:
            assert [7, 3] == [config.config_type for config in result.configs]

    def test_a_broker_s_settings_are_read_only(self, broker):
        """The broker configs that a producer reads before it starts are read-only."""
        result = self.described(broker, resource=(BROKER, "1"), keys=["transaction.max.timeout.ms"])

        assert [("transaction.max.timeout.ms", "900000", True)] == [
            (config.name, config.value, config.read_only) for config in result.configs
        ]

    @pytest.mark.parametrize(
        ("resource", "expected"),
        [
            ((TOPIC, "no-such"), MISSING),
            ((TOPIC, "a b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
            ((BROKER, "9"), BAD),
            ((77, "t"), BAD),
        ],
    )
    def test_an_unknown_resource_has_no_settings(self, broker, resource, expected):
        """An unknown resource can be neither described nor altered."""
        assert expected == self.described(broker, resource=resource).error_code
        altered = self.alter(broker, ("retention.ms", SET, "-1"), resource=resource)
        assert (BAD if resource[0] != TOPIC else expected) == altered

    def test_settings_are_changed_and_reset(self, broker):
        """A config takes effect when it is set, and its default when it is deleted."""
        topic = broker.cluster.topic("t")
        assert OK == self.alter(broker, ("max.message.bytes", SET, "10"))
        assert 10 == topic.config.max_message_bytes
        assert OK == self.alter(broker, ("max.message.bytes", DELETE, None))
        assert 1024 * 1024 + 12 == topic.config.max_message_bytes

    def test_lists_grow_and_shrink(self, broker):
        """APPEND and SUBTRACT add and remove single entries of a list."""
        topic = broker.cluster.topic("t")
        assert OK == self.alter(broker, ("cleanup.policy", APPEND, "compact"))
        assert "delete,compact" == topic.config.cleanup_policy
        assert OK == self.alter(broker, ("cleanup.policy", SUBTRACT, "delete"))
        assert "compact" == topic.config.cleanup_policy

    @pytest.mark.parametrize(
        ("configs", "expected"),
        [
            ([("max.message.bytes", SET, "x")], ErrorCode.INVALID_CONFIG),
            ([("no.such", SET, "x")], ErrorCode.INVALID_CONFIG),
            ([("max.message.bytes", APPEND, "1")], ErrorCode.INVALID_CONFIG),
            ([("max.message.bytes", SET, None)], BAD),
            ([("max.message.bytes", 9, "1")], ErrorCode.UNKNOWN_SERVER_ERROR),
            ([("max.message.bytes", SET, "1")] * 2, BAD),
        ],
    )
    def test_bad_changes_change_nothing(self, broker, configs, expected):
        """A topic's changes are all applied, or none of them."""
        assert expected == self.alter(broker, ("cleanup.policy", SET, "compact"), *configs)
        assert "delete" == broker.cluster.topic("t").config.cleanup_policy

    def test_validation_changes_nothing(self, broker):
        """With validate_only the broker reports the result and changes nothing."""
        change = ("cleanup.policy", SET, "compact")

        assert OK == self.alter(broker, change, validate_only=True)
        assert "delete" == broker.cluster.topic("t").config.cleanup_policy

    def test_a_topic_that_is_named_twice_is_refused(self, broker):
        """A topic that is named twice gets a single INVALID_REQUEST response."""
        request = alter_configs((TOPIC, "t", []), (TOPIC, "t", []))

        assert [BAD] == [response.error_code for response in ask(broker, request).responses]


class TestTransactions:
    """DescribeTransactions, ListTransactions and DescribeProducers."""

    def test_an_open_transaction_is_described(self, broker):
        """A description has the state, timeout, start time, producer and partitions."""
        client = TransactionalClient(broker)
        _, identity = client.init(timeout_ms=7000)
        client.produce(identity, 0, 0, 1)

        states = ask(
            broker, DescribeTransactionsRequest(transactional_ids=("x", "nobody", ""))
        ).transaction_states

        not_found = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert [OK, not_found, BAD] == [state.error_code for state in states]
        state = states[0]
        assert ("Ongoing", 7000, NOW_MS, identity, [("t", (0, 1))]) == (
            state.transaction_state,
            state.transaction_timeout_ms,
            state.transaction_start_time_ms,
            (state.producer_id, state.producer_epoch),
            [(topic.topic, topic.partitions) for topic in state.topics],
        )

    def test_an_id_without_a_transaction_has_no_start(self, broker):
        """Before the first transaction of an id, the start time is -1."""
        TransactionalClient(broker).init()

        (state,) = ask(
            broker, DescribeTransactionsRequest(transactional_ids=("x",))
        ).transaction_states

        assert ("Empty", -1, ()) == (
            state.transaction_state,
            state.transaction_start_time_ms,
            state.topics,
        )

    @pytest.mark.parametrize(
        ("filters", "expected"),
        [
            ({}, ["a.1", "a.2", "b"]),
            ({"states": ["Ongoing"]}, ["a.1"]),
            ({"states": ["ongoing"]}, []),
            ({"producer_ids": [1]}, ["a.2"]),
            ({"duration_ms": 4_999}, ["a.1", "a.2", "b"]),
            ({"duration_ms": 5_000}, ["a.2", "b"]),
            ({"pattern": "a.*"}, ["a.1", "a.2"]),
            ({"pattern": "a"}, []),
            ({"pattern": ""}, ["a.1", "a.2", "b"]),
        ],
    )
    def test_transactions_are_listed(self, broker, filters, expected):
        """Filters select by state, producer, duration and a pattern for the whole id."""
        for name in ("a.1", "a.2", "b"):
            client = TransactionalClient(broker, name)
            _, identity = client.init()
            if name == "a.1":
                client.produce(identity, 0)

        answer = ask(broker, list_transactions(**filters), now=NOW + 5)

        assert expected == [state.transactional_id for state in answer.transaction_states]
        unknown = ("ongoing",) if filters.get("states") == ["ongoing"] else ()
        assert unknown == answer.unknown_state_filters

    @pytest.mark.parametrize("pattern", ["(", "a**", "(?=a)", r"(a)\1", "a" * 1001])
    def test_a_pattern_must_be_one(self, broker, pattern):
        """An invalid pattern, or one that is too large, is refused."""
        answer = ask(broker, list_transactions(pattern=pattern))

        assert ErrorCode.INVALID_REGULAR_EXPRESSION == answer.error_code

    def test_a_pattern_may_not_keep_the_broker_busy(self, broker):
        """A pattern that takes too many steps for the ids is refused, a usual one is not."""
        for index in range(30):
            TransactionalClient(broker, f"{index}" + "ab" * 200).init()

        hostile = ask(broker, list_transactions(pattern="(.?){400}(.{0,9}a){10}b"))
        usual = ask(broker, list_transactions(pattern="((1|2)?([0-9](ab)*)+)+"))

        assert ErrorCode.INVALID_REGULAR_EXPRESSION == hostile.error_code
        assert 30 == len(usual.transaction_states)

    def test_producers_are_described(self, broker):
        """A description has the last sequence and the start offset of the open transaction."""
        client = TransactionalClient(broker)
        _, identity = client.init()
        client.produce(identity, 0, count=3)
        _, following = client.end(identity, committed=True)
        client.produce(following, 0, count=2)

        def producers():
            request = describe_producers("t", 0, 1, 9)
            (topic,) = ask(broker, request).topics
            return [
                (
                    partition.error_code,
                    [
                        (
                            (p.producer_id, p.producer_epoch),
                            p.last_sequence,
                            p.last_timestamp,
                            p.coordinator_epoch,
                            p.current_txn_start_offset,
                        )
                        for p in partition.active_producers
                    ],
                )
                for partition in topic.partitions
            ]

        assert [(OK, [(following, 1, NOW_MS, 0, 4)]), (OK, []), (MISSING, [])] == producers()
        client.end(following, committed=False)
        assert ((following[0], 2), -1, NOW_MS, 0, -1) == producers()[0][1][0]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ((0, 0, 0), (OK, 0, 1)),
        ((0, 0, 7), (OK, -1, -1)),
        ((0, 9, 0), (MISSING, -1, -1)),
    ],
)
def test_the_end_of_a_leader_epoch_is_found(broker, asked, expected):
    """An unknown epoch has no end offset."""
    append(broker, plain_batch(1))
    _, partition, epoch = asked

    (answer,) = ask(broker, offset_for_epoch("t", partition, epoch)).topics[0].partitions

    assert expected == (answer.error_code, answer.leader_epoch, answer.end_offset)


def test_an_unknown_leader_epoch_is_reported(broker):
    """A leader epoch newer than the broker's is UNKNOWN_LEADER_EPOCH."""
    request = offset_for_epoch("t", 0, 0, current_leader_epoch=3)

    (answer,) = ask(broker, request).topics[0].partitions

    assert ErrorCode.UNKNOWN_LEADER_EPOCH == answer.error_code


@pytest.mark.parametrize("version", range(3))
def test_the_cluster_is_described(broker, version):
    """The description has the cluster id, brokers, controller and authorized operations."""
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)

    answer = ask(broker, request, version)

    assert (OK, broker.cluster.cluster_id, 1, [(1, "127.0.0.1", 9092)]) == (
        answer.error_code,
        answer.cluster_id,
        answer.controller_id,
        [(b.broker_id, b.host, b.port) for b in answer.brokers],
    )
    assert answer.cluster_authorized_operations > 0


@pytest.mark.parametrize(
    ("endpoint_type", "expected"),
    [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)],
)
def test_controller_endpoints_are_refused(broker, endpoint_type, expected):
    """Controller endpoints are refused, since this is a broker."""
    request = DescribeClusterRequest(
        include_cluster_authorized_operations=False, endpoint_type=endpoint_type
    )

    assert expected == ask(broker, request).error_code


def test_one_request_adds_a_limited_number_of_partitions():
    """The limit counts the partitions of all topics; beyond it the whole request is refused."""
    broker = broker_with({"a": 1, "b": 1}, request_max_partitions=5)

    refused = ask(broker, create_partitions(("a", 4), ("b", 4)))
    assert [ErrorCode.POLICY_VIOLATION] * 2 == [result.error_code for result in refused.results]
    added = ask(broker, create_partitions(("a", 4), ("b", 3)))
    assert [ErrorCode.NONE] * 2 == [result.error_code for result in added.results]
    assert [4, 3] == [len(topic.partitions) for topic in broker.cluster.topics]


def test_one_request_deletes_a_limited_number_of_partitions():
    """Topics over the limit get POLICY_VIOLATION; a single topic is deleted whatever its size."""
    broker = broker_with({"a": 7, "b": 2, "c": 3, "d": 1}, request_max_partitions=5)

    def delete(*names):
        return [each.error_code for each in ask(broker, delete_topics(*names)).responses]

    assert [ErrorCode.NONE, ErrorCode.POLICY_VIOLATION] == delete("a", "b")
    assert [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.POLICY_VIOLATION] == delete("b", "c", "d")
    assert ["d"] == [topic.name for topic in broker.cluster.topics]
