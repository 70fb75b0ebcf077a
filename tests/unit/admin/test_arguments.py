"""The arguments of the public admin client, checked before anything is sent."""

from __future__ import annotations

import pickle
import re
from datetime import timedelta

import pytest

from spark_kafka_sink import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AdminClient,
    AlterConfigOp,
    ConfigResource,
    ConfigResourceType,
    KafkaProducer,
    NewPartitions,
    NewTopic,
    OffsetAndMetadata,
    OffsetSpec,
    ResourceType,
    TopicPartition,
)
from spark_kafka_sink.devbroker import DevBroker

FIRST, SECOND = TopicPartition("data", 0), TopicPartition("data", 1)
TOPIC = ConfigResource(ConfigResourceType.TOPIC, "data")
ACL = {"resource_type": ResourceType.TOPIC, "name": "data", "principal": "User:a"}
READ = AclBinding(**ACL, operation=AclOperation.READ)
NOT_A_PARTITION = "a partition is a TopicPartition, not 'data'"


@pytest.fixture
def nowhere():
    """Return a client of a cluster that does not exist: a request would be a KafkaTimeoutError."""
    limits = dict.fromkeys(("default.api.timeout.ms", "request.timeout.ms"), 1)
    with AdminClient({"bootstrap.servers": "localhost:1", **limits}) as client:
        yield client


@pytest.mark.parametrize(
    ("call", "arguments", "message"),
    [
        # Lists.
        ("create_topics", ("t",), "new_topics must be a list of NewTopic, not of the type str"),
        ("create_topics", (["t"],), "each of new_topics must be of the type NewTopic, not str"),
        ("create_topics", (NewTopic("t"),), "must be a list of NewTopic, not of the type NewTopic"),
        ("describe_configs", (TOPIC,), "resources must be a list of ConfigResource"),
        ("describe_configs", (["data"],), "each of resources must be of the type ConfigResource"),
        ("create_acls", (READ,), "bindings must be a list of AclBinding"),
        ("create_acls", (["User:a"],), "each of bindings must be of the type AclBinding"),
        ("delete_acls", (AclBindingFilter(),), "filters must be a list of AclBindingFilter"),
        ("describe_acls", ("User:a",), "acl_filter must be of the type AclBindingFilter, not str"),
        ("describe_acls", ([],), "acl_filter must be of the type AclBindingFilter, not list"),
        # Texts.
        ("delete_topics", ("data",), "names are a list of texts, such as ['data'], not 'data'"),
        ("delete_topics", (["data", 7],), "each of names is a text, not 7"),
        ("delete_topics", (b"data",), "names are a list of texts, not b'data'"),
        ("describe_topics", ([b"t1"],), "each of names is a text, not b't1'"),
        ("describe_topics", (None,), "names are a list of texts, not None"),
        ("describe_consumer_groups", ([None],), "each of group_ids is a text, not None"),
        ("delete_consumer_groups", ([None],), "each of group_ids is a text, not None"),
        ("describe_transactions", ([None],), "each of transactional_ids is a text, not None"),
        ("list_consumer_group_offsets", (None,), "group_id is a text, not None"),
        ("list_consumer_group_offsets", (["g"],), "group_id is a text, not ['g']"),
        ("list_consumer_group_offsets", (5,), "group_id is a text, not 5"),
        ("alter_consumer_group_offsets", (None, {}), "group_id is a text, not None"),
        ("delete_consumer_group_offsets", (None, []), "group_id is a text, not None"),
        # Partitions.
        ("list_consumer_group_offsets", ("g", FIRST), "partitions are a list of TopicPartition"),
        ("delete_consumer_group_offsets", ("g", FIRST), "partitions are a list of TopicPartition"),
        ("describe_producers", ("data",), "partitions are a list of TopicPartition, not 'data'"),
        ("describe_producers", (["data"],), NOT_A_PARTITION),
        ("list_offsets", ({"data": -1},), NOT_A_PARTITION),
        ("list_offsets", ({("data", "0"): -1},), "partition of topic 'data' is a number, not '0'"),
        ("delete_records", ({("data", "0"): 1},), "partition of topic 'data' is a number, not '0'"),
        ("describe_producers", ([("data", "0")],), "of topic 'data' is a number, not '0'"),
        ("delete_consumer_group_offsets", ("g", [("data", "0")]), "is a number, not '0'"),
        # Offsets.
        (
            "list_offsets",
            ([FIRST],),
            "offsets must be a mapping of TopicPartition to an OffsetSpec",
        ),
        ("list_offsets", ({FIRST: "latest"},), "data-0: an OffsetSpec or a timestamp is a number"),
        ("delete_records", ([FIRST],), "offsets must be a mapping of TopicPartition to an offset"),
        ("delete_records", ({FIRST: "1"},), "data-0: an offset is a number, not '1'"),
        ("alter_consumer_group_offsets", ("g", [FIRST]), "offsets must be a mapping"),
        ("alter_consumer_group_offsets", ("g", {"data": 5}), NOT_A_PARTITION),
        (
            "alter_consumer_group_offsets",
            ("g", {FIRST: "3"}),
            "data-0: an offset is a number or an OffsetAndMetadata, not '3'",
        ),
        (
            "alter_consumer_group_offsets",
            ("g", {FIRST: (3, "meta")}),
            "data-0: an offset is a number or an OffsetAndMetadata, not (3, 'meta')",
        ),
        (
            "alter_consumer_group_offsets",
            ("g", {FIRST: OffsetSpec.EARLIEST}),
            "a number, such as list_offsets returns for OffsetSpec.EARLIEST",
        ),
        # Partitions to add, and changes of settings.
        ("create_partitions", ({"t": 4},), "new_partitions['t'] must be of the type NewPartitions"),
        ("create_partitions", ({7: NewPartitions(4)},), "topic of new_partitions is a text, not 7"),
        ("create_partitions", ([NewPartitions(4)],), "such as {'orders': NewPartitions(4)}, not"),
        (
            "incremental_alter_configs",
            ({TOPIC: AlterConfigOp("retention.ms", "5")},),
            "the changes of topic 'data' must be a list of AlterConfigOp",
        ),
        (
            "incremental_alter_configs",
            ({TOPIC: {"retention.ms": "5"}},),
            "each of the changes of topic 'data' must be of the type AlterConfigOp, not str",
        ),
        ("incremental_alter_configs", ({"data": []},), "each resource of changes must be of the"),
        ("incremental_alter_configs", ([TOPIC],), "changes must be a mapping of ConfigResource to"),
    ],
)
def test_an_argument_of_a_wrong_type_is_refused(nowhere, call, arguments, message):
    """The error names the argument, and says what to pass; nothing is sent."""
    with pytest.raises(TypeError, match=re.escape(message)):
        getattr(nowhere, call)(*arguments)


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"states": "Ongoing"}, "states are a list of texts, such as ['Ongoing'], not 'Ongoing'"),
        ({"producer_ids": 5}, "producer_ids are a list of numbers, not 5"),
        ({"producer_ids": ["5"]}, "each of producer_ids is a number, not '5'"),
        ({"min_duration_ms": "5"}, "min_duration_ms is a number, not '5'"),
        ({"transactional_id_pattern": 5}, "transactional_id_pattern is a text, not 5"),
    ],
)
def test_a_filter_of_a_wrong_type_is_refused(nowhere, filters, message):
    """Transactions are filtered by names, numbers and a pattern."""
    with pytest.raises(TypeError, match=re.escape(message)):
        nowhere.list_transactions(**filters)


