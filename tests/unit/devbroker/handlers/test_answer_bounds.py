"""Short requests that could cause long responses or much work: all of these are bounded."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.groups.classic_groups import MAX_PROTOCOLS
from spark_kafka_sink.devbroker.log.log_manager import LogManager
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from spark_kafka_sink.protocol.messages.create_topics import CreateTopicsRequest
from spark_kafka_sink.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from spark_kafka_sink.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    TopicRequest,
)
from spark_kafka_sink.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tests.support.devbroker.admin_requests import TOPIC, delete_records
from tests.support.devbroker.broker_asker import creatable
from tests.support.devbroker.broker_requests import ask, broker_with
from tests.support.devbroker.durable_cluster import DurableCluster
from tests.support.devbroker.group_client import JOIN, join_request
from tests.support.devbroker.transactional_client import TransactionalClient
from tests.support.record.plain_batches import PlainRecord, plain_batch

OK = ErrorCode.NONE


def test_an_answer_describes_a_limited_number_of_settings():
    """Topics over the limit get POLICY_VIOLATION, and a second request can describe them."""
    broker = broker_with(dict.fromkeys("abcd", 1), request_max_elements=20)

    def describe(names):
        resources = tuple(
            DescribeConfigsResource(
                resource_type=TOPIC, resource_name=name, configuration_keys=None
            )
            for name in names
        )
        results = ask(broker, DescribeConfigsRequest(resources=resources)).results
        return [(each.error_code, bool(each.configs)) for each in results]

    refused = (ErrorCode.POLICY_VIOLATION, False)
    assert [(OK, True), (OK, True), refused, refused] == describe("abcd")
    assert [(OK, True), (OK, True)] == describe("cd")


@pytest.mark.parametrize(("length", "expected"), [(300, 300), (301, 303), (10**6, 303)])
def test_sentences_of_answers_are_short(length, expected):
    """A name made up by a client is cut to a fixed length in an error message."""
    refused = RefusedError(ErrorCode.INVALID_REQUEST, "x" * length)

    assert (expected, expected) == (len(refused.message), len(str(refused)))


def test_a_long_name_is_not_repeated_for_each_of_its_partitions():
    """An unknown topic with a name of 30,000 letters does not cause a response of megabytes."""
    asked = TopicRequest(name="x" * 30_000, partition_indexes=tuple(range(100)))

    (topic,) = ask(broker_with(), DescribeProducersRequest(topics=(asked,))).topics

    assert 100 * 303 >= sum(len(partition.error_message) for partition in topic.partitions)
    assert {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION} == {p.error_code for p in topic.partitions}


def test_an_assignment_to_thousands_of_brokers_is_refused_in_short():
    """The error message that lists the brokers is short enough for the response."""
    asked = creatable("t", -1, -1, [(0, range(15_000))])

    (topic,) = ask(broker_with(), CreateTopicsRequest(topics=(asked,), timeout_ms=1)).topics

    assert ErrorCode.INVALID_REPLICA_ASSIGNMENT == topic.error_code
    assert 303 == len(topic.error_message)


@pytest.mark.parametrize(("count", "expected"), [(99, 99), (100, 100), (250, 100)])
def test_an_answer_names_a_limited_number_of_refused_records(count, expected):
    """The whole batch is refused, however many of its records are listed."""
    broker = broker_with({"t": 1}, configs={"cleanup.policy": "compact"})
    batch = plain_batch([PlainRecord(b"v")] * count)
    data = TopicProduceData(
        name="t", partition_data=(PartitionProduceData(index=0, records=batch),)
    )

    (topic,) = ask(broker, ProduceRequest(acks=1, timeout_ms=1, topic_data=(data,)), 9).responses

    (partition,) = topic.partition_responses
    assert (ErrorCode.INVALID_RECORD, [*range(expected)]) == (
        partition.error_code,
        [record.batch_index for record in partition.record_errors],
    )


def test_a_transactional_id_is_added_to_once_in_a_request():
    """An id that is named twice gets INVALID_REQUEST; the other ids get their partitions."""
    broker = broker_with({"t": 2})
    clients = {name: TransactionalClient(broker, transactional_id=name) for name in ("x", "y")}
    transactions = []
    for name in ("x", "y", "x"):
        _, (producer_id, epoch) = clients[name].init()
        transactions.append(
            AddPartitionsToTxnTransaction(
                transactional_id=name,
                producer_id=producer_id,
                producer_epoch=epoch,
                topics=(AddPartitionsToTxnTopic(name="t", partitions=(len(transactions) // 2,)),),
            )
        )

    answer = ask(broker, AddPartitionsToTxnRequest(transactions=tuple(transactions)))

    again = ErrorCode.INVALID_REQUEST
    assert [("x", again), ("y", OK), ("x", again)] == [
        (each.transactional_id, each.topic_results[0].results_by_partition[0].partition_error_code)
        for each in answer.results_by_transaction
    ]
    assert [set(), {("t", 0)}] == [
        {*broker.cluster.transactions.find(name, 0).partitions} for name in ("x", "y")
    ]


def test_a_member_has_a_limited_number_of_protocols():
    """The number of protocols is limited because every join compares those of all members."""
    broker = broker_with()

    def join(count):
        protocols = [str(number) for number in range(count)]
        answer = ask(broker, join_request("g", protocols=protocols), JOIN)
        return answer.error_code

    assert ErrorCode.INCONSISTENT_GROUP_PROTOCOL == join(MAX_PROTOCOLS + 1)
    assert ErrorCode.MEMBER_ID_REQUIRED == join(MAX_PROTOCOLS)


def test_the_starts_of_all_logs_are_written_once(tmp_path, monkeypatch):
    """Deleting records of many partitions causes one write; the last offset per partition wins."""
    cluster = DurableCluster(tmp_path / "data")
    cluster.broker.cluster.create_topic("t", partitions=3, config=cluster.settings.topic_defaults)
    client = TransactionalClient(cluster.broker)
    for partition in range(3):
        for sequence in range(4):
            client.produce((7, 0), sequence, partition, attributes=0)
    written = []
    write = LogManager._write_log_starts

    def count(logs, data, later):
        written.append(later)
        write(logs, data, later)

    monkeypatch.setattr(LogManager, "_write_log_starts", count)
    places = [("t", 0, 1), ("t", 1, 2), ("t", 2, 3), ("t", 0, 4), ("t", 1, 9)]

    answer = ask(cluster.broker, delete_records(*places))

    monkeypatch.undo()
    outside = (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert [(OK, 4), outside, (OK, 3), (OK, 4), outside] == [
        (partition.error_code, partition.low_watermark)
        for topic in answer.topics
        for partition in topic.partitions
    ]
    assert 1 == len(written)
    topic = cluster.kill().cluster.topic("t")
    assert [4, 0, 3] == [partition.log.log_start_offset for partition in topic.partitions]
    cluster.close()
