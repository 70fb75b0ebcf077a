"""The APIs of access control lists (ACLs), without and with an authorizer."""

from __future__ import annotations

import json

import pytest

from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings
from spark_kafka_sink.devbroker.base.refusal import CloseConnectionError
from spark_kafka_sink.devbroker.brokers.clusters import cluster_of
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from spark_kafka_sink.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from spark_kafka_sink.protocol.messages.describe_acls import DescribeAclsRequest
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest
from tests.support.devbroker.broker_requests import NOW, ask, broker_with

DISABLED = (ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
ANY = 1
EVERYTHING = {
    "resource_type_filter": ANY,
    "resource_name_filter": None,
    "pattern_type_filter": ANY,
    "principal_filter": None,
    "host_filter": None,
    "operation": ANY,
    "permission_type": ANY,
}


@pytest.fixture
def broker():
    return broker_with({"t": 1})


@pytest.mark.parametrize("version", range(1, 4))
def test_acls_cannot_be_listed(broker, version):
    """DescribeAcls is refused as a whole, with Kafka's message."""
    answer = ask(broker, DescribeAclsRequest(**EVERYTHING), version)

    assert (*DISABLED, ()) == (answer.error_code, answer.error_message, answer.resources)


@pytest.mark.parametrize("version", range(1, 4))
def test_no_acl_is_created(broker, version):
    """CreateAcls refuses each ACL."""
    creation = AclCreation(
        resource_type=2,
        resource_name="t",
        principal="User:alice",
        host="*",
        operation=3,
        permission_type=3,
    )

    answer = ask(broker, CreateAclsRequest(creations=(creation, creation)), version)

    assert [DISABLED] * 2 == [(it.error_code, it.error_message) for it in answer.results]


@pytest.mark.parametrize("version", range(1, 4))
def test_no_acl_is_deleted(broker, version):
    """DeleteAcls refuses each filter."""
    request = DeleteAclsRequest(filters=(DeleteAclsFilter(**EVERYTHING),) * 2)

    answer = ask(broker, request, version)

    assert [(*DISABLED, ())] * 2 == [
        (it.error_code, it.error_message, it.matching_acls) for it in answer.filter_results
    ]


# With an authorizer.

READ, WRITE, ALL = 3, 4, 2
TOPIC, LITERAL, PREFIXED, MATCH = 2, 3, 4, 2
DENY, ALLOW = 2, 3


def creation(name="t", **changes):
    fields = {
        "resource_type": TOPIC,
        "resource_name": name,
        "resource_pattern_type": LITERAL,
        "principal": "User:alice",
        "host": "*",
        "operation": READ,
        "permission_type": ALLOW,
    }
    return AclCreation(**fields | changes)


def create(broker, *creations):
    answer = ask(broker, CreateAclsRequest(creations=creations))
    return [(result.error_code, result.error_message) for result in answer.results]


def described(broker, **changes):
    answer = ask(broker, DescribeAclsRequest(**EVERYTHING | changes))
    assert 0 == answer.error_code
    return [
        (resource.resource_name, resource.pattern_type, acl.principal, acl.operation)
        for resource in answer.resources
        for acl in resource.acls
    ]


def deleted(broker, **changes):
    request = DeleteAclsRequest(filters=(DeleteAclsFilter(**EVERYTHING | changes),))
    (result,) = ask(broker, request).filter_results
    return result.error_code, [(acl.resource_name, acl.operation) for acl in result.matching_acls]


@pytest.fixture
def guarded():
    return broker_with({"t": 1}, authorizer=True, super_users=("User:ANONYMOUS",))


def test_acls_are_listed_by_resource(guarded):
    """The ACLs of a resource are together, in the order in which they were created."""
    creations = (creation(), creation("p", resource_pattern_type=PREFIXED), creation(operation=ALL))

    assert [(0, None)] * 3 == create(guarded, *creations)
    assert [
        ("t", LITERAL, "User:alice", READ),
        ("t", LITERAL, "User:alice", ALL),
        ("p", PREFIXED, "User:alice", READ),
    ] == described(guarded)


def test_a_filter_finds_the_acls_that_apply_to_a_resource(guarded):
    """MATCH finds literal, prefixed and wildcard patterns for a name."""
    create(guarded, creation("t"), creation("*"), creation("tu"))
    create(guarded, creation("t", resource_pattern_type=PREFIXED))

    found = described(guarded, pattern_type_filter=MATCH, resource_name_filter="tx")

    assert [("*", LITERAL), ("t", PREFIXED)] == [(name, kind) for name, kind, _, _ in found]


def test_an_acl_that_exists_is_not_created_again(guarded):
    """A second creation succeeds and changes nothing."""
    assert [(0, None)] * 3 == create(guarded, creation(), creation()) + create(guarded, creation())
    assert 1 == len(described(guarded))


def test_an_invalid_acl_is_refused_and_the_others_are_created(guarded):
    """Each ACL has its own result."""
    results = create(guarded, creation(principal="alice"), creation("u"), creation(operation=99))

    assert [ErrorCode.INVALID_REQUEST, 0, ErrorCode.INVALID_REQUEST] == [
        code for code, _ in results
    ]
    assert ["u"] == [name for name, *_ in described(guarded)]


def test_deleted_acls_are_returned(guarded):
    """A filter deletes what it matches and nothing else."""
    create(guarded, creation(), creation("u"), creation("u", operation=WRITE))

    assert (0, [("u", READ), ("u", WRITE)]) == deleted(guarded, resource_name_filter="u")
    assert ["t"] == [name for name, *_ in described(guarded)]


def test_a_filter_that_is_repeated_finds_the_same_again(guarded):
    """Both filters of a request return the ACLs that it deletes, as in Kafka."""
    create(guarded, creation())
    request = DeleteAclsRequest(filters=(DeleteAclsFilter(**EVERYTHING),) * 2)

    results = ask(guarded, request).filter_results

    assert [1, 1] == [len(result.matching_acls) for result in results]


def test_a_code_of_a_newer_kafka_is_refused(guarded):
    """A filter with an unknown operation deletes nothing, and finds nothing."""
    create(guarded, creation())

    assert (ErrorCode.INVALID_REQUEST, []) == deleted(guarded, operation=99)
    assert [] == described(guarded, operation=99)


@pytest.mark.parametrize(
    "request_",
    [
        CreateAclsRequest(creations=(creation(operation=0),)),
        DescribeAclsRequest(**EVERYTHING | {"permission_type": 0}),
        DeleteAclsRequest(filters=(DeleteAclsFilter(**EVERYTHING | {"pattern_type_filter": 0}),)),
    ],
)
def test_the_code_of_unknown_closes_the_connection(guarded, request_):
    """A request that says UNKNOWN is one that Kafka cannot read."""
    with pytest.raises(CloseConnectionError, match="UNKNOWN"):
        ask(guarded, request_)


@pytest.mark.parametrize(
    ("request_", "operation"),
    [
        (CreateAclsRequest(creations=(creation(),)), 7),
        (DeleteAclsRequest(filters=(DeleteAclsFilter(**EVERYTHING),)), 7),
        (DescribeAclsRequest(**EVERYTHING), 8),
    ],
)
def test_acls_are_for_administrators(guarded, request_, operation):
    """To change ACLs needs ALTER of the cluster, and to list them DESCRIBE."""
    no_right = str(int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))

    assert f"error_code={no_right}" in str(ask(guarded, request_, principal="User:alice"))

    right = creation("kafka-cluster", resource_type=4, operation=operation, principal="User:alice")
    create(guarded, right)
    assert f"error_code={no_right}" not in str(ask(guarded, request_, principal="User:alice"))


