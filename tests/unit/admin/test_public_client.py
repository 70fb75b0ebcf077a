"""The public admin client against the embedded broker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_kafka_sink import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AdminClient,
    AdminError,
    AlterConfigOp,
    AlterConfigOpType,
    BrokerError,
    ConfigError,
    ConfigResource,
    ConfigResourceType,
    ConfigSource,
    DecodeError,
    IllegalStateError,
    KafkaError,
    KafkaProducer,
    KafkaTimeoutError,
    NetworkError,
    NewPartitions,
    NewTopic,
    OffsetAndMetadata,
    OffsetSpec,
    ResourceType,
    TopicPartition,
    UnsupportedVersionError,
)
from spark_kafka_sink.admin.client.group_descriptions import assigned_partitions
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.net.faults import AlterResponse, AnswerError, CloseConnection
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.spark.source_groups import joined_consumer

FIRST, SECOND = TopicPartition("data", 0), TopicPartition("data", 1)
MISSING = TopicPartition("missing", 0)
DATA = ConfigResource(ConfigResourceType.TOPIC, "data")
SHORT = 0.3


@pytest.fixture
def broker():
    with DevBroker(topics={"data": 2, "more": 1}, auto_create_topics=False) as started:
        yield started


@pytest.fixture
def settings(broker):
    return {"bootstrap.servers": broker.bootstrap_servers, "retry.backoff.ms": 10}


@pytest.fixture
def admin(settings):
    with AdminClient(settings) as client:
        yield client


def produce(settings, *values, topic="data", partition=0, **more):
    with KafkaProducer({**settings, **more}) as producer:
        for timestamp, value in enumerate(values):
            producer.send(topic, value, partition=partition, timestamp=timestamp * 1000)
        producer.flush()


def up_to(api_key, version):
    """Return a fault that makes a broker announce no later version of an API."""

    def announced(response):
        keys = tuple(
            replace(it, max_version=version) if it.api_key == api_key else it
            for it in response.api_keys
        )
        return replace(response, api_keys=keys)

    return AlterResponse(announced)


def failed(caught):
    """Return the names of the errors by item."""
    return {item: error.name for item, error in caught.value.errors.items()}


# --- errors


def test_the_items_that_did_not_fail_are_done(admin):
    """A call about several topics creates the others, and its error has both kinds of results."""
    with pytest.raises(AdminError) as caught:
        admin.create_topics([NewTopic("data"), NewTopic("new", 3)])

    assert {"data": "TOPIC_ALREADY_EXISTS"} == failed(caught)
    assert 3 == caught.value.results["new"].num_partitions
    assert not caught.value.retriable
    assert str(caught.value).startswith(
        "CreateTopics failed for 1 of 2: data: CreateTopics('data')"
    )
    assert {"data", "more", "new"} == admin.list_topics().keys()


def test_an_error_of_one_item_is_raised_in_the_same_way(admin):
    """A call about one topic raises the same error as a call about several."""
    with pytest.raises(AdminError) as caught:
        admin.delete_topics(["missing"])

    assert {"missing": "UNKNOWN_TOPIC_OR_PARTITION"} == failed(caught)


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_timeout_must_be_positive(admin, timeout):
    """A call that has no time is an error, and changes nothing."""
    with pytest.raises(ValueError, match="timeout must be a positive number of seconds"):
        admin.create_topics([NewTopic("late")], timeout=timeout)

    assert "late" not in admin.list_topics()


def test_a_timeout_may_be_infinite(admin):
    """A timeout beyond what requests can carry is the longest that they can."""
    admin.create_topics([NewTopic("patient")], timeout=float("inf"))

    assert "patient" in admin.list_topics(timeout=3e6)


@pytest.mark.parametrize("offset", [OffsetSpec.EARLIEST, OffsetAndMetadata(-1, -1, "")])
def test_a_negative_offset_is_not_committed(admin, offset):
    """The offset of a group is a number, not a specification such as EARLIEST."""
    with pytest.raises(ValueError, match="not an offset that can be committed"):
        admin.alter_consumer_group_offsets("billing", {FIRST: offset})


@pytest.mark.parametrize("call", ["delete_topics", "describe_topics", "delete_consumer_groups"])
def test_a_name_that_is_not_a_text_is_rejected(admin, call):
    """The error shows what the name would have to be."""
    with pytest.raises(TypeError, match="such as '7', not 7"):
        getattr(admin, call)(["data", 7])

    assert "data" in admin.list_topics()


@pytest.mark.parametrize("call", ["delete_topics", "describe_topics", "delete_consumer_groups"])
def test_a_single_text_is_not_taken_for_its_letters(admin, call):
    """A text in place of a list of names is an error, and nothing is deleted."""
    with pytest.raises(TypeError, match=r"such as \['data'\]"):
        getattr(admin, call)("data")

    assert "data" in admin.list_topics()


def test_a_call_about_nothing_needs_no_broker():
    """A call about no items returns nothing, without a connection."""
    with AdminClient({"bootstrap.servers": "localhost:1"}) as admin:
        assert {} == admin.describe_topics([])
        assert None is admin.alter_consumer_group_offsets("g", {})
        assert None is admin.delete_consumer_group_offsets("g", [])


def test_a_cluster_that_does_not_answer_is_one_error():
    """Nothing listens: the error is that of the connection, not one for each item."""
    settings = {"bootstrap.servers": "localhost:1", "default.api.timeout.ms": 300}
    with AdminClient(settings) as admin:
        with pytest.raises(KafkaTimeoutError, match="DeleteTopics got no final response") as caught:
            admin.delete_topics(["one", "two"])
        assert isinstance(caught.value.__cause__, NetworkError)
        with pytest.raises(KafkaTimeoutError, match="Metadata"):
            admin.list_topics(timeout=0.1)


def test_a_retriable_error_is_retried(broker, admin):
    """A request that a broker is not ready for is sent again until it is."""
    hook = broker.on(ApiKey.CREATE_TOPICS, AnswerError(ErrorCode.NOT_CONTROLLER), times=2)

    assert {"new"} == admin.create_topics([NewTopic("new")]).keys()
    assert 2 == hook.fired


def test_a_lost_connection_is_opened_again(broker, admin):
    """A connection that ends during a request is replaced, and the request sent again."""
    hook = broker.on(ApiKey.LIST_OFFSETS, CloseConnection(), times=1)

    assert 0 == admin.list_offsets({FIRST: OffsetSpec.LATEST})[FIRST].offset
    assert 1 == hook.fired


def test_a_retriable_error_that_remains_ends_with_the_timeout(broker, admin):
    """The error of each item then is a timeout, whose cause is what the broker said."""
    broker.on(ApiKey.LIST_OFFSETS, AnswerError(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    with pytest.raises(AdminError) as caught:
        admin.list_offsets({FIRST: OffsetSpec.LATEST, SECOND: OffsetSpec.LATEST}, timeout=SHORT)

    assert {FIRST, SECOND} == caught.value.errors.keys()
    assert {"NOT_LEADER_OR_FOLLOWER"} == {
        error.__cause__.name for error in caught.value.errors.values()
    }
    assert caught.value.retriable


def test_a_closed_client_says_so(settings):
    """A call after `close` is an error of one sentence; closing twice is not one."""
    admin = AdminClient(settings)
    admin.close()
    admin.close()

    with pytest.raises(IllegalStateError, match="the admin client is closed"):
        admin.list_topics()


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("describe_topics", ([],)),
        ("delete_topics", ([],)),
        ("delete_records", ({},)),
        ("describe_consumer_groups", ([],)),
        ("alter_consumer_group_offsets", ("g", {})),
        ("delete_consumer_group_offsets", ("g", [])),
        ("create_acls", ([],)),
    ],
)
def test_a_call_about_nothing_checks_all_the_same(settings, call, arguments):
    """A closed client and a wrong timeout are errors even if there is nothing to request."""
    admin = AdminClient(settings)
    with pytest.raises(ValueError, match="timeout must be a positive number"):
        getattr(admin, call)(*arguments, timeout=0)
    admin.close()

    with pytest.raises(IllegalStateError, match="the admin client is closed"):
        getattr(admin, call)(*arguments)


def test_a_setting_of_producers_is_rejected(settings):
    """A setting that Kafka's admin client does not have is an error."""
    with pytest.raises(ConfigError, match="acks"):
        AdminClient({**settings, "acks": "all"})


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
        admin.describe_topics(["data", "missing"], timeout=30)

    assert {"missing": "UNKNOWN_TOPIC_OR_PARTITION"} == failed(caught)
    assert {"data"} == caught.value.results.keys()


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
        producer.send("data", b"a", partition=0).result(timeout=30)
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