@pytest.mark.parametrize(
    ("call", "arguments", "message"),
    [
        ("delete_records", ({FIRST: 2**64},), "data-0: an offset does not fit into 64 bits"),
        ("list_offsets", ({FIRST: 2**63},), "data-0: an OffsetSpec or a timestamp does not fit"),
        (
            "list_offsets",
            ({("data", 2**31): -1},),
            "partition of topic 'data' does not fit into 32",
        ),
        ("delete_records", ({("data", -1): 1},), "the partition -1 of topic 'data' is negative"),
        ("alter_consumer_group_offsets", ("g", {FIRST: -1}), "data-0: the offset -1 is negative"),
        (
            "alter_consumer_group_offsets",
            ("g", {FIRST: OffsetAndMetadata(-1)}),
            "data-0: the offset -1 is negative",
        ),
        ("delete_topics", (["\ud800"],), "each of names cannot be encoded as UTF-8"),
        (
            "delete_topics",
            (["x" * 32768],),
            "each of names has 32768 bytes; Kafka's limit is 32767",
        ),
        ("list_consumer_group_offsets", ("\ud800",), "group_id cannot be encoded as UTF-8"),
    ],
)
def test_a_value_that_cannot_be_sent_is_refused(nowhere, call, arguments, message):
    """A number that is too large and a text that is not Unicode are errors before any request."""
    with pytest.raises(ValueError, match=re.escape(message)):
        getattr(nowhere, call)(*arguments)


