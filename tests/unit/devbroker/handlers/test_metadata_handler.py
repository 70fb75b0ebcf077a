"""Metadata: brokers and topics as clients see them."""

from __future__ import annotations

import uuid

import pytest

from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.support.devbroker.broker_requests import ask, broker_with

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
NO_OPERATIONS = -(2**31)


def named(*names, **fields):
    return MetadataRequest(topics=tuple(MetadataRequestTopic(name=n) for n in names), **fields)


def errors(response):
    return {topic.name: topic.error_code for topic in response.topics}


@pytest.mark.parametrize("version", range(1, 14))
def test_all_topics_are_listed(version):
    """In every version null requests all topics, with their leaders and replicas."""
    broker = broker_with({"b": 2, "a": 1})

    response = ask(broker, MetadataRequest(topics=None), version)

    assert [("a", 1), ("b", 2)] == [(t.name, len(t.partitions)) for t in response.topics]
    partition = response.topics[1].partitions[1]
    assert (0, 1, 1, (1,), (1,)) == (
        partition.error_code,
        partition.partition_index,
        partition.leader_id,
        partition.replica_nodes,
        partition.isr_nodes,
    )
    assert (0 if version >= 7 else -1) == partition.leader_epoch


def test_version_0_asks_for_all_topics_by_an_empty_list():
    """Before null was allowed, an empty list requested all topics."""
    response = ask(broker_with({"a": 1}), MetadataRequest(topics=()), 0)

    assert ["a"] == [topic.name for topic in response.topics]


def test_an_empty_list_asks_for_no_topics():
    """Since version 1 an empty list requests only the brokers."""
    response = ask(broker_with({"a": 1}), MetadataRequest(topics=()), 1)

    assert () == response.topics


def test_the_cluster_and_its_brokers_are_named():
    """The response has the brokers' addresses, the cluster id and the controller id."""
    broker = broker_with()
    response = ask(broker, MetadataRequest(topics=()))

    assert [(1, "127.0.0.1", 9092, None)] == [
        (node.node_id, node.host, node.port, node.rack) for node in response.brokers
    ]
    # The controller id is in every version since 1, and the cluster id since version 2.
    assert (1, broker.cluster.cluster_id) == (response.controller_id, response.cluster_id)


def test_a_topic_is_found_by_id():
    """Since version 12 topics can be requested by id."""
    broker = broker_with({"a": 1})
    topic_id = broker.cluster.topic("a").topic_id
    request = MetadataRequest(topics=(MetadataRequestTopic(topic_id=topic_id, name=None),))

    response = ask(broker, request, 12)

    assert [(0, "a", topic_id)] == [
        (topic.error_code, topic.name, topic.topic_id) for topic in response.topics
    ]


def test_an_id_that_no_topic_has_is_unknown():
    """An unknown id is UNKNOWN_TOPIC_ID, without a name."""
    topic_id = uuid.UUID(int=9)
    request = MetadataRequest(topics=(MetadataRequestTopic(topic_id=topic_id, name=None),))

    response = ask(broker_with(), request, 12)

    assert [(ErrorCode.UNKNOWN_TOPIC_ID, None, topic_id)] == [
        (topic.error_code, topic.name, topic.topic_id) for topic in response.topics
    ]


def test_asking_by_id_is_refused_before_version_12():
    """Versions 10 and 11 have the field but do not allow its use."""
    request = MetadataRequest(topics=(MetadataRequestTopic(topic_id=uuid.UUID(int=9), name="a"),))

    response = ask(broker_with({"a": 1}), request, 11)

    assert {"a": ErrorCode.INVALID_REQUEST} == errors(response)


def test_a_created_topic_is_still_unknown_in_the_response():
    """As in Kafka, the response to the request that creates a topic does not describe it yet."""
    broker = broker_with(num_partitions=4)

    assert {"new": UNKNOWN} == errors(ask(broker, named("new")))
    (topic,) = ask(broker, named("new")).topics
    assert (0, 4) == (topic.error_code, len(topic.partitions))


@pytest.mark.parametrize(("num_partitions", "at_once"), [(1, 7), (3, 2), (8, 1)])
def test_one_request_creates_a_limited_number_of_partitions(num_partitions, at_once):
    """Topics over the limit remain unknown, and the next request creates more of them."""
    broker = broker_with(num_partitions=num_partitions, request_max_partitions=7)
    cluster = broker.cluster
    names = [f"t{number:03}" for number in range(2 * at_once + 1)]

    assert dict.fromkeys(names, UNKNOWN) == errors(ask(broker, named(*names)))
    assert names[:at_once] == [topic.name for topic in cluster.topics]
    ask(broker, named(*names))
    assert names[:-1] == [topic.name for topic in cluster.topics]
    ask(broker, named(*names))
    assert names == [topic.name for topic in cluster.topics]


def test_names_that_collide_in_one_request_are_not_both_created():
    """A topic created earlier in the same request counts as existing."""
    assert {"a.b": UNKNOWN, "a_b": ErrorCode.INVALID_TOPIC_EXCEPTION} == errors(
        ask(broker_with(), named("a.b", "a_b"))
    )


@pytest.mark.parametrize(("allowed_by_broker", "allowed_by_client"), [(False, True), (True, False)])
def test_an_unknown_topic_stays_unknown_unless_both_sides_allow(
    allowed_by_broker, allowed_by_client
):
    """Both the broker and the client must allow the creation."""
    broker = broker_with(auto_create_topics=allowed_by_broker)
    request = named("new", allow_auto_topic_creation=allowed_by_client)

    ask(broker, request)

    assert {"new": UNKNOWN} == errors(ask(broker, request))


@pytest.mark.parametrize("auto_create", [True, False])
def test_an_impossible_name_is_called_so(auto_create):
    """An invalid topic name is INVALID_TOPIC_EXCEPTION."""
    broker = broker_with(auto_create_topics=auto_create)

    assert {"a b": ErrorCode.INVALID_TOPIC_EXCEPTION} == errors(ask(broker, named("a b")))


def test_a_name_that_collides_is_not_created():
    """A topic that cannot be created gets the error code of the failed creation."""
    broker = broker_with({"a.b": 1})

    assert {"a_b": ErrorCode.INVALID_TOPIC_EXCEPTION} == errors(ask(broker, named("a_b")))


def test_a_duplicate_topic_is_described_once():
    """Duplicate topics in a request are ignored."""
    assert 1 == len(ask(broker_with({"a": 1}), named("a", "a")).topics)


@pytest.mark.parametrize(("asked", "expected"), [(True, 3576), (False, NO_OPERATIONS)])
def test_topic_operations_are_returned_on_request(asked, expected):
    """Without an authorizer every operation on a topic is allowed."""
    request = named("a", include_topic_authorized_operations=asked)

    (topic,) = ask(broker_with({"a": 1}), request).topics

    assert expected == topic.topic_authorized_operations


@pytest.mark.parametrize(("asked", "expected"), [(True, 8096), (False, NO_OPERATIONS)])
def test_cluster_operations_are_returned_on_request(asked, expected):
    """Without an authorizer every operation on the cluster is allowed."""
    request = MetadataRequest(topics=(), include_cluster_authorized_operations=asked)

    assert expected == ask(broker_with(), request, 8).cluster_authorized_operations


def test_internal_topics_are_marked():
    """The mark lets clients ignore Kafka's own topics."""
    (topic,) = ask(broker_with({"__consumer_offsets": 1}), named("__consumer_offsets")).topics

    assert topic.is_internal