# --- settings


def test_settings_are_changed_one_by_one(admin):
    """Set, append and delete change what they name and nothing else."""
    admin.incremental_alter_configs(
        {
            DATA: [
                AlterConfigOp("retention.ms", "1000"),
                AlterConfigOp("cleanup.policy", "compact", AlterConfigOpType.APPEND),
            ]
        }
    )
    changed = admin.describe_configs([DATA], include_synonyms=True)[DATA]
    admin.incremental_alter_configs(
        {DATA: [AlterConfigOp("retention.ms", None, AlterConfigOpType.DELETE)]}
    )

    assert ("1000", False) == (changed["retention.ms"].value, changed["retention.ms"].is_default)
    assert "delete,compact" == changed["cleanup.policy"].value
    assert "retention.ms" == changed["retention.ms"].synonyms[0].name
    assert admin.describe_configs([DATA])[DATA]["retention.ms"].is_default


def test_a_wrong_setting_changes_nothing(admin):
    """An unknown setting is an error of its topic; with `validate_only` nothing changes at all."""
    changes = {DATA: [AlterConfigOp("retention.ms", "1000")]}
    admin.incremental_alter_configs(changes, validate_only=True)
    with pytest.raises(AdminError) as caught:
        admin.incremental_alter_configs({DATA: [*changes[DATA], AlterConfigOp("retention", "1")]})

    assert {DATA: "INVALID_CONFIG"} == failed(caught)
    assert admin.describe_configs([DATA])[DATA]["retention.ms"].is_default


