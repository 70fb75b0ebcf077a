"""Calls of the public admin client: their arguments, their errors, and their retries."""

from __future__ import annotations

import pytest

from spark_kafka_sink import (
    AdminClient,
    AdminError,
    BrokerError,
    ConfigError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    NetworkError,
    NewTopic,
    OffsetSpec,
    TopicPartition,
)
from spark_kafka_sink.admin.cluster_calls import out_of_time
from spark_kafka_sink.admin.item_requests import ItemResults, all_of
from spark_kafka_sink.devbroker.net.faults import AnswerError, CloseConnection, NeverAnswer
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.admin.admin_errors import failed
from tests.support.admin.late_calls import end_at_back_off, end_when_unreachable
from tests.support.network.leaps import SECONDS, leap

REFUSED = BrokerError("refused", code=16, name="NOT_COORDINATOR")
FIRST, SECOND = TopicPartition("data", 0), TopicPartition("data", 1)


@pytest.fixture
def nobody(monkeypatch):
    """Yield a client of a cluster where nothing listens, whose calls soon end."""
    end_when_unreachable(monkeypatch)
    with AdminClient({"bootstrap.servers": "localhost:1"}) as admin:
        yield admin


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


def test_a_cluster_that_does_not_answer_is_one_error(nobody):
    """Nothing listens: the error is that of the connection, not one for each item."""
    with pytest.raises(KafkaTimeoutError, match="DeleteTopics got no final response") as caught:
        nobody.delete_topics(["one", "two"])
    assert isinstance(caught.value.__cause__, NetworkError)
    with pytest.raises(KafkaTimeoutError, match="Metadata"):
        nobody.list_topics()


@pytest.mark.parametrize(
    "call",
    [
        "describe_consumer_groups",
        "delete_consumer_groups",
        "describe_transactions",
        "describe_topics",
    ],
)
@pytest.mark.parametrize("names", [["one"], ["one", "two"]], ids=len)
def test_an_unreachable_cluster_is_a_timeout_whatever_the_number_of_items(nobody, call, names):
    """Errors that name their items are one error all the same if no broker has answered."""
    with pytest.raises(KafkaTimeoutError, match="in time"):
        getattr(nobody, call)(names)


@pytest.mark.parametrize("call", ["describe_consumer_groups", "delete_consumer_groups"])
@pytest.mark.parametrize("names", [["one"], ["one", "two"]], ids=len)
@pytest.mark.parametrize(
    "fault", [NeverAnswer(), AnswerError(ErrorCode.COORDINATOR_NOT_AVAILABLE)], ids=str
)
def test_coordinators_that_are_not_found_in_time_are_one_timeout(broker, admin, call, names, fault):
    """Without coordinators nothing was asked about any group, however many there are."""

    def leap_and_fail(_, context):
        if context.number == 1:
            leap(admin)
        return fault

    broker.on(ApiKey.FIND_COORDINATOR, leap_and_fail)

    with pytest.raises(KafkaTimeoutError, match="in time"):
        getattr(admin, call)(names, timeout=SECONDS)


@pytest.mark.parametrize("cause", [None, NetworkError("no coordinator of 'one'")], ids=str)
def test_one_timeout_for_several_items_has_the_first_cause(cause):
    """It says how many items there are, and what happened to one of them."""
    errors = {name: KafkaTimeoutError(f"no coordinator of {name!r}") for name in ("one", "two")}
    errors["one"].__cause__ = cause

    with pytest.raises(KafkaTimeoutError) as caught:
        all_of("DescribeGroups", ItemResults({}, errors))

    assert (
        "DescribeGroups got no final response in time for any of 2 items; last cause for the "
        "first: no coordinator of 'one'"
    ) == str(caught.value)
    assert (cause or errors["one"]) is caught.value.__cause__


@pytest.mark.parametrize(
    ("results", "errors"),
    [
        ({"one": None}, {"two": KafkaTimeoutError("two"), "three": KafkaTimeoutError("three")}),
        ({}, {"one": KafkaTimeoutError("late"), "two": KafkaError("it is not a consumer group")}),
        ({}, {"one": out_of_time("A", REFUSED), "two": out_of_time("B", NetworkError("lost"))}),
    ],
    ids=["a result", "another error", "an answer"],
)
def test_timeouts_of_some_items_are_errors_of_these(results, errors):
    """If a broker has answered for an item, the error says so, with the errors of each item."""
    with pytest.raises(AdminError) as caught:
        all_of("DescribeGroups", ItemResults(results, errors))

    assert (results, errors) == (caught.value.results, caught.value.errors)


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


def test_a_retriable_error_that_remains_ends_with_the_timeout(broker, admin, monkeypatch):
    """The error of each item then is a timeout, whose cause is what the broker said."""
    wanted = {FIRST: OffsetSpec.LATEST, SECOND: OffsetSpec.LATEST}
    end_at_back_off(monkeypatch)
    broker.on(ApiKey.LIST_OFFSETS, AnswerError(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    with pytest.raises(AdminError) as caught:
        admin.list_offsets(wanted)

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


@pytest.mark.parametrize(
    ("security", "message"),
    [
        (
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule "
                'required username="a" passcode="s3cret";',
            },
            "sasl.jaas.config has no password",
        ),
        (
            {"security.protocol": "SSL", "ssl.keystore.location": "/a.jks"},
            "ssl.keystore.password",
        ),
    ],
    ids=["SASL", "TLS"],
)
def test_security_settings_are_checked_when_a_client_is_made(settings, security, message):
    """Unusable settings are an error of the constructor, as for producers and consumers."""
    with pytest.raises(ConfigError, match=message) as caught:
        AdminClient({**settings, **security})
    assert "s3cret" not in str(caught.value)


#: A call by each API of which an error says what it is about, and the beginning of the error.
ABOUT = {
    ApiKey.LIST_GROUPS: (
        lambda admin: admin.list_consumer_groups(),
        "ListGroups at {node} got no final response in time; ",
    ),
    ApiKey.LIST_TRANSACTIONS: (
        lambda admin: admin.list_transactions(),
        "ListTransactions at {node} got no final response in time; ",
    ),
    ApiKey.OFFSET_FETCH: (
        lambda admin: admin.list_consumer_group_offsets("g"),
        "OffsetFetch of group 'g' at its coordinator got no final response in time; ",
    ),
    ApiKey.OFFSET_COMMIT: (
        lambda admin: admin.alter_consumer_group_offsets("g", {FIRST: 1}),
        "OffsetCommit of group 'g' at its coordinator got no final response in time; ",
    ),
    ApiKey.OFFSET_DELETE: (
        lambda admin: admin.delete_consumer_group_offsets("g", [FIRST]),
        "OffsetDelete of group 'g' at its coordinator got no final response in time; ",
    ),
}


@pytest.mark.parametrize("api_key", ABOUT, ids=lambda it: it.name)
def test_an_error_says_once_what_it_is_about(broker, admin, refuse_until_timeout, api_key):
    """The description of a request and that of its broker do not repeat each other."""
    call, message = ABOUT[api_key]
    node = admin.describe_cluster().nodes[0]
    refuse_until_timeout(broker, admin, api_key, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    with pytest.raises(KafkaTimeoutError) as caught:
        call(admin)

    assert str(caught.value).startswith(message.format(node=node))