@pytest.mark.parametrize("timeout", ["5", True, timedelta(seconds=3)])
@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("list_topics", ()),
        ("create_topics", ([NewTopic("t")],)),
        ("list_consumer_group_offsets", ("g",)),
        ("list_transactions", ()),
        ("delete_records", ({},)),
    ],
)
def test_a_timeout_is_a_number_of_seconds(nowhere, call, arguments, timeout):
    """Neither a text nor a timedelta is a timeout."""
    message = f"timeout is a number of seconds, not {timeout!r}"
    with pytest.raises(TypeError, match=re.escape(message)):
        getattr(nowhere, call)(*arguments, timeout=timeout)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: NewTopic("t", "2"), TypeError, "num_partitions of topic 't' is a number, not '2'"),
        (lambda: NewTopic("t", 2**31), ValueError, "num_partitions of topic 't' does not fit into"),
        (lambda: NewTopic("t", 1, "3"), TypeError, "replication_factor of topic 't' is a number"),
        (lambda: NewTopic("t", 1, 2**15), ValueError, "'t' does not fit into 16 bits: 32768"),
        (lambda: NewTopic("t", configs=None), TypeError, "'t' are a mapping of name to value, not"),
        (
            lambda: NewTopic("t", replica_assignments=[[1]]),
            TypeError,
            "are a mapping of partition to a list of broker ids, not [[1]]",
        ),
        (
            lambda: NewTopic("t", replica_assignments={"0": [1]}),
            TypeError,
            "a partition in the replica_assignments of topic 't' is a number, not '0'",
        ),
        (
            lambda: NewTopic("t", replica_assignments={0: 1}),
            TypeError,
            "the brokers of partition 0 of topic 't' are a list of broker ids, not 1",
        ),
        (
            lambda: NewTopic("t", replica_assignments={0: ["1"]}),
            TypeError,
            "each of the brokers of partition 0 of topic 't' is a number, not '1'",
        ),
        (
            lambda: NewPartitions("4"),
            TypeError,
            "total_count of NewPartitions is a number, not '4'",
        ),
        (
            lambda: NewPartitions(4, 1),
            TypeError,
            "a list of broker ids for each new partition, not",
        ),
        (lambda: NewPartitions(4, [1]), TypeError, "of a new partition are a list of broker ids"),
        (lambda: AlterConfigOp("k", "v", "SET"), TypeError, "op must be an AlterConfigOpType"),
        (lambda: AlterConfigOp("k", "\ud800"), ValueError, "the value of 'k' cannot be encoded"),
        (
            lambda: ConfigResource(ConfigResourceType.TOPIC, "\ud800"),
            ValueError,
            "the name of a ConfigResource cannot be encoded",
        ),
        (
            lambda: AclBinding(**ACL | {"name": None}, operation=AclOperation.READ),
            TypeError,
            "the name of an AclBinding is a text, not None",
        ),
        (
            lambda: AclBinding(**ACL, operation="READ"),
            TypeError,
            "operation must be of the type AclOperation, such as AclOperation.READ, not 'READ'",
        ),
        (
            lambda: AclBindingFilter(principal=7),
            TypeError,
            "the principal of an AclBindingFilter is a text, not 7",
        ),
    ],
)
def test_a_value_is_refused_where_it_is_made(make, error, message):
    """What cannot be sent is an error of the constructor, which names the field."""
    with pytest.raises(error, match=re.escape(message)):
        make()


@pytest.mark.parametrize(
    ("wrong", "error"), [("5", TypeError), (2**64, ValueError), (None, TypeError)]
)
def test_no_records_are_deleted_if_one_offset_is_wrong(wrong, error):
    """The leader of the other partition gets no request, although its offset is valid."""
    with DevBroker(brokers=2, topics={"data": 2}) as broker:
        settings = {"bootstrap.servers": broker.bootstrap_servers}
        with KafkaProducer(settings) as producer:
            for place in (FIRST, SECOND):
                producer.send(place.topic, b"x", partition=place.partition)
        assert broker.leader(*FIRST) != broker.leader(*SECOND)
        with AdminClient(settings) as admin:
            with pytest.raises(error, match="data-1: an offset"):
                admin.delete_records({FIRST: 1, SECOND: wrong})
            starts = admin.list_offsets(dict.fromkeys((FIRST, SECOND), OffsetSpec.EARLIEST))
    assert {FIRST: 0, SECOND: 0} == {place: found.offset for place, found in starts.items()}


def test_a_pair_is_a_partition_in_every_call(admin):
    """A plain pair of a topic and a number is accepted, and results are by TopicPartition."""
    pair = ("data", 0)
    admin.alter_consumer_group_offsets("g", {pair: 0})
    found = [
        admin.list_consumer_group_offsets("g", [pair]),
        admin.list_offsets({pair: OffsetSpec.LATEST}),
        admin.delete_records({pair: 0}),
        admin.describe_producers([pair]),
    ]
    assert None is admin.delete_consumer_group_offsets("g", [pair])
    assert [TopicPartition] * 4 == [type(place) for results in found for place in results]


def test_a_client_cannot_be_pickled(nowhere):
    """Spark would do that for a client that a task's function names."""
    with pytest.raises(TypeError, match="an AdminClient cannot be pickled: create it where"):
        pickle.dumps(nowhere)