def test_settings_of_a_broker_come_from_it(admin):
    """A broker is asked for its own settings; one that is not running is an error."""
    running = ConfigResource(ConfigResourceType.BROKER, "1")
    absent = ConfigResource(ConfigResourceType.BROKER, "7")

    assert admin.describe_configs([running, DATA])[running]
    with pytest.raises(KafkaError, match="broker '7' is not running"):
        admin.describe_configs([absent], timeout=SHORT)


# --- the cluster


def test_the_cluster_is_described(broker, admin):
    """The description has the brokers with their addresses, and the rights if requested."""
    cluster = admin.describe_cluster(include_authorized_operations=True)

    assert [broker.bootstrap_servers] == [f"{it.host}:{it.port}" for it in cluster.nodes]
    assert AclOperation.ALTER_CONFIGS in cluster.authorized_operations
    assert None is admin.describe_cluster().authorized_operations


# --- consumer groups


def test_a_group_that_stores_offsets_is_listed_and_described(admin):
    """A group without members is empty and simple."""
    admin.alter_consumer_group_offsets("g", {FIRST: 1})

    [listed] = admin.list_consumer_groups()
    group = admin.describe_consumer_groups(["g"], include_authorized_operations=True)["g"]

    assert ("g", "Empty", True) == (listed.group_id, listed.state, listed.is_simple)
    assert ("Empty", (), True) == (group.state, group.members, group.is_simple)
    assert {AclOperation.READ, AclOperation.DELETE} <= group.authorized_operations
    assert [] == admin.list_consumer_groups(states=["Stable"])
    assert [listed] == admin.list_consumer_groups(states=["EMPTY"], types=["classic"])
    assert [] == admin.list_consumer_groups(types=["Consumer"])


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"states": ["Stable", "Bogus"]}, "states must be among Stable, .* but one is 'Bogus'"),
        ({"types": ["Share"]}, "types must be among Classic, Consumer, but one is 'Share'"),
    ],
)
def test_an_unknown_state_or_type_is_not_an_empty_list(admin, filters, message):
    """Brokers would ignore a mistyped filter, and list no groups."""
    with pytest.raises(ValueError, match=message):
        admin.list_consumer_groups(**filters)