def test_a_new_acl_applies_at_once(guarded):
    """A client may do what an ACL allows, and no longer once it is deleted."""
    request = MetadataRequest(topics=None)

    def seen():
        return [topic.name for topic in ask(guarded, request, principal="User:alice").topics]

    assert [] == seen()
    create(guarded, creation())
    assert ["t"] == seen()
    create(guarded, creation(operation=8, permission_type=DENY))
    assert [] == seen()


def test_acls_survive_a_restart(tmp_path):
    """ACLs are in the data directory, also while there is no authorizer."""

    def started(*, authorizer):
        users = ("User:ANONYMOUS",) if authorizer else ()
        settings = BrokerSettings(authorizer=authorizer, super_users=users)
        (broker,) = cluster_of(settings, 1, data_dir=tmp_path / "data").brokers
        broker.cluster.open(NOW)
        broker.advertise("127.0.0.1", 9092)
        return broker

    broker = started(authorizer=True)
    create(broker, creation(), creation("p", resource_pattern_type=PREFIXED, host="10.0.0.7"))
    before = broker.cluster.authorizer.acls
    broker.cluster.close(NOW)
    broker = started(authorizer=False)
    broker.cluster.create_topic("new", partitions=1)
    broker.cluster.close(NOW)
    broker = started(authorizer=True)

    assert before == broker.cluster.authorizer.acls
    broker.cluster.close(NOW)


@pytest.mark.parametrize(
    "acl",
    [
        {"resource_type": "TOPIC"},
        {
            "resource_type": "TOPIC",
            "name": "",
            "pattern_type": "LITERAL",
            "principal": "User:alice",
            "host": "*",
            "operation": "READ",
            "permission_type": "ALLOW",
        },
    ],
)
def test_a_stored_acl_that_is_malformed_stops_the_broker(tmp_path, acl):
    """A cluster with an ACL that cannot be read is not opened without it."""
    (broker,) = cluster_of(BrokerSettings(), 1, data_dir=tmp_path / "data").brokers
    broker.cluster.open(NOW)
    broker.cluster.close(NOW)
    path = tmp_path / "data" / "cluster.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"acls": [acl]}))

    with pytest.raises(ConfigError, match=r"cluster\.json cannot be read"):
        broker.cluster.open(NOW)


def test_nothing_is_created_on_a_full_disk(tmp_path, monkeypatch):
    """If the ACLs cannot be stored, none is created and each has the error."""
    settings = BrokerSettings(authorizer=True, super_users=("User:ANONYMOUS",))
    (broker,) = cluster_of(settings, 1, data_dir=tmp_path / "data").brokers
    broker.cluster.open(NOW)
    create(broker, creation())

    def fail(_cluster):
        raise OSError("no space")

    monkeypatch.setattr(broker.cluster.logs.data, "write_cluster", fail)
    results = create(broker, creation("u"), creation("v", operation=99))
    monkeypatch.undo()

    assert [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.INVALID_REQUEST] == [it[0] for it in results]
    assert ["t"] == [name for name, *_ in described(broker)]
    broker.cluster.close(NOW)


@pytest.mark.parametrize(
    "settings", [{"super_users": ("User:a",)}, {"allow_everyone_if_no_acl_found": True}]
)
def test_a_setting_without_an_effect_is_refused(settings):
    """Super users without an authorizer are a mistake."""
    with pytest.raises(ConfigError, match="set authorizer=True"):
        broker_with(**settings)