def test_members_are_described_with_their_partitions(broker, admin):
    """A member has its client id, its host and the partitions that it reads."""
    with joined_consumer(broker.bootstrap_servers, "g", "data", client_id="reader"):
        group = admin.describe_consumer_groups(["g"])["g"]

    [member] = group.members
    assert ("Stable", "Classic", "range") == (group.state, group.type, group.partition_assignor)
    assert ("reader", (FIRST, SECOND)) == (member.client_id, member.assignment)
    assert "127.0.0.1" in member.host
    assert 1 == group.coordinator.node_id


def test_a_missing_group_does_not_affect_others(admin):
    """A group that does not exist is an error, for descriptions and deletions."""
    admin.alter_consumer_group_offsets("g", {FIRST: 1})
    for call in (admin.describe_consumer_groups, admin.delete_consumer_groups):
        with pytest.raises(AdminError) as caught:
            call(["g", "missing"])
        assert {"missing": "GROUP_ID_NOT_FOUND"} == failed(caught)
        assert {"g"} == caught.value.results.keys()

    assert [] == admin.list_consumer_groups()


def test_committed_offsets_are_read_as_they_were_set(admin):
    """Offsets, leader epochs and metadata come back; partitions without one are left out."""
    committed = OffsetAndMetadata(7, 0, "by hand")
    admin.alter_consumer_group_offsets("g", {FIRST: committed, TopicPartition("more", 0): 3})

    assert {FIRST: committed, TopicPartition("more", 0): OffsetAndMetadata(3)} == (
        admin.list_consumer_group_offsets("g")
    )
    assert {FIRST: committed} == (
        admin.list_consumer_group_offsets("g", [FIRST, SECOND], require_stable=True)
    )
    assert {} == admin.list_consumer_group_offsets("missing")


def test_offsets_of_a_group_with_members_are_not_changed(broker, admin):
    """Only members may commit while there are any, and the group cannot be deleted."""
    with joined_consumer(broker.bootstrap_servers, "g", "data"):
        with pytest.raises(AdminError) as caught:
            admin.alter_consumer_group_offsets("g", {FIRST: 1, SECOND: 1})
        assert dict.fromkeys([FIRST, SECOND], "UNKNOWN_MEMBER_ID") == failed(caught)
        with pytest.raises(AdminError) as caught:
            admin.delete_consumer_groups(["g"])
        assert {"g": "NON_EMPTY_GROUP"} == failed(caught)


def test_an_assignment_of_a_newer_version_is_read():
    """What all versions have in common is read, and what follows it is not."""
    encoded = bytes.fromhex("0003 00000001 0004 64617461 00000002 00000001 00000000 ffffffff 99")

    assert (FIRST, SECOND) == assigned_partitions(encoded)
    assert () == assigned_partitions(b"")


@pytest.mark.parametrize(
    "encoded",
    ["00", "ffff 00000000", "0000 ffffffff", "0000 7fffffff", "0000 00000001 0004 6461"],
)
def test_a_wrong_assignment_is_a_decode_error(encoded):
    """Whatever members of a group store, it is read or it is a DecodeError."""
    with pytest.raises(DecodeError):
        assigned_partitions(bytes.fromhex(encoded))


# --- access control lists


def test_a_cluster_without_an_authorizer_has_no_acls(admin):
    """All three calls are refused, with what the broker said."""
    acl = AclBinding(
        resource_type=ResourceType.TOPIC,
        name="data",
        principal="User:alice",
        operation=AclOperation.READ,
    )
    with pytest.raises(BrokerError, match="No Authorizer is configured") as refused:
        admin.describe_acls()
    assert "SECURITY_DISABLED" == refused.value.name
    for call, item in ((admin.create_acls, acl), (admin.delete_acls, AclBindingFilter())):
        with pytest.raises(AdminError) as caught:
            call([item])
        assert {item: "SECURITY_DISABLED"} == failed(caught)


def test_an_operation_of_a_newer_broker_is_unknown():
    """A number that this version does not know is UNKNOWN and not an error."""
    assert AclOperation.UNKNOWN is AclOperation(99)
    assert ConfigSource.UNKNOWN is ConfigSource(99)


# --- transactions


def test_transactions_are_listed_and_described(admin, settings):
    """An open transaction has its state, its partitions and its producer."""
    with KafkaProducer({**settings, "transactional.id": "t"}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("data", b"a", partition=0).result(timeout=30)
        [listed] = admin.list_transactions()
        opened = admin.describe_transactions(["t"])["t"]
        [state] = admin.describe_producers([FIRST])[FIRST]
        chosen = [
            admin.list_transactions(states=["Ongoing"], transactional_id_pattern="t"),
            admin.list_transactions(producer_ids=[listed.producer_id]),
        ]
        others = [
            admin.list_transactions(states=["Empty"]),
            admin.list_transactions(transactional_id_pattern="other"),
            admin.list_transactions(min_duration_ms=3_600_000),
        ]
        producer.abort_transaction()

    assert ("t", "Ongoing") == (listed.transactional_id, listed.state)
    assert ("Ongoing", (FIRST,)) == (opened.state, opened.partitions)
    assert opened.producer == (state.producer_id, state.producer_epoch)
    assert (0, listed.producer_id) == (state.current_transaction_start_offset, state.producer_id)
    assert [[listed]] * 2 == chosen
    assert [[]] * 3 == others


def test_an_unknown_transactional_id_is_an_error(admin):
    """An id that no coordinator knows is an error of that id."""
    with pytest.raises(AdminError) as caught:
        admin.describe_transactions(["nobody"])

    assert {"nobody": "TRANSACTIONAL_ID_NOT_FOUND"} == failed(caught)


def test_a_broker_without_an_api_is_too_old(broker, admin):
    """An API that the broker does not have is an error that says since when Kafka has it."""

    def without_producers(response):
        kept = [it for it in response.api_keys if it.api_key != ApiKey.DESCRIBE_PRODUCERS]
        return replace(response, api_keys=tuple(kept))

    broker.on(ApiKey.API_VERSIONS, AlterResponse(without_producers))
    with pytest.raises(UnsupportedVersionError, match=r"DESCRIBE_PRODUCERS API.* Kafka 2\.8"):
        admin.describe_producers([FIRST])


def test_an_offset_that_a_broker_does_not_know_of_is_not_requested(broker, admin):
    """A broker whose ListOffsets is too old for an offset is not asked for it."""
    broker.on(ApiKey.API_VERSIONS, up_to(ApiKey.LIST_OFFSETS, 6))
    assert 0 == admin.list_offsets({FIRST: OffsetSpec.LATEST})[FIRST].offset
    with pytest.raises(UnsupportedVersionError, match="too old for one of the offsets"):
        admin.list_offsets({FIRST: OffsetSpec.MAX_TIMESTAMP})


@pytest.mark.parametrize("version", [5, 7, 9])
def test_offsets_are_read_from_older_brokers(broker, admin, version):
    """OffsetFetch has had several groups since version 8, and names no topics from 10 on."""
    broker.on(ApiKey.API_VERSIONS, up_to(ApiKey.OFFSET_FETCH, version))
    admin.alter_consumer_group_offsets("g", {FIRST: 7})

    assert {FIRST: OffsetAndMetadata(7)} == admin.list_consumer_group_offsets("g")
    assert {} == admin.list_consumer_group_offsets("g", [SECOND])


def test_topics_are_deleted_by_older_brokers(broker, admin):
    """DeleteTopics has had a struct for each topic since version 6."""
    broker.on(ApiKey.API_VERSIONS, up_to(ApiKey.DELETE_TOPICS, 5))
    admin.delete_topics(["data"])

    assert {"more"} == admin.list_topics().keys()
